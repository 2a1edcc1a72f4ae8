"""Asks the coordinator of a group about its members, through clients that no outage makes dangerous.

librdkafka ends the process if a request to a group's coordinator reaches its time limit and the coordinator comes back
later (librdkafka 4605; 2.16, our measurement: each time). So these requests have the longest limit that it accepts, and
a client of their own, which is dropped to give up.
"""

from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.logs import safe_logger

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["GroupQuestion", "described_groups"]

_LOG = safe_logger("rocketshim.consumer")
_LIMIT_S: Final = 3_600.0
_GIVE_UP_MS: Final = 5_000
_INTERVAL_MS: Final = 500


def described_groups(
    make_admin: Callable[[], Any], groups: list[str], timeout_s: float, **options: Any
) -> dict[str, Any]:
    """Return the description of each group, or the `KafkaException` of a group that is not described in time.

    The admin client is made for this, and dropped before this returns.
    """
    admin = make_admin()
    futures = admin.describe_consumer_groups(groups, request_timeout=_LIMIT_S, **options) if groups else {}
    wait(futures.values(), timeout_s)
    late = KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - no public spelling
    return {
        group: (future.exception() or future.result()) if future.done() else late for group, future in futures.items()
    }


class GroupQuestion:
    """Asks a coordinator about its group, again and again, and never waits for the answer. Owned by one thread."""

    def __init__(self, make_admin: Callable[[dict[str, Any]], Any], settings: dict[str, Any], group: str) -> None:
        self._make_admin = partial(make_admin, settings)
        self._group = group
        self._admin: Any = None
        self._asked: Future[Any] | None = None
        self._asked_ms = -_INTERVAL_MS

    def answer(self, now_ms: int) -> Any | None:
        """Return a description of the group that has arrived, once; None: there is none, and it is asked for."""
        asked, waited_ms = self._asked, now_ms - self._asked_ms
        if asked is None:
            if waited_ms >= _INTERVAL_MS:
                self._admin = self._make_admin() if self._admin is None else self._admin
                futures = self._admin.describe_consumer_groups([self._group], request_timeout=_LIMIT_S)
                self._asked, self._asked_ms = futures[self._group], now_ms
            return None
        self._admin.poll(0)  # for its log lines
        if not asked.done():
            if waited_ms >= _GIVE_UP_MS:
                self.drop_client()
            return None
        self._asked = None
        error = asked.exception()  # not raised: its traceback would keep the client alive
        if error is not None:
            _LOG.debug("consumer.group-unknown", extra={"group": self._group, "error": str(error)})
            return None
        return asked.result()

    def drop_client(self) -> None:
        """Drop the client with an open question; the next question makes a new one."""
        self._admin = self._asked = None
