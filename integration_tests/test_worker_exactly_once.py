"""Exactly-once delivery through crashes: killed at named points, frozen beyond every time-out, a broker restart.

Judged by what a `read_committed` reader sees: each message once. The workers are processes of their own; `SCRIPT` is
one that ends itself with SIGKILL the n-th time it passes a named point of the protocol, or hangs there. No test counts
on how much a worker does in one transaction or in a second: what has to happen n times is given cause until it has.
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
from confluent_kafka import Message as Record
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from rocketshim.errors import LocalBrokerError, RocketshimError
from rocketshim.kafka.acls import denied_topics
from rocketshim.producer.producer import Producer
from rocketshim_local import Broker, LocalCluster
from rocketshim_topics import Message, provision
from rocketshim_topics.hops import is_probe
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

from . import waiting
from .worker_stage import recovery_s

LEVELS = "1s 2s 3s"
SESSION_S = 6
DEADLINE_S = 120.0
LONGER_THAN_A_RESTART_MS = 60_000
"""Kafka 4.3 forgets a transaction that times out while its partitions have no leader (KAFKA-20734). The next one of the
same producer then commits its records, too: a repeat that no worker can prevent. But a worker whose call never returns
(librdkafka 5456) ends only after two thirds of this time and six seconds: the guard of `assert_recovered` is longer."""
SCRIPT = """
import faulthandler, logging, os, signal, sys, time
from rocketshim.cli.worker import end_if_stuck
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.log_format import configure
from rocketshim.worker.worker import DelayWorker
bootstrap, namespace, allow, levels, mode, instance, point, count, transaction_ms, *client = sys.argv[1:]
configure("text")
faulthandler.register(signal.SIGUSR1)
left = int(count)
def passed(name):
    global left
    if name == point:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if left < 0:  # a count of 0: hang
            time.sleep(3_600)
settings = WorkerSettings.make(
    bootstrap=bootstrap, namespace=namespace, allow=(allow,), delay_levels=levels, exactly_once=mode == "exactly-once",
    instance=instance, transaction_timeout_ms=int(transaction_ms),
    client={"session.timeout.ms": 6_000, "log_level": 0, **dict(pair.split("=") for pair in client)})
