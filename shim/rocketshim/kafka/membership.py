"""Asks the coordinator of a group about its members, through clients that no outage makes dangerous.

librdkafka ends the process if a request to a group's coordinator reaches its time limit and the coordinator comes back
later (librdkafka 4605; 2.16, our measurement: each time). So these requests have the longest limit that it accepts, and
a client of their own, which is dropped to give up.
"""

from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from rocketshim.logs import safe_logger

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["JOIN_PATIENCE_MS", "JoinWatch", "MemberCheck", "described_groups"]

_LOG = safe_logger("rocketshim.consumer")
_LIMIT_S: Final = 3_600.0
_GIVE_UP_MS: Final = 5_000
_INTERVAL_MS: Final = 500

JOIN_PATIENCE_MS: Final = 5_000
"""How long a member joins before the log says which members its group waits for."""


def described_groups(
    make_admin: Callable[[], Any], groups: list[str], timeout_s: float, **options: Any
) -> dict[str, Any]:
    """Return the description of each group, or the `KafkaException` of a group that is not described in time.

    * `make_admin`: makes a `confluent_kafka.admin.AdminClient`, which is dropped before this returns.
    * `options`: further arguments of `describe_consumer_groups`.
    """
    admin = make_admin()
    futures = admin.describe_consumer_groups(groups, request_timeout=_LIMIT_S, **options) if groups else {}
    wait(futures.values(), timeout_s)
    late = KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - no public spelling
    return {
        group: (future.exception() or future.result()) if future.done() else late for group, future in futures.items()
    }


class _Question:
    """Asks a coordinator about its group, again and again, and never waits for the answer.

    Args:
        make_admin: makes a `confluent_kafka.admin.AdminClient` from librdkafka settings.
        settings: those of its client.
    """

    def __init__(self, make_admin: Callable[[dict[str, Any]], Any], settings: dict[str, Any], group: str) -> None:
        self._make_admin: Callable[[], Any] | None = partial(make_admin, settings)
        self._group = group
        self._admin: Any = None
        self._asked: Future[Any] | None = None
        self._asked_ms = -_INTERVAL_MS

    def answer(self, now_ms: int) -> Any | None:
        """Return a description of the group that has arrived, once; None: there is none, and it is asked for."""
        asked, waited_ms = self._asked, now_ms - self._asked_ms
        if asked is None:
            if self._make_admin is not None and waited_ms >= _INTERVAL_MS:
                self._admin = self._make_admin() if self._admin is None else self._admin
                futures = self._admin.describe_consumer_groups([self._group], request_timeout=_LIMIT_S)
                self._asked, self._asked_ms = futures[self._group], now_ms
            return None
        self._admin.poll(0)  # for its log lines
        if not asked.done():
            if waited_ms >= _GIVE_UP_MS:
                self.drop_client()
            return None
        self._asked = None
        error = asked.exception()  # not raised: its traceback would keep the client alive
        if error is not None:
            _LOG.debug("consumer.group-unknown", extra={"group": self._group, "error": str(error)})
            return None
        return asked.result()

    def drop_client(self) -> None:
        """Drop the client with an open question; the next question makes a new one."""
        self._admin = self._asked = None

    def close(self) -> None:
        """Drop the client, and ask nothing any more. Idempotent."""
        self._make_admin = None
        self.drop_client()


class MemberCheck:
    """Detects that a member of a group has no partitions, where Kafka's client does not tell.

    With Kafka's new group protocol (KIP-848, `group.protocol=consumer`) a member that gets no partition gets no
    callback either (librdkafka 2.16). So the coordinator is asked: the member has no partitions if the group is stable,
    and neither has nor will get any for this member. The answer is awaited without waiting.

    Args:
        make_admin, settings, group: as `JoinWatch`.

    Thread-safety: none; one owner thread. Another thread may call `close` when that one has ended.
    """

    def __init__(self, make_admin: Callable[[dict[str, Any]], Any], settings: dict[str, Any], group: str) -> None:
        self._question = _Question(make_admin, settings, group)

    def has_no_partitions(self, member_id: str | None, now_ms: int, *, is_known: bool = False) -> bool:
        """Return whether the last answer shows this member without partitions in a stable group; never wait.

        * `is_known`: it is known whether the member has partitions: ask nothing, keep no client, return False.
        """
        if is_known:
            self._question.drop_client()
            return False
        described = self._question.answer(now_ms)
        if described is None or described.state is not ConsumerGroupState.STABLE:
            return False
        mine = [member for member in described.members if member.member_id == member_id]
        return bool(mine) and not any(_partitions(member) for member in mine)

    def close(self) -> None:
        """Drop the client, and ask nothing any more. Idempotent."""
        self._question.close()


class JoinWatch:
    """Finds out, once, which members a group waits for while a member cannot join it.

    A member that died, or that does not poll, keeps the others waiting until its session ends, 45 s by default. The
    coordinator does not tell which member has not answered, so all others are named.

    Args:
        make_admin: makes a `confluent_kafka.admin.AdminClient` from librdkafka settings.
        settings: those of its client.

    Thread-safety: none; one owner thread. Another thread may call `close` when that one has ended.
    """

    def __init__(self, make_admin: Callable[[dict[str, Any]], Any], settings: dict[str, Any], group: str) -> None:
        self._question = _Question(make_admin, settings, group)
        self._since_ms: int | None = None
        self._is_over = False

    def others(self, member_id: str | None, now_ms: int, *, is_joining: bool) -> list[str]:
        """Return the names of the other members after 5 s of joining, once; never wait.

        * `is_joining`: whether the group has not assigned anything to it yet, and has not refused it.
        """
        if self._is_over:
            return []
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if not is_joining:
            self._end()
            return []
        if now_ms - self._since_ms < JOIN_PATIENCE_MS:
            return []
        described = self._question.answer(now_ms)
        if described is None or described.state is ConsumerGroupState.STABLE:
            return []  # where it is stable, the answer is under way to this member
        names = [_name(member) for member in described.members if member.member_id != member_id]
        if names:
            self._end()
        return sorted(names)

    def close(self) -> None:
        """Drop the client, and ask nothing any more. Idempotent."""
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._question.close()


def _name(member: Any) -> str:
    return f"{member.client_id}@{str(member.host).removeprefix('/')} ({member.member_id})"


def _partitions(member: Any) -> list[Any]:
    """Return the partitions that a member has or will get."""
    known = (member.assignment, getattr(member, "target_assignment", None))
    return [partition for each in known if each is not None for partition in each.topic_partitions]
