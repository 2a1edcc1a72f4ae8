"""How a consumer joins its group: errors that keep it out, members that the group waits for, and no partitions.

A member that died, or that does not poll, keeps the others waiting until its session ends, 45 s by default. The
coordinator does not tell which member has not answered, so all others are named.

With Kafka's new group protocol (KIP-848, `group.protocol=consumer`) a member that gets no partition gets no callback
either (librdkafka 2.16). So the coordinator is asked: the member has no partitions if the group is stable, and neither
has nor will get any for this member. The answer is never awaited.
"""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, KafkaError

from rocketshim.kafka.client_errors import REFUSES_TO_JOIN, ErrorLines
from rocketshim.kafka.clients import brokers_assign
from rocketshim.kafka.membership import GroupQuestion
from rocketshim.logs import safe_logger

__all__ = ["Joining"]

_LOG = safe_logger("rocketshim.consumer")
_PATIENCE_MS: Final = 5_000  # how long a member joins before the log says which members its group waits for
_NO_ANSWER_MS: Final = 30_000
_NO_PROTOCOL: Final = (
    "group.protocol=consumer needs brokers of Kafka 4.0, and older ones do not answer it: leave it out, or see "
    "rocketshim doctor --probe"
)
_AWAITED: Final = (
    "one of these members does not answer, and the group waits for it: one that has ended without stop() is removed "
    "when its session ends (session.timeout.ms, 45 s by default)"
)


class Joining:
    """What a consumer knows about its way into the group, and logs about it. Owned by the thread of the consumer.

    `is_refused` (any thread may read it): the group refuses the consumer, which joins when the cause is gone. No member
    waits for it. Without a `question` the coordinator is not asked.
    """

    def __init__(
        self, group: str = "", settings: Mapping[str, Any] | None = None, question: GroupQuestion | None = None
    ) -> None:
        self.is_refused = False
        self.has_joined = False  # partitions were assigned for the first time, perhaps none
        self.is_member = False  # likewise, and the group has not put the consumer out since
        self._group = group
        self._errors = ErrorLines(group, settings or {})
        self._question = question
        self._must_ask = brokers_assign(settings or {})  # whether there are no partitions: no callback tells it
        self._since_ms: int | None = None
        self._is_explained = False  # why the group waits, or it has joined

    def joined(self) -> None:
        """Note that the group has assigned partitions, perhaps none."""
        self.has_joined = self.is_member = True

    def look(self, member_id: str | None, now_ms: int, *, is_joining: bool) -> bool:
        """Log, once, which members the group waits for, if the consumer has been joining it for 5 s.

        `is_joining`: the group has assigned nothing yet, and may. Return whether it has no partitions for this member.
        """
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        self._is_explained = self._is_explained or not is_joining
        if self._must_ask and not self._is_explained and now_ms - self._since_ms >= _NO_ANSWER_MS:
            self._is_explained = True
            facts = {"group": self._group, "waited_s": _NO_ANSWER_MS // 1_000, "hint": _NO_PROTOCOL}
            _LOG.warning("consumer.not-joined", extra=facts)
        is_late = not self._is_explained and now_ms - self._since_ms >= _PATIENCE_MS
        is_unknown = self._must_ask and not self.is_member
        if self._question is None or not (is_late or is_unknown):
            self.close()
            return False
        described = self._question.answer(now_ms)
        if described is None:
            return False
        if described.state is ConsumerGroupState.STABLE:  # the answer is under way to this member
            mine = [member for member in described.members if member.member_id == member_id]
            return is_unknown and bool(mine) and not any(map(_partitions, mine))
        others = sorted(_name(member) for member in described.members if member.member_id != member_id)
        if others and is_late:
            self._is_explained = True
            facts = {"group": self._group, "waited_s": _PATIENCE_MS // 1_000, "members": others, "hint": _AWAITED}
            _LOG.warning("consumer.group-awaited", extra=facts)
        return False

    def log_error(self, error: KafkaError, topic: str | None, now_ms: int) -> None:
        """Log an error of the client, after which it goes on; one that repeats only now and then."""
        self.is_refused = not self.has_joined and (self.is_refused or error.code() in REFUSES_TO_JOIN)
        facts = self._errors.facts(error, topic, now_ms)
        if facts is not None:
            _LOG.warning("consumer.client-error", extra=facts)

    def explained(self, error: KafkaError) -> str:
        """Return what an error means and what to do, as a text in brackets; "" if nothing is known."""
        hint = self._errors.explained(error)
        return f" ({hint})" if hint else ""

    def close(self) -> None:
        """Drop the client of the question, if it has one; the next question makes another."""
        if self._question is not None:
            self._question.drop_client()


def _name(member: Any) -> str:
    return f"{member.client_id}@{str(member.host).removeprefix('/')} ({member.member_id})"


def _partitions(member: Any) -> list[Any]:
    """Return the partitions that a member has or will get."""
    known = (member.assignment, getattr(member, "target_assignment", None))
    return [partition for each in known if each is not None for partition in each.topic_partitions]
