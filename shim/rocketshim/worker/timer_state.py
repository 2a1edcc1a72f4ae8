"""The state of named timers: of each partition of the timer log that this worker owns, and how it is read.

The state is loaded when a partition is assigned, in a thread of its own (`TimerLoader`); until then no command leaves
the queue. First come the entries of the compacted topic. Then the commands between the newest of them and the position
are read again and applied without effects (`core.named_timers` says why). So whether a record is a command, and
may be one (`TimerRules`), depends on the record and the namespace, never on other settings or on a clock: a second
reading has the same result.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rocketshim.core.broker_clock import APPEND_TIME
from rocketshim.core.level_queue import LevelQueue
from rocketshim.core.named_timers import NAME_BYTES, Change, Command, TimerTable
from rocketshim.core.worker_notes import NOT_ALLOWED
from rocketshim.errors import BrokerUnavailableError, RocketshimError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.targets import NEVER_NS, TargetHealth
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import (
    OutgoingRecord,
    checks_left,
    command_problem,
    is_misplaced,
    timer_digest,
    timer_state,
    timer_times,
)
from rocketshim_topics.names import TopicNames, group_of
from rocketshim_topics.partitioner import TIMER_PARTITIONS
from rocketshim_topics.wire import Envelope, decode, read_headers

__all__ = ["Judged", "OwnedTimers", "TimerLoader", "TimerRules"]

_EARLY_MS: Final = 60_000  # leaders' clocks may differ by this; a FIRE that is earlier was hardly written by a worker
_CLOSE_S: Final = 1.0
_AGAIN_S: Final = 1.0
_TRIES: Final = 30  # to find the end of the log where its state says
_SETS: Final = frozenset({"SET", "SET-IF-ABSENT"})
_HALVES_BYTES: Final = 4 << 20
_RECORD_BYTES: Final = 1_000  # of one besides what it carries


class OwnedTimers:
    """The timers of one partition of the log, in one assignment.

    Attributes:
        table: the pending names; None: not loaded yet.
        changes: what the commands do whose run is not confirmed, by offset.
        messages: the generation that a NOW delivers, and its message, by the offset of the NOW; no message: it is not
            there any more.
        loaded: the messages that are read now, as a target that is not known yet.
        halves: the newest half messages by name and offset: their COMMIT comes soon, and need not have them read.
        unsaved: commands whose results were not stored, and the state of each name after its last: they are to be
            stored before any later one.
        must_save: whether a name was forgotten whose command says something else: its SET could not wait.
        skip_below: offset below which records are passed over: their effects are stored, and their position is not.
    """

    __slots__ = (
        "_halves_bytes", "asked", "changes", "halves", "loaded", "messages", "must_save", "one_run", "skip_below",
        "table", "unsaved",
    )  # fmt: skip

    def __init__(self, topic: str, *, one_run: bool) -> None:
        self.table: TimerTable | None = None
        self.changes: dict[int, Change] = {}
        self.messages: dict[int, tuple[int, Any | None]] = {}
        self.loaded = TargetHealth(topic, ready_ns=0)
        self.asked: set[int] = set()
        self.must_save = False
        self.unsaved: list[tuple[Any, OutgoingRecord]] = []
        self.skip_below = 0
        self.one_run = one_run
        self.halves: dict[tuple[bytes, int | None], Any] = {}
        self._halves_bytes = 0

    def is_ready(self, waiting: LevelQueue[Any]) -> bool:
        """Return whether a run may leave the queue."""
        return self.table is not None and (waiting.idle or not self.one_run)

    @property
    def pending_count(self) -> int:
        """How many names are pending, as far as it is known."""
        return 0 if self.table is None else len(self.table)

    @property
    def era(self) -> int:
        """In which the offsets of the log count."""
        return 0 if self.table is None else self.table.era

    def keep_half(self, name: bytes, record: Any) -> None:
        """Keep a half message until its transaction ends, or until there are too many later ones."""
        self.halves[name, record.offset()] = record
        self._halves_bytes += _size_bytes(record)
        while self._halves_bytes > _HALVES_BYTES:
            self.drop_half(*next(iter(self.halves)))

    def drop_half(self, name: bytes, offset: int | None) -> None:
        """Forget a half message, if it is kept."""
        if (record := self.halves.pop((name, offset), None)) is not None:
            self._halves_bytes -= _size_bytes(record)

    def confirmed(self, next_offset: int) -> None:
        """Forget what commands below this offset have done: their position is stored."""
        for known in (self.changes, self.messages):
            for offset in [offset for offset in known if offset < next_offset]:
                del known[offset]


def _size_bytes(record: Any) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in read_headers(record) or ())
    return len(record.value() or b"") + len(record.key() or b"") + headers + _RECORD_BYTES


@dataclass(slots=True)
class Judged:
    """A record of the log by the rules: a command to apply, or why it is none.

    `due_ms` is when its message is due; `next_ms` of a SET the same, of a FIRE the next time, if the message recurs.
    """

    envelope: Envelope
    due_ms: int = 0
    next_ms: int = 0
    is_missed: bool = False
    reason: str = ""  # to park it
    is_misplaced: bool = False
    is_early: bool = False  # a FIRE that another program wrote

    @property
    def is_command(self) -> bool:
        """Whether it is one to apply."""
        return not (self.reason or self.is_misplaced or self.is_early)

    @property
    def name(self) -> bytes:
        """The digest of the name that it is about."""
        return timer_digest(self.envelope.real_topic or "", self.envelope.timer or "")


class TimerRules:
    """Which records of the log are commands. Any thread; no clock."""

    def __init__(self, names: TopicNames, policy: AllowList) -> None:
        self.names = names
        self._policy = policy

    def judge(self, record: Any) -> Judged:
        """Return a record by the rules.

        Decides: Which commands of named timers are refused? Malformed ones, and a SET that no worker would deliver:
            they are parked. A SET with a delay that is too long counts: its message is parked, and its name is free
            (`worker.timer_router`). A CANCEL, NOW or FIRE for a name that nobody could set finds nothing. Whether
            this worker may deliver the message is only asked when it fires (`worker.router`). A FIRE
            by another program waits again if it is too early, does nothing if its generation is not pending, and is
            delivered as it is otherwise: only the ACLs of the log prevent that.
        """
        kind, append_ms = record.timestamp()
        if kind != APPEND_TIME:
            return Judged(Envelope(), reason="no-append-time")
        try:
            envelope = decode(read_headers(record), trusted=True)
        except MalformedRecordError as error:
            return Judged(Envelope(), reason=error.reason)
        reason, is_set = command_problem(record, envelope), envelope.timer_do in _SETS
        if reason:
            return Judged(envelope, reason=reason)
        times = timer_times(envelope, append_ms)
        if is_set:
            reason = self._policy.refusal(envelope.real_topic or "", None) or ""
            if group_of(envelope.real_topic or "") is not None:
                reason = "forbidden-target:retry-topic"
            elif reason == NOT_ALLOWED:
                reason = ""
        return Judged(
            envelope,
            *times,
            reason,
            is_misplaced=not reason and is_misplaced(record, envelope),
            is_early=envelope.timer_do == Command.FIRE.value and times.due_ms > append_ms + _EARLY_MS,
        )

    @staticmethod
    def apply(table: TimerTable, record: Any, judged: Judged) -> Change:
        """Apply a command to the state."""
        envelope = judged.envelope
        return table.apply(
            record.offset(),
            Command(envelope.timer_do),
            judged.name,
            generation=envelope.timer_set_at,
            due_ms=judged.next_ms,
            appended_ms=record.timestamp()[1],
            at_most_ms=envelope.timer_at_most_ms,
            recurs=envelope.timer_repeat is not None,
            is_missed=judged.is_missed,
            checks_left=checks_left(envelope),
            era=envelope.timer_era or 0,
        )

    def state(self, record: Any, judged: Judged, change: Change, partition: int, era: int) -> OutgoingRecord:
        """Return the state of a name after a command."""
        return timer_state(
            self.names,
            partition,
            judged.envelope,
            applied=record.offset(),
            append_ms=record.timestamp()[1],
            era=era,
            generation=change.after,
            due_ms=change.due_ms,
            since_ms=change.since_ms,
        )


class TimerLoader:
    """Reads the state of partitions, and messages for a NOW, in a thread with a client of its own.

    `failure` is why it cannot go on. A cluster that does not answer is asked again.
    """

    def __init__(
        self,
        rules: TimerRules,
        make_reader: Callable[[], TopicReader],
        alarm: Callable[..., None],
        *,
        in_background: bool,
    ) -> None:
        self.failure: Exception | None = None
        self._names, self._rules = rules.names, rules
        self._make_reader = make_reader
        self._alarm = alarm
        self._reader: TopicReader | None = None
        self._asked: queue.SimpleQueue[Callable[[TopicReader], Callable[[], None]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if in_background:
            self._thread = threading.Thread(target=self._run, name="rocketshim-timers", daemon=True)
            self._thread.start()

    def load(self, owned: OwnedTimers, partition: int, position: int) -> None:
        """Load the state of a partition whose commands are read from this position on; negative: it is not known.

        A partition beyond those that names use has no state: its commands are forwarded.
        """
        if partition >= TIMER_PARTITIONS:
            owned.table = TimerTable()
            return
        tries = _TRIES

        def read(reader: TopicReader) -> Callable[[], None]:
            nonlocal tries
            tries -= 1
            table, skip_below, unsaved = self._read_state(reader, partition, position, is_last_try=tries <= 0)

            def answer() -> None:
                owned.table, owned.skip_below, owned.unsaved = table, skip_below, unsaved

            return answer

        self._asked.put(read)

    def fetch(self, owned: OwnedTimers, partition: int, name: bytes, *, offset: int, generation: int) -> None:
        """Fetch the message of a generation for the NOW at an offset; `owned.loaded` is ready when it is there."""
        if offset in owned.asked:
            return
        owned.asked.add(offset)
        owned.loaded.ready_ns = NEVER_NS

        def read(reader: TopicReader) -> Callable[[], None]:
            message = self._record_at(reader, TopicPartitionKey(self._names.timers, partition), generation, name)

            def answer() -> None:
                owned.messages[offset] = generation, message
                owned.asked.discard(offset)
                owned.loaded.ready_ns = NEVER_NS if owned.asked else 0

            return answer

        self._asked.put(read)

    def process_answers(self) -> None:
        """Take what was read since. Without a thread (the in-memory Kafka) it is read here."""
        for _ in range(0 if self._thread is not None else self._asked.qsize()):
            self._work(self._asked.get())
        while not self._answers.empty():
            self._answers.get()()

    def close(self) -> None:
        """End the thread and its client; one that waits for a broker continues alone for a while."""
        self._closing.set()
        self._asked.put(None)
        if self._thread is None:
            self._close_reader()
        else:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None and not self._closing.is_set():
            self._work(asked)
        self._close_reader()

    def _work(self, asked: Callable[[TopicReader], Callable[[], None]] | None) -> None:
        if asked is None:
            return
        try:
            if self._reader is None:
                self._reader = self._make_reader()
            self._answers.put(asked(self._reader))
        except RocketshimError as error:
            text = str(error)
            self._answers.put(lambda: self._alarm("worker.timers-unknown", error=text))
            if self._thread is not None:
                self._closing.wait(_AGAIN_S)
            self._asked.put(asked)
        except Exception as error:  # noqa: BLE001 - the loop raises it
            self.failure = error

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _read_state(
        self, reader: TopicReader, partition: int, position: int, *, is_last_try: bool
    ) -> tuple[TimerTable, int, list[tuple[Any, OutgoingRecord]]]:
        """Read the state; return also the offset behind its newest entry, and what is missing before the position."""
        log, table = TopicPartitionKey(self._names.timers, partition), TimerTable()
        for record in _all(reader, TopicPartitionKey(self._names.timer_state, partition)):
            with suppress(KeyError, ValueError):  # MalformedRecordError is one: another program wrote it
                _load(table, record)
        low, high = reader.bounds(*log)
        if position < 0:  # the brokers did not say it in time at the assignment; there may be none
            position = reader.positions(self._names.worker_group, [log]).get(log, -1)
        if table.next_offset > high and not is_last_try:  # a leader that has just moved may not know its end yet
            raise BrokerUnavailableError(f"{log} ends at {high}, and its state is of {table.next_offset}")
        if table.newest is None and low > 0:
            self._answers.put(lambda: self._alarm("worker.timers-state-lost", partition=partition, before=low))
        if table.newest is not None and not self._is_of(reader, log, table.newest, low, high):
            self._answers.put(lambda: self._alarm("worker.timers-begin-again", partition=partition))
            table.begin_era(table.era + 1)
        known, missing = table.next_offset, dict[bytes, tuple[Any, OutgoingRecord]]()
        begin = max(position, low)
        for record in _all(reader, log, min(begin, known), max(begin, known)):
            judged = self._rules.judge(record)
            if judged.is_command and not _finds_no_message(table, judged, low):
                change = self._rules.apply(table, record, judged)
                if change.is_change and record.offset() >= known:
                    missing[judged.name] = record, self._rules.state(record, judged, change, partition, table.era)
        table.begin()
        return table, known, list(missing.values())

    def _is_of(
        self, reader: TopicReader, log: TopicPartitionKey, newest: tuple[bytes, int, int], low: int, high: int
    ) -> bool:
        """Return whether the newest entry of the state is of this log, as far as retention has left it."""
        name, offset, append_ms = newest
        if not low <= offset < high:
            return offset < low
        record = self._record_at(reader, log, offset, name)
        return record is not None and record.timestamp()[1] == append_ms

    def _record_at(self, reader: TopicReader, key: TopicPartitionKey, offset: int, name: bytes) -> Any | None:
        """Return the record at this offset, which is about this name; None: it is not there any more."""
        found = next(_all(reader, key, offset, offset + 1), None)
        is_it = found is not None and found.offset() == offset and self._rules.judge(found).name == name
        return found if is_it else None


def _load(table: TimerTable, record: Any) -> None:
    envelope = decode(read_headers(record), trusted=True)
    if envelope.timer_set_at is not None and len(record.key() or b"") == NAME_BYTES:
        table.load(
            record.key(),
            envelope.timer_set_at,
            is_pending=record.value() is not None,
            append_ms=envelope.born_timestamp_ms or 0,
            since_ms=envelope.timer_since_ms,
            recurs=envelope.timer_repeat is not None,
            era=envelope.timer_era or 0,
        )


def _finds_no_message(table: TimerTable, judged: Judged, low: int) -> bool:
    """Return whether this is a NOW that changed nothing, since retention had deleted its message."""
    generation = table.pending(judged.name) if judged.envelope.timer_do == Command.NOW.value else None
    return generation is not None and generation < low


def _all(reader: TopicReader, key: TopicPartitionKey, start: int = 0, end: int | None = None) -> Iterator[Any]:
    """Yield the records of a partition between two offsets, as far as they are there."""
    low, high = reader.bounds(*key)
    return reader.read_spans({key: (max(low, start), high if end is None else min(high, end))})
