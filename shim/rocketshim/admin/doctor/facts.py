"""What the doctor knows of a cluster; filled by `gather`, judged by the checks. Pure data.

None means everywhere "could not be looked at", and `unread` says why; the checks skip what they have no facts for.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketshim.admin.group_lag import GroupStanding
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

__all__ = ["Facts", "KeySample", "PartitionFacts", "QueueFacts", "Sample", "TopicFacts"]


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition.

    Attributes:
        leader: node id; None: it has no leader.
        replicas: how many copies it should have.
        in_sync: how many of them are in sync.
    """

    leader: int | None
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic that exists.

    Attributes:
        partitions: by number.
        config: settings in force.
        operations: Kafka's names of what the principal may do with it (`READ`, `WRITE` …).
    """

    partitions: tuple[PartitionFacts, ...]
    config: Mapping[str, str] | None = None
    operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A record that waits in a delay queue.

    Attributes:
        offset: where it lies.
        appended_ms: its timestamp, epoch ms.
        level: `DELAY`, the level that was asked for; None: it was no level that was asked for.
        delay_ms: `DELAY_MS`; None: it has hopped already, or asks for a time.
    """

    offset: int
    appended_ms: int
    level: int | None
    delay_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One partition of the schedule topic in which something waits.

    Attributes:
        partition: its number.
        behind: offsets between the worker's position and the end.
        lost: offsets that retention took before the worker had read them.
        samples: the next few that leave.
    """

    partition: int
    behind: int
    lost: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class KeySample:
    """Where the keyed records of a topic lie.

    Attributes:
        keys: distinct keys looked at.
        elsewhere: those of them that lie in another partition than the Java client's partitioner chooses.
    """

    keys: int
    elsewhere: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is judged.

    Attributes:
        bootstrap: addresses of the brokers, as given.
        layout: how the topics have to be, with names and level table.
        now_ms: this machine's clock, epoch ms.
        brokers: node ids of the brokers that are up.
        broker_config: settings of one broker.
        groups: consumer groups looked at.
        user_topics: the users' topics looked at, sources and targets alike, physical names.
        roles: roles whose rights are wanted.
        topics: physical name to facts, of those that exist.
        standings: group to where it stands; the worker's group is among them.
        unread_retries_ms: group without a member to the time of its oldest retry that waits, epoch ms.
        group_operations: group to what the principal may do with it.
        queues: what waits.
        parked: records parked within a day, 1,000 at most.
        parked_not_allowed: those of them whose target was not on the allow-list of the workers that had them.
        open_transactions_ms: `topic/partition` to the age of the oldest record that an open transaction holds back, ms.
        keys: topic to where its keys lie.
        clocks_ms: node id to how far its clock is ahead of this machine's, in ms (negative: behind).
        client: librdkafka settings as given.
        consume_timeout_ms: how long a handler in the user's own poll loop may take; None: not said.
        unread: what could not be looked at, and why.
    """

    bootstrap: str
    layout: Layout
    now_ms: int
    brokers: tuple[int, ...] = ()
    broker_config: Mapping[str, str] | None = None
    groups: tuple[str, ...] = ()
    user_topics: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    standings: Mapping[str, GroupStanding] = field(default_factory=dict)
    unread_retries_ms: Mapping[str, int] = field(default_factory=dict)
    group_operations: Mapping[str, frozenset[str]] = field(default_factory=dict)
    queues: tuple[QueueFacts, ...] = ()
    parked: int | None = None
    parked_not_allowed: int = 0
    open_transactions_ms: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, KeySample] = field(default_factory=dict)
    clocks_ms: Mapping[int, int] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)  # passwords are among them
    consume_timeout_ms: int | None = None
    unread: tuple[str, ...] = ()

    @property
    def names(self) -> TopicNames:
        """Of the namespace."""
        return self.layout.names

    def command(self, name: str, *words: str) -> str:
        """A command of ours that can be typed as it stands."""
        where = ["--bootstrap", self.bootstrap]
        if self.names.namespace:
            where += ["--namespace", self.names.namespace]
        return shlex.join(["rocketshim", name, *words, *where])

    def init(self, *words: str) -> str:
        """An `init` command for these topics."""
        layout, told = self.layout, []
        if layout.levels != DelayLevels.default():
            told += ["--delay-levels", str(layout.levels)]
        if layout.max_message_bytes != Layout(layout.names, layout.levels).max_message_bytes:
            told += ["--max-message-bytes", str(layout.max_message_bytes)]
        return self.command("init", *(f"--group={group}" for group in self.groups), *told, *words)

    def alter(self, topic: str, **settings: str) -> str:
        """A command of Kafka's own that sets settings of a topic (dots are written as underscores)."""
        pairs = ",".join(f"{name.replace('_', '.')}={value}" for name, value in settings.items())
        return (
            f"kafka-configs.sh --bootstrap-server {shlex.quote(self.bootstrap)} --alter --entity-type topics "
            f"--entity-name {shlex.quote(topic)} --add-config {pairs}"
        )
