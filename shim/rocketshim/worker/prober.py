"""Probes of leaders' clocks: records of the worker whose append times date the records before them (`QueueClock`).

The worker writes a probe into the partition whose head waits for evidence. The probe's delivery report carries its
append time. A probe is never part of a transaction: an open transaction would delay that evidence. The same reports
show how far this machine's wall clock is from the brokers'. One owner thread: the worker's.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Clock
from rocketshim.core.send_pace import SendPace
from rocketshim.errors import TopicMismatchError
from rocketshim.kafka.clients import ProducerClient, close_producer, poll_callbacks, refresh_metadata
from rocketshim.kafka.reports import DeliveryReports
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.refusals import compacted
from rocketshim.worker.worker_clients import WorkerClients
from rocketshim_topics.hops import clock_probe
from rocketshim_topics.names import TopicNames, init_command

__all__ = ["Prober"]

_LAST_REPORTS_S: Final = 1.0
_CLOCK_NS: Final = 600_000_000_000  # while records wait, the brokers' clock is read at least this often


class Prober:
    """Writes probes and hands their append times to the queues."""

    __slots__ = (
        "_alarm", "_clients", "_clock", "_delivery_reports", "_names", "_own", "_pace", "_producer", "_reports",
        "broker_clock", "clock_ahead_ms", "confirmed_ns", "outstanding", "stored_ns", "topic",
    )  # fmt: skip

    def __init__(self, names: TopicNames, clients: WorkerClients, clock: Clock, alarm: Callable[..., None]) -> None:
        self.topic = names.schedule
        self.broker_clock = BrokerClock(clock, lambda ahead_ms: alarm("worker.clock-differs", ahead_ms=ahead_ms))
        self.clock_ahead_ms = 0  # by how much this machine's clock is wrong; 0: a minute or less, or not known
        self.outstanding = 0  # written with the current producer, and their reports were not processed yet
        self.confirmed_ns = 0  # when the last report of a stored probe was processed
        self.stored_ns = 0  # when the newest stored probe was written
        self._names = names
        self._clients = clients
        self._pace: SendPace | None = None
        self._own: ProducerClient | None = None  # exactly once: the other one has transactions
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

    def open(self, pace: SendPace) -> None:
        """Write probes with a producer that nothing else uses."""
        self._pace = pace
        self._own = self._clients.make_producer(self._clients.producer_config(pace))
        self.use(self._own, DeliveryReports())

    def poll(self) -> None:
        """Serve the reports of the own producer, if there is one; replace it after a fatal error."""
        error = None if self._own is None else poll_callbacks(self._own)
        if error is not None and self._pace is not None:
            self._alarm("worker.producer-recycled", error=str(error))
            self.close()
            self.open(self._pace)

    def close(self) -> None:
        """Close the own producer, if there is one."""
        own, self._own = self._own, None
        if own is not None:
            close_producer(own, _LAST_REPORTS_S)

    def compare_clocks(self, assigned: Sequence[AssignedPartition], now_ns: int) -> bool:
        """Compare this machine's clock with the brokers'; return whether it became wrong or right.

        The brokers' clock is asked for by a probe if none was written for long while records wait.
        """
        wall_ms, before = self._clock.wall_ms(), self.clock_ahead_ms
        self.clock_ahead_ms = self.broker_clock.wrong_by_ms(now_ns, wall_ms)
        if self.outstanding == 0 and not self.broker_clock.is_known(now_ns, wall_ms, within_ns=_CLOCK_NS):
            waiting = next((each for each in assigned if each.queue.waiting_count), None)
            if waiting is not None:
                self.probe(waiting)
        return bool(self.clock_ahead_ms) != bool(before)

    def probe(self, assigned: AssignedPartition) -> None:
        """Write a probe into a partition; after a failure the loop tries again a second later."""
        producer = self._producer
        if producer is None:
            return
        reports = self._delivery_reports
        sent_ns, sent_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        topic, out = assigned.key.topic, clock_probe(self._names, partition=assigned.number)

        def reported(error: KafkaError | None, message: Any) -> None:
            self._reports.append((producer, assigned, sent_ns, sent_ms, reports.error(error, message), message))

        try:
            producer.produce(topic, out.value, out.key, assigned.number, on_delivery=reported, headers=out.headers)
        except (BufferError, KafkaException) as error:
            self._alarm("worker.probe-failed", partition=assigned.number, error=str(error))
            refresh_metadata(producer, topic)  # the partition may be one of a new lane
        else:
            self.outstanding += 1

    def process_reports(self, now_ns: int) -> None:
        """Process the delivery reports of probes; `now_ns` was read after the last poll of the producer.

        Raise TopicMismatchError if the schedule topic does not stamp append times, or is compacted.
        """
        while self._reports:
            producer, assigned, sent_ns, sent_ms, error, message = self._reports.popleft()
            if producer is self._producer:  # `use` has already dropped the probes of an earlier producer
                self.outstanding -= 1
            if error is not None and error.code() == KafkaError.INVALID_RECORD:
                raise compacted(assigned.key.topic)
            if error is not None:
                self._alarm("worker.probe-failed", partition=assigned.number, error=error.name())
                continue
            kind, append_ms = message.timestamp()
            if kind != TIMESTAMP_LOG_APPEND_TIME:
                topic = assigned.key.topic
                raise TopicMismatchError(
                    f"a record of {topic} got CreateTime: delays would count from the senders' clocks, which "
                    f"nothing checks. Set message.timestamp.type=LogAppendTime: {init_command(topic, '--fix')}. "
                    "If it is set, the brokers do not obey it, and cannot be used: rocketshim doctor --probe"
                )
            self.confirmed_ns = now_ns
            self.stored_ns = max(self.stored_ns, sent_ns)
            self.broker_clock.learn((kind, append_ms), sent_ns, sent_ms)
            if not assigned.gone:
                assigned.queue.probed(message.offset(), append_ms, now_ns)
