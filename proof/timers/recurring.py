"""Messages that recur, over days of virtual time, with a worker that is restarted each hour.

The library's own producer and worker run on the Kafka in memory. Every second worker is killed, the others stop in
order; the next one starts up to a minute and a half later. What comes is compared with the calendar (`calendar`).
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from proof.timers.calendar import occurrences
from rocketshim import Message, Producer
from rocketshim.kafka.clients import Clients
from rocketshim.settings.worker import WorkerSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim.worker.worker import DelayWorker
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.layout import Layout
from rocketshim_topics.wire import UNIQ_KEY, headers_shown

__all__ = ["BOTH_CHANGES", "LINES", "Recurring", "recurring"]

BOTH_CHANGES: Final = datetime(2026, 3, 29, tzinfo=UTC)
"""In the seven days after it clocks are set forward in Berlin, and back in Sydney and on Chatham."""
_ZONES: Final = ("Europe/Berlin", "Australia/Sydney", "Pacific/Chatham", "Asia/Kolkata", "UTC")
LINES: Final = (
    "30 2 * * *", "0 2 * * *", "0 3 * * *", "15 1-4 * * *", "0,30 2,3 * * *", "*/30 * * * *", "10 * * * *",
    "0 */2 * * *", "*/20 2 * * *", "59 23 * * *", "0 0 * * *", "0 12 * * 0", "5 4 1 * *", "0 0 5 4 *", "45 1 * * 7",
    "0 6,18 * * *", "30 2 29 3 *", "*/15 9-17 * * 1-5", "0 3 * * 6,0", "0 9 * * 1-5",
)  # fmt: skip
_TARGET: Final = "reports"
_LONGEST_DOWN_S: Final = 90.0
_TURN_MS: Final = 60_000
_SETTLE_MS: Final = 300_000
_HOUR_MS: Final = 3_600_000
_HOURS_OF_A_DAY: Final = 24
_NAMES: Final = TopicNames()


@dataclass(frozen=True, slots=True)
class Recurring:
    """What a run does.

    Attributes:
        schedules: how many messages recur: lines of cron in several time zones.
        days: how many virtual days pass.
        exactly_once: how the workers deliver.
        start: when the messages are sent.
    """

    seed: int
    schedules: int = 100
    days: float = 7.0
    exactly_once: bool = True
    start: datetime = BOTH_CHANGES


@dataclass(frozen=True, slots=True)
class Came:
    """What a run has found; `wrong` is what breaks a promise."""

    wanted: int
    repeats: int
    restarts: int
    latest_ms: int
    wrong: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the figures for a person."""
        figures = f"{self.wanted} occurrences, {self.restarts} restarts, late by {self.latest_ms} ms at most"
        return [figures, f"{self.repeats} repeats, {len(self.wrong)} promises broken"]


def recurring(course: Recurring, report: Callable[[str], None]) -> Came:
    """Make a run, and compare what comes with the calendar."""
    run = _Run(course)
    schedules = list(_schedules(course))
    ids = run.send(schedules)
    after, until = datetime.fromtimestamp(run.clock.wall_ms() / 1_000, UTC), course.start + timedelta(days=course.days)
    run.pass_time(_ms(until), report)
    wanted = {
        b"%b.%d" % (uniq, due_ms)
        for uniq, (line, tz) in zip(ids, schedules, strict=True)
        for due_ms in occurrences(line, tz, after, until)
    }
    return _judged(wanted, run, _ms(until))


