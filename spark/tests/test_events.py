"""The events of records that the shim encoded, and of invalid records."""

import datetime as dt
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rocketshim_spark.errors import SessionError
from rocketshim_spark.events import EventParams, event_topics, kind_of, transform
from rocketshim_spark.redrive_marks import join_settled, settled
from rocketshim_topics import Envelope, TopicNames, decode, encode
from rocketshim_topics.causes import fingerprint
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import redrive_count
from rocketshim_topics.redrive_log import BeginRecord, MarkRecord, RedriveLog, encode_redrive_record, record_digest
from rocketshim_topics.wire import HEADER_ORDER, UNREADABLE

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
NOON_MS = int(NOON.timestamp() * 1_000)
NAMES = TopicNames()
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
    "headers array<struct<key: string, value: binary>>"
)
Header = tuple[str, bytes | None]


def record(
    topic: str, headers: Sequence[Header] | None, *, partition: int = 0, offset: int = 0, value: bytes | None = b"v"
) -> tuple[Any, ...]:
    return (b"k", value, topic, partition, offset, NOON, 1, None if headers is None else list(headers))


@pytest.fixture
def events(spark: SparkSession) -> Callable[..., list[Row]]:
    def read(*records: tuple[Any, ...], params: EventParams | None = None) -> list[Row]:
        return transform(frame(spark, records), params).orderBy("topic", "partition", "offset").collect()

    return read


def frame(spark: SparkSession, records: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(records), SCHEMA)


FAILED = Envelope(
    shim=1,
    real_topic="%RETRY%pay",
    delay_level=4,
    delay_ms=30_000,
    uniq_key="m-1",
    tags="created",
    keys="a b",
    born_timestamp_ms=NOON_MS - 5_000,
    retry_topic="orders",
    origin_message_id="orders/3/17",
    reconsume_times=2,
    consumer_group="pay",
    fail_class="Timeout",
    fail_text="no answer from 10.0.0.7 for deadbeef01",
    fail_at_ms=NOON_MS - 10,
    hop_id="rmq.retry.pay/0/4",
    user=(("traceparent", b"00"), ("traceparent", b"01"), ("empty", None)),
)


def test_a_waiting_retry_is_an_event_with_all_its_header_values(events: Callable[..., list[Row]]) -> None:
    (event,) = events(record(NAMES.schedule, encode(FAILED), partition=32 + 3, offset=9))
    assert event.kind == "schedule"
    assert (event.msg_id, event.origin_id, event.grp, event.attempt) == ("m-1", "orders/3/17", "pay", 2)
    assert (event.real_topic, event.origin_topic) == ("%RETRY%pay", "orders")
    assert (event.queue, event.delay_level) == (3, 4)
    assert event.due_at.replace(tzinfo=dt.UTC) - NOON == dt.timedelta(seconds=30)
    assert (event.fail_class, event.fingerprint) == ("Timeout", fingerprint(FAILED.fail_text))
    assert (event.dup_headers, event.unknown_headers, event.decode_error) == (0, 3, None)
    assert event.coordinates == f"{NAMES.schedule}/35/9"
    assert event.value_sha256 == hashlib.sha256(b"v").hexdigest()


def test_the_due_time_comes_from_the_absolute_time_or_the_delay_or_the_queue(events: Callable[..., list[Row]]) -> None:
    absolute = replace(FAILED, delay_ms=None, deliver_at_ms=NOON_MS + 7)
    found = events(
        record(NAMES.schedule, encode(absolute), partition=0),
        record(NAMES.schedule, encode(replace(FAILED, delay_ms=None)), partition=1),  # level 2
        record(NAMES.schedule, encode(replace(FAILED, delay_ms=None)), partition=28),  # the fine level of 256 ms
        record(
            NAMES.schedule, encode(replace(FAILED, delay_ms=None)), partition=20
        ),  # not a level of the default table
    )
    due = [row.due_at and (row.due_at.replace(tzinfo=dt.UTC) - NOON) / dt.timedelta(milliseconds=1) for row in found]
    assert due == [7, 5_000, None, 256]


def test_a_message_without_an_id_is_identified_by_its_coordinates(events: Callable[..., list[Row]]) -> None:
    found = events(record("orders", None, offset=1), record("orders", [("UNIQ_KEY", b"")], offset=2))
    assert [row.msg_id for row in found] == ["orders/0/1", "orders/0/2"]


