"""The lane of the schedule topic that a record goes to. Pure except for the round-robin counter."""

from collections.abc import Iterator

from rocketshim_topics.partitioner import lane_for

__all__ = ["lane_of"]


def lane_of(key: bytes | None, lanes: int, turns: Iterator[int]) -> int:
    """Return the lane of a record in a topic with one or more; a record without a key has the next turn.

    Decides: Which lane has a record? That of its key, also for a retry; without a key the next one. How many there
        are: `kafka.lanes.Lanes`.
    """
    return next(turns) % lanes if key is None else lane_for(key, lanes)
