"""Commits never pass an unfinished message, and never go back.

Two sources. The *calls* of members, where they were recorded, by the host's clock: exact. The *stored* positions of
`__consumer_offsets`, by the coordinator's clock: exact against append times; calls of listeners are compared with a
slack, since two clocks are involved.

While brokers are at fault, a commit that has no answer, or the copy of it that the client library sends, may be stored
after the next one. A stored position that is then not below those from before the fault, and is left again, is not
named.

A message to a topic that faults delete is relayed at an unknown time: its copy there may be gone, and a repeat be left.

What is never finished although the group is past it is `lost` (module `loss`), and not named here again.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from proof.history import Source
from proof.index import NS_PER_MS, Index, Stored
from proof.lines import Group
from proof.violation import Violation

__all__ = ["find", "relayed_ms"]

_SLACK_MS = 100
_NEVER = math.inf


def find(index: Index) -> Iterator[Violation]:
    """Find positions that went back, and commits that came before a message below them was finished."""
    yield from _stored_back(index)
    yield from _called_back(index)
    hop_ends = _hop_ends(index)
    for group in index.setup.groups:
        if group.mode != "broadcasting":  # it has no positions in Kafka
            queues = _queues_of(index, group)
            yield from _calls(index, group, queues, hop_ends)
            yield from _stored(index, group, queues, partial(_broker_ms, index, group.name))
    group = Group(name=index.names.worker_group, mode="concurrent", topics=tuple(index.waiting))
    queues = {
        queue: [
            record
            for record in records
            if record.it.committed and index.is_message(record) and not index.has_fleeting_target(record)
        ]
        for queue, records in index.queues.items()
        if queue.rpartition("/")[0] in index.waiting
    }
    yield from _stored(index, group, queues, relayed_ms)


def _calls(
    index: Index, group: Group, queues: dict[str, list[Stored]], hop_ends: dict[tuple[str, str], int]
) -> Iterator[Violation]:
    finished = _Finished(index, group, queues, partial(_host_ns, index, group.name, hop_ends))
    for call in index.history.commit_calls:
        if call.group == group.name:
            for queue, position in call.positions.items():
                yield from finished.passed(queue, position, call.begin_ns, call.source)


def _stored(
    index: Index, group: Group, queues: dict[str, list[Stored]], time_ms: Callable[[Stored], float]
) -> Iterator[Violation]:
    finished = _Finished(index, group, queues, time_ms)
    for queue in queues:
        for source, commit in index.commits_by_queue.get((group.name, queue), []):
            if index.is_comparable(commit.ms):
                yield from finished.passed(queue, commit.position, commit.ms, source)


def _queues_of(index: Index, group: Group) -> dict[str, list[Stored]]:
    queues: dict[str, list[Stored]] = defaultdict(list)
    for record in index.read_by(group):
        queues[f"{record.topic}/{record.partition}"].append(record)
    return queues


def relayed_ms(record: Stored) -> float:
    """When a record was relayed: -inf where that is not known, since a copy of it has its sender's time."""
    copies = record.committed_children()
    return min((copy.it.ms if copy.it.stamp == "append" else -_NEVER for copy in copies), default=-_NEVER)


class _Finished:
    """When the messages below a position were all finished.

    Args:
        index: of the history.
        group: whose positions.
        queues: its records by queue, by offset.
        finished: when a record was finished; -inf: at an unknown time, +inf: never.
    """

    def __init__(
        self, index: Index, group: Group, queues: dict[str, list[Stored]], finished: Callable[[Stored], float]
    ) -> None:
        self._index = index
        self._group = group
        self._offsets = {queue: [record.offset for record in records] for queue, records in queues.items()}
        self._last = {queue: _running_last(self._times(queue, records, finished)) for queue, records in queues.items()}

    def _times(
        self, queue: str, records: list[Stored], finished: Callable[[Stored], float]
    ) -> Iterator[tuple[float, Stored]]:
        position, _ = self._index.positions.get((self._group.name, queue), (0, None))
        for record in records:
            at = finished(record)
            yield (-_NEVER if at == _NEVER and position > record.offset else at), record

    def passed(self, queue: str, position: int, at: float, source: Source) -> Iterator[Violation]:
        """A commit at a time: the message below it that was finished only later."""
        below = bisect_left(self._offsets.get(queue, []), position)
        if below == 0:
            return
        finished, record = self._last[queue][below - 1]
        if finished > at:
            what = f"{self._group.name} committed {position} of {queue} before {record.it.where} was finished"
            yield Violation.of("commit-past-unfinished", what, [source, record.source])


