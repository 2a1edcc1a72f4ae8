"""The lane of the schedule topic that a record goes to. Pure except for the round-robin counter."""

import itertools

from rocketshim_topics.partitioner import lane_for

__all__ = ["LaneSelector"]


class LaneSelector:
    """Selects the lane of the schedule topic for a record: by key, or round-robin without a key.

    Thread-safety: any thread.
    """

    def __init__(self) -> None:
        self._turn = itertools.count()

    def choose(self, key: bytes | None, lanes: int) -> int:
        """Return the lane of a record.

        Args:
            key: key of the record; None: no key.
            lanes: number of lanes of the schedule topic, 1 or more.

        Decides: Which lane has a record? That of its key, also for a retry; without a key the next one. How many there
            are: `kafka.lanes.Lanes`.
        """
        return next(self._turn) % lanes if key is None else lane_for(key, lanes)
