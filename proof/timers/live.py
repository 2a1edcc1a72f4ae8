"""A worker with very many pending names: its memory, and how long it takes to go on after `kill -9`."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from proof.timers.stage import TARGET, Stage, memory_mib, most_memory_mib, open_stage
from rocketshim import Message, Producer

__all__ = ["Live", "Names", "live_names"]

_FAR: Final = "12h"
_NEAR: Final = 100
_BEFORE_S: Final = 0.5  # before the near ones are due, the worker is killed
_APPLIED_S: Final = 3_600.0
_MOST_UNDER_WAY: Final = 20_000
_MOST_MIB: Final = 200
_MOST_S: Final = 15


@dataclass(frozen=True, slots=True)
class Names:
    """What a run does.

    Attributes:
        count: how many names are pending.
        exactly_once: how the worker delivers.
        near_s: when the messages are due that are seen to fire, in seconds.
        settled_s: how long a worker rests before its memory is measured.
    """

    count: int = 1_000_000
    exactly_once: bool = True
    near_s: float = 15.0
    settled_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Live:
    """What a run has found; memory in MiB.

    Attributes:
        empty: of a worker without names.
        full, most: of one that has set all the names itself, a while later, and at most.
        restarted, most_restarted: of the one that was started again.
        first_s, all_s: from its start until the first and the last of the due messages was delivered.
    """

    count: int
    per_s: float
    empty: float
    full: float
    most: float
    restarted: float
    most_restarted: float
    first_s: float
    all_s: float
    wrong: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the figures for a person."""
        more, more_again = self.full - self.empty, self.restarted - self.empty
        return [
            f"{self.count} names, set at {self.per_s:.0f} a second; the aim is {_MOST_MIB} MiB and {_MOST_S} s at most",
            f"set: {self.full:.0f} MiB, {more:.0f} more than empty, {self.most:.0f} at most",
            f"read: {self.restarted:.0f} MiB, {more_again:.0f} more than empty, {self.most_restarted:.0f} at most",
            f"from a start after kill -9 to the first message {self.first_s:.1f} s, to the last {self.all_s:.1f} s",
        ]


def live_names(folder: Path, names: Names, report: Callable[[str], None]) -> Live:
    """Make a run on a broker of its own."""
    with open_stage(folder, exactly_once=names.exactly_once) as stage:
        worker = stage.start_worker()
        stage.wait_ready()
        time.sleep(names.settled_s)
        empty = memory_mib(worker)
        report(f"a worker without names has {empty:.0f} MiB")
        per_s = _set(stage, names.count, report)
        time.sleep(names.settled_s)
        full, most = memory_mib(worker), most_memory_mib(worker)
        report(f"{full:.0f} MiB with {names.count} names")
        bodies, due = _set_near(stage, names.near_s)
        time.sleep(max(0.0, due.timestamp() - _BEFORE_S - time.time()))
        stage.kill()
        began_ms = time.time() * 1_000
        worker = stage.start_worker()
        stage.until(lambda: bodies <= {each.body for each in stage.arrived()}, 300.0, "the last message")
        time.sleep(names.settled_s)
        restarted, most_restarted = memory_mib(worker), most_memory_mib(worker)
        arrived = stage.arrived()
        stage.end()
        came_ms = sorted(each.append_ms for each in arrived if each.body in bodies)
        wrong = [*stage.wrong, *_wrong(Counter(each.body for each in arrived), bodies, names)]
        wrong += [f"one came at {came_ms[0]}, due is {due}"] if came_ms[0] < due.timestamp() * 1_000 else []
        return Live(
            names.count, per_s, empty, full, most, restarted, most_restarted,
            (came_ms[0] - began_ms) / 1e3, (came_ms[-1] - began_ms) / 1e3, tuple(wrong),
        )  # fmt: skip


def _wrong(counts: Counter[bytes], bodies: set[bytes], names: Names) -> list[str]:
    most = 1 if names.exactly_once else 2
    wrong = [f"{body!r} came, and is not due" for body in counts.keys() - bodies - {b"ready"}]
    return wrong + [f"{body!r} came {counts[body]} times" for body in bodies if not 1 <= counts[body] <= most]


def _set(stage: Stage, count: int, report: Callable[[str], None]) -> float:
    """Set the names, and wait until they are pending; return how many a second were."""
    began_s = time.monotonic()
    under_way: deque[Any] = deque()
    with Producer(stage.bootstrap) as producer:
        for number in range(count):
            under_way.append(producer.send_async(Message(TARGET, b"far", delay=_FAR, timer=f"far-{number}")))
            if len(under_way) > _MOST_UNDER_WAY:
                under_way.popleft().result(120)
        for future in under_way:
            future.result(120)
    report(f"{count} names are sent after {time.monotonic() - began_s:.0f} s")
    stage.until(lambda: not stage.unapplied(), _APPLIED_S, "the last command's state", look_s=2.0)
    return count / (time.monotonic() - began_s)


def _set_near(stage: Stage, near_s: float) -> tuple[set[bytes], datetime]:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=near_s)
    bodies = [b"near-%d" % number for number in range(_NEAR)]
    with Producer(stage.bootstrap) as producer:
        producer.send_batch([Message(TARGET, body, deliver_at=due, timer=body.decode()) for body in bodies])
    stage.until(lambda: not stage.unapplied(), near_s, "the state of the near names")
    return set(bodies), due
