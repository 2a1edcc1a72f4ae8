"""The minimum Kafka ACLs of each role. Pure.

`grants` lists the operations that a role needs on each resource, and why. `commands` and `bindings` write them for
`kafka-acls` and for programs. READ or WRITE includes DESCRIBE (Kafka's rule), so DESCRIBE is listed only where a role
needs nothing else.

Prefixes end at a separator: `rmq.retry.` covers every group's retry topic and nothing else. A role never gets CREATE,
ALTER or DELETE: the user who runs `rocketshim init` creates the topics once.

Source: Kafka's table of operations and protocols; each role was run with exactly these ACLs on a broker with an
authorizer.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from rocketshim.errors import ConfigError
from rocketshim_topics.names import TopicNames, check_group, check_topic

__all__ = ["Grant", "Resource", "Role", "bindings", "commands", "grants"]

_CLUSTER: Final = "kafka-cluster"  # the only name that Kafka accepts


class Role(StrEnum):
    """The role of the client that connects."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    WORKER = "worker"
    VIEWER = "viewer"
    OPERATOR = "operator"
    SPARK = "spark"


Resource = Literal["topic", "group", "transactional-id", "cluster"]
"""The kind of resource that an ACL applies to."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The operations that a role is allowed on one resource, or on all resources with a common prefix."""

    resource: Resource  # kind of the resource
    name: str  # its name, or the prefix of the names; `*`: all resources
    prefixed: bool  # `name` is a prefix
    operations: tuple[str, ...]  # Kafka's names: `READ`, `WRITE`, `DESCRIBE`, `DESCRIBE_CONFIGS`
    why: str  # the purpose

    def covers(self, name: str) -> bool:
        """Return whether the grant applies to a resource of this name."""
        return self.name == "*" or (name.startswith(self.name) if self.prefixed else name == self.name)


def grants(
    role: Role,
    names: TopicNames,
    *,
    groups: Iterable[str] = (),
    topics: Iterable[str] = (),
    producer_groups: Iterable[str] = (),
    orderly: bool = False,
) -> tuple[Grant, ...]:
    """Return what a role needs.

    * `groups`: consumer groups: a consumer's own, or those that a viewer or operator looks at.
    * `topics`: the users' topics to send to, consume, deliver to or look at; a name, or a prefix with one `*` at its
      end.
    * `producer_groups`: a producer's, if it sends in transactions.
    * `orderly`: a consumer takes queue locks (orderly listeners, allocation strategies).
    """
    groups, topics = tuple(map(check_group, groups)), tuple(topics)
    if role is Role.CONSUMER and not (groups and topics):
        raise ConfigError("a consumer needs ACLs on its group and its topics: name them with --group and --topic")
    match role:
        case Role.PRODUCER:
            return (
                *_users(topics, "WRITE", why="send"),
                _topic(names.schedule, "WRITE", why="send with a delay"),
                _topic(names.timers, "WRITE", why="send with a name; it allows to cancel any name"),
                *_answering(map(names.check, producer_groups)),
            )
        case Role.CONSUMER:
            return (*_users(topics, "READ", why="consume"), *_consumer(names, groups, orderly=orderly))
        case Role.WORKER:
            return (*_worker(names), *_users(topics, "WRITE", why="deliver"))
        case Role.VIEWER:
            return (*_viewer(names, groups), *_users(topics, "READ", "DESCRIBE_CONFIGS", why="trace, doctor"))
        case Role.OPERATOR:
            return (*_operator(names, groups), *_users(topics, "READ", "DESCRIBE_CONFIGS", why="trace, doctor"))
        case Role.SPARK:
            return (*_everything_read(names, groups), *_users(topics, "READ", why="analyse"))


def _answering(checks: Iterable[str]) -> Iterator[Grant]:
    for topic in checks:
        yield _topic(topic, "READ", why="answer for transactions")
        yield _group(topic, "READ", why="answer for transactions: join and commit")


def _consumer(names: TopicNames, groups: Iterable[str], *, orderly: bool) -> Iterator[Grant]:
    yield _topic(names.schedule, "WRITE", why="send back what failed")
    yield _topic(names.parked, "WRITE", why="park retries that break the wire format")
    for group in groups:
        yield _topic(names.retry(group), "READ", why="consume retries")
        yield _topic(names.dead_letter(group), "WRITE", why="write dead letters")
        yield _group(group, "READ", why="join and commit")
        if orderly:
            yield _topic(names.group_log(group), "READ", "WRITE", why="members and locks")


def _worker(names: TopicNames) -> Iterator[Grant]:
    yield _topic(names.schedule, "READ", "WRITE", why="read the queues; hops and probes")
    yield _topic(names.timers, "READ", "WRITE", why="named timers: commands")
    yield _topic(names.timer_state, "READ", "WRITE", why="named timers: pending names")
    yield _topic(names.parked, "WRITE", why="park")
    yield _topic(names.retry_prefix, "WRITE", why="deliver retries", prefixed=True)
    yield _topic(names.check_prefix, "WRITE", why="ask about transactions", prefixed=True)
    yield _group(names.worker_group, "READ", why="join and commit")
    yield Grant(
        "transactional-id", f"{names.worker_group}.", prefixed=True, operations=("WRITE",), why="--exactly-once"
    )


