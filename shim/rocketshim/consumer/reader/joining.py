"""How a consumer joins its group: errors that keep it out, and members that the group waits for."""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from rocketshim.kafka.client_errors import REFUSES_TO_JOIN, ErrorLines
from rocketshim.kafka.membership import JOIN_PATIENCE_MS, JoinWatch
from rocketshim.logs import safe_logger

__all__ = ["Joining"]

_LOG = safe_logger("rocketshim.consumer")
_AWAITED: Final = (
    "one of these members does not answer, and the group waits for it: one that has ended without stop() is removed "
    "when its session ends (session.timeout.ms, 45 s by default)"
)


class Joining:
    """What a consumer knows about its way into the group, and logs about it. Owned by the thread of the consumer.

    `is_refused` (any thread may read it): the group refuses the consumer, which joins when the cause is gone. No member
    waits for it.
    """

    def __init__(
        self, group: str = "", settings: Mapping[str, Any] | None = None, watch: JoinWatch | None = None
    ) -> None:
        self.is_refused = False
        self._group = group
        self._errors = ErrorLines(group, settings or {})
        self._watch = watch

    def look(self, member_id: str | None, now_ms: int, *, is_joining: bool) -> None:
        """Log, once, which members the group waits for, if the consumer has been joining it for 5 s."""
        if self._watch is None:
            return
        others = self._watch.others(member_id, now_ms, is_joining=is_joining)
        if others:
            facts = {"group": self._group, "waited_s": JOIN_PATIENCE_MS // 1_000, "members": others, "hint": _AWAITED}
            _LOG.warning("consumer.group-awaited", extra=facts)
        if others or not is_joining:
            self.close()

    def log_error(self, error: KafkaError, topic: str | None, now_ms: int, *, has_joined: bool) -> None:
        """Log an error of the client, after which it goes on; one that repeats only now and then."""
        self.is_refused = not has_joined and (self.is_refused or error.code() in REFUSES_TO_JOIN)
        facts = self._errors.facts(error, topic, now_ms)
        if facts is not None:
            _LOG.warning("consumer.client-error", extra=facts)

    def explained(self, error: KafkaError) -> str:
        """Return what an error means and what to do, as a text in brackets; "" if nothing is known."""
        hint = self._errors.explained(error)
        return f" ({hint})" if hint else ""

    def close(self) -> None:
        """Look for nothing any more. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
