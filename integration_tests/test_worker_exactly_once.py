"""Exactly-once delivery through crashes: killed at named points, frozen beyond every time-out, a broker restart.

Judged by what a `read_committed` reader sees: each message once. The workers are processes of their own; `SCRIPT` is
one that ends itself with SIGKILL the n-th time it passes a named point of the protocol.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim.local import Broker, LocalCluster
from rocketshim.producer.producer import Producer
from rocketshim_topics import Message, provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

LEVELS = "1s 2s 3s"
DEADLINE_S = 60.0
SCRIPT = """
import faulthandler, logging, os, signal, sys
from rocketshim.settings import WorkerSettings
from rocketshim.worker.log_format import configure
from rocketshim.worker.worker import DelayWorker
bootstrap, namespace, allow, levels, mode, instance, point, count = sys.argv[1:]
configure("text")
faulthandler.register(signal.SIGUSR1)
left = int(count)
def passed(name):
    global left
    if name == point:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
settings = WorkerSettings.make(
    bootstrap=bootstrap, namespace=namespace, allow=(allow,), delay_levels=levels, exactly_once=mode == "exactly-once",
    instance=instance, transaction_timeout_ms=6_000, client={"session.timeout.ms": 6_000, "log_level": 0})
worker = DelayWorker(settings, on_point=passed)
signal.signal(signal.SIGTERM, lambda *_: worker.stop())
worker.run()
"""


class Stage:
    """One namespace and its workers on some cluster."""

    def __init__(self, bootstrap: str, logs: Path, admin: AdminClient) -> None:
        self.bootstrap = bootstrap
        self.names = TopicNames(f"ns{uuid.uuid4().hex[:10]}")
        self.target = f"{self.names.namespace}.target"
        self.admin = admin
        self.logs = logs
        self.processes: list[subprocess.Popen[bytes]] = []
        provision.ensure_topics(admin, Layout(self.names, DelayLevels.parse(LEVELS)).shared())
        admin.create_topics([NewTopic(self.target, 3, config={"message.timestamp.type": "LogAppendTime"})])[
            self.target
        ].result(30)

    def worker(
        self, instance: str, *, point: str = "", count: int = 1, mode: str = "exactly-once"
    ) -> subprocess.Popen[bytes]:
        arguments = [
            self.bootstrap, self.names.namespace, self.target, LEVELS, mode, instance, point, str(count),
        ]  # fmt: skip
        with (self.logs / f"worker-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def send(self, producer: Producer, first: int, count: int) -> None:
        for number in range(first, first + count):
            delay = 0.3 + number % 9 / 10
            producer.send_async(
                Message(self.target, b"%d" % number, key=b"k%d" % number, delay=None if number % 3 else delay,
                        delay_level=1 + number % 2 if number % 3 else None)
            )  # fmt: skip
        producer.flush()

    def read(self, *, committed: bool = True) -> Counter[bytes]:
        """How often each message is seen."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted", "log_level": 0,
            }
        )  # fmt: skip
        try:
            consumer.assign([TopicPartition(self.target, number, 0) for number in range(3)])
            found: Counter[bytes] = Counter()
            ended = 0
            end = time.monotonic() + 20
            while ended < 3:
                message = consumer.poll(1.0)
                assert time.monotonic() < end, "no end of the target: an open transaction?"
                if message is None:
                    continue
                if message.error() is None:
                    found[message.value()] += 1
                elif message.error().name() == "_PARTITION_EOF":
                    ended += 1
            return found
        finally:
            consumer.close()

    def read_until(self, count: int) -> Counter[bytes]:
        end = time.monotonic() + DEADLINE_S
        while len(found := self.read()) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} messages; logs in {self.logs}"
            time.sleep(0.2)
        return found

    def stop(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            if process.poll() is None:
                process.kill()
            process.wait(30)


@pytest.fixture
def stage(broker: Broker, admin: AdminClient, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(broker.bootstrap, tmp_path, admin)
    yield made
    made.stop()
    admin.delete_topics([made.names.schedule, made.names.parked, made.target])


def once(count: int) -> Counter[bytes]:
    return Counter({b"%d" % number: 1 for number in range(count)})


def killed(process: subprocess.Popen[bytes]) -> None:
    assert process.wait(DEADLINE_S) == -signal.SIGKILL


def test_killed_at_every_named_point_each_message_is_delivered_once(stage: Stage) -> None:
    points = ("before-produce", "after-produce", "before-commit", "after-commit")
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        for turn, point in enumerate(points):
            process = stage.worker("one", point=point, count=3)
            stage.send(producer, turn * 100, 100)
            killed(process)
    last = stage.worker("one")
    assert stage.read_until(400) == once(400)
    time.sleep(1.5)  # whatever would come twice has come by now: nothing waits longer than that
    assert stage.read() == once(400)
    last.send_signal(signal.SIGTERM)
    assert last.wait(20) == 0


def test_killed_at_every_named_point_at_least_once_loses_nothing(stage: Stage) -> None:
    points = ("before-produce", "after-produce", "before-commit")
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        for turn, point in enumerate(points):
            process = stage.worker("one", point=point, mode="at-least-once")
            stage.send(producer, turn * 100, 100)
            killed(process)
    stage.worker("one", mode="at-least-once")
    assert set(stage.read_until(300)) == set(once(300))


def test_a_worker_frozen_beyond_every_time_out_repeats_nothing_when_it_wakes(stage: Stage) -> None:
    frozen = stage.worker("one")
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        stage.send(producer, 0, 100)
        stage.read_until(30)
        os.kill(frozen.pid, signal.SIGSTOP)  # wherever it is
        stopped = time.monotonic()
        second = stage.worker("two")
        stage.send(producer, 100, 100)
        assert stage.read_until(200) == once(200)
        # liveness is back within the session's time-out and ten seconds
        assert time.monotonic() - stopped < 6 + 10 + 5
        os.kill(frozen.pid, signal.SIGCONT)
        stage.send(producer, 200, 100)
        assert stage.read_until(300) == once(300)
    for process in (frozen, second):
        process.send_signal(signal.SIGTERM)
    assert [process.wait(20) for process in (frozen, second)] == [0, 0]
    assert stage.read() == once(300)


def test_a_broker_restart_in_mid_stream_neither_loses_nor_repeats(tmp_path: Path) -> None:
    with LocalCluster(1, data_dir=tmp_path / "data") as cluster:
        cluster.touch_internal_topics()
        admin = AdminClient(cluster.client_config())
        stage = Stage(cluster.bootstrap, tmp_path, admin)
        try:
            stage.worker("one")
            with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
                stage.send(producer, 0, 300)
                stage.read_until(20)
                cluster.kill(1)
                cluster.restart(1)
                stage.send(producer, 300, 100)
                assert stage.read_until(400) == once(400)
        finally:
            stage.stop()


def test_a_target_deleted_in_mid_stream_holds_up_nobody(stage: Stage, topic: Callable[..., str]) -> None:
    gone = topic(1)
    with (stage.logs / "gone.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "rocketshim", "worker", "--bootstrap", stage.bootstrap, "--namespace",
                stage.names.namespace, "--delay-levels", LEVELS, "--exactly-once", "--allow", stage.target,
                "--allow", gone,
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    stage.processes.append(process)
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        producer.send(Message(gone, b"before", delay=0.1))
        stage.send(producer, 0, 20)
        stage.read_until(20)
        for _ in range(10):
            producer.send_async(Message(gone, b"after", delay_level=1))
        stage.send(producer, 20, 80)
        stage.admin.delete_topics([gone])[gone].result(20)
        assert stage.read_until(100) == once(100)
