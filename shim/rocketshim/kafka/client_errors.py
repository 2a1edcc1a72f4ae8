"""Errors that a Kafka consumer reports while it goes on: what they mean, and which of them get a line.

An error for which there is a way out is explained by the setting, the limit and the way out. An error that repeats is
not logged each time (`core.log_limits`).
"""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from rocketshim.core.log_limits import RepeatedErrors
from rocketshim.kafka.client_config import KAFKA_SESSION_MS

__all__ = ["REFUSES_TO_JOIN", "ErrorLines", "explained_error"]

_UNSUPPORTED_ASSIGNOR: Final = 112

REFUSES_TO_JOIN: Final = frozenset(
    {
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.INVALID_GROUP_ID,
        _UNSUPPORTED_ASSIGNOR,
    }
)
"""Codes by which the coordinator refuses a member: it is not in the group, and no other member waits for it."""


def explained_error(error: KafkaError, group: str, settings: Mapping[str, Any]) -> str:
    """Return what an error of a consumer with these settings means and what to do; `""`: nothing is known."""
    code, instance = error.code(), settings.get("group.instance.id")
    if code == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
        beside = (
            "; or, with brokers of Kafka 4.0 and later, give it client={'group.protocol': 'consumer'}, which "
            'joins beside them (docs: Consuming, "In a group of plain members")'
        )
        return (
            f"group {group!r} has members with another assignment strategy than cooperative-sticky, which this one "
            "needs (plain Kafka clients: range). Stop those members, and it joins by itself at their committed "
            "positions" + ("" if settings.get("group.protocol") == "classic" else beside)
        )
    if code == KafkaError.INVALID_SESSION_TIMEOUT:
        given = settings.get("session.timeout.ms", KAFKA_SESSION_MS)
        return (
            f"session.timeout.ms={given} is outside of the limits of the brokers, group.min.session.timeout.ms and "
            "group.max.session.timeout.ms (6000 and 1800000 if nobody has set them): set it within them, "
            "client={'session.timeout.ms': …}, or change the limits; an orderly consumer takes lock_lease_ms by default"
        )
    if code == KafkaError.GROUP_MAX_SIZE_REACHED:
        return f"group {group!r} has as many members as group.max.size of the brokers allows: stop one, or raise it"
    if code == _UNSUPPORTED_ASSIGNOR:
        return "the brokers do not know group.remote.assignor: leave it out, or add it to group.consumer.assignors"
    if instance and (code == KafkaError.FENCED_INSTANCE_ID or "instance" in error.str()):  # of KIP-848: "instance ID"
        return (
            f"another member of group {group!r} has the same group.instance.id={instance}: give each process its own. "
            "(The processes of `rocketshim run --processes` get numbers behind it; two such commands need two ids)"
        )
    return ""


class ErrorLines:
    """Decides which errors of one consumer are logged, and with which facts."""

    def __init__(self, group: str, settings: Mapping[str, Any]) -> None:
        self._group = group
        self._settings = settings
        self._repeated = RepeatedErrors()

    def facts(self, error: KafkaError, topic: str | None, now_ms: int) -> dict[str, Any] | None:
        """Return the facts of the line about an error; None: it has been logged, and is only counted."""
        count = self._repeated.note((error.code(), topic), now_ms)
        if not count:
            return None
        facts: dict[str, Any] = {"error": str(error), "topic": topic}
        if count > 1:
            return facts | {"count": count}
        hint = self.explained(error)
        return facts | ({"hint": hint} if hint else {})

    def explained(self, error: KafkaError) -> str:
        """Return `explained_error` of this consumer."""
        return explained_error(error, self._group, self._settings)
