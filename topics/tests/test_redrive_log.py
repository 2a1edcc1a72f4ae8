"""Facts about `rocketshim_topics.redrive_log`: what is marked is settled, for this very record, and nothing else is."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim_topics.errors import RocketshimError
from rocketshim_topics.redrive_log import (
    BeginRecord,
    MarkRecord,
    RedriveLog,
    RedriveRecord,
    Settled,
    decode_redrive_record,
    encode_redrive_record,
    record_digest,
)
from rocketshim_topics.wire import UNREADABLE

names = st.sampled_from(["dlq-a", "dlq-b"])
plans = st.sampled_from(["p1", "p2"])
digests = st.sampled_from(["0" * 16, "f" * 16])
places = st.tuples(st.integers(0, 1), st.integers(0, 3))
begins = st.builds(BeginRecord, source=names, plan=plans, session=st.sampled_from(["s1", "s2"]))
marks = st.builds(
    MarkRecord,
    source=names,
    plan=plans,
    session=st.just("s1"),
    state=st.sampled_from(["redriven", "discarded"]),
    letters=st.lists(st.tuples(places, digests).map(lambda each: (*each[0], each[1])), max_size=3).map(tuple),
)
records = st.lists(st.one_of(begins, marks, st.none()), max_size=12)


@given(st.one_of(begins, marks))
def test_encoding_then_decoding_changes_nothing(record: RedriveRecord) -> None:
    assert decode_redrive_record(encode_redrive_record(record)) == record


@given(records, names, plans, places, digests)
def test_the_fold_is_what_a_look_through_all_records_says(
    history: list[RedriveRecord | None], source: str, plan: str, place: tuple[int, int], digest: str
) -> None:
    log = RedriveLog(source, history)
    found = [
        Settled(record.state, record.plan, each[2])
        for record in history
        if isinstance(record, MarkRecord) and record.source == source
        for each in record.letters
        if each[:2] == place
    ]
    last = found[-1] if found else None
    assert log.settled(*place, digest) == (last if last is not None and last.digest == digest else None)
    assert log.is_marked(*place) == bool(found)
    assert log.is_done(plan, *place) == any(each.plan == plan for each in found)
    begun = [record for record in history if isinstance(record, BeginRecord) and record.source == source]
    assert log.last_begin == (begun[-1] if begun else None)
    sessions = {record.session for record in begun}
    assert all(log.has_begun(session) == (session in sessions) for session in ("s1", "s2"))


@pytest.mark.parametrize("value", [None, b"", b"x", b"[]", b"{}", b'{"v":1}', b'{"v":1,"kind":"other"}', b"\xff"])
def test_what_is_no_record_is_void(value: bytes | None) -> None:
    assert decode_redrive_record(value) is None


def test_a_newer_version_stops_the_reader() -> None:
    with pytest.raises(RocketshimError, match="update rocketshim"):
        decode_redrive_record(json.dumps({"v": 2, "kind": "mark"}).encode())


def test_fields_of_later_writers_are_ignored() -> None:
    mark = MarkRecord(source="s", plan="p", session="x", state="redriven", letters=((0, 1, "0" * 16),))
    fields = json.loads(encode_redrive_record(mark)) | {"later": 1}
    assert decode_redrive_record(json.dumps(fields).encode()) == mark


contents = st.tuples(
    st.none() | st.binary(max_size=2),
    st.none() | st.binary(max_size=2),
    st.lists(st.tuples(st.sampled_from(["a", "b", "ab"]), st.none() | st.binary(max_size=2)), max_size=2),
)


@given(contents, contents)
def test_two_records_have_one_digest_only_if_they_are_the_same(one: Any, other: Any) -> None:
    class Stored:
        def __init__(self, content: Any) -> None:
            self._content = content

        def key(self) -> Any:
            return self._content[0]

        def value(self) -> Any:
            return self._content[1]

        def headers(self) -> Any:
            return self._content[2] or None

    assert (record_digest(Stored(one)) == record_digest(Stored(other))) == (one == other)  # type: ignore[arg-type]


def test_the_digest_is_pinned(foreign: Callable[..., Any]) -> None:
    assert record_digest(foreign([("h", None), ("h", b"")])) == "739ba8955a760d1d"


def test_headers_that_cannot_be_read_are_digested_as_one_that_stands_for_them(
    foreign: Callable[..., Any], unreadable: Callable[[Any], Any]
) -> None:
    record = unreadable(foreign())
    assert record_digest(record) == record_digest(record) == record_digest(foreign(UNREADABLE))
