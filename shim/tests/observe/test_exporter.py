"""The exporter publishes each round, and what the doctor found last."""

import threading
from collections.abc import Callable

from confluent_kafka import TopicPartition

from rocketshim.admin.doctor import Finding, Severity
from rocketshim.errors import BrokerUnavailableError
from rocketshim.observe.exporter import DoctorRounds, Exporter, ExporterState
from rocketshim.observe.finding import Installation
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.sampler import Sampler
from rocketshim.observe.snapshot import Offsets
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

NAMES = TopicNames("shop")
HERE = Installation("memory:1", Layout(NAMES, DelayLevels.default()))
FOUND = Finding("copies", Severity.WARNING, "orders", "what", "cost", "fix")


def until(exporter: Exporter, is_seen: Callable[[ExporterState], bool]) -> ExporterState:
    """Run the exporter until it shows a state."""
    exporter.run(lambda: exporter.state is not None and is_seen(exporter.state))
    assert exporter.state is not None
    return exporter.state


def test_states_follow_the_cluster_and_its_absence() -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic(NAMES.dead_letter("pay"), 1)
    kafka.create_topic("orders", 1)
    consumer = kafka.consumer({"bootstrap.servers": "memory:1", "group.id": "pay"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    lookup = lambda: OffsetLookup("memory:1", NAMES, clients=kafka.clients())  # noqa: E731 - an argument
    doctor = DoctorRounds(lambda: [FOUND], 60.0)
    doctor.run_once()
    with Sampler(lookup, NAMES, DelayLevels.default(), every_s=0.01, clock=clock) as sampler:
        exporter = Exporter(sampler, HERE, every_s=0.01, doctor=doctor, clock=clock)
        first = until(exporter, lambda state: bool(state.snapshot.dead))
        assert (first.snapshot.dead[0].appended, first.findings, first.namespace) == (0, (FOUND,), "shop")
        assert first.is_examined
        assert first.report == "warning copies  orders: what\n"
        kafka.append(NAMES.dead_letter("pay"), b"dead")
        kafka.append("orders", b"a")
        later = until(exporter, lambda state: any(group.behind for group in state.snapshot.groups))
        assert later.snapshot.dead[0].appended == 1
        kafka.stop_broker()
        gone = until(exporter, lambda state: "no broker" in (state.snapshot.error or ""))
        assert not gone.is_ready(clock.monotonic_ns())
        kafka.start_broker()
        assert until(exporter, lambda state: state.snapshot.error is None).is_ready(clock.monotonic_ns())


def test_what_was_evaluated_counts_until_a_round_ends_or_the_doctor_finds_something_else() -> None:
    clock, kafka, states = VirtualClock(), InMemoryKafka(), list[ExporterState]()
    answers = [[FOUND], [FOUND, FOUND]]
    doctor = DoctorRounds(lambda: answers.pop(0), 60.0)
    doctor.run_once()

    def look() -> bool:
        state = exporter.state
        if state is not None and state.snapshot.error is None:
            states.append(state)
            if len(states) == 2:
                doctor.run_once()
        return bool(states) and len(states[-1].findings) == 2

    lookup = lambda: OffsetLookup("memory:1", NAMES, clients=kafka.clients())  # noqa: E731 - an argument
    with Sampler(lookup, NAMES, DelayLevels.default(), every_s=3_600.0, clock=clock) as sampler:
        exporter = Exporter(sampler, HERE, every_s=3_600.0, doctor=doctor, clock=clock)
        exporter.run(look)
    first, second, *_, last = states
    assert first.findings == (FOUND,)
    assert second.findings is first.findings
    assert (last.snapshot is first.snapshot, last.findings) == (True, (FOUND, FOUND))


class LongRound:
    """A look-up of many requests, which a test permits one by one."""

    def __init__(self) -> None:
        self.permits, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.is_over = False

    def look_up(self, between: Callable[[], None] = lambda: None) -> Offsets:
        while not self.is_over:
            assert self.permits.acquire(timeout=60.0)
            between()
            self.done.release()
        return Offsets()

    def close(self) -> None:
        """Nothing is open."""


def test_an_exporter_whose_first_round_takes_minutes_is_live_and_not_ready() -> None:
    clock, long = VirtualClock(), LongRound()
    shown: list[tuple[bool, bool]] = []

    def look() -> bool:
        state, now_ns = exporter.state, clock.monotonic_ns()
        shown.append((False, False) if state is None else (state.is_live(now_ns), state.is_ready(now_ns)))
        clock.advance(50_000)
        long.permits.release()
        assert long.done.acquire(timeout=60.0)
        return len(shown) == 4

    with Sampler(lambda: long, NAMES, DelayLevels.default(), every_s=15.0, clock=clock) as sampler:
        exporter = Exporter(sampler, HERE, every_s=15.0, clock=clock)
        exporter.run(look)
        long.is_over = True
        long.permits.release()
    assert shown[1:] == [(True, False)] * 3


def test_findings_that_are_not_known_any_more_are_not_shown() -> None:
    answers: list[Exception | None] = [None, *[BrokerUnavailableError("away")] * 2, ValueError("defect"), None]

    def examine() -> list[Finding]:
        error = answers.pop(0)
        if error is not None:
            raise error
        return [FOUND]

    doctor = DoctorRounds(examine, 60.0)
    seen = []
    for _ in range(5):
        doctor.run_once()
        seen.append(doctor.findings)
    assert seen == [(FOUND,), (FOUND,), (FOUND,), None, (FOUND,)]
