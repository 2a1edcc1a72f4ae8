"""One partition: offsets only grow, and a reader sees what its isolation level allows."""

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.testing.partition_log import PartitionLog, StoredRecord, Transaction


def append(
    log: PartitionLog, value: bytes | None, key: bytes | None = None, transaction: Transaction | None = None
) -> int:
    return log.append(
        key=key, value=value, headers=(), timestamp_type=1, timestamp_ms=log.next_offset, transaction=transaction
    ).offset


def values(log: PartitionLog, *, read_committed: bool = True) -> list[bytes | None]:
    return [record.value for record in log.records(read_committed=read_committed)]


def finish(log: PartitionLog, transaction: Transaction, state: Literal["open", "committed", "aborted"]) -> None:
    transaction.state = state
    log.end_transaction(transaction)


def test_offsets_follow_each_other_and_holes_are_never_read() -> None:
    log = PartitionLog()
    assert append(log, b"a") == 0
    log.skip(3)
    assert append(log, b"b") == 4
    found = log.read(1, read_committed=True)
    assert found is not None
    assert found.offset == 4
    assert log.read(5, read_committed=True) is None


def test_an_open_transaction_hides_everything_behind_it() -> None:
    log, transaction = PartitionLog(), Transaction(1, 0)
    append(log, b"before")
    append(log, b"inside", transaction=transaction)
    append(log, b"behind")
    assert (log.last_stable_offset(), log.next_offset) == (1, 3)
    assert values(log) == [b"before"]
    assert values(log, read_committed=False) == [b"before", b"inside", b"behind"]
    finish(log, transaction, "committed")
    assert values(log) == [b"before", b"inside", b"behind"]
    assert log.next_offset == 4, "the marker takes an offset"


def test_an_aborted_transaction_is_never_seen_by_careful_readers() -> None:
    log, transaction = PartitionLog(), Transaction(1, 0)
    append(log, b"dropped", transaction=transaction)
    append(log, b"kept")
    finish(log, transaction, "aborted")
    assert values(log) == [b"kept"]
    assert values(log, read_committed=False) == [b"dropped", b"kept"]


def test_a_transaction_without_records_here_leaves_no_marker() -> None:
    log = PartitionLog()
    assert not log.end_transaction(Transaction(1, 0))
    assert log.next_offset == 0


def test_truncation_raises_the_low_watermark_at_most_to_the_end() -> None:
    log = PartitionLog()
    for value in (b"a", b"b", b"c"):
        append(log, value)
    log.truncate(2)
    assert (log.log_start_offset, values(log)) == (2, [b"c"])
    log.truncate(1)
    assert log.log_start_offset == 2
    log.truncate(99)
    assert (log.log_start_offset, log.next_offset, values(log)) == (3, 3, [])


def test_compaction_keeps_the_last_of_each_key_and_no_tombstones() -> None:
    log, transaction = PartitionLog(), Transaction(1, 0)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)):
        append(log, value, key)
    append(log, b"open", b"a", transaction)
    log.compact()
    assert [(record.key, record.value) for record in log.records(read_committed=False)] == [
        (b"a", b"2"),
        (b"a", b"open"),
    ]
    assert append(log, b"next", b"c") == 5


def test_times_find_the_first_record_then_or_later() -> None:
    log = PartitionLog()
    append(log, b"a")
    append(log, b"b")
    assert [log.offset_for_time(at_ms) for at_ms in (0, 1, 2)] == [0, 1, None]


@dataclass
class NaiveLog:
    """The same partition as one flat list: (offset, transaction number or None)."""

    entries: list[tuple[int, int | None]] = field(default_factory=list)
    next_offset: int = 0
    start: int = 0
    states: dict[int, str] = field(default_factory=dict)

    def visible(self, *, read_committed: bool) -> list[int]:
        opened = [offset for offset, number in self.entries if number is not None and self.states[number] == "open"]
        # The first record of an open transaction counts even when retention has dropped it: the model never drops one.
        end = min(opened, default=self.next_offset) if read_committed else self.next_offset
        return [
            offset
            for offset, number in self.entries
            if self.start <= offset < end
            and (not read_committed or number is None or self.states[number] == "committed")
        ]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.none()),
        st.tuples(st.just("append"), st.integers(0, 3)),
        st.tuples(st.just("skip"), st.integers(1, 3)),
        st.tuples(st.just("commit"), st.integers(0, 3)),
        st.tuples(st.just("abort"), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 12)),
    ),
    max_size=40,
)


@given(steps)
def test_any_history_reads_like_the_naive_log(history: list[tuple[str, int | None]]) -> None:
    log, naive = PartitionLog(), NaiveLog()
    running: dict[int, tuple[int, Transaction]] = {}
    numbers = iter(range(1_000))
    for kind, argument in history:
        if kind == "append" and argument is not None:
            if argument not in running:
                running[argument] = (next(numbers), Transaction(argument, 0))
            number, transaction = running[argument]
            naive.states.setdefault(number, "open")
            append(log, b"x", transaction=transaction)
            naive.entries.append((naive.next_offset, number))
            naive.next_offset += 1
        elif kind == "append":
            append(log, b"x")
            naive.entries.append((naive.next_offset, None))
            naive.next_offset += 1
        elif kind == "skip":
            log.skip(argument or 0)
            naive.next_offset += argument or 0
        elif kind == "truncate":
            log.truncate(argument or 0)
            naive.start = max(naive.start, min(argument or 0, naive.next_offset))
        elif argument in running:
            number, transaction = running.pop(argument)
            state: Literal["committed", "aborted"] = "committed" if kind == "commit" else "aborted"
            finish(log, transaction, state)
            naive.states[number] = state
            naive.next_offset += 1
        for read_committed in (True, False):
            expected = naive.visible(read_committed=read_committed)
            assert [record.offset for record in log.records(read_committed=read_committed)] == expected
            assert walk(log, read_committed=read_committed) == expected
        assert log.next_offset == naive.next_offset


def walk(log: PartitionLog, *, read_committed: bool) -> list[int]:
    """Read record by record, as a consumer does."""
    offsets: list[int] = []
    record: StoredRecord | None = log.read(log.log_start_offset, read_committed=read_committed)
    while record is not None:
        offsets.append(record.offset)
        record = log.read(record.offset + 1, read_committed=read_committed)
    return offsets
