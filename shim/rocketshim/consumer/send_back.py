"""Store the next hop of each failed message (`core.next_hop`); the message is done once it is stored.

Owned by the poll thread. `send` produces; `settle` processes delivery reports. The producer belongs to this
sender: after a fatal error it is replaced, and its hops in flight are sent again. A hop that is not stored for a
transient reason is sent again later (RocketMQ: 5 s, `submitConsumeRequestLater`). Until then its partition's commit
does not pass the message. The hop is counted and logged, but it does not count as a failed attempt. A report that
never comes needs no timer: the client reports each record within `hop_timeout_ms`. A hop that can never succeed,
because the record with its headers is too large for the next topic, is made smaller.

Hops have the brokers' time as their timestamp, once it is known: the delivery report of a retry shows it, as brokers
stamp the schedule topic. If a broker refuses the time of this machine before that, a probe in the schedule topic shows
the brokers' time, and the hop is sent again with it.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from rocketshim.consumer.reader.partition_queue import Work
from rocketshim.consumer_metrics import FailureCounts, SendBackCounts
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Clock
from rocketshim.core.lane_selector import LaneSelector
from rocketshim.core.next_hop import FailedMessage, Hop, HopKind, HopMaker
from rocketshim.core.timer import Timer
from rocketshim.failures import FailureLog
from rocketshim.kafka.clients import ProducerClient, close_producer, is_fatal, poll_callbacks
from rocketshim.kafka.reports import DeliveryError, DeliveryReports
from rocketshim.logs import safe_logger
from rocketshim.settings import PushConsumerSettings
from rocketshim_topics import Failure, TopicNames
from rocketshim_topics.hops import clock_probe
from rocketshim_topics.kafka_codes import TOO_LARGE
from rocketshim_topics.wire import coordinates

__all__ = ["SendBack"]

_LOG = safe_logger("rocketshim.consumer")
TIMED_OUT_LEVEL: Final = 3
_LAST_REPORTS_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Sending:
    """One hop on its way."""

    chunk: Work
    hop: Hop
    delivery_error: DeliveryError
    reports: deque[Any]
    sent_ns: int = 0
    sent_ms: int = 0

    def reported(self, error: KafkaError | None, message: Any) -> None:
        error = self.delivery_error(error, message)
        self.reports.append((self, error, message.timestamp() if error is None else None))


class SendBack:
    """Sends failed messages to their next hop.

    Args:
        make_producer: makes a producer with idempotence and `acks=all`; called by `open`, and after a fatal error.
            None: nothing is retried (BROADCASTING), and a failed message is logged, counted and dropped.
        settings: the settings of the consumer.
        lanes: number of lanes of the schedule topic, 1 or more.
        clock: this machine's clocks.

    Source: `ConsumeMessageConcurrentlyService#sendMessageBack`, and `#processConsumeResult`, case BROADCASTING;
    `AbstractSendMessageProcessor#consumerSendMsgBack`.
    """

    def __init__(
        self,
        make_producer: Callable[[], ProducerClient] | None,
        settings: PushConsumerSettings,
        lanes: int,
        clock: Clock,
    ) -> None:
        names, limit = TopicNames(settings.namespace), settings.max_reconsume_times
        levels, group = settings.delay_levels, settings.group
        self.counts = SendBackCounts()
        self.failures = FailureCounts()
        self._make_producer = make_producer
        self._producer: ProducerClient | None = None  # None: not open
        self._broken: KafkaError | None = None
        self._renewal = Timer(settings.hop_back_off_ms)  # a new one may be refused, too
        self._hop_maker = HopMaker(
            names,
            levels,
            group,
            limit=limit,
            send_on_timeout_ms=settings.send_on_timeout_ms,
            policy=settings.retry_policy,
        )
        self._names = names
        self._clock = clock
        self._broker_clock = BrokerClock()
        self._is_clock_wrong = self._is_clock_asked = False
        self._lanes = lanes
        self._back_off_ms = settings.hop_back_off_ms
        self._delivery_error = DeliveryReports().error
        self._reports: deque[tuple[_Sending, KafkaError | None, tuple[int, int] | None]] = deque()
        self._probes: deque[tuple[int, int, tuple[int, int] | None]] = deque()  # when sent, by both clocks; time stored
        self._again: deque[tuple[int, _Sending]] = deque()
        self._outstanding = 0
        self._random = random.Random()  # noqa: S311 - jitter, nothing secret
        self._lane_selector = LaneSelector()
        self._failure_log = FailureLog(
            _LOG, group, names, levels, limit=limit, send_on_timeout_ms=settings.send_on_timeout_ms
        )
        self._now_ms = 0  # as of the last `turn`

    @property
    def outstanding(self) -> int:
        """Return the number of hops that are not stored yet."""
        return self._outstanding + len(self._again)

    def open(self) -> None:
        """Make the producer, in the thread that owns it."""
        if self._make_producer is not None:
            self._producer = self._make_producer()

    def send(self, chunk: Work, outcome: FailedMessage) -> None:
        """Send a failed message to its next hop; once closed, do nothing, so that the message stays unfinished."""
        if self._make_producer is None:
            self.counts.dropped += 1
            chunk.stored((outcome.message,))
            self._failure_log.dropped(outcome.message, outcome.failure, self._now_ms)
            return
        if self._producer is None:
            return
        key = outcome.message.key
        hop = self._hop_maker.first(
            outcome, lane=lambda: self._lane_selector.choose(key(), self._lanes), unit=self._random.random()
        )
        if hop.policy_error:
            _LOG.error("consumer.retry-policy-failed", extra={"error": hop.policy_error})
        if hop.error:
            _LOG.error("consumer.no-hop", extra={"record": coordinates(outcome.message), "error": hop.error})
        self._produce(_Sending(chunk, hop, self._delivery_error, self._reports))
        self._failure_log.hop(hop, self._now_ms)

    def turn(self, now_ms: int) -> None:
        """Begin a turn of the loop: log how many failures had no line of their own."""
        self._now_ms = now_ms
        self._failure_log.turn(now_ms)

    def suspended(self, message: Any, failure: Failure, number: int, delay_ms: int) -> None:
        """Log that a message of an orderly queue has failed; nothing is sent."""
        self._failure_log.suspended(message, failure, number, delay_ms, self._now_ms)

    def send_timed_out(self, chunk: Work, message: Any, at_ms: int) -> None:
        """Send back, at level 3, a message whose listener call took too long (`ProcessQueue#cleanExpiredMsg`)."""
        failure = Failure("ConsumeTimeout", "the listener call lasted longer than consume_timeout_ms", at_ms)
        self.send(chunk, FailedMessage(message, failure, asked_level=TIMED_OUT_LEVEL))

    def settle(self, wait_s: float = 0.0) -> None:
        """Process delivery reports (wait up to `wait_s` for the first), and send hops again whose pause is over."""
        if self._producer is None:
            return
        self._broken = poll_callbacks(self._producer, wait_s) or self._broken
        self._take_reports()
        if self._broken is not None and self._renewal.is_due(self._now_ms):
            self._renew(self._producer, self._broken)
        while self._again and self._again[0][0] <= self._now_ms:
            sending = self._again.popleft()[1]
            if not sending.chunk.dropped:
                self._produce(sending)

    def close(self) -> None:
        """Abandon hops that are not stored, and close. A second call does nothing."""
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, _LAST_REPORTS_S)

    def _renew(self, producer: ProducerClient, error: KafkaError) -> None:
        """Replace the producer after a fatal error; its hops in flight are sent again."""
        _LOG.error("consumer.producer-renewed", extra={"error": str(error)})
        close_producer(producer, _LAST_REPORTS_S)
        self._is_clock_asked = False
        self.open()
        self._take_reports()
        self._broken = None

    def _take_reports(self) -> None:
        stored: defaultdict[Work, list[Any]] = defaultdict(list)
        while self._probes:
            self._is_clock_asked = False
            self._learn_clock(*self._probes.popleft())
        while self._reports:
            sending, error, timestamp = self._reports.popleft()
            self._outstanding -= 1
            self._learn_clock(sending.sent_ns, sending.sent_ms, timestamp)
            if sending.chunk.dropped:
                continue
            if error is None:
                self.counts.add(sending.hop.kind)
                hop = sending.hop
                self.failures.add(hop.kind, hop.reconsume_times, hop.failed.failure.exception_class)
                stored[sending.chunk].append(sending.hop.failed.message)
            else:
                self._not_stored(sending, error)
        for chunk, messages in stored.items():
            chunk.stored(messages)

    def _produce(self, sending: _Sending) -> None:
        out, producer = sending.hop.out, self._producer
        if producer is None:  # every caller has checked it
            return
        self._outstanding += 1
        sending.sent_ns, sending.sent_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        try:
            producer.produce(
                out.topic,
                out.value,
                out.key,
                -1 if out.partition is None else out.partition,
                on_delivery=sending.reported,
                timestamp=self._broker_clock.stamp_ms(sending.sent_ns, sending.sent_ms),
                headers=out.headers,
            )
        except BufferError:
            self._reports.append((sending, KafkaError(KafkaError._QUEUE_FULL), None))  # noqa: SLF001
        except KafkaException as error:
            self._reports.append((sending, error.args[0], None))

    def _not_stored(self, sending: _Sending, error: KafkaError) -> None:
        self.counts.not_stored += 1
        if is_fatal(error):
            self._broken = error
        hop = sending.hop
        record = coordinates(hop.failed.message)
        _LOG.warning("consumer.hop-not-stored", extra={"record": record, "hop": hop.kind.value, "error": error.name()})
        smaller = self._hop_maker.smaller(hop) if error.code() in TOO_LARGE else None
        if smaller is not None:
            sending.hop = smaller
            self._produce(sending)
            if hop.kind is HopKind.RETRY:
                self._failure_log.hop(smaller, self._now_ms)
        else:
            if error.code() == KafkaError.INVALID_TIMESTAMP:
                self._ask_clock()
            self._again.append((self._now_ms + self._back_off_ms, sending))

    # --- the brokers' clock ------------------------------------------------------------------------------------------

    @property
    def clock_ahead_ms(self) -> int:
        """How far this machine's clock is ahead of the brokers' (negative: behind); 0: at most a minute, or unknown."""
        return self._broker_clock.wrong_by_ms(self._clock.monotonic_ns(), self._clock.wall_ms())

    def _learn_clock(self, sent_ns: int, sent_ms: int, timestamp: tuple[int, int] | None) -> None:
        """Learn the brokers' clock from the append time of a stored record; log it if this machine's differs."""
        if timestamp is None or timestamp[0] != TIMESTAMP_LOG_APPEND_TIME:
            return
        self._broker_clock.reported(timestamp[1], sent_ns, sent_ms, self._clock.monotonic_ns())
        before, ahead_ms = self._is_clock_wrong, self.clock_ahead_ms
        self._is_clock_wrong = ahead_ms != 0
        if ahead_ms and not before:
            _LOG.warning("consumer.clock-differs", extra={"ahead_ms": ahead_ms})

    def _ask_clock(self) -> None:
        """Write a probe of the brokers' clock into the schedule topic, unless one is on its way."""
        producer = self._producer
        if producer is None or self._is_clock_asked:
            return
        out, sent_ns, sent_ms = clock_probe(self._names, partition=0), self._clock.monotonic_ns(), self._clock.wall_ms()

        def reported(error: KafkaError | None, message: Any) -> None:
            error = self._delivery_error(error, message)
            self._probes.append((sent_ns, sent_ms, message.timestamp() if error is None else None))

        with suppress(BufferError, KafkaException):  # the hop is refused again, and asks again
            producer.produce(out.topic, out.value, out.key, 0, on_delivery=reported, headers=out.headers)
            self._is_clock_asked = True
