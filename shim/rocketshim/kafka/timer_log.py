"""Reads what became of named timers: the log of commands, which decides, and what the worker has stored.

A name has one partition of both topics. The worker's state is compacted, and read whole. The log carries the messages
themselves: all of it is read only for a history. For an outcome the search begins where the state or the caller knows
the name, or near the end, and goes back until the outcome is certain.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final

from rocketshim.core.timer_history import PendingTimer, TimerFate, TimerHistory, TimerOutcome, timer_histories
from rocketshim.errors import BrokerUnavailableError, MalformedRecordError, MessageError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import TopicNames, decode
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.partitioner import TIMER_PARTITIONS, timer_partition
from rocketshim_topics.wire import read_headers

__all__ = [
    "pending_timers",
    "read_histories",
    "read_outcome",
    "read_recurring",
    "read_states",
    "unread_since_ms",
]

_Watch = Callable[[Iterable[Any]], Iterator[Any]]
"""Passes records on, and may end the reading."""

_UNREAD_MS: Final = 3_000  # a worker that runs reads a command in less, also while it takes partitions over
_NEAR_COUNT: Final = 10_000  # records of the first look at the end of the log


def pending_timers(
    records: Iterable[Any], is_wanted: Callable[[PendingTimer], bool], ends: dict[int, int] | None = None
) -> Iterator[PendingTimer]:
    """Yield what the worker has stored of each wanted name that is pending, in the last era of its partition.

    `ends` gets by partition the offset behind the last command whose result it has stored.
    """
    found: dict[bytes, PendingTimer] = {}
    eras: dict[int, int] = {}
    ends = {} if ends is None else ends
    for record in records:
        with suppress(MalformedRecordError):
            state, number = decode(read_headers(record), trusted=True), record.partition()
            era = state.timer_era or 0
            if era > eras.setdefault(number, era):  # the log was created again
                eras[number] = era
                ends.pop(number, None)
                found = {key: each for key, each in found.items() if each.partition != number}
            target, name = state.real_topic, state.timer
            if era < eras[number]:
                continue
            ends[number] = max(ends.get(number, 0), (state.timer_set_at or 0) + 1)
            if record.value() is None:
                found.pop(record.key(), None)
            elif target is not None and name is not None:
                at, recurs = (number, state.timer_set_at or 0), state.timer_repeat is not None
                asks = (sys.intern(state.timer_asks or ""), state.timer_asked or 0)
                pending = PendingTimer(state.deliver_at_ms or 0, sys.intern(target), name, *at, recurs, *asks)
                if is_wanted(pending):
                    found[record.key()] = pending
                else:
                    found.pop(record.key(), None)
    yield from found.values()


def read_states(
    reader: TopicReader, names: TopicNames, topic: str, wanted: Iterable[str], watch: _Watch = iter
) -> dict[str, PendingTimer | None]:
    """Return what the worker has stored of each name; None: it is not pending, as far as the worker knows."""
    states: dict[str, PendingTimer | None] = dict.fromkeys(wanted)
    stored = reader.require(names.timer_state)
    keys = {TopicPartitionKey(stored, timer_partition(topic, name)) for name in states}
    records = _records(reader, reader.bounds_of_all(sorted(keys)), watch)
    return states | {
        each.name: each for each in pending_timers(records, lambda each: each.topic == topic and each.name in states)
    }


def read_histories(
    reader: TopicReader,
    names: TopicNames,
    topic: str,
    states: Mapping[str, PendingTimer | None],
    stored: Mapping[str, int],
    *,
    hidden_s: float,
    watch: _Watch = iter,
) -> dict[str, TimerHistory]:
    """Read the partitions of these names; return what the log has about each.

    The states were read before, and then these commands were `stored`. A transaction of the worker may hide one for a
    moment: wait for it up to `hidden_s`.
    """
    by_partition = defaultdict[int, list[str]](list)
    for name in states:
        by_partition[timer_partition(topic, name)].append(name)
    log = reader.require(names.timers)
    known = {name: state for name, state in states.items() if state is not None}
    found: dict[str, TimerHistory] = {}
    for number, several in by_partition.items():
        key = TopicPartitionKey(log, number)
        low, high = _bounds(reader, key, max(stored.get(name, -1) for name in several), hidden_s)
        begins_ms = _begins_ms(reader, key, low, high)
        records = _records(reader, {key: (low, high)}, watch)
        found |= timer_histories(records, topic, several, first_offset=low, stored=known, begins_ms=begins_ms)
    return {name: found[name] for name in states}


def read_outcome(
    reader: TopicReader, names: TopicNames, topic: str, name: str, *, command: int | None, until_s: float
) -> TimerOutcome:
    """Return what became of the last message of a name, or of that of its command at an offset.

    The search begins where the outcome is certain at the first look: behind what the worker has stored as pending, or
    at the command. Otherwise it begins near the end of the log, and goes back from there.

    Raises:
        MessageError: the command at this offset is not for this name.
        BrokerUnavailableError: what is needed was not read until this monotonic time.
    """
    key = TopicPartitionKey(reader.require(names.timers), timer_partition(topic, name))
    watch = _until(until_s, f"what became of {name!r} in {key.topic}/{key.partition}")
    state = read_states(reader, names, topic, [name], watch)[name]
    low, high = _bounds(reader, key, -1 if command is None else command, until_s - time.monotonic())
    if command is not None and command >= high:
        raise BrokerUnavailableError(f"{key.topic}/{key.partition} shows no record {command}; was it created again?")
    begins_ms, known, width = _begins_ms(reader, key, low, high), {} if state is None else {name: state}, _NEAR_COUNT
    start = high - width if command is None else command
    if state is not None and state.generation <= (high if command is None else command):
        start = state.generation + 1
    while True:
        start = max(low, start)
        records = _records(reader, {key: (start, high)}, watch)
        history = timer_histories(records, topic, [name], first_offset=start, stored=known, begins_ms=begins_ms)[name]
        outcome = history.outcome(command)
        if outcome.fate is not TimerFate.UNKNOWN or start == low:
            break
        width *= 8
        start = min(start, high - width)
    if command is None or command == history.before or any(each.offset == command for each in history.events):
        return outcome
    if command >= low:
        raise MessageError(f"the record at {command} in {key.topic}/{key.partition} is no command for {name!r:.80}")
    return TimerHistory((), is_certain=False, begins_ms=begins_ms).outcome()


def unread_since_ms(reader: TopicReader, names: TopicNames, now_ms: int) -> int | None:
    """Return when the oldest command was stored that no worker has read, epoch ms; None: all are read, or will be."""
    first = reader.first_records(_unread_spans(reader, names)).values()
    stored_ms = (record.timestamp()[1] for records in first for record in records)
    return min((at_ms for at_ms in stored_ms if at_ms < now_ms - _UNREAD_MS), default=None)


def _unread_spans(
    reader: TopicReader, names: TopicNames, ends: Mapping[int, int] | None = None
) -> dict[TopicPartitionKey, tuple[int, int]]:
    """Return the offsets of the log that no worker has read, or of whose commands it has not stored the results."""
    log = reader.require(names.timers)
    keys = [TopicPartitionKey(log, number) for number in range(TIMER_PARTITIONS)]
    positions, bounds = reader.positions(names.worker_group, keys), reader.bounds_of_all(keys)
    spans: dict[TopicPartitionKey, tuple[int, int]] = {}
    for key, (low, high) in bounds.items():
        first = positions.get(key, low)
        if ends is not None:
            first = min(first, ends.get(key.partition, 0))
        spans[key] = min(max(low, first), high), high
    return spans


def read_recurring(
    reader: TopicReader,
    names: TopicNames,
    topics: Collection[str],
    declared: Collection[tuple[str, str]],
    watch: _Watch = iter,
) -> dict[tuple[str, str], tuple[PendingTimer, Any]]:
    """Return what is pending: of these topics all that recurs, and of these names; and the record that set each.

    The log is read from where the stored results of the worker end, or from its position if that is lower. So a name
    that was set a moment ago counts, also if no worker runs. A record that retention has deleted is None.
    """
    log = reader.require(names.timers)

    def is_wanted(each: PendingTimer) -> bool:
        return (each.topic, each.name) in declared or (each.recurs and each.topic in topics)

    stored = watch(reader.read([reader.require(names.timer_state)]))
    ends: dict[int, int] = {}
    found = {(each.topic, each.name): each for each in pending_timers(stored, is_wanted, ends)}
    spans = _unread_spans(reader, names, ends)
    tails: dict[tuple[str, str], list[tuple[Any, bool]]] = defaultdict(list)
    for record in _records(reader, spans, watch):
        with suppress(MalformedRecordError):
            envelope = decode(read_headers(record), trusted=True)
            each, recurs = (envelope.real_topic or "", envelope.timer or ""), envelope.timer_repeat is not None
            is_relevant = each in found or each in declared or each in tails or (recurs and each[0] in topics)
            if is_relevant and record.partition() == timer_partition(*each):
                tails[each].append((record, recurs))
    for (topic, name), tail in tails.items():
        state, number = found.pop((topic, name), None), timer_partition(topic, name)
        start = spans[TopicPartitionKey(log, number)][0]
        start = start if state is None else max(start, state.generation + 1)
        later = {record.offset(): (record, recurs) for record, recurs in tail if record.offset() >= start}
        known = {} if state is None else {name: state}
        records = (record for record, _ in later.values())
        now = timer_histories(records, topic, [name], first_offset=start, stored=known)[name].outcome()
        if now.fate is TimerFate.PENDING and now.set_at is not None:
            recurs = later[now.set_at][1] if now.set_at in later else state is not None and state.recurs
            made = PendingTimer(now.due_ms or 0, topic, name, number, now.set_at, recurs)
            found |= {(topic, name): made} if is_wanted(made) else {}
    wanted = defaultdict[int, list[int]](list)
    for pending in found.values():
        wanted[pending.partition].append(pending.generation)
    set_by: dict[tuple[int, int], Any] = {}
    for several in zip_longest(*wanted.values()):  # one record of each partition at a time: they are far apart
        spans = {
            TopicPartitionKey(log, number): (at, at + 1)
            for number, at in zip(wanted, several, strict=True)
            if at is not None
        }
        set_by |= {(record.partition(), record.offset()): record for record in _records(reader, spans, watch)}
    return {key: (pending, set_by.get((pending.partition, pending.generation))) for key, pending in found.items()}


def _records(reader: TopicReader, spans: Mapping[TopicPartitionKey, tuple[int, int]], watch: _Watch) -> Iterator[Any]:
    """Yield the records of these spans; `watch` also gets a None for each moment in which none arrives."""
    return (each for each in watch(reader.read_spans(spans, with_silence=True)) if each is not None)


def _until(until_s: float, what: str) -> _Watch:
    def watch(records: Iterable[Any]) -> Iterator[Any]:
        for number, record in enumerate(records):
            if time.monotonic() > until_s:
                raise BrokerUnavailableError(
                    f"{what} was not found in time, after {number:,} records: give it a longer timeout_s, or the "
                    f"result of the send, from which the search begins"
                )
            yield record

    return watch


def _begins_ms(reader: TopicReader, key: TopicPartitionKey, low: int, high: int) -> int | None:
    first = reader.first_records({key: (low, high)}).get(key) if low else None
    return int(first[0].timestamp()[1]) if first else None


def _bounds(reader: TopicReader, key: TopicPartitionKey, stored: int, hidden_s: float) -> tuple[int, int]:
    """Return the bounds of a partition; a transaction of the worker may hide a stored command for a moment."""
    until_s = time.monotonic() + hidden_s
    while True:
        low, high = reader.bounds(*key)
        if high > stored or time.monotonic() >= until_s:
            return low, high
        time.sleep(0.1)
