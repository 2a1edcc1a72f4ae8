"""Detects that a member of a group has no partitions, where Kafka's client does not tell.

With Kafka's new group protocol (KIP-848, `group.protocol=consumer`) a member that gets no partition gets no callback
either (librdkafka 2.16). So the coordinator is asked: the member has no partitions if the group is stable, and neither
has nor will get any for this member. The answer is awaited without waiting.
"""

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import ConsumerGroupState

from rocketshim.logs import safe_logger

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["MemberCheck"]

_LOG = safe_logger("rocketshim.consumer")
_TIMEOUT_S: Final = 5.0
_INTERVAL_MS: Final = 500


class MemberCheck:
    """Asks the coordinator of a group about one member.

    Args:
        admin: `confluent_kafka.admin.AdminClient`; kept until `close`.
        group: the consumer group.

    Thread-safety: none; one owner thread. Another thread may call `close` when that one has ended.
    """

    def __init__(self, admin: Any, group: str) -> None:
        self._admin = admin
        self._group = group
        self._asked: Future[Any] | None = None
        self._next_ms = 0

    def has_no_partitions(self, member_id: str | None, now_ms: int) -> bool:
        """Return whether the last answer shows this member without partitions in a stable group; never wait.

        Args:
            member_id: the id of the member.
            now_ms: monotonic time in ms.
        """
        asked = self._asked
        if asked is None:
            if self._admin is not None and now_ms >= self._next_ms:
                self._next_ms = now_ms + _INTERVAL_MS
                futures = self._admin.describe_consumer_groups([self._group], request_timeout=_TIMEOUT_S)
                self._asked = futures[self._group]
            return False
        if not asked.done():
            return False
        self._asked = None
        error = asked.exception()  # not raised: its traceback would keep the client alive
        if error is not None:
            _LOG.debug("consumer.group-unknown", extra={"group": self._group, "error": str(error)})
            return False
        described = asked.result()
        if described.state is not ConsumerGroupState.STABLE:
            return False
        mine = [member for member in described.members if member.member_id == member_id]
        return bool(mine) and not any(_partitions(member) for member in mine)

    def close(self) -> None:
        """Release the admin client."""
        self._admin = self._asked = None


def _partitions(member: Any) -> list[Any]:
    """Return the partitions that a member has or will get."""
    known = (member.assignment, getattr(member, "target_assignment", None))
    return [partition for each in known if each is not None for partition in each.topic_partitions]
