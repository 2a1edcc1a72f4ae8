"""A message that kills its process is found, fails, and becomes a dead letter; the others are handled, not often.

The processes are real ones, and die by SIGKILL in their listener, as the kernel kills a process that has too much
memory. Sessions and leases are short, so that the group does not wait for the dead for long.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import TopicNames
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting

GUARD_S = 240.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
LEVELS = "1s 1s 1s"
NAMESPACE = f"deaths{os.getpid()}"
NAMES = TopicNames(NAMESPACE)
PARTITIONS = 2
GOOD = {f"good-{number}" for number in range(19)}
MOST_DEATHS = 4  # one that is not careful, and `max_process_deaths`

PROGRAM = """
import os, signal
from rocketshim import AllocateMessageQueueAveragely, ConsumeFromWhere, MessageModel, PushConsumer

consumer = PushConsumer({bootstrap!r}, group={group!r}, namespace={namespace!r}, delay_levels={levels!r},
                        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=2,
                        client={{"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}}, {options} **{settings!r})
out = os.open({out!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def handle({argument}):
    for message in {messages}:
        os.write(out, message.body + b"\\n")
        if message.body == b"killer":
            os.kill(os.getpid(), signal.SIGKILL)

async def handle_later(message):
    handle(message)

consumer.listener({topic!r}, orderly={orderly!r})({function})
"""


@pytest.fixture(scope="module", autouse=True)
def shared(admin: AdminClient) -> None:
    """The shim's own topics of this file's namespace."""
    provision.ensure_topics(admin, Layout(NAMES, DelayLevels.parse(LEVELS)).shared(), create=True)


class Stage:
    """Twenty messages, one of which kills its process, and a consumer for them, run by `rocketshim run`."""

    def __init__(self, folder: Path, bootstrap: str, topic: str, group: str) -> None:
        self._folder, self._bootstrap, self.topic, self.group = folder, bootstrap, topic, group
        self._out, self._log = folder / "calls", folder / "log"
        self._module = f"shop_{uuid.uuid4().hex}"
        self.running: subprocess.Popen[bytes] | None = None

    def write(self, *, orderly: bool = False, function: str = "handle", options: str = "", **settings: Any) -> None:
        batches = settings.get("consume_message_batch_max_size", 1) > 1
        text = PROGRAM.format(
            bootstrap=self._bootstrap,
            group=self.group,
            namespace=NAMESPACE,
            levels=LEVELS,
            topic=self.topic,
            out=str(self._out),
            orderly=orderly,
            function=function,
            options=options,
            argument="messages" if batches else "message",
            messages="messages" if batches else "[message]",
            settings=settings,
        )
        (self._folder / f"{self._module}.py").write_text(text)

    def send(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        bodies = sorted(GOOD)
        bodies.insert(9, "killer")
        for number, body in enumerate(bodies):
            producer.produce(self.topic, body.encode(), partition=number % PARTITIONS)
        producer.flush(GUARD_S)

    def start(self, *options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "rocketshim", "run", f"{self._module}:consumer", "--log-format", "json"]
        with self._log.open("ab") as log:
            self.running = subprocess.Popen([*command, *options], cwd=self._folder, stderr=log)
        return self.running

    def stop(self) -> None:
        assert self.running is not None
        self.running.send_signal(signal.SIGTERM)
        assert self.running.wait(GUARD_S) == 0, self.log()

    def clean_up(self) -> None:
        if self.running is not None and self.running.poll() is None:
            self.running.kill()
            self.running.wait(GUARD_S)

    def log(self) -> str:
        return self._log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == name]

    def calls(self) -> Counter[str]:
        return Counter(self._out.read_text().split()) if self._out.exists() else Counter()

    def dead(self) -> list[dict[str, str]]:
        """The headers of the group's dead letters."""
        found: list[dict[str, str]] = []
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": f"read-{uuid.uuid4().hex}"})
        topic = NAMES.dead_letter(self.group)
        listed = reader.list_topics(topic, timeout=GUARD_S).topics[topic]
        for number in listed.partitions:
            reader.assign([TopicPartition(topic, number, 0)])
            _, end = reader.get_watermark_offsets(TopicPartition(topic, number), timeout=GUARD_S)
            while len(found) < end and (message := reader.poll(GUARD_S)) is not None:
                found.append({name: value.decode() for name, value in message.headers() or []})
        reader.close()
        return found

    def committed(self) -> int:
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self.group})
        parts = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        found = sum(max(0, each.offset) for each in reader.committed(parts, timeout=GUARD_S))
        reader.close()
        return found

    def judge(self) -> None:
        """All are handled, none of the good ones often; the killer is a dead letter, and the log has named it."""
        calls = self.calls()
        assert calls["killer"] == MOST_DEATHS
        assert {body: calls[body] for body in GOOD if not 1 <= calls[body] <= 3} == {}
        (dead,) = self.dead()
        assert (dead["FAIL_CLASS"], dead["RECONSUME_TIMES"]) == ("ProcessDied", "3")
        record = f"{self.topic}/1/4"
        assert {"record": record, "times": 3} in [
            {name: event[name] for name in ("record", "times")} for event in self.events("consumer.message-unfinished")
        ]
        assert self.committed() == len(GOOD) + 1


NewStage = Callable[[str], Stage]


@pytest.fixture
def new_stage(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], tmp_path: Path
) -> Iterator[NewStage]:
    """Make the messages, and the program for them, in a folder of this name."""
    made: list[Stage] = []

    def make(name: str) -> Stage:
        (tmp_path / name).mkdir()
        made.append(Stage(tmp_path / name, broker.bootstrap, topic(PARTITIONS), group("deaths")))
        return made[-1]

    yield make
    for each in made:
        each.clean_up()


@pytest.fixture
def stage(new_stage: NewStage) -> Stage:
    """The only one of a test."""
    return new_stage("one")


SHORT = {"lock_lease_ms": 6_000, "lock_hold_ms": 3_000, "lock_renew_ms": 1_000}
KINDS: dict[str, dict[str, Any]] = {
    "threads": {},
    "one-thread": {"consume_thread_min": 1},
    "batches": {"consume_message_batch_max_size": 8},
    "async": {"function": "handle_later"},
    "orderly": {"orderly": True, **SHORT},
    "own-allocation": {"options": "allocate_message_queue_strategy=AllocateMessageQueueAveragely(),", **SHORT},
}


def test_a_process_that_is_started_again_gets_past_its_killer(new_stage: NewStage) -> None:
    """Three kinds at a time, since each waits four times until the session of the dead has ended."""

    def get_past(stage: Stage) -> None:
        for _ in range(MOST_DEATHS):
            assert stage.start().wait(GUARD_S) == -signal.SIGKILL, stage.log()
        stage.start()
        wait_until(lambda: stage.committed() == len(GOOD) + 1, stage.log)
        stage.stop()
        stage.judge()

    stages = {kind: new_stage(kind) for kind in KINDS}
    for kind, stage in stages.items():
        stage.write(**KINDS[kind])
        stage.send()
    with ThreadPoolExecutor(3) as several:
        tried = {kind: several.submit(get_past, stage) for kind, stage in stages.items()}
    assert {kind: problem for kind, each in tried.items() if (problem := each.exception())} == {}


@pytest.mark.parametrize("kind", [{}, {"orderly": True, **SHORT}], ids=["threads", "orderly"])
def test_two_processes_get_past_the_message_that_kills_them(stage: Stage, kind: dict[str, Any]) -> None:
    stage.write(**kind)
    stage.start("--processes", "2")
    wait_until(lambda: len(stage.events("consumer.assigned")) >= 2, stage.log)
    stage.send()
    wait_until(lambda: stage.committed() == len(GOOD) + 1, stage.log)
    stage.stop()
    stage.judge()
    assert len(stage.events("run.member-died")) == MOST_DEATHS


def test_in_broadcasting_the_message_is_dropped_in_the_end(stage: Stage, tmp_path: Path) -> None:
    stage.write(options="message_model=MessageModel.BROADCASTING,", offset_store_dir=str(tmp_path / "offsets"))
    stage.send()
    for _ in range(MOST_DEATHS):
        assert stage.start().wait(GUARD_S) == -signal.SIGKILL, stage.log()
    stage.start()
    wait_until(lambda: len(stage.events("consumer.dropped")) == 1, stage.log)
    wait_until(lambda: stage.calls().keys() == {*GOOD, "killer"}, stage.log)
    stage.stop()
    assert stage.calls()["killer"] == MOST_DEATHS
    (dropped,) = stage.events("consumer.dropped")
    assert dropped["error_class"] == "ProcessDied"
