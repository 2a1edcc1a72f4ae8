"""What a poll loop is made from."""

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
from rocketshim.settings import PushConsumerSettings

__all__ = ["LoopParts"]


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What a poll loop is made from.

    Attributes:
        reader: reads the partitions; not opened.
        source: what the consumer subscribes to.
        pool: runs the listeners.
        send_back: stores what has failed.
        settings: the settings of the consumer.
        limits: when a queue has so much that it is paused.
        clock: tells the time.
        log: the group-log thread, not started; None: the group needs no locks.
        membership: detects that the group has assigned no partitions; None: Kafka's client tells.
    """

    reader: PartitionReader
    source: Subscriptions
    pool: Pool[Any, Any]
    send_back: SendBack
    settings: PushConsumerSettings
    limits: FlowLimits
    clock: Clock
    log: GroupLogThread | None = None
    membership: MemberCheck | None = None
