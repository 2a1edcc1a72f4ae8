"""Checks of topics: their existence, settings, partitions and replicas. Pure.

This module explains each difference that `layout.compare` finds. The other checks are about what a layout does not
know: the users' own topics and the number of brokers.
"""

from collections.abc import Iterator
from typing import Final

from rocketshim.admin.doctor.facts import Facts, TopicFacts
from rocketshim.core.user_values import count_text
from rocketshim.observe.finding import Finding, Severity
from rocketshim_topics.layout import Difference, Layout, TopicSpec, TopicState, compare, is_compacted
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.partitioner import TIMER_PARTITIONS

__all__ = [
    "auto_creation",
    "copies",
    "expected",
    "leaders",
    "missing_topics",
    "offsets_retention",
    "partition_counts",
    "settings",
    "user_topics",
]

_SAFE_REPLICAS: Final = 3
_WEEK_MINUTES: Final = 7 * 24 * 60

_CHECKS: Final = {
    "message.timestamp.type": "timestamp-type",
    "cleanup.policy": "compaction",
    "retention.ms": "retention",
    "retention.bytes": "retention-bytes",
    "max.message.bytes": "message-size",
    "segment.ms": "segment",
    "delete.retention.ms": "retention",
}


def expected(facts: Facts) -> dict[str, tuple[TopicSpec, str]]:
    """Return rocketshim's topics that should exist, by name, each with the `init` command that creates it.

    They are the shared ones, each group's, and the logs that already exist.
    """
    layout, init = facts.layout, facts.init()
    found = {spec.name: (spec, init) for spec in layout.shared()}
    timers = layout.timers()
    if any(spec.name in facts.topics for spec in timers):
        found |= {spec.name: (spec, init) for spec in timers}
    if layout.names.redrive_log in facts.topics:
        found[layout.names.redrive_log] = (layout.redrive_log(), init)
    for group in facts.groups:
        has_log = layout.names.group_log(group) in facts.topics
        init = facts.init(f"--group={group}", *(["--with-log"] if has_log else []))
        found |= {spec.name: (spec, init) for spec in layout.for_group(group, with_log=has_log)}
    return found


def missing_topics(facts: Facts) -> Iterator[Finding]:
    """Find required topics that do not exist."""
    for spec, init in expected(facts).values():
        if spec.name not in facts.topics:
            yield Finding(
                "topic-missing",
                Severity.ERROR,
                spec.name,
                f"the topic for {spec.purpose} does not exist, or the principal may not see it",
                "senders of delayed messages, the worker or the group's consumers fail to start",
                init,
            )
    names = facts.names
    if names.schedule in facts.topics and not {names.timers, names.timer_state} & facts.topics.keys():
        yield Finding(
            "topic-missing",
            Severity.NOTE,
            names.timers,
            "the topics of named timers do not exist, or the principal may not see them",
            "messages with a name (`timer=`) cannot be sent; nothing else needs these topics",
            facts.init(),
        )
    for name in facts.user_topics:
        if name not in facts.topics:
            yield Finding(
                "topic-missing",
                Severity.ERROR,
                name,
                "the topic does not exist, or the principal may not see it",
                "its consumers do not start; delayed messages for it are parked",
                facts.command("init", "--topic", name, "--partitions", "N"),
            )


def settings(facts: Facts) -> Iterator[Finding]:
    """Compare the settings of rocketshim's topics with the layout."""
    found = {name: TopicState(len(topic.partitions), topic.config) for name, topic in facts.topics.items()}
    wanted = expected(facts)
    for each in compare((spec for spec, _ in wanted.values()), found).differences:
        if each.setting != "partitions":
            spec, init = wanted[each.topic]
            severity, cost = _cost(facts, spec, each)
            what = f"{each.setting} is {each.found}, should be {each.wanted}"
            yield Finding(_CHECKS[each.setting], severity, each.topic, what, cost, f"{init} --fix")


