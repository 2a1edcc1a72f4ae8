"""The state of a consumer with retry enabled, beside the C client, and how the configuration makes it."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message, Producer, TopicPartition

from rocketshim.dropin.send_back import DropinSendBack, HopStore
from rocketshim.dropin.send_back_tracker import SendBackTracker
from rocketshim.dropin.settings import ConsumerDropinSettings, connection, inner_producer_config, is_true
from rocketshim.errors import ConfigError
from rocketshim.kafka.client_config import METADATA_REFRESH
from rocketshim.kafka.clients import ProducerClient, with_log
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.layout import Layout
from rocketshim_topics.names import TopicNames

if TYPE_CHECKING:
    from rocketshim.dropin.retrying_consumer import RetryingConsumer

__all__ = ["Rebalance", "State", "partition_key", "prepare"]

_ISOLATION: Final = "isolation.level"
_STORE: Final = "enable.auto.offset.store"
_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb", "oauth_cb", "on_commit")


@dataclass(slots=True)
class Rebalance:
    """A rebalance callback in progress.

    Attributes:
        retry_partitions: its partitions of the retry topic, ready to be assigned.
        starts: lowest offset that each partition can hand out, if it is known.
        done: the user's callback has itself assigned or unassigned the partitions, and ours with them.
    """

    retry_partitions: list[TopicPartition]
    starts: dict[TopicPartitionKey, int]
    done: bool = False


@dataclass(slots=True)
class State:
    """Our state of one consumer. The poll thread owns it, except `ledger`, `send_back` and what `entering` guards.

    Attributes:
        settings: the drop-in settings.
        connection: librdkafka settings for an admin client.
        retry_topic: physical name of the group's retry topic.
        stores: the user lets the client store offsets, so we store them.
        cooperative: the rebalance protocol is incremental.
        resets_to_beginning: `auto.offset.reset` is `earliest`, by one of its names.
        sees_ends: the client reports the ends of partitions; those of the retry topic must be filtered out.
        dirty: a message was returned since offsets were last stored.
        settle_at: monotonic time of the next store of offsets while messages keep coming, in seconds.
        positions: how far each partition was handed out when offsets were last stored; exact while `waiting`.
        waiting: the poll thread is in a client call that may wait, or in a callback, so no other thread may call the
            client. It stays set once `close` was called.
        polling: the poll thread is in a client call that does not wait.
        asking: another thread checks whether it may call the client, or is calling it; spares `poll` the lock.
        poller: the thread that polled last.
        entering: lock that guards `waiting` and `asking`; other threads hold it while they call the client.
        slow_path: a message is buffered, an error is to be raised, or ends are to be filtered out.
        subscribed: `subscribe` was called, and `unsubscribe` not since.
        reads_retries: the retry topic is read, too.
        named: topics that the user subscribed to by name.
        callbacks: the user's callbacks for assign, revoke and lost.
        rebalance: the callback in progress.
        paused: partitions that the user has paused; the client keeps a pause across assignments, and so do we.
        ensured: the rocketshim topics are known to exist.
        closing: `close` was called.
        buffered: messages that the client returned in a call that raised.
        awaiting_start: assigned partitions of the retry topic that are paused until their start is known.
        raised: errors of callbacks, to be raised by the call in which they happened.
        consumer: returns the consumer of this state; None: it is being made, or is gone.
    """

    settings: ConsumerDropinSettings
    connection: dict[str, Any]
    names: TopicNames
    group: str
    retry_topic: str
    stores: bool
    cooperative: bool
    resets_to_beginning: bool
    sees_ends: bool
    hop_store: HopStore
    send_back: DropinSendBack
    ledger: SendBackTracker = field(default_factory=SendBackTracker)
    dirty: bool = False
    settle_at: float = 0.0
    positions: dict[TopicPartitionKey, TopicPartition] = field(default_factory=dict)
    waiting: bool = False
    polling: bool = False
    asking: bool = False
    poller: int = 0
    entering: threading.Lock = field(default_factory=threading.Lock)
    slow_path: bool = False
    subscribed: bool = False
    reads_retries: bool = False
    named: frozenset[str] = frozenset()
    callbacks: tuple[Callable[..., Any] | None, ...] = (None, None, None)
    rebalance: Rebalance | None = None
    paused: set[TopicPartitionKey] = field(default_factory=set)
    ensured: bool = False
    closing: bool = False
    buffered: deque[Message] = field(default_factory=deque)
    awaiting_start: set[TopicPartitionKey] = field(default_factory=set)
    raised: deque[BaseException] = field(default_factory=deque)
    consumer: "Callable[[], RetryingConsumer | None]" = lambda: None

    def is_internal(self, topic: str) -> bool:
        """Return whether a topic is internal: the group's retry topic, or a rocketshim topic that a pattern matched."""
        return topic == self.retry_topic or (topic not in self.named and self.names.is_ours(topic))

    def layout(self) -> Layout:
        """Return the required layout of the rocketshim topics."""
        return Layout(self.names, self.settings.delay_levels)

    def during(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a user callback other than a rebalance callback, so that another thread may send back during it."""

        def called(*args: Any) -> Any:
            consumer = self.consumer()
            if consumer is None:
                return callback(*args)
            with consumer._in_callback():  # noqa: SLF001 - the shell of this state
                return callback(*args)

        return called

    def raise_later(self, error: BaseException) -> None:
        """Keep an error of a callback; it must not escape into the client, which would drop the message in hand."""
        self.raised.append(error)
        self.slow_path = True

    def settle_attention(self) -> None:
        """Update whether the slow path is needed."""
        self.slow_path = self.sees_ends or bool(self.buffered) or bool(self.raised) or bool(self.awaiting_start)

    def retry_partitions(self) -> list[TopicPartition]:
        """Return the assigned partitions of the retry topic."""
        return [TopicPartition(*key) for key in self.ledger.assigned_keys() if key.topic == self.retry_topic]


def partition_key(partition: TopicPartition) -> TopicPartitionKey:
    """Return topic and number of a partition."""
    return TopicPartitionKey.of(partition)


def prepare(
    settings: ConsumerDropinSettings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[State, dict[str, Any]]:
    """Make the state of a consumer and the configuration of its client.

    Args:
        settings: drop-in settings with retry enabled.
        args: positional arguments of the constructor, without our keys.
        kwargs: keyword arguments, likewise.

    Raises:
        TypeError: there is no configuration dict; the text is the original's.
        ConfigError: a client setting does not work with retries.
    """
    if len(args) > 1 or not all(isinstance(each, dict) for each in args):
        raise TypeError("expected configuration dict")
    config: dict[str, Any] = {**METADATA_REFRESH, **(args[0] if args else {}), **kwargs}
    group = config.get("group.id")
    if not group:
        raise ConfigError("rocketshim.retry.enable needs a group.id: retries belong to a group")
    if str(config.get(_ISOLATION, "read_committed")).lower() != "read_committed":
        raise ConfigError(f"{_ISOLATION} must be read_committed with rocketshim.retry.enable: leave it out")
    names = TopicNames(settings.namespace)
    stores = is_true(config.get(_STORE, True))
    config[_STORE] = False
    timeout_s = settings.hop_timeout_ms / 1_000
    store = HopStore(partial(_make_producer, inner_producer_config(config, settings)), timeout_s)
    send_back = DropinSendBack(
        store,
        names=names,
        levels=settings.delay_levels,
        group=str(group),
        limit=settings.max_reconsume_times,
        timeout_s=timeout_s,
    )
    protocol = str(config.get("group.protocol", "classic")).lower()
    state = State(
        settings=settings,
        connection=connection(config),
        names=names,
        group=str(group),
        retry_topic=names.retry(str(group)),
        stores=stores,
        cooperative=protocol == "consumer" or "cooperative" in str(config.get("partition.assignment.strategy", "")),
        resets_to_beginning=config.get("auto.offset.reset") in {"earliest", "smallest", "beginning"},
        sees_ends=is_true(config.get("enable.partition.eof", False)),
        hop_store=store,
        send_back=send_back,
    )
    state.settle_attention()
    for name in _CALLBACKS:
        if callable(config.get(name)):
            config[name] = state.during(config[name])
    return state, config


def _make_producer(config: dict[str, Any]) -> ProducerClient:
    return Producer(with_log(config))
