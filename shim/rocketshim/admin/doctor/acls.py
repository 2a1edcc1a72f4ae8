"""Checks of the ACLs of the principal that the doctor connects as. Pure.

Kafka reports what the principal may do (`DescribeTopics` and `DescribeGroups` with the authorised operations); the
doctor tries nothing out. Kafka does not report the ACLs of transactional ids.
"""

from collections.abc import Iterator

from rocketshim.admin.acls import Resource, Role, grants
from rocketshim.admin.doctor.facts import Facts
from rocketshim.observe.finding import Finding, Severity

__all__ = ["rights"]


def rights(facts: Facts) -> Iterator[Finding]:
    """Check that the principal has the ACLs that each requested role needs."""
    found = {
        Resource.TOPIC: {name: topic.operations for name, topic in facts.topics.items()},
        Resource.GROUP: {name: standing.operations for name, standing in facts.standings.items()},
    }
    for role in facts.roles:
        wanted = grants(Role(role), facts.names, groups=facts.groups, topics=facts.user_topics)
        for grant in wanted:
            known = found.get(grant.resource, {})
            is_of_many = grant.prefixed or grant.name == "*"
            for name in filter(grant.covers, known) if is_of_many else known.keys() & {grant.name}:
                operations = known[name]
                lacking = [each for each in grant.operations if operations is not None and each not in operations]
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
