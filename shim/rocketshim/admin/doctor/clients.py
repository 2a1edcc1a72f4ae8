"""Checks of what the client brings: its ACLs, and librdkafka settings as passed with `--client`. Pure.

Kafka reports what the principal may do (`DescribeTopics` and `DescribeGroups` with the authorised operations); the
doctor tries nothing out. Kafka does not report the ACLs of transactional ids.

rocketshim's own clients refuse to change settings that correctness depends on. The doctor finds such settings before
anything starts, also for programs that pass the same file to plain Kafka clients.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rocketshim.admin.acls import Role, grants
from rocketshim.admin.doctor.facts import Facts
from rocketshim.admin.doctor.probe import APPEND_TIME, prefix
from rocketshim.kafka.client_config import (
    KAFKA_SESSION_MS,
    PROTECTED_CONSUMER,
    PROTECTED_PRODUCER,
    WORKER_SESSION_MS,
    same,
)
from rocketshim.observe.finding import Finding, Severity
from rocketshim.settings.worker import WorkerSettings

__all__ = ["client_settings", "poll_interval", "rights", "session_timeouts", "transaction_timeout"]


def rights(facts: Facts) -> Iterator[Finding]:
    """Check that the principal has the ACLs that each requested role needs."""
    found = {
        "topic": {name: topic.operations for name, topic in facts.topics.items()},
        "group": {name: standing.operations for name, standing in facts.standings.items()},
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


_DEFAULT_POLL_INTERVAL_MS: Final = 300_000


@dataclass(frozen=True, slots=True)
class _Row:
    key: str
    is_bad: Callable[[str], bool]
    severity: Severity
    cost: str
    fix: str


def _below(limit: int) -> Callable[[str], bool]:
    return lambda value: value.isdecimal() and int(value) < limit


def _above(limit: int) -> Callable[[str], bool]:
    return lambda value: value.isdecimal() and int(value) > limit


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value.lower() in values


_TABLE: Final = (
    _Row(
        "enable.ssl.certificate.verification",
        _is("false"),
        Severity.ERROR,
        "an attacker on the network can read and change every message and read the passwords",
        "remove the setting, and set ssl.ca.location to your certificate authority",
    ),
    _Row(
        "ssl.endpoint.identification.algorithm",
        _is("none"),
        Severity.WARNING,
        "any host with a certificate of the same authority can impersonate a broker",
        "remove the setting; give the brokers certificates with their host names",
    ),
    _Row(
        "security.protocol",
        _is("sasl_plaintext"),
        Severity.WARNING,
        "passwords and messages cross the network unencrypted",
        "security.protocol=SASL_SSL",
    ),
    _Row("retries", _is("0"), Severity.ERROR, "a send that fails once is not retried", "remove the setting"),
    _Row(
        "message.send.max.retries", _is("0"), Severity.ERROR, "a send that fails once is not retried",
        "remove the setting",
    ),
    _Row(
        "max.in.flight.requests.per.connection", _above(5), Severity.ERROR,
        "idempotent producers do not start with more than 5", "max.in.flight.requests.per.connection=5 or less",
    ),
    _Row(
        "allow.auto.create.topics", _is("true"), Severity.WARNING,
        "a wrong topic name creates a topic with the cluster's default settings", "remove the setting",
    ),
    _Row(
        "auto.offset.reset", _is("latest", "end", "largest"), Severity.ERROR,
        "if retention deletes records behind a group's position, the group skips everything up to the end",
        "auto.offset.reset=earliest",
    ),
    _Row(
        "fetch.min.bytes", _above(1), Severity.WARNING,
        "the broker waits for more data before it answers: messages are up to fetch.wait.max.ms late "
        "(measured: p50 142 ms)",
        "remove the setting",
    ),
    _Row(
        "linger.ms", _above(100), Severity.WARNING, "every hop is late by this time", "linger.ms=5 or less",
    ),
    _Row(
        "session.timeout.ms", _below(3_000), Severity.WARNING,
        "a short pause of the process or the network removes the member from its group", "session.timeout.ms=10000",
    ),
    _Row(
        "debug", lambda value: value != "", Severity.WARNING,
        "librdkafka logs what it does, including settings and names, and is slower", "remove the setting",
    ),
)  # fmt: skip


def client_settings(facts: Facts) -> Iterator[Finding]:
    """Find settings that break correctness, run code, or weaken security."""
    for key, value in facts.client.items():
        wanted: Mapping[str, object] = {**PROTECTED_CONSUMER, **PROTECTED_PRODUCER}
        if key in wanted and not same(value, wanted[key]):
            yield _finding(
                key, Severity.ERROR, f"is {value}",
                "rocketshim's guarantees depend on it, and its clients refuse to start",
                f"remove the setting; rocketshim sets {str(wanted[key]).lower()}",
            )  # fmt: skip
        for row in _TABLE:
            if row.key == key and row.is_bad(value):
                yield _finding(key, row.severity, f"is {value}", row.cost, row.fix)
    uses_sasl = any(key.startswith("sasl.") for key in facts.client)
    if uses_sasl and not facts.client.get("security.protocol", "plaintext").lower().startswith("sasl"):
        yield _finding(
            "security.protocol", Severity.ERROR, "does not begin with SASL, though sasl.* is set",
            "the client does not log in: the brokers refuse it, or treat it as ANONYMOUS",
            "security.protocol=SASL_SSL",
        )  # fmt: skip


def poll_interval(facts: Facts) -> Iterator[Finding]:
    """Check that `max.poll.interval.ms` is longer than a handler in the user's own poll loop may take."""
    if facts.consume_timeout_ms is None:
        return
    text = facts.client.get("max.poll.interval.ms", str(_DEFAULT_POLL_INTERVAL_MS))
    if text.isdecimal() and int(text) <= facts.consume_timeout_ms:
        yield _finding(
            "max.poll.interval.ms",
            Severity.ERROR,
            f"is {text} ms, but a handler may take {facts.consume_timeout_ms} ms",
            "a poll loop that calls its handlers itself (the drop-in consumer) is removed from its group while a "
            "handler runs: other members get its messages, too",
            f"max.poll.interval.ms={2 * facts.consume_timeout_ms}, or PushConsumer, which polls in a separate thread",
            check="poll-interval",
        )


