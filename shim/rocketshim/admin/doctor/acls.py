"""Checks of the rights of the principal that the doctor connects as. Pure.

What it may do is asked of Kafka (`DescribeTopics` and `DescribeGroups` with the authorised operations), nothing is
tried out. Rights on transactional ids cannot be asked for.
"""

from collections.abc import Iterator

from rocketshim.admin.acls import Grant, Resource, Role, grants
from rocketshim.admin.doctor.facts import Facts
from rocketshim.admin.doctor.finding import Finding, Severity

__all__ = ["rights"]


def rights(facts: Facts) -> Iterator[Finding]:
    """The principal has what each role that was asked for needs."""
    for role in facts.roles:
        wanted = grants(Role(role), facts.names, groups=facts.groups, topics=facts.user_topics)
        for grant in wanted:
            for name, operations in _operations(facts, grant):
                lacking = [each for each in grant.operations if each not in operations]
                if lacking:
                    named = [f"--group={group}" for group in facts.groups]
                    named += [f"--topic={topic}" for topic in facts.user_topics]
                    yield Finding(
                        "rights",
                        Severity.ERROR,
                        f"{role} on {grant.resource} {name}",
                        f"the principal lacks {', '.join(lacking)}",
                        f"it cannot: {grant.why}",
                        facts.command("acls", "--role", role, *named),
                    )


def _operations(facts: Facts, grant: Grant) -> Iterator[tuple[str, frozenset[str]]]:
    if grant.resource is Resource.TOPIC:
        for name, topic in facts.topics.items():
            if grant.covers(name) and topic.operations is not None:
                yield name, topic.operations
    elif grant.resource is Resource.GROUP:
        for name, operations in facts.group_operations.items():
            if grant.covers(name):
                yield name, operations
