"""What the log of timers says is delivered, told once more and slowly, against what is on the target. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Arrived", "Findings", "Told", "judge"]


class Told(NamedTuple):
    """One command, as read from the log; the commands of a partition in order."""

    partition: int
    offset: int
    append_ms: int
    command: str
    name: str
    generation: int | None
    due_ms: int
    body: bytes | None


class Arrived(NamedTuple):
    """One record of the target."""

    body: bytes
    append_ms: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What was counted; `wrong` is what breaks a promise."""

    wanted: int
    cancelled: int
    replaced: int
    too_late: int
    repeats: int
    late_ms: tuple[int, ...]
    wrong: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the figures for a person."""
        lines = [
            f"{self.wanted} to be delivered, {self.cancelled} cancelled in time, {self.too_late} too late",
            f"{self.replaced} replaced, {self.repeats} repeats, {len(self.wrong)} promises broken",
        ]
        if self.late_ms:
            at = [self.late_ms[min(len(self.late_ms) - 1, int(len(self.late_ms) * part))] for part in (0.5, 0.99, 1.0)]
            lines.append("late by {} ms (median), {} ms (99 of 100), {} ms at most".format(*at))
        return lines


def judge(commands: Iterable[Told], arrived: Sequence[Arrived], *, most_repeats: int) -> Findings:
    """Judge a run that has ended; each SET has a body of its own.

    A generation that was voided before its FIRE is never delivered, every other exactly once, apart from `most_repeats`
    repeats in all; none is early by the append times.
    """
    due: dict[bytes, int] = {}
    wanted: set[bytes] = set()
    cancelled = replaced = too_late = 0
    live: dict[tuple[int, str], tuple[int, bytes]] = {}
    for told in commands:
        key = told.partition, told.name
        pending = live.get(key)
        if told.command == "SET" and told.body is not None:
            replaced += pending is not None
            live[key] = told.offset, told.body
            due[told.body] = told.due_ms
        elif told.command == "CANCEL":
            cancelled += pending is not None
            too_late += pending is None
            live.pop(key, None)
        elif told.command == "FIRE" and pending is not None and pending[0] == told.generation:
            wanted.add(live.pop(key)[1])
    counts = Counter(each.body for each in arrived)
    repeats = sum(counts.values()) - len(counts)
    wrong = [f"{len(live)} names are pending"] if live else []
    wrong += [f"{body!r} was voided, and delivered" for body in sorted(counts.keys() - wanted)]
    wrong += [f"{body!r} is not delivered" for body in sorted(wanted - counts.keys())]
    wrong += [
        f"{each.body!r} came {due[each.body] - each.append_ms} ms early"
        for each in arrived
        if each.append_ms < due.get(each.body, 0)
    ]
    if repeats > most_repeats:
        wrong.append(f"{repeats} repeats, {most_repeats} are allowed")
    late = tuple(sorted(each.append_ms - due[each.body] for each in arrived if each.body in due))
    return Findings(len(wanted), cancelled, replaced, too_late, repeats, late, tuple(wrong))
