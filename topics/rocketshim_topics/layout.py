"""The topics that the shim needs: partitions and settings of each, and the plan that creates or changes them.

`Layout` defines how each topic should be (`TopicSpec`). `compare` compares that with the existing topics (`TopicState`)
and returns a `Plan`. All of this is pure; `rocketshim_topics.provision` reads the cluster and changes it.

=============  ===========================  ===========================================================================
topic          partitions                   settings that matter
=============  ===========================  ===========================================================================
schedule       32 per lane, always          append time; delete; retention of twice the longest level and the outage
                                            budget
retry          1 or more (keyed records     delete; 7 days
               keep their key's partition)
dead letters   1 or more                    delete; 30 days
group log      1                            append time; delete; 24 hours; segments of 10 minutes
parked         1                            delete; 30 days
redrive log    1                            append time; delete; kept forever (one line a dead letter)
timers         8, always                    append time; delete; retention as of the schedule topic
timer state    8, as timers                 append time; compact; tombstones stay for the outage budget
=============  ===========================  ===========================================================================

Each topic with messages accepts records 64 KiB larger than the largest source record, since a hop adds headers and a
topic's limit is for a whole batch. None of them has a limit of its total size: a waiting message must not be deleted to
make room.

Of an existing topic, a longer retention, a larger record limit, shorter segments and more partitions are accepted.
Every other setting has to be as specified. A difference is *fatal* if the shim would lose messages or not work with it:
append time, compaction, partitions of the schedule topic that are not whole lanes, fewer partitions than names of
timers use. A person decides about the others.
"""

import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from rocketshim_topics.errors import ConfigError
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.limits import INT_MAX, LONG_MAX
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import TIMER_PARTITIONS

__all__ = [
    "HEADROOM_BYTES", "SPEED_ONLY", "Difference", "Layout", "Plan", "TopicSpec", "TopicState", "compare",
    "is_compacted",
]  # fmt: skip

HEADROOM_BYTES: Final = 65_536
"""How much larger than the largest source record a record on the shim's topics may be, in bytes."""

_DAY_MS: Final = 86_400_000
_KAFKA_DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
_APPEND_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
_AT_LEAST: Final = frozenset({"retention.ms", "retention.bytes", "max.message.bytes", "delete.retention.ms"})
SPEED_ONLY: Final = frozenset({"segment.ms"})
"""Settings that only cost speed if they are larger. Some managed clusters refuse them."""

