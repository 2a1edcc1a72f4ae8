"""The next hop of a failed message: what it is, its record, and what it becomes if that record is too large. Pure.

Every consumer sends failed messages back by these rules. `NextHops.first` decides and makes the record:

* a retry: a schedule record, by the policy or as the listener asked (`retry_policy.decide`);
* a dead letter, at the limit or if the listener asked for it;
* a parked record, if the headers break the wire format or no other hop can be made.

If a topic refuses the record for its size, `NextHops.smaller` makes a smaller one:

    retry or dead letter → dead letter by reference
    parked record → without its value → only the reason and the coordinates

The record is made from the message as fetched, never from the object that a listener had.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, assert_never

from rocketshim.core.retry_policy import (
    AfterDelay,
    AtLevel,
    Dead,
    Failed,
    LevelTableRetryPolicy,
    NextHop,
    decide,
)
from rocketshim_topics.errors import MalformedRecordError, RocketshimError
from rocketshim_topics.hops import (
    Failure,
    OutgoingRecord,
    bare_parked,
    dead_letter,
    dead_letter_by_reference,
    parked,
    retry,
)
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import decode, read_again, read_headers

__all__ = ["FailedMessage", "Hop", "HopKind", "NextHops"]

_NO_HOP: Final = "no-hop"


class HopKind(Enum):
    """What a next hop is. The value is the name of its counter."""

    RETRY = "retried"
    DEAD_LETTER = "dead"
    BY_REFERENCE = "dead_by_reference"
    PARKED = "parked"


@dataclass(slots=True)
class FailedMessage:
    """A message that did not succeed: the facts for the retry policy.

    Attributes:
        message: the Kafka record.
        failure: class, text and time of the failure.
        asked_level: requested level. 0: none; above 0: that level; below 0: the dead-letter topic.
        asked_delay_ms: requested delay in ms, or None.
        malformed: why the record breaks the wire format; it is parked, and no listener gets it. None: it does not.
        reconsume_times: failed attempts before this one, if they were counted elsewhere (orderly mode); None: the
            record has the count.
    """

    message: Any
    failure: Failure
    asked_level: int = 0
    asked_delay_ms: int | None = None
    malformed: str | None = None
    reconsume_times: int | None = None


@dataclass(slots=True)
class Hop:
    """A next hop.

    Attributes:
        kind: what it is.
        out: its record.
        failed: the message that failed.
        reconsume_times: failed attempts, including this one; 0 if the message was parked before they were known.
        reason: why it is parked; `""`: it is not parked.
        error: text of the error because of which no other hop could be made; `""`: there was none.
        decided: what was decided; None: the message was parked before that.
        msg_id: id of the message, if its record has one; None: its coordinates are its id.
        message_limit: the message's own `max_reconsume_times`, or None.
    """

    kind: HopKind
    out: OutgoingRecord
    failed: FailedMessage
    reconsume_times: int = 0
    reason: str = ""
    error: str = ""
    decided: NextHop | None = None
    msg_id: str | None = None
    message_limit: int | None = None


class NextHops:
    """Makes the next hops of one group's failed messages.

    Args:
        names, levels, group: names, delay levels and group of the consumer.
        limit: `max_reconsume_times` of the group.
        decided: applies the retry policy to a failed attempt; None: the level table.

    Thread-safety: any thread, if `decided` allows it.

    Source: `AbstractSendMessageProcessor#consumerSendMsgBack`.
    """

    def __init__(
        self,
        names: TopicNames,
        levels: DelayLevels,
        group: str,
        *,
        limit: int,
        decided: Callable[[Failed], NextHop] | None = None,
    ) -> None:
        self._names = names
        self._levels = levels
        self._group = group
        self._limit = limit
        self._decided = decided or by_level_table
        self._retry_topic = names.retry(group)

    def first(self, failed: FailedMessage, *, lane: Callable[[], int], unit: float) -> Hop:
        """Return the next hop of a message that failed.

        Args:
            failed: the message.
            lane: returns the lane of a retry; not called for another hop. What it raises is raised here.
            unit: a random number in [0, 1), for policies with jitter.
        """
        if failed.malformed is not None:
            return self._parked(failed, failed.malformed)
        trusted = failed.message.topic() == self._retry_topic
        try:
            read_again(failed.message)
            envelope = decode(read_headers(failed.message), trusted=trusted)
            before = failed.reconsume_times
            if before is None:
                before = envelope.reconsume_times or 0
            decided = self._decided(
                Failed(
                    before, failed.asked_level, failed.asked_delay_ms, self._limit, envelope.max_reconsume_times, unit
                )
            )
        except RocketshimError as error:
            return self._without_hop(failed, error)
        if isinstance(decided, Dead):
            hop = self._dead_letter(failed, before + 1, trusted=trusted)
            hop.decided, hop.msg_id, hop.message_limit = decided, envelope.uniq_key, envelope.max_reconsume_times
            return hop
        chosen = lane()
        try:
            out = retry(
                failed.message,
                self._names,
                self._levels,
                group=self._group,
                trusted=trusted,
                failure=failed.failure,
                reconsume_times=before + 1,
                level=decided.level if isinstance(decided, AtLevel) else None,
                delay_ms=decided.delay_ms if isinstance(decided, AfterDelay) else None,
                lane=chosen,
                envelope=envelope,
            )
        except RocketshimError as error:
            return self._without_hop(failed, error)
        return Hop(
            HopKind.RETRY,
            out,
            failed,
            before + 1,
            decided=decided,
            msg_id=envelope.uniq_key,
            message_limit=envelope.max_reconsume_times,
        )

    def smaller(self, hop: Hop) -> Hop | None:
        """Return a smaller hop instead of one that its topic refused for its size; None: it cannot be made smaller."""
        match hop.kind:
            case HopKind.RETRY | HopKind.DEAD_LETTER:
                return self._by_reference(hop)
            case HopKind.BY_REFERENCE:
                return None
            case HopKind.PARKED:
                if hop.out.value is not None:  # the body stays at the coordinates in PARK_FROM
                    out = OutgoingRecord(hop.out.topic, hop.out.partition, hop.out.key, None, hop.out.headers)
                else:
                    out = bare_parked(hop.out)  # key and headers stay there, too
                    if out == hop.out:
                        return None
                return Hop(hop.kind, out, hop.failed, hop.reconsume_times, hop.reason, hop.error)
            case _:
                assert_never(hop.kind)

    def _dead_letter(self, failed: FailedMessage, reconsume_times: int, *, trusted: bool) -> Hop:
        try:
            out = dead_letter(
                failed.message,
                self._names,
                group=self._group,
                trusted=trusted,
                failure=failed.failure,
                reconsume_times=reconsume_times,
            )
        except RocketshimError as error:
            return self._without_hop(failed, error)
        return Hop(HopKind.DEAD_LETTER, out, failed, reconsume_times)

    def _by_reference(self, hop: Hop) -> Hop:
        message = hop.failed.message
        out = dead_letter_by_reference(
            message,
            self._names,
            group=self._group,
            trusted=message.topic() == self._retry_topic,
            failure=hop.failed.failure,
            reconsume_times=hop.reconsume_times,
        )
        return replace(hop, kind=HopKind.BY_REFERENCE, out=out)

    def _without_hop(self, failed: FailedMessage, error: RocketshimError) -> Hop:
        if isinstance(error, MalformedRecordError):
            return self._parked(failed, error.reason)
        return self._parked(failed, _NO_HOP, str(error))

    def _parked(self, failed: FailedMessage, reason: str, error: str = "") -> Hop:
        return Hop(HopKind.PARKED, parked(failed.message, self._names, reason), failed, 0, reason, error)


def by_level_table(failed: Failed) -> NextHop:
    """Return the decision by RocketMQ's table of delay levels."""
    return decide(failed, LevelTableRetryPolicy())