def _schedules(course: Recurring) -> Iterator[tuple[str, str]]:
    for number in range(course.schedules):
        yield LINES[number // len(_ZONES) % len(LINES)], _ZONES[number % len(_ZONES)]


def _judged(wanted: set[bytes], run: "_Run", until_ms: int) -> Came:
    arrived = run.arrived()
    due = {uniq: int(uniq.rpartition(b".")[2]) for uniq, _ in arrived}
    counts = Counter(uniq for uniq, _ in arrived if due[uniq] <= until_ms)
    most = 1 if run.exactly_once else 1 + run.restarts
    wrong = [f"{uniq!r} is not delivered" for uniq in sorted(wanted - counts.keys())]
    wrong += [f"{uniq!r} is delivered, and is not in the calendar" for uniq in sorted(counts.keys() - wanted)]
    wrong += [f"{uniq!r} came {due[uniq] - ms} ms early" for uniq, ms in arrived if ms < due[uniq]]
    wrong += [f"{uniq!r} came {times} times" for uniq, times in counts.items() if times > most]
    latest_ms = max((ms - due[uniq] for uniq, ms in arrived), default=0)
    return Came(len(wanted), sum(counts.values()) - len(counts), run.restarts, latest_ms, tuple(wrong))


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1_000)


class _Run:
    """A Kafka in memory, and one worker after the other.

    Attributes:
        restarts: how often another worker has started.
    """

    def __init__(self, course: Recurring) -> None:
        self.exactly_once, self.restarts = course.exactly_once, 0
        self._dice = random.Random(course.seed)  # noqa: S311 - the same run for a seed
        self.clock = VirtualClock(start_wall_ms=_ms(course.start), auto_advance=True)
        self.kafka = InMemoryKafka(self.clock)
        layout = Layout(_NAMES, DelayLevels.default())
        self.kafka.create_topics([*layout.shared(), *layout.timers()])
        self.kafka.create_topic(_TARGET, 1, config={"message.timestamp.type": "LogAppendTime"})
        self._made: list[Any] = []

    def send(self, schedules: list[tuple[str, str]]) -> list[bytes]:
        """Send a message for each schedule; return their ids."""
        with Producer("memory", clients=self.kafka.clients(), clock=self.clock) as producer:
            messages = [
                Message(_TARGET, b"%d" % number, timer=f"report-{number}", cron=line, tz=tz)
                for number, (line, tz) in enumerate(schedules)
            ]
            return [producer.send(each).msg_id.encode() for each in messages]

    def pass_time(self, until_ms: int, report: Callable[[str], None]) -> None:
        """Let one worker after the other run until a time, and the last one deliver what is due by then."""
        worker = self._start()
        while self.clock.wall_ms() + _HOUR_MS < until_ms:
            self._run(worker, self.clock.wall_ms() + _HOUR_MS)
            if self.restarts % 2:
                worker.close()
            else:
                for client in self._made:
                    self.kafka.kill(client)
            self._made.clear()
            self.restarts += 1
            self.kafka.compact(_NAMES.timer_state)
            self.clock.advance(self._dice.uniform(0, _LONGEST_DOWN_S) * 1_000)
            worker = self._start()
            if self.restarts % _HOURS_OF_A_DAY == 0:
                report(f"{self.restarts} restarts, {len(self.arrived())} messages came")
        self._run(worker, until_ms + _SETTLE_MS)
        worker.close()

    def arrived(self) -> list[tuple[bytes, int]]:
        """Return the id and the append time of each message that came."""
        return [
            (dict(headers_shown(record))[UNIQ_KEY] or b"", record.timestamp()[1])
            for record in self.kafka.records(_TARGET)
        ]

    def _start(self) -> DelayWorker:
        clients = self.kafka.clients(on_wait=self._wait)

        def noted(client: Any) -> Any:
            self._made.append(client)
            return client

        worker = DelayWorker(
            WorkerSettings.make(bootstrap="memory", allow=(_TARGET,), exactly_once=self.exactly_once),
            clients=Clients(
                consumer=lambda config: noted(clients.consumer(config)),
                producer=lambda config: noted(clients.producer(config)),
            ),
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        worker.start()
        return worker

    def _run(self, worker: DelayWorker, until_ms: int) -> None:
        while (left_ms := until_ms - self.clock.wall_ms()) > 0:
            before_ns = self.clock.monotonic_ns()
            worker.step(min(_TURN_MS, left_ms))
            if self.clock.monotonic_ns() == before_ns:
                self.clock.advance(0.01)  # work takes time, too

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds * 1_000 if seconds >= 0 else 100)
