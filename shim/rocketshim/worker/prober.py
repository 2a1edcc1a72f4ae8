"""Probes of leaders' clocks: records of the worker whose append times date the records before them (`QueueClock`).

The worker writes a probe into the partition whose head waits for evidence. The probe's delivery report carries its
append time. A probe is never part of a transaction: an open transaction would delay that evidence. The same reports
show how far this machine's wall clock is from the brokers'. One owner thread: the worker's.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Clock
from rocketshim.errors import TopicMismatchError
from rocketshim.kafka.clients import ProducerClient, refresh_metadata
from rocketshim.kafka.reports import DeliveryReports
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.refusals import compacted
from rocketshim_topics.hops import clock_probe
from rocketshim_topics.names import TopicNames, init_command

__all__ = ["Prober"]


class Prober:
    """Writes probes and hands their append times to the queues."""

    __slots__ = (
        "_alarm", "_clock", "_delivery_reports", "_names", "_producer", "_reports", "broker_clock", "confirmed_ns",
        "outstanding", "stored_ns", "topic",
    )  # fmt: skip

    def __init__(self, names: TopicNames, clock: Clock, alarm: Callable[..., None]) -> None:
        self.topic = names.schedule
        self.broker_clock = BrokerClock()
        self.outstanding = 0  # written with the current producer, and their reports were not processed yet
        self.confirmed_ns = 0  # when the last report of a stored probe was processed
        self.stored_ns = 0  # when the newest stored probe was written
        self._names = names
        self._clock = clock
        self._alarm = alarm
        self._producer: ProducerClient | None = None
        self._delivery_reports = DeliveryReports()
        self._reports: deque[tuple[ProducerClient, AssignedPartition, int, int, KafkaError | None, Any]] = deque()

    def use(self, producer: ProducerClient, reports: DeliveryReports) -> None:
        """Write probes with this producer from now on, and use `reports` as all its other delivery callbacks do."""
        self._producer = producer
        self._delivery_reports = reports
        self.outstanding = 0

    def probe(self, assigned: AssignedPartition) -> None:
        """Write a probe into a partition; after a failure the loop tries again a second later."""
        producer = self._producer
        if producer is None:
            return
        reports = self._delivery_reports
        sent_ns, sent_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        out = clock_probe(self._names, partition=assigned.number)

        def reported(error: KafkaError | None, message: Any) -> None:
            self._reports.append((producer, assigned, sent_ns, sent_ms, reports.error(error, message), message))

        try:
            producer.produce(out.topic, out.value, out.key, assigned.number, on_delivery=reported, headers=out.headers)
        except (BufferError, KafkaException) as error:
            self._alarm("worker.probe-failed", partition=assigned.number, error=str(error))
            refresh_metadata(producer, out.topic)  # the partition may be one of a new lane
        else:
            self.outstanding += 1

    def process_reports(self, now_ns: int) -> None:
        """Process the delivery reports of probes.

        Args:
            now_ns: the monotonic clock, read after the last poll of the producer.

        Raises:
            TopicMismatchError: the schedule topic does not stamp append times, or is compacted.
        """
        while self._reports:
            producer, assigned, sent_ns, sent_ms, error, message = self._reports.popleft()
            if producer is self._producer:  # `use` has already dropped the probes of an earlier producer
                self.outstanding -= 1
            if error is not None and error.code() == KafkaError.INVALID_RECORD:
                raise compacted(self.topic)
            if error is not None:
                self._alarm("worker.probe-failed", partition=assigned.number, error=error.name())
                continue
            kind, append_ms = message.timestamp()
            if kind != TIMESTAMP_LOG_APPEND_TIME:
                raise TopicMismatchError(
                    f"{self.topic} has message.timestamp.type=CreateTime: delays would count from the senders' clocks, "
                    f"which nothing checks. Set it to LogAppendTime: {init_command(self.topic, '--fix')}"
                )
            self.confirmed_ns = now_ns
            self.stored_ns = max(self.stored_ns, sent_ns)
            self.broker_clock.reported(append_ms, sent_ns, sent_ms, now_ns)
            if not assigned.gone:
                assigned.queue.probed(message.offset(), append_ms, now_ns)
