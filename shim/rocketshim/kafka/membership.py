"""Asks the coordinator of a group about its members, through clients that no outage makes dangerous.

librdkafka ends the process if a request to a group's coordinator reaches its time limit and the coordinator comes back
later (librdkafka 4605; 2.16, our measurement: each time). So these requests have the longest limit that it accepts, and
a client of their own, which is dropped to give up.
"""

import threading
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.logs import safe_logger
from rocketshim_topics.names import TopicNames

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["RUN_WORKER", "GroupQuestion", "WorkerWatch", "described_groups", "worker_watch"]

_LOG = safe_logger("rocketshim.consumer")
RUN_WORKER: Final = "rocketshim worker --allow TOPIC"
"""What a program that finds no worker names in its log."""
_LIMIT_S: Final = 3_600.0
_GIVE_UP_MS: Final = 5_000
_INTERVAL_MS: Final = 500
_AGAIN_MS: Final = 600_000
_MISSING_AGAIN_MS: Final = 30_000
_SURE_MS: Final = 5_000  # workers that start, or hand over
_ANSWER_MS: Final = 10_000


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


def worker_watch(
    make_admin: Callable[[dict[str, Any]], Any] | None,
    settings: dict[str, Any],
    names: TopicNames,
    log: Callable[[str], None],
) -> "WorkerWatch | None":
    """Return what knows whether a worker of this namespace runs; None: a Kafka in memory has no such requests.

    `log` gets the group of the workers that has no member.
    """
    group = names.worker_group
    return None if make_admin is None else WorkerWatch(GroupQuestion(make_admin, settings, group), partial(log, group))


class WorkerWatch:
    """Knows whether a worker runs, by the members of the workers' group. Any thread turns it, and never waits.

    It asks when it is first turned and every 10 minutes, and every 30 s while there is none. A worker is missing if two
    answers 5 s apart say so. Without the right to ask, or an answer, it says nothing. Each question has a client of its
    own.

    Decides: How does a program notice that no worker runs? It logs it at its start and every 10 minutes
        (`consumer.no-worker`, `producer.no-worker`), and promises no time in the lines of failed attempts.
    """

    def __init__(self, question: GroupQuestion, log: Callable[[], None]) -> None:
        self.is_missing = False
        self._question = question
        self._log = log
        self._next_ms: int | None = None
        self._asked_ms: int | None = None
        self._logged_ms = -_AGAIN_MS
        self._doubts = 0
        self._turning = threading.RLock()  # while one thread has it, the others pass by; a log handler may call back

    def turn(self, now_ms: int) -> None:
        """Ask, or take an answer, if it is time to."""
        if self._is_due(now_ms) and self._turning.acquire(blocking=False):
            try:
                is_to_be_logged = self._is_due(now_ms) and self._turn(now_ms)
            finally:
                self._turning.release()
            if is_to_be_logged:
                self._log()

    def _is_due(self, now_ms: int) -> bool:
        return self._next_ms is None or now_ms >= self._next_ms

    def _turn(self, now_ms: int) -> bool:
        """Ask, or take an answer; return whether it is to be logged that no worker runs."""
        asked_ms = self._asked_ms = now_ms if self._asked_ms is None else self._asked_ms
        try:
            found = self._question.answer(now_ms)
        except (KafkaException, OSError):  # no client can be made
            found, asked_ms = None, now_ms - _ANSWER_MS
        if found is None and now_ms - asked_ms < _ANSWER_MS:
            self._next_ms = now_ms + _INTERVAL_MS
            return False
        self._question.drop_client()
        self._asked_ms = None
        self._doubts = self._doubts + 1 if found is not None and not found.members else 0
        self.is_missing = self._doubts > 1
        waits_ms = {0: _AGAIN_MS, 1: _SURE_MS}.get(self._doubts, _MISSING_AGAIN_MS)
        self._next_ms = now_ms + waits_ms
        is_to_be_logged = self.is_missing and now_ms - self._logged_ms >= _AGAIN_MS
        if is_to_be_logged:
            self._logged_ms = now_ms
        return is_to_be_logged

    def close(self) -> None:
        """Drop the client of an open question; the next turn asks again."""
        with self._turning:
            self._question.drop_client()