_FATAL: Final = frozenset({"message.timestamp.type", "cleanup.policy"})
_UNLIMITED: Final = -1
_CHECK_PARTITIONS: Final = 4  # so that a listener that hangs leaves others to the other producers


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The required partitions and settings of a topic.

    Attributes:
        name: physical name.
        partitions: the least number; exactly this number when it is created.
        config: settings, named and written as in Kafka.
        purpose: what it is for, for a person to read.
        partition_step: the number of partitions is a multiple of this; 32 for the schedule topic.
        replication_factor: None: the cluster's default.
        init_command: the command that creates it.
        grows: a plan may add partitions if there are too few, when it is asked to.
        needs_all: with fewer partitions than `partitions` the shim does not work.
    """

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    purpose: str = ""
    partition_step: int = 1
    replication_factor: int | None = None
    init_command: str = "rocketshim init"
    grows: bool = True
    needs_all: bool = False


@dataclass(frozen=True, slots=True)
class TopicState:
    """The actual partitions and settings of a topic.

    Attributes:
        partitions: the number of partitions.
        config: its settings in force; None without the right to read them.
    """

    partitions: int
    config: Mapping[str, str] | None


def is_compacted(config: Mapping[str, str] | None) -> bool:
    """Return whether Kafka compacts a topic with these settings, so that it takes only records with a key.

    False also if that is not known.
    """
    return "compact" in (config or {}).get("cleanup.policy", "")


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting of an existing topic that is not as specified.

    Attributes:
        topic: physical name.
        setting: Kafka's name of the setting, or `partitions`.
        found: its value.
        wanted: the value that it should have.
        fatal: the shim would lose messages or not work with it.
        will_change: the plan changes it, because it was asked to.
    """

    topic: str
    setting: str
    found: str
    wanted: str
    fatal: bool
    will_change: bool

    @property
    def is_note(self) -> bool:
        """Whether it costs speed only, so that a cluster which refuses this setting is as good as any."""
        return self.setting in SPEED_ONLY

    def __str__(self) -> str:
        """Return the difference as a text for a person."""
        return f"{self.topic}: {self.setting} is {self.found}, should be {self.wanted}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which topics exist, which are missing, and what differs. A plan itself changes nothing.

    Attributes:
        specs: every topic of the plan, in the order given.
        missing: the topics that do not exist; applying the plan creates them.
        differences: of the topics that exist.
        unread: physical names of topics whose settings could not be read and so were not compared.
    """

    specs: tuple[TopicSpec, ...]
    missing: tuple[TopicSpec, ...]
    differences: tuple[Difference, ...]
    unread: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the plan has nothing to apply."""
        return not self.missing and not any(difference.will_change for difference in self.differences)

    @property
    def fatal(self) -> tuple[Difference, ...]:
        """The fatal differences that the plan does not change."""
        return tuple(each for each in self.differences if each.fatal and not each.will_change)

    def lines(self) -> tuple[str, ...]:
        """Return the plan for a person: one line for each topic and each difference."""
        missing = {spec.name for spec in self.missing}
        lines = []
        for spec in self.specs:
            verb = "create" if spec.name in missing else "exists"
            counts = (spec.partitions, "partition"), (spec.replication_factor, "replica")
            details = [f"{count} {what}{'s' * (count != 1)}" for count, what in counts if count is not None]
            details += filter(None, [" ".join(f"{name}={value}" for name, value in sorted(spec.config.items()))])
            detail = f": {', '.join(details)}" if spec.name in missing else ""
            lines.append(f"{verb}  {spec.name} ({spec.purpose}){detail}")
            lines.extend(
                f"{'change' if each.will_change else 'note' if each.is_note else 'differs'}  {each}"
                for each in self.differences
                if each.topic == spec.name
            )
            if spec.name in self.unread:
                lines.append(f"unread  {spec.name}: no right to read its settings; they were not compared")
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class Layout:
    """The topics of one namespace.

    Args:
        names: of the namespace.
        levels: the level table; its longest delay sets the retention of the schedule topic.
        lanes: lanes of the schedule topic, 1 or more (default 1), 32 partitions each.
        max_message_bytes: `max.message.bytes` of the largest source topic; default Kafka's own default (1,048,588).
        outage_budget_ms: how long no worker may run without loss, in ms; default 7 days.
        retry_partitions: partitions of each retry topic, default 1.
        dead_letter_partitions: partitions of each dead-letter topic, default 1.
        replication_factor: None (default): the cluster's default.

    Raises:
        ConfigError: a number out of range.

    Thread-safety: immutable.
    """

    names: TopicNames
    levels: DelayLevels
    lanes: int = 1
    max_message_bytes: int = _KAFKA_DEFAULT_MAX_MESSAGE_BYTES
    outage_budget_ms: int = 7 * _DAY_MS
    retry_partitions: int = 1
    dead_letter_partitions: int = 1
    replication_factor: int | None = None

    def __post_init__(self) -> None:
        for name, value, highest in (
            ("lanes", self.lanes, 1_024),
            ("max_message_bytes", self.max_message_bytes, INT_MAX - HEADROOM_BYTES),
            ("retry_partitions", self.retry_partitions, 10_000),
            ("dead_letter_partitions", self.dead_letter_partitions, 10_000),
            ("replication_factor", 1 if self.replication_factor is None else self.replication_factor, 1_000),
        ):
            if not 1 <= value <= highest:
                raise ConfigError(f"{name} is {value}; it is 1 to {highest}")
        if self.outage_budget_ms < 0:
            raise ConfigError(f"outage_budget_ms is {self.outage_budget_ms}; it is 0 or more")

    def schedule(self) -> TopicSpec:
        """The delay queues."""
        return self._spec(
            self.names.schedule,
            self.lanes * DelayLevels.STRIDE,
            _APPEND_TIME | self._kept(self._schedule_retention_ms),
            purpose="delay queues",
            partition_step=DelayLevels.STRIDE,
            group=None,
        )

    def parked(self) -> TopicSpec:
        """Malformed or forbidden schedule records."""
        return self._spec(self.names.parked, 1, self._kept(30 * _DAY_MS), purpose="parked records", group=None)

    def redrive_log(self) -> TopicSpec:
        """The log of redriven and discarded dead letters. It is kept forever, so that no dead letter is sent twice."""
        config = _APPEND_TIME | {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        return self._spec(self.names.redrive_log, 1, config, purpose="what became of dead letters", group=None)

    def timers(self) -> tuple[TopicSpec, ...]:
        """Return the topics of named timers: the log of commands, and the names that are pending.

        More partitions do not matter: names use the first `TIMER_PARTITIONS`.
        """
        log = self._spec(
            self.names.timers,
            TIMER_PARTITIONS,
            _APPEND_TIME | self._kept(self._schedule_retention_ms),
            purpose="commands for named timers",
            group=None,
            needs_all=True,
        )
        config = _APPEND_TIME | {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(max(_DAY_MS, self.outage_budget_ms)),
            "segment.ms": str(_DAY_MS),
        }
        state = self._spec(
            self.names.timer_state, TIMER_PARTITIONS, config, purpose="pending names", group=None, needs_all=True
        )
        return log, state

    def retry(self, group: str) -> TopicSpec:
        """The group's retry topic."""
        config = self._kept(7 * _DAY_MS)
        return self._spec(
            self.names.retry(group), self.retry_partitions, config, purpose=f"retries of {group}", group=group
        )

    def dead_letter(self, group: str) -> TopicSpec:
        """The group's dead-letter topic."""
        config = self._kept(30 * _DAY_MS)
        return self._spec(
            self.names.dead_letter(group),
            self.dead_letter_partitions,
            config,
            purpose=f"dead letters of {group}",
            group=group,
        )

    def group_log(self, group: str) -> TopicSpec:
        """The group's log of members and locks."""
        config = _APPEND_TIME | {
            "cleanup.policy": "delete",
            "retention.ms": str(_DAY_MS),
            "segment.ms": str(10 * 60_000),
        }
        purpose = f"members and locks of {group}"
        return self._spec(self.names.group_log(group), 1, config, purpose=purpose, group=group, is_log=True)

    def check(self, producer_group: str) -> TopicSpec:
        """The questions to a producer group about its half messages; each is repeated, so they are kept shortly."""
        return self._spec(
            self.names.check(producer_group),
            _CHECK_PARTITIONS,
            self._kept(_DAY_MS),
            purpose=f"checks of the producers {producer_group}",
            group=producer_group,
            group_option="--producer-group",
        )

    def shared(self) -> tuple[TopicSpec, ...]:
        """Return the topics that a namespace has once: delay queues and parked records."""
        return (self.schedule(), self.parked())

    def for_group(self, group: str, *, with_log: bool) -> tuple[TopicSpec, ...]:
        """Return the topics of a group: retries, dead letters, and its log if it is orderly or has a strategy."""
        topics = (self.retry(group), self.dead_letter(group))
        return (*topics, self.group_log(group)) if with_log else topics

    @property
    def _schedule_retention_ms(self) -> int:
        return min(2 * self.levels.longest_ms + self.outage_budget_ms, LONG_MAX)

    def _kept(self, retention_ms: int) -> dict[str, str]:
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(retention_ms),
            "retention.bytes": str(_UNLIMITED),
            "max.message.bytes": str(self.max_message_bytes + HEADROOM_BYTES),
        }

    def _spec(
        self,
        name: str,
        partitions: int,
        config: dict[str, str],
        *,
        purpose: str,
        group: str | None,
        partition_step: int = 1,
        is_log: bool = False,
        needs_all: bool = False,
        group_option: str = "--group",
    ) -> TopicSpec:
        command = ["rocketshim", "init"]
        if self.names.namespace:
            command += ["--namespace", self.names.namespace]
        if group is not None:
            command += [group_option, group, *(["--with-log"] if is_log else [])]
        if self.lanes > 1:
            command += ["--lanes", str(self.lanes)]
        if self.levels != DelayLevels.default():
            with suppress(ConfigError):  # a table of a program may have delays that an option cannot express
                command += ["--delay-levels", str(self.levels)]
        if self.max_message_bytes != _KAFKA_DEFAULT_MAX_MESSAGE_BYTES:
            command += ["--max-message-bytes", str(self.max_message_bytes)]
        return TopicSpec(
            name,
            partitions,
            config,
            purpose=purpose,
            partition_step=partition_step,
            replication_factor=self.replication_factor,
            init_command=shlex.join(command),
            needs_all=needs_all,
        )


