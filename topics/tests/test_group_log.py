"""Facts about `rocketshim_topics.group_log`. The golden file pins the encoded records: it is a public protocol."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rocketshim_topics.errors import MalformedRecordError, UnknownVersionError
from rocketshim_topics.group_log import (
    TRACE_CHARS,
    ClaimedQueue,
    ClaimRecord,
    CommandRecord,
    GroupRecord,
    LeaseEntry,
    LeaveRecord,
    MemberRecord,
    QueueCommand,
    ReleaseRecord,
    RenewRecord,
    decode_group_record,
    encode_group_record,
)
from rocketshim_topics.message_queue import MessageQueue

GOLDEN = json.loads((Path(__file__).parent / "golden" / "group_log.json").read_text(encoding="utf-8"))
BASE = 1_700_000_000_000
CLIENT = "10.0.0.1@7@0"
RECORDS: dict[str, GroupRecord | CommandRecord] = {
    "member": MemberRecord(client_id=CLIENT, incarnation="5f0c", seq=1, lease_ms=60_000, strategy="AVG"),
    "member of Kafka's group protocol, base known": MemberRecord(
        client_id=CLIENT, incarnation="5f0c", seq=2, lease_ms=60_000, base=BASE
    ),
    "member with its version": MemberRecord(
        client_id=CLIENT, incarnation="5f0c", seq=2, lease_ms=60_000, base=BASE, version="0.1.0"
    ),
    "claim of two queues": ClaimRecord(
        client_id=CLIENT,
        incarnation="5f0c",
        seq=3,
        lease_ms=60_000,
        base=BASE,
        queues=(ClaimedQueue(topic="orders", queue_id=3), ClaimedQueue(topic="%RETRY%zahlung-ä", queue_id=0)),
    ),
    "renew with counts": RenewRecord(
        client_id=CLIENT,
        incarnation="5f0c",
        seq=4,
        lease_ms=60_000,
        base=BASE,
        queues=(
            LeaseEntry(
                topic="orders",
                queue_id=3,
                token=BASE + 2,
                confirmed_offset=2,
                next_offset=118,
                reconsume_counts=((118, 4), (120, 1)),
            ),
        ),
    ),
    "renew with the cause of a failing message": RenewRecord(
        client_id=CLIENT,
        incarnation="5f0c",
        seq=4,
        lease_ms=60_000,
        base=BASE,
        queues=(
            LeaseEntry(
                topic="orders",
                queue_id=3,
                token=BASE + 2,
                confirmed_offset=2,
                next_offset=118,
                reconsume_counts=((118, 4),),
                failing_ms=3_021,
                cause="ConnectionError: no route",
            ),
        ),
    ),
    "renew with the trace of a failing message, in a long call": RenewRecord(
        client_id=CLIENT,
        incarnation="5f0c",
        seq=4,
        lease_ms=60_000,
        base=BASE,
        queues=(
            LeaseEntry(
                topic="orders",
                queue_id=3,
                token=BASE + 2,
                confirmed_offset=2,
                next_offset=118,
                reconsume_counts=((118, 4),),
                failing_ms=3_021,
                cause="KeyError: 'price'",
                trace='  File "/app/ship.py", line 9, in ship\n    price(order)\nKeyError',
                call_offset=118,
                call_ms=9_400,
            ),
        ),
    ),
    "renew before anything was consumed": RenewRecord(
        client_id=CLIENT,
        incarnation="5f0c",
        seq=5,
        lease_ms=60_000,
        base=BASE,
        queues=(LeaseEntry(topic="orders", queue_id=4, token=BASE + 2, confirmed_offset=2),),
    ),
    "release": ReleaseRecord(
        client_id=CLIENT,
        incarnation="5f0c",
        seq=6,
        lease_ms=60_000,
        base=BASE,
        queues=(LeaseEntry(topic="orders", queue_id=3, token=BASE + 2, confirmed_offset=5, next_offset=121),),
    ),
    "leave": LeaveRecord(client_id=CLIENT, incarnation="5f0c", seq=7, lease_ms=60_000, base=BASE),
    "command to try now": CommandRecord(
        do=QueueCommand.TRY_NOW, topic="orders", queue_id=3, token=BASE + 2, offset=118, by="ann@ops1"
    ),
    "command to make a dead letter": CommandRecord(
        do=QueueCommand.DEAD_LETTER, topic="orders", queue_id=3, token=BASE + 2, offset=118, by="ann@ops1"
    ),
}


def test_the_golden_file_and_the_examples_cover_each_other() -> None:
    assert GOLDEN.keys() == RECORDS.keys()


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_encoded_as_the_golden_file_says(name: str) -> None:
    assert encode_group_record(RECORDS[name]).decode() == GOLDEN[name]


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_read_back_from_the_golden_file(name: str) -> None:
    assert decode_group_record(GOLDEN[name].encode()) == RECORDS[name]


def test_the_order_of_fields_and_unknown_fields_do_not_matter() -> None:
    fields = json.loads(GOLDEN["renew with counts"])
    fields["queues"][0]["later"] = {"x": 1}
    shuffled = json.dumps({"new": [1], **dict(reversed(fields.items()))}, indent=2).encode()
    assert decode_group_record(shuffled) == RECORDS["renew with counts"]


@pytest.mark.parametrize("version", [0, 2, 99, 10**30])
def test_an_unknown_version_is_an_error_of_its_own_whatever_else_stands_there(version: int) -> None:
    with pytest.raises(UnknownVersionError) as caught:
        decode_group_record(json.dumps({"v": version, "entirely": "different"}).encode())
    assert caught.value.version == version
    assert not isinstance(caught.value, MalformedRecordError)


@pytest.mark.parametrize(
    "field",
    [
        {"trace": 7},
        {"trace": ["a", "b"]},
        {"trace": "x" * (TRACE_CHARS + 1)},
        {"trace": None},
        {"call_offset": -1},
        {"call_offset": "118"},
        {"call_ms": 1.5},
        {"call_ms": 2**63},
    ],
)
def test_a_new_field_for_people_that_is_not_understood_is_absent_as_for_a_version_that_does_not_know_it(
    field: dict[str, object],
) -> None:
    fields = json.loads(GOLDEN["renew with counts"])
    fields["queues"][0] |= field
    assert decode_group_record(json.dumps(fields).encode()) == RECORDS["renew with counts"]


def changed(name: str, **fields: object) -> bytes:
    return json.dumps(json.loads(GOLDEN[name]) | fields).encode()


def without(name: str, field: str) -> bytes:
    fields = json.loads(GOLDEN[name])
    del fields[field]
    return json.dumps(fields).encode()


MALFORMED = {
    "no value": None,
    "empty": b"",
    "not JSON": b"claim",
    "not UTF-8": b'{"v":1,"kind":"\xff"}',
    "a list": b"[1]",
    "cut off": GOLDEN["release"].encode()[:-1],
    "version as text": changed("leave", v="1"),
    "version as a boolean": changed("leave", v=True),
    "version as a fraction": changed("leave", v=1.5),
    "no version": without("leave", "v"),
    "unknown kind": changed("leave", kind="lease"),
    "no kind": without("leave", "kind"),
    "no client": changed("leave", client_id=""),
    "client not a text": changed("leave", client_id=7),
    "no incarnation": without("leave", "incarnation"),
    "sequence from 0": changed("leave", seq=0),
    "lease of nothing": changed("claim of two queues", lease_ms=0),
    "lease of two days": changed("claim of two queues", lease_ms=172_800_000),
    "lease as text": changed("claim of two queues", lease_ms="60000"),
    "claim without base": without("claim of two queues", "base"),
    "claim with null base": changed("claim of two queues", base=None),
    "base beyond 64 bits": changed("claim of two queues", base=2**63),
    "claim of nothing": changed("claim of two queues", queues=[]),
    "negative queue": changed("claim of two queues", queues=[{"topic": "orders", "queue_id": -1}]),
    "renewal without a token": changed("renew with counts", queues=[{"topic": "orders", "queue_id": 1}]),
    "count of 0": changed(
        "renew with counts",
        queues=[{"topic": "o", "queue_id": 1, "token": 1, "confirmed_offset": 1, "reconsume_counts": [[5, 0]]}],
    ),
    "command that no version knows": changed("command to try now", do="skip"),
    "command of nobody": changed("command to try now", by=""),
    "command without a token": without("command to try now", "token"),
    "negative position": changed(
        "release", queues=[{"topic": "o", "queue_id": 1, "token": 1, "confirmed_offset": 1, "next_offset": -1}]
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_breaks_the_form_is_malformed(name: str) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode_group_record(MALFORMED[name])
    assert caught.value.reason.startswith("group-log:")


def test_a_complaint_does_not_repeat_what_was_read() -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode_group_record(changed("leave", client_id="", incarnation="s3cret" * 1000))
    assert "s3cret" not in str(caught.value)


def test_records_are_frozen_and_checked_when_they_are_made() -> None:
    record = RECORDS["leave"]
    with pytest.raises(ValidationError):
        record.seq = 8  # type: ignore[misc]
    with pytest.raises(ValidationError):
        LeaveRecord(client_id="c", incarnation="i", seq=0, lease_ms=1)


def test_a_queue_of_the_log_is_a_message_queue() -> None:
    assert ClaimedQueue(topic="orders", queue_id=3).queue == MessageQueue("orders", "kafka", 3)


numbers = st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
held = st.builds(
    LeaseEntry,
    topic=names,
    queue_id=st.integers(0, 2**31 - 1),
    token=numbers,
    confirmed_offset=numbers,
    next_offset=st.none() | numbers,
    reconsume_counts=st.lists(st.tuples(numbers, st.integers(1, 2**31 - 1)), max_size=3).map(tuple),
    trace=st.none() | names,
    call_offset=st.none() | numbers,
    call_ms=st.none() | numbers,
)
common = {
    "client_id": names,
    "incarnation": names,
    "seq": st.integers(1, 2**63 - 1),
    "lease_ms": st.integers(1, 86_400_000),
}
records = st.one_of(
    st.builds(
        ClaimRecord,
        **common,
        base=numbers,
        queues=st.lists(
            st.builds(ClaimedQueue, topic=names, queue_id=st.integers(0, 2**31 - 1)), min_size=1, max_size=3
        ).map(tuple),
    ),
    st.builds(RenewRecord, **common, base=numbers, queues=st.lists(held, min_size=1, max_size=3).map(tuple)),
    st.builds(ReleaseRecord, **common, base=numbers, queues=st.lists(held, min_size=1, max_size=3).map(tuple)),
    st.builds(MemberRecord, **common, base=st.none() | numbers, strategy=st.none() | names),
    st.builds(LeaveRecord, **common, base=st.none() | numbers),
    st.builds(
        CommandRecord,
        do=st.sampled_from(QueueCommand),
        topic=names,
        queue_id=st.integers(0, 2**31 - 1),
        token=numbers,
        offset=numbers,
        by=names,
    ),
)


@given(records)
def test_every_record_survives_the_wire(record: GroupRecord | CommandRecord) -> None:
    assert decode_group_record(encode_group_record(record)) == record


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_the_two_errors(value: bytes) -> None:
    with pytest.raises((MalformedRecordError, UnknownVersionError)):
        decode_group_record(value)
