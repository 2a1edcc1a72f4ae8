"""Scenarios: an assigned partition, positions, pauses, watermarks. No group."""

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError

from rocketshim.kafka.clients import ConsumerClient
from rocketshim.testing.kafka_errors import Code

from .backend import (
    Backend,
    at,
    consumer_of,
    equal,
    holds,
    places,
    receive,
    refused,
    send,
    wait_for,
)

__all__: list[str] = []


def _position(consumer: ConsumerClient, topic: str, partition: int = 0) -> int:
    return consumer.position([at(topic, partition)])[0].offset


def position_follows_what_was_handed_out(backend: Backend) -> None:
    """−1001 before the first record, then the last offset + 1; forgotten by `seek`."""
    topic = backend.new_topic()
    send(backend, topic, [b"a", b"b", b"c"])
    consumer = consumer_of(backend)
    equal(_position(consumer, topic), OFFSET_INVALID, "position before assignment")
    consumer.assign([at(topic, 0, 1)])
    equal(_position(consumer, topic), OFFSET_INVALID, "position before the first record")
    equal(places(receive(backend, consumer, 1)), [(0, 1)])
    equal(_position(consumer, topic), 2)
    consumer.seek(at(topic, 0, 0))
    equal(_position(consumer, topic), OFFSET_INVALID, "position after a seek")
    equal(places(receive(backend, consumer, 3)), [(0, 0), (0, 1), (0, 2)])
    equal(_position(consumer, topic), 3)


def seek_needs_an_assignment(backend: Backend) -> None:
    """`_UNKNOWN_PARTITION` before the client knows the partition, `_STATE` while it is not assigned."""
    topic = backend.new_topic(2)
    consumer = consumer_of(backend)
    equal(refused(lambda: consumer.seek(at(topic, 0, 0))).code(), Code.UNKNOWN_PARTITION)
    consumer.position([at(topic, 0)])
    equal(refused(lambda: consumer.seek(at(topic, 0, 0))).code(), Code.STATE)
    consumer.assign([at(topic, 0, 0)])
    consumer.assign([at(topic, 1, 0)])
    equal(refused(lambda: consumer.seek(at(topic, 0, 0))).code(), Code.STATE)


def assignment_can_grow_and_shrink(backend: Backend) -> None:
    """Without a group both ways of assigning work; doubles and strangers are refused."""
    topic = backend.new_topic(3)
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0)])
    equal(refused(lambda: consumer.incremental_assign([at(topic, 0)])).code(), Code.CONFLICT)
    equal(refused(lambda: consumer.incremental_unassign([at(topic, 2)])).code(), Code.INVALID_ARG)
    consumer.incremental_assign([at(topic, 1, 7)])
    equal([(part.partition, part.offset) for part in consumer.assignment()], [(0, -1000), (1, 7)])
    consumer.incremental_unassign([at(topic, 0)])
    equal([part.partition for part in consumer.assignment()], [1])
    equal(refused(lambda: consumer.assign([at(topic, 0), at(topic, 0)])).code(), Code.INVALID_ARG)
    equal(consumer.assignment(), [], "assignment after one that was refused for doubles")
    consumer.assign([at(topic, 2)])
    consumer.unassign()
    equal(consumer.assignment(), [])


def the_reset_policy_decides_where_nothing_is_committed(backend: Backend) -> None:
    """earliest: the first record; latest: the next one; error: `_AUTO_OFFSET_RESET` as an event."""
    topic = backend.new_topic()
    send(backend, topic, [b"a", b"b"])
    earliest = consumer_of(backend, auto_offset_reset="earliest")
    earliest.assign([at(topic)])
    equal(places(receive(backend, earliest, 1)), [(0, 0)])

    latest = consumer_of(backend, auto_offset_reset="latest", enable_partition_eof=True)
    latest.assign([at(topic)])
    (end,) = receive(backend, latest, 1)
    equal((end.error().code(), end.offset()), (Code.PARTITION_EOF, 2))

    strict = consumer_of(backend, auto_offset_reset="error")
    strict.assign([at(topic)])
    (event,) = receive(backend, strict, 1)
    equal((event.error().code(), event.topic(), event.partition()), (Code.AUTO_OFFSET_RESET, topic, 0))


def the_end_of_a_partition_is_an_event(backend: Backend) -> None:
    """With `enable.partition.eof` each arrival at the end is reported once, with the end's offset."""
    topic = backend.new_topic()
    send(backend, topic, [b"a"])
    consumer = consumer_of(backend, enable_partition_eof=True)
    consumer.assign([at(topic, 0, 0)])
    record, end = receive(backend, consumer, 2)
    equal((record.error(), record.offset()), (None, 0))
    equal((end.error().code(), end.partition(), end.offset()), (Code.PARTITION_EOF, 0, 1))
    send(backend, topic, [b"b"])
    record, end = receive(backend, consumer, 2)
    equal((record.error(), record.offset()), (None, 1))
    equal((end.error().code(), end.offset()), (Code.PARTITION_EOF, 2))