def compare(
    specs: Iterable[TopicSpec], found: Mapping[str, TopicState], *, grow: bool = False, fix: bool = False
) -> Plan:
    """Compare the existing topics with the required ones.

    Args:
        specs: the required topics.
        found: the existing topics, by physical name.
        grow: add partitions where there are too few. More partitions move the keys of a retry topic.
        fix: change settings that differ, and add the partitions without which the shim does not work (lanes of the
            schedule topic that are not whole).

    Returns:
        The plan. Nothing is changed.

    Decides: Does a topic differ from what is needed? The doctor says what it costs (`admin.doctor.topics`).
    """
    specs = tuple(specs)
    missing: list[TopicSpec] = []
    differences: list[Difference] = []
    unread: list[str] = []
    for spec in specs:
        state = found.get(spec.name)
        if state is None:
            missing.append(spec)
            continue
        differences += _partition_differences(spec, state.partitions, grow=grow, fix=fix)
        if state.config is None:
            unread.append(spec.name)
            continue
        for setting, wanted in sorted(spec.config.items()):
            is_now = state.config.get(setting, "unset")
            if not _is_fine(setting, is_now, wanted):
                differences.append(Difference(spec.name, setting, is_now, wanted, setting in _FATAL, fix))
    return Plan(specs, tuple(missing), tuple(differences), tuple(unread))


def _partition_differences(spec: TopicSpec, is_now: int, *, grow: bool, fix: bool) -> list[Difference]:
    whole = is_now % spec.partition_step == 0
    if is_now >= spec.partitions and whole:
        return []
    wanted = max(spec.partitions, -(-is_now // spec.partition_step) * spec.partition_step)
    fatal = not whole or spec.needs_all or is_now < spec.partition_step
    will_change = spec.grows and (grow or (fix and fatal))
    return [Difference(spec.name, "partitions", str(is_now), str(wanted), fatal, will_change)]


def _is_fine(setting: str, is_now: str, wanted: str) -> bool:
    if is_now == wanted:
        return True
    if setting not in _AT_LEAST and setting not in SPEED_ONLY:
        return False
    try:
        number, limit = int(is_now), int(wanted)
    except ValueError:
        return False
    if setting in SPEED_ONLY:
        return number <= limit
    return number == _UNLIMITED or (limit != _UNLIMITED and number >= limit)
