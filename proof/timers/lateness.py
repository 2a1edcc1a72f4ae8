"""How late a message with a name is against one without, both sent at the same moments for the same times."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from proof.timers.judge import Arrived
from proof.timers.stage import TARGET, open_stage
from rocketshim import Message, Producer

__all__ = ["Late", "Pace", "judge_lateness", "lateness"]

_KINDS: Final = (b"named", b"plain")
_MOST_MORE_MS: Final = 30
_DELAY_S: Final = (2.0, 12.0)
_END_S: Final = 300.0
_WARM_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What a run does.

    Attributes:
        rate: messages of each kind in a second.
        seconds: for how long they are sent.
        exactly_once: how the worker delivers.
    """

    seed: int
    rate: float = 500.0
    seconds: float = 60.0
    exactly_once: bool = True


@dataclass(frozen=True, slots=True)
class Late:
    """What a run has found; `wrong` is what breaks a promise, `more_ms` what a name costs (99 of 100)."""

    late_ms: dict[str, tuple[int, ...]]
    wrong: tuple[str, ...]

    @property
    def more_ms(self) -> int:
        """How much later 99 of 100 named messages are than 99 of 100 others."""
        named, plain = (_part(self.late_ms[kind.decode()], 0.99) for kind in _KINDS)
        return named - plain

    def lines(self) -> list[str]:
        """Return the figures for a person."""
        lines = [
            f"{kind}: {len(late)} messages, late by {_part(late, 0.5)} ms (median), {_part(late, 0.99)} ms "
            f"(99 of 100), {late[-1] if late else 0} ms at most"
            for kind, late in self.late_ms.items()
        ]
        return [*lines, f"a name costs {self.more_ms} ms (99 of 100); the aim is {_MOST_MORE_MS} ms at most"]


def lateness(folder: Path, pace: Pace, report: Callable[[str], None]) -> Late:
    """Make a run on a broker of its own, and judge it."""
    with open_stage(folder, exactly_once=pace.exactly_once) as stage:
        stage.start_worker()
        stage.wait_ready()
        sent = _send(stage.bootstrap, pace)
        report(f"{len(sent)} messages are sent")
        stage.until(lambda: len({each.body for each in stage.arrived()} - {b"ready"}) >= len(sent), _END_S, "the last")
        stage.end()
        return judge_lateness(sent, stage.arrived(), tuple(stage.wrong), warm_s=_WARM_S)


def judge_lateness(sent: dict[bytes, int], arrived: list[Arrived], wrong: tuple[str, ...], *, warm_s: float) -> Late:
    """Compare the two kinds; a message is due at `sent[body]`. Those of the first `warm_s` are not compared."""
    counts = Counter(each.body for each in arrived if each.body in sent)
    found = [f"{body!r} came {counts[body]} times" for body in sent if counts[body] != 1]
    found += [f"{each.body!r} came early" for each in arrived if each.append_ms < sent.get(each.body, 0)]
    since_ms = min(sent.values(), default=0) + warm_s * 1_000
    late_ms: dict[str, tuple[int, ...]] = {}
    for kind in _KINDS:
        late = (
            each.append_ms - sent[each.body]
            for each in arrived
            if each.body.startswith(kind) and sent.get(each.body, 0) >= since_ms
        )
        late_ms[kind.decode()] = tuple(sorted(late))
    return Late(late_ms, (*wrong, *found))


def _send(bootstrap: str, pace: Pace) -> dict[bytes, int]:
    """Send the messages in pairs; return when each is due, epoch ms."""
    dice = random.Random(pace.seed)  # noqa: S311 - the same run for a seed
    sent: dict[bytes, int] = {}
    futures: list[Any] = []
    began_s, number = time.monotonic(), 0
    with Producer(bootstrap) as producer:
        while (passed_s := time.monotonic() - began_s) < pace.seconds:
            while number < passed_s * pace.rate:
                due_ms = round((time.time() + dice.uniform(*_DELAY_S)) * 1_000)
                due = datetime.fromtimestamp(due_ms / 1_000, UTC)
                for kind in _KINDS:
                    body = b"%b.%d" % (kind, number)
                    timer = f"o-{number}" if kind == b"named" else None
                    sent[body] = due_ms
                    futures.append(producer.send_async(Message(TARGET, body, deliver_at=due, timer=timer)))
                number += 1
            time.sleep(0.001)
        for future in futures:
            future.result(120)
    return sent


def _part(values: tuple[int, ...], part: float) -> int:
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0
