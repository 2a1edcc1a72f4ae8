"""What other threads may ask of a poll thread. The loop performs a request between two turns."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from rocketshim.core.subscriptions import Subscription
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Asked", "Request", "Resize", "Resume", "Seek", "SeekToTime", "Subscribe", "Suspend", "Unsubscribe"]


@dataclass(frozen=True, slots=True)
class Suspend:
    """Read nothing until `Resume`; messages that were read are still processed."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Read again."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Continue partitions at other offsets (`AssignedQueues.seek`)."""

    targets: Mapping[TopicPartitionKey, int]


@dataclass(frozen=True, slots=True)
class SeekToTime:
    """Continue the partitions of a topic that are read now at the first message of a time (epoch ms) or later."""

    topic: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Set the number of listener threads, or of concurrent calls."""

    size: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Add a subscription, or replace the one of the same topic."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Read a topic (physical name, or pattern) no longer."""

    topic: str


Request = Suspend | Resume | Seek | SeekToTime | Resize | Subscribe | Unsubscribe


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and its answer: an exception if it failed, or if the loop ended before."""

    request: Request
    answer: "Future[None]" = field(default_factory=Future)
