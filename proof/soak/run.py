"""One soak: start, cycles of ten minutes in which members join and leave and dead letters are sent again, end.

Each cycle is the same, so that the same moment of two cycles can be compared: after two minutes a second process of
each role joins, after five these leave again, and after seven all dead letters are planned and sent again.
"""

import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka.admin import AdminClient

from proof.background import in_background
from proof.chaos.children import start_module
from proof.soak.judge import BROKER, CYCLE_S, Closing, Sample, describe, find
from proof.soak.plan import DEAD_LETTER_GROUPS, LANES, LEVELS, ROLES
from rocketshim_local import LocalCluster
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout, TopicSpec
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

__all__ = ["judged", "soak"]

_EVERY_S: Final = 10.0
_JOIN_S, _LEAVE_S, _REDRIVE_S = 120.0, 300.0, 420.0
_KILL_S: Final = 60.0
_COMMAND_S: Final = 300.0
Report = Callable[[str], None]


class _Stage:
    """The broker and the processes of a soak.

    Args:
        run: folder of the run.
        rate: messages a second that are sent in all.

    Thread-safety: `sample` may run in a thread of its own; all else, from one thread.
    """

    def __init__(self, run: Path, cluster: LocalCluster, rate: float, report: Report) -> None:
        self._run, self._cluster, self._rate, self._report = run, cluster, rate, report
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._began_s = time.monotonic()

    def make_topics(self) -> None:
        """Make the topics of the plan."""
        admin, levels = AdminClient({**self._cluster.client_config()}), DelayLevels.parse(LEVELS)
        for name, lane in LANES.items():
            layout = Layout(TopicNames(name), levels)
            specs = [TopicSpec(topic, partitions) for topic, partitions in lane.topics.items()]
            specs += layout.shared()
            for group in (role.group for role in ROLES.values() if role.lane == name and role.group):
                specs += layout.for_group(group, with_log=group == "bill")
            provision.ensure_topics(admin, specs)

    def start(self, role: str, number: int) -> None:
        """Start a process; the first ones of each role run until the end."""
        name = f"{role}.{number}"
        words = ["proof.soak.program", role, name, self._cluster.bootstrap, str(self._run)]
        words.append(str(self._rate / len(LANES)))
        if role.startswith("worker"):
            lane = LANES[ROLES[role].lane]
            words = ["rocketshim", "worker", *self._options(ROLES[role].lane), "--delay-levels", LEVELS]
            words += [word for topic in lane.topics for word in ("--allow", topic)]
            words += ["--exactly-once", "--instance", f"soak-{min(number, 2)}"] if lane.exactly_once else []
        self._running[name] = start_module(words, self._run / "logs" / f"{name}.log")

    def end(self, name: str) -> None:
        """End a process in order, and write down how long that took."""
        popen, begin_s = self._running.pop(name, None), time.monotonic()
        if popen is None:  # it has ended by itself
            return
        popen.send_signal(signal.SIGTERM)
        try:
            code = popen.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            code = popen.wait()
        self._ended(Closing(name, time.monotonic() - begin_s, code))

    def _ended(self, closing: Closing) -> None:
        self._write("closings", asdict(closing))
        how = "by itself" if closing.by_itself else f"after {closing.seconds:.1f} s"
        self._report(f"{closing.process} has ended {how} with {closing.code}")

    def redrive(self, number: int) -> None:
        """Send all dead letters again."""
        for group, lane in DEAD_LETTER_GROUPS.items():
            plan = self._run / f"plan-{group}-{number}.json"
            log = self._run / "logs" / f"redrive-{group}.log"
            words = ["dlq", "plan", "--group", group, "--out", str(plan), *self._options(lane)]
            start_module(["rocketshim", *words], log).wait(_COMMAND_S)
            if plan.exists():
                words = ["dlq", "apply", str(plan), "--bootstrap", self._cluster.bootstrap]
                code = start_module(["rocketshim", *words], log).wait(_COMMAND_S)
                self._report(f"dead letters of {group} are sent again: {code}")

    def _options(self, lane: str) -> list[str]:
        return ["--bootstrap", self._cluster.bootstrap, "--namespace", lane]

    def sample(self, ended: threading.Event) -> None:
        """Measure until the end."""
        while not ended.wait(_EVERY_S):
            pids = {name: popen.pid for name, popen in self._running.copy().items()}
            for name, pid in {BROKER: self._cluster.pid(1), **pids}.items():
                with suppress(psutil.Error):  # it has ended
                    self._write("samples", asdict(_measured(name, pid, time.monotonic() - self._began_s)))

    def cycle(self, number: int, end_s: float) -> None:
        """Do what happens in each cycle; the last one may be shorter."""
        begin_s = (number - 1) * CYCLE_S
        joining = [name for name, role in ROLES.items() if role.grows]

        def join() -> None:
            for role in joining:
                self.start(role, number + 1)

        def leave() -> None:
            for role in joining:
                self.end(f"{role}.{number + 1}")

        for at_s, do in ((_JOIN_S, join), (_LEAVE_S, leave), (_REDRIVE_S, lambda: self.redrive(number))):
            self._await(min(begin_s + at_s, end_s))
            if begin_s + at_s < end_s:
                do()
        self._await(min(begin_s + CYCLE_S, end_s))

    def _await(self, at_s: float) -> None:
        """Wait for a moment of the run."""
        while (left_s := at_s - (time.monotonic() - self._began_s)) > 0:
            time.sleep(min(left_s, 1.0))
            for name, popen in list(self._running.items()):
                if (code := popen.poll()) is not None:
                    del self._running[name]
                    self._ended(Closing(name, 0.0, code, by_itself=True))

    def end_all(self) -> None:
        """End all processes one after the other, the senders last: the others close under load."""
        for name in sorted(self._running, key=lambda name: name.startswith("sender")):
            self.end(name)

    def kill_all(self) -> None:
        """Leave no process."""
        for popen in self._running.values():
            popen.kill()
            popen.wait()

    def _write(self, what: str, line: dict[str, object]) -> None:
        with (self._run / f"{what}.jsonl").open("a", encoding="ascii") as file:
            file.write(json.dumps(line) + "\n")


