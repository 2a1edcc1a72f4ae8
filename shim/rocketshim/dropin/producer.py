"""`Producer`: `confluent_kafka.Producer` whose `produce` takes a delay, a tag and business keys.

A call without any of these is passed to the original, argument for argument. With one of them the record is made as
`rocketshim.Producer` makes it: it has the headers of the wire format. A delayed record goes to the schedule topic
instead of the named topic, and a worker delivers it from there. The other methods of the original are unchanged. The
delivery report of a delayed message has its coordinates in the schedule topic.

From the first delayed message on, the calls of `produce` and `poll` also notice that no worker runs, and log it. They
do not wait for it.
"""

import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from rocketshim.at_exit import at_exit
from rocketshim.clock import SystemClock
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.dropin.settings import ProducerDropinSettings, connection, take, watched_workers
from rocketshim.errors import FeatureNotEnabledError
from rocketshim.kafka.client_config import flat
from rocketshim.kafka.confluent import in_own_thread
from rocketshim.kafka.lanes import Lanes
from rocketshim.kafka.membership import WorkerWatch
from rocketshim.metrics import Metric
from rocketshim.producer.arguments import RecordMaker
from rocketshim_topics.message import Message as ShimMessage
from rocketshim_topics.names import TopicNames

__all__ = ["Producer", "delayed_messages"]

Headers = dict[str, str | bytes | None] | list[tuple[str, str | bytes | None]]


