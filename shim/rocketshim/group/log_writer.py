"""Append one member's records to the group log, and tell which of them were not stored.

Records go out immediately and in order, by one idempotent producer. A stored record is recognized when it is read back,
never by its delivery report; so only reports of failures count. Only the group-log thread uses this.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.kafka.clients import ProducerClient, close_producer, poll_callbacks
from rocketshim.kafka.reports import DeliveryReports
from rocketshim.logs import safe_logger
from rocketshim_topics.group_log import GroupRecord, encode_group_record

__all__ = ["LogWriter"]

_LOG = safe_logger("rocketshim.group")
_FLUSH_S: Final = 1.0


class LogWriter:
    """The producer of one member and the numbers of its records.

    Args:
        topic: physical name of the group's log.
        make_producer: makes the producer: idempotent, `acks=all`, no linger.
    """

    def __init__(self, topic: str, make_producer: Callable[[], ProducerClient]) -> None:
        self._topic = topic
        self._make_producer = make_producer
        self._producer: ProducerClient | None = None
        self._delivery_reports = DeliveryReports()
        self._reports: deque[tuple[int, KafkaError | None]] = deque()
        self._sent_seq = 0
        self._read_seq = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a record is on its way that was not read back yet."""
        return self._sent_seq > self._read_seq

    def open(self) -> None:
        """Make the producer, without network calls."""
        self._producer = self._make_producer()

    def append(self, record: GroupRecord) -> None:
        """Append a record. Never raises: a failure becomes a report."""
        producer = self._producer
        if producer is None:
            return
        self._sent_seq = record.seq
        reports, error_of = self._reports, self._delivery_reports.error

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            reports.append((record.seq, error_of(error, message)))

        try:
            producer.produce(self._topic, encode_group_record(record), partition=0, on_delivery=on_delivery)
            producer.poll(0)
        except BufferError:
            self._reports.append((record.seq, KafkaError(KafkaError._QUEUE_FULL)))  # noqa: SLF001
        except KafkaException as error:
            self._reports.append((record.seq, error.args[0]))

    def was_read(self, seq: int) -> None:
        """Note that one of our records was read back. Ignore a number that we have not used: it is an operator's."""
        if seq <= self._sent_seq:
            self._read_seq = max(self._read_seq, seq)

    def forget_sent(self) -> None:
        """Expect no record any more: those on their way belong to a log that is gone."""
        self._read_seq = self._sent_seq

    def take_failed(self) -> list[int]:
        """Return the numbers of records that will never be stored; replace a broken producer."""
        producer = self._producer
        if producer is None:
            return []
        failures: list[int] = []
        broken = poll_callbacks(producer)
        while self._reports:
            seq, failed = self._reports.popleft()
            if failed is None:
                continue
            _LOG.warning("group.record-not-stored", extra={"topic": self._topic, "error": str(failed)})
            if failed.fatal() or failed.code() == KafkaError._FATAL:  # noqa: SLF001
                broken = failed
            failures.append(seq)
            if seq == self._sent_seq:
                self._read_seq = seq  # this record will not be read back
        if broken is not None:
            _LOG.error("group.producer-renewed", extra={"topic": self._topic, "error": str(broken)})
            close_producer(producer, _FLUSH_S)
            self._producer = self._make_producer()
        return failures

    def close(self) -> None:
        """Flush appended records and close the producer. A second call does nothing."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.flush(_FLUSH_S)
        except (KafkaException, RuntimeError) as error:
            _LOG.warning("group.client-error", extra={"error": str(error)})
        close_producer(producer, 0.0)
