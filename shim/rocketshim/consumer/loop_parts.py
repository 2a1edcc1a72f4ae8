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
    """What a poll loop is made from; neither `reader` nor `log` is open."""

    reader: PartitionReader
    source: Subscriptions
    pool: Pool[Any, Any]
    send_back: SendBack
    settings: PushConsumerSettings
    limits: FlowLimits
    clock: Clock
    log: GroupLogThread | None = None  # None: the group needs no locks
    membership: MemberCheck | None = None  # None: Kafka's client tells that nothing is assigned
