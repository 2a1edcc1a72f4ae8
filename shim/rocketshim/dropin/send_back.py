"""Send-back of the drop-in consumer: the caller's thread makes the next hop and waits until it is stored.

There is one idempotent producer per consumer, made at the first send-back. A consumer whose messages never fail makes
none. One daemon thread polls the producer; in it, delivery reports resolve futures. A producer with a fatal error is
abandoned, and the next send-back makes another.

The next hop is decided as for every other consumer, also that of a record that breaks the wire format or is too large
(`core.next_hop`). Each stored hop finishes the message.
"""

import random
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from rocketshim.clock import SystemClock
from rocketshim.consumer.outcome import class_name, safe_text
from rocketshim.core.next_hop import FailedMessage, HopKind, NextHops
from rocketshim.dropin.lanes import Lanes
from rocketshim.errors import ClosedError, MessageError, SendTimeoutError
from rocketshim.kafka.clients import with_log
from rocketshim.kafka.reports import DeliveryReports, is_unconfirmed
from rocketshim.kafka.send_errors import send_error
from rocketshim.logs import safe_logger
from rocketshim_topics import DelayLevels, Failure, TopicNames
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.kafka_codes import TOO_LARGE
from rocketshim_topics.wire import coordinates

__all__ = ["DropinSendBack", "HopStore"]

_LOG = safe_logger("rocketshim.dropin")
_POLL_S: Final = 0.1
_GRACE_S: Final = 5.0
_AGAIN_S: Final = 0.1
_DEAD_LETTER_LEVEL: Final = -1