def soak(run: Path, minutes: float, rate: float, report: Report) -> None:
    """Run a mixed load, and write samples and closings into a folder."""
    for folder in ("logs", "counts", "positions"):
        (run / folder).mkdir(parents=True)
    with LocalCluster(1) as cluster:
        stage = _Stage(run, cluster, rate, report)
        try:
            stage.make_topics()
            for role in ROLES:
                stage.start(role, 1)
            with in_background(stage.sample):
                end_s, number = minutes * 60, 0
                while number * CYCLE_S < end_s:
                    number += 1
                    report(f"cycle {number}")
                    stage.cycle(number, end_s)
                stage.end_all()
        finally:
            stage.kill_all()


def judged(run: Path) -> tuple[list[str], list[str]]:
    """Judge the folder of a soak; returns its figures, and what is wrong."""
    samples = [Sample(**line) for line in _lines(run / "samples.jsonl")]
    closings = [Closing(**line) for line in _lines(run / "closings.jsonl")]
    total: Counter[str] = Counter()
    for path in (run / "counts").iterdir():
        for what, count in json.loads(path.read_text()).items():
            total[f"{path.name.partition('.')[0]}: {what}"] += count
    counts = [f"{what} {count}" for what, count in sorted(total.items())]
    return [*describe(samples, closings), *counts], list(find(samples, closings))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(line)


def _measured(name: str, pid: int, at_s: float) -> Sample:
    process = psutil.Process(pid)
    with process.oneshot():
        return Sample(
            process=name, at_s=at_s, rss_bytes=process.memory_info().rss, threads=process.num_threads(),
            handles=process.num_fds(), sockets=len(process.net_connections("all")),
        )  # fmt: skip
