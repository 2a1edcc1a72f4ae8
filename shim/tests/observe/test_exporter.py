"""The exporter publishes each round, and what the doctor found last."""

from collections.abc import Callable

from confluent_kafka import TopicPartition

from rocketshim.admin.doctor import Finding, Severity
from rocketshim.errors import BrokerUnavailableError
from rocketshim.observe.exporter import DoctorRounds, Exporter
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.metrics import ExporterState
from rocketshim.observe.sampler import Sampler
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

NAMES = TopicNames("shop")
FOUND = Finding("copies", Severity.WARNING, "orders", "what", "cost", "mend")


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
        exporter = Exporter(sampler, every_s=0.01, doctor=doctor, namespace="shop", clock=clock)
        first = until(exporter, lambda state: bool(state.snapshot.dead))
        assert (first.snapshot.dead[0].appended, first.findings, first.namespace) == (0, (FOUND,), "shop")
        kafka.append(NAMES.dead_letter("pay"), b"dead")
        kafka.append("orders", b"a")
        later = until(exporter, lambda state: state.snapshot.groups[0].behind == 1)
        assert later.snapshot.dead[0].appended == 1
        kafka.stop_broker()
        gone = until(exporter, lambda state: state.snapshot.error is not None)
        assert not gone.is_ready(clock.monotonic_ns())
        kafka.start_broker()
        assert until(exporter, lambda state: state.snapshot.error is None).is_ready(clock.monotonic_ns())


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
