"""The next hop of a failed message: what it is, its record, and what it becomes if that record is too large. Pure.

Every consumer sends failed messages back by these rules. `HopMaker.first` decides and makes the record:

* sent on: a schedule record that counts no failure, for a message that this member cannot handle (`Failure.unhandled`),
  such as a retry of a topic that only other members have. The time since it was first sent on is limited. It is read
  from the append times of the records, so all members agree on it, and no clock of a member matters;
* a retry: a schedule record, by the policy or as the listener asked (`retry_policy.decide`);
* a dead letter, at the limit or if the listener asked for it;
* a parked record, if the headers break the wire format or no other hop can be made.

If a topic refuses the record for its size, `HopMaker.smaller` makes a smaller one:

    retry, sent on, or dead letter → dead letter by reference
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
    Decision,
    LevelTableRetryPolicy,
    RetryPolicy,
    decide,
    effective_limit,
    is_hop,
)
from rocketshim.core.user_values import safe_text
from rocketshim_topics.errors import MalformedRecordError, RocketshimError
from rocketshim_topics.hops import (
    Failure,
    OutgoingRecord,
    bare_parked,
    dead_letter,
    dead_letter_by_reference,
    parked,
    retry,
    sent_on,
)
from rocketshim_topics.hops.record import timestamp_ms_of
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.limits import FIRST_RETRY_LEVEL
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import Envelope, decode, read_again, read_headers

__all__ = ["NO_LISTENER", "SEND_ON_TIMEOUT_MS", "UNDECODABLE", "FailedMessage", "Hop", "HopKind", "HopMaker"]

NO_LISTENER: Final = "NoListener"
"""Class of the failure of a message that the member has no listener for."""

UNDECODABLE: Final = "UndecodableBody"
"""Class of the failure of a message whose body the member's codec cannot decode."""

SEND_ON_TIMEOUT_MS: Final = 86_400_000
"""How long a message is sent on by default, in ms."""

_NOT_DECODED: Final = frozenset({None, NO_LISTENER, UNDECODABLE, "UnansweredCodec"})
_LONGEST_PAUSE_MS: Final = 600_000
_DEFAULT_PAUSES_MS: Final = (10_000,)

_NO_HOP: Final = "no-hop"
_LEVEL_TABLE: Final = LevelTableRetryPolicy()


class HopKind(Enum):
    """What a next hop is. The value is the name of its counter."""

    RETRY = "retried"
    SENT_ON = "sent_on"
    DEAD_LETTER = "dead"
    BY_REFERENCE = "dead_by_reference"
    PARKED = "parked"


@dataclass(slots=True)
class FailedMessage:
    """A Kafka record that did not succeed: the facts for the retry policy."""

    message: Any
    failure: Failure
    asked_level: int = 0
    """Requested level. 0: none; below 0: the dead-letter topic."""
    asked_delay_ms: int | None = None
    malformed: str | None = None
    """Why the record breaks the wire format; it is parked, and no listener gets it."""
    reconsume_times: int | None = None
    """Failed attempts before this one, if they were counted elsewhere (orderly mode); None: the record has them."""
    uncounted: int = 0
    """Failed attempts before this one that the record does not count: their processes died."""


@dataclass(slots=True)
class Hop:
    """A next hop; a text that is `""` does not apply."""

    kind: HopKind
    out: OutgoingRecord
    failed: FailedMessage
    reconsume_times: int = 0  # with this failure; 0 if the message was parked before they were known
    reason: str = ""  # why it is parked
    error: str = ""  # because of which no other hop could be made
    decision: Decision | None = None  # None: the message was parked before that
    msg_id: str | None = None  # None: the coordinates of its record are its id
    message_limit: int | None = None
    policy_error: str = ""  # why the level table decided instead of the policy, which is user code