class HopStore:
    """Stores records and waits for their delivery reports.

    Args:
        config: librdkafka settings of the producer.
        timeout_s: its `delivery.timeout.ms`, in seconds.

    Thread-safety: any thread may call every method.
    """

    def __init__(self, config: dict[str, Any], timeout_s: float) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._reporter: threading.Thread | None = None
        self._over = threading.Event()
        self._closed = False
        self._reports = DeliveryReports()
        self._credentials: tuple[str, str] | None = None

    def store(self, out: OutgoingRecord) -> None:
        """Produce a record and return when it is stored; produce it again while it is reported without an offset.

        Raises:
            KafkaException: the error of the delivery report or of the call.
            SendTimeoutError: no report came in time; the record may or may not be stored.
            ClosedError: the store is closed; nothing was sent.
        """
        deadline = time.monotonic() + self._timeout_s + _GRACE_S
        while True:
            producer = self._open()
            problem = self._outcome(producer, out, deadline)
            if problem is None:
                return
            if not is_unconfirmed(problem) or time.monotonic() + _AGAIN_S >= deadline:
                break
            _LOG.warning("dropin.hop-not-stored", extra={"topic": out.topic, "error": problem.name()})
            self._over.wait(_AGAIN_S)
        self._give_up_if_fatal(producer, problem)
        raise KafkaException(problem)

    def _outcome(self, producer: Producer, out: OutgoingRecord, deadline: float) -> KafkaError | None:
        """Produce a record once and return the error of its report; None: it is stored."""
        future: Future[KafkaError | None] = Future()

        def on_delivery(error: KafkaError | None, record: Message) -> None:
            future.set_result(self._reports.error(error, record))

        while True:
            try:
                producer.produce(
                    out.topic,
                    out.value,
                    out.key,
                    -1 if out.partition is None else out.partition,
                    on_delivery=on_delivery,
                    headers=list(out.headers),
                )
                break
            except BufferError as error:
                if time.monotonic() >= deadline:
                    raise SendTimeoutError(
                        f"the queue of the inner producer stayed full; nothing was sent to {out.topic!r}"
                    ) from error
                self._over.wait(0.005)
            except KafkaException as error:
                self._give_up_if_fatal(producer, error.args[0])
                raise
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError as error:
            raise SendTimeoutError(
                f"no delivery report for {out.topic!r} within {self._timeout_s} s; it may or may not be stored"
            ) from error

    def list_topics(self, *, timeout: float) -> Any:
        """Return the cluster's topics, as the producer sees them; `timeout` in seconds.

        Raises:
            KafkaException: no broker answered in time.
            ClosedError: the store is closed.
        """
        return self._open().list_topics(timeout=timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the credentials as the client does; also for a producer that is made later."""
        with self._lock:
            self._credentials = (username, password)
            producer = self._producer
        if producer is not None:
            producer.set_sasl_credentials(username, password)

    def tell_credentials(self, client: Any) -> None:
        """Set the credentials that were set last in another client of this consumer."""
        with self._lock:
            credentials = self._credentials
        if credentials is not None:
            client.set_sasl_credentials(*credentials)

    def close(self) -> None:
        """Close the producer after waiting for records in flight. A second call does nothing."""
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
            reporter, self._reporter = self._reporter, None
        try:
            if producer is not None:
                producer.flush(self._timeout_s)
        finally:
            self._over.set()
            if reporter is not None:
                reporter.join()

    def __del__(self) -> None:
        self._over.set()  # a consumer that is collected without close() leaves no thread running

    def _give_up_if_fatal(self, producer: Producer, error: KafkaError) -> None:
        with self._lock:
            if error.fatal() and self._producer is producer:
                self._producer = None
                self._over.set()
                self._over = threading.Event()

    def _open(self) -> Producer:
        with self._lock:
            if self._closed:
                raise ClosedError("the consumer is closed; nothing was sent")
            if self._producer is None:
                self._producer = Producer(with_log(self._config))
                if self._credentials is not None:
                    self._producer.set_sasl_credentials(*self._credentials)
                self._reporter = threading.Thread(
                    target=_serve,
                    args=(self._producer, self._over, self._timeout_s),
                    name="rocketshim-dropin-reports",
                    daemon=True,
                )
                self._reporter.start()
            return self._producer


def _serve(producer: Producer, over: threading.Event, timeout_s: float) -> None:
    """Process delivery reports until `over` is set, and then those of the records in flight.

    `poll` raises a fatal error of the producer once, before the reports. It also raises an error in a callback.
    """
    while not over.is_set():
        try:
            producer.poll(_POLL_S)
        except BaseException as error:  # noqa: BLE001 - of user code too; the caller that waits for a report must get it
            _LOG.warning("dropin.producer-error", extra={"error": safe_text(error)})
    try:
        producer.flush(timeout_s)
    except BaseException as error:  # noqa: BLE001 - as above
        _LOG.warning("dropin.producer-error", extra={"error": safe_text(error)})


class DropinSendBack:
    """Makes and stores the next hop of a message.

    Args:
        store: stores the hop.
        names, levels, group: names, delay levels and group of the consumer.
        limit: `max_reconsume_times` of the group.
        timeout_s: how long to wait for the cluster to report the number of lanes, in seconds.

    Thread-safety: any thread may call every method.

    Source: `ConsumeMessageConcurrentlyService#sendMessageBack`, `AbstractSendMessageProcessor#consumerSendMsgBack`.
    """

    def __init__(
        self, store: HopStore, *, names: TopicNames, levels: DelayLevels, group: str, limit: int, timeout_s: float
    ) -> None:
        self._store = store
        self._next_hops = NextHops(names, levels, group, limit=limit)
        self._lanes = Lanes(names.schedule, timeout_s)
        self._random = random.Random()  # noqa: S311 - jitter, nothing secret
        self._clock = SystemClock()

    def retry(
        self, message: Message, error: BaseException | str | None, *, level: int | None, delay_ms: int | None
    ) -> None:
        """Send to the retry topic after a delay, or to the dead letters if the limit is reached."""
        self._send(message, self._failure(error, "ReconsumeLater"), level or 0, delay_ms)

    def kill(self, message: Message, reason: BaseException | str) -> None:
        """Send to the dead letters immediately."""
        self._send(message, self._failure(reason, "DeadLetter"), _DEAD_LETTER_LEVEL, None)

    def _failure(self, error: BaseException | str | None, name: str) -> Failure:
        at_ms = self._clock.wall_ms()
        if issubclass(type(error), BaseException):  # `isinstance` would ask the error for its `__class__`
            name = class_name(error)
        return Failure(name, "the consumer asked for it" if error is None else safe_text(error), at_ms)

    def _send(self, message: Message, failure: Failure, level: int, delay_ms: int | None) -> None:
        for what, content in (("value", message.value()), ("key", message.key())):
            if content is not None and not isinstance(content, bytes):
                raise MessageError(
                    f"the message's {what} was replaced by {type(content).__name__}; only a message as it was fetched "
                    "can be sent back: keep decoded values outside the message"
                )
        key: Any = message.key()
        hop = self._next_hops.first(
            FailedMessage(message, failure, level, delay_ms),
            lane=lambda: self._lanes.choose(key, self._store.list_topics),
            unit=self._random.random(),
        )
        while True:
            if hop.kind is HopKind.PARKED:
                _LOG.warning("dropin.parked", extra={"record": coordinates(message), "reason": hop.reason})
            elif hop.kind is HopKind.BY_REFERENCE:
                _LOG.warning("dropin.dead-by-reference", extra={"record": coordinates(message)})
            try:
                self._store.store(hop.out)
            except KafkaException as error:
                smaller = self._next_hops.smaller(hop) if error.args[0].code() in TOO_LARGE else None
                if smaller is None:
                    raise send_error(error.args[0], hop.out.topic) from error
                hop = smaller
            else:
                return
