"""How late messages with a name are against others that are sent between them, by the broker's stamps."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proof.timers.judge import Arrived
from proof.timers.stage import NAMES, TARGET, Stage, open_stage
from rocketshim import Message, Producer
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local.startup_kit import FULL_COMPILER
from rocketshim_topics.durations import parse_duration_ms

__all__ = ["Late", "Pace", "judge_lateness", "lateness"]

_KINDS: Final = (b"named", b"plain")
_MOST_MORE_MS: Final = 30
_END_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What a run does.

    Attributes:
        rate: messages in a second, of which each second one has a name.
        seconds: for how long they are sent.
        warm_s: for how long the first of them are not judged: the broker's JVM compiles meanwhile.
        delay: of each; the default is a level, so that one queue is enough.
        exactly_once: how the worker delivers.
    """

    rate: float = 500.0
    seconds: float = 120.0
    warm_s: float = 60.0
    delay: str = "5s"
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
    with open_stage(folder, exactly_once=pace.exactly_once, jvm_options=[FULL_COMPILER]) as stage:
        stage.start_worker()
        stage.wait_ready()
        sent = _send(stage.bootstrap, pace)
        report(f"{len(sent)} messages are sent")
        stage.until(lambda: sent <= {each.body for each in stage.arrived()}, _END_S, "the last message")
        stage.end()
        return judge_lateness(_due(stage, sent, pace), stage.arrived(), tuple(stage.wrong), warm_s=pace.warm_s)


def judge_lateness(due: dict[bytes, int], arrived: list[Arrived], wrong: tuple[str, ...], *, warm_s: float) -> Late:
    """Compare the two kinds, by when each body is due. Those of the first `warm_s` are not compared."""
    counts = Counter(each.body for each in arrived if each.body in due)
    found = [f"{body!r} came {counts[body]} times" for body in due if counts[body] != 1]
    found += [f"{each.body!r} came early" for each in arrived if each.append_ms < due.get(each.body, 0)]
    since_ms = min(due.values(), default=0) + warm_s * 1_000
    late_ms: dict[str, tuple[int, ...]] = {}
    for kind in _KINDS:
        late = (
            each.append_ms - due[each.body]
            for each in arrived
            if each.body.startswith(kind) and due.get(each.body, 0) >= since_ms
        )
        late_ms[kind.decode()] = tuple(sorted(late))
    return Late(late_ms, (*wrong, *found))


def _send(bootstrap: str, pace: Pace) -> set[bytes]:
    """Send the messages, each second one with a name; return their bodies."""
    sent: set[bytes] = set()
    futures: list[Any] = []
    began_s, number = time.monotonic(), 0
    with Producer(bootstrap) as producer:
        while (passed_s := time.monotonic() - began_s) < pace.seconds:
            while number < passed_s * pace.rate:
                kind = _KINDS[number % len(_KINDS)]
                body, timer = b"%b.%d" % (kind, number), f"o-{number}" if kind == b"named" else None
                sent.add(body)
                futures.append(producer.send_async(Message(TARGET, body, delay=pace.delay, timer=timer)))
                number += 1
            time.sleep(0.001)
        for future in futures:
            future.result(120)
    return sent


def _due(stage: Stage, sent: set[bytes], pace: Pace) -> dict[bytes, int]:
    """Return when each message is due: its first record's append time and the delay, epoch ms."""
    due: dict[bytes, int] = {}
    with TopicReader(stage.bootstrap) as reader:
        for record in reader.read([NAMES.schedule, NAMES.timers]):
            if (body := record.value()) in sent:
                due_ms = record.timestamp()[1] + parse_duration_ms(pace.delay)
                due[body] = min(due_ms, due.get(body, due_ms))
    return due


def _part(values: tuple[int, ...], part: float) -> int:
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0
