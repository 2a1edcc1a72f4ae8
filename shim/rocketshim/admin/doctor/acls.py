"""Checks of the ACLs of the principal that the doctor connects as. Pure.

Kafka reports what the principal may do (`DescribeTopics` and `DescribeGroups` with the authorised operations); the
doctor tries nothing out. Kafka does not report the ACLs of transactional ids.
"""

from collections.abc import Iterator

from rocketshim.admin.acls import Grant, Resource, Role, grants
from rocketshim.admin.doctor.facts import Facts
from rocketshim.admin.doctor.finding import Finding, Severity

__all__ = ["rights"]


def rights(facts: Facts) -> Iterator[Finding]:
    """Check that the principal has the ACLs that each requested role needs."""
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
