"""Headers are read and written by the table; nobody is believed who should not be."""

from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim_topics import Envelope, MalformedRecordError, MessageError, decode, encode
from rocketshim_topics.wire import (
    HEADER_ORDER,
    RESERVED,
    Header,
    headers_shown,
    mark_unreadable,
    own_name,
    read_again,
    read_headers,
    travel_name,
)

FIVE = {"UNIQ_KEY", "TAGS", "KEYS", "BORN_TIMESTAMP", "MAX_RECONSUME_TIMES"}
NUMBERS = {
    "SHIM",
    "REAL_QID",
    "DELAY",
    "DELAY_MS",
    "DELIVER_AT_MS",
    "BORN_TIMESTAMP",
    "RECONSUME_TIMES",
    "FAIL_AT_MS",
} | {
    "MAX_RECONSUME_TIMES",
    "TARGET_TRIES",
    "REPLAY_COUNT",
    "UNHANDLED_SINCE_MS",
    "TARGET_TIMESTAMP_MS",
    "TIMER_SET_AT",
    "TIMER_AT_MOST_MS",
    "TIMER_SINCE_MS",
    "TIMER_ERA",
    "TIMER_ASKED",
}
LONGS = {name for name in NUMBERS if name.endswith("_MS")} | {"BORN_TIMESTAMP", "TIMER_SET_AT"}
TEXTS = RESERVED - NUMBERS

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.none() | st.binary(max_size=10)
any_name = st.one_of(
    st.sampled_from(HEADER_ORDER),
    st.sampled_from(HEADER_ORDER).map(lambda name: f"USER.{name}"),
    st.sampled_from(HEADER_ORDER).map(lambda name: f"USER.USER.{name}"),
    st.sampled_from(["USER.", "USER.%", "USER.%%41", "USER.%USER.TAGS", "a\x00b", "\x9f", "USER.\x01", "%41", "", "é"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.text("USER.%04DELAY\x01", max_size=12),
)
raw_headers = st.lists(st.tuples(any_name, values), max_size=12)
user_headers = st.lists(st.tuples(any_name.map(travel_name), values), max_size=5).map(tuple)


def envelopes() -> st.SearchStrategy[Envelope]:
    kinds: dict[str, st.SearchStrategy[Any]] = {}
    for field, header in zip(fields(Envelope), HEADER_ORDER, strict=False):
        largest = 2**63 - 1 if header in LONGS else 2**31 - 1
        kinds[field.name] = st.none() | (st.integers(0, largest) if header in NUMBERS else texts)
    kinds["shim"] = st.sampled_from([None, 1])
    kinds["user"] = user_headers
    return st.builds(Envelope, **kinds).filter(lambda each: each.delay_ms is None or each.deliver_at_ms is None)


@given(envelopes())
def test_what_is_encoded_is_decoded_to_the_same(envelope: Envelope) -> None:
    headers = encode(envelope)
    assert decode(headers, trusted=True) == envelope
    ours = [name for name, _ in headers[: len(headers) - len(envelope.user)]]
    assert ours == [name for name in HEADER_ORDER if name in ours], "in the order of the table"
    assert tuple(headers[len(ours) :]) == envelope.user


@given(envelopes(), st.randoms())
def test_readers_accept_any_order_of_the_shims_headers(envelope: Envelope, random: Any) -> None:
    headers = encode(envelope)
    ours = [header for header in headers if header[0] in RESERVED]
    random.shuffle(ours)
    shuffled: list[Header] = list(envelope.user)
    for header in ours:
        shuffled.insert(random.randint(0, len(shuffled)), header)
    assert decode(shuffled, trusted=True) == envelope


def test_copy_is_equal_and_separate() -> None:
    envelope = Envelope(tags="a", user=(("x", None),))
    other = envelope.copy()
    assert other == envelope
    other.tags = "b"
    assert envelope.tags == "a"


@pytest.mark.parametrize("headers", [None, []])
@pytest.mark.parametrize("trusted", [True, False])
def test_no_headers_are_an_empty_envelope(headers: list[Header] | None, trusted: bool) -> None:
    assert decode(headers, trusted=trusted) == Envelope()


@pytest.mark.parametrize("name", HEADER_ORDER)
def test_header_twice_is_malformed_on_our_topics(name: str) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode([(name, b"1"), ("x", None), (name, b"1")], trusted=True)
    assert caught.value.reason == f"duplicate-header:{name}"


@pytest.mark.parametrize("name", HEADER_ORDER)
def test_header_without_value_is_malformed_on_our_topics(name: str) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode([(name, None)], trusted=True)
    assert caught.value.reason == f"null-header:{name}"


BAD_NUMBERS = [b"", b"-1", b"+1", b" 1", b"1 ", b"1_0", b"1e3", b"0x1", b"1.0", "١٢".encode(), b"\xff", b"1" * 20]


@pytest.mark.parametrize("name", sorted(NUMBERS))
@pytest.mark.parametrize("value", [*BAD_NUMBERS, b"9223372036854775808"])
def test_bad_number_is_malformed_on_our_topics(name: str, value: bytes) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode([(name, value)], trusted=True)
    assert caught.value.reason == f"bad-number:{name}"


@pytest.mark.parametrize("name", sorted(NUMBERS - LONGS))
def test_counts_end_at_31_bits(name: str) -> None:
    with pytest.raises(MalformedRecordError):
        decode([(name, b"2147483648")], trusted=True)


def test_longest_number_with_leading_zeros_is_read() -> None:
    assert decode([("DELAY_MS", b"0000000000000000010")], trusted=True).delay_ms == 10
    assert decode([("DELAY_MS", b"9223372036854775807")], trusted=True).delay_ms == 2**63 - 1


@pytest.mark.parametrize("key", ["a\x00b", "\n", "a\x1f", "\x7f", "a\x80", "\x9fx"])
def test_header_name_with_control_characters_is_malformed_on_our_topics(key: str) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode([(key, b"")], trusted=True)
    assert caught.value.reason == "bad-header-key"


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "\u00a0", "\u2028x", "支付"])
def test_any_other_header_name_is_a_users(key: str) -> None:
    assert decode([(key, b"1")], trusted=True).user == ((key, b"1"),)