def a_paused_partition_is_silent(backend: Backend) -> None:
    """The others go on; after `resume` it goes on where it was."""
    topic = backend.new_topic(2)
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0), at(topic, 1, 0)])
    consumer.pause([at(topic, 0)])
    send(backend, topic, [b"a", b"b"], partition=0)
    send(backend, topic, [b"c", b"d"], partition=1)
    equal(places(receive(backend, consumer, 2)), [(1, 0), (1, 1)])
    consumer.resume([at(topic, 0)])
    equal(places(receive(backend, consumer, 2)), [(0, 0), (0, 1)])


def a_pause_before_the_first_assignment_does_nothing(backend: Backend) -> None:
    """And says nothing: the program believes that the partition is paused."""
    topic = backend.new_topic()
    send(backend, topic, [b"a"])
    consumer = consumer_of(backend)
    consumer.pause([at(topic, 0)])
    consumer.assign([at(topic, 0, 0)])
    equal(places(receive(backend, consumer, 1)), [(0, 0)])


def a_pause_counts_once_the_client_knows_the_partition(backend: Backend) -> None:
    """`position`, or `list_topics` of that topic, is enough: paused then, it begins paused when it is assigned."""
    topic = backend.new_topic(2)
    send(backend, topic, [b"a"], partition=0)
    send(backend, topic, [b"b"], partition=1)
    by_position, by_metadata = consumer_of(backend), consumer_of(backend)
    by_position.position([at(topic, 0)])
    by_metadata.list_topics(topic, timeout=10)
    for consumer in (by_position, by_metadata):
        consumer.pause([at(topic, 0)])
        consumer.assign([at(topic, 0, 0), at(topic, 1, 0)])
        equal(places(receive(backend, consumer, 1)), [(1, 0)])
        equal(consumer.consume(1, backend.poll_s), [], "records of the paused partition")
        consumer.resume([at(topic, 0)])
        equal(places(receive(backend, consumer, 1)), [(0, 0)])


def a_pause_sticks_over_reassignment(backend: Backend) -> None:
    """A partition that was paused, given up and assigned again is still paused."""
    topic = backend.new_topic(2)
    consumer = consumer_of(backend)
    send(backend, topic, [b"a"], partition=0)
    send(backend, topic, [b"b"], partition=1)
    consumer.assign([at(topic, 0, 0)])
    receive(backend, consumer, 1)
    consumer.pause([at(topic, 0)])
    consumer.assign([at(topic, 1, 1)])
    consumer.assign([at(topic, 0, 0), at(topic, 1, 0)])
    equal(places(receive(backend, consumer, 1)), [(1, 0)])
    equal(consumer.consume(1, backend.poll_s), [], "records of the paused partition")
    consumer.resume([at(topic, 0)])
    equal(places(receive(backend, consumer, 1)), [(0, 0)])


def truncated_records_are_skipped_by_policy(backend: Backend) -> None:
    """A position below the low watermark is out of range: earliest means the low watermark."""
    topic = backend.new_topic()
    send(backend, topic, [b"a", b"b", b"c", b"d"])
    backend.truncate(topic, 0, 2)
    consumer = consumer_of(backend)
    equal(consumer.get_watermark_offsets(at(topic), timeout=10), (2, 4))
    consumer.assign([at(topic, 0, 0)])
    equal(places(receive(backend, consumer, 2)), [(0, 2), (0, 3)])
    strict = consumer_of(backend, auto_offset_reset="error")
    strict.assign([at(topic, 0, 1)])
    (event,) = receive(backend, strict, 1)
    equal(event.error().code(), Code.AUTO_OFFSET_RESET)


def watermarks_and_logical_offsets(backend: Backend) -> None:
    """Both watermarks; −2 and −1 as start; an unknown partition is an error."""
    topic = backend.new_topic()
    send(backend, topic, [b"a", b"b"])
    consumer = consumer_of(backend, enable_partition_eof=True)
    equal(consumer.get_watermark_offsets(at(topic), timeout=10), (0, 2))
    equal(consumer.get_watermark_offsets(at(topic), cached=True), (OFFSET_INVALID, OFFSET_INVALID))
    equal(refused(lambda: consumer.get_watermark_offsets(at(topic, 9), timeout=5)).code(), Code.UNKNOWN_PARTITION)
    consumer.assign([at(topic, 0, OFFSET_END)])
    (end,) = receive(backend, consumer, 1)
    equal((end.error().code(), end.offset()), (Code.PARTITION_EOF, 2))
    equal(consumer.get_watermark_offsets(at(topic), cached=True)[1], 2, "cached high watermark")
    consumer.seek(at(topic, 0, OFFSET_BEGINNING))
    equal(places(receive(backend, consumer, 1)), [(0, 0)])


