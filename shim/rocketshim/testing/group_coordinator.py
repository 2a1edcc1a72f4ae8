"""One consumer group as its coordinator sees it: members, generations, shares, committed offsets.

Theory of operation
-------------------
Classic protocol. A rebalance begins (member joins, leaves, changes its topics; a topic comes or goes), every member has
to join it, and when the last one has, the generation goes up and everyone gets a share. What a member must do in
between is a queue of `Step`s that its consumer takes one by one inside `poll`:

====================  ==================================================  ==========================================
step                  eager (range, roundrobin)                           cooperative-sticky
====================  ==================================================  ==========================================
REVOKE                everything it has, *before* it joins                what the new generation took away from it;
                                                                          then it joins again
ASSIGN                its whole share (perhaps empty)                     what is new in its share (perhaps nothing)
LOST                  it was put out of the group: everything it had, then it joins as a new member
LEAVE                 it unsubscribes: everything it has, then it leaves
====================  ==================================================  ==========================================

A cooperative member joins in the background, without `poll`, unless a step is still waiting for it; an eager member
that owns something joins only after its REVOKE is served. A partition that moves between cooperative members is given
to the new owner only after the old one has given it up.

Newer protocol (KIP-848, `group.protocol=consumer`). The coordinator computes the shares by itself when the group
changes, and brings each member to its share without regard to the others: REVOKE what it has too much, then ASSIGN what
nobody else owns (perhaps nothing after a REVOKE; a member that gets nothing otherwise gets no step). So a member that
stands still keeps its partitions, and holds up nobody else. Each member has its own epoch, here called `generation`: it
is that of the group, but the former one until what it has too much is given up.

Commits are checked as Kafka checks them: by member id and generation, *not* by ownership, and never against the offset
before (it may go backwards). An outsider (no member id) may commit only while the group has no members. In a
transaction a negative generation is not checked at all (Kafka's own gap, which callers must avoid).

Pure: no clock, no lock, no client. Not handled: static membership, a group that changes its protocol, the delays of a
real coordinator.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from confluent_kafka import KafkaError

from rocketshim.testing import assignors
from rocketshim.testing.assignors import Partition

__all__ = ["BY_COORDINATOR", "CommittedOffset", "GroupCoordinator", "GroupMember", "Step"]

BY_COORDINATOR = "uniform"  # the strategy of members with KIP-848; others name the one of their clients

TopicMatcher = Callable[[Sequence[str]], list[str]]
PartitionCounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Step:
    """What a consumer has to do next for its group, and the partitions it is about, sorted."""

    kind: Literal["assign", "revoke", "lost", "leave"]
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for a partition."""

    offset: int
    metadata: str | None = None


@dataclass(slots=True, eq=False)
class GroupMember:
    """A consumer in its group."""

    patterns: tuple[str, ...]
    strategy: str
    member_id: str = ""  # given by the coordinator; `""` once it is out
    generation: int = -1  # the last one it took part in; −1 before the first
    owned: set[Partition] = field(default_factory=set)  # assigned by the protocol, and not yet revoked
    promised: set[Partition] = field(default_factory=set)  # KIP-848: its own after its ASSIGN is served
    steps: deque[Step] = field(default_factory=deque)  # what its consumer has to do next
    is_serving: bool = False  # its consumer serves a step, which is no longer among them
    is_alive: bool = True  # False: its process stands still (no background work, no heartbeats)
    has_joined: bool = False

    @property
    def is_cooperative(self) -> bool:
        """Whether it gives up only what moves."""
        return self.strategy in {"cooperative-sticky", BY_COORDINATOR}

    @property
    def protocol(self) -> tuple[bool, bool]:
        """What the members of a group must have in common."""
        return self.is_cooperative, self.strategy == BY_COORDINATOR

    @property
    def is_free(self) -> bool:
        """Whether it takes part in the work of the group: its process runs, and has no step to serve."""
        return self.is_alive and not self.steps and not self.is_serving

    def take_step(self) -> Step | None:
        """Take the next step to serve; `GroupCoordinator.step_done` ends it."""
        step = self.steps.popleft() if self.steps else None
        self.is_serving = step is not None
        return step


