"""What a poll loop is made from, and its settings."""

from dataclasses import dataclass
from typing import Any

from rocketshim.consumer.dispatch import Pool
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.clock import Clock
from rocketshim.core.flow_control import FlowLimits
from rocketshim.core.subscriptions import Subscriptions
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.membership import MemberCheck

__all__ = ["LoopParts", "LoopSettings"]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The settings of one poll loop; all durations in ms; `topic_*` -1 for no limit."""

    batch_count: int
    commit_interval_ms: int
    consume_timeout_ms: int
    sweep_interval_ms: int
    revoke_drain_ms: int
    limits: FlowLimits
    watch_interval_ms: int = 20_000
    topic_count: int = -1
    topic_size_bytes: int = -1
    fetch_count: int = 1_000
    pull_interval_ms: int = 0
    group: str = ""
    unsubscribes: bool = True  # whether to unsubscribe before closing; see `clients.close_consumer`


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What a poll loop is made from.

    Attributes:
        reader: reads the partitions; not opened.
        source: what the consumer subscribes to.
        pool: runs the listeners.
        send_back: stores what has failed.
        settings: the settings of the loop.
        clock: tells the time.
        log: the group-log thread, not started; None: the group needs no locks.
        membership: detects that the group has assigned no partitions; None: Kafka's client tells.
    """

    reader: PartitionReader
    source: Subscriptions
    pool: Pool[Any, Any]
    send_back: SendBack
    settings: LoopSettings
    clock: Clock
    log: GroupLogThread | None = None
    membership: MemberCheck | None = None
