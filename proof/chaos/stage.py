"""The broker and the processes of a run."""

import itertools
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from proof.chaos.plan import CONCURRENT, GROUPS, LEVELS, NAMES, ORDERLY, SESSION_S, TOPICS
from proof.chaos.sink import Sink
from proof.lines import Process
from proof.writer import HistoryWriter
from rocketshim_local import LocalCluster
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout, TopicSpec
from rocketshim_topics.levels import DelayLevels

__all__ = ["Running", "Stage"]

_ROOT = Path(__file__).parents[2]
_END_S = 60.0
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Running:
    """A process of the run."""

    name: str
    role: str
    popen: "subprocess.Popen[bytes]"


class Stage:
    """A one-broker cluster with the topics of a run, its processes, and the sink.

    Args:
        folder: where the history goes.
        exactly_once: whether workers run with `--exactly-once`.

    Thread-safety: faults and the harness use it from one thread; `lag` and `of_role` may be called from another.
    """

    def __init__(self, folder: Path, *, exactly_once: bool) -> None:
        self._folder = folder
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._exactly_once = exactly_once
        self._numbers: Counter[str] = Counter()
        self._plans = itertools.count(1)
        self._running: list[Running] = []
        self.cluster = LocalCluster(1, report=lambda _: None)
        self.sink = Sink(folder, ORDERLY.name)

    def open(self) -> None:
        """Start the broker and make the topics."""
        self.cluster.start()
        self.cluster.touch_internal_topics()
        layout = Layout(NAMES, DelayLevels.parse(LEVELS))
        stamped = {"message.timestamp.type": "LogAppendTime"}
        specs = [TopicSpec(topic, partitions, config=stamped) for topic, partitions in TOPICS.items()]
        specs += layout.shared()
        for group in GROUPS:
            specs += layout.for_group(group.name, with_log=group is ORDERLY)
        provision.ensure_topics(AdminClient({"bootstrap.servers": self.bootstrap}), specs)

    @property
    def bootstrap(self) -> str:
        """The broker's address; the same after a restart."""
        return self.cluster.bootstrap

    # --- processes ---------------------------------------------------------------------------------------------------

    def start(self, role: str) -> Running:
        """Start another process of a role."""
        self._numbers[role] += 1
        name = f"{role}-{self._numbers[role]}"
        command = [sys.executable, "-m"]
        if role == "worker":
            with HistoryWriter(self._folder, Process(name=name, role="worker", group=NAMES.worker_group)):
                pass
            command += [
                "rocketshim", "worker", "--bootstrap", self.bootstrap, "--namespace", NAMES.namespace,
                "--delay-levels", LEVELS, "--client", f"session.timeout.ms={SESSION_S * 1_000:.0f}",
                *(part for topic in CONCURRENT.topics for part in ("--allow", topic)),
                *(["--exactly-once", "--instance", name] if self._exactly_once else []),
            ]  # fmt: skip
        else:
            command += ["proof.chaos.program", role, str(self._folder), name, self.bootstrap, str(self.sink.port)]
        running = Running(name, role, self._popen(name, command))
        self._running.append(running)
        return running

    def _popen(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self._logs / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=_ROOT)  # noqa: S603 - our own programs

    def of_role(self, role: str) -> list[Running]:
        """The processes of a role that should be running."""
        return [running for running in self._running if running.role == role]

    @property
    def running(self) -> list[Running]:
        """All processes that should be running."""
        return list(self._running)

    def ended_by_themselves(self) -> list[Running]:
        """Processes that nobody ended, and that are gone."""
        return [running for running in self._running if running.popen.poll() is not None]

    def kill(self, running: Running) -> None:
        """`kill -9`."""
        running.popen.kill()
        running.popen.wait()
        self._running.remove(running)

    def end(self, running: Running) -> None:
        """End a process in order (SIGTERM); it is killed if that takes too long."""
        self._running.remove(running)
        running.popen.send_signal(signal.SIGTERM)
        try:
            running.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            running.popen.kill()
            running.popen.wait()

    # --- redrives ----------------------------------------------------------------------------------------------------

    def plan_redrive(self, group: str) -> Path:
        """Plan to send the group's dead letters again."""
        path = self._folder / f"plan-{next(self._plans)}.json"
        self._command("dlq", "plan", "--group", group, "--out", str(path))
        return path

    def apply_redrive(self, plan: Path, *, kill_after_s: float | None) -> str:
        """Apply a plan, perhaps not to its end; returns the name of the process."""
        self._numbers["redrive"] += 1
        name = f"redrive-{self._numbers['redrive']}"
        with HistoryWriter(self._folder, Process(name=name, role="redrive")):
            pass
        if plan.exists():
            command = ["rocketshim", "dlq", "apply", str(plan), "--bootstrap", self.bootstrap]
            process = self._popen(name, [sys.executable, "-m", *command])
            if kill_after_s is not None:
                time.sleep(kill_after_s)
                process.kill()
            process.wait(_END_S)
        return name

    def _command(self, *words: str) -> None:
        options = ["--bootstrap", self.bootstrap, "--namespace", NAMES.namespace]
        self._popen("command", [sys.executable, "-m", "rocketshim", *words, *options]).wait(_END_S)

    # --- what is measured --------------------------------------------------------------------------------------------

    def lag(self, group: str, topics: tuple[str, ...]) -> int:
        """How many offsets the group is behind in its topics and its retry topic."""
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0}
        asking = Consumer(config)
        try:
            counts = TOPICS | {NAMES.retry(group): 1}
            asked = [
                TopicPartition(name, number) for name in (*topics, NAMES.retry(group)) for number in range(counts[name])
            ]
            positions = asking.committed(asked, timeout=_ANSWER_S)
            ends = [asking.get_watermark_offsets(each, timeout=_ANSWER_S)[1] for each in asked]
            return sum(end - max(each.offset, 0) for each, end in zip(positions, ends, strict=True))
        finally:
            asking.close()

    def close(self) -> None:
        """End everything."""
        for running in list(self._running):
            running.popen.send_signal(signal.SIGCONT)
            self.kill(running)
        self.sink.close()
        self.cluster.stop()
