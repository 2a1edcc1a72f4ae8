"""What a worker repeats at least once when it is stopped, restarted in turn, or killed, on a real broker."""

import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import Popen

import pytest
from confluent_kafka import Message

from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.groups import GroupReader
from rocketshim_topics import Message as Outgoing

from .waiting import wait_until
from .worker_stage import DEADLINE_S, STAMPED, WorkerStage, header

MODES = {"at-least-once": [], "exactly-once": ["--exactly-once"]}
DELAYS = ("900ms", "1500ms", "2200ms", "3700ms")
"""Each is composed of several hops: a hop that is made twice makes two messages."""


def started(stage: WorkerStage, *options: str) -> Popen[bytes]:
    """A worker that has partitions."""
    process = stage.worker(*options)
    log = stage.logs / f"worker-{len(stage.processes) - 1}.log"
    wait_until(lambda: "worker.assigned" in log.read_text(), log.read_text, within_s=DEADLINE_S)
    return process


def stopped(process: Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


@contextmanager
def sending(stage: WorkerStage, target: str) -> Iterator[list[bytes]]:
    """Messages flow as long as this lasts; all of them."""
    sent: list[bytes] = []
    end = threading.Event()

    def send() -> None:
        with stage.sender() as sender:
            while not end.is_set():
                for delay in DELAYS:
                    sent.append(uuid.uuid4().bytes)
                    sender.send_async(Outgoing(target, sent[-1], delay=delay))
                end.wait(0.02)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        end.set()
        thread.join()


def copies(found: list[Message]) -> int:
    return len(found) - len({record.value() for record in found})


@pytest.mark.parametrize("mode", MODES)
def test_a_rolling_restart_repeats_nothing(stage: WorkerStage, topic: Callable[..., str], mode: str) -> None:
    target = topic(2, STAMPED)
    options = ["--allow", target, "--stop-timeout", "60", *MODES[mode]]
    workers = [started(stage, *options) for _ in range(2)]
    with sending(stage, target) as sent:
        for _ in range(2):
            wait_until(lambda: len(sent) % 40 == 0, "more messages", within_s=DEADLINE_S)
            stopped(workers.pop(0))
            workers.append(started(stage, *options))
    assert copies(stage.read_until(target, len(sent))) == 0
    for worker in workers:
        stopped(worker)


def test_a_worker_that_stops_while_the_group_waits_for_a_killed_member_repeats_nothing(
    stage: WorkerStage, topic: Callable[..., str]
) -> None:
    """Until the killed member's session ends, the broker reads nothing behind the JoinGroup of the others."""
    target = topic(2, STAMPED)
    options = ["--allow", target, "--stop-timeout", "60", "--client", "session.timeout.ms=6000"]
    worker, victim = started(stage, *options), started(stage, *options)
    victim.kill()
    victim.wait()
    stage.worker(*options)  # its JoinGroup begins the rebalance
    with sending(stage, target) as sent:
        wait_until(lambda: stage.end(target) > 20, "deliveries", within_s=DEADLINE_S)
        stopped(worker)
    assert copies(stage.read_until(target, len(sent))) == 0


def test_a_killed_worker_repeats_at_most_what_it_had_not_committed(
    stage: WorkerStage, topic: Callable[..., str]
) -> None:
    target = topic(1, STAMPED)
    options = ["--allow", target, "--client", "session.timeout.ms=6000"]
    worker = started(stage, *options)
    with sending(stage, target) as sent:
        wait_until(lambda: stage.end(target) > 200, "deliveries", within_s=DEADLINE_S)
        worker.kill()
        worker.wait()
        with TopicReader(stage.bootstrap) as reader:
            standing = GroupReader(reader).read(stage.names.worker_group)
        committed = {each.partition: each.position or 0 for each in standing.partitions}
        started(stage, *options)
    found = stage.read_until(target, len(sent))
    made = Counter(header(record, "HOP_ID") for record in found)
    repeated = [(hop or "").rsplit("/", 2)[1:] for hop, count in made.items() if count > 1]
    assert all(int(offset) >= committed[int(partition)] for partition, offset in repeated)
