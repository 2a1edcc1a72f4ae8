"""`Consumer`: `confluent_kafka.Consumer` with retry.

Each method that retry changes asks first whether it is enabled; if not, it calls the original. Otherwise it calls the
method of `dropin.retry_side` with the same name; that module is loaded only then. The original's methods are called as
functions of the class, so that the methods of a program's subclass are called by the program only.

Private names here and in `Producer` begin with `_shim_`, except `_rocketshim`. The program's subclass has private names
of its own, such as `_on_delivery`, and must not replace ours by accident.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import wraps
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import confluent_kafka
from confluent_kafka import Message, TopicPartition

from rocketshim.core.listener_answers import retry_delay_ms
from rocketshim.core.user_values import as_int, safe_text
from rocketshim.dropin.settings import ConsumerDropinSettings, OriginalConsumer, take
from rocketshim.errors import ConfigError, FeatureNotEnabledError, NotSupportedError
from rocketshim_topics.message import MessageView, Origin
from rocketshim_topics.wire import read_again

if TYPE_CHECKING:
    from rocketshim.dropin.retry_side import RetrySide
    from rocketshim.metrics import Metric

__all__ = ["Consumer"]

_poll: Final = OriginalConsumer.poll
_consume: Final = OriginalConsumer.consume


def _changed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Call the method of `RetrySide` with this name if retry is enabled, and otherwise the original's."""
    name = method.__name__

    @wraps(method)
    def call(self: "Consumer", *args: Any, **kwargs: Any) -> Any:
        retries = self._rocketshim
        if retries is None:
            return getattr(super(Consumer, self), name)(*args, **kwargs)
        return getattr(retries, name)(self, *args, **kwargs)

    return call