def partition_counts(facts: Facts) -> Iterator[Finding]:
    """Check the partitions of the schedule topic (whole lanes), of the timers' topics, and of each group log (one)."""
    names, stride = facts.names, DelayLevels.STRIDE
    topic = facts.topics.get(names.schedule)
    if topic is not None and len(topic.partitions) % stride:
        count = len(topic.partitions)
        lanes = -(-count // stride)
        yield Finding(
            "partition-count",
            Severity.ERROR,
            names.schedule,
            f"{count_text(count, 'partition')}, which is not a multiple of {stride} (one lane)",
            "each level has a fixed partition: some levels have none, and sends to them fail",
            facts.init("--lanes", str(lanes)),
        )
    for name in (names.timers, names.timer_state):
        topic = facts.topics.get(name)
        if topic is not None and len(topic.partitions) != TIMER_PARTITIONS:
            is_less = len(topic.partitions) < TIMER_PARTITIONS
            yield Finding(
                "partition-count",
                Severity.ERROR if is_less else Severity.NOTE,
                name,
                f"{count_text(len(topic.partitions), 'partition')}; names use the first {TIMER_PARTITIONS}",
                "sends to the names of the missing ones fail"
                if is_less
                else "the worker forwards the commands of programs that write to the others",
                facts.init("--fix") if is_less else "choose the partition as docs/wire-format.md says",
            )
    for group in facts.groups:
        log = facts.topics.get(names.group_log(group))
        if log is not None and len(log.partitions) != 1:
            yield Finding(
                "partition-count",
                Severity.ERROR,
                names.group_log(group),
                f"{len(log.partitions)} partitions instead of one",
                "the order of one partition decides who holds a lock: two members may hold the same queue",
                "stop the group, delete the topic, then: " + facts.command("init", "--group", group, "--with-log"),
            )


def leaders(facts: Facts) -> Iterator[Finding]:
    """Check that each partition has a leader and enough in-sync replicas to accept writes."""
    for name, topic in facts.topics.items():
        without = [number for number, each in enumerate(topic.partitions) if each.leader is None]
        if without:
            yield Finding(
                "no-leader",
                Severity.ERROR,
                name,
                f"no leader for partitions {_numbers(without)}",
                "they can be neither read nor written: delayed messages of these queues wait, and commits stop",
                "restart the brokers that store them: kafka-topics.sh --describe --unavailable-partitions",
            )
        needed = _min_in_sync(topic)
        led = [(number, each) for number, each in enumerate(topic.partitions) if each.leader is not None]
        refusing = [number for number, each in led if each.in_sync < min(needed, each.replicas)]
        behind = [number for number, each in led if min(needed, each.replicas) <= each.in_sync < each.replicas]
        if refusing:
            yield Finding(
                "in-sync",
                Severity.ERROR,
                name,
                f"partitions {_numbers(refusing)} have fewer in-sync replicas than min.insync.replicas={needed}",
                "the brokers refuse every write with acks=all: retries, dead letters and delayed sends fail",
                "restart the missing brokers: kafka-topics.sh --describe --under-min-isr-partitions",
            )
        if behind:
            yield Finding(
                "in-sync",
                Severity.WARNING,
                name,
                f"partitions {_numbers(behind)} have replicas that are not in sync",
                "one more failure loses the partition or the last acknowledged records",
                "restart the missing brokers: kafka-topics.sh --describe --under-replicated-partitions",
            )


def copies(facts: Facts) -> Iterator[Finding]:
    """Check that each topic has enough replicas, and a `min.insync.replicas` that survives one failure.

    The setting is too low if one failure loses records, and too high if one failure stops all writes.
    """
    brokers = len(facts.brokers)
    for name, topic in facts.topics.items():
        if not topic.partitions:
            continue
        replicas = min(each.replicas for each in topic.partitions)
        if replicas < min(_SAFE_REPLICAS, brokers):
            yield Finding(
                "copies",
                Severity.ERROR if replicas == 1 else Severity.WARNING,
                name,
                f"{replicas} {'replica' if replicas == 1 else 'replicas'} of each partition on {brokers} brokers",
                "losing one broker loses its records" if replicas == 1 else "two failures lose records",
                "kafka-reassign-partitions.sh with more replicas (new topics: rocketshim init --replication-factor 3)",
            )
        in_sync = _min_in_sync(topic)
        if topic.config is None:
            continue
        if replicas >= _SAFE_REPLICAS and in_sync < 2:
            yield Finding(
                "min-in-sync",
                Severity.WARNING,
                name,
                f"min.insync.replicas is {in_sync} with {replicas} replicas",
                "a write is acknowledged when a single broker has stored it; if that broker fails, the record is lost",
                facts.alter(name, min_insync_replicas="2"),
            )
        if replicas > 1 and in_sync >= replicas:
            yield Finding(
                "min-in-sync",
                Severity.WARNING,
                name,
                f"min.insync.replicas is {in_sync} with {replicas} replicas",
                "while one broker is down every write is refused: retries and delayed sends stop",
                facts.alter(name, min_insync_replicas=str(max(1, replicas - 1))),
            )


def user_topics(facts: Facts) -> Iterator[Finding]:
    """Check the users' own topics as targets of delayed messages and sources of retries."""
    for name in facts.user_topics:
        topic = facts.topics.get(name)
        if topic is None or topic.config is None:
            continue
        if is_compacted(topic.config):
            yield Finding(
                "target-compacted",
                Severity.WARNING,
                name,
                "the topic is compacted",
                "it refuses records without a key: delayed messages without a key are parked",
                "send only keyed messages to it, or: " + facts.alter(name, cleanup_policy="delete"),
            )


def offsets_retention(facts: Facts) -> Iterator[Finding]:
    """Check that Kafka keeps the offsets of an inactive group for at least a week."""
    minutes = _number((facts.broker_config or {}).get("offsets.retention.minutes"))
    if minutes is not None and minutes < _WEEK_MINUTES:
        yield Finding(
            "offsets-retention",
            Severity.WARNING,
            "broker",
            f"offsets.retention.minutes is {minutes}, less than 7 days",
            "a group or worker that is down for longer loses its position: the worker delivers everything in its topic "
            "again, and a consumer starts like a new group",
            "set offsets.retention.minutes=10080 or more on every broker",
        )


def auto_creation(facts: Facts) -> Iterator[Finding]:
    """Check that a mistyped topic name does not create a topic."""
    if (facts.broker_config or {}).get("auto.create.topics.enable") == "true":
        yield Finding(
            "auto-create",
            Severity.NOTE,
            "broker",
            "auto.create.topics.enable is true",
            "a program with a wrong topic name creates that topic with the cluster's default settings; rocketshim's "
            "own topics would be created with wrong settings",
            "set auto.create.topics.enable=false on every broker (`rocketshim dev` sets it to true on purpose)",
        )


def _cost(facts: Facts, spec: TopicSpec, each: Difference) -> tuple[Severity, str]:
    layout: Layout = facts.layout
    is_schedule = spec.name in {facts.names.schedule, facts.names.timers}
    of_memory = {
        facts.names.redrive_log: "it may forget what was sent again, and a plan that is applied again sends it twice",
        facts.names.timer_state: "a worker that starts may have forgotten names, or take old ones for pending",
    }.get(spec.name)
    if of_memory is not None and each.setting != "segment.ms":
        return Severity.ERROR, of_memory
    match each.setting:
        case "message.timestamp.type" if is_schedule:
            return Severity.ERROR, "delays would count from a time that the sender sets: the worker refuses to run"
        case "message.timestamp.type":
            return Severity.ERROR, "leases would depend on the members' own clocks: two members may hold the same queue"
        case "cleanup.policy":
            return (
                Severity.ERROR,
                "compaction deletes messages with the same key, and the topic refuses messages without a key",
            )
        case "retention.ms" if is_schedule and _below(each.found, layout.levels.longest_ms):
            longest = layout.levels.longest_ms
            return Severity.ERROR, f"messages of the longest level ({longest} ms) are deleted before they are due"
        case "retention.ms" if is_schedule:
            return Severity.WARNING, "if no worker runs for some time, messages are deleted before they are delivered"
        case "retention.ms":
            return Severity.WARNING, f"{spec.purpose} are deleted before anyone has looked at them"
        case "retention.bytes":
            return Severity.ERROR, "waiting messages are deleted to make room for others"
        case "max.message.bytes":
            source = layout.max_message_bytes
            return Severity.ERROR, (
                f"a message of the largest size of its source topic ({source} bytes) does not fit with the headers of "
                "a hop: the topic refuses its retry, and it becomes a dead letter without its body"
            )
        case _:
            return Severity.NOTE, "old records stay longer: a new member reads more when it starts"


def _below(found: str, limit: int) -> bool:
    number = _number(found)
    return number is not None and 0 <= number < limit


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _min_in_sync(topic: TopicFacts) -> int:
    return _number((topic.config or {}).get("min.insync.replicas")) or 1


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"
