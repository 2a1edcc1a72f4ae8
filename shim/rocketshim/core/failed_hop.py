"""The record of a failed message's next hop, and its lane. Pure except for the round-robin counter of lanes."""

import itertools
from collections.abc import Callable
from typing import assert_never

from rocketshim.core.retry_policy import AfterDelay, AtLevel, Dead, NextHop
from rocketshim_topics.hops import Failure, OutgoingRecord, dead_letter, retry
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import lane_for
from rocketshim_topics.wire import Envelope, Record

__all__ = ["LaneSelector", "failed_hop"]


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
        """
        return next(self._turn) % lanes if key is None else lane_for(key, lanes)


def failed_hop(
    decided: NextHop,
    record: Record,
    names: TopicNames,
    levels: DelayLevels,
    *,
    group: str,
    trusted: bool,
    failure: Failure,
    reconsume_times: int,
    lane: Callable[[], int],
    envelope: Envelope | None = None,
) -> OutgoingRecord:
    """Return the record that carries out the decision about a failed message.

    Args:
        decided: the answer of `decide`.
        record: as fetched.
        names: topic names of the consumer's namespace.
        levels: the consumer's level table.
        group: the group in which it failed.
        trusted: it was read from the retry topic.
        failure: why it failed.
        reconsume_times: failed attempts, including this one.
        lane: returns the lane of a retry; not called for a dead letter.
        envelope: the record's headers, if the caller has decoded them; None: this function decodes them.

    Raises:
        MalformedRecordError: the next hop cannot be determined from the record; park it.
    """
    level: int | None = None
    delay_ms: int | None = None
    match decided:
        case Dead():
            return dead_letter(
                record, names, group=group, trusted=trusted, failure=failure, reconsume_times=reconsume_times
            )
        case AtLevel():
            level = decided.level
        case AfterDelay():
            delay_ms = decided.delay_ms
        case _:
            assert_never(decided)
    return retry(
        record,
        names,
        levels,
        group=group,
        trusted=trusted,
        failure=failure,
        reconsume_times=reconsume_times,
        level=level,
        delay_ms=delay_ms,
        lane=lane(),
        envelope=envelope,
    )
