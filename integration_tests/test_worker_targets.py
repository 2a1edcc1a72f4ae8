"""The worker's targets on a real broker: many that it does not know, and ones that grow while they are written to."""

import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, murmur2
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import NewPartitions, NewTopic

from rocketshim import DelayWorker
from rocketshim.kafka.clients import confluent_clients
from rocketshim.settings.worker import WorkerSettings

from .running import running
from .waiting import has_records, wait_until
from .worker_stage import DEADLINE_S, LEVELS, STAMPED, WorkerStage

MODES = pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])


def make_worker(
    stage: WorkerStage, *, exactly_once: bool, consumer: Any = Consumer, patience_ms: int = 2_000
) -> DelayWorker:
    return DelayWorker(
        WorkerSettings.make(
            bootstrap=stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS,
            allow=(f"{stage.names.namespace}.*",), exactly_once=exactly_once, target_patience_ms=patience_ms,
        ),
        clients=replace(confluent_clients(), consumer=consumer),
    )  # fmt: skip


def make_topics(stage: WorkerStage, names: list[str], partitions: int) -> None:
    made = stage.admin.create_topics([NewTopic(name, partitions, config=STAMPED) for name in names])
    for future in made.values():
        future.result(DEADLINE_S)


class WatchedConsumer(Consumer):
    """A consumer that takes down whether it was asked for metadata while it had something to fetch."""

    asked: ClassVar[list[bool]] = []

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.is_fetching = False

    def subscribe(self, *args: Any, **kwargs: Any) -> None:
        self.is_fetching = True
        super().subscribe(*args, **kwargs)

    def list_topics(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(self.is_fetching)
        return super().list_topics(*args, **kwargs)


@MODES
def test_no_target_is_looked_up_through_the_consumer_that_fetches(stage: WorkerStage, exactly_once: bool) -> None:
    """That takes half a second each, in which nothing else is delivered."""
    targets = [f"{stage.names.namespace}.t{number}" for number in range(60)]
    make_topics(stage, targets, 1)
    WatchedConsumer.asked.clear()
    worker = make_worker(stage, exactly_once=exactly_once, consumer=WatchedConsumer)
    plain = PlainProducer({"bootstrap.servers": stage.bootstrap})
    with running(worker):
        wait_until(lambda: worker.state is not None, "it runs", within_s=DEADLINE_S)
        for target in targets:
            plain.produce(stage.names.schedule, b"x", partition=0, headers=[("REAL_TOPIC", target.encode())])
        assert plain.flush(DEADLINE_S) == 0
        wait_until(lambda: worker.counts.delivered >= len(targets), "all are delivered", within_s=DEADLINE_S)
    assert WatchedConsumer.asked
    assert not any(WatchedConsumer.asked)
    assert worker.counts.delivered == len(targets) or not exactly_once
    assert worker.counts.parked == {}


@MODES
def test_targets_that_grow_under_load_get_every_record_and_new_partitions_get_theirs(
    stage: WorkerStage, exactly_once: bool
) -> None:
    """A target of the user's and a retry topic, both from 2 partitions to 8. After how long: see the unit test.

    A broker that stores nothing for two seconds, because its machine is busy, would make the targets silent.
    """
    target, group = f"{stage.names.namespace}.grows", "g"
    topics = {target: target, f"%RETRY%{group}": stage.names.retry(group)}
    make_topics(stage, list(topics.values()), 2)
    plain = PlainProducer({"bootstrap.servers": stage.bootstrap, "linger.ms": 0})
    worker = make_worker(stage, exactly_once=exactly_once, patience_ms=10_000)
    stopping = threading.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        while not stopping.wait(0.02):
            for logical in topics:
                headers = [("REAL_TOPIC", logical.encode()), ("CONSUMER_GROUP", group.encode())]
                if sent % 5 == 4:
                    headers.append(("REAL_QID", b"%d" % (sent % 8)))
                plain.produce(stage.names.schedule, b"%d" % sent, b"%d" % sent, partition=0, headers=headers)
            sent += 1
            plain.poll(0)

    with running(worker):
        sender = threading.Thread(target=send)
        sender.start()
        try:
            wait_until(lambda: worker.counts.delivered >= 40, "something is delivered", within_s=DEADLINE_S)
            grown = stage.admin.create_partitions([NewPartitions(topic, 8) for topic in topics.values()])
            for future in grown.values():
                future.result(DEADLINE_S)
            for topic in topics.values():
                wait_until(partial(has_records, stage.admin, topic, 7), "a new partition is used", within_s=DEADLINE_S)
            enough = sent + 100
            wait_until(lambda: sent >= enough, "records go on", within_s=DEADLINE_S)
        finally:
            stopping.set()
            sender.join()
        assert plain.flush(DEADLINE_S) == 0
        wait_until(
            lambda: worker.counts.delivered >= 2 * sent,
            lambda: f"{worker.counts.delivered} of {2 * sent} are delivered: {worker.counts}",
            within_s=DEADLINE_S,
        )
    assert worker.counts.parked == {}
    assert worker.counts.re_appended == 0
    for topic in topics.values():
        found = stage.read(topic)
        assert Counter(record.value() for record in found) == Counter(b"%d" % number for number in range(sent))
        new = {number: number % 8 if number % 5 == 4 else murmur2(b"%d" % number, 8) for number in range(sent)}
        first = min(int(record.value() or b"") for record in found if (record.partition() or 0) >= 2)
        for record in found:
            number = int(record.value() or b"")
            assert record.partition() == new[number] or number < first + 50