def test_on_a_source_topic_only_the_first_of_the_senders_headers_counts(
    events: Callable[..., list[Row]],
) -> None:
    headers = [
        ("TAGS", b"x"),
        ("TAGS", b"y"),
        ("RECONSUME_TIMES", b"9"),
        ("CONSUMER_GROUP", b"evil"),
        ("HOP_ID", b"no"),
    ]
    (event,) = events(record("orders", headers))
    assert (event.kind, event.tag, event.dup_headers) == ("source", "x", 1)
    assert (event.attempt, event.grp, event.hop_id, event.decode_error) == (None, None, None, None)


def test_a_redriven_dead_letter_is_a_replay_on_its_target_topic(events: Callable[..., list[Row]]) -> None:
    mark = [("UNIQ_KEY", b"m"), ("HOP_ID", b"rmq.dlq.pay/0/3"), ("REPLAY_ID", b"r-1"), ("REPLAY_COUNT", b"1")]
    found = events(record("orders", mark), record("rmq.dlq.pay", mark), record("rmq.retry.pay", mark))
    assert [(row.kind, row.replay_id, row.replay_count) for row in found] == [
        ("replay", "r-1", 1),
        ("dlq", "r-1", 1),
        ("replay", "r-1", 1),
    ]


def test_clock_probes_group_logs_and_other_namespaces_give_no_events(events: Callable[..., list[Row]]) -> None:
    assert not events(
        record(NAMES.schedule, [("CLOCK", b"")]),
        record(NAMES.timers, [("CLOCK", b"1")]),
        record("rmq.group.pay", None),
        record("rmq.redrive", None),
        record("other.rmq.retry.pay", None),
        record("other.SCHEDULE_TOPIC_XXXX", None),
        record("us.west.rmq.dlq.pay", None),
    )


def test_a_namespace_reads_its_own_topics(events: Callable[..., list[Row]]) -> None:
    found = events(
        record("ns.rmq.dlq.pay", encode(FAILED)),
        record("rmq.dlq.pay", encode(FAILED)),
        params=EventParams(namespace="ns"),
    )
    assert [(row.topic, row.kind) for row in found] == [("ns.rmq.dlq.pay", "dlq")]


def test_empty_and_absent_values_and_texts_that_are_not_utf8_are_rows(events: Callable[..., list[Row]]) -> None:
    found = events(
        record("orders", [("TAGS", b"\xff")], offset=0, value=None),
        record("orders", [("TAGS", None)], offset=1, value=b""),
        record("orders", [], offset=2, value=b"x" * 1_000_000),
    )
    assert [(row.value_bytes, row.undecodable, row.tag) for row in found] == [
        (0, True, "\ufffd"),
        (0, False, None),
        (1_000_000, False, None),
    ]


def test_a_time_after_year_9999_becomes_null_without_an_error(events: Callable[..., list[Row]]) -> None:
    headers = encode(replace(FAILED, delay_ms=None, deliver_at_ms=2**63 - 1, fail_at_ms=2**63 - 1))
    relative = encode(replace(FAILED, delay_ms=2**63 - 1))
    found = events(record(NAMES.schedule, headers), record(NAMES.schedule, relative, offset=1))
    assert (found[0].due_at, found[0].failed_at, found[0].decode_error) == (None, None, None)
    assert found[1].due_at is None


def test_a_record_with_microseconds_as_its_timestamp_has_a_time_that_python_can_read(spark: SparkSession) -> None:
    microseconds = F.timestamp_millis(F.lit(NOON_MS * 1_000))
    records = frame(spark, [record("orders", None)]).withColumn("timestamp", microseconds)
    (event,) = transform(records).collect()
    assert (event.stored_at.year, event.born_at.year) == (9999, 9999)


def test_a_record_with_a_header_fifty_thousand_times_is_decoded_in_time(events: Callable[..., list[Row]]) -> None:
    (event,) = events(record("rmq.dlq.g", [("TAGS", b"a"), *[("KEYS", b"b")] * 50_000]))
    assert event.decode_error == "duplicate-header:KEYS"