class Consumer(confluent_kafka.Consumer):
    """A `confluent_kafka.Consumer` that can send a message back: to be delivered again later, or to the dead letters.

    The constructor takes the arguments of the original. Keys that begin with `rocketshim.` are removed from a copy of
    the configuration; `rocketshim.dropin.settings.ConsumerDropinSettings` lists them. Without `rocketshim.retry.enable`
    it behaves as the original in every call, and nothing is created or subscribed on the cluster.

    With it, `subscribe` also subscribes to the group's retry topic. `poll` returns a retried message like any other,
    with its true coordinates in that topic, so that every way of committing, storing and seeking works.

    Raises:
        ConfigError: a `rocketshim.` key does not exist or its value is out of range, or a client setting does not work
            with retries. Everything else as the original.

    Thread-safety: as the original; any thread may call the methods that are added here.
    """

    __slots__ = ("_rocketshim",) if OriginalConsumer.__weakrefoffset__ else ("__weakref__", "_rocketshim")
    _rocketshim: "RetrySide | None"

    if not TYPE_CHECKING:  # type checkers use the original's constructor

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            """Make a consumer whose retry is off, until the constructor has read the configuration."""
            made = super().__new__(cls, *args, **kwargs)
            made._rocketshim = None
            return made

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            values, args, kwargs = take(args, kwargs)
            if values and (settings := ConsumerDropinSettings.make(**values)).retry_enable:
                from rocketshim.dropin.retry_side import prepare  # noqa: PLC0415 - loaded only if retry is enabled

                retries, config = prepare(settings, args, kwargs)
                super().__init__(config)
                self._rocketshim = retries
            else:
                super().__init__(*args, **kwargs)

    # --- what retry adds ---------------------------------------------------------------------------------------------

    def reconsume_later(
        self,
        message: Message,
        error: BaseException | str | None = None,
        *,
        level: int | None = None,
        delay: timedelta | str | None = None,
    ) -> None:
        """Send a message back, to be delivered to this group again later; return when the retry is stored.

        After `rocketshim.max.reconsume.times` failed attempts the message goes to the group's dead letters instead.
        Afterwards the program commits the message in its usual way, like any handled message. A second call for the
        same message has no effect.

        Args:
            message: as `poll` or `consume` returned it.
            error: the reason, for operators who look at retries and dead letters; None: no reason.
            level: this delay level, at most the table's highest; below 0: the dead letters; None or 0: 3 + the failed
                attempts so far.
            delay: this delay, as a timedelta or like `"90s"`; 40 days at most. None: a level.

        Raises:
            FeatureNotEnabledError: `rocketshim.retry.enable` is not set.
            ValueError: the message carries an error or was changed, level or delay is not valid, or both are given.
                Nothing was sent.
            StaleMessageError: the message belongs to an assignment that has ended, as a rebalance callback has shown
                (`max.poll.interval.ms` after the last `poll` only the next one does). Nothing was sent.
            NotSupportedError: the partitions were assigned by `assign()`, which does not read the retry topic. Nothing
                was sent.
            SendTimeoutError: no confirmation within `rocketshim.hop.timeout.ms`; the retry may or may not be stored.
            SendError, ClusterError: the retry is not stored. Until a later call succeeds, the automatically stored
                offset of the partition does not pass the message.

        Thread-safety: any thread.
        """
        retries = self._shim_retries("reconsume_later")
        if level is not None and delay is not None:
            raise ValueError("both level and delay are given: give one of them")
        asked_level = as_int(level)
        if level is not None and (asked_level is None or isinstance(level, bool)):
            raise ConfigError(
                f"level={safe_text(level, repr):.80} is not a delay level: give a whole number, or leave it out"
            )
        delay_ms = None if delay is None else retry_delay_ms(delay)
        checked(message)
        if not retries.reads_retry_topic:
            raise NotSupportedError(
                "with assign() the group's retry topic is not read, so a message that was sent back would stay there: "
                "use subscribe(), or dead_letter()"
            )
        send_back = retries.send_back.reconsume_later
        retries.send(message, lambda: send_back(message, error, level=asked_level, delay_ms=delay_ms))

    def dead_letter(self, message: Message, reason: BaseException | str) -> None:
        """Send a message to the group's dead letters; return when it is stored.

        Args:
            message: as `poll` or `consume` returned it.
            reason: the reason, for operators who look at dead letters.

        Raises:
            As `reconsume_later`, except `NotSupportedError`: dead letters need no retry topic.

        Thread-safety: any thread.
        """
        retries = self._shim_retries("dead_letter")
        retries.send(checked(message), lambda: retries.send_back.dead_letter(message, reason))

    def reconsume_times(self, message: Message) -> int:
        """Return the failed attempts so far: 0 at the first delivery, and always 0 if retry is off.

        Raises:
            ValueError: the message carries an error.
            MalformedRecordError: a retry record breaks the wire format, or a header name is not UTF-8; send the message
                back, and it is parked.

        Thread-safety: any thread.
        """
        return self._shim_view(message).reconsume_times

    def is_retried(self, message: Message) -> bool:
        """Return whether the message came from the group's retry topic, whose partitions no callback names.

        A program that keeps a table by partition, filled in `on_assign`, finds no entry for such a message. The
        partition that it was first delivered from (`origin`) may belong to another member. False if retry is off.

        Thread-safety: any thread.
        """
        retries = self._rocketshim
        return retries is not None and message.topic() == retries.partitions.retry_topic

    def origin(self, message: Message) -> Origin:
        """Return topic, partition and offset of the first delivery; the message's own if it has not failed before.

        Raises:
            As `reconsume_times`.

        Thread-safety: any thread.
        """
        return self._shim_view(message).origin

    def tag(self, message: Message) -> str | None:
        """Return the message's one tag; None if it has none.

        Raises:
            ValueError: the message carries an error.
            MalformedRecordError: a header name is not UTF-8.

        Thread-safety: any thread.
        """
        return self._shim_view(message).tag

    def uniq_key(self, message: Message) -> str:
        """Return the id that is the same at each delivery; for a message without one, its first coordinates.

        Raises:
            As `reconsume_times`.

        Thread-safety: any thread.
        """
        return self._shim_view(message).msg_id

    def metrics(self) -> Iterable["Metric"]:
        """Return the counts of what was sent back, for `MetricsCollector`; nothing if retry is off.

        Thread-safety: any thread.
        """
        retries = self._rocketshim
        return () if retries is None else retries.send_back.metrics()

    def _shim_view(self, message: Message) -> MessageView:
        read_again(checked(message))
        return MessageView(message, self.is_retried(message))

    def _shim_retries(self, method: str) -> "RetrySide":
        """Return what retry has. Raises FeatureNotEnabledError."""
        if self._rocketshim is not None:
            return self._rocketshim
        raise FeatureNotEnabledError(
            f"{method}() needs the setting rocketshim.retry.enable: set 'rocketshim.retry.enable': True in the "
            "consumer's configuration, and run a worker (rocketshim dev has one)"
        )

    # --- what retry changes: messages --------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Message | None:
        """As the original."""
        retries = self._rocketshim
        if retries is None:
            return _poll(self, timeout)
        if retries.is_slow:
            return next(iter(retries.take(self, 1, timeout)), None)
        message = None
        if retries.is_dirty:
            if monotonic() >= retries.store_at_s:
                retries.store_handled(self)
            message = _poll(self, 0.0)
        if message is None and not retries.errors:
            message = retries.wait(self, _poll, timeout)
        if message is None or retries.errors:
            retries.hand_out(self, [] if message is None else [message])
            return None
        partitions, topic = retries.partitions, message.topic()
        if topic == partitions.retry_topic:
            return message if retries.hand_out(self, [message]) else next(iter(retries.take(self, 1, timeout)), None)
        retries.is_dirty = True  # from here on `hand_out` written out, since it is done for each message
        partition = partitions.by_key.get((topic, message.partition()))  # type: ignore[call-overload]  # a key is such a tuple
        if partition is not None and message.error() is None:
            if partition.began_at is None:
                partition.began_at = message.offset()
            partition.last = message
        return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As the original."""
        retries = self._rocketshim
        return _consume(self, num_messages, timeout) if retries is None else retries.take(self, num_messages, timeout)

    # --- what retry changes: offsets, the assignment, the end --------------------------------------------------------

    if not TYPE_CHECKING:  # type checkers use the original's, which have overloads

        @_changed
        def commit(self, *args: Any, **kwargs: Any) -> Any:
            """As the original; without arguments, everything that was handed out counts as handled."""

        @_changed
        def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
            """As the original; what belongs to a revoked partition of the retry topic is left out."""

        @_changed
        def seek(self, partition: TopicPartition) -> None:
            """As the original; messages before the target count as handled."""

        @_changed
        def consumer_group_metadata(self) -> Any:
            """As the original; refused with retry: offsets in a transaction and stored retries do not fit together."""

        @_changed
        def subscribe(self, topics: list[str], *args: Any, **kwargs: Any) -> None:
            """As the original, and to the group's retry topic."""

        @_changed
        def unsubscribe(self) -> None:
            """As the original."""

        @_changed
        def assignment(self) -> list[TopicPartition]:
            """As the original, without the retry topic."""

        @_changed
        def assign(self, partitions: list[TopicPartition], /) -> None:
            """As the original; in a rebalance callback, also the retry topic's partitions."""

        @_changed
        def incremental_assign(self, partitions: list[TopicPartition], /) -> None:
            """As the original; in a rebalance callback, also the retry topic's partitions."""

        @_changed
        def unassign(self) -> None:
            """As the original, with the retry topic's partitions."""

        @_changed
        def incremental_unassign(self, partitions: list[TopicPartition], /) -> None:
            """As the original; in a rebalance callback, also the retry topic's partitions."""

        @_changed
        def pause(self, partitions: list[TopicPartition]) -> None:
            """As the original; the retry topic is paused while all of the program's partitions are."""

        @_changed
        def resume(self, partitions: list[TopicPartition]) -> None:
            """As the original, and the retry topic with it."""

        @_changed
        def set_sasl_credentials(self, username: str, password: str) -> None:
            """As the original, also for the clients that send messages back."""

        @_changed
        def close(self) -> None:
            """As the original; offsets of handled messages are stored before."""

    else:

        def subscribe(
            self,
            topics: list[str],
            on_assign: Callable[[Self, list[TopicPartition]], None] | None = None,
            on_revoke: Callable[[Self, list[TopicPartition]], None] | None = None,
            on_lost: Callable[[Self, list[TopicPartition]], None] | None = None,
        ) -> None:
            """As the original; the first argument of a callback may have this class as its type."""

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, exc_traceback: TracebackType | None
    ) -> bool | None:
        Consumer.close(self)  # as the original: it does not call a subclass's close()
        return None


def checked(message: Message) -> Message:
    """Return the message if it is a fetched one; one with an error, or that was never fetched, is a ValueError."""
    error = message.error()
    if error is not None:
        raise ValueError(f"this is not a message but the event {error.name()}: check error() first")
    if message.topic() is None or message.partition() is None or message.offset() is None:
        raise ValueError("this message was never fetched: it has no topic, partition or offset")
    return message
