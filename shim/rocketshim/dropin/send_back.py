"""Send-back of the drop-in consumer: the caller's thread makes the next hop and waits until it is stored.

There is one idempotent producer per consumer, made at the first send-back (`kafka.record_sender.RecordSender`). A
consumer whose messages never fail makes none.

The next hop is decided as for every other consumer, also that of a record that breaks the wire format or is too large
(`core.next_hop`). Each stored hop finishes the message. It has the brokers' time as its timestamp, once a delivery
report of the schedule topic has shown it. If a broker refuses the time of this machine before that, a probe in the
schedule topic shows it.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Final, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException, Message

from rocketshim.clock import SystemClock
from rocketshim.consumer_metrics import FailureCounts, SendBackCounts
from rocketshim.core.clock import Clock
from rocketshim.core.next_hop import NO_LISTENER, FailedMessage, Hop, HopKind, HopMaker
from rocketshim.core.user_values import safe_text
from rocketshim.dropin.settings import ConsumerDropinSettings
from rocketshim.errors import MessageError, SendTimeoutError
from rocketshim.failures import FailureLog, FailureMaker
from rocketshim.health import Metric
from rocketshim.kafka.clients import ProducerClient
from rocketshim.kafka.lanes import Lanes
from rocketshim.kafka.record_sender import RecordSender
from rocketshim.kafka.reports import UNCONFIRMED, BrokerTime
from rocketshim.kafka.send_errors import send_error
from rocketshim.logs import safe_logger
from rocketshim_topics import Failure, TopicNames
from rocketshim_topics.hops import OutgoingRecord, clock_probe
from rocketshim_topics.kafka_codes import TOO_LARGE
from rocketshim_topics.wire import coordinates

__all__ = ["DropinSendBack", "with_credentials"]

_LOG = safe_logger("rocketshim.dropin")
_GRACE_S: Final = 5.0
_DEAD_LETTER_LEVEL: Final = -1
_COUNTED: Final = (*(kind.value for kind in HopKind), "not_stored")
_Client = TypeVar("_Client")


class DropinSendBack:
    """Makes and stores the next hop of each failed message of one consumer. Any thread may call every method.

    Attributes:
        credentials: user name and password that the program has set last, for every client of the consumer.

    Source: `ConsumeMessageConcurrentlyService#sendMessageBack`, `AbstractSendMessageProcessor#consumerSendMsgBack`.
    """

    def __init__(
        self,
        make_producer: Callable[[], ProducerClient],
        settings: ConsumerDropinSettings,
        group: str,
        clock: Clock | None = None,
    ) -> None:
        names, levels = TopicNames(settings.namespace), settings.delay_levels
        limit, send_on_timeout_ms = settings.max_reconsume_times, settings.send_on_timeout_ms
        self._group = group
        self._timeout_s = settings.hop_timeout_ms / 1_000
        self._clock = clock or SystemClock()
        self._names = names
        self._hop_maker = HopMaker(names, levels, group, limit=limit, send_on_timeout_ms=send_on_timeout_ms)
        self._lanes = Lanes(names.schedule, self._timeout_s)
        self._random = random.Random()  # noqa: S311 - jitter, nothing secret
        self._make_failure = FailureMaker(self._clock, wants_stack=settings.fail_stack)
        self._failure_log = FailureLog(
            _LOG, group, names, levels, limit=limit, send_on_timeout_ms=send_on_timeout_ms, prefix="dropin"
        )
        self._counts = SendBackCounts()
        self._failures = FailureCounts()
        self._counting = threading.Lock()
        self.credentials: deque[tuple[str, str]] = deque(maxlen=1)
        credentials = self.credentials  # no cycle of references: it would keep the Kafka client
        self._sender = RecordSender(
            lambda: with_credentials(make_producer(), credentials),
            thread_name="rocketshim-dropin-reports",
            closed_text="the consumer is closed; nothing was sent",
            on_unconfirmed=_log_unconfirmed,
            on_error=_log_error,
            time=BrokerTime(self._clock, _log_wrong_clock),
        )

    def reconsume_later(
        self, message: Message, error: BaseException | str | None, *, level: int | None, delay_ms: int | None
    ) -> None:
        """Send to the retry topic after a delay, or to the dead letters if the limit is reached."""
        self._send(message, self._failure(error, "ReconsumeLater"), level or 0, delay_ms)

    def dead_letter(self, message: Message, reason: BaseException | str) -> None:
        """Send to the dead letters immediately."""
        self._send(message, self._failure(reason, "DeadLetter"), _DEAD_LETTER_LEVEL)

    def send_on(self, message: Message, topic: str) -> None:
        """Send a retried message on to the other members, since this one does not subscribe to its topic."""
        text, at_ms = f"this consumer does not subscribe to {topic!r}", self._clock.wall_ms()
        # a dead letter only when it can no longer be sent on
        self._send(message, Failure(NO_LISTENER, text, at_ms, unhandled=True), _DEAD_LETTER_LEVEL)

    def metrics(self) -> Iterator[Metric]:
        """Yield the counts of what was sent back, by where it went, by failed attempts, and by class of the failure."""
        with self._counting:
            failures = self._failures.copy()
            hops = {name: getattr(self._counts, name) for name in _COUNTED}
        mine = {"group": self._group}
        yield Metric(
            "rocketshim_dropin_sent_back_total", "counter", "messages sent back by where they went",
            tuple(("", mine | {"hop": name}, count) for name, count in hops.items()),
        )  # fmt: skip
        yield Metric(
            "rocketshim_dropin_retries_total", "counter", "retries stored, by failed attempts of the message",
            tuple(("", mine | {"attempt": attempt}, count) for attempt, count in failures.retries.items()),
        )  # fmt: skip
        yield Metric(
            "rocketshim_dropin_dead_letters_total", "counter", "dead letters stored, by class of the failure",
            tuple(("", mine | {"cause": cause}, count) for cause, count in sorted(failures.dead.items())),
        )  # fmt: skip

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the credentials as the client does; also for a producer that is made later."""
        self.credentials.append((username, password))
        if self._sender.producer is not None:
            with_credentials(self._sender.producer, self.credentials)

    def close(self) -> None:
        """Close the producer after waiting for records in flight. A second call does nothing."""
        self._sender.close(time.monotonic() + self._timeout_s)

    def _failure(self, error: BaseException | str | None, name: str) -> Failure:
        if issubclass(type(error), BaseException):  # `isinstance` would ask the error for its `__class__`
            return self._make_failure.of(cast("BaseException", error))
        text = "the consumer asked for it" if error is None else safe_text(error)
        return Failure(name, text, self._clock.wall_ms())

    def _send(self, message: Message, failure: Failure, level: int, delay_ms: int | None = None) -> None:
        try:
            hop = self._stored(FailedMessage(message, failure, level, delay_ms))
        except BaseException:
            with self._counting:
                self._counts.not_stored += 1
            raise
        with self._counting:
            self._counts.add(hop.kind)
            self._failures.add(hop.kind, hop.reconsume_times, failure.exception_class)
        now_ms = self._clock.monotonic_ns() // 1_000_000
        self._failure_log.turn(now_ms)
        if hop.kind is not HopKind.PARKED:
            self._failure_log.hop(hop, now_ms)

    def _stored(self, failed: FailedMessage) -> Hop:
        """Store the next hop of a message; return it, or the smaller one that was accepted in its place."""
        message = failed.message
        for what, content in (("value", message.value()), ("key", message.key())):
            if content is not None and not isinstance(content, bytes):
                raise MessageError(
                    f"the message's {what} was replaced by {type(content).__name__}; only a message as it was fetched "
                    "can be sent back: keep decoded values outside the message"
                )
        hop = self._hop_maker.first(
            failed,
            lane=lambda: self._lanes.choose(message.key(), self._sender.list_topics),
            unit=self._random.random(),
        )
        while (error := self._store(hop)) is not None:
            smaller = self._hop_maker.smaller(hop) if error.code() in TOO_LARGE else None
            if smaller is None:
                raise send_error(error, hop.out.topic) from KafkaException(error)
            hop = smaller
        return hop

    def _store(self, hop: Hop) -> KafkaError | None:
        """Store a hop's record; return the error because of which it is not stored."""
        record = coordinates(hop.failed.message)
        if hop.kind is HopKind.PARKED:
            _LOG.warning("dropin.parked", extra={"record": record, "reason": hop.reason})
        elif hop.kind is HopKind.BY_REFERENCE:
            _LOG.warning("dropin.dead-by-reference", extra={"record": record})
        until_s = time.monotonic() + self._timeout_s + _GRACE_S
        error = self._produce(hop.out, until_s)
        if error is not None and error.code() == KafkaError.INVALID_TIMESTAMP:
            self._produce(clock_probe(self._names, partition=0), until_s)
            error = self._produce(hop.out, until_s)
        return error

    def _produce(self, out: OutgoingRecord, until_s: float) -> KafkaError | None:
        """Send a record once, and return the error of its report, or of a call that the client refuses.

        Raises:
            SendTimeoutError: no report came in time; the record may or may not be stored.
            ClosedError: the consumer is closed; nothing was sent.
        """
        future: Future[KafkaError | None] = Future()
        try:
            self._sender.send(
                out, lambda error, _: future.set_result(error), room_until_s=until_s, again_until_s=until_s
            )
            return future.result(max(0.0, until_s - time.monotonic()))
        except KafkaException as refused:
            return cast("KafkaError", refused.args[0])
        except BufferError as error:
            raise SendTimeoutError(
                f"the queue of the inner producer stayed full; nothing was sent to {out.topic!r}"
            ) from error
        except TimeoutError as error:
            raise SendTimeoutError(
                f"no delivery report for {out.topic!r} within {self._timeout_s} s; it may or may not be stored"
            ) from error


def with_credentials(client: _Client, credentials: Iterable[tuple[str, str]]) -> _Client:
    """Set credentials in a client, if there are any, and return it."""
    for username, password in tuple(credentials):  # another thread may set newer ones meanwhile
        client.set_sasl_credentials(username, password)  # type: ignore[attr-defined]
    return client


def _log_wrong_clock(ahead_ms: int) -> None:
    _LOG.warning("dropin.clock-differs", extra={"ahead_ms": ahead_ms})


def _log_unconfirmed(out: OutgoingRecord) -> None:
    _LOG.warning("dropin.hop-not-stored", extra={"topic": out.topic, "error": UNCONFIRMED.name()})


def _log_error(error: BaseException) -> None:
    _LOG.warning("dropin.producer-error", extra={"error": safe_text(error)})
