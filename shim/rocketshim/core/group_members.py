"""The members of a group that are alive in log time (see `group_log`).

A member is alive from a `member` record to one lease after the last one, or until `leave`. Membership decides how
queues are shared out, never who may consume.
"""

from dataclasses import dataclass
from typing import Final

from rocketshim.core.lease_rules import Owner

__all__ = ["GroupMembers", "Member"]

_NEVER_MS: Final = 2**62


@dataclass(frozen=True, slots=True)
class Member:
    """A member that is alive in log time.

    Attributes:
        owner: client id and incarnation.
        strategy: name of its allocation strategy; None: Kafka's group protocol assigns its queues.
        since_offset: offset of its first heartbeat since it was last absent, as far back as this fold reaches.
        lease_left_ms: log time until it counts as gone, above 0.
    """

    owner: Owner
    strategy: str | None
    since_offset: int
    lease_left_ms: int


@dataclass(frozen=True, slots=True)
class _Membership:
    strategy: str | None
    since_offset: int
    end_ms: int


class GroupMembers:
    """The members, with the log time at which each counts as gone.

    Thread-safety: none; it belongs to one `GroupLog`.
    """

    __slots__ = ("_members", "_until_ms")

    def __init__(self) -> None:
        self._members: dict[Owner, _Membership] = {}
        self._until_ms = _NEVER_MS  # log time before which no member expires

    def __len__(self) -> int:
        return len(self._members)

    def heartbeat(self, owner: Owner, strategy: str | None, offset: int, end_ms: int) -> bool:
        """Add a member, or keep it alive until `end_ms`; return whether it is new or has changed its strategy."""
        known = self._members.get(owner)
        self._members[owner] = _Membership(strategy, known.since_offset if known else offset, end_ms)
        self._until_ms = min(self._until_ms, end_ms)
        return known is None or known.strategy != strategy

    def leave(self, owner: Owner) -> bool:
        """Remove a member; return whether it was one."""
        return self._members.pop(owner, None) is not None

    def forget_expired(self, log_ms: int) -> bool:
        """Remove expired members; return whether any were removed. Scan only when one of them may have expired."""
        if log_ms < self._until_ms:
            return False
        before = len(self._members)
        self._members = {owner: each for owner, each in self._members.items() if each.end_ms > log_ms}
        self._until_ms = min((each.end_ms for each in self._members.values()), default=_NEVER_MS)
        return len(self._members) < before

    def alive(self, log_ms: int) -> tuple[Member, ...]:
        """Return the members, sorted by client id and incarnation."""
        return tuple(
            Member(owner, each.strategy, each.since_offset, each.end_ms - log_ms)
            for owner, each in sorted(self._members.items())
        )

    def joined_at(self, owner: Owner) -> int | None:
        """Return the offset of a member's first heartbeat since it was last absent; None: it is not alive."""
        known = self._members.get(owner)
        return None if known is None else known.since_offset
