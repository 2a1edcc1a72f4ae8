"""Scenarios: what a record is, on its way in and out."""

from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, murmur2

from rocketshim.testing.kafka_errors import Code

from .backend import (
    Backend,
    at,
    consumer_of,
    equal,
    error_code,
    holds,
    places,
    receive,
    refused,
    send,
    wait_for,
)

__all__: list[str] = []


def absent_and_empty_differ(backend: Backend) -> None:
    """Keys and values that are absent or empty come back as they were; such a message is false."""
    topic = backend.new_topic()
    producer = backend.producer({})
    pairs: list[tuple[bytes | None, bytes | None]] = [(None, None), (b"", b""), (None, b""), (b"k", None)]
    for key, value in pairs:
        producer.produce(topic, value, key, 0)
    producer.flush(backend.poll_s * backend.attempts)
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    messages = receive(backend, consumer, len(pairs))
    equal([(message.key(), message.value()) for message in messages], pairs)
    equal([bool(message) for message in messages], [False] * len(pairs), "truth of messages without a body")
    equal([message.error() for message in messages], [None] * len(pairs))


def headers_come_back_as_kafka_keeps_them(backend: Backend) -> None:
    """No headers read back as None; order, repeats and None stay; texts become UTF-8; keys end at NUL."""
    topic = backend.new_topic()
    producer = backend.producer({})
    given: list[tuple[Any, Any]] = [
        (None, None),
        ([], None),
        ({}, None),
        ([("a", b"1"), ("b", None), ("a", b"2")], [("a", b"1"), ("b", None), ("a", b"2")]),
        ({"text": "ü"}, [("text", "ü".encode())]),
        ([("REAL_TOPIC\0x", b"v")], [("REAL_TOPIC", b"v")]),
        ([("", b"v"), ("empty", b"")], [("", b"v"), ("empty", b"")]),
        ([(7, b"v")], [("7", b"v")]),
    ]
    for headers, _ in given:
        producer.produce(topic, b"x", None, 0, headers=headers)
    producer.flush(backend.poll_s * backend.attempts)
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    messages = receive(backend, consumer, len(given))
    equal([message.headers() for message in messages], [expected for _, expected in given])


def wrong_types_are_refused(backend: Backend) -> None:
    """`produce` takes bytes and text only, headers as list of tuples or dict."""
    topic = backend.new_topic()
    producer = backend.producer({})
    wrong: list[dict[str, Any]] = [
        {"value": 5},
        {"key": 5},
        {"value": bytearray(b"x")},
        {"headers": [("a", 1)]},
        {"headers": (("a", b"1"),)},
        {"headers": [["a", b"1"]]},
    ]
    for arguments in wrong:
        try:
            producer.produce(topic, **arguments)
        except TypeError:
            continue
        equal(arguments, "TypeError", "accepted")
    equal(len(producer), 0, "messages queued")


def reports_come_from_poll_and_carry_no_headers(backend: Backend) -> None:
    """A report has key, value, place and time; its headers are None; it waits until the producer is polled."""
    topic = backend.new_topic()
    producer = backend.producer({})
    reports: list[Any] = []
    producer.produce(topic, b"v", b"k", 0, headers=[("a", b"1")], on_delivery=lambda *report: reports.append(report))
    producer.list_topics(topic, timeout=10)
    equal(reports, [], "reports before poll")
    holds(len(producer) >= 1, "the message counts until it is reported")
    wait_for(backend, lambda: producer.poll(backend.poll_s) or None, "the report")
    error, message = reports[0]
    equal(error, None)
    equal((message.topic(), message.partition(), message.offset()), (topic, 0, 0))
    equal((message.key(), message.value(), message.headers()), (b"k", b"v", None))
    holds(message.latency() is not None, "latency known")
    equal(len(producer), 0, "messages in the producer")


def create_time_is_the_senders(backend: Backend) -> None:
    """A timestamp given is kept; 0 means now."""
    topic = backend.new_topic()
    producer = backend.producer({})
    stamps: list[tuple[int, int]] = []
    for given_ms in (1_600_000_000_000, 0):
        producer.produce(
            topic, b"x", None, 0, timestamp=given_ms, on_delivery=lambda _, stored: stamps.append(stored.timestamp())
        )
    producer.flush(backend.poll_s * backend.attempts)
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    given, now = (message.timestamp() for message in receive(backend, consumer, 2))
    equal(given, (TIMESTAMP_CREATE_TIME, 1_600_000_000_000))
    equal(now[0], TIMESTAMP_CREATE_TIME)
    holds(now[1] > given[1], "0 means now")
    equal(stamps, [given, now], "timestamps in the reports")


def log_append_time_is_the_leaders(backend: Backend) -> None:
    """On a LogAppendTime topic record and report carry the leader's time, whatever the sender says."""
    topic = backend.new_topic(config={"message.timestamp.type": "LogAppendTime"})
    producer = backend.producer({})
    stamps: list[tuple[int, int]] = []
    producer.produce(topic, b"x", None, 0, timestamp=5, on_delivery=lambda _, stored: stamps.append(stored.timestamp()))
    producer.flush(backend.poll_s * backend.attempts)
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    (message,) = receive(backend, consumer, 1)
    kind, append_ms = message.timestamp()
    equal(kind, TIMESTAMP_LOG_APPEND_TIME)
    holds(append_ms > 1_600_000_000_000, "append time is the leader's clock")
    equal(stamps, [(kind, append_ms)], "timestamp in the report")