class GroupCoordinator:
    """Membership and offsets of one group; partition counts are read again at each rebalance.

    Thread-safety: none; the broker's lock guards it.
    """

    def __init__(
        self, group_id: str, *, match_topics: TopicMatcher, partition_counts: Callable[[], PartitionCounts]
    ) -> None:
        self.group_id = group_id
        self.generation = 0
        self.members: dict[str, GroupMember] = {}
        self.offsets: dict[Partition, CommittedOffset] = {}
        self.is_rebalancing = False
        self._match_topics = match_topics
        self._partition_counts = partition_counts
        self._shared_out: dict[str, list[Partition]] = {}
        self._numbers = itertools.count(1)

    def join(self, member: GroupMember, *, client_id: str) -> int | None:
        """Let a member in and rebalance.

        Return the code `INCONSISTENT_GROUP_PROTOCOL` if the others share out by another protocol: nothing has changed.
        """
        if any(other.protocol != member.protocol for other in self.members.values()):
            return int(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
        member.member_id = f"{client_id}-{self.group_id}-{next(self._numbers):04d}"
        self.members[member.member_id] = member
        self.rebalance()
        return None

    def leave(self, member: GroupMember) -> None:
        """Let a member out and rebalance the rest; no-op for an outsider."""
        if self.members.pop(member.member_id, None) is None:
            return
        member.member_id = ""
        member.owned.clear()
        member.steps.clear()
        self.rebalance()

    def evict(self, member: GroupMember) -> None:
        """Put a member out (session or poll interval over); it learns of it by a LOST step."""
        if self.members.pop(member.member_id, None) is None:
            return
        lost = tuple(sorted(member.owned))
        member.owned.clear()
        member.steps.clear()
        member.steps.append(Step("lost", lost))
        self.rebalance()

    def rebalance(self) -> None:
        """Begin a rebalance (again): every member has to join; with KIP-848 each gets closer to its new share."""
        if self._is_by_coordinator():
            self.generation += 1
            self._shared_out = self._shares()
            self._bring_closer()
            return
        self.is_rebalancing = bool(self.members)
        for member in self.members.values():
            member.has_joined = False
            if not member.is_cooperative:
                member.steps = deque(step for step in member.steps if step.kind != "assign")
                if member.owned and not member.steps:
                    member.steps.append(Step("revoke", tuple(sorted(member.owned))))
        self._join_all()

    def metadata_changed(self) -> None:
        """Rebalance if the topics of some member are no longer those that were shared out."""
        if self.members and self._wanted_partitions() != self._partitions_shared_out():
            self.rebalance()

    def forget_topic(self, topic: str) -> None:
        """Drop the committed offsets of a topic that is gone."""
        self.offsets = {part: committed for part, committed in self.offsets.items() if part[0] != topic}

    def step_done(self, member: GroupMember, step: Step) -> None:
        """A consumer has served the step that it took."""
        member.is_serving = False
        if member.member_id not in self.members:
            return
        if step.kind == "revoke":
            member.owned.difference_update(step.partitions)
            if self._is_by_coordinator():
                self._bring_closer(has_revoked=member)
                return
            if member.is_cooperative:
                self.rebalance()
                return
        elif step.kind == "assign" and not member.is_cooperative:
            member.owned = set(step.partitions)
        elif step.kind == "assign":
            member.owned.update(step.partitions)
            member.promised.clear()
        self._join_all()

    def wake(self, member: GroupMember) -> None:
        """A member whose process stood still runs again."""
        member.is_alive = True
        self._join_all()

    def check_commit(self, member_id: str, generation: int, *, transactional: bool = False) -> int | None:
        """Kafka error code that this commit deserves; None: it is accepted."""
        if transactional and generation < 0 and not member_id:
            return None
        if not member_id and generation < 0:
            return int(KafkaError.UNKNOWN_MEMBER_ID) if self.members else None
        if member_id not in self.members:
            return int(KafkaError.UNKNOWN_MEMBER_ID)
        if generation == self.members[member_id].generation:
            return None
        is_stale = self._is_by_coordinator() and not transactional
        return int(KafkaError.STALE_MEMBER_EPOCH if is_stale else KafkaError.ILLEGAL_GENERATION)

    def _is_by_coordinator(self) -> bool:
        return any(member.strategy == BY_COORDINATOR for member in self.members.values())

    def _bring_closer(self, *, has_revoked: GroupMember | None = None) -> None:
        """Bring the members with KIP-848 closer to their shares: one step for each that has none to serve."""
        for member_id, member in sorted(self.members.items()):
            if not member.is_free:
                continue
            share = set(self._shared_out[member_id])
            if revoked := member.owned - share:
                member.steps.append(Step("revoke", tuple(sorted(revoked))))
                continue
            member.generation = self.generation
            added = share - member.owned - self._owned_by_others(member)
            if added or member is has_revoked:
                member.promised = added
                member.steps.append(Step("assign", tuple(sorted(added))))

    def _owned_by_others(self, member: GroupMember) -> set[Partition]:
        return {part for other in self.members.values() if other is not member for part in other.owned | other.promised}

    def _join_all(self) -> None:
        if self._is_by_coordinator():
            self._bring_closer()
        if not self.is_rebalancing:
            return
        for member in self.members.values():
            if member.is_free:
                member.has_joined = True
        if all(member.has_joined for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Everyone has joined: next generation, new shares."""
        self.is_rebalancing = False
        self.generation += 1
        shares = self._shares()
        self._shared_out = shares
        for member_id, member in sorted(self.members.items()):
            member.generation = self.generation
            share = set(shares[member_id])
            if not member.is_cooperative:
                member.steps.append(Step("assign", tuple(sorted(share))))
                continue
            revoked = member.owned - share
            added = share - member.owned - self._owned_by_others(member)
            if revoked:
                member.steps.append(Step("revoke", tuple(sorted(revoked))))
            if added or not revoked:
                member.steps.append(Step("assign", tuple(sorted(added))))

    def _shares(self) -> dict[str, list[Partition]]:
        counts = self._partition_counts()
        wanted = {member_id: self._match_topics(member.patterns) for member_id, member in self.members.items()}
        owned = {member_id: sorted(member.owned) for member_id, member in self.members.items()}
        first = next(iter(self.members.values()))
        if first.is_cooperative:
            return assignors.cooperative_sticky(wanted, counts, owned)
        assign = assignors.roundrobin if first.strategy == "roundrobin" else assignors.range_
        return assign(wanted, counts)

    def _wanted_partitions(self) -> set[Partition]:
        counts = self._partition_counts()
        return {
            (topic, partition)
            for member in self.members.values()
            for topic in self._match_topics(member.patterns)
            for partition in range(counts.get(topic, 0))
        }

    def _partitions_shared_out(self) -> set[Partition]:
        return {partition for share in self._shared_out.values() for partition in share}