worker = DelayWorker(settings, on_point=passed)
end_if_stuck(worker.heart, 0.2 if left == 0 else 1.0)
signal.signal(signal.SIGTERM, lambda *_: worker.stop())
worker.run()
"""


class Stage:
    """One namespace and its workers on some cluster."""

    def __init__(self, bootstrap: str, logs: Path, admin: AdminClient) -> None:
        self.bootstrap = bootstrap
        self.client: dict[str, str] = {}
        self.transaction_ms = 6_000
        self.names = TopicNames(f"ns{uuid.uuid4().hex[:10]}")
        self.target = f"{self.names.namespace}.target"
        self.admin = admin
        self.logs = logs
        self.processes: list[subprocess.Popen[bytes]] = []
        provision.ensure_topics(admin, Layout(self.names, DelayLevels.parse(LEVELS)).shared())
        admin.create_topics([NewTopic(self.target, 3, config={"message.timestamp.type": "LogAppendTime"})])[
            self.target
        ].result(DEADLINE_S)

    def worker(
        self, instance: str, *, point: str = "", count: int = 1, mode: str = "exactly-once"
    ) -> subprocess.Popen[bytes]:
        arguments = [
            self.bootstrap, self.names.namespace, self.target, LEVELS, mode, instance, point, str(count),
            str(self.transaction_ms),
            # one that dies and comes back has its partitions immediately, and the tests need not wait for its session
            *([f"group.instance.id={instance}"] if point else []),
        ]  # fmt: skip
        with (self.logs / f"worker-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def cli_worker(self, *options: str) -> subprocess.Popen[bytes]:
        with (self.logs / f"worker-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "rocketshim", "worker", "--bootstrap", self.bootstrap, "--namespace",
                    self.names.namespace, "--delay-levels", LEVELS, *options,
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def send(self, producer: Producer, first: int, count: int) -> None:
        """Send messages with these numbers; each is stored, once, when this returns."""
        sent = []
        for number in range(first, first + count):
            delay = 0.3 + number % 9 / 10
            message = Message(self.target, b"%d" % number, key=b"k%d" % number, delay=None if number % 3 else delay,
                              delay_level=1 + number % 2 if number % 3 else None)  # fmt: skip
            sent.append(producer.send_async(message))
        for future in sent:
            future.result(DEADLINE_S)

    def send_until_killed(self, producer: Producer, first: int) -> int:
        """Send small batches until the last worker has passed its point often enough; the number after the last one."""
        end = time.monotonic() + DEADLINE_S
        while self.processes[-1].poll() != -signal.SIGKILL:
            assert time.monotonic() < end, f"the worker is not killed; logs in {self.logs}"
            self.supervise()
            self.send(producer, first, 20)
            first += 20
            with suppress(subprocess.TimeoutExpired):
                self.processes[-1].wait(0.2)
        return first

    def waiting(self) -> int:
        """How many records lie after the committed positions; nothing can come twice once there are none."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": self.names.worker_group, "enable.partition.eof": True,
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
            }
        )  # fmt: skip
        try:
            queues = self.admin.list_topics(self.names.schedule, timeout=30).topics[self.names.schedule].partitions
            places = [TopicPartition(self.names.schedule, number) for number in queues]
            starts = consumer.committed(places, timeout=30)
            consumer.assign(starts)
            count, ended, end = 0, 0, time.monotonic() + DEADLINE_S
            while ended < len(starts):
                message = consumer.poll(1.0)
                assert time.monotonic() < end, "no end of the queues: an open transaction?"
                if message is None:
                    continue
                if message.error() is None:
                    count += not is_probe(message)
                elif message.error().name() == "_PARTITION_EOF":
                    ended += 1
            return count
        finally:
            consumer.close()

    def await_nothing_waiting(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while count := self.waiting():
            assert time.monotonic() < end, f"{count} records wait; logs in {self.logs}"
            time.sleep(0.2)

    def records(self, topic: str | None = None, *, committed: bool = True) -> list[Record]:
        """What is seen in a topic; None: in the target."""
        name = self.target if topic is None else topic
        partitions = self.admin.list_topics(name, timeout=30).topics[name].partitions
        consumer = Consumer(
            {
                **self.client, "bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex,
                "enable.partition.eof": True, "auto.offset.reset": "earliest",
                "isolation.level": "read_committed" if committed else "read_uncommitted", "log_level": 0,
            }
        )  # fmt: skip
        try:
            consumer.assign([TopicPartition(name, number, 0) for number in partitions])
            found: list[Record] = []
            ended = 0
            end = time.monotonic() + DEADLINE_S
            while ended < len(partitions):
                message = consumer.poll(1.0)
                assert time.monotonic() < end, f"no end of {name}: an open transaction?"
                if message is None:
                    continue
                if message.error() is None:
                    found.append(message)
                elif message.error().name() == "_PARTITION_EOF":
                    ended += 1
            return found
        finally:
            consumer.close()

    def read(self, topic: str | None = None, *, committed: bool = True) -> Counter[bytes]:
        """How often each message is seen in a topic; None: in the target."""
        return Counter(record.value() or b"" for record in self.records(topic, committed=committed))

    def assert_recovered(self, since_ms: int, guard_s: float = 60.0) -> None:
        """An event held messages up for no longer than the session and ten seconds; the guard is for slow machines."""
        schedule = {
            f"{each.topic()}/{each.partition()}/{each.offset()}": each for each in self.records(self.names.schedule)
        }
        assert recovery_s(self.records(), schedule, since_ms) <= SESSION_S + 10 + guard_s

    def read_until(self, count: int, topic: str | None = None) -> Counter[bytes]:
        end = time.monotonic() + DEADLINE_S
        while len(found := self.read(topic)) < count:
            if time.monotonic() > end:
                self.show_stacks()
                pytest.fail(f"{len(found)} of {count} messages; logs in {self.logs}")
            self.supervise()
            time.sleep(0.2)
        return found

    def supervise(self) -> None:
        """Start again what has ended by itself, as a supervisor does."""
        for at, process in enumerate(self.processes):
            if process.poll() == 1:
                with (self.logs / f"worker-{at}.log").open("ab") as log:
                    self.processes[at] = subprocess.Popen(process.args, stdout=log, stderr=log)

    def end_in_order(self) -> None:
        """Ask the workers that run to end, which they do without an error."""
        running = [process for process in self.processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(DEADLINE_S) for process in running] == [0] * len(running), f"logs in {self.logs}"

    def show_stacks(self) -> None:
        """Let the workers write where they are into their logs."""
        for process in self.processes:
            if process.poll() is None and SCRIPT in process.args:  # type: ignore[operator]
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.5)

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


