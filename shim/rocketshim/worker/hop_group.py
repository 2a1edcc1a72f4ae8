"""Records of one run that take the same hop: what the router decides, and the deliveries produce."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from rocketshim.worker.target_health import TargetHealth
from rocketshim_topics.wire import Header

__all__ = ["Hop", "HopGroup", "Kind"]

_NONE: Final[Mapping[int, int]] = MappingProxyType({})


class Kind(Enum):
    """The kind of a hop."""

    DELIVER = "deliver"
    HOP = "hop"
    RE_APPEND = "re-append"
    PARK = "park"
    SKIP = "skip"
    NOT_YET = "not-yet"


Hop = tuple[int, bytes | None, bytes | None, list[Header], int]
"""Index of a record in its run; value, key and headers to write; when it was due, epoch ms. A tuple, for speed."""


class HopGroup:
    """Records of a run that take the same hop to the same partition.

    Attributes:
        kind: the kind of the hop.
        topic: physical name; `""` for records that are skipped or have to wait.
        partition: -1: any.
        target: the target of a delivery, or the target for whose `ready_ns` the records wait.
        reason: why they are parked or re-appended.
        one_per_batch: whether each record must be a separate batch.
        timestamps: those that senders gave, epoch ms, by index; the groups of a run may share them. All other records
            get the brokers' time.
        records: in order; none once they are produced. A value of None is a tombstone.
    """

    __slots__ = ("kind", "one_per_batch", "partition", "reason", "records", "target", "timestamps", "topic")

    def __init__(
        self,
        kind: Kind,
        topic: str = "",
        partition: int = -1,
        *,
        target: TargetHealth | None = None,
        reason: str = "",
        one_per_batch: bool = False,
        first: Hop | None = None,
        timestamps: Mapping[int, int] = _NONE,
    ) -> None:
        self.kind = kind
        self.topic = topic
        self.partition = partition
        self.target = target
        self.reason = reason
        self.one_per_batch = one_per_batch
        self.timestamps = timestamps
        self.records: list[Hop] = [] if first is None else [first]
