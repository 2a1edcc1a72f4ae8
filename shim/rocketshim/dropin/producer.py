"""`Producer`: `confluent_kafka.Producer` whose `produce` takes a delay, a tag and business keys.

A call without any of these is the original's, argument for argument. With one of them the record is made as
`rocketshim.Producer` makes it: headers of the wire format, and for a delay the schedule topic in place of the named
one, from which a worker delivers it. The original's other methods are not touched; a delivery report of a delayed
message shows where it lies, in the schedule topic.
"""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from rocketshim.core.broker_clock import BrokerClock
from rocketshim.dropin.lanes import Lanes
from rocketshim.dropin.settings import ProducerDropinSettings, take
from rocketshim.errors import FeatureNotEnabledError
from rocketshim_topics.hops import OutgoingRecord, delayed_record
from rocketshim_topics.message import Message as ShimMessage
from rocketshim_topics.names import TopicNames

__all__ = ["Producer"]

Headers = dict[str, str | bytes | None] | list[tuple[str, str | bytes | None]]


class Producer(confluent_kafka.Producer):
    """A `confluent_kafka.Producer` that can send later.

    Constructed as the original is. Keys that begin with `rocketshim.` are taken out of a copy of the configuration;
    `rocketshim.dropin.settings.ProducerDropinSettings` lists them.

    Raises:
        ConfigError: a `rocketshim.` key that does not exist or has a value out of range. Everything else as the
            original.

    Thread-safety: as the original.
    """

    __slots__ = ("_broker_clock", "_ids", "_in_transaction", "_lanes", "_names", "_on_delivery", "_settings")
    _settings: ProducerDropinSettings
    _names: TopicNames
    _lanes: Lanes
    _ids: tuple[str, Iterator[int]]
    _in_transaction: bool
    _broker_clock: BrokerClock
    _on_delivery: Any

    if not TYPE_CHECKING:  # type checkers see the original's

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            values, args, kwargs = take(args, kwargs)
            self._settings = ProducerDropinSettings.make(**values)
            self._names = TopicNames(self._settings.namespace)
            self._lanes = Lanes(self._names.schedule)
            self._ids = (uuid.uuid4().hex[:20], itertools.count())
            self._in_transaction = False
            self._broker_clock = BrokerClock()
            config = args[0] if args and isinstance(args[0], dict) else {}
            self._on_delivery = kwargs.get("on_delivery", config.get("on_delivery"))
            super().__init__(*args, **kwargs)

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
            partition: as the original's; of a delayed message it is the partition it is delivered to. -1: by key.
                A delayed message is delivered by the Java client's partitioner (murmur2); set `partitioner` to
                `murmur2_random` if those sent at once are to meet it.
            callback: as the original's; a delayed message shows where it lies in the schedule topic.
            on_delivery: likewise.
            timestamp: as the original's; with the arguments below also the time the message was born.
            headers: as the original's; with the arguments below user properties, with the limits of
                `rocketshim.Message`.
            delay_level: deliver after the delay of this level; 0 or less: at once. None: no level.
            delay: deliver this long after it was stored: a timedelta, `"90s"`, or seconds. None: no delay.
            deliver_at: deliver at this time on the broker's clock: epoch ms or an aware datetime. None: no time.
            tag: one tag to filter by. None: no tag.
            keys: business keys to search by.

        Raises:
            MessageError: more than one delay, a delay longer than `rocketshim.max.delay.ms`, a reserved header, or
                another rule of `rocketshim.Message` is broken. Nothing was sent.
            FeatureNotEnabledError: a delayed send inside a transaction, which `rocketshim.allow.delay.in.transaction`
                does not allow: until the transaction ends it would hold up its delay queue for everybody. Nothing was
                sent.
            TopicMissingError: the schedule topic is not there. Nothing was sent.
            BrokerUnavailableError: no broker said how many lanes it has. Nothing was sent.
            Everything else as the original.

        Thread-safety: any thread.

        Source: `MessageConst.PROPERTY_DELAY_TIME_LEVEL`, `PROPERTY_TAGS`, `PROPERTY_KEYS`.
        """
        report = (
            on_delivery if callback is None else callback
        )  # the original takes a None for a callback, and calls none
        if delay_level is None and delay is None and deliver_at is None and tag is None and not keys:
            super().produce(topic, value, key, partition, report, None, timestamp, headers)
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
        sent_ns, sent_ms = time.monotonic_ns(), time.time_ns() // 1_000_000
        out = self._record(message, timestamp, None if partition < 0 else partition, sent_ns, sent_ms)
        if out.topic == self._names.schedule:
            self._check_transaction()
            report = self._learning(report, sent_ns, sent_ms)
        to = -1 if out.partition is None else out.partition
        super().produce(out.topic, out.value, out.key, to, report, None, timestamp, [*out.headers])

    def _learning(self, report: Any, sent_ns: int, sent_ms: int) -> Any:
        """Return a delivery callback that notes the brokers' clock, and then does what the original would do."""
        report = self._on_delivery if report is None else report
        if report is not None and not callable(report):
            return report  # the original's to refuse

        def reported(error: KafkaError | None, record: Message) -> None:
            kind, append_ms = record.timestamp()
            if error is None and kind == TIMESTAMP_LOG_APPEND_TIME:
                self._broker_clock.reported(append_ms, sent_ns, sent_ms)
            if report is not None:
                report(error, record)

        return reported

    def _record(
        self, message: ShimMessage, timestamp: int, partition: int | None, sent_ns: int, sent_ms: int
    ) -> OutgoingRecord:
        prefix, counter = self._ids
        is_delayed = message.delay_ms or message.deliver_at_ms is not None or (message.delay_level or 0) > 0
        return delayed_record(
            message,
            self._names,
            self._settings.delay_levels,
            uniq_key=f"{prefix}{next(counter):012X}",
            born_ms=timestamp or sent_ms,
            now_ms=self._broker_clock.now_ms(sent_ns, sent_ms),
            sender_ms=sent_ms,
            lane=self._lanes.choose(message.key_bytes, super().list_topics) if is_delayed else 0,
            real_qid=partition,
            max_delay_ms=self._settings.max_delay_ms,
        )

    def _check_transaction(self) -> None:
        if self._in_transaction and not self._settings.allow_delay_in_transaction:
            raise FeatureNotEnabledError(
                "a delayed send inside a transaction holds up its delay queue for everybody until the transaction "
                "ends: send it before or after, or set 'rocketshim.allow.delay.in.transaction': True"
            )

    def begin_transaction(self) -> None:
        """As the original."""
        super().begin_transaction()
        self._in_transaction = True

    def commit_transaction(self, *args: Any, **kwargs: Any) -> None:
        """As the original."""
        super().commit_transaction(*args, **kwargs)
        self._in_transaction = False

    def abort_transaction(self, *args: Any, **kwargs: Any) -> None:
        """As the original."""
        super().abort_transaction(*args, **kwargs)
        self._in_transaction = False