@pytest.mark.parametrize("version", [b"0", b"2", b"99"])
def test_version_that_is_not_known_is_malformed(version: bytes) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode([("SHIM", version)], trusted=True)
    assert caught.value.reason == "unknown-version"


def test_two_due_times_are_malformed() -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode([("DELAY_MS", b"1"), ("DELIVER_AT_MS", b"2")], trusted=True)
    assert caught.value.reason == "two-due-times"


@pytest.mark.parametrize("trusted", [True, False])
def test_text_that_is_not_utf8_survives(trusted: bool) -> None:
    envelope = decode([("TAGS", b"\xff\xfea")], trusted=trusted)
    assert ("TAGS", b"\xff\xfea") in encode(envelope)


@given(raw_headers)
def test_nothing_is_malformed_on_a_source_topic_and_nothing_is_lost(headers: list[Header]) -> None:
    envelope = decode(headers, trusted=False)
    read = {
        header.name
        for header in fields(Envelope)
        if header.name != "user" and getattr(envelope, header.name) is not None
    }
    assert read <= {"uniq_key", "tags", "keys", "born_timestamp_ms", "max_reconsume_times", "hop_id"}
    given_back = [(own_name(name), value) for name, value in envelope.user]
    missing = list(headers)
    for header in given_back:
        missing.remove(header)
    assert len(missing) == len(read)
    assert {name for name, _ in missing} <= FIVE | {"HOP_ID"}


@given(raw_headers)
def test_what_was_read_on_a_source_topic_is_well_formed_on_ours(headers: list[Header]) -> None:
    envelope = decode(headers, trusted=False)
    assert decode(encode(envelope), trusted=True) == envelope


def test_first_of_each_wins_on_a_source_topic() -> None:
    headers: list[Header] = [
        ("TAGS", b"a"),
        ("x", b"1"),
        ("TAGS", b"b"),
        ("BORN_TIMESTAMP", b"yesterday"),
        ("KEYS", None),
    ]
    envelope = decode([*headers, ("BORN_TIMESTAMP", b"5")], trusted=False)
    assert envelope.tags == "a"
    assert envelope.born_timestamp_ms is None, "the first one was no number"
    assert envelope.keys is None
    assert envelope.user == (
        ("x", b"1"),
        ("USER.TAGS", b"b"),
        ("USER.BORN_TIMESTAMP", b"yesterday"),
        ("USER.KEYS", None),
        ("USER.BORN_TIMESTAMP", b"5"),
    )


