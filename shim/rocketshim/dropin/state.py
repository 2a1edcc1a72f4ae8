"""What a consumer with retry switched on keeps beside the C client, and how it is made from the configuration."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message, TopicPartition

from rocketshim.dropin.send_back import DropinSendBack, HopStore
from rocketshim.dropin.send_back_tracker import SendBackTracker, TopicPartitionKey
from rocketshim.dropin.settings import ConsumerDropinSettings, connection, inner_producer_config, is_true
from rocketshim.errors import ConfigError
from rocketshim.kafka.client_config import METADATA_REFRESH
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
    """A rebalance callback that is under way.

    Attributes:
        retry_partitions: the partitions of the retry topic in it, ready to be assigned.
        starts: lowest offset each partition can hand out, where that is known.
        done: the user's callback has assigned or unassigned by itself, and ours with it.
    """

    retry_partitions: list[TopicPartition]
    starts: dict[TopicPartitionKey, int]
    done: bool = False


@dataclass(slots=True)
class State:
    """Everything of ours of one consumer; the poll thread's, but for `ledger`, `send_back` and what `entering` guards.

    Attributes:
        settings: as given.
        connection: librdkafka settings for an admin client.
        retry_topic: physical name of the group's.
        stores: the user left storing offsets to the client, and so we do it.
        cooperative: the rebalance protocol is incremental.
        resets_to_beginning: `auto.offset.reset` is `earliest` by one of its names.
        sees_ends: the client reports the ends of partitions, and those of the retry topic are to be swallowed.
        dirty: something was returned since offsets were last stored.
        settle_at: monotonic time at which offsets are stored next while messages keep coming, in seconds.
        positions: how far each partition was handed out when offsets were last stored: exact while `waiting`.
        waiting: the poll thread is in a call of the client's that may wait, or in a callback, so nobody else may call
            the client; for good once `close` was called.
        polling: the poll thread is in a call of the client's that does not wait.
        asking: another thread looks whether it may call the client, or is in it; spares `poll` the lock.
        poller: the thread that polled last.
        entering: guards `waiting` and `asking`, and is held by other threads while they are in the client.
        slow_path: a message is put by, an error is to be raised, or ends are to be swallowed: take the slow way.
        subscribed: `subscribe` was called, and `unsubscribe` not since.
        reads_retries: the retry topic is read along.
        named: topics that the user subscribed to by name.
        callbacks: the user's, for assign, revoke and lost.
        rebalance: the callback under way.
        paused: partitions the user has paused; the client keeps a pause across assignments, and so do we.
        ensured: the shim's topics are known to be there.
        closing: `close` was called.
        buffered: messages that the client gave out in a call that raised.
        awaiting_start: partitions of the retry topic that are assigned, and paused until it is known where they begin.
        raised: errors of callbacks, to be raised by the call they happened in.
        consumer: gives the consumer this belongs to; None: it is being made, or is gone.
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
        """Whether a topic is not the user's: the group's retry topic, or one of the shim's that a pattern matched."""
        return topic == self.retry_topic or (topic not in self.named and self.names.is_ours(topic))

    def layout(self) -> Layout:
        """How the shim's topics have to be."""
        return Layout(self.names, self.settings.delay_levels)

    def during(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """A callback of the user's that is not of a rebalance, in which another thread may send back."""

        def called(*args: Any) -> Any:
            consumer = self.consumer()
            if consumer is None:
                return callback(*args)
            with consumer._in_callback():  # noqa: SLF001 - the shell of this state
                return callback(*args)

        return called

    def raise_later(self, error: BaseException) -> None:
        """Keep an error of a callback, which must not escape into the client: it would drop the message at hand."""
        self.raised.append(error)
        self.slow_path = True

    def settle_attention(self) -> None:
        """Say again whether the slow way is needed."""
        self.slow_path = self.sees_ends or bool(self.buffered) or bool(self.raised) or bool(self.awaiting_start)

    def retry_partitions(self) -> list[TopicPartition]:
        """The partitions of the retry topic in the assignment."""
        return [TopicPartition(*place) for place in self.ledger.places() if place[0] == self.retry_topic]


def partition_key(partition: TopicPartition) -> TopicPartitionKey:
    """Topic and number of a partition."""
    return partition.topic, partition.partition


def prepare(
    settings: ConsumerDropinSettings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[State, dict[str, Any]]:
    """The state of a consumer and the configuration of its client.

    Args:
        settings: with retry switched on.
        args: the constructor's, without our keys.
        kwargs: likewise.

    Raises:
        TypeError: no configuration dict, as the original says it.
        ConfigError: a client setting that retries cannot work with.
    """
    if len(args) > 1 or not all(isinstance(each, dict) for each in args):
        raise TypeError("expected configuration dict")
    config: dict[str, Any] = {**METADATA_REFRESH, **(args[0] if args else {}), **kwargs}
    group = config.get("group.id")
    if not group:
        raise ConfigError("rocketshim.retry.enable needs a group.id: retries belong to a group")
    if str(config.get(_ISOLATION, "read_committed")).lower() != "read_committed":
        raise ConfigError(f"{_ISOLATION} has to be read_committed with rocketshim.retry.enable: leave it out")
    names = TopicNames(settings.namespace)
    stores = is_true(config.get(_STORE, True))
    config[_STORE] = False
    timeout_s = settings.hop_timeout_ms / 1_000
    store = HopStore(inner_producer_config(config, settings), timeout_s)
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
