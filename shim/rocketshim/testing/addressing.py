"""Where a message of a producer in memory goes: what the producer knows of topics, its partitioner, the leader."""

from collections.abc import Callable

from confluent_kafka import consistent, fnv1a, murmur2

from rocketshim.testing.broker import InMemoryBroker, Topic
from rocketshim.testing.kafka_errors import Code
from rocketshim.testing.outgoing import BATCH_OVERHEAD_BYTES, CLIENT_OVERHEAD_BYTES, Outgoing
from rocketshim.testing.waiting import NS_PER_MS

__all__ = ["KnownTopics", "choose_partition", "leader_refusal"]


class KnownTopics:
    """The metadata of one producer. They age: it learns of added partitions when it asks again.

    Attributes:
        missing: topics that did not exist when the producer last asked.

    Thread-safety: none; the broker's lock guards it.
    """

    def __init__(self, broker: InMemoryBroker, refresh_ms: int) -> None:
        self.missing: set[str] = set()
        self._broker = broker
        self._refresh_ms = refresh_ms
        self._counts: dict[str, tuple[int, int]] = {}  # partitions of a topic; until when that counts, ns

    def learn(self, name: str, count: int) -> None:
        """Store the number of partitions of a topic, as the brokers report it now."""
        self._counts[name] = count, self._broker.clock.monotonic_ns() + self._refresh_ms * NS_PER_MS
        self.missing.discard(name)

    def learn_first(self, topic: Topic) -> None:
        """Ask for a topic that this producer does not know yet."""
        if topic.name not in self._counts:
            self.learn(topic.name, len(topic.partitions))

    def count(self, topic: Topic, unknown: int) -> int:
        """Return how many partitions of a topic this producer knows; `unknown` if it does not know the topic."""
        count, until_ns = self._counts.get(topic.name, (unknown, -1))
        if 0 <= until_ns <= self._broker.clock.monotonic_ns():
            self.learn(topic.name, len(topic.partitions))
            return len(topic.partitions)
        return count


def choose_partition(partitioner: str, key: bytes | None, count: int, next_turn: Callable[[], int]) -> int:
    """Choose a partition by librdkafka's partitioners; where those choose at random, take them in turn."""
    is_keyless = not key if partitioner == "consistent_random" else key is None and partitioner.endswith("_random")
    if is_keyless or partitioner == "random":
        return next_turn() % count
    if partitioner.startswith("murmur2"):
        return int(murmur2(key or b"", count))
    if partitioner.startswith("fnv1a"):
        return int(fnv1a(key or b"", count))
    return int(consistent(key or b"", count))


def leader_refusal(outgoing: Outgoing, topic: Topic, leader_ms: int) -> int | None:
    """Return the code with which a leader, whose clock shows `leader_ms`, refuses this record; None: it takes it."""
    if outgoing.size_bytes() - CLIENT_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES > topic.max_message_bytes:
        return Code.MSG_SIZE_TOO_LARGE
    if topic.is_compacted and outgoing.key is None:
        return Code.INVALID_RECORD
    if not topic.is_log_append_time and outgoing.timestamp_ms - leader_ms > topic.timestamp_after_max_ms:
        return Code.INVALID_TIMESTAMP
    return None