header_names = st.sampled_from([*HEADER_ORDER, "user", "USER.TAGS", "USER.REPLAY_COUNT", "bad\x01name", "x" * 50])
header_values = st.one_of(
    st.none(),
    st.binary(max_size=8),
    st.integers(-1, 2**66).map(lambda number: str(number).encode()),
    st.sampled_from([b"1", b"2", b"", b"%RETRY%g", b"orders/0/1", "٣".encode(), b"1\n", b"00001"]),
)
header_lists = st.lists(st.tuples(header_names, header_values), max_size=6)


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(header_lists, min_size=60, max_size=200))
def test_headers_are_malformed_exactly_when_decode_refuses_them(spark: SparkSession, lists: list[list[Header]]) -> None:
    records = [record("rmq.dlq.g", headers, offset=offset) for offset, headers in enumerate(lists)]
    found = {row.offset: row for row in transform(frame(spark, records)).collect()}
    assert len(found) == len(lists)
    for offset, headers in enumerate(lists):
        try:
            envelope = decode(headers, trusted=True)
        except MalformedRecordError:
            assert found[offset].decode_error is not None, headers
            continue
        assert found[offset].decode_error is None, headers
        assert found[offset].attempt == envelope.reconsume_times
        assert found[offset].unknown_headers == len(envelope.user)
        assert (found[offset].replay_count or 0) == redrive_count(envelope)
        assert found[offset].digest == record_digest(Fetched(headers))  # type: ignore[arg-type]


class Fetched:
    """The records that `record` makes, as the runtime's Kafka client returns them."""

    def __init__(self, headers: Any, key: bytes | None = b"k", value: bytes | None = b"v") -> None:
        self._headers = headers
        self._key = key
        self._value = value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[Header]:
        return self._headers


def test_a_digest_distinguishes_null_from_empty_as_the_redrive_log_does(spark: SparkSession) -> None:
    pairs = [(None, None), (b"", b""), (b"12:", b"-"), (b"\xff\x00", b"x" * 100_000)]
    rows = [(key, value, "rmq.dlq.g", 0, offset, NOON, 1, None) for offset, (key, value) in enumerate(pairs)]
    found = transform(frame(spark, rows)).orderBy("offset").collect()
    assert [row.digest for row in found] == [record_digest(Fetched([], *pair)) for pair in pairs]  # type: ignore[arg-type]


marks = st.builds(
    MarkRecord,
    state=st.sampled_from(["redriven", "discarded"]),
    source=st.sampled_from(["rmq.dlq.a", "rmq.dlq.b"]),
    plan=st.sampled_from(["p1", "p2"]),
    session=st.just("s"),
    letters=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from(["0" * 16, "a" * 16])), max_size=5
    ).map(tuple),
)
begins = st.builds(BeginRecord, source=st.just("rmq.dlq.a"), plan=st.just("p1"), session=st.just("s"))
strange = st.sampled_from([None, b"", b"[", b"{}", b'{"v": 2, "kind": "mark"}', b'{"v": 1, "kind": "mark"}', b"\xff"])


@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.lists(st.one_of(marks, begins, strange), max_size=8), min_size=20, max_size=60))
def test_settled_returns_the_marks_that_the_redrive_log_returns(
    spark: SparkSession, logs: list[list[MarkRecord | BeginRecord | bytes | None]]
) -> None:
    # Many logs in one frame: each has dead letters of its own topic.
    stored: list[Any] = []
    folded = {}
    for number, log in enumerate(logs):
        redrive_records = [
            each.model_copy(update={"source": f"{each.source}-{number}"})
            if isinstance(each, MarkRecord | BeginRecord)
            else each
            for each in log
        ]
        for each in redrive_records:
            value = encode_redrive_record(each) if isinstance(each, MarkRecord | BeginRecord) else each
            stored.append(record("ns.rmq.redrive", None, offset=len(stored), value=value))
        folded[number] = [each for each in redrive_records if isinstance(each, MarkRecord | BeginRecord)]
    found = {
        (row.topic, row.partition, row.offset): (row.state, row.settled_by, row.digest)
        for row in settled(frame(spark, stored), "ns").collect()
    }
    expected = {}
    for number, told in folded.items():
        for source in (f"rmq.dlq.a-{number}", f"rmq.dlq.b-{number}"):
            folded_log = RedriveLog(source, told)
            for place in ((partition, offset) for partition in range(2) for offset in range(4)):
                last = folded_log.settled(*place, None)
                if last is not None:
                    expected[source, *place] = (last.state, last.plan, last.digest)
    assert found == expected
    assert settled(frame(spark, stored), "other").count() == 0