class Producer(confluent_kafka.Producer):
    """A `confluent_kafka.Producer` that can send delayed messages.

    The constructor takes the arguments of the original. Keys that begin with `rocketshim.` are removed from a copy of
    the configuration; `rocketshim.dropin.settings.ProducerDropinSettings` lists them.

    Raises:
        ConfigError: a `rocketshim.` key does not exist, or its value is out of range. Everything else as the original.

    Thread-safety: as the original.
    """

    __slots__ = (
        *(() if confluent_kafka.Producer.__weakrefoffset__ else ("__weakref__",)),
        "_shim_at_exit",
        "_shim_connection",
        "_shim_credentials",
        "_shim_delayed",
        "_shim_in_transaction",
        "_shim_maker",
        "_shim_names",
        "_shim_on_delivery",
        "_shim_settings",
        "_shim_watch",
    )
    _shim_at_exit: "_Unflushed"
    _shim_connection: dict[str, Any]
    _shim_credentials: deque[tuple[str, str]]
    _shim_settings: ProducerDropinSettings
    _shim_names: TopicNames
    _shim_maker: RecordMaker
    _shim_in_transaction: bool
    _shim_on_delivery: Any
    _shim_delayed: Counter[str]  # delivery reports of delayed messages; counted in the thread that polls
    _shim_watch: WorkerWatch | None  # None: no message was delayed

    if not TYPE_CHECKING:  # type checkers use the original's constructor

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            values, args, kwargs = take(args, kwargs)
            settings = self._shim_settings = ProducerDropinSettings.make(**values)
            names = self._shim_names = TopicNames(settings.namespace)
            self._shim_maker = RecordMaker(
                names,
                settings.delay_levels,
                settings.max_delay_ms,
                lanes=Lanes(names.schedule),
                time=BrokerClock(SystemClock()),
            )
            self._shim_in_transaction = False
            self._shim_delayed = Counter()
            config = args[0] if args and isinstance(args[0], dict) else {}
            self._shim_on_delivery = kwargs.get("on_delivery", config.get("on_delivery"))
            self._shim_credentials = deque(maxlen=1)
            self._shim_watch = None
            super().__init__(*args, **kwargs)
            self._shim_connection = connection(flat({**config, **kwargs}))
            self._shim_at_exit = _Unflushed(self, settings.exit_timeout_ms)
            if settings.exit_timeout_ms:
                at_exit.add_producer(self._shim_at_exit)

    def produce(  # noqa: PLR0917 - the original's
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Callable[[KafkaError | None, Message], None] | None = None,
        on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
        *,
        delay_level: int | None = None,
        delay: timedelta | str | float | None = None,
        deliver_at: int | datetime | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        """As the original; a message with one of the arguments below is made as `rocketshim.Producer` makes it.

        Args:
            topic: as the original's.
            value: as the original's.
            key: as the original's.
            partition: as the original's; for a delayed message, the partition that it is delivered to. -1: by key. A
                delayed message is delivered by the Java client's partitioner (murmur2). Set `partitioner` to
                `murmur2_random` if messages that are sent without delay must go to the same partition.
            callback: as the original's; a delayed message has its coordinates in the schedule topic.
            on_delivery: as `callback`.
            timestamp: as the original's, also of a delayed message when it is delivered: epoch ms; 0: the time of the
                delivery. With the arguments below it is also the time at which the message was born.
            headers: as the original's; with the arguments below they are user properties, with the limits of
                `rocketshim.Message`.
            delay_level: deliver after the delay of this level; 0 or less: immediately. None: no level.
            delay: deliver this long after it was stored: a timedelta, `"90s"`, or seconds. None: no delay.
            deliver_at: deliver at this time on the broker's clock: epoch ms or an aware datetime. None: no time.
            tag: one tag to filter by. None: no tag.
            keys: business keys to search by.

        Raises:
            MessageError: more than one delay is given, a delay is longer than `rocketshim.max.delay.ms`, a header is
                reserved, or another rule of `rocketshim.Message` is broken. Nothing was sent.
            FeatureNotEnabledError: this is a delayed send inside a transaction, and
                `rocketshim.allow.delay.in.transaction` is not set: until the transaction ends, it would block its delay
                queue for everybody. Nothing was sent.
            TopicMissingError: the schedule topic does not exist. Nothing was sent.
            BrokerUnavailableError: no broker reported the number of lanes of the schedule topic. Nothing was sent.
            Everything else as the original.

        Thread-safety: any thread.

        Source: `MessageConst.PROPERTY_DELAY_TIME_LEVEL`, `PROPERTY_TAGS`, `PROPERTY_KEYS`.
        """
        # the original calls none if `callback` is None beside
        # `on_delivery` (test_a_callback_of_none_does_not_hide_on_delivery)
        report = on_delivery if callback is None else callback
        if delay_level is None and delay is None and deliver_at is None and tag is None and not keys:
            super().produce(  # by name, because a tracer's `produce` below this one looks for `headers` by name
                topic, value, key=key, partition=partition, on_delivery=report, timestamp=timestamp, headers=headers
            )
            return
        message = ShimMessage(
            topic,
            value.encode() if isinstance(value, str) else value,
            key=key,
            tag=tag,
            keys=keys,
            delay=delay,
            delay_level=delay_level,
            deliver_at=deliver_at,
            properties=headers,
        )
        sent_ns, sent_ms = self._shim_maker.time.read()
        out, _ = self._shim_maker.make(
            message,
            self._shim_topics,
            sent_ns,
            sent_ms,
            partition=None if partition < 0 else partition,
            timestamp_ms=timestamp,
        )
        if out.topic == self._shim_names.schedule:
            self._shim_check_transaction()
            if self._shim_watch is None:
                self._shim_watch = watched_workers(self._shim_connection, self._shim_credentials, self._shim_names)
            self._shim_watch.turn(sent_ns // 1_000_000)
            report = self._shim_clocked(report, sent_ns, sent_ms)
        to = -1 if out.partition is None else out.partition
        super().produce(
            out.topic,
            out.value,
            key=out.key,
            partition=to,
            on_delivery=report,
            timestamp=timestamp,
            headers=[*out.headers],
        )

    def poll(self, timeout: float = -1) -> int:
        """As the original."""
        if self._shim_watch is not None:
            self._shim_watch.turn(time.monotonic_ns() // 1_000_000)
        return super().poll(timeout)

    def close(self) -> bool:
        """As the original; the client that asks for workers is closed, too."""
        if self._shim_watch is not None:
            self._shim_watch.close()
        return super().close()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """As the original, also for the client that asks for workers."""
        super().set_sasl_credentials(username, password)
        self._shim_credentials.append((username, password))

    def metrics(self) -> Iterable[Metric]:
        """Return the counts of delayed messages, for `MetricsCollector`. The original's `stats_cb` has all others.

        Thread-safety: any thread.
        """
        return (delayed_messages(self._shim_delayed, self._shim_settings.namespace),)

    def _shim_clocked(self, report: Any, sent_ns: int, sent_ms: int) -> Any:
        """Return a delivery callback that updates the estimate of the brokers' clock, and then calls the user's."""
        report = self._shim_on_delivery if report is None else report
        if report is not None and not callable(report):
            return report  # the original refuses it

        def observed(error: KafkaError | None, record: Message) -> None:
            self._shim_delayed["failed" if error is not None else "stored"] += 1
            if error is None:
                self._shim_maker.time.learn(record.timestamp(), sent_ns, sent_ms)
            if report is not None:
                report(error, record)

        return observed

    def _shim_topics(self, *, timeout: float) -> Any:
        """Call `list_topics` so that a delivery callback may send a delayed message."""
        return in_own_thread(super().list_topics, timeout=timeout)

    def _shim_check_transaction(self) -> None:
        if self._shim_in_transaction and not self._shim_settings.allow_delay_in_transaction:
            raise FeatureNotEnabledError(
                "a delayed send inside a transaction blocks its delay queue for everybody until the transaction "
                "ends: send it before or after, or set 'rocketshim.allow.delay.in.transaction': True"
            )

    def begin_transaction(self) -> None:
        """As the original."""
        super().begin_transaction()
        self._shim_in_transaction = True

    def commit_transaction(self, *args: Any, **kwargs: Any) -> None:
        """As the original."""
        super().commit_transaction(*args, **kwargs)
        self._shim_in_transaction = False

    def abort_transaction(self, *args: Any, **kwargs: Any) -> None:
        """As the original."""
        super().abort_transaction(*args, **kwargs)
        self._shim_in_transaction = False


class _Unflushed:
    """What a program has not flushed when it ends; see `at_exit`. It does not keep its producer."""

    def __init__(self, producer: Producer, exit_timeout_ms: int) -> None:
        self.exit_timeout_ms = exit_timeout_ms
        self._producer = weakref.ref(producer)

    def begin_exit(self) -> None:
        """Do nothing: Kafka's client sends by itself."""

    def finish_exit(self, until_s: float) -> int:
        """Wait for the delivery reports until a monotonic time in seconds; return how many are missing."""
        producer = self._producer()
        if producer is None:
            return 0
        try:
            return confluent_kafka.Producer.flush(producer, max(0.0, until_s - time.monotonic()))
        except (KafkaException, RuntimeError):  # after a fatal error, or closed
            return len(producer)


def delayed_messages(counts: Mapping[str, int], namespace: str) -> Metric:
    """Return the metric of a producer's delayed messages."""
    mine = {"namespace": namespace} if namespace else {}
    return Metric(
        "rocketshim_dropin_delayed_messages_total", "counter", "delayed messages by delivery report",
        tuple(("", mine | {"result": result}, counts.get(result, 0)) for result in ("stored", "failed")),
    )  # fmt: skip
