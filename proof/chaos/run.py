"""One run: start, one fault after the other, drain, dump, check."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs
from confluent_kafka import KafkaException

from proof.chaos.dump import commits, records
from proof.chaos.faults import FAULTS, FaultKind
from proof.chaos.plan import GROUPS, LEVELS, NAMES
from proof.chaos.stage import Stage
from proof.check import run as check
from proof.lines import Fault, Process, Sample, Setup
from proof.reader import read_folder
from proof.writer import HistoryWriter

__all__ = ["chaos"]

_START = {"worker": 2, "consumer": 2, "orderly": 2, "sender": 2}
_PAUSE_S = 1.5
_DRAIN_S = 120.0
_LAG_GONE = 400
Report = Callable[[str], None]


def chaos(folder: Path, seed: int, minutes: float, *, exactly_once: bool, report: Report) -> None:
    """Run for a number of minutes under faults, and write the history into a folder.

    Args:
        folder: is made; it must not be there yet.
        seed: chooses the faults and their targets. Processes and broker are not deterministic: a seed repeats the
            schedule of faults, not the run.
        minutes: how long faults are done.
        exactly_once: whether the workers run with `--exactly-once`.
        report: gets a line a step.
    """
    folder.mkdir(parents=True)
    dice = random.Random(seed)  # noqa: S311 - which fault comes next, no secret
    stage = Stage(folder, exactly_once=exactly_once)
    try:
        stage.open()
        with HistoryWriter(folder, Process(name="harness", role="harness")) as history:
            history.write(_setup(exactly_once=exactly_once))
            for role, count in _START.items():
                for _ in range(count):
                    stage.start(role)
            with _sampling(folder, stage):
                _faults(stage, history, dice, time.monotonic() + minutes * 60, report)
                for sender in stage.of_role("sender"):
                    stage.end(sender)
                _drain(folder, stage, report)
                for running in stage.running:
                    stage.end(running)
        _dump(folder, stage)
    finally:
        stage.close()


def _setup(*, exactly_once: bool) -> Setup:
    offset_ns = time.time_ns() - time.monotonic_ns()
    allow = tuple(topic for group in GROUPS if group.mode == "concurrent" for topic in group.topics)
    return Setup(
        namespace=NAMES.namespace, levels=LEVELS, groups=GROUPS, allow=allow, exactly_once=exactly_once,
        broker_minus_host_ns=offset_ns, lag_gone=_LAG_GONE,
    )  # fmt: skip


def _faults(stage: Stage, history: HistoryWriter, dice: random.Random, until: float, report: Report) -> None:
    due = list(FAULTS)  # each kind once, then by weight
    dice.shuffle(due)
    time.sleep(_PAUSE_S * 2)
    while time.monotonic() < until:
        kind = due.pop() if due else _chosen(dice)
        begin_ns = history.clock_ns()
        target = kind.do(stage, dice)
        end_ns = history.clock_ns()
        history.write(Fault(kind=kind.kind, target=target, begin_ns=begin_ns, end_ns=end_ns))
        report(f"{kind.kind} of {target}: {(end_ns - begin_ns) / 1e9:.1f} s")
        for ended in stage.ended_by_themselves():
            report(f"{ended.name} has ended by itself with {ended.popen.returncode}, and is replaced")
            stage.kill(ended)
            stage.start(ended.role)
        time.sleep(dice.random() * 2 * _PAUSE_S)


def _chosen(dice: random.Random) -> FaultKind:
    return dice.choices(FAULTS, [kind.weight for kind in FAULTS])[0]


@contextmanager
def _sampling(folder: Path, stage: Stage) -> Iterator[None]:
    """Measure lag and memory once a second, in a thread, for as long as this lasts."""
    ended = threading.Event()

    def measure() -> None:
        with HistoryWriter(folder, Process(name="samples", role="harness")) as history:
            while not ended.wait(1.0):
                _sample(stage, history)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _sample(stage: Stage, history: HistoryWriter) -> None:
    for group in GROUPS:
        try:
            lag = stage.lag(group.name, group.topics)
        except (KafkaException, TypeError):  # the broker is away; watermarks are None then
            continue
        history.write(Sample(what="lag", of=group.name, at_ns=history.clock_ns(), value=max(lag, 0)))
    for running in stage.running:
        try:
            resident = psutil.Process(running.popen.pid).memory_info().rss
        except psutil.Error:  # it was killed meanwhile
            continue
        history.write(Sample(what="rss_bytes", of=running.name, at_ns=history.clock_ns(), value=resident))


def _drain(folder: Path, stage: Stage, report: Report) -> None:
    """Wait until nothing is pending, judged by the checker itself."""
    end = time.monotonic() + _DRAIN_S
    while time.monotonic() < end:
        time.sleep(2.0)
        _dump(folder, stage)
        waiting = [violation for violation in check(read_folder(folder)) if violation.kind == "stuck"]
        if not waiting:
            return
        report(f"{len(waiting)} messages are pending")


def _dump(folder: Path, stage: Stage) -> None:
    (folder / "dump.jsonl").unlink(missing_ok=True)
    with HistoryWriter(folder, Process(name="dump", role="harness")) as history:
        logs = {NAMES.group_log(group.name) for group in GROUPS} | {NAMES.redrive_log}
        for record in records(stage.bootstrap, with_values=logs):
            history.write(record)
        for commit in commits(stage.bootstrap, {group.name for group in GROUPS} | {NAMES.worker_group}):
            history.write(commit)
