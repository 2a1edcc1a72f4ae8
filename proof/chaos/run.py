"""One run: start, faults by three hands at the same time, drain, dump, check."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from confluent_kafka import KafkaException

from proof.background import in_background
from proof.chaos.cluster_faults import CLOCK_FAULTS, CLUSTER_FAULTS
from proof.chaos.dump import commits, records
from proof.chaos.fault import ClusterFault, LaneFault, PointNotReachedError, one_of
from proof.chaos.lane_faults import LANE_FAULTS
from proof.chaos.plan import LANES, LEVELS, Lane, Variant
from proof.chaos.sampling import Lags, sample
from proof.chaos.shop import problems
from proof.chaos.stage import Running, Stage
from proof.check import run as check
from proof.collection import paused_collection
from proof.lines import ENDED_BY_ITSELF, Fault, Process, Setup
from proof.reader import read_folder
from proof.writer import HistoryWriter

__all__ = ["KINDS", "Course", "chaos"]

KINDS: Final = frozenset(each.kind for each in (*CLUSTER_FAULTS, *CLOCK_FAULTS, *LANE_FAULTS))
"""The names of all kinds of faults."""
_PAUSE_S: Final = 1.5
_ROUND_S: Final = 240.0
_CALM_S: Final = 62.0
_DRAIN_S: Final = 600.0
_LOOK_EVERY_S: Final = 2.0
_JUDGE_EVERY_S: Final = 8.0  # to dump and to judge takes seconds of both cores
_START_S: Final = 120.0
_SOME_SENDS_BYTES: Final = 4_000
_LAG_GONE_S: Final = 2.0
_MEMORY_LIMIT_MIB: Final = 160.0  # twice the most that was measured in 15 minutes
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Course:
    """What a run shall be.

    Attributes:
        seed: chooses the faults and their targets. Processes and brokers are not deterministic: a seed repeats the
            schedule of faults, not the run. It also chooses the variant.
        minutes: how long faults are done.
        rate: messages a second that are sent in all; fewer if the machine is too slow.
        clocks: whether the brokers' clocks are set towards the end; this needs a JDK.
        only: kinds of faults that are done; None: all.
    """

    seed: int
    minutes: float
    rate: float
    clocks: bool = True
    only: frozenset[str] | None = None


def chaos(run: Path, course: Course, report: Report) -> list[str]:
    """Run under faults, and write a history into a folder for each lane.

    Returns:
        What went wrong beside the history: processes that ended by themselves or did not end in order, and faults that
        could not be done.
    """
    run.mkdir(parents=True)
    stage = Stage(
        run, rate=course.rate, messages=course.rate * course.minutes * 60, clocks=course.clocks,
        variant=Variant.of(course.seed),
    )  # fmt: skip
    try:
        stage.open()
        if stage.disk is None:
            report("no right to mount a small disk: none will be filled up")
        hands = [_Hand(stage, course, run, lane, report) for lane in LANES]
        cluster = _Hand(stage, course, run, None, report, others=hands)
        for hand in hands:
            hand.begin()
        with in_background(partial(sample, run, stage)):
            _await_sends(run)
            _rounds(course, [*hands, cluster], report)
            for lane in LANES:
                for sender in stage.of(lane, "sender"):
                    stage.end(sender)
                for shop in stage.of(lane, "shop"):
                    stage.control(shop, "quiet").touch()
            _drain(run, stage, report)
            ended = [each for lane in LANES for each in stage.ended_by_themselves(lane) if not stage.was_stuck(each)]
            for running in stage.running:
                stage.end(running)
        _dump(run, stage)
        wrong = [text for hand in (*hands, cluster) for text in hand.wrong]
        wrong += [text for lane in LANES for text in problems(run / lane.name, lane)]
        return [*wrong, *map(_ending, ended), *stage.bad_endings]
    finally:
        stage.close()


def _await_sends(run: Path) -> None:
    """Wait until every sender has sent: on a busy machine processes start slowly."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        time.sleep(0.5)
        senders = [list((run / lane.name).glob("sender*.jsonl")) for lane in LANES]
        if all(paths and paths[0].stat().st_size > _SOME_SENDS_BYTES for paths in senders):
            return


