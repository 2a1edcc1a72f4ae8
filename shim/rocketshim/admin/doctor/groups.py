"""Checks of consumer groups: subscriptions, records lost to retention, unread retries, partitioning of keys. Pure."""

from collections.abc import Iterator
from typing import Final

from rocketshim.admin.doctor.facts import Facts
from rocketshim.observe.finding import Finding, Severity
from rocketshim.observe.snapshot import conflicts

__all__ = ["lost_records", "partitioner", "subscriptions", "unread_retries"]

_MIN_KEYS: Final = 10
_MAX_MISPLACED_SHARE: Final = 0.1
_MAX_IDLE_MS: Final = 3_600_000  # longer than a deployment


def subscriptions(facts: Facts) -> Iterator[Finding]:
    """Check that all members of a group have the same subscription."""
    for group in facts.groups:
        standing = facts.standings.get(group)
        if standing is None:
            continue
        for conflict in conflicts(standing, retry_topic=facts.names.retry(group)):
            if not conflict.loses_messages:
                yield Finding(
                    "topics-differ",
                    Severity.NOTE,
                    f"{group} on {conflict.topic}",
                    "commits carry subscriptions to different topics, or other filters of other topics: "
                    + "; ".join(conflict.partitions),
                    "normal in a rolling deployment: nothing of this topic is lost. With an allocation strategy, "
                    "queues of a topic that a member lacks are not read",
                    "finish the deployment: docs/rolling-deployments.md; "
                    + facts.command("group", "subscriptions", group),
                )
                continue
            yield Finding(
                "subscriptions-differ",
                Severity.ERROR,
                f"{group} on {conflict.topic}",
                "commits carry different subscriptions: " + "; ".join(conflict.partitions),
                "each member skips and commits messages that only the other one wants: the group loses these messages",
                "deploy the same listener everywhere; if you already have, the next commit of each partition clears "
                "this: " + facts.command("group", "subscriptions", group),
            )


def lost_records(facts: Facts) -> Iterator[Finding]:
    """Check that retention has not deleted offsets that a group had not read: messages may have been among them."""
    for group in facts.groups:
        standing = facts.standings.get(group)
        for each in () if standing is None else standing.partitions:
            if each.lost:
                yield Finding(
                    "retention-overtook",
                    Severity.ERROR,
                    f"{group} on {each.topic}/{each.partition}",
                    f"retention deleted {each.lost} offsets that the group had not read",
                    "messages among them are lost; there may be none, only markers and aborted records of "
                    "transactions: rocketshim's consumers pass these, those of other libraries may not",
                    f"consume faster, or raise the retention: {facts.keep_longer(each.topic)}",
                )


def unread_retries(facts: Facts) -> Iterator[Finding]:
    """Check that groups with waiting retries have a member."""
    for group, oldest_ms in sorted(facts.unread_retries_ms.items()):
        waiting_ms = facts.now_ms - oldest_ms
        if waiting_ms > _MAX_IDLE_MS:
            yield Finding(
                "retries-unread",
                Severity.WARNING,
                f"{group} on {facts.names.retry(group)}",
                f"retries have been waiting for {waiting_ms // 60_000} minutes, but Kafka knows no member of the group",
                "no consumer handles them, and retention eventually deletes them",
                f"start the group{_own_members(facts, group)}; if it was renamed or retired: docs/operations.md, "
                "Renaming or retiring a group; "
                f"waiting retries: {facts.command('group', 'lag', group)}",
            )


def _own_members(facts: Facts, group: str) -> str:
    """Name the command that shows the members that Kafka does not know, if the group can have some."""
    if facts.names.group_log(group) not in facts.topics:
        return ""
    return f" (members with an allocation strategy: {facts.command('group', 'members', group)})"


def partitioner(facts: Facts) -> Iterator[Finding]:
    """Check that keys are in the partitions that the Java client's partitioner, and so rocketshim, chooses."""
    for name, sample in sorted(facts.keys.items()):
        if sample.keys >= _MIN_KEYS and sample.elsewhere > sample.keys * _MAX_MISPLACED_SHARE:
            yield Finding(
                "partitioner",
                Severity.WARNING,
                name,
                f"{sample.elsewhere} of {sample.keys} keys are in another partition than murmur2 chooses",
                "delayed and immediate messages with the same key go to different partitions: their order is lost, "
                "and two consumers may process them at the same time",
                "set partitioner=murmur2_random in each librdkafka producer of this topic (it is not the default); "
                "a topic whose partitions were increased shows this for its old records",
            )