def times_become_offsets(backend: Backend) -> None:
    """The first record at the time or later; −1 when there is none; where the log begins and ends; errors."""
    topic = backend.new_topic()
    producer = backend.producer({})
    for stamp_ms in (1_600_000_000_000, 1_600_000_001_000, 1_600_000_002_000):
        producer.produce(topic, b"x", None, 0, timestamp=stamp_ms)
    producer.flush(backend.poll_s * backend.attempts)
    consumer = consumer_of(backend)

    def found(time_ms: int, partition: int = 0) -> tuple[int, bool]:
        (result,) = consumer.offsets_for_times([at(topic, partition, time_ms)], timeout=10)
        return result.offset, result.error is None

    equal(found(1_500_000_000_000), (0, True))
    equal(found(1_600_000_000_001), (1, True))
    equal(found(1_600_000_002_000), (2, True))
    equal(found(1_600_000_002_001), (OFFSET_END, True))
    equal(found(OFFSET_BEGINNING), (0, True), "where the log begins")
    equal(found(OFFSET_END), (3, True), "where the log ends")
    _, unknown = consumer.offsets_for_times([at(topic, 0, 5), at(topic, 9, 5)], timeout=10)
    equal(unknown.error.code() if unknown.error else None, Code.UNKNOWN_PARTITION)
    alone = refused(lambda: consumer.offsets_for_times([at(topic, 9, 5)], timeout=10))
    equal(alone.code(), Code.UNKNOWN_PARTITION, "when every partition is unknown")
    equal(refused(lambda: consumer.offsets_for_times([], timeout=10)).code(), Code.INVALID_ARG, "no partition")


def metadata_tells_topics_apart(backend: Backend) -> None:
    """Partitions and leaders of a topic; an unknown one comes with its error."""
    topic = backend.new_topic(3)
    consumer = consumer_of(backend)
    found = consumer.list_topics(topic, timeout=10).topics[topic]
    equal(found.error, None)
    equal(sorted(found.partitions), [0, 1, 2])
    equal([part.leader in consumer.list_topics(timeout=10).brokers for part in found.partitions.values()], [True] * 3)
    missing = backend.new_name()
    answer = consumer.list_topics(missing, timeout=10).topics[missing]
    equal((answer.error.code(), len(answer.partitions)), (KafkaError.UNKNOWN_TOPIC_OR_PART, 0))
    holds(topic in backend.producer({}).list_topics(timeout=10).topics, "topic in the producer's metadata")


def consume_takes_what_is_there(backend: Backend) -> None:
    """`consume(n, 0)` does not wait; 0 is allowed, negative counts are not."""
    topic = backend.new_topic()
    send(backend, topic, [b"a", b"b", b"c"])
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    first = wait_for(backend, lambda: consumer.poll(backend.poll_s), "the first record")
    rest: list[object] = []
    for _ in range(backend.attempts):
        rest.extend(consumer.consume(10, 0))
        if len(rest) == 2:
            break
        consumer.get_watermark_offsets(at(topic), timeout=10)  # something to wait for
    equal((first.offset(), len(rest)), (0, 2))
    equal(consumer.consume(0, 0), [])
    try:
        consumer.consume(-1, 0)
    except ValueError:
        return
    equal("accepted", "ValueError", "consume(-1)")


def an_unknown_partition_can_be_assigned_and_is_silence(backend: Backend) -> None:
    """`assign` takes anything, and nobody says that it is not there: look it up in the metadata."""
    topic = backend.new_topic()
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 7, 0), at(topic, 0, 0)])
    send(backend, topic, [b"x"])
    equal(places(receive(backend, consumer, 1)), [(0, 0)])
    equal(consumer.consume(1, backend.poll_s * 3), [], "events")


def a_closed_consumer_refuses(backend: Backend) -> None:
    """`RuntimeError` from every call but `close`."""
    consumer = consumer_of(backend)
    consumer.close()
    consumer.close()
    for call in (lambda: consumer.poll(0), consumer.assignment, lambda: consumer.commit(asynchronous=False)):
        try:
            call()
        except RuntimeError:
            continue
        equal("accepted", "RuntimeError", "call after close")
