"""The members of a group, as its log shows them: version, settings that differ, queues, what fails and takes long."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from rocketshim.admin.group_log_snapshot import GroupLogStanding
from rocketshim.admin.record_view import time_text
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["LongCall", "MemberView", "long_call", "member_views"]


@dataclass(frozen=True, slots=True)
class LongCall:
    """A listener call that has run for more than 5 s, as its member last reported."""

    topic: str
    partition: int
    offset: int  # of the first message of the call
    since_ms: int  # epoch ms of the broker's clock

    @property
    def record(self) -> str:
        """Return the address of that message."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def text(self) -> str:
        """Return it for a listing."""
        return f"{self.record} {time_text(self.since_ms)[:-4]}"


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member that the group's log counts as alive."""

    client_id: str  # `host@pid@n`, unless the program has set one
    incarnation: str
    since_ms: int  # its first heartbeat that the log still has, epoch ms of the broker's clock
    version: str | None  # of the library; None: a version that does not report it
    lease_ms: int
    strategy: str | None  # None: Kafka's group protocol
    gone_in_ms: int  # without another heartbeat
    queues: tuple[str, ...]  # those whose locks it holds
    failing: tuple[str, ...]  # records of these queues that fail, the first one of each
    calls: tuple[LongCall, ...]  # the longest first
    differs: tuple[str, ...] = ()  # in what it differs from most others: `version`, `lease`, `allocation`


def long_call(standing: GroupLogStanding, queue: MessageQueue) -> LongCall | None:
    """Return the call for a queue that takes long; None: the log knows of none."""
    call = standing.trouble(queue).call
    return None if call is None else LongCall(queue.topic, queue.queue_id, *call)


def member_views(standing: GroupLogStanding) -> list[MemberView]:
    """Return the members that are alive in the time of the log, sorted by client id."""
    log, found = standing.log, list[MemberView]()
    for member in log.members:
        since_ms, record = standing.heartbeats[member.owner]
        locks = [lock for lock in log.locks if lock.owner == member.owner]
        found.append(
            MemberView(
                client_id=member.owner.client_id,
                incarnation=member.owner.incarnation,
                since_ms=since_ms,
                version=record.version,
                lease_ms=record.lease_ms,
                strategy=member.strategy,
                gone_in_ms=member.end_ms - log.log_ms,
                queues=tuple(f"{lock.queue.topic}/{lock.queue.queue_id}" for lock in locks),
                failing=tuple(
                    f"{lock.queue.topic}/{lock.queue.queue_id}/{lock.reconsume_counts[0][0]}"
                    for lock in locks
                    if lock.reconsume_counts
                ),
                calls=tuple(
                    sorted(
                        filter(None, (long_call(standing, lock.queue) for lock in locks)),
                        key=lambda call: call.since_ms,
                    )
                ),
            )
        )
    return _compared(found)


def _compared(members: Iterable[MemberView]) -> list[MemberView]:
    found = list(members)
    usual: dict[str, tuple[Callable[[MemberView], object], object]] = {}
    for name, value in _COMPARED.items():
        counts = Counter(map(value, found)).most_common(1)
        usual[name] = value, counts[0][0] if counts else None
    return [
        replace(each, differs=tuple(name for name, (value, most) in usual.items() if value(each) != most))
        for each in found
    ]


_COMPARED: Final[dict[str, Callable[[MemberView], object]]] = {
    "version": lambda member: member.version,
    "lease": lambda member: member.lease_ms,
    "allocation": lambda member: member.strategy,
}