def _running_last(times: Iterator[tuple[float, Stored]]) -> list[tuple[float, Stored]]:
    """For each message the one that was finished last of it and those before it."""
    last: list[tuple[float, Stored]] = []
    for at, record in times:
        last.append(last[-1] if last and last[-1][0] >= at else (at, record))
    return last


def _hop_ends(index: Index) -> dict[tuple[str, str], int]:
    """When the first next record of a failed message was known to be stored, by group and coordinates."""
    ends: dict[tuple[str, str], int] = {}
    for hop in index.history.hops:
        if hop.outcome == "ok" and hop.end_ns is not None:
            key = hop.group, hop.made_from
            ends[key] = min(hop.end_ns, ends.get(key, hop.end_ns))
    return ends


def _host_ns(index: Index, group: str, hop_ends: dict[tuple[str, str], int], record: Stored) -> float:
    where = record.it.where
    times = [float(d.end_ns) for d in index.deliveries.get((group, where), []) if d.outcome == "ok" and d.end_ns]
    if (group, where) in hop_ends:
        times.append(hop_ends[group, where])
    elif index.next_records(group, record):
        return -_NEVER
    return min(times, default=_NEVER)


def _broker_ms(index: Index, group: str, record: Stored) -> float:
    offset_ns = index.setup.broker_minus_host_ns
    times = [
        (d.end_ns + offset_ns) / NS_PER_MS - _SLACK_MS if offset_ns is not None else -_NEVER
        for d in index.deliveries.get((group, record.it.where), [])
        if d.outcome == "ok" and d.end_ns
    ]
    times += [child.it.ms if child.it.stamp == "append" else -_NEVER for child in index.next_records(group, record)]
    return min(times, default=_NEVER)


def _stored_back(index: Index) -> Iterator[Violation]:
    for (group, queue), commits in index.commits_by_queue.items():
        if queue.rpartition("/")[0] in index.setup.fleeting:
            continue  # a topic that is created again begins at 0
        highest, at = -1, None
        last = commits[-1][1].position
        for source, commit in commits:
            if commit.position >= highest:
                highest, at = commit.position, source
                continue
            since_ns = _brokers_at_fault_since_ns(index, commit.ms)
            before = [each.position for _, each in commits if (index.host_ns(each.ms) or 0) < since_ns]
            if last < highest or commit.position < max(before, default=0):
                what = f"{group}'s position of {queue} went back from {highest} to {commit.position}"
                yield Violation.of("commit-back", what, [at, source])


def _brokers_at_fault_since_ns(index: Index, ms: int) -> float:
    """When the fault of brokers began that may explain what is stored at this time; never: none does."""
    at_ns = index.host_ns(ms)
    recovery_ns = index.setup.recovery_ms * NS_PER_MS
    found = [
        fault.begin_ns
        for _, fault in index.faults
        if at_ns is not None
        and fault.begin_ns <= at_ns <= fault.end_ns + recovery_ns
        and (fault.target == "cluster" or fault.target.startswith("broker-"))
    ]
    return min(found, default=_NEVER)


def _called_back(index: Index) -> Iterator[Violation]:
    highest: dict[tuple[str, int, str], tuple[int, Source]] = {}
    for call in sorted(index.history.commit_calls, key=lambda each: each.begin_ns):
        for queue, position in call.positions.items():
            key = call.process, call.epoch, queue
            before, at = highest.get(key, (-1, None))
            if position < before:
                what = f"{call.process} committed {position} of {queue} after {before}, in one assignment"
                yield Violation.of("commit-back", what, [at, call.source])
            else:
                highest[key] = position, call.source
