"""What a scenario needs of a Kafka, and the few verbs that the scenarios are written in.

A scenario knows nothing of time: it polls until what it waits for has come, `attempts` times at most, and then says
what is missing. So the same text runs on a Kafka in memory that answers immediately, and on a real one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.kafka.clients import ConsumerClient, ProducerClient

__all__ = [
    "Backend",
    "ConformanceError",
    "Features",
    "assigned",
    "consumer_of",
    "drive",
    "equal",
    "error_code",
    "holds",
    "places",
    "receive",
    "refused",
    "send",
    "wait_for",
]

T = TypeVar("T")


class ConformanceError(AssertionError):
    """A back end does not behave as Kafka does."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a back end promises; a scenario that needs what it does not promise is not run on it.

    Attributes:
        transactions: transactions, `read_committed`, fencing.
        truncation: `Backend.truncate` works.
        log_append_time: leaders stamp records where the topic says so.
        topic_settings: `max.message.bytes` and `cleanup.policy` have an effect.
        group_generations: the coordinator checks member id and generation of a commit.
    """

    transactions: bool = True
    truncation: bool = True
    log_append_time: bool = True
    topic_settings: bool = True
    group_generations: bool = True


class Backend(Protocol):
    """A Kafka that the scenarios run on.

    Attributes:
        features: what it promises.
        attempts: how often a scenario polls before it gives up.
        poll_s: for how many seconds each time.
    """

    features: Features
    attempts: int
    poll_s: float

    def consumer(self, config: Mapping[str, Any]) -> ConsumerClient:
        """A consumer client; where to connect is the back end's business, as is closing what a scenario left open."""
        ...

    def producer(self, config: Mapping[str, Any]) -> ProducerClient:
        """A producer client."""
        ...

    def new_topic(self, partitions: int = 1, *, config: Mapping[str, str] | None = None) -> str:
        """Make a topic of a name never used before, ready to use, and return the name."""
        ...

    def new_name(self) -> str:
        """A name never used before, for a group, a transactional id, or a topic that is not there."""
        ...

    def truncate(self, topic: str, partition: int, before_offset: int) -> None:
        """Drop the records below an offset."""
        ...


def equal(actual: object, expected: object, what: str = "") -> None:
    """Both are equal.

    Raises:
        ConformanceError: they are not.
    """
    if actual != expected:
        raise ConformanceError(f"{what or 'value'}: expected {expected!r}, got {actual!r}")


def holds(condition: bool, what: str) -> None:
    """Something is so.

    Raises:
        ConformanceError: it is not.
    """
    if not condition:
        raise ConformanceError(f"not so: {what}")


def error_code(error: KafkaError | None) -> int | None:
    """The code of a report's error; None for success."""
    return None if error is None else error.code()


def refused(call: Callable[[], object]) -> KafkaError:
    """The error that a call raises.

    Raises:
        ConformanceError: it raises none.
    """
    try:
        result = call()
    except KafkaException as error:
        found: KafkaError = error.args[0]
        return found
    raise ConformanceError(f"expected a KafkaException, got {result!r}")


def wait_for(backend: Backend, attempt: Callable[[], T | None], what: str) -> T:
    """Try until `attempt` gives something.

    Raises:
        ConformanceError: it never did.
    """
    for _ in range(backend.attempts):
        found = attempt()
        if found is not None:
            return found
    raise ConformanceError(f"waited in vain: {what}")


def consumer_of(
    backend: Backend, *, on_commit: Callable[[Any, Any], object] | None = None, **config: Any
) -> ConsumerClient:
    """A consumer that commits only when told and begins at the first record; underscores stand for dots."""
    settings: dict[str, Any] = {"group.id": backend.new_name(), "auto.offset.reset": "earliest"}
    settings["enable.auto.commit"] = False
    if on_commit is not None:
        settings["on_commit"] = on_commit
    return backend.consumer(settings | {name.replace("_", "."): value for name, value in config.items()})


def send(
    backend: Backend,
    topic: str,
    values: Iterable[bytes | None],
    *,
    partition: int = 0,
    producer: ProducerClient | None = None,
) -> list[int]:
    """Send bodies to one partition, wait for their reports, and return their offsets."""
    client = backend.producer({}) if producer is None else producer
    reports: list[tuple[KafkaError | None, Any]] = []
    for value in values:
        client.produce(
            topic, value, partition=partition, on_delivery=lambda error, stored: reports.append((error, stored))
        )
    wait_for(backend, lambda: client.flush(backend.poll_s) == 0 or None, "delivery reports")
    equal([error_code(error) for error, _ in reports], [None] * len(reports), "errors of the reports")
    return [stored.offset() for _, stored in reports]


def receive(backend: Backend, consumer: ConsumerClient, count: int) -> list[Any]:
    """Exactly the next `count` records or events, whatever they are."""
    received: list[Any] = []
    for _ in range(backend.attempts):
        if len(received) >= count:
            break
        received.extend(consumer.consume(count - len(received), backend.poll_s))
    equal(len(received), count, f"records received ({places(received)})")
    return received


def places(messages: Sequence[Any]) -> list[tuple[int | None, int | None]]:
    """(partition, offset) of each."""
    return [(message.partition(), message.offset()) for message in messages]


def drive(backend: Backend, consumers: Sequence[ConsumerClient], until: Callable[[], bool], what: str) -> list[Any]:
    """Poll all of them in turn until something is so; returns what they received."""
    received: list[Any] = []
    for _ in range(backend.attempts):
        for consumer in consumers:
            received.extend(consumer.consume(100, backend.poll_s / 4))
        if until():
            return received
    raise ConformanceError(f"waited in vain: {what}; assignments {[assigned(consumer) for consumer in consumers]}")


def assigned(consumer: ConsumerClient) -> list[int]:
    """Partition numbers of the assignment, sorted."""
    return sorted(partition.partition for partition in consumer.assignment())


def at(topic: str, partition: int = 0, offset: int = -1001) -> TopicPartition:
    """Short for a `TopicPartition`."""
    return TopicPartition(topic, partition, offset)