@pytest.fixture(scope="module")
def cluster_with_users() -> Iterator[LocalCluster]:
    with LocalCluster(users={"admin": "admin-secret", "worker": "worker-secret"}) as cluster:
        yield cluster


def rule(permission: AclPermissionType, kind: ResourceType, name: str) -> AclBinding:
    operation = AclOperation.ALL if permission is AclPermissionType.ALLOW else AclOperation.WRITE
    return AclBinding(kind, name, ResourcePatternType.LITERAL, "User:worker", "*", operation, permission)


def leader_of(cluster: LocalCluster, topic: str) -> int:
    """The leader of a topic's first partition; a topic just created is unknown to some brokers for a moment."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return cluster.leader(topic)
        except LocalBrokerError:
            assert time.monotonic() < end
            time.sleep(0.1)


def once(count: int) -> Counter[bytes]:
    return Counter({b"%d" % number: 1 for number in range(count)})


def test_killed_at_every_named_point_each_message_is_delivered_once(stage: Stage) -> None:
    points = ("before-produce", "after-produce", "before-commit", "after-commit")
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        sent = 0
        for point in points:
            stage.worker("one", point=point, count=3)
            sent = stage.send_until_killed(producer, sent)
    stage.worker("one")
    assert stage.read_until(sent) == once(sent)
    stage.await_nothing_waiting()
    stage.end_in_order()
    assert stage.read() == once(sent)


def test_killed_at_every_named_point_at_least_once_loses_nothing(stage: Stage) -> None:
    points = ("before-produce", "after-produce", "before-commit", "after-commit")
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        sent = 0
        for point in points:
            stage.worker("one", point=point, count=3, mode="at-least-once")
            sent = stage.send_until_killed(producer, sent)
    stage.worker("one", mode="at-least-once")
    assert set(stage.read_until(sent)) == set(once(sent))


def test_a_worker_frozen_beyond_every_time_out_repeats_nothing_when_it_wakes(stage: Stage) -> None:
    frozen = stage.worker("one")
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        stage.send(producer, 0, 100)
        stage.read_until(30)
        os.kill(frozen.pid, signal.SIGSTOP)  # wherever it is
        frozen_ms = time.time_ns() // 1_000_000
        stage.worker("two")
        stage.send(producer, 100, 100)
        assert stage.read_until(200) == once(200)
        stage.assert_recovered(frozen_ms)
        os.kill(frozen.pid, signal.SIGCONT)
        stage.send(producer, 200, 100)
        assert stage.read_until(300) == once(300)
    stage.await_nothing_waiting()
    stage.end_in_order()
    assert stage.read() == once(300)


def test_workers_that_join_and_leave_in_mid_stream_neither_lose_nor_repeat(stage: Stage) -> None:
    first = stage.worker("one")
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        stage.send(producer, 0, 200)
        stage.read_until(30)
        stage.worker("two")
        stage.send(producer, 200, 200)
        stage.read_until(250)
        first.send_signal(signal.SIGTERM)
        stage.send(producer, 400, 200)
        assert first.wait(DEADLINE_S) == 0
        assert stage.read_until(600) == once(600)
    stage.await_nothing_waiting()
    assert stage.read() == once(600)


def test_a_worker_that_hangs_in_a_transaction_is_ended_and_its_messages_are_delivered_once(stage: Stage) -> None:
    hanging = stage.worker("one", point="before-commit", count=0)
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        stage.send(producer, 0, 100)
        assert hanging.wait(DEADLINE_S) == 1
        assert "worker.stuck" in (stage.logs / "worker-0.log").read_text()
        stage.processes.clear()
        stage.worker("one")
        assert stage.read_until(100) == once(100)


def test_a_broker_restart_in_mid_stream_neither_loses_nor_repeats(tmp_path: Path) -> None:
    with LocalCluster(1, data_dir=tmp_path / "data") as cluster:
        cluster.touch_internal_topics()
        admin = AdminClient(cluster.client_config())
        stage = Stage(cluster.bootstrap, tmp_path, admin)
        stage.transaction_ms = LONGER_THAN_A_RESTART_MS
        try:
            stage.worker("one")
            with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
                stage.send(producer, 0, 300)
                stage.read_until(20)
                cluster.kill(1)
                cluster.restart(1)
                back_ms = time.time_ns() // 1_000_000
                stage.send(producer, 300, 100)
                assert stage.read_until(400) == once(400)
                stage.assert_recovered(back_ms)
        finally:
            stage.stop()


def test_a_target_deleted_in_mid_stream_holds_up_nobody(stage: Stage, topic: Callable[..., str]) -> None:
    gone = topic(1)
    stage.cli_worker("--exactly-once", "--allow", stage.target, "--allow", gone)
    with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
        producer.send(Message(gone, b"before", delay=0.1), timeout_s=DEADLINE_S)
        stage.send(producer, 0, 20)
        stage.read_until(20)
        for _ in range(10):
            producer.send(Message(gone, b"after", delay_level=1), timeout_s=DEADLINE_S)
        stage.send(producer, 20, 80)
        stage.admin.delete_topics([gone])[gone].result(DEADLINE_S)
        assert stage.read_until(100) == once(100)


@pytest.mark.parametrize("mode", [[], ["--exactly-once"]], ids=["at-least-once", "exactly-once"])
def test_a_target_that_is_denied_holds_up_nobody_and_gets_its_messages_once_it_is_not(
    cluster_with_users: LocalCluster, tmp_path: Path, mode: list[str]
) -> None:
    cluster = cluster_with_users
    admin = AdminClient(cluster.client_config())
    stage = Stage(cluster.bootstrap, tmp_path, admin)
    stage.client = cluster.client_config()
    denied = f"{stage.names.namespace}.denied"
    admin.create_topics([NewTopic(denied, 1)])[denied].result(DEADLINE_S)
    everything = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    parked = stage.names.parked  # a record that cannot even be parked holds up its own queue only
    denials = [rule(AclPermissionType.DENY, ResourceType.TOPIC, name) for name in (denied, parked)]
    rules = [*(rule(AclPermissionType.ALLOW, kind, "*") for kind in everything), *denials]
    for future in admin.create_acls(rules).values():
        future.result(DEADLINE_S)
    login = [
        f"{name}={value}" for name, value in cluster.client_config("worker").items() if name != "bootstrap.servers"
    ]
    client = [text for pair in login for text in ("--client", pair)]
    worker_admin = AdminClient(cluster.client_config("worker"))
    try:
        # rights take effect a moment later
        asked = [stage.names.schedule, stage.target, denied, parked]
        waiting.wait_until(
            lambda: denied_topics(worker_admin, asked, lambda *_, **__: None) == {denied, parked}, within_s=DEADLINE_S
        )
        stage.cli_worker(*mode, *client, "--allow", stage.target, "--allow", denied)
        with Producer(
            stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS, client=cluster.client_config()
        ) as producer:
            for number in range(10):
                producer.send(Message(denied, b"denied %d" % number, delay_level=1), timeout_s=DEADLINE_S)
            producer.send(Message("__never", b"forbidden", delay_level=17), timeout_s=DEADLINE_S)
            stage.send(producer, 0, 60)
        assert set(stage.read_until(60)) == set(once(60))
        log, events = tmp_path / "worker-0.log", ("worker.re-appended", "worker.hop-not-stored")
        waiting.wait_until(lambda: all(event in log.read_text() for event in events), within_s=DEADLINE_S)
        for deny in denials:
            of_denied = AclBindingFilter(
                deny.restype, deny.name, deny.resource_pattern_type, None, None, deny.operation, deny.permission_type
            )
            admin.delete_acls([of_denied])[of_denied].result(DEADLINE_S)
        assert set(stage.read_until(1, parked)) == {b"forbidden"}
        assert set(stage.read_until(10, denied)) == {b"denied %d" % number for number in range(10)}
        if mode:
            assert stage.read() == once(60)
    finally:
        stage.stop()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
def test_leaders_lost_and_a_target_without_one_neither_lose_nor_hold_up(tmp_path: Path, mode: str) -> None:
    with LocalCluster(3, data_dir=tmp_path / "data") as cluster:
        cluster.touch_internal_topics()
        admin = AdminClient(cluster.client_config())
        stage = Stage(cluster.bootstrap, tmp_path, admin)
        lonely = f"{stage.names.namespace}.lonely"
        admin.create_topics([NewTopic(lonely, 1, 1)])[lonely].result(DEADLINE_S)
        cluster.await_in_sync()
        try:
            options = ["--exactly-once"] if mode == "exactly-once" else []
            stage.cli_worker(
                *options, "--allow", stage.target, "--allow", lonely, "--client", "session.timeout.ms=6000"
            )
            sent = 0
            with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
                victims = {leader_of(cluster, stage.names.schedule), leader_of(cluster, lonely)}
                for victim in sorted(victims):
                    stage.send(producer, sent, 300)
                    cluster.kill(victim)
                    stage.send(producer, sent + 300, 300)
                    for number in range(10):
                        producer.send(Message(lonely, b"%d %d" % (victim, number), delay_level=1), timeout_s=DEADLINE_S)
                    sent += 600
                    assert set(stage.read_until(sent)) == set(once(sent))
                    cluster.restart(victim)
                    cluster.await_in_sync()
            assert set(stage.read_until(10 * len(victims), lonely)) == {
                b"%d %d" % (victim, number) for victim in victims for number in range(10)
            }
            if mode == "exactly-once":
                stage.await_nothing_waiting()
                assert stage.read() == once(sent)
        finally:
            stage.stop()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
def test_a_broker_whose_disk_is_full_loses_nothing(tmp_path: Path, mode: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    filler = disk / "filler"
    try:
        with LocalCluster(1, data_dir=disk / "data") as cluster:
            cluster.touch_internal_topics()
            stage = Stage(cluster.bootstrap, tmp_path, AdminClient(cluster.client_config()))
            stage.transaction_ms = LONGER_THAN_A_RESTART_MS
            try:
                stage.worker("one", mode=mode)
                with Producer(stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS) as producer:
                    stage.send(producer, 0, 300)
                    stage.read_until(20)
                    with filler.open("wb", buffering=0) as file, suppress(OSError):
                        while file.write(b"x" * 4_096):
                            pass
                    # the broker finds out at its next write, of hops or of this, and stops
                    doubtful = [
                        producer.send_async(Message(stage.target, b"doubtful", delay_level=1)) for _ in range(20)
                    ]
                    while not cluster.ended:
                        time.sleep(0.2)  # the test's own time-out is the limit
                    filler.unlink()
                    cluster.restart(1)
                    stored = 0
                    for future in doubtful:
                        with suppress(RocketshimError):
                            future.result(DEADLINE_S)
                            stored += 1
                    stage.send(producer, 300, 100)
                    found = stage.read_until(401 if stored else 400)
                    assert set(found) >= set(once(400))
                    if mode == "exactly-once":
                        stage.await_nothing_waiting()
                        found = stage.read()
                        assert stored <= found.pop(b"doubtful", 0) <= 20
                        assert found == once(400)
            finally:
                stage.stop()
    finally:
        subprocess.run(["umount", "-l", disk], check=False)
