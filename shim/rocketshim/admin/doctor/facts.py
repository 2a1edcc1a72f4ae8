"""The facts that the doctor knows about a cluster: `gather` reads them, the checks evaluate them. Pure data.

None always means "could not be read"; `unread` has the reason. A check without its facts is skipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rocketshim.admin.doctor.probe import Capability
from rocketshim.observe.finding import Installation
from rocketshim.observe.snapshot import DelayQueue, GroupStanding, Snapshot

__all__ = ["Facts", "PartitionFacts", "TopicFacts"]

_WEEK_MS: Final = 604_800_000


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition."""

    leader: int | None  # node id; None: it has no leader
    replicas: int  # the number of its replicas
    in_sync: int  # how many of them are in sync


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic that exists.

    * `operations`: the operations that the principal is allowed (Kafka's names: `READ`, `WRITE` …).
    """

    partitions: tuple[PartitionFacts, ...]  # by number
    config: Mapping[str, str] | None = None  # effective settings
    operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Facts(Installation):
    """Everything that the checks evaluate.

    * `transactions`: producer group to the number of its half messages that wait for their outcome, and of those whose
      producers were asked at least three times.
    * `parked_not_allowed`: how many of them have a target that is not on the allow-list of the workers that had them.
    * `marks_lost`: topic of dead or parked records to the number of them, 1,000 at most, that may have had a mark among
      the first records of the redrive log, which are gone.
    * `open_transactions_ms`: `topic/partition` to the age of the oldest record hidden by an open transaction, ms.
    * `keys`: topic to the number of distinct keys examined, and how many of them are in another partition than the Java
      client's partitioner chooses.
    * `clocks_ms`: node id to how far its clock is ahead of this machine's, in ms (negative: behind).
    * `client`: librdkafka settings as given.
    * `consume_timeout_ms`: longest time that a handler in the user's own poll loop may take; None: not given.
    """

    now_ms: int  # the brokers' clock if the leaders' clocks were measured, otherwise this machine's; epoch ms
    brokers: tuple[int, ...] = ()  # node ids of the brokers that are up
    broker_config: Mapping[str, str] | None = None  # settings of one broker
    groups: tuple[str, ...] = ()  # the examined consumer groups
    user_topics: tuple[str, ...] = ()  # the examined topics of the user, sources and targets alike, physical names
    roles: tuple[str, ...] = ()  # roles whose ACLs the principal should have
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)  # physical name to facts, for topics that exist
    look: Snapshot | None = None  # queues, groups and workers
    transactions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    parked: int | None = None  # number of records parked within a day and not sent again since, 1,000 at most
    parked_not_allowed: int = 0
    marks_lost: Mapping[str, int] = field(default_factory=dict)
    open_transactions_ms: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    clocks_ms: Mapping[int, int] = field(default_factory=dict)
    capabilities: tuple[Capability, ...] = ()  # what was measured with `--probe`
    client: Mapping[str, str] = field(default_factory=dict, repr=False)  # passwords are among them
    consume_timeout_ms: int | None = None
    unread: tuple[str, ...] = ()  # what could not be read, and why

    @property
    def standings(self) -> dict[str, GroupStanding]:
        """Return the groups, the worker's included."""
        return {} if self.look is None else self.look.standings

    @property
    def queues(self) -> tuple[DelayQueue, ...]:
        """Return the delay queues with waiting records, each with the next few that leave."""
        return () if self.look is None else tuple(each for each in self.look.queues if each.head)

    def keep_longer(self, topic: str) -> str:
        """Return a command that doubles a topic's retention, at least to a week; `MS` if it is not known or endless."""
        found = self.topics.get(topic)
        text = "" if found is None or found.config is None else found.config.get("retention.ms", "")
        return self.alter(topic, retention_ms=str(max(2 * int(text), _WEEK_MS)) if text.isdecimal() else "MS")