def _rounds(course: Course, hands: "list[_Hand]", report: Report) -> None:
    """Faults for some minutes at a time, and then none, so that it can be seen whether lag falls."""
    end = time.monotonic() + course.minutes * 60
    while (now := time.monotonic()) < end:
        until = end if end - now < _ROUND_S + _CALM_S else now + _ROUND_S
        threads = [threading.Thread(target=hand.work, args=(until, until == end)) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if course.minutes >= 1:
            report("calm")
            time.sleep(_CALM_S if course.minutes >= 5 else _CALM_S / 4)


_Kind = TypeVar("_Kind", ClusterFault, LaneFault)


@dataclass(slots=True)
class _Hand:
    """What does one fault after the other: to the processes of a lane, or (`lane` None) to what both share."""

    stage: Stage
    course: Course
    run: Path
    lane: Lane | None
    report: Report
    others: "list[_Hand]" = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    history: HistoryWriter | None = None
    dice: random.Random = field(default_factory=random.Random)
    _due: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.course.seed} {self.lane and self.lane.name}")  # noqa: S311 - no secret

    def begin(self) -> None:
        """Start the processes of the lane."""
        lane = self.lane
        if lane is None:
            return
        self.history = HistoryWriter(self.run / lane.name, Process(name="harness", role="harness"))
        self.history.write(_setup(lane, self.course))
        for role, count in lane.members.items():
            for place in range(count):
                self.stage.start(lane, role, place)

    def work(self, until: float, is_last: bool) -> None:
        """Do faults until a time."""
        begin = time.monotonic()
        time.sleep(_PAUSE_S * 2)
        while (now := time.monotonic()) < until:
            if self.lane is not None:
                self._hit_process(self.lane)
            elif is_last and self.course.clocks and now > until - (until - begin) / 5:
                for kind in self._wanted(CLOCK_FAULTS):
                    self._hit_cluster(kind)
                return
            elif kinds := self._wanted(CLUSTER_FAULTS):
                self._hit_cluster(self._chosen(kinds))
            time.sleep(self.dice.random() * 2 * _PAUSE_S)

    def _hit_cluster(self, kind: ClusterFault) -> None:
        self._write(kind.kind, lambda: kind.do(self.stage, self.dice))

    def _hit_process(self, lane: Lane) -> None:
        if kinds := self._wanted([kind for kind in LANE_FAULTS if kind.is_possible(lane)]):
            kind = self._chosen(kinds)
            running = one_of(self.stage, self.dice, lane, kind.roles)
            if running is not None:
                self._write(kind.kind, lambda: kind.do(self.stage, self.dice, running))
        for ended in self.stage.ended_by_themselves(lane):
            self.report(f"{_ending(ended)}, and is replaced")
            if not self.stage.was_stuck(ended):
                self.wrong.append(_ending(ended))
            self._write(ENDED_BY_ITSELF, partial(self._replace, ended))

    def _replace(self, ended: Running) -> str:
        self.stage.kill(ended)
        self.stage.start(ended.lane, ended.role, ended.place)
        return ended.name

    def _wanted(self, kinds: Sequence[_Kind]) -> list[_Kind]:
        return [kind for kind in kinds if self.course.only is None or kind.kind in self.course.only]

    def _chosen(self, kinds: Sequence[_Kind]) -> _Kind:
        """Each kind once, in an order that the seed chooses, and then by weight."""
        if not self._due:
            self._due = [kind.kind for kind in kinds]
            self.dice.shuffle(self._due)
            self._due.append("")  # from here on by weight
        if self._due[0]:
            name = self._due.pop(0)
            return next(kind for kind in kinds if kind.kind == name)
        return self.dice.choices(kinds, [kind.weight for kind in kinds])[0]

    def _write(self, kind: str, do: Callable[[], str]) -> None:
        begin_ns = time.monotonic_ns()
        try:
            target = do()
        except PointNotReachedError as missed:
            self.report(f"{kind}: {missed}, and was killed where it was")
            kind, target = "kill-9", missed.target
        except Exception as error:  # noqa: BLE001 - the run goes on; the history says what was done
            self.report(f"{kind} failed: {error!r}")
            self.wrong.append(f"fault {kind}: {error!r}")
            target = "cluster"
        end_ns = time.monotonic_ns()
        for hand in self.others or [self]:
            if hand.history is not None:
                hand.history.write(Fault(kind=kind, target=target, begin_ns=begin_ns, end_ns=end_ns))
        self.report(f"{kind} of {target}: {(end_ns - begin_ns) / 1e9:.1f} s")


def _ending(running: Running) -> str:
    return f"{running.name} has ended by itself with {running.popen.returncode}"


def _setup(lane: Lane, course: Course) -> Setup:
    return Setup(
        namespace=lane.name, levels=LEVELS, groups=Variant.of(course.seed).groups(lane), allow=lane.allow,
        exactly_once=lane.exactly_once,
        broker_minus_host_ns=time.time_ns() - time.monotonic_ns(), lag_gone=int(course.rate * _LAG_GONE_S),
        fleeting=lane.fleeting, memory_limit_mib=_MEMORY_LIMIT_MIB,
    )  # fmt: skip


def _drain(run: Path, stage: Stage, report: Report) -> None:
    """Wait until nothing is pending, by the groups' positions first, and then judged by the checker itself."""
    end, pause_s = time.monotonic() + _DRAIN_S, _LOOK_EVERY_S
    with closing(Lags(stage)) as lags:
        while time.monotonic() < end:
            time.sleep(pause_s)
            try:
                waiting = sum(behind for lane in LANES for behind in lags.of(lane).values())
            except KafkaException:
                continue
            report(f"{waiting} offsets are behind")
            if waiting > _MOST_MARKERS:
                continue
            _dump(run, stage)
            with paused_collection():
                stuck = [each for lane in LANES for each in check(read_folder(run / lane.name)) if each.kind == "stuck"]
            if not stuck:
                return
            pause_s = _JUDGE_EVERY_S
            report(f"{len(stuck)} messages are pending, for example: {stuck[0].what}")


_MOST_MARKERS: Final = 200
"""The ends of transactions have offsets, too; positions lie before the last ones."""


def _dump(run: Path, stage: Stage) -> None:
    bootstrap = stage.cluster.client_config()
    for lane in LANES:
        (run / lane.name / "dump.jsonl").unlink(missing_ok=True)
        with HistoryWriter(run / lane.name, Process(name="dump", role="harness")) as history:
            logs = {lane.names.group_log(group.name) for group in lane.groups} | {lane.names.redrive_log}
            for record in records(bootstrap, partial(_is_of, lane), with_values=logs):
                history.write(record)
            groups = {group.name for group in lane.groups} | {lane.names.worker_group}
            for commit in commits(bootstrap, groups):
                history.write(commit)


def _is_of(lane: Lane, topic: str) -> bool:
    return topic in lane.topics or topic.startswith(lane.names.prefix)