def test_a_decode_error_has_the_reason_that_decode_reports(events: Callable[..., list[Row]]) -> None:
    lists: list[tuple[list[Header], str]] = [
        ([("TAGS", b"a"), ("TAGS", b"a")], "duplicate-header:TAGS"),
        ([("KEYS", None)], "null-header:KEYS"),
        ([("RECONSUME_TIMES", b"-1")], "bad-number:RECONSUME_TIMES"),
        ([("a\x00b", b"")], "bad-header-key"),
        ([("SHIM", b"2")], "unknown-version"),
        ([("DELAY_MS", b"1"), ("DELIVER_AT_MS", b"1")], "two-due-times"),
    ]
    found = events(*(record("rmq.dlq.g", headers, offset=offset) for offset, (headers, _) in enumerate(lists)))
    for event, (headers, reason) in zip(found, lists, strict=True):
        with pytest.raises(MalformedRecordError) as refused:
            decode(headers, trusted=True)
        assert event.decode_error == refused.value.reason == reason


def test_a_header_name_that_is_not_utf8_is_treated_as_in_the_runtime(events: Callable[..., list[Row]]) -> None:
    headers: list[Header] = [("UNIQ_KEY", b"m"), ("ab\ufffd", b"")]  # as Java reads it; Python cannot read it
    found = events(record("orders", headers, offset=7), record("rmq.dlq.g", headers))
    assert [(row.msg_id, row.decode_error, row.undecodable) for row in found] == [
        ("orders/0/7", None, True),
        ("rmq.dlq.g/0/0", "bad-header-key", True),
    ]


def test_marks_match_the_digest_of_the_header_names_that_the_runtime_reads(spark: SparkSession) -> None:
    lists: list[list[Header]] = [
        [("ab\ufffd", b"1")],  # what Java reads for a name that is not UTF-8, and for one with this character
        [("a\x00b", b"1"), ("TAGS\x00", None)],
        [("a", b"1")],
    ]
    rows = [record("rmq.dlq.g", headers, offset=offset) for offset, headers in enumerate(lists)]
    letters = transform(frame(spark, rows)).cache()
    found = letters.orderBy("offset").collect()
    until_nul: list[Header] = [("a", b"1"), ("TAGS", None)]
    read = [record_digest(Fetched(headers)) for headers in (lists[0], until_nul, lists[2])]  # type: ignore[arg-type]
    assert [row.digest for row in found] == read
    unread = record_digest(Fetched(UNREADABLE))  # type: ignore[arg-type]
    assert [row.digest_unread for row in found] == [unread, None, None]
    for by_digest, expected in ((read, ["p", "p", "p"]), ([unread] * 3, ["p", None, None])):
        places = tuple((0, offset, digest) for offset, digest in enumerate(by_digest))
        mark = MarkRecord(source="rmq.dlq.g", plan="p", session="s", state="discarded", letters=places)
        log = frame(spark, [record("rmq.redrive", None, value=encode_redrive_record(mark))])
        known = join_settled(letters, settled(log)).orderBy("offset").collect()
        assert [row.settled_by for row in known] == expected
        assert [row.state for row in known] == [each and "discarded" for each in expected]
    letters.unpersist()


def test_a_session_that_fails_on_repeated_headers_is_refused(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.mapKeyDedupPolicy", "EXCEPTION")
    with pytest.raises(SessionError, match="LAST_WIN"):
        transform(frame(other, [record("orders", None)]))


def test_event_topics_are_in_the_order_in_which_messages_travel() -> None:
    existing = ["rmq.dlq.g", "other", "rmq.redrive", "rmq.retry.g", "rmq.group.g", "SCHEDULE_TOPIC_XXXX", "orders"]
    existing += ["rmq.parked", "rmq.timers", "rmq.timers.state"]
    assert event_topics(existing, ["orders"]) == [
        "orders",
        "rmq.timers",
        "SCHEDULE_TOPIC_XXXX",
        "rmq.retry.g",
        "rmq.dlq.g",
        "rmq.parked",
        "rmq.redrive",
    ]
    assert kind_of("rmq.group.g") is kind_of("rmq.redrive") is None
