"""`Consumer`: `confluent_kafka.Consumer` with retry, and nothing else until it is switched on.

`Consumer` overrides no method of the original but the constructor, so that switched off each call goes to the C client
as it always did. With `rocketshim.retry.enable` the constructor gives the object another class: `rocketshim.dropin
.retrying_consumer.RetryingConsumer` comes between `Consumer` and whatever class of the user's was called, so that a
subclass that overrides `poll` and calls `super().poll()` reaches ours.
"""

import functools
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import confluent_kafka
from confluent_kafka import Message, TopicPartition

from rocketshim.dropin.settings import ConsumerDropinSettings, take
from rocketshim.errors import FeatureNotEnabledError
from rocketshim_topics.message import MessageView, Origin
from rocketshim_topics.wire import read_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketshim.dropin.state import State

__all__ = ["Consumer"]


class Consumer(confluent_kafka.Consumer):
    """A `confluent_kafka.Consumer` whose messages can be sent back, to come again later or to the dead letters.

    Constructed as the original is. Keys that begin with `rocketshim.` are taken out of a copy of the configuration;
    `rocketshim.dropin.settings.ConsumerDropinSettings` lists them. Without `rocketshim.retry.enable` it behaves as the
    original in every call, and nothing is created or subscribed on the cluster.

    With it, `subscribe` reads the group's retry topic along. A retried message comes from `poll` like any other and
    shows its true coordinates in that topic, so that every way of committing, storing and seeking is right.

    Raises:
        ConfigError: a `rocketshim.` key that does not exist or has a value out of range, or a client setting that
            retries cannot work with. Everything else as the original.

    Thread-safety: as the original; the methods added here may be called from any thread.
    """

    __slots__ = ("__weakref__", "_rocketshim")
    _rocketshim: "State"

    if TYPE_CHECKING:

        def subscribe(
            self,
            topics: list[str],
            on_assign: Callable[[Self, list[TopicPartition]], None] | None = None,
            on_revoke: Callable[[Self, list[TopicPartition]], None] | None = None,
            on_lost: Callable[[Self, list[TopicPartition]], None] | None = None,
        ) -> None:
            """As the original; callbacks may name this class as their first argument's."""

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
            from rocketshim.dropin.state import prepare  # noqa: PLC0415 - loaded when it is switched on

            state, config = prepare(settings, args, kwargs)
            super().__init__(config)
            self._rocketshim = state
            self.__class__ = _layered(type(self))
            state.consumer = weakref.ref(self)

    def reconsume_later(
        self,
        message: Message,
        error: BaseException | str | None = None,
        *,
        level: int | None = None,
        delay: timedelta | str | None = None,
    ) -> None:
        """Send a message back, to be delivered to this group again after a while; return when that is stored.

        After `rocketshim.max.reconsume.times` failed attempts it goes to the group's dead letters instead. Afterwards
        the message is committed by the loop's own way, like any handled one. A second call for it has no effect.

        Args:
            message: as `poll` or `consume` returned it.
            error: why, for those who look at retries and dead letters; None: nothing to say.
            level: exactly this delay level; below 0: the dead letters; None or 0: 3 + the failed attempts so far.
            delay: exactly this long, as a timedelta or like `"90s"`; None: a level.

        Raises:
            FeatureNotEnabledError: `rocketshim.retry.enable` is not set.
            ValueError: the message carries an error, was changed, or both level and delay are given. Nothing was sent.
            StaleMessageError: it is of an assignment that is over. Nothing was sent.
            NotSupportedError: the partitions were given by `assign()`, with which no retry topic is read. Nothing was
                sent.
            SendTimeoutError: not known to be stored within `rocketshim.hop.timeout.ms`.
            SendError, ClusterError: not stored. Until a later call succeeds the message holds down the automatically
                stored offset of its partition.

        Thread-safety: any thread.
        """
        del message, error, level, delay
        raise _off("reconsume_later")

    def dead_letter(self, message: Message, reason: BaseException | str) -> None:
        """Send a message to the group's dead letters; return when it is stored.

        Args:
            message: as `poll` or `consume` returned it.
            reason: why, for those who look at dead letters.

        Raises:
            As `reconsume_later`, but for `NotSupportedError`: dead letters need no retry topic.

        Thread-safety: any thread.
        """
        del message, reason
        raise _off("dead_letter")

    def reconsume_times(self, message: Message) -> int:
        """Failed attempts so far: 0 at the first delivery, and always where retry is not switched on.

        Raises:
            ValueError: the message carries an error.
            MalformedRecordError: a retry record that breaks the wire format, or a header's name that is no UTF-8; send
                the message back, and it is parked.

        Thread-safety: any thread.
        """
        return self._view(message).reconsume_times

    def origin(self, message: Message) -> Origin:
        """Topic, partition and offset of the first delivery; the message's own if it has not failed before.

        Raises:
            As `reconsume_times`.

        Thread-safety: any thread.
        """
        return self._view(message).origin

    def tag(self, message: Message) -> str | None:
        """The message's one tag; None if it has none.

        Raises:
            ValueError: the message carries an error.
            MalformedRecordError: a header's name is no UTF-8.

        Thread-safety: any thread.
        """
        return self._view(message).tag

    def uniq_key(self, message: Message) -> str:
        """The id that is the same at each delivery; for a message without one, where it lay at first.

        Raises:
            As `reconsume_times`.

        Thread-safety: any thread.
        """
        return self._view(message).msg_id

    def _view(self, message: Message) -> MessageView:
        return viewed(message, trusted=False)


def checked(message: Message) -> Message:
    """The message, if it is one.

    Raises:
        ValueError: it carries an error, or was never fetched.
    """
    error = message.error()
    if error is not None:
        raise ValueError(f"this is no message but the event {error.name()}: look at error() first")
    if message.topic() is None or message.partition() is None or message.offset() is None:
        raise ValueError("this message was never fetched: it has no topic, partition or offset")
    return message


def viewed(message: Message, *, trusted: bool) -> MessageView:
    """A message with its headers read.

    Args:
        message: as fetched.
        trusted: it lay on the retry topic.

    Raises:
        ValueError: it is no message.
        MalformedRecordError: a header's name is no UTF-8, which the client cannot read.
    """
    read_again(checked(message))
    return MessageView(message, trusted)


def _off(method: str) -> FeatureNotEnabledError:
    return FeatureNotEnabledError(
        f"{method}() needs the setting rocketshim.retry.enable: put 'rocketshim.retry.enable': True into the "
        "consumer's configuration, and run rocketshim init and a worker"
    )


@functools.cache
def _layered(cls: type[Consumer]) -> type[Consumer]:
    """The class with the reading layer between it and `Consumer`."""
    from rocketshim.dropin.retrying_consumer import RetryingConsumer  # noqa: PLC0415 - it is a subclass of this module's class

    if cls is Consumer:
        return RetryingConsumer
    names = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, RetryingConsumer), names)
