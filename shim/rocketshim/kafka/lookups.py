"""Lookups of topics and offsets that no fetch delays, and that a callback of the consumer may make.

A broker answers the requests of one connection in order, and delays a fetch that finds nothing by `fetch.wait.max.ms`
(500 ms by default). So a consumer that reads waits half a second for each `list_topics`, `get_watermark_offsets` and
`offsets_for_times`; without a fetch it waits 2 ms (measured). The group's coordinator answers requests for committed
offsets. A consumer has a separate connection to it, so they do not wait
(test_the_kafka_in_memory_notes_requests_that_a_fetch_would_delay).

A consumer also must not call its own `list_topics` inside a callback, see `kafka.confluent`. So `Lookups` asks a second
client, which it creates at the first need. A request that is refused or not answered in time is a `KafkaException`.
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from rocketshim.kafka.clients import ConsumerClient, LastClientError, LookupClient, close_consumer
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import LEADER_MOVES, MISSING

__all__ = [
    "ANSWER_S",
    "LOOK_AGAIN_S",
    "AnswerT",
    "Lookups",
    "ask_again",
    "ask_patiently",
    "check_answers",
    "found_topics",
    "in_parts",
    "offsets_at",
    "partition_bounds",
    "partitions_of",
    "stored_among",
]

AnswerT = TypeVar("AnswerT")

ANSWER_S: Final = 10.0
_TRIES: Final = 3  # a link on which a request takes 3 s needs more than 10 s for the first answer
_LEAVE_S: Final = 1.0
LOOK_AGAIN_S: Final = 0.1
_MOST_BY_NAME: Final = 20
_MOST_PARTITIONS: Final = 1_000
_STORED_S: Final = 2.0
_OF_ONE_PARTITION: Final = MISSING | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    KafkaError.INVALID_COMMIT_OFFSET_SIZE,
}


def check_answers(answers: list[TopicPartition]) -> list[TopicPartition]:
    """Return these answers of a cluster if none of them is an error; otherwise a position would seem to be missing."""
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
    return answers


def found_topics(client: LookupClient, topics: Collection[str], timeout_s: float) -> dict[str, Any]:
    """Return what the cluster reports of topics; None for one that it does not report.

    A few topics are looked up by name, many with one request for all topics of the cluster.
    """
    if len(topics) <= _MOST_BY_NAME:
        return {topic: client.list_topics(topic, timeout=timeout_s).topics.get(topic) for topic in topics}
    found = client.list_topics(timeout=timeout_s).topics
    return {topic: found.get(topic) for topic in topics}


def partitions_of(client: LookupClient, topics: Collection[str], timeout_s: float) -> dict[str, list[int]]:
    """Return the numbers of the partitions of each topic, sorted; a missing topic is a KafkaException, too."""
    numbers: dict[str, list[int]] = {}
    for topic, found in found_topics(client, topics, timeout_s).items():
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if found is None else found.error
        if error is not None:
            raise KafkaException(error)
        numbers[topic] = sorted(found.partitions)
    return numbers


def in_parts(
    ask: Callable[[list[TopicPartition]], list[TopicPartition]], partitions: list[TopicPartition]
) -> list[TopicPartition]:
    """Return the answers for many partitions, asked for a thousand at a time.

    librdkafka compares each answer with each question: 5,000 at a time took 45 times as long as 1,000 (measured).
    """
    starts = range(0, len(partitions), _MOST_PARTITIONS)
    return [answer for at in starts for answer in ask(partitions[at : at + _MOST_PARTITIONS])]


def stored_among(
    client: ConsumerClient, refused: list[TopicPartition], error: KafkaError
) -> dict[TopicPartitionKey, int]:
    """Return the positions of a refused commit that are stored all the same; none if the group does not answer.

    If Kafka refuses the position of one partition, it stores the others, and librdkafka reports the error of that one
    for every partition of the commit (test_a_refused_offset_does_not_hide_those_that_are_stored_with_it).
    """
    wanted = {TopicPartitionKey.of(item): (item.offset, item.metadata or "") for item in refused}
    if len(wanted) == 1 or error.code() not in _OF_ONE_PARTITION:
        return {}
    try:
        found = in_parts(
            lambda part: client.committed(part, timeout=_STORED_S), [TopicPartition(*key) for key in wanted]
        )
    except KafkaException:
        return {}
    return {
        key: item.offset
        for item in found
        if wanted[key := TopicPartitionKey.of(item)] == (item.offset, item.metadata or "")
    }


def ask_again(request: Callable[[], AnswerT], passing: Collection[int], timeout_s: float) -> AnswerT:
    """Return the answer to a request; ask again while it fails with one of these codes, which pass by themselves."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() >= until_s:
                raise
            time.sleep(LOOK_AGAIN_S)


