"""A run with named timers: a sender sets, cancels and replaces them, workers are killed, and the log judges.

The sender knows when each timer is due. A tenth of the cancels are sent within 50 ms of that moment, the others at
random before it.
"""

import heapq
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from proof.background import in_background
from proof.chaos.children import start_module
from proof.timers.judge import Arrived, Findings, Told, judge
from rocketshim import Message, Producer
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import LocalCluster
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.hops import due_at_ms
from rocketshim_topics.layout import Layout
from rocketshim_topics.wire import decode, read_headers

__all__ = ["Course", "timers"]

_TARGET: Final = "order-timeouts"
_NEAR_MS: Final = 50
_NEAR_SHARE: Final = 0.1
_RUN: Final = 1_000  # commands that one worker applies at a time at most (`drain_count`)
_END_S: Final = 900.0
_LOOK_S: Final = 2.0
_STOP_S: Final = 60.0


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
    rate: float = 2_000.0


def timers(folder: Path, course: Course, report: Callable[[str], None]) -> Findings:
    """Make a run on a broker of its own, and judge it."""
    folder.mkdir(parents=True)
    with LocalCluster(data_dir=folder / "cluster", report=lambda _: None) as cluster:
        admin = AdminClient({**cluster.client_config()})
        layout = Layout(TopicNames(), DelayLevels.default())
        provision.ensure_topics(admin, [*layout.shared(), *layout.timers()])
        stamped = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
        admin.create_topics([NewTopic(_TARGET, 4, config=stamped)])[_TARGET].result(60)
        workers = _Workers(folder, cluster.bootstrap, course)
        try:
            with in_background(lambda ended: workers.kill_now_and_then(ended, report)):
                _send(cluster.bootstrap, course, report)
                _await_the_end(cluster.bootstrap, report)
            report(f"workers: {workers.most_mib:.0f} MiB at most")
            repeats = 0 if course.exactly_once else course.kills * _RUN
            return judge(_commands(cluster.bootstrap), _arrived(cluster.bootstrap), most_repeats=repeats)
        finally:
            workers.end()


class _Workers:
    """The worker processes; one is killed now and then, and started again."""

    def __init__(self, folder: Path, bootstrap: str, course: Course) -> None:
        self.most_mib = 0.0
        self._folder, self._bootstrap, self._course = folder, bootstrap, course
        self._dice = random.Random(course.seed)  # noqa: S311 - the same run for a seed
        self._started = 0
        self._running = [self._start() for _ in range(course.workers)]

    def _start(self) -> "subprocess.Popen[bytes]":
        self._started += 1
        words = ["worker", "--bootstrap", self._bootstrap, "--allow", _TARGET]
        words += ["--exactly-once"] if self._course.exactly_once else []
        return start_module(["rocketshim", *words], self._folder / f"worker-{self._started}.log")

    def kill_now_and_then(self, ended: Any, report: Callable[[str], None]) -> None:
        """Kill a worker as often as the course says, spread over the time in which names are set and due."""
        course = self._course
        pause_s = (course.names / course.rate + course.delay_s[1]) / (course.kills + 1)
        for _ in range(course.kills):
            if ended.wait(pause_s * self._dice.uniform(0.7, 1.3)):
                break
            self._measure()
            victim = self._dice.randrange(len(self._running))
            self._running[victim].kill()
            self._running[victim].wait()
            report("kill -9 of a worker")
            self._running[victim] = self._start()
        while not ended.wait(_LOOK_S):
            self._measure()

    def _measure(self) -> None:
        for each in self._running:
            if each.poll() is None:
                self.most_mib = max(self.most_mib, psutil.Process(each.pid).memory_info().rss / 2**20)

    def end(self) -> None:
        """Stop them in order."""
        for each in self._running:
            each.send_signal(signal.SIGTERM)
        for each in self._running:
            try:
                each.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


def _send(bootstrap: str, course: Course, report: Callable[[str], None]) -> None:
    """Set the names; cancel half of them, and replace a fifth, at moments that are chosen when they are set."""
    dice = random.Random(course.seed + 1)  # noqa: S311 - the same run for a seed
    later: list[tuple[float, int, str]] = []  # (when, number, what)
    futures: list[Any] = []
    began_s, number = time.monotonic(), 0
    with Producer(bootstrap, delivery_timeout_ms=120_000) as producer:

        def put(number: int, round_: int) -> float:
            delay_s = round(dice.uniform(*course.delay_s), 3)
            message = Message(_TARGET, b"%d.%d" % (number, round_), delay=delay_s, timer=f"o-{number}")
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
                    futures.append(producer.sender.command("CANCEL", _TARGET, f"o-{which}", now_s + 60.0))
            time.sleep(0.001)
        for future in futures:
            future.result(120)
    report(f"{number} names are set, {len(futures)} commands in all, after {time.monotonic() - began_s:.0f} s")


def _await_the_end(bootstrap: str, report: Callable[[str], None]) -> None:
    """Wait until every command is applied, and nothing waits in a delay queue."""
    end_s, names = time.monotonic() + _END_S, TopicNames()
    with TopicReader(bootstrap) as reader:
        while time.monotonic() < end_s:
            pending = len(_pending(reader, names))
            if not pending:
                return
            report(f"{pending} names are pending")
            time.sleep(_LOOK_S)


def _pending(reader: TopicReader, names: TopicNames) -> set[bytes]:
    live: set[bytes] = set()
    for record in reader.read([names.timer_state]):
        (live.discard if record.value() is None else live.add)(record.key())
    return live


def _commands(bootstrap: str) -> Iterator[Told]:
    with TopicReader(bootstrap) as reader:
        for record in reader.read([TopicNames().timers]):
            envelope = decode(read_headers(record), trusted=True)
            if envelope.timer is None:
                continue  # a probe
            append_ms = record.timestamp()[1]
            yield Told(
                record.partition(), record.offset(), append_ms, envelope.timer_do or "", envelope.timer,
                envelope.timer_set_at, due_at_ms(envelope.deliver_at_ms, envelope.delay_ms, append_ms, 0),
                record.value(),
            )  # fmt: skip


def _arrived(bootstrap: str) -> list[Arrived]:
    with TopicReader(bootstrap) as reader:
        return [Arrived(record.value(), record.timestamp()[1]) for record in reader.read([_TARGET])]
