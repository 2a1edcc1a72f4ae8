"""Store the next hop of each failed message (`core.next_hop`); the message is done once it is stored.

Owned by the poll thread. `send` produces; `take_reports` processes delivery reports (of an `OwnedSender`). A
hop that is not stored for a transient reason, or by a producer that is replaced, is sent again later (RocketMQ: 5 s,
`submitConsumeRequestLater`). Until then its partition's commit does not pass the message. The hop is counted and
logged, but it does not count as a failed attempt. A report that never comes needs no timer: the client reports each
record within `hop_timeout_ms`. A hop that can never succeed, because the record with its headers is too large for the
next topic, is made smaller.

Hops have the brokers' time as their timestamp, once it is known: the delivery report of a retry shows it, as brokers
stamp the schedule topic. If a broker refuses the time of this machine before that, a probe in the schedule topic shows
the brokers' time, and the hop is sent again with it.
"""

import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError

from rocketshim.consumer_metrics import FailureCounts, SendBackCounts
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Clock
from rocketshim.core.log_limits import FailureWindows
from rocketshim.core.next_hop import FailedMessage, Hop, HopKind, HopMaker
from rocketshim.core.partition import Work
from rocketshim.failures import FailureLog
from rocketshim.kafka.clients import ProducerClient
from rocketshim.kafka.lanes import lane_of
from rocketshim.kafka.membership import WorkerWatch
from rocketshim.kafka.record_sender import OwnedSender
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics import Failure, TopicNames
from rocketshim_topics.hops import clock_probe
from rocketshim_topics.kafka_codes import TOO_LARGE
from rocketshim_topics.wire import coordinates

__all__ = ["SendBack"]

_LOG = safe_logger("rocketshim.consumer")
TIMED_OUT_LEVEL: Final = 3


