"""A bounded reading says how it ended, and its rest continues without a gap and without repetition."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.errors import BrokerUnavailableError, TopicMissingError
from rocketshim.kafka.bounded_reading import BoundedReading, Ending, ReadLimits, ReadProgress
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.coordinates import TopicPartitionKey

TOPIC = "orders"


class World:
    """A topic of three partitions, with one record a millisecond."""

    def __init__(self, count: int = 0, *, partitions: int = 3, size: int = 10) -> None:
        self.clock = VirtualClock()
        self.kafka = InMemoryKafka(self.clock)
        self.kafka.create_topic(TOPIC, partitions)
        self.partitions = partitions
        for number in range(count):
            self.clock.advance(1)
            value = b"%d" % number
            self.kafka.append(TOPIC, value.ljust(size), partition=number % partitions)
        self.reader = TopicReader("memory:1", clients=self.kafka.clients())

    def read(self, limits: ReadLimits = ReadLimits(), **options: Any) -> BoundedReading:  # noqa: B008 - frozen
        spans = options.pop("spans", None) or self.reader.spans([TOPIC])
        return BoundedReading(self.reader, spans, limits=limits, **options)


@pytest.fixture
def world() -> Iterator[World]:
    made = World(100)
    with made.reader:
        yield made


def numbers(reading: BoundedReading) -> list[int]:
    return [int(record.value()) for record in reading]


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_reading_that_has_read_everything_ends_at_the_end(world: World, newest_first: bool) -> None:
    reading = world.read(newest_first=newest_first)
    assert sorted(numbers(reading)) == list(range(100))
    assert (reading.ending, reading.rest) == (Ending.END, {})
    assert reading.progress.fraction == 1


def test_the_newest_records_come_first_by_append_time(world: World) -> None:
    assert numbers(world.read(newest_first=True)) == list(range(99, -1, -1))


def test_a_limit_of_results_counts_matching_records_only(world: World) -> None:
    tens = world.read(
        ReadLimits(results=2), newest_first=True, matching=lambda record: record.value().strip().endswith(b"0")
    )
    assert numbers(tens) == [90, 80]
    assert tens.ending is Ending.RESULTS
    assert (tens.progress.results, tens.progress.records) == (2, 100)


def test_a_search_that_finds_nothing_ends_by_bytes(world: World) -> None:
    reading = world.read(ReadLimits(results=2, size_bytes=200), matching=lambda _: False)
    assert numbers(reading) == []
    assert (reading.ending, reading.progress.size_bytes) == (Ending.BYTES, 200)


def test_the_limit_of_bytes_is_exceeded_by_one_window_at_most() -> None:
    large = World(200, size=100_000)
    with large.reader:
        reading = large.read(ReadLimits(size_bytes=5_000_000), newest_first=True)
        assert numbers(reading)[0] == 199
        assert reading.ending is Ending.BYTES
        assert 5_000_000 <= reading.progress.size_bytes <= 5_000_000 + 300_000


def test_keys_and_headers_count_as_bytes() -> None:
    world = World()
    world.kafka.append(TOPIC, b"12345", key=b"123", headers=[("h", b"1"), ("none", None)])
    with world.reader:
        reading = world.read()
        assert len(list(reading)) == 1
        assert reading.progress.size_bytes == 5 + 3 + 2 + 4


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_cancelled_reading_stops_and_keeps_what_it_has_not_read(world: World, newest_first: bool) -> None:
    cancel = threading.Event()
    reading = world.read(newest_first=newest_first, cancel=cancel.is_set)
    first = next(reading)
    cancel.set()
    seen = [int(first.value()), *numbers(reading)]
    assert reading.ending is Ending.STOPPED
    assert len(seen) < 100
    assert sorted(seen + numbers(world.read(spans=reading.rest))) == list(range(100))


def test_a_closed_reading_is_stopped(world: World) -> None:
    with world.read() as reading:
        next(reading)
    assert reading.ending is Ending.STOPPED
    assert list(reading) == []


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_reading_ends_when_its_time_is_over(world: World, newest_first: bool) -> None:
    now_ns = 0

    def slow(_: ReadProgress) -> None:
        nonlocal now_ns
        now_ns += 1_000_000_000

    reading = world.read(
        ReadLimits(time_s=1.5), newest_first=newest_first, on_progress=slow, monotonic_ns=lambda: now_ns
    )
    assert len(numbers(reading)) < 100
    assert reading.ending is Ending.TIME
    assert reading.rest


def silent_after(world: World, count: int, then: Callable[[], None]) -> TopicReader:
    """Return a reader whose cluster falls silent after some records: `then` is called at each empty poll."""
    clients, left = world.kafka.clients(), [count]

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        real = made.poll

        def poll(timeout: float = -1) -> Any:
            if left[0] == 0:
                then()
                return None
            left[0] -= 1
            return real(timeout)

        made.poll, made.consume = poll, lambda *_: []  # type: ignore[method-assign, assignment]
        return made

    return TopicReader("memory:1", clients=replace(clients, consumer=consumer))


def test_a_cluster_that_is_silent_does_not_delay_a_cancellation(world: World) -> None:
    cancel = threading.Event()
    with silent_after(world, 5, cancel.set) as reader:
        reading = BoundedReading(reader, reader.spans([TOPIC]), cancel=cancel.is_set)
        assert len(list(reading)) == 5
        assert reading.ending is Ending.STOPPED


def test_an_error_ends_the_reading_and_keeps_what_was_read(world: World) -> None:
    def refuse() -> None:
        raise BrokerUnavailableError("no leader")

    with silent_after(world, 5, refuse) as reader:
        reading = BoundedReading(reader, reader.spans([TOPIC]))
        assert len(list(reading)) == 5
        assert reading.ending is Ending.ERROR
        assert isinstance(reading.error, BrokerUnavailableError)
        assert reading.rest


@given(
    page=st.integers(1, 40),
    newest_first=st.booleans(),
    count=st.integers(0, 120),
    every=st.integers(1, 7),
)
def test_pages_hold_each_result_once(page: int, newest_first: bool, count: int, every: int) -> None:
    world = World(count)
    with world.reader:
        seen, spans = [], world.reader.spans([TOPIC])
        while spans:
            reading = world.read(
                ReadLimits(results=page),
                spans=spans,
                newest_first=newest_first,
                matching=lambda record: int(record.value()) % every == 0,
            )
            found = numbers(reading)
            assert len(found) <= page
            seen += found
            spans = dict(reading.rest)
        assert sorted(seen) == list(range(0, count, every))


def test_gaps_and_what_retention_took_are_passed() -> None:
    world = World(30, partitions=1)
    world.kafka.skip_offsets(TOPIC, count=50)
    world.kafka.append(TOPIC, b"30")
    world.kafka.skip_offsets(TOPIC, count=50)
    world.kafka.truncate(TOPIC, before_offset=10)
    with world.reader:
        assert numbers(world.read(newest_first=True)) == list(range(30, 9, -1))


def test_spans_begin_and_end_at_times(world: World) -> None:
    start_ms = 1_700_000_000_000
    spans = world.reader.spans([TOPIC], since_ms=start_ms + 11, until_ms=start_ms + 21)
    assert sorted(numbers(world.read(spans=spans))) == list(range(10, 20))
    assert world.reader.spans([TOPIC], since_ms=start_ms + 1_000) == {}
    assert world.reader.spans([TOPIC], until_ms=start_ms) == {}


def test_a_missing_topic_and_a_refused_lookup_of_times_are_errors(world: World) -> None:
    with pytest.raises(TopicMissingError):
        world.reader.spans(["nothing"])
    clients = world.kafka.clients()

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)

        def refuse(*_: Any, **__: Any) -> Any:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        made.offsets_for_times = refuse  # type: ignore[method-assign]
        return made

    with (
        TopicReader("memory:1", clients=replace(clients, consumer=consumer)) as reader,
        pytest.raises(BrokerUnavailableError),
    ):
        reader.offsets_at([TopicPartitionKey(TOPIC, 0)], 0)
