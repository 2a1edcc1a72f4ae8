"""A worker stays below its `--memory`, however many queues there are and however large their messages."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from rocketshim_local import Broker
from rocketshim_topics import Layout, TopicNames, provision
from rocketshim_topics.levels import DelayLevels

from . import waiting
from .worker_stage import DEADLINE_S, WorkerStage

MEMORY_MIB = 448  # the default
BODY = os.urandom(950_000)
COUNT = 10  # messages of a queue: 9.5 MB, which a queue buffers if it has the memory
LEVELS = DelayLevels.parse(" ".join(["20s"] * 13))


@pytest.fixture
def stage(broker: Broker, admin: AdminClient, namespace: str, tmp_path: Path) -> Iterator[WorkerStage]:
    made = WorkerStage(broker.bootstrap, TopicNames(namespace), tmp_path, admin)
    yield made
    made.kill()


@pytest.mark.parametrize(
    ("mode", "lanes"),
    [
        pytest.param([], 5),
        pytest.param([], 8, marks=pytest.mark.long),
        pytest.param(["--exactly-once"], 8, marks=pytest.mark.long),
    ],
    ids=["at-least-once", "at-least-once-8", "exactly-once-8"],
)
def test_large_messages_in_many_queues_fit_into_the_memory_of_a_worker(
    stage: WorkerStage, topic: Callable[..., str], mode: list[str], lanes: int
) -> None:
    provision.ensure_topics(stage.admin, Layout(stage.names, LEVELS, lanes=lanes).shared())
    target = topic(4)
    sent = fill(stage, target, lanes)
    process = stage.worker("--allow", target, "--delay-levels", str(LEVELS), *mode)  # the last of an option counts
    waiting.wait_until(lambda: stage.end(target) >= sent, "all are delivered", within_s=2 * DEADLINE_S)
    peak_mib = peak_bytes(process.pid) // 1_048_576
    assert peak_mib <= MEMORY_MIB, f"{peak_mib} MiB for {sent} messages in {lanes} lanes"


def fill(stage: WorkerStage, target: str, lanes: int) -> int:
    """Write messages into 13 queues of each lane, as a sender does; return how many."""
    producer = Producer({"bootstrap.servers": stage.bootstrap, "message.max.bytes": 2_000_000, "linger.ms": 5})
    headers: list[tuple[str, str | bytes | None]] = [("REAL_TOPIC", target.encode()), ("DELAY_MS", b"20000")]
    for _ in range(COUNT):
        for number in (lane * DelayLevels.STRIDE + level for lane in range(lanes) for level in range(13)):
            while True:
                try:
                    producer.produce(stage.names.schedule, BODY, None, number, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(DEADLINE_S) == 0
    return COUNT * lanes * 13


def peak_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1_024
