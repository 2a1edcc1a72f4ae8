"""A run with named timers: a sender sets, cancels and replaces them, workers are killed, and the log judges.

The sender knows when each timer is due. A tenth of the cancels are sent within 50 ms of that moment, the others at
random before it.
"""

import heapq
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from proof.background import in_background
from proof.timers.judge import Findings, Told, judge
from proof.timers.stage import LOOK_S, NAMES, TARGET, Stage, memory_mib, open_stage
from rocketshim import Message, Producer
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.hops import due_at_ms
from rocketshim_topics.wire import decode, read_headers

__all__ = ["Course", "timers"]

_NEAR_MS: Final = 50
_NEAR_SHARE: Final = 0.1
_RUN: Final = 1_000  # commands that one worker applies at a time at most (`drain_count`)
_END_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Course:
    """What a run does.

    Attributes:
        names: how many names are set; half of them are cancelled, a fifth replaced.
        kills: how often a worker is killed while they are due.
        exactly_once: how the workers deliver.
        workers: how many there are.
        delay_s: the least and the longest delay, in seconds.
        rate: names that are set in a second.
    """

    seed: int
    names: int = 200_000
    kills: int = 5
    exactly_once: bool = True
    workers: int = 1
    delay_s: tuple[float, float] = (5.0, 60.0)
    rate: float = 1_000.0


def timers(folder: Path, course: Course, report: Callable[[str], None]) -> Findings:
    """Make a run on a broker of its own, and judge it."""
    with open_stage(folder, exactly_once=course.exactly_once) as stage:
        killer = _Killer(stage, course)
        with in_background(lambda ended: killer.work(ended, report)):
            _send(stage.bootstrap, course, report)
            _await_the_end(stage, report)
        report(f"workers: {killer.most_mib:.0f} MiB at most")
        stage.end()
        repeats = 0 if course.exactly_once else course.kills * _RUN
        found = judge(_commands(stage.bootstrap), stage.arrived(), most_repeats=repeats)
        return replace(found, wrong=(*stage.wrong, *found.wrong))


class _Killer:
    """Kills a worker now and then, and starts another one."""

    def __init__(self, stage: Stage, course: Course) -> None:
        self.most_mib = 0.0
        self._stage, self._course = stage, course
        self._dice = random.Random(course.seed)  # noqa: S311 - the same run for a seed
        for place in range(course.workers):
            stage.start_worker(f"{place + 1}")

    def work(self, ended: threading.Event, report: Callable[[str], None]) -> None:
        """Kill a worker as often as the course says, spread over the time in which names are set and due."""
        course, stage = self._course, self._stage
        pause_s = (course.names / course.rate + course.delay_s[1]) / (course.kills + 1)
        for _ in range(course.kills):
            if self._rest(ended, pause_s * self._dice.uniform(0.7, 1.3)):
                break
            place = self._dice.choice(sorted(stage.running))
            stage.kill(place)
            report("kill -9 of a worker")
            stage.start_worker(place)
        self._rest(ended, None)

    def _rest(self, ended: threading.Event, seconds: float | None) -> bool:
        """Look at the workers until the time is over, or the run; return whether the run is."""
        until_s = math.inf if seconds is None else time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._stage.replace_ended()
            self.most_mib = max(self.most_mib, *map(memory_mib, self._stage.running.values()))
            if ended.wait(min(left_s, LOOK_S)):
                return True
        return False


def _send(bootstrap: str, course: Course, report: Callable[[str], None]) -> None:
    """Set the names; cancel half of them, and replace a fifth, at moments that are chosen when they are set."""
    dice = random.Random(course.seed + 1)  # noqa: S311 - the same run for a seed
    later: list[tuple[float, int, str]] = []  # (when, number, what)
    futures: list[Any] = []
    began_s, number = time.monotonic(), 0
    with Producer(bootstrap, delivery_timeout_ms=120_000) as producer:

        def put(number: int, round_: int) -> float:
            delay_s = round(dice.uniform(*course.delay_s), 3)
            message = Message(TARGET, b"%d.%d" % (number, round_), delay=delay_s, timer=f"o-{number}")
            futures.append(producer.send_async(message))
            return delay_s

        while number < course.names or later:
            now_s = time.monotonic()
            while number < min(course.names, (now_s - began_s) * course.rate):
                due_s = now_s + put(number, 0)
                share = dice.random()
                if share < 0.2:
                    heapq.heappush(later, (now_s + dice.uniform(0, due_s - now_s), number, "SET"))
                elif share < 0.7:
                    is_near = dice.random() < _NEAR_SHARE
                    near_s = due_s + dice.uniform(-_NEAR_MS, _NEAR_MS) / 1e3
                    heapq.heappush(later, (near_s if is_near else dice.uniform(now_s, due_s), number, "CANCEL"))
                number += 1
            while later and later[0][0] <= now_s:
                _, which, what = heapq.heappop(later)
                if what == "SET":
                    put(which, 1)
                else:
                    futures.append(producer.sender.command("CANCEL", TARGET, f"o-{which}", now_s + 60.0))
            time.sleep(0.001)
        for future in futures:
            future.result(120)
    report(f"{number} names are set, {len(futures)} commands in all, after {time.monotonic() - began_s:.0f} s")


def _await_the_end(stage: Stage, report: Callable[[str], None]) -> None:
    """Wait until every command is applied, and no name is pending; the judge finds what is missing then."""
    end_s = time.monotonic() + _END_S
    while time.monotonic() < end_s:
        unapplied, pending = stage.unapplied(), len(stage.pending())
        if not pending and not unapplied:
            return
        report(f"{pending} names are pending, {unapplied} commands are not applied")
        time.sleep(LOOK_S)


def _commands(bootstrap: str) -> Iterator[Told]:
    with TopicReader(bootstrap) as reader:
        for record in reader.read([NAMES.timers]):
            envelope = decode(read_headers(record), trusted=True)
            if envelope.timer is None:
                continue  # a probe
            append_ms = record.timestamp()[1]
            yield Told(
                record.partition(), record.offset(), append_ms, envelope.timer_do or "", envelope.timer,
                envelope.timer_set_at, due_at_ms(envelope.deliver_at_ms, envelope.delay_ms, append_ms, 0),
                record.value(),
            )  # fmt: skip