def ask_patiently(request: Callable[[], AnswerT], client: Any, complaints: LastClientError) -> AnswerT:
    """Return the answer to a request whose time limit is `ANSWER_S`.

    If there is no answer in time, and no connection of the client has failed, the brokers are slow: it is asked again.

    Decides: How long does a command wait for brokers that do not answer? 10 s if a connection fails, else 30 s: by this
        in clients that read, and by `kafka.clients.answer_time_s` in admin clients.
    """
    left = _TRIES
    while True:
        left -= 1
        try:
            return ask_again(request, LEADER_MOVES, ANSWER_S)
        except KafkaException as error:
            is_late = error.args[0].code() == KafkaError._TIMED_OUT  # noqa: SLF001 - no public spelling
            if not left or not is_late or complaints.text(client):
                raise


def offsets_at(
    client: LookupClient, keys: Collection[TopicPartitionKey], when_ms: int, timeout_s: float
) -> dict[TopicPartitionKey, int]:
    """Return the first offset of a time (epoch ms) or later of each partition, or else its end.

    `OFFSET_BEGINNING` and `OFFSET_END` are valid times. Each leader gets one request for a thousand partitions.
    """
    asked = [TopicPartition(*key, when_ms) for key in keys]
    answers = in_parts(lambda part: client.offsets_for_times(part, timeout=timeout_s), asked)
    found = {TopicPartitionKey.of(answer): answer.offset for answer in check_answers(answers)}
    none = [key for key, offset in found.items() if offset < 0 <= when_ms]  # where a log begins or ends is no time
    return found | offsets_at(client, none, OFFSET_END, timeout_s) if none else found


def partition_bounds(client: LookupClient, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """Return the first offset of a partition, and the end that a reader can reach.

    `get_watermark_offsets` sends two requests. If the broker refuses the first one, the answer is often the end, twice,
    instead of an error (librdkafka 2.16, measured). So the first offset of a partition that seems empty is asked for
    again. A partition without a leader is "unknown", as one that does not exist; the topic tells which it is.
    """
    try:
        answer = client.get_watermark_offsets(partition, timeout=timeout_s)
    except KafkaException as error:
        is_unknown = error.args[0].code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - no public spelling
        if is_unknown and partition.partition in partitions_of(client, [partition.topic], timeout_s)[partition.topic]:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) from error
        raise
    if answer is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - no public spelling
    low, high = answer
    if low == high > 0:
        first = TopicPartition(partition.topic, partition.partition, OFFSET_BEGINNING)
        low = check_answers(client.offsets_for_times([first], timeout=timeout_s))[0].offset
    return low, high


class Lookups:
    """A `LookupClient` beside a consumer. `check` is called before each lookup, and raises if there is no consumer.

    Thread-safety: none; only the thread that owns the consumer.
    """

    def __init__(self, check: Callable[[], object], make: Callable[[], ConsumerClient]) -> None:
        self._check = check
        self._make = make
        self._beside: ConsumerClient | None = None

    def open(self) -> ConsumerClient:
        """Create the second client, so that it connects while the consumer joins its group. Safe to call twice."""
        if self._beside is None:
            self._beside = self._make()
        return self._beside

    def list_topics(self, topic: Any = None, timeout: float = -1) -> Any:
        """Call the client's `list_topics`."""
        client = self._client()
        return client.list_topics(timeout=timeout) if topic is None else client.list_topics(topic, timeout=timeout)

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = -1) -> Any:
        """Call the client's `get_watermark_offsets`."""
        return self._client().get_watermark_offsets(partition, timeout=timeout)

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Call the client's `offsets_for_times`."""
        return self._client().offsets_for_times(partitions, timeout=timeout)

    def close(self) -> None:
        """Close the second client. Idempotent."""
        beside, self._beside = self._beside, None
        if beside is not None:
            close_consumer(beside, _LEAVE_S)

    def _client(self) -> ConsumerClient:
        self._check()
        beside = self.open()
        beside.poll(0)  # only this poll calls its callbacks, for example a login by token
        return beside
