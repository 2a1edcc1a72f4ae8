"""The Kafka clients of one group's log. Only the group-log thread uses them.

* The reader joins no group. It is assigned to the log's one partition, from its first record on. At every heartbeat it
  compares the topic's id and the bounds of the log with what was folded, to detect that the log is lost: created again,
  or truncated before it was read.
* The writer sends records immediately and in order, by one idempotent producer. A stored record is recognized when it
  is read back, never by its delivery report; so only reports of failures count.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.core.start_position import decode_metadata
from rocketshim.errors import ConsumerError
from rocketshim.kafka.client_config import CONSUMER_ONLY, PROTECTED_CONSUMER, merge
from rocketshim.kafka.client_errors import ErrorLines
from rocketshim.kafka.clients import ConsumerClient, ProducerClient, is_fatal
from rocketshim.kafka.lookups import check_answers, partition_bounds, partitions_of
from rocketshim.kafka.record_sender import OwnedSender
from rocketshim.kafka.topic_id import TopicId
from rocketshim.locks.fold import GroupLog
from rocketshim.logs import safe_logger
from rocketshim.settings import ConnectionSettings
from rocketshim_topics.group_log import GroupRecord, encode_group_record
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.kafka_codes import MISSING

__all__ = ["LogReader", "LogWriter", "log_reader_config", "token_floor"]

_LOG = safe_logger("rocketshim.group")
_READ_COUNT: Final = 1_000
_ANSWER_S: Final = 20.0  # on a link on which a request takes 3 s, a look-up takes four of them
_COMMITS_S: Final = 30.0
_CHECK_S: Final = 0.5
_SLOW_CHECK_S: Final = 12.0
_TIMES_LONGER: Final = 4  # a check may take than the one before
_FLUSH_S: Final = 1.0
_RENEWAL_MS: Final = 1_000
_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001


def log_reader_config(settings: ConnectionSettings, group: str) -> dict[str, Any]:
    """Return the settings of a consumer that reads the group log.

    The consumer joins no group, and reports an error when an offset does not exist. It reads `read_uncommitted`: no
    member writes transactions there, and an open transaction of another program must not block the log.
    """
    return merge(
        {key: value for key, value in settings.client.items() if not CONSUMER_ONLY.fullmatch(key)},
        defaults={
            "client.id": "rocketshim",
            "fetch.queue.backoff.ms": 10,
            "fetch.error.backoff.ms": 100,
            "fetch.wait.max.ms": 100,
        },
        required={
            **PROTECTED_CONSUMER,
            "bootstrap.servers": settings.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
        },
        allow_code_settings=settings.allow_code_settings,
    )


def token_floor(consumer: ConsumerClient, topics: Iterable[str]) -> int | None:
    """Return a number above every token that the group's commits on these topics carry; None: none carries one.

    It is needed when the group log was created again while no member was alive. Raise KafkaException if the cluster did
    not answer.
    """
    tokens = []
    for topic in topics:
        try:
            asked = [TopicPartition(topic, number) for number in partitions_of(consumer, [topic], _COMMITS_S)[topic]]
        except KafkaException as error:
            if error.args[0].code() not in MISSING:
                raise
            continue  # it was deleted
        for item in check_answers(consumer.committed(asked, timeout=_COMMITS_S)):
            found = decode_metadata(item.metadata) if item.offset >= 0 else None
            if found is not None and found.token is not None:
                tokens.append(found.token)
    return max(tokens) + 1 if tokens else None


class LogReader:
    """The consumer of one group's log, with the settings of `log_reader_config`.

    `find_floor` returns the token floor of the group's commits; it is called before the log's end is read, and may
    raise KafkaException. Without `topic_id`, only the log's records tell that its topic was created again.
    """

    def __init__(
        self,
        topic: str,
        make_consumer: Callable[[], ConsumerClient],
        find_floor: Callable[[ConsumerClient], int | None],
        topic_id: TopicId | None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._partition = TopicPartition(topic, 0)
        self._make_consumer = make_consumer
        self._find_floor = find_floor
        self._known_id: str | None = None
        self._errors = ErrorLines("", {})
        self._check_s = _CHECK_S  # longest wait for the bounds of the log
        self._consumer: ConsumerClient | None = None

    def open(self) -> None:
        """Make the consumer, without network calls."""
        self._consumer = self._make_consumer()

    def begin(self) -> tuple[int, int, int | None] | None:
        """Read from the log's first record on; None: the cluster does not answer now.

        Return the first offset of the log, its end, and the token floor of the commits.
        """
        consumer = self._client()
        try:
            consumer.unassign()  # after a lost log: a look-up waits behind each fetch that the broker delays
            self._known_id = None if self.topic_id is None else self.topic_id.now()
            floor = self._find_floor(consumer)
            low, high = self._bounds(_ANSWER_S)
            consumer.assign([TopicPartition(self.topic, 0, low)])
        except KafkaException as error:
            _LOG.warning("group.log-unreachable", extra={"topic": self.topic, "error": str(error)})
            return None
        return low, high, floor

    def read(self, wait_s: float) -> list[Any]:
        """Return the records that have arrived; wait for the first one for this time in seconds."""
        consumer = self._client()
        first = consumer.poll(wait_s)
        return [] if first is None else [first, *consumer.consume(_READ_COUNT - 1, 0)]

    def why_lost(self, log: GroupLog, *, late: bool) -> str | None:
        """Return why the log that was folded is not the log of this topic any more; None: it is, as far as is known.

        `late`: wait for the topic's id. A process was frozen for longer than a heartbeat, and meanwhile the log may
        have been created again and have grown beyond the offset to read. Then its bounds do not show that.

        Decides: Is the group's log lost, and what then? It is lost if its topic has another id, if its bounds do not
            continue what was folded, or if the offset to read does not exist (`why_lost_by`); not if no broker answers.
            Then every lease ends, and nothing is claimed for one lease: `locks.holder.QueueLockHolder.log_lost`.
        """
        topic_id = None
        if self.topic_id is not None:
            topic_id = self.topic_id.now() if late else self.topic_id.latest()
        if self._known_id is None:
            self._known_id = topic_id
        if topic_id is not None and topic_id != self._known_id:
            return "the topic was created again"
        try:
            low, high = self._bounds(self._check_s)
        except KafkaException:
            # librdkafka closes the connection of a request that has timed out: a slow link would never carry a record
            # if each check timed out (test_a_slow_link_repeats_and_loses_nothing_of_an_orderly_queue)
            self._check_s = _SLOW_CHECK_S
            return None  # unreachable: leases expire by themselves
        return log.why_lost(low, high)

    def _bounds(self, timeout_s: float) -> tuple[int, int]:
        began_s = time.monotonic()
        bounds = partition_bounds(self._client(), self._partition, timeout_s)
        self._check_s = min(max(_CHECK_S, _TIMES_LONGER * (time.monotonic() - began_s)), _SLOW_CHECK_S)
        return bounds

    def why_lost_by(self, error: KafkaError, now_ms: int) -> str | None:
        """Log an error of the client, if it does not only repeat; return why the log is lost by it, or None.

        Raise it if the client is dead.
        """
        if error.code() in _GONE:
            return f"the offset to read does not exist: {error.str()}"
        if is_fatal(error):
            raise KafkaException(error)
        if (facts := self._errors.facts(error, self.topic, now_ms)) is not None:
            _LOG.warning("group.client-error", extra=facts)
        return None

    def close(self) -> None:
        """Close the consumer. A second call does nothing."""
        consumer, self._consumer, self.topic_id = self._consumer, None, None
        if consumer is None:
            return
        try:
            consumer.close()
        except (KafkaException, RuntimeError) as error:
            _LOG.warning("group.client-error", extra={"error": str(error)})

    def _client(self) -> ConsumerClient:
        if self._consumer is None:
            raise ConsumerError("the reader of the group log is not open")
        return self._consumer


class LogWriter:
    """The producer of one member (idempotent, `acks=all`, no linger) and the numbers of its records."""

    def __init__(self, topic: str, make_producer: Callable[[], ProducerClient]) -> None:
        self._topic = topic
        self._sender: OwnedSender[int] = OwnedSender(make_producer, _RENEWAL_MS, self._renewed)
        self._sent_seq = 0
        self._read_seq = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a record is on its way that was not read back yet."""
        return self._sent_seq > self._read_seq

    def open(self) -> None:
        """Make the producer, without network calls."""
        self._sender.open()

    def append(self, record: GroupRecord) -> None:
        """Append a record. Never raises: a failure becomes a report."""
        if self._sender.is_open:
            self._sent_seq = record.seq
            self._sender.send(OutgoingRecord(self._topic, 0, None, encode_group_record(record), []), record.seq)

    def was_read(self, seq: int) -> None:
        """Note that one of our records was read back. Ignore a number that we have not used: it is an operator's."""
        if seq <= self._sent_seq:
            self._read_seq = max(self._read_seq, seq)

    def forget_sent(self) -> None:
        """Expect no record any more: those on their way belong to a log that is gone."""
        self._read_seq = self._sent_seq

    def take_failed(self, now_ms: int) -> list[int]:
        """Return the numbers of records that will never be stored."""
        failures = {seq: error for seq, error in self._sender.results(now_ms) if error is not None}
        for seq, error in failures.items():
            _LOG.warning("group.record-not-stored", extra={"topic": self._topic, "error": str(error)})
            if seq == self._sent_seq:
                self._read_seq = seq  # this record will not be read back
        return [*failures]

    def close(self) -> None:
        """Flush appended records and close the producer. A second call does nothing."""
        self._sender.close(_FLUSH_S)

    def _renewed(self, error: KafkaError) -> None:
        _LOG.error("group.producer-renewed", extra={"topic": self._topic, "error": str(error)})
