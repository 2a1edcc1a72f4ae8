"""What can be asked about queues: which there are, where they begin and end, which offset a time has.

Kafka's errors come out as typed ones. Owned by whoever owns the Kafka consumer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError, NotAuthorizedError, TopicMissingError
from rocketshim.kafka.clients import LookupClient
from rocketshim.kafka.partitions import TopicPartitionKey
from rocketshim_topics import TopicNames
from rocketshim_topics.kafka_codes import AWAY, DENIED, MISSING, NO_LOGIN
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["QueueLookup", "cluster_errors"]

_TIMEOUT_S: Final = 10.0


@contextmanager
def cluster_errors(what: str, complaint: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn a `KafkaException` into a typed error that says what was being done.

    Args:
        what: what was being done.
        complaint: gives what the client says of its connections, for the error that no broker answered.
    """
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        said = f"{what}: {cause.name()}: {cause.str()}"
        if cause.code() in MISSING:
            raise TopicMissingError(f"{said}; create the topic, or mend its name") from error
        if cause.code() in DENIED | NO_LOGIN:
            raise NotAuthorizedError(f"{said}; see: rocketshim acls --role") from error
        if cause.code() in AWAY:
            hint = f"check the bootstrap address, then try again{complaint()}"
            raise BrokerUnavailableError(f"{said}; {hint}") from error
        raise ConsumerError(said) from error


class QueueLookup:
    """Questions about queues.

    Args:
        names: maps logical topics to physical ones.
        client: gives the client to ask; may raise when there is none.
        complaint: gives what that client says of its connections. Without it nothing is asked: it would take a record
            from a client that fetches.

    Thread-safety: none; the thread that owns the Kafka consumer.
    """

    def __init__(
        self, names: TopicNames, client: Callable[[], LookupClient], complaint: Callable[[], str] = lambda: ""
    ) -> None:
        self._names = names
        self._client = client
        self._complaint = complaint

    def place(self, queue: MessageQueue) -> TopicPartitionKey:
        """The physical topic and partition of a queue.

        Raises:
            ConfigError: a topic that cannot be one, or a negative queue id.
        """
        if queue.queue_id < 0:
            raise ConfigError(f"{queue}: queue ids begin at 0")
        return self._names.physical(queue.topic), queue.queue_id

    def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, sorted.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: they cannot be told.
        """
        physical = self._names.physical(topic)
        with cluster_errors(f"the queues of {topic!r} cannot be told", self._complaint):
            found = self._client().list_topics(physical, timeout=_TIMEOUT_S).topics.get(physical)
            if found is not None and found.error is not None:
                raise KafkaException(found.error)
        if found is None or not found.partitions:
            raise TopicMissingError(f"the topic {physical!r} is not there; create what you consume before")
        return [MessageQueue(topic, queue_id=number) for number in sorted(found.partitions)]

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Offset of the first message of a queue, and the end that a reader can reach.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: they cannot be told.
        """
        with cluster_errors(f"the offsets of {queue} cannot be told", self._complaint):
            answer = self._client().get_watermark_offsets(TopicPartition(*self.place(queue)), timeout=_TIMEOUT_S)
        if answer is None:
            raise BrokerUnavailableError(f"the offsets of {queue} cannot be told: no answer within {_TIMEOUT_S} s")
        low, high = answer
        return low, high

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message that is not older than `timestamp_ms` (epoch ms); the end if there is none.

        Raises:
            ConfigError: a negative time.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be told.

        Source: `DefaultMQPullConsumer#searchOffset` of RocketMQ.
        """
        if timestamp_ms < 0:
            raise ConfigError(f"timestamp_ms={timestamp_ms}: give epoch milliseconds, 0 or more")
        asked = TopicPartition(*self.place(queue), timestamp_ms)
        with cluster_errors(f"the offset at a time of {queue} cannot be told", self._complaint):
            (answer,) = self._client().offsets_for_times([asked], timeout=_TIMEOUT_S)
            if answer.error is not None:
                raise KafkaException(answer.error)
        return answer.offset if answer.offset >= 0 else self.bounds(queue)[1]
