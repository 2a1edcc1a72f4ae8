"""Protocols of an assigned queue and of the work of a listener thread, for concurrent and orderly consumption."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

from rocketshim.core.flow_control import FlowCounts

__all__ = ["PartitionQueue", "QueueT", "Work"]


class PartitionQueue(FlowCounts, Protocol):
    """An assigned queue: a `ProcessQueue` or an `OrderlyPartition`."""

    topic: str
    partition: int
    epoch: int
    paused: bool
    """Whether it has so much that it is paused."""

    @property
    def dropped(self) -> bool:
        """Return whether the queue was given up."""

    @property
    def settled(self) -> bool:
        """Return whether no message of it is with a listener or on its way to another topic."""

    @property
    def next_offset(self) -> int | None:
        """Return the offset to commit; None: nothing new."""

    @property
    def failing(self) -> tuple[int, int] | None:
        """Return failed attempts of its oldest failing message, and for how many ms; None: they are not counted."""

    def put(self, messages: Sequence[Any]) -> None:
        """Add fetched messages. Raises ValueError if their offsets do not rise."""

    def withhold(self) -> int:
        """Stop handing out messages; return how many handed-out messages were taken back."""

    def drop(self) -> None:
        """Discard everything; later results are ignored."""

    def oldest_in_work_ms(self, now_ms: int) -> int:
        """Return how long the oldest running listener call has taken, in ms."""


QueueT = TypeVar("QueueT", bound=PartitionQueue)


class Work(Protocol):
    """Messages that one listener thread processes: a `Chunk` or an `OrderlyTask`."""

    @property
    def dropped(self) -> bool:
        """Return whether the queue of the messages was given up."""

    def stored(self, messages: Collection[Any]) -> None:
        """Note that the next hops of these failed messages are stored."""
