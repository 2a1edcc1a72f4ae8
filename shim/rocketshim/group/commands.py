"""The commands that other threads give to the group-log thread."""

from dataclasses import dataclass

from rocketshim.core.lease import Lease, ReconsumeCounts
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["Close", "Command", "Release", "ReportProgress", "Want"]


@dataclass(frozen=True, slots=True)
class Want:
    """Own these queues from now on, and stop all others."""

    queues: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class ReportProgress:
    """The next renewal carries this position and these failed attempts."""

    lease: Lease
    next_offset: int | None
    reconsume_counts: ReconsumeCounts


@dataclass(frozen=True, slots=True)
class Release:
    """The queue is drained and committed: release its lock, with this position and these failed attempts."""

    lease: Lease
    next_offset: int | None
    reconsume_counts: ReconsumeCounts


@dataclass(frozen=True, slots=True)
class Close:
    """Release everything and leave the group, at the latest at this monotonic time in ms."""

    by_ms: int


Command = Want | ReportProgress | Release | Close