def _viewer(names: TopicNames, groups: Iterable[str]) -> Iterator[Grant]:
    """Yield what the console without --operate, the exporter, and every command that only reads need."""
    ours = f"{names.prefix}rmq."
    read = "READ", "DESCRIBE_CONFIGS"
    yield _topic(names.schedule, *read, why="delayed, trace; doctor")
    yield _topic(names.timers, *read, why="timers, tx; doctor")
    yield _topic(names.timer_state, *read, why="timers, tx; doctor")
    yield _topic(names.parked, *read, why="parked; doctor")
    yield _topic(names.redrive_log, *read, why="what was redriven; doctor")
    yield _topic(f"{ours}retry.", *read, why="retry; doctor", prefixed=True)
    yield _topic(f"{ours}dlq.", *read, why="dlq; doctor", prefixed=True)
    yield _topic(f"{ours}group.", *read, why="group locks; doctor", prefixed=True)
    yield _topic(names.check_prefix, *read, why="topic; doctor", prefixed=True)
    yield Grant("cluster", _CLUSTER, prefixed=False, operations=("DESCRIBE_CONFIGS",), why="settings: doctor")
    for group in (names.worker_group, *groups):
        yield _group(group, "DESCRIBE", why="positions: group lag, delayed, doctor")


def _operator(names: TopicNames, groups: Iterable[str]) -> Iterator[Grant]:
    yield _topic(names.schedule, "READ", "WRITE", "DESCRIBE_CONFIGS", why="delayed, trace; dlq apply (parked); doctor")
    yield _topic(names.timers, "READ", "WRITE", "DESCRIBE_CONFIGS", why="timers, tx, cancel; doctor")
    yield _topic(names.timer_state, "READ", "DESCRIBE_CONFIGS", why="timers, tx; doctor")
    yield _topic(names.parked, "READ", "DESCRIBE_CONFIGS", why="parked; doctor")
    yield _topic(names.redrive_log, "READ", "WRITE", "DESCRIBE_CONFIGS", why="what was redriven; doctor")
    ours = f"{names.prefix}rmq."
    yield _topic(f"{ours}retry.", "READ", "WRITE", "DESCRIBE_CONFIGS", why="retry; dlq apply; doctor", prefixed=True)
    yield _topic(f"{ours}dlq.", "READ", "DESCRIBE_CONFIGS", why="dlq; doctor", prefixed=True)
    yield _topic(
        f"{ours}group.",
        "READ",
        "WRITE",
        "DESCRIBE_CONFIGS",
        why="group locks, dead-letter; doctor",
        prefixed=True,
    )
    yield _topic(names.check_prefix, "READ", "DESCRIBE_CONFIGS", why="topic; doctor", prefixed=True)
    yield Grant("cluster", _CLUSTER, prefixed=False, operations=("DESCRIBE_CONFIGS",), why="settings: doctor")
    for group in (names.worker_group, *groups):
        yield _group(group, "DESCRIBE", why="positions: group lag, delayed, doctor")
    yield Grant("transactional-id", f"{names.redrive_log}.", prefixed=True, operations=("WRITE",), why="dlq apply")


def _everything_read(names: TopicNames, groups: Iterable[str]) -> Iterator[Grant]:
    yield _topic(names.schedule, "READ", why="analyse")
    yield _topic(f"{names.prefix}rmq.", "READ", why="analyse", prefixed=True)
    yield _topic(names.dead_letter_prefix, "DESCRIBE_CONFIGS", why="retention: dlq-trend", prefixed=True)
    for group in (names.worker_group, *groups):
        yield _group(group, "DESCRIBE", why="positions: without them nobody knows what was handled")


def _users(topics: Iterable[str], *operations: str, why: str) -> Iterator[Grant]:
    for entry in topics:
        prefix = entry.removesuffix("*")
        if prefix or entry != "*":
            check_topic(prefix)
        prefixed = entry.endswith("*") and bool(prefix)
        yield Grant("topic", prefix or "*", prefixed, operations, why)


def _group(name: str, *operations: str, why: str) -> Grant:
    return Grant("group", name, prefixed=False, operations=operations, why=why)


def _topic(name: str, *operations: str, why: str, prefixed: bool = False) -> Grant:
    return Grant("topic", name, prefixed, operations, why)


def commands(wanted: Iterable[Grant], *, principal: str, bootstrap: str) -> list[str]:
    """Return the grants as `kafka-acls.sh` commands, one per grant."""
    lines = []
    for grant in wanted:
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
        for operation in grant.operations:
            words += ["--operation", operation.title().replace("_", "")]
        words += ["--cluster"] if grant.resource == "cluster" else [f"--{grant.resource}", grant.name]
        if grant.prefixed:
            words += ["--resource-pattern-type", "prefixed"]
        lines.append(shlex.join(words))
    return lines


def bindings(wanted: Iterable[Grant], *, principal: str) -> list[dict[str, Any]]:
    """Return the grants as ACL bindings for programs, one per operation, with Kafka's field names."""
    return [
        {
            "principal": principal,
            "host": "*",
            "permission_type": "ALLOW",
            "resource_type": grant.resource.upper().replace("-", "_"),
            "resource_name": grant.name,
            "pattern_type": "PREFIXED" if grant.prefixed else "LITERAL",
            "operation": operation,
            "why": grant.why,
        }
        for grant in wanted
        for operation in grant.operations
    ]
