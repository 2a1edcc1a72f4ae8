"""Checks of consumer groups: subscriptions, what retention takes from them, where keys lie. Pure."""

from collections.abc import Iterator
from typing import Final

from rocketshim.admin.doctor.facts import Facts
from rocketshim.admin.doctor.finding import Finding, Severity
from rocketshim.admin.group_lag import conflicts

__all__ = ["lost_records", "partitioner", "subscriptions", "unread_retries"]

_ENOUGH_KEYS: Final = 10
_SHARE: Final = 0.1
_LONG_MS: Final = 3_600_000  # longer than a deployment


def subscriptions(facts: Facts) -> Iterator[Finding]:
    """The members of a group subscribe to the same."""
    for group in facts.groups:
        standing = facts.standings.get(group)
        if standing is None:
            continue
        for conflict in conflicts(standing, retry_topic=facts.names.retry(group)):
            yield Finding(
                "subscriptions-differ",
                Severity.ERROR,
                f"{group} on {conflict.topic}",
                "commits carry different subscriptions: " + "; ".join(conflict.partitions),
                "each member skips what only the other wants, and commits it: those messages are lost to the group",
                "deploy the same listener everywhere; where it is so already, the next commit of each partition ends "
                "this: " + facts.command("group", "subscriptions", group),
            )


def lost_records(facts: Facts) -> Iterator[Finding]:
    """Retention does not take what a group has not read."""
    for group in facts.groups:
        standing = facts.standings.get(group)
        for each in () if standing is None else standing.partitions:
            if each.lost:
                yield Finding(
                    "retention-overtook",
                    Severity.ERROR,
                    f"{group} on {each.topic}/{each.partition}",
                    f"retention took {each.lost} offsets that the group had not read",
                    "these messages are gone",
                    f"consume faster, or keep for longer; what is left: {facts.command('group', 'lag', group)}",
                )


def unread_retries(facts: Facts) -> Iterator[Finding]:
    """What comes back to a group has somebody to come back to."""
    for group, oldest_ms in sorted(facts.unread_retries_ms.items()):
        waiting_ms = facts.now_ms - oldest_ms
        if waiting_ms > _LONG_MS:
            yield Finding(
                "retries-unread",
                Severity.WARNING,
                f"{group} on {facts.names.retry(group)}",
                f"retries wait for {waiting_ms // 60_000} minutes, and the group has no member",
                "nobody handles them, and retention deletes them in the end",
                "start the group; if it was renamed or retired: docs/operations.md, Renaming or retiring a group; what "
                f"waits: {facts.command('group', 'lag', group)}",
            )


def partitioner(facts: Facts) -> Iterator[Finding]:
    """Keys lie where the Java client's partitioner, and so the shim, puts them."""
    for name, sample in sorted(facts.keys.items()):
        if sample.keys >= _ENOUGH_KEYS and sample.elsewhere > sample.keys * _SHARE:
            yield Finding(
                "partitioner",
                Severity.WARNING,
                name,
                f"{sample.elsewhere} of {sample.keys} keys lie in another partition than murmur2 chooses",
                "messages that were delayed and messages that were not land in different partitions for one key: "
                "their order is lost, and two consumers may have them at once",
                "partitioner=murmur2_random in each librdkafka producer of this topic (the default is another); "
                "a topic whose partitions were increased shows this for its old records",
            )
