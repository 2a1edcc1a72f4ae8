"""Redrives of the group's dead letters: each is one process, which may crash at any call, or be overtaken by another.

A redrive has no loop that takes turns. So where it waits, and at each point of its protocol, the other processes take a
turn. A plan is applied again until it is finished, as a user would; the next plan has the dead letters since then.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from confluent_kafka import KafkaError

from proof.lines import Process
from proof.simulate.clients import CrashedError, ProcessClients
from proof.simulate.world import GROUP, NAMES, World
from rocketshim.admin.redrive import Journal, Redriver, read_log
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim.errors import RocketshimError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.redrive_log import MarkRecord, decode_redrive_record
from rocketshim_topics.redrive_plan import Planner, RedrivePlan, RedriveRules, redrive_id, redriven_record
from rocketshim_topics.wire import HOP_ID, REPLAY_ID, decode, headers_shown, read_headers

__all__ = ["Redrives"]

_SOURCE: Final = NAMES.dead_letter(GROUP.name)
_RULES: Final = RedriveRules(max_replays=1)
_MOST_TRIES: Final = 8
_FAULTS_UNTIL: Final = 6
_TIMED_OUT: Final = KafkaError(KafkaError._TIMED_OUT, retriable=True)  # noqa: SLF001


class Redrives:
    """Plans redrives and applies them.

    Args:
        world: what they run in.
        others: lets the other processes take a turn.
    """

    def __init__(self, world: World, others: Callable[[], None]) -> None:
        self._world = world
        self._others = others
        self._plan: RedrivePlan | None = None
        self._started = 0
        self._running: list[ProcessClients] = []

    def apply(self, amount: int) -> None:
        """Plan or resume, and apply the plan; `amount` tells where the process crashes, and who interferes."""
        plan = self._plan = self._plan or self._make_plan()
        if plan is None:
            return
        self._started += 1
        process = ProcessClients(self._world, f"redrive-{self._started}")
        self._world.process(Process(name=process.name, role="redrive"))
        if amount % 3:
            process.crash_at(amount // 3 % 90, after=amount % 2 == 1)
        rival_at = amount // 7 % 6 if not self._running and amount % 5 == 0 else -1
        self._running.append(process)
        try:
            self._run(plan, process, amount, rival_at=rival_at)
        finally:
            self._running.remove(process)

    def finish(self) -> bool:
        """Apply plans without crashes until no dead letter waits for one; return whether that succeeds."""
        for _ in range(_MOST_TRIES):
            self.apply(0)
            if self._plan is None and self._make_plan() is None:
                return True
        return False

    def problems(self) -> list[str]:
        """Return which dead letters are marked as redriven, and were not sent exactly once."""
        kafka = self._world.kafka
        sent = Counter(name for record in kafka.records(NAMES.retry(GROUP.name)) if (name := _sent_as(record)))
        marks = (decode_redrive_record(record.value()) for record in kafka.records(NAMES.redrive_log))
        marked = Counter(
            redrive_id(mark.plan, partition, offset)
            for mark in marks
            if isinstance(mark, MarkRecord)
            for partition, offset, _ in mark.letters
        )
        return [
            f"redrive: {name} was sent {sent[name]} times and marked {marked[name]} times"
            for name in sorted(sent | marked)
            if not sent[name] == marked[name] == 1
        ]

    def _run(self, plan: RedrivePlan, process: ProcessClients, amount: int, *, rival_at: int) -> None:
        world = self._world
        progress = RedriveProgress(plan.letters, rate_per_s=1.0 if amount % 4 else None, stop_ratio=1.0)
        reached = 0

        def interfere(point: str) -> None:
            nonlocal reached
            reached += 1
            self._others()
            if reached - 1 == rival_at:
                self.apply(0)
            if point == "produced" and amount // 11 % 3 == 1 and reached < _FAULTS_UNTIL:
                world.kafka.fail_transaction(_TIMED_OUT, call="commit_transaction", applied=True)
            elif point == "committed" and amount // 11 % 3 == 2:
                process.repeat_replies(1)

        def wait(seconds: float) -> None:
            world.clock.advance(seconds * 1_000)
            self._others()

        redriver = Redriver(
            "memory",
            Journal(NAMES.redrive_log, source=_SOURCE, plan=plan.id, state="redriven", by="ada"),
            progress,
            make=lambda message, letter: redriven_record(
                message, None, plan.rules, replay_id=redrive_id(plan.id, letter.partition, letter.offset)
            ),
            clients=process.factories(), clock=world.clock, wait=wait, report=_inside_transactions(interfere),
        )  # fmt: skip
        begin_ns = world.event_ns()
        try:
            with closing(redriver):
                redriver.run()
        except (CrashedError, RocketshimError) as error:
            world.note(process.name, "ends", type(error).__name__)
            world.fault("crash", process.name, begin_ns)
        else:
            if self._plan is plan and not progress.waiting:
                self._plan = None
        finally:
            if not process.is_dead:
                process.die()

    def _make_plan(self) -> RedrivePlan | None:
        with TopicReader("memory", clients=self._world.kafka.clients()) as reader:
            planner = Planner(_SOURCE, _RULES, read_log(reader, NAMES.redrive_log, _SOURCE), reader.topics())
        for record in self._world.kafka.records(_SOURCE):
            planner.add(record, decode(read_headers(record), trusted=True))
        plan = planner.plan(cluster_id="memory", created_ms=self._world.now_ms, choice={})
        return plan if plan.letters else None


def _inside_transactions(interfere: Callable[[str], None]) -> Callable[[str], None]:
    return lambda step: interfere(step) if step in {"produced", "committed"} else None


def _sent_as(record: Any) -> str | None:
    """Return the `REPLAY_ID` of a record that a redrive made; None: another process made it."""
    headers = dict(headers_shown(record))
    made_from, name = headers.get(HOP_ID) or b"", headers.get(REPLAY_ID)
    return None if name is None or not made_from.decode().startswith(f"{_SOURCE}/") else name.decode()