def keys_choose_partitions_by_murmur2(backend: Backend) -> None:
    """`murmur2_random` is the Java client's partitioner."""
    topic = backend.new_topic(5)
    producer = backend.producer({"partitioner": "murmur2_random"})
    chosen: dict[bytes, int] = {}
    keys = [b"order-%d" % number for number in range(20)] + [b""]
    for key in keys:
        producer.produce(
            topic, b"x", key, on_delivery=lambda _, stored: chosen.update({stored.key(): stored.partition()})
        )
    producer.flush(backend.poll_s * backend.attempts)
    equal(chosen, {key: murmur2(key, 5) for key in keys})


def offsets_follow_each_other(backend: Backend) -> None:
    """Without transactions a partition's offsets are 0, 1, 2, in the order of sending."""
    topic = backend.new_topic(2)
    producer = backend.producer({"enable.idempotence": True})
    equal(send(backend, topic, [b"a", b"b", b"c"], partition=1, producer=producer), [0, 1, 2])
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 1, 0)])
    messages = receive(backend, consumer, 3)
    equal([message.value() for message in messages], [b"a", b"b", b"c"])
    equal(places(messages), [(1, 0), (1, 1), (1, 2)])


def an_unknown_topic_fails_by_report(backend: Backend) -> None:
    """`produce` takes any topic name; that it is not there comes with the report."""
    producer = backend.producer({"topic.metadata.propagation.max.ms": 100})
    codes: list[int | None] = []
    producer.produce(backend.new_name(), b"x", on_delivery=lambda error, _: codes.append(error_code(error)))
    wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the report")
    holds(codes[0] in {Code.UNKNOWN_TOPIC, Code.UNKNOWN_TOPIC_OR_PART}, f"unknown topic ({codes})")


def an_unknown_partition_is_refused_once_the_topic_is_known(backend: Backend) -> None:
    """With metadata at hand `produce` raises."""
    topic = backend.new_topic(2)
    producer = backend.producer({})
    send(backend, topic, [b"x"], producer=producer)
    equal(refused(lambda: producer.produce(topic, b"x", None, 2)).code(), Code.UNKNOWN_PARTITION)
    equal(len(producer), 0, "messages queued")


def too_large_for_the_client_is_refused_by_produce(backend: Backend) -> None:
    """Above `message.max.bytes`, to the byte: key, value, headers and 36 bytes."""
    topic = backend.new_topic()
    producer = backend.producer({"message.max.bytes": 1_000})
    producer.produce(topic, b"x" * 939, b"k" * 10, 0, headers=[("abc", b"12345"), ("abc", None)])
    error = refused(
        lambda: producer.produce(topic, b"x" * 940, b"k" * 10, 0, headers=[("abc", b"12345"), ("abc", None)])
    )
    equal(error.code(), KafkaError.MSG_SIZE_TOO_LARGE)
    equal(send(backend, topic, [b"small"], producer=producer), [1], "the producer goes on")


def too_large_for_the_topic_fails_by_report(backend: Backend) -> None:
    """Above the topic's `max.message.bytes` the leader refuses; the next message goes through."""
    topic = backend.new_topic(config={"max.message.bytes": "1000"})
    producer = backend.producer({})
    codes: list[int | None] = []
    producer.produce(topic, b"x" * 2_000, None, 0, on_delivery=lambda error, _: codes.append(error_code(error)))
    wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the report")
    equal(codes, [KafkaError.MSG_SIZE_TOO_LARGE])
    equal(send(backend, topic, [b"small"], producer=producer), [0])


def a_time_too_far_ahead_of_the_broker_is_refused(backend: Backend) -> None:
    """The leader refuses a time that is further ahead of its clock than the topic allows, unless it stamps itself."""
    limits = {"message.timestamp.after.max.ms": "3600000"}
    topic = backend.new_topic(config=limits)
    stamping = backend.new_topic(config={**limits, "message.timestamp.type": "LogAppendTime"})
    producer = backend.producer({})
    stamps: list[Any] = []
    producer.produce(topic, b"x", None, 0, on_delivery=lambda _, stored: stamps.append(stored.timestamp()[1]))
    wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the report")
    codes: list[int | None] = []
    for to, ahead_ms in ((topic, 7_200_000), (topic, 1_800_000), (topic, -86_400_000), (stamping, 86_400_000)):
        producer.produce(
            to,
            b"x",
            None,
            0,
            timestamp=stamps[0] + ahead_ms,
            on_delivery=lambda error, _: codes.append(error_code(error)),
        )
        wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the report")
    equal(codes, [KafkaError.INVALID_TIMESTAMP, None, None, None])


def a_compacted_topic_wants_keys(backend: Backend) -> None:
    """A record without a key is refused there."""
    topic = backend.new_topic(config={"cleanup.policy": "compact"})
    producer = backend.producer({})
    codes: list[int | None] = []
    producer.produce(topic, b"x", None, 0, on_delivery=lambda error, _: codes.append(error_code(error)))
    wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the report")
    equal(codes, [KafkaError.INVALID_RECORD])


def a_full_queue_is_a_buffer_error(backend: Backend) -> None:
    """Messages whose report has not been served count; serving makes room."""
    topic = backend.new_topic()
    producer = backend.producer({"queue.buffering.max.messages": 2, "linger.ms": 0})
    for _ in range(2):
        producer.produce(topic, b"x", None, 0)
    try:
        producer.produce(topic, b"x", None, 0)
    except BufferError:
        pass
    else:
        equal("accepted", "BufferError", "third message")
    wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the reports")
    producer.produce(topic, b"x", None, 0)
    wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the reports")
    consumer = consumer_of(backend)
    equal(consumer.get_watermark_offsets(at(topic), timeout=10), (0, 3))
