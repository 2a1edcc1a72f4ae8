"""Execute a plan, wait until nothing is pending, and have the checker judge the history."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from proof.check import run as judge
from proof.simulate.dropin import Dropin, style_of
from proof.simulate.dropin_client import DropinClients
from proof.simulate.orderly import Sink, lose_log
from proof.simulate.plan import Plan, Step
from proof.simulate.processes import CLASSIC, KIP_848, Consumer, Place, Shell, Worker
from proof.simulate.redrive import Redrives
from proof.simulate.sender import Sender
from proof.simulate.virtual_time import virtual_time
from proof.simulate.world import FORMER_TOPIC, GROUP, NAMES, World

if TYPE_CHECKING:
    from rocketshim.testing.faults import CallFault, ProduceFault

__all__ = ["Outcome", "simulate"]

_DRAIN_TURNS: Final = 1_500
_DRAIN_WAIT_MS: Final = 100  # in which nothing new happens: few turns take the delays of the pending messages
_DOWN_MS: Final = 100
_FORMER_PLACE: Final = "pay-a"
_DEPLOYED_AT_TURN: Final = 100  # until then it gets some retries
_TOPICS: Final = (NAMES.schedule, "orders", NAMES.retry(GROUP.name), NAMES.dead_letter(GROUP.name), None)
_REFUSALS: Final = (
    KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._MSG_TIMED_OUT, KafkaError.REQUEST_TIMED_OUT  # noqa: SLF001
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        plan: what was executed.
        problems: what is wrong, each beginning with its kind; none: nothing.
        trace: what happened, in order.
        sends, deliveries, faults: how many.
    """

    plan: Plan
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    sends: int
    deliveries: int
    faults: int

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of what is wrong."""
        return frozenset(problem.partition(":")[0] for problem in self.problems)


class Simulation:
    """One run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(
            exactly_once=plan.exactly_once,
            is_orderly=plan.orderly,
            dead_every=3 if plan.redrives else 11,
            has_killers=plan.killers,
            has_timers=plan.timers,
        )
        if plan.churns:
            self.world.commit_interval_ms = 20_000
        self.sink = Sink(self.world) if plan.orderly else None
        numbers = count()
        self.sender = Place(self.world, "sender", lambda name: Sender(self.world, name, numbers))
        workers = [Place(self.world, name, partial(self._worker, name)) for name in ("worker-a", "worker-b")]
        self.places = [
            *(workers[:1] * 2 if plan.alone else workers),
            *(Place(self.world, name, self._consumer) for name in ("pay-a", "pay-b")),
        ]
        self.redrives = Redrives(self.world, self._turns)
        self.dropins = DropinClients(self.world, self._turns) if plan.dropin else None
        self._topics = (*_TOPICS, NAMES.timers, NAMES.timer_state) if plan.timers else _TOPICS
        self._broker_back_ms: int | None = None
        self._down_ns = 0
        self._held_ns: int | None = None
        self._skew_ms = self._most_skew_ms = 0
        self._wrong_answers = 0
        self._is_deployed = False  # every consumer that starts from now on is of the new version

    def _worker(self, place: str, name: str) -> Shell:
        return Worker(self.world, place, name, exactly_once=self.plan.exactly_once)

    def _consumer(self, name: str) -> Shell:
        if self.dropins is not None:
            return Dropin(self.world, name, self.dropins, style_of(self.plan.seed))
        is_former = self.plan.rolling and not self._is_deployed and name.startswith(_FORMER_PLACE)
        protocol, topic = KIP_848 if self.plan.kip_848 else CLASSIC, FORMER_TOPIC if is_former else GROUP.topics[0]
        return Consumer(self.world, name, self.sink, protocol, topic)

    def step(self, step: Step) -> None:
        """Execute a step of the plan."""
        world, amount = self.world, step.amount
        place = self.places[step.who % len(self.places)]
        if self._broker_back_ms is not None and world.now_ms >= self._broker_back_ms:
            self._start_broker()
        match step.kind:
            case "send" | "name" | "half":
                self._send(step)
            case "turn":
                world.longest_wait_ms = (1, 5, 20, 100)[amount % 4]
                place.turn(lambda shell: shell.turn())
            case "listen":
                self._listen(self.places[2 + step.who % 2], amount)
            case "hear":
                self._hear(self.places[2 + step.who % 2])
            case "report":
                self.sender.turn(lambda shell: shell.turn())
            case "pass":
                world.clock.advance(amount % 1_500)
            case "release":
                self._release()
            case "settle" | "redrive" | "sender" | "log" | "half-answer":
                self._rarely(step)
            case _:
                world.note("fault", step.kind, f"{place.name} {amount}")
                self._fault(step, place)
        self._note_wrong_answers()

    def _send(self, step: Step) -> None:
        def send(shell: Shell) -> None:
            if isinstance(shell, Sender):
                shell.send(step.who + 4 * (step.amount % 8), step.amount // 8)

        def send_named(shell: Shell) -> None:
            if isinstance(shell, Sender):
                shell.send_named(step.amount % 8, step.amount // 8)

        def begin_transaction(shell: Shell) -> None:
            if isinstance(shell, Sender):
                shell.begin_transaction(step.amount % 8, step.amount // 8)

        self.sender.turn({"name": send_named, "half": begin_transaction}.get(step.kind, send))

    def _rarely(self, step: Step) -> None:
        if step.kind == "settle":
            self._settle()
        elif step.kind == "sender":
            self.world.note("fault", "sender", str(step.amount))
            self._disturb_sender(step.amount)
        elif step.kind == "log":
            self.world.note("fault", "log", str(step.amount))
            lose_log(self.world, step.amount)
        elif step.kind == "half-answer":
            self.world.half_answers += 1 + step.amount % 6
        elif self._broker_back_ms is None:
            self.redrives.apply(step.amount)

    def _listen(self, place: Place, amount: int) -> None:
        def listen(shell: Shell) -> None:
            if isinstance(shell, Consumer):
                shell.pool.work(late=amount % 4 == 0)

        if place.shell is not None:
            place.turn(listen)

    def _hear(self, place: Place) -> None:
        if isinstance(place.shell, Consumer):
            place.shell.pool.hear()

    def _fault(self, step: Step, place: Place) -> None:
        world, amount = self.world, step.amount
        match step.kind:
            case "crash":
                if place.shell is not None:
                    place.shell.clients.crash_at(amount // 2 % 40, after=amount % 2 == 1)
            case "repeat-reply":
                self._repeat_reply(place, 1 + amount % 2)
            case "freeze":
                place.freeze((200, 2_000, 8_000, 12_000)[amount % 4])
            case "leave":
                place.leave()
            case "evict":
                self._evict(place)
            case "clock":
                self._set_clock((-3_600_000, -500, 0, 500, 3_600_000)[amount % 5])
            case "broker-down":
                self._stop_broker((50, 500, 3_000)[amount % 3])
            case "hold":
                self._hold(amount)
            case _:
                begin_ns = world.event_ns()
                self._answer_wrongly(step)
                world.fault(step.kind, "cluster", begin_ns)

    def _disturb_sender(self, amount: int) -> None:
        match amount % 4:
            case 2:
                self._repeat_reply(self.sender, 1 + amount // 4 % 3)
            case 3:
                self.sender.leave()
            case _ if self.sender.shell is not None:
                self.sender.shell.clients.crash_at(amount // 4 % 8, after=amount % 2 == 1)
            case _:
                pass

    def _repeat_reply(self, place: Place, count: int) -> None:
        if place.shell is not None and self._broker_back_ms is None:
            begin_ns = self.world.event_ns()
            place.shell.clients.repeat_replies(count)
            self.world.fault("repeat-reply", "cluster", begin_ns)

    def _hold(self, amount: int) -> None:
        if self._held_ns is None:
            self._held_ns = self.world.event_ns()
        self.world.kafka.hold_reports(self._topics[amount % len(self._topics)])

    def _release(self) -> None:
        self.world.kafka.release()
        if self._held_ns is not None:
            self.world.fault("hold", "cluster", self._held_ns)
            self._held_ns = None

    def _set_clock(self, skew_ms: int) -> None:
        begin_ns = self.world.event_ns()
        self.world.kafka.set_leader_clock(skew_ms)
        kind = "clock-back" if skew_ms < self._skew_ms else "clock-forward"
        self._skew_ms, self._most_skew_ms = skew_ms, max(skew_ms, self._most_skew_ms)
        self.world.fault(kind, "cluster", begin_ns)

    def _answer_wrongly(self, step: Step) -> None:
        kafka, amount = self.world.kafka, step.amount
        topic, count = self._topics[amount % len(self._topics)], 1 + amount // 5 % 3
        match step.kind:
            case "refuse":
                kafka.fail_produce(KafkaError(_REFUSALS[amount // 16 % 3]), topic=topic, count=count)
            case "lose-reply":
                kafka.fail_produce(KafkaError(KafkaError._MSG_TIMED_OUT), topic=topic, count=count, stored=True)  # noqa: SLF001
            case "commit-fails":
                error = KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)
                kafka.fail_commits(error, count=count, stored=amount % 2 == 1)
            case "transaction-fails":
                self._fail_transaction(amount)
            case _:
                raise ValueError(f"{step.kind} is no wrong answer")

    def _fail_transaction(self, amount: int) -> None:
        calls = ["commit_transaction", "commit_transaction", "send_offsets_to_transaction", "abort_transaction"]
        call = calls[amount % 4]
        can_apply = call != "send_offsets_to_transaction" and amount // 4 % 2 == 1
        error = KafkaError(
            KafkaError._TIMED_OUT, retriable=amount // 8 % 2 == 0, txn_requires_abort=amount // 8 % 2 == 1  # noqa: SLF001
        ) if not can_apply else KafkaError(KafkaError._TIMED_OUT, retriable=True)  # noqa: SLF001  # fmt: skip
        self.world.kafka.fail_transaction(error, call=call, applied=can_apply)

    def _evict(self, place: Place) -> None:
        shell = place.shell
        if shell is None:
            return
        begin_ns = self.world.event_ns()
        for consumer in shell.clients.consumers:
            self.world.kafka.evict(consumer)
        group = NAMES.worker_group if isinstance(shell, Worker) else GROUP.name
        self.world.fault("evict", f"group:{group}", begin_ns)

    def _note_wrong_answers(self) -> None:
        """Record a fault when a wrong answer was given: that may be long after it was ordered."""
        faults = self.world.kafka._broker.faults  # noqa: SLF001
        ordered: list[ProduceFault | CallFault]
        ordered = [*faults.produce, *faults.calls]
        left = sum(each.remaining_count for each in ordered)
        if left < self._wrong_answers:
            self.world.fault("wrong-answer", "cluster", self.world.event_ns())
        self._wrong_answers = left

    def _stop_broker(self, ms: int) -> None:
        if self._broker_back_ms is None:
            self._down_ns = self.world.event_ns()
            self._broker_back_ms = self.world.now_ms + ms
            self.world.kafka.stop_broker()

    def _start_broker(self) -> None:
        self._broker_back_ms = None
        self.world.kafka.start_broker()
        self.world.fault("broker-down", "broker-1", self._down_ns)

    # --- the end -----------------------------------------------------------------------------------------------------

    def drain(self) -> bool:
        """End all faults, and run every process until nothing is pending; return whether that happens in time."""
        self.world.note("run", "drains")
        return self._settle() and (not self.plan.redrives or (self.redrives.finish() and self._settle()))

    def _settle(self) -> bool:
        world = self.world
        if self._broker_back_ms is not None:
            self._start_broker()
        self._release()
        if self._skew_ms < self._most_skew_ms:  # messages wait for a time that a clock has shown
            self._set_clock(self._most_skew_ms)
        world.longest_wait_ms = _DRAIN_WAIT_MS
        for place in [*self.places, self.sender]:
            place.frozen_until_ms = 0
            if place.shell is not None:
                place.shell.clients.cancel_faults()
        for number in range(_DRAIN_TURNS):
            if number == _DEPLOYED_AT_TURN:
                self._deploy()
            if all(place.shell is None for place in self.places):
                world.clock.advance(_DOWN_MS)  # otherwise nobody waits, and the time stands still
            self._turns()
            if number % 5 == 4 and self._is_sender_idle() and world.is_drained():
                return True
        return False

    def _deploy(self) -> None:
        """Replace the consumers of the former version."""
        self._is_deployed = True
        for place in self.places:
            if isinstance(place.shell, Consumer) and place.shell.topic == FORMER_TOPIC:
                place.leave()

    def _is_sender_idle(self) -> bool:
        shell = self.sender.shell
        return not isinstance(shell, Sender) or shell.is_idle

    def _turns(self) -> None:
        """Let every process take a turn."""
        self.sender.turn(lambda shell: shell.turn())
        for place in self.places:
            place.turn(lambda shell: shell.turn())
            self._hear(place)
            self._listen(place, 1)
            self._note_wrong_answers()

    def close(self) -> None:
        """Release everything."""
        for place in [*self.places, self.sender]:
            if place.shell is not None:
                place.shell.clients.die()
                place.shell.died()


def simulate(plan: Plan) -> Outcome:
    """Execute a plan, and judge what came of it."""
    simulation = Simulation(plan)
    world = simulation.world
    problems: list[str] = []
    with virtual_time(world.clock), simulation.dropins.on_memory() if simulation.dropins else nullcontext():
        try:
            for step in plan.steps:
                simulation.step(step)
            if not simulation.drain():
                problems.append("not-drained: positions do not reach the end of what is stored")
        except Exception as error:  # noqa: BLE001 - whatever a shell raises is a finding
            world.note("run", "fails", repr(error))
            problems.append(f"error: {error!r}")
        finally:
            _quietly(simulation.close, problems)
    history = world.finish()
    problems += simulation.redrives.problems() + world.transaction_problems()
    problems += [f"{each.kind}: {each.what}" for each in judge(history)]
    return Outcome(
        plan,
        tuple(problems),
        tuple(world.trace),
        len(history.sends),
        len(history.deliveries),
        len(history.faults),
    )


def _quietly(act: Callable[[], None], problems: list[str]) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - likewise
        problems.append(f"error: closing: {error!r}")
