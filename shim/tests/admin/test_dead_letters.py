"""Views of records, counts by cause, and traces: they show what can be read and report what is missing."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message as Record
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.admin.cause_counts import by_cause
from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.admin.record_view import RecordView, time_text
from rocketshim.admin.redrive import redriven_parked
from rocketshim.admin.trace import Missing, life, step_text
from rocketshim.errors import MessageError, TopicMissingError
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, Envelope, TopicNames, encode
from rocketshim_topics.causes import fingerprint
from rocketshim_topics.hops import parked
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.redrive_plan import Planner, RedriveRules

Headers = list[tuple[str, bytes | None]]


def record(
    topic: str, offset: int, headers: Headers, *, value: bytes | None = b"body", stored_ms: int = 1_000
) -> Record:
    return Record(
        topic=topic, partition=0, offset=offset, key=b"k", value=value, headers=headers, timestamp=(2, stored_ms)
    )


def entry(topic: str, offset: int, stored_ms: int, **fields: object) -> RecordView:
    headers = encode(Envelope(shim=1, uniq_key="m1", **fields))  # type: ignore[arg-type]
    return RecordView.of(record(topic, offset, headers, stored_ms=stored_ms))


def test_a_view_has_the_decoded_headers() -> None:
    made = entry("dlq", 3, 5, fail_class="Timeout", fail_text="no", reconsume_times=17, user=(("a", b"1"), ("a", None)))
    assert (made.id, made.at, made.cause) == ("m1", "dlq/0/3", "Timeout")
    assert made.user_headers == [("a", b"1"), ("a", None)]
    shown = made.as_json()
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["failures"], shown["headers"], shown["body"]) == (17, [["a", "1"], ["a", None]], "body")


def test_a_malformed_record_is_shown_with_its_reason_and_does_not_fail() -> None:
    made = RecordView.of(record("dlq", 0, [("RECONSUME_TIMES", b"x"), ("mine", b"1")]))
    assert made.malformed is not None
    assert made.id == "dlq/0/0"
    assert made.user_headers == [("mine", b"1")]


def test_a_malformed_record_is_found_by_its_id_in_the_history_of_its_message() -> None:
    names = TopicNames()
    broken: Headers = [("UNIQ_KEY", b"m1"), ("DELAY_MS", b"soon"), ("REAL_TOPIC", b"orders")]
    schedule = RecordView.of(record(names.schedule, 4, broken))
    out = parked(record(names.schedule, 4, broken), names, "bad-number:DELAY_MS")
    parked_record = record(names.parked, 0, out.headers, stored_ms=2_000)
    hops = life(
        [schedule, RecordView.of(parked_record)],
        schedule=names.schedule, levels=DelayLevels.parse("1s"), low_offset=lambda *_: 0,
    )  # fmt: skip
    assert [hop.id for hop in hops if isinstance(hop, RecordView)] == ["m1", "m1"]
    assert [step_text(hop, names) for hop in hops if isinstance(hop, RecordView)] == [
        "malformed: bad-number:DELAY_MS",
        "parked: bad-number:DELAY_MS",
    ]
    opened = RecordView.opened(Decoder(names, names.parked).open(parked_record))
    assert (opened.id, opened.envelope.hop_id) == ("m1", f"{names.schedule}/0/4")


@pytest.mark.parametrize("topic", ["rmq.dlq.g", "orders-dlt"])
def test_a_record_whose_headers_cannot_be_read_is_shown_as_such_and_cannot_be_sent(
    unreadable: Callable[[Any], Any], topic: str
) -> None:
    message = unreadable(record("dlq", 0, []))
    letter = Decoder(TopicNames(), topic).open(message)
    assert letter.malformed == "bad-header-key"
    shown = RecordView.opened(letter)
    assert (shown.malformed, shown.id) == ("bad-header-key", "dlq/0/0")
    planner = Planner(topic, RedriveRules(), RedriveLog(topic), {"orders"})
    planner.add(message, letter.envelope, malformed=letter.malformed, opened=letter.record)
    assert [each.reason for each in planner.plan(cluster_id="", created_ms=0, choice={}).held_back] == [
        "malformed:bad-header-key"
    ]
    with pytest.raises(MessageError):
        redriven_parked(message, TopicNames(), "plan.0.0")


@pytest.mark.parametrize(
    ("headers", "due_ms"),
    [
        ([("DELIVER_AT_MS", b"900")], 900),
        ([("DELIVER_AT_MS", b"900"), ("DELAY_MS", b"7")], 900),
        ([("DELIVER_AT_MS", b"9" * 19)], 2**63 - 1),
        ([("DELIVER_AT_MS", b"soon")], 1_000),
        ([("DELAY_MS", b"500")], 1_000),  # it has waited in its delay queue
        ([("DELAY_MS", b"500"), ("TIMER_DO", b"SET")], 1_500),  # the log of timers is read immediately
        ([("DELIVER_AT_MS", b"9999"), ("PARK_REASON", b"due-too-late")], 1_000),
        ([], 1_000),
    ],
)
def test_a_parked_record_is_sent_again_with_its_due_time_or_that_of_its_parking(headers: Headers, due_ms: int) -> None:
    there: Headers = [("REAL_TOPIC", b"orders"), ("PARK_FROM", b"s/0/1"), ("REPLAY_ID", b"former.0.0"), *headers]
    out = redriven_parked(record("rmq.parked", 7, there), TopicNames(), "plan.0.7")
    made = dict(out.headers)
    assert (out.topic, made["DELIVER_AT_MS"]) == (TopicNames().schedule, b"%d" % due_ms)
    assert (made["PARK_FROM"], made["HOP_ID"], made["REPLAY_ID"]) == (b"s/0/1", b"rmq.parked/0/7", b"plan.0.7")
    assert len(made) == len(out.headers), "no header twice"
    assert not {"DELAY_MS", "PARK_REASON", "TIMER_DO"} & made.keys()


def test_a_dead_letter_that_refers_to_an_unreadable_record_cannot_be_sent(
    unreadable: Callable[[Any], Any],
) -> None:
    first = unreadable(record("o", 0, []))
    headers: Headers = [("__dlq.errors.topic", b"o"), ("__dlq.errors.partition", b"0"), ("__dlq.errors.offset", b"0")]
    opener = Decoder(TopicNames(), "dlq", fetch=lambda *_: first)
    assert opener.open(record("dlq", 1, headers)).malformed == "bad-header-key"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "(no value)"),
        (b"", ""),
        (b"\xff\xfe", "(2 bytes, not text)"),
        (b"a\x1b[31mb", "a�[31mb"),
        (b"x" * 300, "x" * 199 + "…"),
    ],
)
def test_a_value_is_shown_shortened_and_without_control_characters(value: bytes | None, text: str) -> None:
    assert RecordView.of(record("dlq", 0, [], value=value)).value_text() == text


@given(st.binary() | st.none())
def test_every_value_survives_json(value: bytes | None) -> None:
    json.dumps(RecordView.of(record("dlq", 0, [("h", value)], value=value)).as_json())


def test_times_are_utc_with_milliseconds() -> None:
    assert time_text(1_700_000_000_123) == "2023-11-14 22:13:20.123"
    assert time_text(None) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("timeout after 1500 ms", "timeout after # ms"),
        ("order 123e4567-e89b-12d3-a456-426614174000 unknown", "order # unknown"),
        ("no such customer", "no such customer"),
        ("deadbeef is a word, deadbeef01 an id", "deadbeef is a word, # an id"),
        (None, ""),
    ],
)
def test_a_fingerprint_replaces_numbers_and_ids(text: str | None, expected: str) -> None:
    assert fingerprint(text) == expected


def test_a_fingerprint_of_a_long_hostile_text_is_made_quickly() -> None:
    assert fingerprint("a-" * 1_000_000) == "a-" * 60


def test_causes_are_counted_with_their_first_and_last() -> None:
    counts = by_cause(
        [
            entry("dlq", 0, 30, fail_class="Timeout", fail_text="after 1 ms"),
            entry("dlq", 1, 10, fail_class="Timeout", fail_text="after 22 ms"),
            entry("dlq", 2, 20, fail_class="KeyError", fail_text="'x'"),
        ]
    )
    assert [(each.cause, each.count, len(each.ids)) for each in counts] == [("Timeout", 2, 1), ("KeyError", 1, 1)]
    assert (counts[0].first_ms, counts[0].last_ms, counts[0].sample) == (10, 30, "dlq/0/0")


def test_the_sample_of_a_cause_does_not_depend_on_the_order_of_reading() -> None:
    letters = [entry("dlq", offset, 10, fail_class="Timeout") for offset in range(3)]
    assert [by_cause(each)[0].sample for each in (letters, letters[::-1])] == ["dlq/0/2", "dlq/0/2"]


def lived(
    entries: list[RecordView], low: Callable[[str, int], int] = lambda _topic, _partition: 0
) -> list[RecordView | Missing]:
    return life(entries, schedule="schedule", levels=DelayLevels.parse("1s"), low_offset=low)


def test_a_trace_is_in_order_with_due_times_and_lateness() -> None:
    waits = entry("schedule", 0, 100, delay_ms=500, real_topic="orders")
    arrives = entry("orders", 7, 604, hop_id="schedule/0/0")
    again = entry("schedule", 1, 610, hop_id="orders/0/7", real_topic="%RETRY%g", reconsume_times=1)
    hops = lived([again, arrives, waits, arrives])
    assert [hop.at for hop in hops if isinstance(hop, RecordView)] == [
        "schedule/0/0",
        "orders/0/7",
        "schedule/0/1",
    ]
    assert [(hop.due_ms, hop.late_ms) for hop in hops if isinstance(hop, RecordView)] == [
        (600, None),
        (None, 4),
        (1_610, None),
    ]


def test_a_trace_of_a_named_message_goes_through_the_log_of_timers() -> None:
    named = {"real_topic": "orders", "timer": "o-7"}
    put = entry("rmq.timers", 0, 100, delay_ms=500, timer_do="SET", **named)
    waits = entry("schedule", 0, 105, deliver_at_ms=600, hop_id="rmq.timers/0/0", timer_set_at=0, **named)
    due = entry(
        "rmq.timers", 1, 602, deliver_at_ms=600, hop_id="schedule/0/0", timer_do="FIRE", timer_set_at=0, **named
    )
    arrives = entry("orders", 7, 604, hop_id="rmq.timers/0/1")
    hops = [hop for hop in lived([arrives, due, waits, put]) if isinstance(hop, RecordView)]
    assert [hop.at for hop in hops] == ["rmq.timers/0/0", "schedule/0/0", "rmq.timers/0/1", "orders/0/7"]
    assert [(hop.due_ms, hop.late_ms) for hop in hops] == [(600, None), (600, None), (None, None), (None, 4)]
    assert [step_text(hop, TopicNames()) for hop in hops] == [
        "SET of the timer o-7, waits 500 ms for orders",
        "waits 495 ms for orders",
        "FIRE of the timer o-7; rocketshim timers show orders o-7 tells what it did",
        "delivered, 4 ms after it was due",
    ]
    now = lived([put, entry("orders", 7, 300, hop_id="rmq.timers/0/0")])[-1]
    assert isinstance(now, RecordView)
    assert step_text(now, TopicNames()) == "delivered", "by a NOW, before it was due"


def test_a_trace_of_a_half_message_names_its_producers_and_the_command_for_transactions() -> None:
    half = {"real_topic": "orders", "timer": "tx-1", "timer_asks": "shop"}
    put = entry("rmq.timers", 0, 100, delay_ms=500, timer_do="SET", **half)
    due = entry("rmq.timers", 1, 602, deliver_at_ms=600, timer_do="FIRE", timer_set_at=0, **half)
    steps = [step_text(hop, TopicNames()) for hop in lived([put, due]) if isinstance(hop, RecordView)]
    assert steps == [
        "half message of the producers shop, waits 500 ms for orders",
        "check of the producers shop; rocketshim tx show orders tx-1 tells what it did",
    ]


@pytest.mark.parametrize(
    ("stored_ms", "text"), [(100, "waits 500 ms for orders"), (900, "already due when it was stored, for orders")]
)
def test_a_step_tells_how_long_a_record_waits(stored_ms: int, text: str) -> None:
    (hop,) = lived([entry("schedule", 0, stored_ms, deliver_at_ms=600, real_topic="orders")])
    assert isinstance(hop, RecordView)
    assert step_text(hop, TopicNames()) == text


@pytest.mark.parametrize(("low", "expired"), [(1, True), (0, False)])
def test_a_record_that_was_not_read_is_reported_as_missing(low: int, expired: bool) -> None:
    hops = lived([entry("orders", 7, 604, hop_id="schedule/0/0")], lambda _topic, _partition: low)
    assert hops[0] == Missing("schedule/0/0", expired)
    assert isinstance(hops[1], RecordView)


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        (slice(1, None), [("orders/0/7", None)]),
        (slice(2, None), [("orders/0/7", None), ("schedule/0/0", None)]),
        (slice(4, None), [("orders/0/7", None), ("schedule/0/1", (1, 1))]),
        (slice(5, None), [("orders/0/7", None), ("retry/0/1", (1, 2))]),
    ],
)
def test_records_deleted_by_retention_are_reported_as_far_as_the_others_name_them(
    kept: slice, missing: list[tuple[str, tuple[int, int] | None]]
) -> None:
    """A message failed three times, and retention has deleted some of its records."""
    origin = {"origin_message_id": "orders/0/7"}
    records = [
        entry("orders", 7, 100),
        entry("schedule", 0, 200, hop_id="orders/0/7", real_topic="%RETRY%g", reconsume_times=1, **origin),
        entry("retry", 0, 300, hop_id="schedule/0/0", reconsume_times=1, **origin),
        entry("schedule", 1, 400, hop_id="retry/0/0", real_topic="%RETRY%g", reconsume_times=2, **origin),
        entry("retry", 1, 500, hop_id="schedule/0/1", reconsume_times=2, **origin),
        entry("dlq", 0, 600, hop_id="retry/0/1", reconsume_times=3, **origin),
    ]
    found = lived(records[kept], lambda _topic, _partition: 99)
    reported = [each for each in found if isinstance(each, Missing)]
    assert [(each.at, each.attempts) for each in reported] == missing
    assert all(each.expired for each in reported)
    assert len([each for each in found if isinstance(each, RecordView)]) == len(records[kept])


def test_a_record_stands_behind_the_one_that_it_was_made_from_though_their_clocks_differ() -> None:
    retry, dead = entry("retry", 0, 1_001), entry("dlq", 7, 1_000, hop_id="retry/0/0")
    assert [step.topic for step in lived([dead, retry]) if isinstance(step, RecordView)] == ["retry", "dlq"]


def test_the_trace_of_an_orderly_dead_letter_has_no_missing_records() -> None:
    """An orderly consumer retries a message in place, so there are no records of its attempts."""
    first = entry("orders", 7, 100)
    dead = entry("dlq", 0, 600, hop_id="orders/0/7", origin_message_id="orders/0/7", reconsume_times=17)
    assert [type(each) for each in lived([first, dead])] == [RecordView, RecordView]
    assert lived([dead])[0] == Missing("orders/0/7", expired=False)


def reader(kafka: InMemoryKafka) -> TopicReader:
    return TopicReader("memory:1", clients=Clients(kafka.consumer, kafka.producer))


@pytest.fixture
def kafka() -> InMemoryKafka:
    cluster = InMemoryKafka(VirtualClock())
    cluster.create_topic("dlq", 2)
    return cluster


def test_reading_stops_at_the_end_and_passes_gaps_and_empty_values(kafka: InMemoryKafka) -> None:
    kafka.append("dlq", b"")
    kafka.skip_offsets("dlq", 0, count=3)
    kafka.append("dlq", None)
    kafka.append("dlq", b"x", partition=1)
    kafka.skip_offsets("dlq", 1, count=1)
    with reader(kafka) as reading:
        found = list(reading.read(["dlq"]))
    assert sorted((message.partition(), message.offset()) for message in found) == [(0, 0), (0, 4), (1, 0)]


def test_reading_an_empty_topic_ends_immediately(kafka: InMemoryKafka) -> None:
    with reader(kafka) as reading:
        assert list(reading.read(["dlq"])) == []


def test_reading_since_a_time_skips_older_records(kafka: InMemoryKafka) -> None:
    kafka.append("dlq", b"old", timestamp_ms=1_000)
    kafka.append("dlq", b"new", timestamp_ms=2_000)
    with reader(kafka) as reading:
        assert [message.value() for message in reading.read(["dlq"], since_ms=1_500)] == [b"new"]


def test_a_record_is_found_by_its_coordinates_if_it_exists(kafka: InMemoryKafka) -> None:
    kafka.append("dlq", b"a")
    kafka.skip_offsets("dlq", 0, count=1)
    kafka.append("dlq", b"b")
    with reader(kafka) as reading:
        assert [None if (found := reading.fetch("dlq", 0, at)) is None else found.value() for at in range(4)] == [
            b"a",
            None,
            b"b",
            None,
        ]


def test_a_partition_beyond_kafkas_numbers_is_missing(kafka: InMemoryKafka) -> None:
    with reader(kafka) as reading, pytest.raises(TopicMissingError, match="there is no partition dlq/2147483648"):
        reading.bounds("dlq", 2**31)


def test_the_error_names_a_missing_topic(kafka: InMemoryKafka) -> None:
    with reader(kafka) as reading, pytest.raises(TopicMissingError, match="nowhere"):
        list(reading.read(["nowhere"]))


def test_a_record_that_was_made_from_no_other_was_sent_and_is_not_called_delivered() -> None:
    assert step_text(entry("orders", 4, 1_000), TopicNames()) == "sent"
    assert step_text(entry("orders", 4, 1_000, hop_id="s/0/1"), TopicNames()) == "delivered"
