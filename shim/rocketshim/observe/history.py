"""What a sampler has seen in the last hour, for sparklines: a point every 30 s, in memory. Pure.

* Counts are differences between two snapshots, partition by partition, and only of partitions that both have. So a
  partition whose leader is away for a while, or a group that could not be looked up, is not counted as a jump. A
  position that goes back counts nothing.
* While nobody watches, the sampler rests, and the points have a gap. What happened meanwhile is in none of them: an
  average of a night would look like the rate of now.
* Bounded: 121 points, and in each 32 bytes for each group. The names of the groups are stored once while they stay the
  same.

Thread-safety: one thread adds, any thread reads; the points are replaced by one assignment.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from rocketshim.observe.snapshot import GroupStanding, Snapshot, TopicSnapshot
from rocketshim_topics.names import TopicNames

__all__ = ["EVERY_MS", "GAP_MS", "HOUR_MS", "Flow", "History", "Series"]

EVERY_MS: Final = 30_000
GAP_MS: Final = 300_000
"""Two points that are further apart have a gap between them. A round takes less, also with many groups."""

HOUR_MS: Final = 3_600_000

Series = Literal["read", "behind", "retries", "dead", "waiting", "parked"]
_PER_MS: Final[Mapping[str, int]] = {"read": 1_000, "retries": 60_000, "dead": 60_000, "parked": 60_000}
"""The time that a count is given for: one second, or one minute; the other series are not counts."""


class Flow(NamedTuple):
    """What happened in a group, or in all, between two points; `behind` is at the second."""

    read: int = 0  # offsets that its positions moved by, the retry topic's included
    behind: int = 0
    retries: int = 0  # offsets appended to its retry topic
    dead: int = 0  # offsets appended to its dead-letter topic


@dataclass(frozen=True, slots=True)
class _Point:
    at_ms: int
    over_ms: int  # the time since the point before
    groups: Mapping[str, int]  # the number of each group in `flows`
    flows: "array[int]"
    total: Flow
    waiting: int
    parked: int

    def value(self, name: str, group: str | None) -> float | None:
        """Return what a series has here; None: the group was not seen."""
        if name in {"waiting", "parked"}:
            return float(getattr(self, name))
        field = Flow._fields.index(name)
        if group is None:
            return self.total[field]
        number = self.groups.get(group)
        return None if number is None else self.flows[len(self.total) * number + field]


class History:
    """The points of the last hour."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._last: Snapshot | None = None
        self._points: tuple[_Point, ...] = ()

    def add(self, snapshot: Snapshot) -> None:
        """Take a good snapshot; it becomes a point if the last one is 30 s old."""
        last = self._last
        if last is not None and 0 <= snapshot.at_ms - last.at_ms < EVERY_MS:
            return
        self._last = snapshot
        if last is None or snapshot.at_ms < last.at_ms:  # the first one, or the clock was set back
            self._points = ()
            return
        if snapshot.at_ms - last.at_ms >= GAP_MS:
            return
        before, dead = {each.group: each for each in last.groups}, _appended(last, snapshot)
        flows = {
            each.group: self._flow(before.get(each.group), each, dead.get(each.group, 0)) for each in snapshot.groups
        }
        names = {group: number for number, group in enumerate(flows)}
        known = self._points[-1].groups if self._points else None
        point = _Point(
            snapshot.at_ms,
            snapshot.at_ms - last.at_ms,
            known if known == names else names,
            array("q", (value for flow in flows.values() for value in flow)),
            Flow(*map(sum, zip(*flows.values(), strict=True))) if flows else Flow(),
            snapshot.waiting,
            dead.get(None, 0),
        )
        kept = (each for each in self._points if snapshot.at_ms - each.at_ms <= HOUR_MS)
        self._points = (*kept, point)

    def series(self, name: Series, group: str | None = None, *, since_ms: int = 0) -> list[tuple[int, float]]:
        """Return when and how much, oldest first, of one group or of all: `read` a second, other counts a minute."""
        per_ms, found = _PER_MS.get(name), []
        for point in self._points:
            if point.at_ms < since_ms:
                continue
            value = point.value(name, group)
            if value is not None:
                found.append((point.at_ms, value if per_ms is None else value * per_ms / point.over_ms))
        return found

    def _flow(self, before: GroupStanding | None, now: GroupStanding, dead: int) -> Flow:
        last = {} if before is None else {(each.topic, each.partition): each for each in before.partitions}
        read = retries = 0
        for each in now.partitions:
            old = last.get((each.topic, each.partition))
            if old is not None:
                read += max(0, each.position - old.position)
                if each.topic.startswith(self._names.retry_prefix) and old.end is not None:
                    retries += max(0, (each.end or 0) - old.end)
        return Flow(read, now.behind, retries, dead)


def _appended(last: Snapshot, now: Snapshot) -> dict[str | None, int]:
    """Return what was appended to the dead-letter topics, by group, and to the parking topic (None)."""
    unknown = {key.topic for key in (*last.unknown, *now.unknown)}
    before = {each.topic: each.appended for each in _topics(last)}
    return {
        each.group: max(0, each.appended - before.get(each.topic, 0))
        for each in _topics(now)
        if each.topic not in unknown
    }


def _topics(snapshot: Snapshot) -> tuple[TopicSnapshot, ...]:
    return snapshot.dead if snapshot.parked is None else (*snapshot.dead, snapshot.parked)