class SendBack:
    """Sends failed messages to their next hop.

    Without a producer nothing is retried (BROADCASTING), and a failed message is logged, counted and dropped.

    Source: `ConsumeMessageConcurrentlyService#sendMessageBack`, and `#processConsumeResult`, case BROADCASTING;
    `AbstractSendMessageProcessor#consumerSendMsgBack`.
    """

    def __init__(
        self,
        make_producer: Callable[[], ProducerClient] | None,
        settings: PushConsumerSettings,
        lanes: int,
        clock: Clock,
        worker: WorkerWatch | None = None,
    ) -> None:
        self._worker = worker
        names = TopicNames(settings.namespace)
        self.on_stored: Callable[[Any, list[Any]], None]  # set by the dispatch; gets what is done now
        self.counts = SendBackCounts()
        self.failures = FailureCounts()
        self._time = BrokerClock(clock, _log_wrong_clock)
        self._sender: OwnedSender[tuple[Work, Hop]] | None = None
        if make_producer is not None:
            self._sender = OwnedSender(
                make_producer,
                settings.hop_back_off_ms,
                _log_renewed,
                self._time,
                partial(clock_probe, names, partition=0),
            )
        self._hop_maker = HopMaker(
            names,
            settings.delay_levels,
            settings.group,
            limit=settings.max_reconsume_times,
            send_on_timeout_ms=settings.send_on_timeout_ms,
            policy=settings.retry_policy,
        )
        self._lanes = lanes
        self._back_off_ms = settings.hop_back_off_ms
        self._again: deque[tuple[int, Work, Hop]] = deque()
        self._random = random.Random()  # noqa: S311 - jitter, nothing secret
        self._turns = itertools.count()
        self._failure_log = FailureLog(_LOG, self._hop_maker, worker=worker)
        self._unstored: FailureWindows[str] = FailureWindows()  # by the name of the error
        self._now_ms = 0  # as of the last `turn`

    @property
    def outstanding(self) -> int:
        """Return the number of hops that are not stored yet."""
        return len(self._again) + (0 if self._sender is None else self._sender.outstanding)

    @property
    def clock_ahead_ms(self) -> int:
        """How far this machine's clock is ahead of the brokers' (negative: behind); 0: at most a minute, or unknown."""
        return self._time.ahead_ms

    def open(self) -> None:
        """Make the producer, in the thread that owns it."""
        if self._sender is not None:
            self._sender.open()

    def send(self, chunk: Work, outcome: FailedMessage) -> None:
        """Send a failed message to its next hop; once closed, do nothing, so that the message stays unfinished."""
        if self._sender is None:
            self.counts.dropped += 1
            self.on_stored(chunk, [outcome.message])
            self._failure_log.dropped(outcome.message, outcome.failure, self._now_ms)
            return
        if not self._sender.is_open:
            return
        key = outcome.message.key
        hop = self._hop_maker.first(
            outcome, lane=lambda: lane_of(key(), self._lanes, self._turns), unit=self._random.random()
        )
        if hop.policy_error:
            _LOG.error("consumer.retry-policy-failed", extra={"error": hop.policy_error})
        if hop.error:
            _LOG.error("consumer.no-hop", extra={"record": coordinates(outcome.message), "error": hop.error})
        self._sender.send(hop.out, (chunk, hop))
        self._failure_log.hop(hop, self._now_ms)

    def turn(self, now_ms: int) -> None:
        """Begin a turn of the loop: log how many failures had no line of their own."""
        self._now_ms = now_ms
        self._failure_log.turn(now_ms)
        if self._worker is not None:
            self._worker.turn(now_ms)

    def suspended(self, message: Any, failure: Failure, number: int, delay_ms: int) -> None:
        """Log that a message of an orderly queue has failed; nothing is sent."""
        self._failure_log.suspended(message, failure, number, delay_ms, self._now_ms)

    def send_timed_out(self, chunk: Work, message: Any, at_ms: int) -> None:
        """Send back, at level 3, a message whose listener call took too long (`ProcessQueue#cleanExpiredMsg`)."""
        failure = Failure("ConsumeTimeout", "the listener call lasted longer than consume_timeout_ms", at_ms)
        self.send(chunk, FailedMessage(message, failure, asked_level=TIMED_OUT_LEVEL))

    def take_reports(self, wait_s: float = 0.0) -> None:
        """Process delivery reports (wait up to `wait_s` for the first), and send hops again whose pause is over."""
        sender = self._sender
        if sender is None or not sender.is_open:
            return
        stored: defaultdict[Work, list[Any]] = defaultdict(list)
        for (chunk, hop), error in sender.results(self._now_ms, wait_s):
            if chunk.dropped:
                continue
            if error is None:
                self.counts.add(hop.kind)
                self.failures.add(hop.kind, hop.reconsume_times, hop.failed.failure.exception_class)
                stored[chunk].append(hop.failed.message)
            else:
                self._not_stored(sender, chunk, hop, error)
        for chunk, messages in stored.items():
            self.on_stored(chunk, messages)
        while self._again and self._again[0][0] <= self._now_ms:
            _, chunk, hop = self._again.popleft()
            if not chunk.dropped:
                sender.send(hop.out, (chunk, hop))

    def close(self) -> None:
        """Abandon hops that are not stored, and close. A second call does nothing."""
        if self._sender is not None:
            self._sender.close()
        if self._worker is not None:
            self._worker.close()

    def _not_stored(self, sender: OwnedSender[tuple[Work, Hop]], chunk: Work, hop: Hop, error: KafkaError) -> None:
        self.counts.not_stored += 1
        if count := self._unstored.note(error.name(), self._now_ms):  # else a thousand lines each 5 s in an outage
            record = coordinates(hop.failed.message)
            facts = {"record": record, "hop": hop.kind.value, "error": error.name(), "count": count}
            _LOG.warning("consumer.hop-not-stored", extra=facts)
        smaller = self._hop_maker.smaller(hop) if error.code() in TOO_LARGE else None
        if smaller is None:
            self._again.append((self._now_ms + self._back_off_ms, chunk, hop))
            return
        sender.send(smaller.out, (chunk, smaller))
        if hop.kind in {HopKind.RETRY, HopKind.SENT_ON}:  # its line did not say that the message is dead
            self._failure_log.hop(smaller, self._now_ms)


def _log_wrong_clock(ahead_ms: int) -> None:
    _LOG.warning("consumer.clock-differs", extra={"ahead_ms": ahead_ms})


def _log_renewed(error: KafkaError) -> None:
    _LOG.error("consumer.producer-renewed", extra={"error": str(error)})