class HopMaker:
    """Makes the next hops of one group's failed messages.

    Without a policy, or if it raises or returns an invalid value, the level table decides.

    Thread-safety: any thread, if the policy allows it.

    Source: `AbstractSendMessageProcessor#consumerSendMsgBack`.
    """

    def __init__(
        self,
        names: TopicNames,
        levels: DelayLevels,
        group: str,
        *,
        limit: int,
        send_on_timeout_ms: int = SEND_ON_TIMEOUT_MS,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.names = names
        self.levels = levels
        self.group = group
        self.limit = limit
        self._policy = policy
        self._retry_topic = names.retry(group)
        self.send_on_timeout_ms = send_on_timeout_ms
        levels_ms = levels.delays_ms[min(FIRST_RETRY_LEVEL, levels.max_level) - 1 :] if levels.max_level else ()
        pauses_ms = sorted(delay_ms for delay_ms in levels_ms if 0 < delay_ms <= _LONGEST_PAUSE_MS)
        self._pauses_ms = tuple(pauses_ms) or _DEFAULT_PAUSES_MS

    def first(self, failed: FailedMessage, *, lane: Callable[[], int], unit: float) -> Hop:
        """Return the next hop of a message that failed; `lane` is asked for a retry, `unit` is random, in [0, 1).

        Decides: Which record is a failed message's next hop? If it is too large: `core.next_hop.HopMaker.smaller`, at
            last a dead letter by reference, without the body.
        Decides: When does a consumer park a failed message? Its headers break the wire format, or no other record can
            be made of it. If the topic refuses the parked record for its size: `core.next_hop.HopMaker.smaller`.
        """
        if failed.malformed is not None:
            return self._parked(failed, failed.malformed)
        trusted = failed.message.topic() == self._retry_topic
        try:
            read_again(failed.message)
            envelope = decode(read_headers(failed.message), trusted=trusted)
            before = failed.reconsume_times
            if before is None:
                before = (envelope.reconsume_times or 0) + failed.uncounted
        except RocketshimError as error:
            return self._without_hop(failed, error)
        if failed.failure.unhandled and trusted:
            pause_ms = self._pause_ms(failed, envelope)
            if pause_ms is not None:
                return self._sent_on(failed, envelope, pause_ms, lane())
            failed = replace(failed, failure=_with_last_failure(failed.failure, envelope))
        limit = envelope.max_reconsume_times
        decision, policy_error = self._decide(failed, before, effective_limit(self.limit, limit), unit)
        if isinstance(decision, Dead):
            hop = self._dead_letter(failed, before + 1, trusted=trusted)
        else:
            hop = self._retry(failed, before + 1, decision, lane(), envelope, trusted=trusted)
        hop.decision, hop.policy_error, hop.msg_id, hop.message_limit = decision, policy_error, envelope.uniq_key, limit
        return hop

    def _pause_ms(self, failed: FailedMessage, envelope: Envelope) -> int | None:
        """Return how long a message waits that this member cannot handle; None: it is not sent on any more.

        The pauses grow with the time for which it has been sent on: 10 s at first and 10 minutes at most, with the
        default level table. Each is the delay of a level, so it takes one hop.

        Decides: What if a member cannot handle a retried message, but another one may? It is sent on, uncounted, for a
            day, by the append times of its records. Which messages these are: `consumer.listeners.Runner` (no listener;
            a body that only another member could decode), `dropin.partitions.Partitions.topic_of_others`.
        """
        if failed.failure.exception_class != NO_LISTENER and envelope.fail_class in _NOT_DECODED:
            return None  # its last failure does not show that another member could decode it
        now_ms = timestamp_ms_of(failed.message)
        if now_ms is None:
            return None
        since_ms = envelope.unhandled_since_ms
        waited_ms = 0 if since_ms is None else max(0, now_ms - since_ms)
        left_ms = self.send_on_timeout_ms - waited_ms
        pauses_ms = self._pauses_ms
        pause_ms = max((each for each in pauses_ms if each <= waited_ms), default=pauses_ms[0])
        return min(pause_ms, left_ms) if left_ms > 0 else None

    def _sent_on(self, failed: FailedMessage, envelope: Envelope, pause_ms: int, lane: int) -> Hop:
        message, times = failed.message, envelope.reconsume_times or 0
        try:
            out = sent_on(message, envelope, self.names, self.levels, group=self.group, delay_ms=pause_ms, lane=lane)
        except RocketshimError as error:
            return self._without_hop(failed, error)
        return Hop(HopKind.SENT_ON, out, failed, times, decision=AfterDelay(pause_ms), msg_id=envelope.uniq_key)

    def _decide(self, failed: FailedMessage, before: int, limit: int, unit: float) -> tuple[Decision, str]:
        """Return the decision, and why the level table made it instead of the policy; `""`: it did not."""
        level, delay_ms, problem = failed.asked_level, failed.asked_delay_ms, ""
        if self._policy is not None:
            try:
                answer: object = decide(
                    self._policy, before, limit=limit, asked_level=level, asked_delay_ms=delay_ms, unit=unit
                )
                if is_hop(answer):
                    return answer, ""
                problem = f"it returned {safe_text(answer, repr):.200}"
            except BaseException as error:  # noqa: BLE001 - a policy is user code
                problem = safe_text(error, repr)
            level, delay_ms = 0, None
        return decide(_LEVEL_TABLE, before, limit=limit, asked_level=level, asked_delay_ms=delay_ms, unit=unit), problem

    def smaller(self, hop: Hop) -> Hop | None:
        """Return a smaller hop instead of one that its topic refused for its size; None: it cannot be made smaller."""
        match hop.kind:
            case HopKind.RETRY | HopKind.SENT_ON | HopKind.DEAD_LETTER:
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

    def _retry(
        self,
        failed: FailedMessage,
        reconsume_times: int,
        wait: AtLevel | AfterDelay,
        lane: int,
        envelope: Envelope,
        *,
        trusted: bool,
    ) -> Hop:
        try:
            out = retry(
                failed.message,
                self.names,
                self.levels,
                group=self.group,
                trusted=trusted,
                failure=failed.failure,
                reconsume_times=reconsume_times,
                level=wait.level if isinstance(wait, AtLevel) else None,
                delay_ms=wait.delay_ms if isinstance(wait, AfterDelay) else None,
                lane=lane,
                envelope=envelope,
            )
        except RocketshimError as error:
            return self._without_hop(failed, error)
        return Hop(HopKind.RETRY, out, failed, reconsume_times)

    def _dead_letter(self, failed: FailedMessage, reconsume_times: int, *, trusted: bool) -> Hop:
        try:
            out = dead_letter(
                failed.message,
                self.names,
                group=self.group,
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
            self.names,
            group=self.group,
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
        return Hop(HopKind.PARKED, parked(failed.message, self.names, reason), failed, 0, reason, error)


def _with_last_failure(failure: Failure, envelope: Envelope) -> Failure:
    """Return why no member handled a message, with the failure that it came back for."""
    last = f"{envelope.fail_class}: {envelope.fail_text}" if envelope.fail_class else ""
    return replace(failure, text=f"{failure.text}; its last failure: {last}") if last else failure
