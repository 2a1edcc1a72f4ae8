"""Probes of the leaders' clocks, and how many of them are in flight."""

from typing import Any

from confluent_kafka import Message

from rocketshim.kafka.reports import UNCONFIRMED, DeliveryReports
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim.worker.prober import Prober
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.names import TopicNames

NO_CLIENTS: Any = None


class Held:
    """An assigned partition; the prober passes append times to its queue."""

    key = TopicPartitionKey("SCHEDULE_TOPIC_XXXX", 0)
    number = 0
    gone = False

    def __init__(self) -> None:
        self.queue = self
        self.told: list[int] = []

    def probed(self, offset: int, append_ms: int, seen_ns: int) -> None:
        del append_ms, seen_ns
        self.told.append(offset)


def test_reports_of_a_replaced_producer_do_not_count_for_the_next() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic(TopicNames().schedule, 32, config={"message.timestamp.type": "LogAppendTime"})
    prober, held = Prober(TopicNames(), NO_CLIENTS, kafka.clock, lambda *_, **__: None), Held()
    old, new = (kafka.producer({"bootstrap.servers": "memory"}) for _ in range(2))
    as_held: Any = held
    prober.use(old, DeliveryReports())
    prober.probe(as_held)
    prober.use(new, DeliveryReports())
    old.flush(1)
    prober.process_reports(1)
    assert held.told == [0], "what it said still counts"
    assert prober.outstanding == 0
    prober.probe(as_held)
    assert prober.outstanding == 1
    new.flush(1)
    prober.process_reports(3)
    assert prober.outstanding == 0
    assert prober.confirmed_ns == 3


def test_a_probe_that_is_reported_without_an_offset_dates_nothing() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic(TopicNames().schedule, 32, config={"message.timestamp.type": "LogAppendTime"})
    told: list[str] = []
    prober, held = Prober(TopicNames(), NO_CLIENTS, kafka.clock, lambda event, **_: told.append(event)), Held()
    as_held: Any = held
    producer = kafka.producer({"bootstrap.servers": "memory"})
    reports = DeliveryReports()
    prober.use(producer, reports)
    kafka.fail_produce(None)
    prober.probe(as_held)
    producer.flush(1)
    prober.process_reports(1)
    assert (held.told, prober.confirmed_ns, told) == ([], 0, ["worker.probe-failed"])
    behind = Message(topic=TopicNames().schedule, partition=0, offset=0, latency=60.0)
    assert reports.error(None, behind) is UNCONFIRMED, "a record behind it in its batch, also one that is not a probe"


def test_the_newest_stored_probe_counts_by_the_instant_at_which_it_was_written() -> None:
    """A probe that was written before a target became silent proves nothing, however late its report arrives."""
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic(TopicNames().schedule, 32, config={"message.timestamp.type": "LogAppendTime"})
    prober, held = Prober(TopicNames(), NO_CLIENTS, clock, lambda *_, **__: None), Held()
    as_held: Any = held
    producer = kafka.producer({"bootstrap.servers": "memory"})
    prober.use(producer, DeliveryReports())
    written_ns = clock.monotonic_ns()
    prober.probe(as_held)
    clock.advance(3_000)
    producer.flush(1)
    prober.process_reports(clock.monotonic_ns())
    assert (prober.stored_ns, prober.confirmed_ns) == (written_ns, clock.monotonic_ns())
