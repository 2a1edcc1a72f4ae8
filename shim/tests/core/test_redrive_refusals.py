"""What is predicted as refused would be refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.redrive_progress import RedriveRefusals, RefusedFor
from rocketshim_topics import OutgoingRecord


def varint(number: int) -> bytes:
    """Encode a number as Kafka does: zigzag, seven bits per byte."""
    rest, out = (number << 1) ^ (number >> 63), b""
    while rest > 127:
        out, rest = out + bytes([rest & 127 | 128]), rest >> 7
    return out + bytes([rest])


def stored(record: OutgoingRecord) -> bytes:
    """Encode a record in Kafka's record format 2, alone in its batch."""

    def sized(content: bytes | None) -> bytes:
        return varint(-1) if content is None else varint(len(content)) + content

    body = b"\0" + varint(0) + varint(0) + sized(record.key) + sized(record.value) + varint(len(record.headers))
    body += b"".join(sized(name.encode()) + sized(value) for name, value in record.headers)
    return varint(len(body)) + body


CONTENTS = st.none() | st.integers(0, 300).map(bytes) | st.integers(8_150, 8_250).map(bytes)
RECORDS = st.builds(
    OutgoingRecord,
    topic=st.sampled_from(["one", "two"]),
    partition=st.none(),
    key=CONTENTS,
    value=CONTENTS,
    headers=st.lists(st.tuples(st.text("aé😀", max_size=20), CONTENTS), max_size=5),
)


@given(limit_bytes=st.integers(10, 20_000), records=st.lists(RECORDS, max_size=20))
def test_records_reported_as_too_large_would_have_been_refused(limit_bytes: int, records: list[OutgoingRecord]) -> None:
    refusals = RedriveRefusals(is_compressed=False)
    for record in records:
        is_refused = record.topic == "one" and len(stored(record)) > limit_bytes
        assert is_refused or refusals.reason(record) is None
        if is_refused:
            refusals.add(record, "too-large", "too large")


def test_a_record_as_large_as_a_refused_one_is_predicted_as_refused() -> None:
    refusals = RedriveRefusals(is_compressed=False)
    refusals.add(OutgoingRecord("one", None, b"k", b"x" * 1_000, []), "too-large", "too large")
    refusals.add(OutgoingRecord("one", None, b"k", b"x" * 2_000, []), "too-large", "too large")
    assert refusals.reason(OutgoingRecord("one", None, b"j", b"y" * 1_000, [])) == "too large"
    assert refusals.reason(OutgoingRecord("one", None, b"k", b"x" * 999, [])) is None
    assert refusals.reason(OutgoingRecord("two", None, b"k", b"x" * 1_000, [])) is None


def test_the_sizes_of_compressed_records_say_nothing() -> None:
    record, refusals = OutgoingRecord("one", None, b"k", b"x" * 1_000, []), RedriveRefusals(is_compressed=True)
    refusals.add(record, "too-large", "too large")
    assert refusals.reason(record) is None


def record(topic: str = "one", partition: int | None = None, key: bytes | None = b"k") -> OutgoingRecord:
    return OutgoingRecord(topic, partition, key, b"", [])


@pytest.mark.parametrize(
    ("cause", "refused", "alike", "others"),
    [
        ("missing", record(), [record(), record(key=None)], [record("two"), record(partition=0)]),
        ("missing", record(partition=7), [record(partition=7)], [record(), record(partition=6)]),
        ("invalid", record(key=None), [record(key=None), record(partition=3, key=None)], [record()]),
        ("invalid", record(), [], [record(), record(key=None)]),
    ],
)  # fmt: skip
def test_records_are_predicted_as_refused_only_where_the_cause_is_certainly_the_same(
    cause: RefusedFor, refused: OutgoingRecord, alike: list[OutgoingRecord], others: list[OutgoingRecord]
) -> None:
    refusals = RedriveRefusals(is_compressed=False)
    refusals.add(refused, cause, "refused:WHY")
    assert [refusals.reason(each) for each in alike] == ["refused:WHY"] * len(alike)
    assert [refusals.reason(each) for each in others] == [None] * len(others)
