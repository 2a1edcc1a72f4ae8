"""Signals to `rocketshim run` and `rocketshim worker`, as terminals and service managers send them: to whole groups."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState, Producer
from confluent_kafka.admin import AdminClient

from rocketshim import ConsumeFromWhere, LitePullConsumer, PushConsumer, TopicNames
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting
from .running import killed_at_last

GUARD_S = 90.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
LEVELS = "1s 1s 1s"
NAMESPACE = f"stop{os.getpid()}"
NAMES = TopicNames(NAMESPACE)
PARTITIONS = 6
BELOW_A_SESSION_S = 30.0  # a group waits for a member that died until its session ends, 45 s
QUIET_NEXT_START_S = 3.0  # on a machine that has nothing else to do
STATES = ("idle", "joining", "busy")

PROGRAM = """
import os, time
from rocketshim import ConsumeFromWhere, PushConsumer

consumer = PushConsumer({bootstrap!r}, group={group!r}, namespace={namespace!r}, delay_levels={levels!r},
                        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_thread_min=4,
                        client={{"session.timeout.ms": {session_ms}}})
out = os.open({out!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@consumer.listener({topic!r})
def handle(message):
    os.write(out, b"began %d/%d\\n" % (message.queue_id, message.queue_offset))
    time.sleep({call_s})
    os.write(out, b"ended %d/%d\\n" % (message.queue_id, message.queue_offset))
"""


@pytest.fixture(scope="module")
def shared(admin: AdminClient) -> None:
    """The shim's own topics of this file's namespace."""
    provision.ensure_topics(admin, Layout(NAMES, DelayLevels.parse(LEVELS)).shared(), create=True)


class Stage:
    """A consumer's program for one group and topic, run as the leader of a process group, again and again."""

    def __init__(self, folder: Path, bootstrap: str, topic: str, group: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self._folder = folder
        self._module = f"shop_{uuid.uuid4().hex}"
        self._out = folder / "calls"
        self._log = folder / "log"
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, processes: int, call_s: float = 0.2, session_ms: int = 45_000) -> "subprocess.Popen[bytes]":
        """Run it, with listener calls of that length; its standard output ends with the last of its processes."""
        text = PROGRAM.format(
            bootstrap=self.bootstrap,
            group=self.group,
            namespace=NAMESPACE,
            levels=LEVELS,
            topic=self.topic,
            out=str(self._out),
            call_s=call_s,
            session_ms=session_ms,
        )
        (self._folder / f"{self._module}.py").write_text(text)
        command = [sys.executable, "-m", "rocketshim", "run", f"{self._module}:consumer", "--log-format", "json"]
        self._out.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(
                [*command, "--processes", str(processes)],
                cwd=self._folder,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return self._running

    def ends(self) -> int:
        """Wait until all its processes have ended; return the exit code."""
        assert self._running is not None
        self._running.communicate(timeout=GUARD_S)
        return self._running.returncode

    def clean_up(self) -> None:
        """Kill what may be left."""
        if self._running is not None and self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.communicate(timeout=GUARD_S)

    def assigned(self) -> int:
        """How many times a member was given partitions."""
        lines = [line for line in self.log().splitlines() if line.startswith("{")]
        return [json.loads(line).get("event") for line in lines].count("consumer.assigned")

    def members(self) -> list[int]:
        """The process ids of its members."""
        assert self._running is not None
        found = subprocess.run(["pgrep", "-P", str(self._running.pid)], check=False, capture_output=True, text=True)
        return [int(line) for line in found.stdout.split()]

    def log(self) -> str:
        return self._log.read_text()

    def calls(self) -> Counter[str]:
        """How many listener calls `began` and `ended`."""
        text = self._out.read_text() if self._out.exists() else ""
        return Counter(line.split()[0] for line in text.splitlines())

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(count):
            producer.produce(self.topic, b"x", partition=number % PARTITIONS)
        producer.flush(GUARD_S)

    def await_state(self, state: str, processes: int) -> None:
        """Wait until it is idle, joining or busy."""
        if state == "joining":
            wait_until(lambda: self.assigned() >= 1, self.log)  # the other one waits for it to join again
            return
        wait_until(lambda: self.assigned() >= processes, self.log)
        if state == "busy":
            self.send(300)
            wait_until(lambda: self.calls()["began"] >= 10, self.log)

    def first_message_of_the_next_start_s(self) -> float:
        """How long a new member of the group takes from its start to its first message of each partition."""
        seen: set[int] = set()
        consumer = PushConsumer(
            self.bootstrap,
            group=self.group,
            namespace=NAMESPACE,
            delay_levels=LEVELS,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.register_message_listener(self.topic, lambda message: seen.add(message.queue_id))
        self.send(PARTITIONS)
        began_s = time.monotonic()
        with consumer:
            wait_until(lambda: len(seen) == PARTITIONS, "a message of each partition")
            return time.monotonic() - began_s


@pytest.fixture
def stage(
    broker: Broker, shared: None, topic: Callable[..., str], group: Callable[..., str], tmp_path: Path
) -> Iterator[Stage]:
    """A consumer's program, its topic and group."""
    del shared
    made = Stage(tmp_path, broker.bootstrap, topic(PARTITIONS), group("stop"))
    yield made
    made.clean_up()


def stop_round(
    stage: Stage, state: str, signals: list[signal.Signals], pause_s: float, next_start_s: float = BELOW_A_SESSION_S
) -> None:
    processes = 2
    running = stage.start(processes)
    stage.await_state(state, processes)
    for number in signals:
        os.killpg(running.pid, number)
        time.sleep(pause_s)  # between the two signals of a terminal and of a supervisor anything may lie
    assert stage.ends() == 0, stage.log()
    calls = stage.calls()
    assert calls["began"] == calls["ended"], stage.log()
    assert stage.first_message_of_the_next_start_s() < next_start_s, stage.log()


@pytest.mark.parametrize("state", STATES)
def test_signals_to_the_process_group_let_all_that_began_end(stage: Stage, state: str) -> None:
    stop_round(stage, state, [signal.SIGINT, signal.SIGTERM, signal.SIGTERM], 0.05)


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]], ids=["int", "term", "both"]
)
def test_twenty_times_signals_to_the_process_group_let_all_that_began_end(
    stage: Stage, state: str, signals: list[signal.Signals]
) -> None:
    for number in range(20):
        stop_round(stage, state, signals, number * 0.02, QUIET_NEXT_START_S)


def test_members_stop_by_themselves_when_their_supervisor_is_killed(stage: Stage) -> None:
    running = stage.start(2)
    stage.await_state("busy", 2)
    running.kill()
    stage.ends()
    calls = stage.calls()
    assert calls["began"] == calls["ended"], stage.log()
    assert stage.first_message_of_the_next_start_s() < BELOW_A_SESSION_S, stage.log()


def test_a_second_ctrl_c_a_second_later_does_not_wait_for_listeners(stage: Stage) -> None:
    stage.send(PARTITIONS)
    running = stage.start(2, call_s=GUARD_S)
    wait_until(lambda: stage.calls()["began"] > 0, stage.log)
    os.killpg(running.pid, signal.SIGINT)
    os.killpg(running.pid, signal.SIGINT)  # a launcher's copy
    time.sleep(1.2)  # a person's pause
    assert running.poll() is None, stage.log()
    while running.poll() is None:
        os.killpg(running.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            running.wait(10)  # a busy machine may hear the first one less than a second before: again
    assert stage.ends() == 130
    assert not stage.calls()["ended"]


def test_a_process_that_is_killed_is_started_again_and_the_other_one_goes_on(stage: Stage) -> None:
    running = stage.start(2, session_ms=6_000)  # until then the group waits for the dead member
    stage.await_state("idle", 2)
    first, other = stage.members()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(set(stage.members()) - {first}) == 2, stage.log)
    assert other in stage.members()
    running.send_signal(signal.SIGTERM)
    assert stage.ends() == 0, stage.log()
    assert stage.log().count("run.member-died") == 1


@pytest.mark.parametrize("state", ["started", "starting"])
def test_a_worker_ends_well_whatever_signals_its_group_gets(broker: Broker, namespace: str, state: str) -> None:
    command = [sys.executable, "-m", "rocketshim", "worker", "--bootstrap", broker.bootstrap, "--allow", "none"]
    command += ["--namespace", namespace, "--delay-levels", LEVELS, "--log-format", "json", "--stop-timeout", "60"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as running,
        killed_at_last(running),
    ):
        assert running.stderr is not None
        events: list[str] = []
        while f"worker.{'assigned' if state == 'started' else 'started'}" not in events:
            line = running.stderr.readline()
            assert line, events
            events.append(json.loads(line).get("event", "") if line.startswith(b"{") else line.decode())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            os.killpg(running.pid, number)
        rest = running.communicate(timeout=GUARD_S)[1].decode()
        assert running.returncode == 0, rest
        assert "worker.stopped" in rest


def await_members(admin: AdminClient, group: str, count: int, *, within_s: float = GUARD_S) -> None:
    def are_so_many() -> bool:
        return len(admin.describe_consumer_groups([group])[group].result(GUARD_S).members) == count

    wait_until(are_so_many, f"{count} are members", within_s=within_s)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_push_consumer_without_partitions_leaves_its_group(
    broker: Broker, admin: AdminClient, topic: Callable[..., str], group: Callable[..., str], protocol: str
) -> None:
    name, mine, made = topic(1), group("idle"), []
    for count in range(1, 4):  # there are two partitions: the topic's, and that of the retries
        consumer = PushConsumer(
            broker.bootstrap,
            group=mine,
            namespace=NAMESPACE,
            delay_levels=LEVELS,
            client={"group.protocol": protocol},
        )
        consumer.register_message_listener(name, lambda _: None)
        consumer.start()
        await_members(admin, mine, count)
        if protocol == "classic":  # with KIP-848 a member that is given nothing hears nothing
            assert consumer.wait_assigned(GUARD_S)
        made.append(consumer)
    for left, consumer in enumerate(reversed(made)):  # the last one has nothing
        consumer.stop()
        await_members(admin, mine, 2 - left, within_s=BELOW_A_SESSION_S)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_lite_pull_consumer_without_queues_leaves_its_group(
    broker: Broker, admin: AdminClient, topic: Callable[..., str], group: Callable[..., str], protocol: str
) -> None:
    name, mine = topic(1), group("idle")
    readers = [
        LitePullConsumer(broker.bootstrap, group=mine, namespace=NAMESPACE, client={"group.protocol": protocol})
        for _ in range(2)
    ]
    for count, reader in enumerate(readers, 1):
        reader.subscribe(name)
        reader.start()

        def is_stable(count: int = count) -> bool:
            for each in readers[:count]:
                each.poll(20)
            found = admin.describe_consumer_groups([mine])[mine].result(GUARD_S)
            return len(found.members) == count and found.state == ConsumerGroupState.STABLE

        wait_until(is_stable, f"{count} have joined")
    for left, reader in enumerate(reversed(readers)):
        reader.stop()
        await_members(admin, mine, 1 - left, within_s=BELOW_A_SESSION_S)