@pytest.mark.parametrize("name", sorted(RESERVED - FIVE))
def test_any_other_reserved_name_on_a_source_topic_is_the_users_own(name: str) -> None:
    envelope = decode([(name, b"x"), (name, None)], trusted=False)
    assert envelope == Envelope(user=((f"USER.{name}", b"x"), (f"USER.{name}", None)))


def test_worker_s_mark_on_a_source_topic_is_read_and_not_the_users() -> None:
    envelope = decode([("HOP_ID", b"SCHEDULE_TOPIC_XXXX/2/4"), ("HOP_ID", b"a/1/2")], trusted=False)
    assert envelope == Envelope(hop_id="SCHEDULE_TOPIC_XXXX/2/4", user=(("USER.HOP_ID", b"a/1/2"),))


@given(any_name)
def test_name_travels_and_comes_back(name: str) -> None:
    travelling = travel_name(name)
    assert own_name(travelling) == name
    assert travelling not in RESERVED
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in travelling)


@given(any_name, any_name)
def test_two_names_never_travel_as_one(one: str, other: str) -> None:
    assert (travel_name(one) == travel_name(other)) == (one == other)


def test_names_that_cannot_be_mistaken_travel_unchanged() -> None:
    for name in ("traceparent", "user.id", "USER.id", "USER.", "a%01b", "X-TAGS", ""):
        assert travel_name(name) == name


def test_name_of_many_prefixes_is_no_trap() -> None:
    name = "USER." * 10_000 + "TAGS"
    assert own_name(travel_name(name)) == name


@pytest.mark.parametrize(
    "envelope", [Envelope(delay_ms=-1), Envelope(reconsume_times=2**31), Envelope(born_timestamp_ms=2**63)]
)
def test_number_out_of_range_is_not_written(envelope: Envelope) -> None:
    with pytest.raises(MessageError):
        encode(envelope)


def test_every_reserved_header_is_a_text_or_a_number() -> None:
    assert TEXTS | NUMBERS == RESERVED


# --- reading the headers of a record ---------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [read_headers, read_again])
def test_headers_that_cannot_be_read_are_named_at_every_look(
    unreadable: Callable[[Any], Any], foreign: Callable[..., Any], look: Callable[[Any], Any]
) -> None:
    record = unreadable(foreign())
    for again in (look, read_headers, read_again):
        with pytest.raises(MalformedRecordError, match="orders/2/7") as caught:
            again(record)
        assert caught.value.reason == "bad-header-key"
    assert headers_shown(record) == ()


@pytest.mark.parametrize("ask", [iter, len, bool, dict, lambda headers: headers[0], lambda headers: "a" in headers])
def test_whoever_looks_at_them_in_his_own_way_is_told_the_same(
    unreadable: Callable[[Any], Any], foreign: Callable[..., Any], ask: Callable[[Any], Any]
) -> None:
    record = unreadable(foreign())
    assert mark_unreadable(record).reason == "bad-header-key"
    with pytest.raises(MalformedRecordError, match="not UTF-8"):
        ask(record.headers())


def test_a_record_that_others_have_looked_at_first_is_read_with_care(
    unreadable: Callable[[Any], Any], foreign: Callable[..., Any]
) -> None:
    record = unreadable(foreign())
    with pytest.raises(SystemError):
        record.headers()
    for look in (read_again, read_headers):
        with pytest.raises(MalformedRecordError, match="not UTF-8"):
            look(record)


@pytest.mark.parametrize("headers", [None, [], [("a", b"1"), ("a", None)]])
@pytest.mark.parametrize("look", [read_headers, read_again, headers_shown])
def test_headers_that_can_be_read_are_handed_out_as_they_are(headers: Any, look: Callable[[Any], Any]) -> None:
    record = SimpleNamespace(headers=lambda: headers)
    assert list(look(record) or []) == (headers or [])


def test_an_error_of_a_record_s_own_is_no_matter_of_headers() -> None:
    class Wrong:
        def headers(self) -> Any:
            raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            read_headers(Wrong())


def test_two_threads_may_read_the_first_records_of_a_class_at_the_same_time() -> None:
    class Kind(type):
        lookups = 0

        def __hash__(cls) -> int:
            Kind.lookups += 1
            if Kind.lookups == 2:  # the first thread has found no reader, and here the other one reads a record
                read_headers(cls())
            return 1

    class Record(metaclass=Kind):
        def headers(self) -> Any:
            return [("a", b"1")]

    assert read_headers(Record()) == [("a", b"1")]
    assert Kind.lookups > 2