def session_timeouts(facts: Facts) -> Iterator[Finding]:
    """Check that the brokers accept the session time-outs of workers and consumers, which otherwise never join."""
    limits = [(facts.broker_config or {}).get(f"group.{which}.session.timeout.ms", "") for which in ("min", "max")]
    given = facts.client.get("session.timeout.ms")
    if not all(map(str.isdecimal, limits)) or not (given or "0").isdecimal():
        return
    least_ms, most_ms = map(int, limits)
    sessions = {"a worker": int(given or WORKER_SESSION_MS)}
    if facts.client.get("group.protocol") != "consumer":  # otherwise the brokers set it
        sessions["a consumer"] = int(given or KAFKA_SESSION_MS)
    refused = [f"{who} has {ms}" for who, ms in sessions.items() if not least_ms <= ms <= most_ms]
    if refused:
        fitting_ms = min(max(int(given or KAFKA_SESSION_MS), least_ms), most_ms)
        fix = f"session.timeout.ms={fitting_ms}"
        if fitting_ms > _DEFAULT_POLL_INTERVAL_MS:
            fix += f" and max.poll.interval.ms={fitting_ms}"
        yield _finding(
            "session.timeout.ms",
            Severity.ERROR,
            f"must be {least_ms} to {most_ms} on these brokers, but {', '.join(refused)}",
            "the coordinator refuses them (INVALID_SESSION_TIMEOUT): they get no message",
            f"{fix} in the client settings of each (--client), or other limits on the brokers: "
            "group.min.session.timeout.ms, group.max.session.timeout.ms",
            check="session-timeout",
        )


def capabilities(facts: Facts) -> Iterator[Finding]:
    """Check that the cluster does what it says, if it was measured."""
    for each in facts.capabilities:
        if each.works or each.severity is Severity.NOTE:  # no feature needs it, unless it is asked for
            continue
        is_unknown = each.works is None
        check, fix = "cluster-lacks", each.fix
        if is_unknown:
            check, named = "not-measured", prefix(facts.layout.names)
            fix = (
                f"run the doctor as a principal that has, on all names that begin with {named}, CREATE, DELETE, "
                "DESCRIBE_CONFIGS, READ and WRITE (topics), DELETE and READ (groups) and WRITE (transactional ids)"
            )
        elif each.name == APPEND_TIME:
            check = "append-time-not-kept"
        severity = Severity.NOTE if is_unknown else each.severity
        yield Finding(check, severity, each.name, each.seen, f"needed by: {each.needed_by}", fix)


def transaction_timeout(facts: Facts) -> Iterator[Finding]:
    """Check that the brokers allow the default transaction time-out of the worker, which is not a client setting."""
    limit = (facts.broker_config or {}).get("transaction.max.timeout.ms", "")
    wanted_ms = WorkerSettings.model_fields["transaction_timeout_ms"].default
    if limit.isdecimal() and wanted_ms > int(limit):
        yield _finding(
            "transaction.max.timeout.ms",
            Severity.ERROR,
            f"of the brokers is {limit}, but the worker's transaction_timeout_ms is {wanted_ms} by default",
            "the worker does not start in exactly-once mode, and nothing can be sent again (`apply`)",
            f"transaction.max.timeout.ms={wanted_ms} or more on the brokers",
            check="transaction-timeout",
        )


def _finding(key: str, severity: Severity, what: str, cost: str, fix: str, *, check: str = "client-setting") -> Finding:
    return Finding(check, severity, key, f"{key} {what}", cost, fix)
