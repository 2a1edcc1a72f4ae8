"""What the poll thread's parts ask of a queue, however it is consumed."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

from rocketshim.core.flow_control import FlowCounts

__all__ = ["PartitionQueue", "QueueT", "Work"]


class PartitionQueue(FlowCounts, Protocol):
    """A queue that is held: a `ProcessQueue`, or an `OrderlyPartition`."""

    paused: bool
    """For `flow_control`."""

    @property
    def topic(self) -> str:
        """Physical topic."""

    @property
    def partition(self) -> int:
        """Its number."""

    @property
    def epoch(self) -> int:
        """Number of the assignment."""

    @property
    def dropped(self) -> bool:
        """Whether it is given up."""

    @property
    def settled(self) -> bool:
        """Whether nothing of it is in a listener's hands or on its way to another topic."""

    @property
    def next_offset(self) -> int | None:
        """The position to commit; None: nothing new."""

    def put(self, messages: Sequence[Any]) -> None:
        """Take fetched messages. Raises ValueError when their offsets do not rise."""

    def withhold(self) -> int:
        """Let nothing more of it begin; how many messages that were handed out come back so."""

    def drop(self) -> None:
        """Forget everything; results that come are ignored."""

    def oldest_in_work_ms(self, now_ms: int) -> int:
        """How long the oldest listener call has lasted, in ms."""


QueueT = TypeVar("QueueT", bound=PartitionQueue)


class Work(Protocol):
    """Messages that one listener thread was given: a `Chunk`, or an `OrderlyTask`."""

    @property
    def dropped(self) -> bool:
        """Whether the queue they are of is given up."""

    def stored(self, messages: Collection[Any]) -> None:
        """The next hops of these, which failed, are stored."""
