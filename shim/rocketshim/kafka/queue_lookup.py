"""Lookups of queues: which queues a topic has, their first and last offsets, and the offset for a time.

Kafka's errors become typed errors. The owner of the Kafka consumer owns this object.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError, NotAuthorizedError, TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.clients import ConsumerClient, LookupClient
from rocketshim.kafka.lookups import ask_again, check_answers, offsets_at, partition_bounds
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import AWAY, DENIED, LEADER_MOVES, MISSING, NO_LOGIN
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.names import init_command

__all__ = ["QueueLookup", "cluster_errors", "no_such_topics"]

_TIMEOUT_S: Final = 10.0


@contextmanager
def cluster_errors(what: str, complaint: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn a `KafkaException` into a typed error whose text begins with what failed.

    `complaint` returns the client's last connection error, for the error that no broker answered.
    """
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        text = f"{what}: {cause.name()}: {cause.str()}"
        if cause.code() in MISSING:
            raise TopicMissingError(f"{text}; create the topic, or correct its name") from error
        if cause.code() in DENIED | NO_LOGIN:
            raise NotAuthorizedError(f"{text}; see: rocketshim acls --role ROLE") from error
        if cause.code() in AWAY:
            hint = f"check the bootstrap address, then try again{complaint()}"
            raise BrokerUnavailableError(f"{text}; {hint}") from error
        raise ConsumerError(text) from error


def no_such_topics(names: Sequence[str]) -> TopicMissingError:
    """Return the error for topics that do not exist, with the command that creates them."""
    commands = "; ".join(dict.fromkeys(map(init_command, names)))
    return TopicMissingError(f"missing: {', '.join(names)}. Correct the name, or create it: {commands}. {OR_HIDDEN}")


class QueueLookup:
    """Lookups of queues. `complaint` returns that client's last connection error.

    The default does not poll the client: polling would take a record from a client that fetches.

    Thread-safety: none; only the thread that owns the Kafka consumer.
    """

    def __init__(
        self, names: TopicNames, client: Callable[[], LookupClient], complaint: Callable[[], str] = lambda: ""
    ) -> None:
        self._names = names
        self._client = client
        self._complaint = complaint

    def key_of(self, queue: MessageQueue) -> TopicPartitionKey:
        """Return the physical topic and partition of a queue; anything that names none is a ConfigError."""
        given: object = queue
        if not isinstance(given, MessageQueue) or not isinstance(given.queue_id, int):
            raise ConfigError(f"{given!r:.80} is not a queue: give a MessageQueue(topic, queue_id=0)")
        if queue.queue_id < 0:
            raise ConfigError(f"{queue}: queue ids begin at 0")
        return TopicPartitionKey(self._names.physical(queue.topic), queue.queue_id)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted."""
        physical = self._names.physical(topic)
        with cluster_errors(f"cannot look up the queues of {topic!r}", self._complaint):
            found = self._client().list_topics(physical, timeout=_TIMEOUT_S).topics.get(physical)
            if found is not None and found.error is not None and found.error.code() not in MISSING:
                raise KafkaException(found.error)
        if found is None or not found.partitions:
            raise no_such_topics([physical])
        return [MessageQueue(topic, queue_id=number) for number in sorted(found.partitions)]

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the offset of the first message of a queue, and the end that a reader can reach."""
        with cluster_errors(f"cannot look up the offsets of {queue}", self._complaint):
            partition = TopicPartition(*self.key_of(queue))
            return ask_again(lambda: partition_bounds(self._client(), partition, _TIMEOUT_S), LEADER_MOVES, _TIMEOUT_S)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message that is not older than `timestamp_ms` (epoch ms), or else the end.

        Source: `DefaultMQPullConsumer#searchOffset` of RocketMQ.
        """
        if timestamp_ms < 0:
            raise ConfigError(f"timestamp_ms={timestamp_ms}: give epoch milliseconds, 0 or more")
        key = self.key_of(queue)
        with cluster_errors(f"cannot look up the offset of {queue} at a time", self._complaint):
            return ask_again(
                lambda: offsets_at(self._client(), [key], timestamp_ms, _TIMEOUT_S)[key], LEADER_MOVES, _TIMEOUT_S
            )

    def committed(self, queue: MessageQueue, client: ConsumerClient) -> int | None:
        """Return the offset that a client's group has committed for a queue; None if there is none."""
        with cluster_errors(f"the committed offset of {queue} cannot be read"):
            (answer,) = check_answers(client.committed([TopicPartition(*self.key_of(queue))], timeout=_TIMEOUT_S))
        return answer.offset if answer.offset >= 0 else None
