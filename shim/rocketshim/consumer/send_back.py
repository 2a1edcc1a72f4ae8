"""Store the next hop of each failed message (`core.next_hop`); the message is done once it is stored.

Owned by the poll thread. `send` produces; `settle` processes delivery reports. The producer belongs to this
sender: after a fatal error it is replaced, and its hops in flight are sent again. A hop that is not stored for a
transient reason is sent again later (RocketMQ: 5 s, `submitConsumeRequestLater`). Until then its partition's commit
does not pass the message. The hop is counted and logged, but it does not count as a failed attempt. A hop that can
never succeed, because the record with its headers is too large for the next topic, is made smaller.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.consumer.reader.partition_queue import Work
from rocketshim.consumer_metrics import FailureCounts, SendBackCounts
from rocketshim.core.lane_selector import LaneSelector
from rocketshim.core.next_hop import FailedMessage, Hop, HopKind, HopMaker
from rocketshim.core.timer import Timer
from rocketshim.failures import FailureLog
from rocketshim.kafka.clients import ProducerClient, close_producer, is_fatal, poll_callbacks
from rocketshim.kafka.reports import DeliveryError, DeliveryReports
from rocketshim.logs import safe_logger
from rocketshim.settings import PushConsumerSettings
from rocketshim_topics import Failure, TopicNames
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

    def reported(self, error: KafkaError | None, message: Any) -> None:
        self.reports.append((self, self.delivery_error(error, message)))


class SendBack:
    """Sends failed messages to their next hop.

    Args:
        make_producer: makes a producer with idempotence and `acks=all`; called by `open`, and after a fatal error.
            None: nothing is retried (BROADCASTING), and a failed message is logged, counted and dropped.
        settings: the settings of the consumer.
        lanes: number of lanes of the schedule topic, 1 or more.

    Source: `ConsumeMessageConcurrentlyService#sendMessageBack`, and `#processConsumeResult`, case BROADCASTING;
    `AbstractSendMessageProcessor#consumerSendMsgBack`.
    """

    def __init__(
        self, make_producer: Callable[[], ProducerClient] | None, settings: PushConsumerSettings, lanes: int
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
        self._lanes = lanes
        self._back_off_ms = settings.hop_back_off_ms
        self._delivery_error = DeliveryReports().error
        self._reports: deque[tuple[_Sending, KafkaError | None]] = deque()
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
        self.open()
        self._take_reports()
        self._broken = None

    def _take_reports(self) -> None:
        stored: defaultdict[Work, list[Any]] = defaultdict(list)
        while self._reports:
            sending, error = self._reports.popleft()
            self._outstanding -= 1
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
        try:
            producer.produce(
                out.topic,
                out.value,
                out.key,
                -1 if out.partition is None else out.partition,
                on_delivery=sending.reported,
                headers=out.headers,
            )
        except BufferError:
            self._reports.append((sending, KafkaError(KafkaError._QUEUE_FULL)))  # noqa: SLF001
        except KafkaException as error:
            self._reports.append((sending, error.args[0]))

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
            self._again.append((self._now_ms + self._back_off_ms, sending))
