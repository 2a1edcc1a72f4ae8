"""The state of a consumer with retry enabled, beside the C client, and how the configuration makes it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from confluent_kafka import TopicPartition

from rocketshim.dropin.buffered import Buffered
from rocketshim.dropin.client_gate import ClientGate
from rocketshim.dropin.handled_offsets import HandledOffsets
from rocketshim.dropin.retry_partitions import RetryPartitions
from rocketshim.dropin.send_back import DropinSendBack, HopStore
from rocketshim.dropin.send_back_tracker import SendBackTracker
from rocketshim.dropin.settings import ConsumerDropinSettings, connection, inner_producer_config, is_true
from rocketshim.errors import ConfigError
from rocketshim.kafka.client_config import METADATA_REFRESH, flat
from rocketshim.kafka.clients import ProducerClient, with_log
from rocketshim.kafka.confluent import Producer
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.layout import Layout
from rocketshim_topics.names import TopicNames, check_consumer_group

__all__ = ["Rebalance", "State", "prepare"]

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


class Callee(Protocol):
    """The consumer, as a callback of the program sees it."""

    def _shim_in_callback(self) -> AbstractContextManager[None]: ...


@dataclass(slots=True)
class State:
    """Our state of one consumer. The poll thread owns it, except `tracker`, `send_back` and `gate`.

    Attributes:
        settings: the drop-in settings.
        connection: librdkafka settings for an admin client.
        stores: the user lets the client store offsets, so we store them.
        cooperative: the rebalance protocol is incremental.
        resets_to_beginning: `auto.offset.reset` is `earliest`, by one of its names.
        sees_ends: the client reports the ends of partitions; those of the retry topic must be filtered out.
        tracker: what was sent back, and how far offsets may be stored.
        gate: who may call the client now.
        buffered: what a call had in hand when a callback failed.
        offsets: how far messages were handed out and handled.
        retries: the partitions of the retry topic.
        slow_path: a message is buffered, an error is to be raised, or ends are to be filtered out.
        subscribed: `subscribe` was called, and `unsubscribe` not since.
        callbacks: the user's callbacks for assign, revoke and lost.
        rebalance: the callback in progress.
        ensured: the rocketshim topics are known to exist.
        closing: `close` was called.
        consumer: returns the consumer of this state; None: it is being made, or is gone.
    """

    settings: ConsumerDropinSettings
    connection: dict[str, Any]
    names: TopicNames
    group: str
    stores: bool
    cooperative: bool
    resets_to_beginning: bool
    sees_ends: bool
    hop_store: HopStore
    send_back: DropinSendBack
    retries: RetryPartitions
    tracker: SendBackTracker
    gate: ClientGate
    buffered: Buffered
    offsets: HandledOffsets
    slow_path: bool = False
    subscribed: bool = False
    callbacks: tuple[Callable[..., Any] | None, ...] = (None, None, None)
    rebalance: Rebalance | None = None
    ensured: bool = False
    closing: bool = False
    consumer: Callable[[], Callee | None] = lambda: None

    def layout(self) -> Layout:
        """Return the required layout of the rocketshim topics."""
        return Layout(self.names, self.settings.delay_levels)

    def during(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a user callback other than a rebalance callback, so that another thread may send back during it."""

        def called(*args: Any) -> Any:
            consumer = self.consumer()
            if consumer is None:
                return callback(*args)
            with consumer._shim_in_callback():  # noqa: SLF001 - the shell of this state
                return callback(*args)

        return called

    def raise_later(self, error: BaseException) -> None:
        """Keep an error of a callback; it must not escape into the client, which would drop the message in hand."""
        self.buffered.errors.append(error)
        self.slow_path = True

    def update_slow_path(self) -> None:
        """Update whether the slow path is needed."""
        self.slow_path = self.sees_ends or not self.buffered.is_empty or bool(self.retries.awaiting_start)

    def retry_partitions(self) -> list[TopicPartition]:
        """Return the assigned partitions of the retry topic."""
        return self.retries.of(self.tracker.assigned_keys())


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
        KafkaException: the client refuses a setting of the inner producer.
    """
    if len(args) > 1 or not all(isinstance(each, dict) for each in args):
        raise TypeError("expected configuration dict")
    config = flat({**METADATA_REFRESH, **(args[0] if args else {}), **kwargs})
    group = config.get("group.id")
    if not group:
        raise ConfigError("rocketshim.retry.enable needs a group.id: retries belong to a group")
    check_consumer_group(group)
    if str(config.get(_ISOLATION, "read_committed")).lower() != "read_committed":
        raise ConfigError(f"{_ISOLATION} must be read_committed with rocketshim.retry.enable: leave it out")
    names = TopicNames(settings.namespace)
    stores = is_true(config.get(_STORE, True))
    config[_STORE] = False
    timeout_s = settings.hop_timeout_ms / 1_000
    make_producer = partial(_make_producer, inner_producer_config(config, settings))
    if settings.producer:
        make_producer()  # what the client refuses is an error now, and not at the first message that fails
    store = HopStore(make_producer, timeout_s, names)
    send_back = DropinSendBack(
        store,
        names=names,
        levels=settings.delay_levels,
        group=str(group),
        limit=settings.max_reconsume_times,
        send_on_timeout_ms=settings.send_on_timeout_ms,
        timeout_s=timeout_s,
        fail_stack=settings.fail_stack,
    )
    protocol = str(config.get("group.protocol", "classic")).lower()
    tracker, gate, buffered = SendBackTracker(), ClientGate(), Buffered()
    state = State(
        settings=settings,
        connection=connection(config),
        names=names,
        group=str(group),
        stores=stores,
        cooperative=protocol == "consumer" or "cooperative" in str(config.get("partition.assignment.strategy", "")),
        resets_to_beginning=config.get("auto.offset.reset") in {"earliest", "smallest", "beginning"},
        sees_ends=is_true(config.get("enable.partition.eof", False)),
        hop_store=store,
        send_back=send_back,
        retries=RetryPartitions(names.retry(str(group)), names),
        tracker=tracker,
        gate=gate,
        buffered=buffered,
        offsets=HandledOffsets(stores=stores, tracker=tracker, buffered=buffered, gate=gate),
    )
    state.update_slow_path()
    for name in _CALLBACKS:
        if callable(config.get(name)):
            config[name] = state.during(config[name])
    return state, config


def _make_producer(config: dict[str, Any]) -> ProducerClient:
    return Producer(with_log(config))
