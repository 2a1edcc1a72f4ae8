"""A bounded reading says how it ended, and its rest continues without a gap and without repetition."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count as count_from
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.console.reading import BoundedReading, Ending, ReadLimits
from rocketshim.errors import BrokerUnavailableError, TopicMissingError
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


def test_the_newest_records_come_first_by_append_time_and_everything_ends_at_the_end(world: World) -> None:
    reading = world.read()
    assert numbers(reading) == list(range(99, -1, -1))
    assert (reading.ending, reading.rest) == (Ending.END, {})
    assert reading.fraction == 1


def test_a_limit_of_results_counts_matching_records_only(world: World) -> None:
    tens = world.read(ReadLimits(results=2), matching=lambda record: record.value().strip().endswith(b"0"))
    assert numbers(tens) == [90, 80]
    assert tens.ending is Ending.RESULTS
    assert tens.read_count == 100


def test_a_search_that_finds_nothing_ends_by_bytes(world: World) -> None:
    reading = world.read(ReadLimits(results=2, size_bytes=200), matching=lambda _: False)
    assert numbers(reading) == []
    assert reading.ending is Ending.BYTES
    assert 200 <= reading.size_bytes <= 230  # a window has a record of each of the three partitions by then


def test_the_limit_of_bytes_is_exceeded_by_one_window_at_most() -> None:
    large = World(200, size=100_000)
    with large.reader:
        reading = large.read(ReadLimits(size_bytes=5_000_000))
        assert numbers(reading)[0] == 199
        assert reading.ending is Ending.BYTES
        assert 5_000_000 <= reading.size_bytes <= 5_000_000 + 300_000


@pytest.mark.parametrize("headers", [[("h", b"x" * 30_000)], [("h", b"")] * 150])
def test_a_window_never_takes_much_more_memory_than_it_may_whatever_its_records_are(
    headers: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.console.reading.WINDOW_BYTES", 1_000_000)
    world, most = World(partitions=1), 0
    for number in range(400):  # the newest are small, so that a large window is expected to fit
        world.clock.advance(1)
        world.kafka.append(TOPIC, b"%d" % number, headers=headers if number < 300 else [])
    held = 0

    class Counting(TopicReader):
        def read_spans(self, *args: Any, **options: Any) -> Any:
            nonlocal held, most
            held = 0
            for record in super().read_spans(*args, **options):
                held += 1 if record is not None and record.headers() else 0
                most = max(most, held)
                yield record

    with Counting("memory:1", clients=world.kafka.clients()) as reader:
        assert numbers(BoundedReading(reader, reader.spans([TOPIC]))) == list(range(399, -1, -1))
    assert most <= 40  # of 50 to 60 KiB each


def test_keys_and_headers_count_as_bytes() -> None:
    world = World()
    world.kafka.append(TOPIC, b"12345", key=b"123", headers=[("h", b"1"), ("none", None)])
    with world.reader:
        reading = world.read()
        assert len(list(reading)) == 1
        assert reading.size_bytes == 5 + 3 + 2 + 4


def test_a_reading_ends_when_its_time_is_over_and_keeps_what_it_has_not_read(world: World) -> None:
    seconds = count_from(0, 1_000_000_000)
    reading = world.read(ReadLimits(time_s=1.5), monotonic_ns=lambda: next(seconds))
    seen = numbers(reading)
    assert len(seen) < 100
    assert reading.ending is Ending.TIME
    assert sorted(seen + numbers(world.read(spans=reading.rest))) == list(range(100))


def test_a_condition_that_takes_long_does_not_exceed_the_time_and_nothing_is_passed_over() -> None:
    world, now_ns = World(1_000), 0

    def slow(record: Any) -> bool:
        nonlocal now_ns
        now_ns += 10_000_000
        return int(record.value()) % 7 == 0

    found, spans, pages = [], None, 0
    with world.reader:
        while spans is None or spans:
            began_ns, pages = now_ns, pages + 1
            reading = world.read(ReadLimits(time_s=2.0), spans=spans, matching=slow, monotonic_ns=lambda: now_ns)
            found += numbers(reading)
            spans = reading.rest
            assert now_ns - began_ns <= 2_640_000_000
    assert pages >= 5
    assert found == list(range(994, -1, -7))


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


def test_a_cluster_that_is_silent_does_not_delay_the_end_of_the_time(world: World) -> None:
    now_ns = 0

    def wait() -> None:
        nonlocal now_ns
        now_ns += 200_000_000

    with silent_after(world, 5, wait) as reader:
        limits = ReadLimits(time_s=1.0)
        reading = BoundedReading(reader, reader.spans([TOPIC]), limits=limits, monotonic_ns=lambda: now_ns)
        assert list(reading) == []
        assert (reading.ending, now_ns) == (Ending.TIME, 1_000_000_000)


def test_an_error_ends_the_reading_and_a_window_that_it_cuts_is_not_read(world: World) -> None:
    def refuse() -> None:
        raise BrokerUnavailableError("no leader")

    with silent_after(world, 5, refuse) as reader:
        spans = reader.spans([TOPIC])
        reading = BoundedReading(reader, spans)
        assert list(reading) == []
        assert reading.ending is Ending.ERROR
        assert isinstance(reading.error, BrokerUnavailableError)
        assert reading.rest == spans


@given(
    page=st.integers(1, 40),
    count=st.integers(0, 120),
    every=st.integers(1, 7),
)
def test_pages_hold_each_result_once(page: int, count: int, every: int) -> None:
    world = World(count)
    with world.reader:
        seen, spans = [], world.reader.spans([TOPIC])
        while spans:
            reading = world.read(
                ReadLimits(results=page),
                spans=spans,
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
        assert numbers(world.read()) == list(range(30, 9, -1))


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
        reader.offsets_at_times({TopicPartitionKey(TOPIC, 0): 0})
