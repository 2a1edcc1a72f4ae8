"""`Consumer`: `confluent_kafka.Consumer` with retry, and the original in every call until retry is enabled.

`Consumer` overrides no method of the original except the constructor. So each call goes directly to the C client while
retry is off. With `rocketshim.retry.enable` the constructor changes the class of the object: `RetryingConsumer` comes
behind `Consumer` and the program's subclass. So a subclass that overrides `poll` and calls `super().poll()` reaches our
`poll`.

`__new__` cannot choose the class instead: it sees the arguments of the subclass's constructor, and the configuration is
known only when that one has called ours.

Private names here, in `RetryingConsumer` and in `Producer` begin with `_shim_`, except `_rocketshim`. The program's
subclass has private names of its own, such as `_on_delivery`, and must not replace ours by accident.
"""

import functools
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import confluent_kafka
from confluent_kafka import Message, TopicPartition

from rocketshim.dropin.fetched import viewed
from rocketshim.dropin.original import OriginalConsumer
from rocketshim.dropin.settings import ConsumerDropinSettings, take
from rocketshim.errors import FeatureNotEnabledError
from rocketshim_topics.message import MessageView, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocketshim.dropin.state import State
    from rocketshim.health import Metric

__all__ = ["Consumer"]


class Retrying(Protocol):
    """What the object of a `Consumer` can do with retry enabled."""

    def _shim_reconsume_later(
        self, message: Message, error: BaseException | str | None, *, level: int | None, delay: timedelta | str | None
    ) -> None: ...

    def _shim_dead_letter(self, message: Message, reason: BaseException | str) -> None: ...


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
    _rocketshim: "State"

    if TYPE_CHECKING:

        def subscribe(
            self,
            topics: list[str],
            on_assign: Callable[[Self, list[TopicPartition]], None] | None = None,
            on_revoke: Callable[[Self, list[TopicPartition]], None] | None = None,
            on_lost: Callable[[Self, list[TopicPartition]], None] | None = None,
        ) -> None:
            """As the original; the first argument of a callback may have this class as its type."""

    else:

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            values, args, kwargs = take(args, kwargs)
            if not values:
                super().__init__(*args, **kwargs)
                return
            settings = ConsumerDropinSettings.make(**values)
            if not settings.retry_enable:
                super().__init__(*args, **kwargs)
                return
            from rocketshim.dropin.state import prepare  # noqa: PLC0415 - loaded only if retry is enabled

            state, config = prepare(settings, args, kwargs)
            super().__init__(config)
            self._rocketshim = state
            self.__class__ = _with_retry(type(self))
            state.consumer = weakref.ref(self)

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
            StaleMessageError: the message belongs to an assignment that has ended. Nothing was sent.
            NotSupportedError: the partitions were assigned by `assign()`, which does not read the retry topic. Nothing
                was sent.
            SendTimeoutError: no confirmation within `rocketshim.hop.timeout.ms`; the retry may or may not be stored.
            SendError, ClusterError: the retry is not stored. Until a later call succeeds, the automatically stored
                offset of the partition does not pass the message.

        Thread-safety: any thread.
        """
        self._shim_retrying("reconsume_later")._shim_reconsume_later(message, error, level=level, delay=delay)  # noqa: SLF001

    def dead_letter(self, message: Message, reason: BaseException | str) -> None:
        """Send a message to the group's dead letters; return when it is stored.

        Args:
            message: as `poll` or `consume` returned it.
            reason: the reason, for operators who look at dead letters.

        Raises:
            As `reconsume_later`, except `NotSupportedError`: dead letters need no retry topic.

        Thread-safety: any thread.
        """
        self._shim_retrying("dead_letter")._shim_dead_letter(message, reason)  # noqa: SLF001

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
        state = getattr(self, "_rocketshim", None)
        return state is not None and message.topic() == state.retries.topic

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

    def metrics(self) -> "Iterable[Metric]":
        """Return the counts of what was sent back, for `MetricsCollector`; nothing if retry is off.

        Thread-safety: any thread.
        """
        state = getattr(self, "_rocketshim", None)
        return () if state is None else state.send_back.counts.metrics(state.group)

    def _shim_view(self, message: Message) -> MessageView:
        state = getattr(self, "_rocketshim", None)
        return viewed(message, trusted=state is not None and message.topic() == state.retries.topic)

    def _shim_retrying(self, method: str) -> Retrying:
        """Return this object as what it is with retry enabled.

        Raises:
            FeatureNotEnabledError: it is not enabled.
        """
        if hasattr(self, "_rocketshim"):
            return cast("Retrying", self)
        raise FeatureNotEnabledError(
            f"{method}() needs the setting rocketshim.retry.enable: set 'rocketshim.retry.enable': True in the "
            "consumer's configuration, and run a worker (rocketshim dev has one)"
        )


class _NoHook:
    """Keeps the `__init_subclass__` of a program from being called for a class that it did not write."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Call no hook."""


@functools.cache
def _with_retry(cls: type[Consumer]) -> type[Consumer]:
    """Return the class with `RetryingConsumer` between it and the original."""
    from rocketshim.dropin.retrying_consumer import RetryingConsumer  # noqa: PLC0415 - loaded only if retry is enabled

    names = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (_NoHook, cls, RetryingConsumer), names)
