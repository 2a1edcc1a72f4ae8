"""Each hop carries the headers that the table of the wire format gives its record, and everything else unchanged."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketshim_topics import (
    ConfigError,
    DelayLevels,
    Envelope,
    Failure,
    MalformedRecordError,
    Message,
    MessageError,
    MessageView,
    OutgoingRecord,
    TopicNames,
    decode,
    encode,
)
from rocketshim_topics.hops import (
    ValueReference,
    clock_probe,
    dead_letter,
    dead_letter_by_reference,
    delayed_record,
    delivered,
    due_ms,
    hopped,
    parked,
    record_size_bytes,
    redriven,
    retried_target,
    retry,
    source_record,
    value_reference,
)
from rocketshim_topics.wire import MAX_SHIM_HEADERS_BYTES, RESERVED, Header

Store = Callable[..., Any]
Foreign = Callable[..., Any]

NAMES = TopicNames()
LEVELS = DelayLevels.default()
FAILURE = Failure("ValueError", "no such customer", 1_700_000_009_000)
IDENTITY = {"UNIQ_KEY", "TAGS", "KEYS", "BORN_TIMESTAMP", "MAX_RECONSUME_TIMES"}
SCHEDULE = {"REAL_TOPIC", "DELAY", "DELAY_MS"}
SCHEDULING = {*SCHEDULE, "REAL_QID", "DELIVER_AT_MS"}
FAILED = {
    "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID",
    "RECONSUME_TIMES",
    "CONSUMER_GROUP",
    "FAIL_CLASS",
    "FAIL_TEXT",
    "FAIL_AT_MS",
}
USER: list[Header] = [("b", b"1"), ("a", None), ("b", b""), ("traceparent", b"\xff\x00")]
NOW_MS = 1_700_000_000_000


def message(**changes: Any) -> Message:
    given: dict[str, Any] = {
        "key": b"k\x00",
        "tag": "created",
        "keys": ("o-7", "c-1"),
        "properties": USER,
        "max_reconsume_times": 5,
    }
    return Message("orders", b"body\x00", **given | changes)


def sent(source: Message) -> OutgoingRecord:
    return source_record(source, NAMES, uniq_key="u-1", born_ms=5)


def scheduled(source: Message, **changes: Any) -> OutgoingRecord:
    given: dict[str, Any] = {"uniq_key": "u-1", "born_ms": 5, "now_ms": NOW_MS, "lane": 0}
    return delayed_record(source, NAMES, LEVELS, **given | changes)


def sent_back(record: Any, *, times: int = 1, trusted: bool = False, **changes: Any) -> OutgoingRecord:
    given: dict[str, Any] = {
        "group": "payments",
        "failure": FAILURE,
        "level": None,
        "delay_ms": None,
        "lane": 0,
        "trusted": trusted,
        "reconsume_times": times,
    }
    return retry(record, NAMES, LEVELS, **given | changes)


def died(record: Any, *, times: int, trusted: bool, **changes: Any) -> OutgoingRecord:
    given: dict[str, Any] = {"group": "payments", "failure": FAILURE}
    return dead_letter(record, NAMES, trusted=trusted, reconsume_times=times, **given | changes)


def relayed(record: Any) -> OutgoingRecord:
    return delivered(record, decode(record.headers(), trusted=True), NAMES)


def names_of(outgoing: OutgoingRecord) -> set[str]:
    return {name for name, _ in outgoing.headers if name in RESERVED}


def texts_of(outgoing: OutgoingRecord) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in outgoing.headers if name in RESERVED}


def users_of(outgoing: OutgoingRecord) -> list[Header]:
    return [header for header in outgoing.headers if header[0] not in RESERVED]


# --- the second table of the wire format, row by row -----------------------------------------------------------------


def test_row_source_topic_sent_by_us() -> None:
    outgoing = sent(message())
    assert (outgoing.topic, outgoing.partition) == ("orders", None)
    assert names_of(outgoing) == IDENTITY
    assert texts_of(outgoing) == {
        "UNIQ_KEY": "u-1",
        "TAGS": "created",
        "KEYS": "o-7 c-1",
        "BORN_TIMESTAMP": "5",
        "MAX_RECONSUME_TIMES": "5",
    }
    assert users_of(outgoing) == USER


def test_row_schedule_delayed_send() -> None:
    outgoing = scheduled(message(delay_level=3))
    assert (outgoing.topic, outgoing.partition) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert names_of(outgoing) == IDENTITY | SCHEDULE | {"SHIM"}
    texts = texts_of(outgoing)
    assert (texts["REAL_TOPIC"], texts["DELAY"], texts["DELAY_MS"], texts["SHIM"]) == ("orders", "3", "10000", "1")
    assert texts["UNIQ_KEY"] == "u-1"


def test_row_target_delivered(store: Store) -> None:
    waiting = store(scheduled(message(delay_level=3)), offset=4)
    outgoing = relayed(waiting)
    assert (outgoing.topic, outgoing.partition) == ("orders", None)
    assert names_of(outgoing) == IDENTITY | {"HOP_ID"}
    assert texts_of(outgoing)["HOP_ID"] == "SCHEDULE_TOPIC_XXXX/2/4"
    assert texts_of(outgoing)["BORN_TIMESTAMP"] == "5"
    assert users_of(outgoing) == USER


def test_row_schedule_after_failure(store: Store) -> None:
    outgoing = sent_back(store(sent(message()), partition=1, offset=19))
    assert (outgoing.topic, outgoing.partition) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert names_of(outgoing) == IDENTITY | SCHEDULE | FAILED | {"SHIM", "HOP_ID"}
    assert texts_of(outgoing) == {
        "SHIM": "1",
        "REAL_TOPIC": "%RETRY%payments",
        "DELAY": "3",
        "DELAY_MS": "10000",
        "UNIQ_KEY": "u-1",
        "TAGS": "created",
        "KEYS": "o-7 c-1",
        "BORN_TIMESTAMP": "5",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "orders/1/19",
        "RECONSUME_TIMES": "1",
        "CONSUMER_GROUP": "payments",
        "FAIL_CLASS": "ValueError",
        "FAIL_TEXT": "no such customer",
        "FAIL_AT_MS": "1700000009000",
        "HOP_ID": "orders/1/19",
        "MAX_RECONSUME_TIMES": "5",
    }


def test_row_retry_topic(store: Store) -> None:
    outgoing = relayed(store(sent_back(store(sent(message()), offset=19)), offset=8))
    assert (outgoing.topic, outgoing.partition) == ("rmq.retry.payments", None)
    assert names_of(outgoing) == IDENTITY | FAILED | {"SHIM", "HOP_ID"}
    assert texts_of(outgoing)["HOP_ID"] == "SCHEDULE_TOPIC_XXXX/2/8"
    assert texts_of(outgoing)["RECONSUME_TIMES"] == "1"


def test_row_dead_letter_topic(store: Store) -> None:
    retried = store(relayed(store(sent_back(store(sent(message()), offset=19)))), offset=3)
    outgoing = died(retried, times=17, trusted=True, failure=Failure("KeyError", "again", 6))
    assert (outgoing.topic, outgoing.partition) == ("rmq.dlq.payments", None)
    assert names_of(outgoing) == IDENTITY | FAILED | {"SHIM", "HOP_ID"}
    texts = texts_of(outgoing)
    assert (texts["RECONSUME_TIMES"], texts["FAIL_CLASS"], texts["FAIL_AT_MS"]) == ("17", "KeyError", "6")
    assert (texts["ORIGIN_MESSAGE_ID"], texts["HOP_ID"]) == ("orders/0/19", "rmq.retry.payments/0/3")


# --- a whole life ----------------------------------------------------------------------------------------------------


def live(record: Any, store: Store, failures: int) -> list[OutgoingRecord]:
    """All records of a message that fails every time: each retry, each delivery, the dead letter last."""
    records: list[OutgoingRecord] = []
    trusted = False
    for times in range(1, failures + 1):
        waiting = sent_back(record, times=times, trusted=trusted)
        arrived = relayed(store(waiting, offset=times))
        records += [waiting, arrived]
        record, trusted = store(arrived, offset=times), True
    return [*records, died(record, times=failures + 1, trusted=True)]


def test_seventeen_deliveries_climb_the_levels_and_add_nothing(foreign: Foreign, store: Store) -> None:
    records = live(foreign([("x", b"1")]), store, 16)
    assert [record.partition for record in records[:-1:2]] == list(range(2, 18))
    sizes = [record_size_bytes(record) for record in records[1::2]]
    assert sizes[-1] - sizes[0] <= 4, "only digits grow"
    assert texts_of(records[-1])["RECONSUME_TIMES"] == "17"
    for record in records:
        assert texts_of(record)["UNIQ_KEY"] == "orders/2/7"
        assert texts_of(record)["ORIGIN_MESSAGE_ID"] == "orders/2/7"
        assert texts_of(record)["BORN_TIMESTAMP"] == str(NOW_MS)


header_names = st.one_of(
    st.sampled_from(sorted(RESERVED)), st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
)
foreign_headers = st.lists(st.tuples(header_names, st.none() | st.binary(max_size=6)), max_size=8)
content = st.none() | st.binary(max_size=20)


@given(content, content, foreign_headers, st.integers(1, 3))
@example(None, None, [("UNIQ_KEY", b"")], 1)
def test_key_value_and_user_headers_survive_every_hop_byte_for_byte(
    key: bytes | None, value: bytes | None, headers: list[Header], failures: int
) -> None:
    first = Stored(OutgoingRecord("orders", None, key, value, headers))
    seen = MessageView(first, trusted=False)
    for outgoing in live(first, Stored, failures):
        assert (outgoing.key, outgoing.value) == (key, value)
        view = MessageView(Stored(outgoing), trusted=True)
        assert view.headers == seen.headers
        assert (view.tag, view.keys, view.msg_id) == (seen.tag, seen.keys, seen.msg_id)
        assert (view.topic, view.origin, view.born_timestamp_ms) == (seen.topic, seen.origin, seen.born_timestamp_ms)


class Stored:
    """As the fixtures of conftest, for property tests."""

    def __init__(self, record: OutgoingRecord, offset: int = 0) -> None:
        self.record = record
        self.at = offset

    def topic(self) -> str:
        return self.record.topic

    def partition(self) -> int:
        return self.record.partition or 0

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> list[Header] | None:
        return self.record.headers or None

    def timestamp(self) -> tuple[int, int]:
        return (2, NOW_MS)


# --- delayed sends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delays", [{}, {"delay_level": 0}, {"delay_level": -4}, {"delay": 0}, {"delay": "0s"}])
def test_no_delay_is_an_ordinary_send(delays: dict[str, Any]) -> None:
    assert scheduled(message(**delays)) == sent(message())


def test_a_timestamp_for_the_target_passes_the_queues_and_ends_with_the_delivery() -> None:
    stamped = Stored(scheduled(message(delay_level=3), timestamp_ms=77))
    again = hopped(stamped, decode(stamped.headers(), trusted=True), NAMES, deliver_at_ms=NOW_MS, partition=0)
    again_envelope = decode(again.headers, trusted=True)
    assert (again_envelope.target_timestamp_ms, again_envelope.born_timestamp_ms) == (77, 5)
    for target in ("orders", "%RETRY%g"):
        envelope = decode(stamped.headers(), trusted=True)
        envelope.real_topic = target
        assert "TARGET_TIMESTAMP_MS" not in dict(delivered(stamped, envelope, NAMES).headers)
    waits_in_parking = dict(parked(stamped, NAMES, "test").headers)
    assert waits_in_parking["TARGET_TIMESTAMP_MS"] == b"77", "so it counts when the record is sent again"
    assert scheduled(message(), timestamp_ms=77) == sent(message()), "without a delay the record itself has it"


def test_empty_table_schedules_no_level() -> None:
    empty = DelayLevels.parse(" ")
    outgoing = delayed_record(message(delay_level=3), NAMES, empty, uniq_key="u-1", born_ms=5, now_ms=NOW_MS, lane=0)
    assert outgoing == sent(message())


@pytest.mark.parametrize(("asked", "level"), [(1, 1), (18, 18), (19, 18), (1_000, 18)])
def test_level_is_clamped_and_written_as_clamped(asked: int, level: int) -> None:
    outgoing = scheduled(message(delay_level=asked))
    assert outgoing.partition == level - 1
    assert texts_of(outgoing)["DELAY"] == str(level)
    assert texts_of(outgoing)["DELAY_MS"] == str(LEVELS.delay_ms(level))


def test_any_delay_goes_to_the_queue_of_the_rule_and_names_no_level() -> None:
    outgoing = scheduled(message(delay="45s"), lane=2)
    assert outgoing.partition == LEVELS.queue_for(45_000, 2) == 67
    assert names_of(outgoing) & SCHEDULING == {"REAL_TOPIC", "DELAY_MS"}
    assert texts_of(outgoing)["DELAY_MS"] == "45000"


def test_absolute_time_is_written_as_it_is_and_chooses_the_queue_by_the_brokers_clock() -> None:
    outgoing = scheduled(message(deliver_at=NOW_MS + 45_000))
    assert outgoing.partition == 3
    assert names_of(outgoing) & SCHEDULING == {"REAL_TOPIC", "DELIVER_AT_MS"}
    assert texts_of(outgoing)["DELIVER_AT_MS"] == str(NOW_MS + 45_000)


def test_absolute_time_waits_in_the_finest_queue_while_the_brokers_clock_is_not_known() -> None:
    outgoing = scheduled(message(deliver_at=NOW_MS + 7_200_000), now_ms=None, born_ms=NOW_MS - 864_000_000, lane=2)
    assert outgoing.partition == 95
    assert texts_of(outgoing)["DELIVER_AT_MS"] == str(NOW_MS + 7_200_000)
    with pytest.raises(MessageError, match="max_delay"):
        scheduled(message(deliver_at=NOW_MS + 41 * 86_400_000), now_ms=None, born_ms=NOW_MS, sender_ms=NOW_MS + 1)


@pytest.mark.parametrize("moment", [0, NOW_MS - 1, NOW_MS])
def test_time_in_the_past_waits_in_the_finest_queue(moment: int) -> None:
    assert scheduled(message(deliver_at=moment)).partition == 31


def test_delay_beyond_the_longest_is_refused() -> None:
    scheduled(message(delay="40d"))
    for late in (message(delay="40.001d"), message(deliver_at=NOW_MS + 40 * 86_400_000 + 1)):
        with pytest.raises(MessageError, match="max_delay_ms=3456000000: raise max_delay_ms"):
            scheduled(late)
    with pytest.raises(MessageError):
        scheduled(message(delay="2s"), max_delay_ms=1_000)


@pytest.mark.parametrize("topic", ["%RETRY%payments", "%DLQ%payments", "rmq.retry.payments", "pay.SCHEDULE_TOPIC_XXXX"])
def test_nobody_schedules_to_a_topic_of_the_shims(topic: str) -> None:
    with pytest.raises(MessageError, match="no delayed messages"):
        scheduled(Message(topic, b"", delay_level=3))


def test_chosen_partition_is_kept_for_the_delivery(store: Store) -> None:
    waiting = scheduled(message(delay_level=1), real_qid=5)
    assert texts_of(waiting)["REAL_QID"] == "5"
    assert relayed(store(waiting)).partition == 5
    assert scheduled(message(), real_qid=5).partition == 5


def test_namespace_maps_every_topic_of_a_hop(store: Store) -> None:
    names = TopicNames("pay")
    waiting = delayed_record(message(delay="1s"), names, LEVELS, uniq_key="u", born_ms=1, now_ms=1, lane=0)
    assert waiting.topic == "pay.SCHEDULE_TOPIC_XXXX"
    record = store(sent_back(store(sent(message()))))
    envelope = decode(record.headers(), trusted=True)
    assert delivered(record, envelope, names).topic == "pay.rmq.retry.payments"
    assert parked(record, names, "r").topic == "pay.rmq.parked"
    assert clock_probe(names, partition=0).topic == "pay.SCHEDULE_TOPIC_XXXX"


def test_direct_send_to_a_retry_topic_is_one_of_ours() -> None:
    outgoing = source_record(Message("%RETRY%g", b""), NAMES, uniq_key="u", born_ms=1)
    assert (outgoing.topic, names_of(outgoing)) == ("rmq.retry.g", {"SHIM", "UNIQ_KEY", "BORN_TIMESTAMP"})


# --- worker ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("envelope", "due"),
    [
        (Envelope(deliver_at_ms=77), 77),
        (Envelope(delay_ms=45_000), 46_000),
        (Envelope(delay_ms=0), 1_000),
        (Envelope(delay_level=9), 31_000),
        (Envelope(), 31_000),
    ],
)
def test_due_time(envelope: Envelope, due: int) -> None:
    assert due_ms(envelope, 1_000, 30_000) == due


def test_first_hop_turns_the_relative_delay_into_the_due_time(store: Store) -> None:
    waiting = store(scheduled(message(delay="45s")), offset=4)
    envelope = decode(waiting.headers(), trusted=True)
    at_ms = due_ms(envelope, waiting.timestamp()[1], 30_000)
    outgoing = hopped(waiting, envelope, NAMES, deliver_at_ms=at_ms, partition=2)
    assert (outgoing.topic, outgoing.partition) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert names_of(outgoing) & SCHEDULING == {"REAL_TOPIC", "DELIVER_AT_MS"}
    assert texts_of(outgoing)["DELIVER_AT_MS"] == str(NOW_MS + 45_000)
    assert texts_of(outgoing)["HOP_ID"] == "SCHEDULE_TOPIC_XXXX/3/4"
    second = store(outgoing, offset=9)
    again = decode(second.headers(), trusted=True)
    assert due_ms(again, second.timestamp()[1] + 30_000, 10_000) == at_ms
    assert users_of(relayed(second)) == USER


def test_hop_does_not_change_what_it_was_given(store: Store) -> None:
    waiting = store(scheduled(message(delay_level=3)))
    envelope = decode(waiting.headers(), trusted=True)
    before, headers = envelope.copy(), list(waiting.headers())
    delivered(waiting, envelope, NAMES)
    hopped(waiting, envelope, NAMES, deliver_at_ms=1, partition=0)
    retried_target(waiting, envelope, NAMES, due_ms=1, partition=0)
    parked(waiting, NAMES, "r")
    assert envelope == before
    assert waiting.headers() == headers


def test_record_without_identity_gets_its_own_coordinates_at_its_first_hop(foreign: Foreign) -> None:
    record = foreign([("REAL_TOPIC", b"orders")], topic="SCHEDULE_TOPIC_XXXX", partition=2, offset=9)
    envelope = decode(record.headers(), trusted=True)
    for outgoing in (
        delivered(record, envelope, NAMES),
        hopped(record, envelope, NAMES, deliver_at_ms=1, partition=0),
        retried_target(record, envelope, NAMES, due_ms=1, partition=0),
        parked(record, NAMES, "r"),
    ):
        assert texts_of(outgoing)["UNIQ_KEY"] == "SCHEDULE_TOPIC_XXXX/2/9"
    assert texts_of(delivered(record, envelope, NAMES))["BORN_TIMESTAMP"] == str(NOW_MS)


def test_record_without_timestamp_gets_no_birth(foreign: Foreign) -> None:
    record = foreign([])
    record.timestamp_type = 0
    assert "BORN_TIMESTAMP" not in names_of(sent_back(record))


def test_delivery_needs_a_legal_target(foreign: Foreign) -> None:
    record = foreign([], topic="SCHEDULE_TOPIC_XXXX")
    with pytest.raises(MalformedRecordError) as caught:
        delivered(record, Envelope(), NAMES)
    assert caught.value.reason == "missing-header:REAL_TOPIC"
    for topic in ("", "a b", "%RETRY%", "%RETRY%DEFAULT_CONSUMER", "%RETRY%\udcff", "%RETRY%" + "x" * 256, "x" * 250):
        with pytest.raises(MalformedRecordError) as caught:
            delivered(record, Envelope(real_topic=topic), NAMES)
        assert caught.value.reason == "bad-name:REAL_TOPIC"


numbers = st.sampled_from([0, 1, 2**31 - 1])
longs = st.sampled_from([0, 1, 2**63 - 1])
any_text = st.sampled_from(["", "orders", "%RETRY%g", "%RETRY%", "a b", "\udcff", "x" * 1_000])
hostile = st.builds(
    Envelope,
    real_topic=any_text,
    real_qid=st.none() | numbers,
    delay_ms=st.none() | longs,
    target_tries=st.none() | numbers,
    reconsume_times=st.none() | numbers,
    uniq_key=st.none() | any_text,
    consumer_group=st.none() | any_text,
    retry_topic=st.none() | any_text,
    replay_count=st.none() | numbers,
)


@given(hostile)
def test_no_well_formed_record_makes_a_hop_fail_but_by_its_names(envelope: Envelope) -> None:
    record = Stored(OutgoingRecord("SCHEDULE_TOPIC_XXXX", 0, None, None, encode(envelope)))
    assert decode(record.headers(), trusted=True) == envelope
    at_ms = due_ms(envelope, NOW_MS, 1_000)
    parked(record, NAMES, "r")
    for outgoing in (
        hopped(record, envelope, NAMES, deliver_at_ms=at_ms, partition=0),
        retried_target(record, envelope, NAMES, due_ms=at_ms, partition=0),
        sent_back(record, times=2**31, trusted=True),
        died(record, times=2**31, trusted=True),
    ):
        decode(outgoing.headers, trusted=True)
    for make in (
        lambda: delivered(record, envelope, NAMES),
        lambda: redriven(record, NAMES, replay_id="r"),
        lambda: redriven(record, NAMES, replay_id="r", to_source=True),
    ):
        try:
            make()
        except MalformedRecordError as error:
            assert error.reason.startswith(("bad-name:", "missing-header:"))  # noqa: PT017  # it need not be raised


def test_delivery_to_a_source_topic_carries_nothing_that_is_not_read_there(foreign: Foreign) -> None:
    headers = [
        ("REAL_TOPIC", b"orders"),
        ("RECONSUME_TIMES", b"3"),
        ("CONSUMER_GROUP", b"g"),
        ("CLOCK", b"1"),
        ("x", b""),
    ]
    outgoing = relayed(foreign(headers, topic="SCHEDULE_TOPIC_XXXX"))
    assert names_of(outgoing) == {"UNIQ_KEY", "BORN_TIMESTAMP", "HOP_ID"}
    assert users_of(outgoing) == [("x", b"")]


def test_target_that_does_not_take_it_is_tried_again_and_the_due_time_kept(store: Store) -> None:
    waiting = store(scheduled(message(delay_level=3)), offset=4)
    envelope = decode(waiting.headers(), trusted=True)
    at_ms = NOW_MS + 10_000
    once = store(retried_target(waiting, envelope, NAMES, due_ms=at_ms, partition=1), offset=5)
    assert texts_of(once.stored)["TARGET_TRIES"] == "1"
    assert texts_of(once.stored)["DELIVER_AT_MS"] == str(at_ms)
    assert "DELAY_MS" not in names_of(once.stored)
    twice = retried_target(once, decode(once.headers(), trusted=True), NAMES, due_ms=at_ms, partition=2)
    assert texts_of(twice)["TARGET_TRIES"] == "2"
    assert texts_of(twice)["DELIVER_AT_MS"] == str(at_ms)
    assert names_of(relayed(store(twice))) == IDENTITY | {"HOP_ID"}


def test_probe_carries_the_clock_header_alone() -> None:
    probe = clock_probe(NAMES, partition=3)
    assert probe == OutgoingRecord("SCHEDULE_TOPIC_XXXX", 3, None, None, [("CLOCK", b"1")])


def test_parked_record_keeps_all_it_was(foreign: Foreign) -> None:
    headers = [
        ("SHIM", b"9"),
        ("DELAY_MS", b"x"),
        ("DELAY_MS", None),
        ("HOP_ID", b"?"),
        ("a", b"\xff"),
        ("PARK_REASON", b"o"),
    ]
    outgoing = parked(foreign(headers, topic="SCHEDULE_TOPIC_XXXX", key=None, value=b""), NAMES, "bad-number:DELAY_MS")
    assert (outgoing.topic, outgoing.partition, outgoing.key, outgoing.value) == ("rmq.parked", None, None, b"")
    assert outgoing.headers == [
        ("UNIQ_KEY", b"SCHEDULE_TOPIC_XXXX/2/7"),
        ("HOP_ID", b"SCHEDULE_TOPIC_XXXX/2/7"),
        ("PARK_REASON", b"bad-number:DELAY_MS"),
        ("PARK_FROM", b"SCHEDULE_TOPIC_XXXX/2/7"),
        ("SHIM", b"9"),
        ("DELAY_MS", b"x"),
        ("DELAY_MS", None),
        ("a", b"\xff"),
    ]


@given(
    content, content, st.lists(st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=6)), max_size=8), st.text()
)
def test_anything_can_be_parked(key: bytes | None, value: bytes | None, headers: list[Header], reason: str) -> None:
    outgoing = parked(Stored(OutgoingRecord("t", 0, key, value, headers)), NAMES, reason)
    assert (outgoing.key, outgoing.value) == (key, value)
    for name, _ in outgoing.headers:
        name.encode()
        assert not any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in name)
    replaced = {"HOP_ID", "PARK_REASON", "PARK_FROM"}
    kept = [value for name, value in headers if name not in replaced]
    assert [value for _, value in outgoing.headers[len(outgoing.headers) - len(kept) :]] == kept


# --- failures --------------------------------------------------------------------------------------------------------


def test_asked_level_and_delay_replace_the_default(foreign: Foreign) -> None:
    by_level = sent_back(foreign(), times=4, level=1)
    assert (by_level.partition, texts_of(by_level)["DELAY"], texts_of(by_level)["DELAY_MS"]) == (0, "1", "1000")
    by_delay = sent_back(foreign(), times=4, delay_ms=45_000, lane=1)
    assert (by_delay.partition, texts_of(by_delay)["DELAY_MS"]) == (35, "45000")
    assert "DELAY" not in names_of(by_delay)
    assert sent_back(foreign(), times=4).partition == 5
    assert sent_back(foreign(), times=400).partition == 17
    assert sent_back(foreign(), level=99).partition == 17


def test_empty_table_delays_retries_by_a_second(foreign: Foreign) -> None:
    outgoing = retry(
        foreign(),
        NAMES,
        DelayLevels.parse(" "),
        group="g",
        trusted=False,
        failure=FAILURE,
        reconsume_times=1,
        level=None,
        delay_ms=None,
        lane=0,
    )
    assert texts_of(outgoing)["DELAY_MS"] == "1000"
    assert outgoing.partition == 27


@pytest.mark.parametrize(
    "wrong", [{"times": 0}, {"level": 0}, {"level": -1}, {"delay_ms": -1}, {"level": 1, "delay_ms": 1}]
)
def test_retry_that_makes_no_sense_is_refused(foreign: Foreign, wrong: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        sent_back(foreign(), **wrong)


def test_forged_counts_and_origins_on_a_source_topic_are_the_users_own(foreign: Foreign) -> None:
    forged = [
        ("RECONSUME_TIMES", b"9"),
        ("ORIGIN_MESSAGE_ID", b"a/0/0"),
        ("REAL_TOPIC", b"payroll"),
        ("DELAY_MS", b"x"),
    ]
    outgoing = sent_back(foreign(forged))
    texts = texts_of(outgoing)
    assert (texts["RECONSUME_TIMES"], texts["ORIGIN_MESSAGE_ID"]) == ("1", "orders/2/7")
    assert (texts["REAL_TOPIC"], texts["DELAY_MS"]) == ("%RETRY%payments", "10000")
    assert users_of(outgoing) == [(f"USER.{name}", value) for name, value in forged]


def test_malformed_retry_record_makes_no_hop_but_parks(foreign: Foreign) -> None:
    record = foreign([("RECONSUME_TIMES", b"x")], topic="rmq.retry.payments")
    with pytest.raises(MalformedRecordError) as caught:
        sent_back(record, trusted=True)
    assert caught.value.reason == "bad-number:RECONSUME_TIMES"
    assert texts_of(parked(record, NAMES, caught.value.reason))["PARK_FROM"] == "rmq.retry.payments/2/7"


def test_record_that_was_put_into_the_retry_topic_by_hand_has_its_origin_there(foreign: Foreign) -> None:
    outgoing = sent_back(foreign(topic="rmq.retry.payments"), trusted=True)
    texts = texts_of(outgoing)
    assert (texts["RETRY_TOPIC"], texts["ORIGIN_MESSAGE_ID"]) == ("%RETRY%payments", "rmq.retry.payments/2/7")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * 2_000, "x" * 1_024),
        ("é" * 513, "é" * 512),
        ("a" + "é" * 600, "a" + "é" * 511),
        ("支" * 400, "支" * 341),
        ("", ""),
        ("\ud800", "\\ud800"),
        ("line\nline\x00", "line\nline\x00"),
    ],
)
def test_text_of_a_failure_is_cut_at_a_whole_character(foreign: Foreign, text: str, kept: str) -> None:
    outgoing = sent_back(foreign(), failure=Failure("E" * 500, text, 1))
    assert texts_of(outgoing)["FAIL_TEXT"] == kept
    assert texts_of(outgoing)["FAIL_CLASS"] == "E" * 200


@pytest.mark.parametrize("text_bytes", [0, 100, 600, 1_500, 6_000])
@pytest.mark.parametrize("stack", [b"", b"line\n" * 2, b"line\n" * 400, b"x" * 5_000, b"f" * 2_047 + b"\n"])
def test_no_hop_adds_more_than_the_promised_4_kib(
    foreign: Foreign, store: Store, stack: bytes, text_bytes: int
) -> None:
    group = "é" * 127
    bare = foreign(topic="t" * 249, partition=2**31 - 1, offset=2**63 - 1)
    failure = Failure("é" * 300, "é" * (text_bytes // 2), 2**63 - 1, stack_bytes=stack)
    waiting = sent_back(bare, failure=failure, group=group, times=2**31 - 1)
    waiting.headers += encode(Envelope(replay_id="r" * 64, replay_count=2**31 - 1, target_tries=2**31 - 1))
    waiting.headers += encode(Envelope(max_reconsume_times=2**31 - 1))
    largest = parked(store(waiting, partition=2**31 - 1, offset=2**63 - 1), NAMES, "r" * 1_000)
    plain = OutgoingRecord(largest.topic, None, bare.key(), bare.value(), [])
    assert record_size_bytes(largest) - record_size_bytes(plain) <= MAX_SHIM_HEADERS_BYTES


def test_stack_trace_is_written_as_a_whole_where_there_is_room(foreign: Foreign, store: Store) -> None:
    stack = b"line\n" * 400  # 2,000 bytes
    waiting = sent_back(foreign(), failure=replace(FAILURE, stack_bytes=stack))
    assert dict(waiting.headers)["FAIL_STACK"] == stack
    arrived = delivered(store(waiting), decode(waiting.headers, trusted=True), NAMES)
    assert dict(arrived.headers)["FAIL_STACK"] == stack
    again = sent_back(store(arrived), trusted=True, times=2, failure=FAILURE)
    assert "FAIL_STACK" not in dict(again.headers), "it belongs to the failure before"


def test_stack_trace_is_cut_to_its_last_whole_lines(foreign: Foreign) -> None:
    lines = [b"line %04d of the trace: \xc3\xa9\n" % number for number in range(200)]
    short = dict(sent_back(foreign(), failure=replace(FAILURE, stack_bytes=b"".join(lines))).headers)["FAIL_STACK"]
    assert short is not None
    assert 2_048 - len(lines[0]) <= len(short) <= 2_048
    assert b"".join(lines).endswith(short)
    assert short.startswith(b"line ")
    long_text = replace(FAILURE, text="x" * 1_024, stack_bytes=b"".join(lines))
    shorter = dict(sent_back(foreign(), failure=long_text).headers)["FAIL_STACK"]
    assert shorter is not None
    assert 1_000 < len(shorter) < 1_700


def test_tag_and_keys_of_the_sender_take_no_room_from_a_stack_trace(foreign: Foreign) -> None:
    stack = b"line\n" * 400
    headers: list[Header] = [("TAGS", b"t" * 5_000), ("KEYS", b"k" * 5_000)]
    assert dict(sent_back(foreign(headers), failure=replace(FAILURE, stack_bytes=stack)).headers)["FAIL_STACK"] == stack


def test_stack_trace_is_left_out_beside_a_forged_id(foreign: Foreign) -> None:
    outgoing = sent_back(foreign([("UNIQ_KEY", b"u" * 9_000)]), failure=replace(FAILURE, stack_bytes=b"line\n"))
    assert "FAIL_STACK" not in dict(outgoing.headers)


def test_stack_trace_stays_with_the_group_and_does_not_reach_the_source(foreign: Foreign, store: Store) -> None:
    failure = replace(FAILURE, stack_bytes=b"line\n")
    letter = store(died(foreign(topic="rmq.retry.payments"), times=17, trusted=True, failure=failure))
    assert dict(redriven(letter, NAMES, replay_id="r").headers)["FAIL_STACK"] == b"line\n"
    to_source = redriven(letter, NAMES, replay_id="r", to_source=True)
    assert "FAIL_STACK" not in dict(to_source.headers)
    by_reference = dead_letter_by_reference(
        foreign(value=b"x"), NAMES, group="payments", trusted=False, failure=failure, reconsume_times=1
    )
    assert dict(by_reference.headers)["FAIL_STACK"] == b"line\n"


def test_dead_letter_at_the_first_delivery(foreign: Foreign) -> None:
    outgoing = died(foreign([("DELAY", b"1")], value=None), times=1, trusted=False)
    assert outgoing.value is None
    assert names_of(outgoing) == FAILED | {"SHIM", "UNIQ_KEY", "BORN_TIMESTAMP", "HOP_ID"}
    assert users_of(outgoing) == [("USER.DELAY", b"1")]


def test_dead_letter_by_reference_says_where_what_and_why_without_the_value(store: Store) -> None:
    value = b"x" * 100_000
    record = store(sent(Message("orders", value, key="k", tag="t", properties=USER)), offset=4)
    outgoing = dead_letter_by_reference(
        record, NAMES, group="payments", trusted=False, failure=FAILURE, reconsume_times=1
    )
    digest = hashlib.sha256(value).hexdigest()
    assert (outgoing.topic, outgoing.key, outgoing.value) == ("rmq.dlq.payments", b"k", None)
    envelope = decode(outgoing.headers, trusted=True)
    assert value_reference(envelope) == ValueReference(digest, 100_000)
    assert envelope.fail_text == f"[by reference: sha256={digest} size_bytes=100000] no such customer"
    assert (envelope.origin_message_id, envelope.hop_id, envelope.fail_class) == (
        "orders/0/4",
        "orders/0/4",
        "ValueError",
    )
    assert (envelope.tags, users_of(outgoing)) == ("t", USER)


def test_a_retry_waits_no_longer_than_a_worker_lets_it(foreign: Foreign) -> None:
    outgoing = retry(
        foreign(), NAMES, LEVELS, group="g", trusted=False, failure=FAILURE, reconsume_times=1, level=None,
        delay_ms=2**63 - 1, lane=0,
    )  # fmt: skip
    assert texts_of(outgoing)["DELAY_MS"] == str(40 * 86_400_000)


@pytest.mark.parametrize("what", ["key", "headers", "tags", "uniq_key"])
def test_dead_letter_by_reference_always_fits(foreign: Foreign, what: str) -> None:
    huge = b"y" * 1_000_000
    headers: list[Header] = [
        ("TAGS", huge if what == "tags" else b"t"),
        ("UNIQ_KEY", huge if what == "uniq_key" else b"u"),
    ]
    headers += [("x", huge if what == "headers" else b"1")]
    record = foreign(headers, key=huge if what == "key" else b"k", value=huge)
    outgoing = dead_letter_by_reference(record, NAMES, group="g", trusted=False, failure=FAILURE, reconsume_times=1)
    assert record_size_bytes(outgoing) < 25_000
    texts = texts_of(outgoing)
    assert texts["UNIQ_KEY"] == ("orders/2/7" if what == "uniq_key" else "u")
    assert texts["ORIGIN_MESSAGE_ID"] == "orders/2/7"


@pytest.mark.parametrize(
    "header", ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REPLAY_ID", "UNIQ_KEY", "FAIL_CLASS", "FAIL_TEXT", "TAGS", "CLOCK"]
)
def test_dead_letter_by_reference_fits_also_where_its_history_was_forged(foreign: Foreign, header: str) -> None:
    record = foreign([(header, b"y" * 1_000_000)], topic="rmq.retry.g", value=None)
    outgoing = dead_letter_by_reference(record, NAMES, group="g", trusted=True, failure=FAILURE, reconsume_times=1)
    assert record_size_bytes(outgoing) < 25_000
    texts = texts_of(outgoing)
    assert texts["RETRY_TOPIC"] == "%RETRY%g"
    assert texts["ORIGIN_MESSAGE_ID"] == texts["HOP_ID"]


def test_dead_letter_by_reference_fits_also_with_very_many_headers(foreign: Foreign) -> None:
    record = foreign([("", b"")] * 200_000)
    outgoing = dead_letter_by_reference(record, NAMES, group="g", trusted=False, failure=FAILURE, reconsume_times=1)
    assert record_size_bytes(outgoing) < 25_000


def test_dead_letter_by_reference_of_no_value(foreign: Foreign) -> None:
    record = foreign(value=None)
    outgoing = dead_letter_by_reference(record, NAMES, group="g", trusted=False, failure=FAILURE, reconsume_times=1)
    assert value_reference(decode(outgoing.headers, trusted=True)) == ValueReference(None, None)


def test_ordinary_dead_letter_is_no_reference() -> None:
    assert value_reference(Envelope(fail_text="[by reference: x]")) is None
    assert value_reference(Envelope()) is None


# --- redrive ---------------------------------------------------------------------------------------------------------


def dead(store: Store, foreign: Foreign) -> Any:
    source = foreign(
        [("REAL_TOPIC", b"mine"), ("REPLAY_ID", b"mine"), ("HOP_ID", b"mine"), ("x", None), ("TAGS", b"t")]
    )
    return store(live(source, store, 2)[-1], offset=11)


def test_redrive_gives_the_group_alone_another_run(store: Store, foreign: Foreign) -> None:
    outgoing = redriven(dead(store, foreign), NAMES, replay_id="r-1")
    assert (outgoing.topic, outgoing.key, outgoing.value) == ("rmq.retry.payments", b"k", b"v")
    texts = texts_of(outgoing)
    assert (texts["RECONSUME_TIMES"], texts["REPLAY_ID"], texts["REPLAY_COUNT"]) == ("0", "r-1", "1")
    assert (texts["UNIQ_KEY"], texts["ORIGIN_MESSAGE_ID"], texts["RETRY_TOPIC"]) == (
        "orders/2/7",
        "orders/2/7",
        "orders",
    )
    assert (texts["HOP_ID"], texts["CONSUMER_GROUP"]) == ("rmq.dlq.payments/0/11", "payments")
    again = redriven(store(died(store(outgoing), times=1, trusted=True)), NAMES, replay_id="r-2")
    assert (texts_of(again)["REPLAY_ID"], texts_of(again)["REPLAY_COUNT"]) == ("r-2", "2")
    assert users_of(again) == [
        ("USER.REAL_TOPIC", b"mine"),
        ("USER.REPLAY_ID", b"mine"),
        ("USER.HOP_ID", b"mine"),
        ("x", None),
    ]


def test_redrive_to_the_source_gives_the_users_headers_back_under_their_names(store: Store, foreign: Foreign) -> None:
    outgoing = redriven(dead(store, foreign), NAMES, replay_id="r-1", to_source=True)
    assert (outgoing.topic, outgoing.value) == ("orders", b"v")
    assert outgoing.headers == [
        ("UNIQ_KEY", b"orders/2/7"),
        ("TAGS", b"t"),
        ("BORN_TIMESTAMP", b"1700000000000"),
        ("HOP_ID", b"rmq.dlq.payments/0/11"),
        ("REPLAY_ID", b"r-1"),
        ("REPLAY_COUNT", b"1"),
        ("REAL_TOPIC", b"mine"),
        ("x", None),
    ]


def test_redrives_to_the_source_are_counted_although_the_source_topic_is_not_believed(
    store: Store, foreign: Foreign
) -> None:
    record = foreign()
    for count in (b"1", b"2", b"3"):
        outgoing = redriven(dead_again(store, record), NAMES, replay_id="r", to_source=True)
        assert [value for name, value in outgoing.headers if name == "REPLAY_COUNT"] == [count]
        record = store(outgoing)


def dead_again(store: Store, record: Any) -> Any:
    return store(died(record, times=17, trusted=False))


@pytest.mark.parametrize(("forged", "count"), [(b"x", 1), (b"9" * 11, 1), (b"9999999999", 2**31 - 1), (None, 1)])
def test_a_forged_replay_count_harms_nobody(store: Store, foreign: Foreign, forged: bytes | None, count: int) -> None:
    outgoing = redriven(dead_again(store, foreign([("REPLAY_COUNT", forged)])), NAMES, replay_id="r")
    assert texts_of(outgoing)["REPLAY_COUNT"] == str(count)


def test_redrive_to_another_group(store: Store, foreign: Foreign) -> None:
    outgoing = redriven(dead(store, foreign), NAMES, replay_id="r", group="audit")
    assert (outgoing.topic, texts_of(outgoing)["CONSUMER_GROUP"]) == ("rmq.retry.audit", "audit")
    with pytest.raises(ConfigError):
        redriven(dead(store, foreign), NAMES, replay_id="r", group="")


@pytest.mark.parametrize(
    ("to_source", "reason"), [(False, "missing-header:CONSUMER_GROUP"), (True, "missing-header:RETRY_TOPIC")]
)
def test_redrive_of_a_letter_that_does_not_say_where_to(foreign: Foreign, to_source: bool, reason: str) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        redriven(foreign(topic="rmq.dlq.g"), NAMES, replay_id="r", to_source=to_source)
    assert caught.value.reason == reason


def test_redrive_of_a_letter_by_reference_has_nothing_to_send(store: Store, foreign: Foreign) -> None:
    letter = dead_letter_by_reference(foreign(), NAMES, group="g", trusted=False, failure=FAILURE, reconsume_times=1)
    with pytest.raises(MalformedRecordError, match="orders/2/7") as caught:
        redriven(store(letter), NAMES, replay_id="r")
    assert caught.value.reason == "by-reference"


def test_dead_tombstone_is_redriven(store: Store, foreign: Foreign) -> None:
    letter = store(died(foreign(value=None), times=1, trusted=False))
    assert redriven(letter, NAMES, replay_id="r").value is None


# --- size ------------------------------------------------------------------------------------------------------------


@given(content, content, foreign_headers)
def test_size_is_an_upper_bound_of_what_the_record_holds(
    key: bytes | None, value: bytes | None, headers: list[Header]
) -> None:
    held = len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(body or b"") for name, body in headers)
    size = record_size_bytes(OutgoingRecord("t", None, key, value, headers))
    assert held + 61 <= size <= held + 61 + 36 + 10 * len(headers)
