"""Checks of librdkafka settings, as passed with `--client`. Pure: a table, a row each.

Settings that correctness rests on are refused by our own clients; here they are found before anything starts, and for
programs that hand the same file to plain Kafka clients beside ours.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rocketshim.admin.doctor.facts import Facts
from rocketshim.admin.doctor.finding import Finding, Severity
from rocketshim.kafka.client_config import CODE_KEYS, PROTECTED_CONSUMER, PROTECTED_PRODUCER, same

__all__ = ["client_settings", "poll_interval", "transaction_timeout"]

_DEFAULT_POLL_INTERVAL_MS: Final = 300_000


@dataclass(frozen=True, slots=True)
class _Row:
    key: str
    is_bad: Callable[[str], bool]
    severity: Severity
    cost: str
    mend: str


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
        "whoever sits between reads and changes every message, passwords included",
        "leave it out, and name the authority with ssl.ca.location",
    ),
    _Row(
        "ssl.endpoint.identification.algorithm",
        _is("none"),
        Severity.WARNING,
        "any host with a certificate of the same authority may pass for a broker",
        "leave it out; give the brokers certificates with their host names",
    ),
    _Row(
        "security.protocol",
        _is("sasl_plaintext"),
        Severity.WARNING,
        "passwords and messages cross the network unencrypted",
        "security.protocol=SASL_SSL",
    ),
    _Row("retries", _is("0"), Severity.ERROR, "a send that fails once is not tried again", "leave it out"),
    _Row(
        "message.send.max.retries", _is("0"), Severity.ERROR, "a send that fails once is not tried again",
        "leave it out",
    ),
    _Row(
        "max.in.flight.requests.per.connection", _above(5), Severity.ERROR,
        "idempotent producers do not start with more than 5", "max.in.flight.requests.per.connection=5 or less",
    ),
    _Row(
        "allow.auto.create.topics", _is("true"), Severity.WARNING,
        "a wrong topic name creates a topic, with the cluster's default settings", "leave it out",
    ),
    _Row(
        "auto.offset.reset", _is("latest", "end", "largest"), Severity.ERROR,
        "where retention has overtaken a position, everything up to the end would be skipped",
        "auto.offset.reset=earliest",
    ),
    _Row(
        "fetch.min.bytes", _above(1), Severity.WARNING,
        "the broker waits for more before it answers: up to fetch.wait.max.ms of lateness (measured: p50 142 ms)",
        "leave it out",
    ),
    _Row(
        "linger.ms", _above(100), Severity.WARNING, "every hop is late by that much", "linger.ms=5 or less",
    ),
    _Row(
        "session.timeout.ms", _below(3_000), Severity.WARNING,
        "a pause of the process or the network puts the member out of its group", "session.timeout.ms=10000",
    ),
    _Row(
        "debug", lambda value: value != "", Severity.WARNING,
        "librdkafka logs what it does, settings and names included, and is slower", "leave it out",
    ),
)  # fmt: skip


def client_settings(facts: Facts) -> Iterator[Finding]:
    """Settings that break correctness, run code, or leave the door open."""
    for key, value in facts.client.items():
        wanted: Mapping[str, object] = {**PROTECTED_CONSUMER, **PROTECTED_PRODUCER}
        if key in CODE_KEYS:
            yield _finding(
                key, Severity.WARNING, "is set", "it loads or runs code, or fetches a URL: our clients refuse it",
                "leave it out, or set allow_code_settings=True where these settings come from nobody but you",
            )  # fmt: skip
        elif key in wanted and not same(value, wanted[key]):
            yield _finding(
                key, Severity.ERROR, f"is {value}", "our guarantees rest on it, and our clients refuse to start",
                f"leave it out; it is {str(wanted[key]).lower()}",
            )  # fmt: skip
        for row in _TABLE:
            if row.key == key and row.is_bad(value):
                yield _finding(key, row.severity, f"is {value}", row.cost, row.mend)
    uses_sasl = any(key.startswith("sasl.") for key in facts.client)
    if uses_sasl and not facts.client.get("security.protocol", "plaintext").lower().startswith("sasl"):
        yield _finding(
            "security.protocol", Severity.ERROR, "does not begin with SASL, though sasl.* is set",
            "nobody logs in: the brokers refuse the client, or take it for ANONYMOUS", "security.protocol=SASL_SSL",
        )  # fmt: skip


def poll_interval(facts: Facts) -> Iterator[Finding]:
    """`max.poll.interval.ms` is longer than a handler in the user's own poll loop may take."""
    if facts.consume_timeout_ms is None:
        return
    text = facts.client.get("max.poll.interval.ms", str(_DEFAULT_POLL_INTERVAL_MS))
    if text.isdecimal() and int(text) <= facts.consume_timeout_ms:
        yield _finding(
            "max.poll.interval.ms",
            Severity.ERROR,
            f"is {text} ms, and a handler may take {facts.consume_timeout_ms} ms",
            "a poll loop that runs its handlers itself (the drop-in consumer) is put out of its group while one works: "
            "others get its messages, too",
            f"max.poll.interval.ms={2 * facts.consume_timeout_ms}, or PushConsumer, which polls in a thread of its own",
            check="poll-interval",
        )


def transaction_timeout(facts: Facts) -> Iterator[Finding]:
    """The broker allows the worker's transactions."""
    limit = (facts.broker_config or {}).get("transaction.max.timeout.ms", "")
    wanted = facts.client.get("transaction.timeout.ms", "15000")
    if limit.isdecimal() and wanted.isdecimal() and int(wanted) > int(limit):
        yield _finding(
            "transaction.timeout.ms",
            Severity.ERROR,
            f"is {wanted}, and the brokers' transaction.max.timeout.ms is {limit}",
            "the worker's exactly-once mode does not start",
            f"transaction.timeout.ms={limit} or less",
            check="transaction-timeout",
        )


def _finding(
    key: str, severity: Severity, what: str, cost: str, mend: str, *, check: str = "client-setting"
) -> Finding:
    return Finding(check, severity, key, f"{key} {what}", cost, mend)
