"""Handle failed messages where nothing is retried (BROADCASTING): log, count and drop them.

Source: `ConsumeMessageConcurrentlyService#processConsumeResult`, case BROADCASTING. Owned by the poll thread.
"""

from typing import Any

from rocketshim.consumer.reader.partition_queue import Work
from rocketshim.consumer.send_back import SendBackCounts
from rocketshim.core.next_hop import FailedMessage
from rocketshim.failures import Attempt, FailureLog
from rocketshim.logs import safe_logger
from rocketshim_topics import DelayLevels, Failure, TopicNames
from rocketshim_topics.wire import coordinates

__all__ = ["DropFailed"]

_LOG = safe_logger("rocketshim.consumer")


class DropFailed:
    """Replaces `SendBack` in BROADCASTING.

    Args:
        group, names, levels: group, topic names and delay levels of the consumer, for the log.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self, group: str, names: TopicNames, levels: DelayLevels) -> None:
        self.counts = SendBackCounts()
        self._failures = FailureLog(_LOG, group, names, levels)
        self._now_ms = 0  # as of the last `turn`

    @property
    def outstanding(self) -> int:
        """Return 0: no hop is ever on its way."""
        return 0

    def open(self) -> None:
        """Do nothing: there is no producer."""

    def send(self, chunk: Work, outcome: FailedMessage) -> None:
        """Drop a failed message."""
        self._drop(chunk, outcome.message, outcome.failure)

    def send_timed_out(self, chunk: Work, message: Any, at_ms: int) -> None:
        """Drop a message whose listener call has taken too long; the call itself continues."""
        text = "the listener call lasted longer than consume_timeout_ms"
        self._drop(chunk, message, Failure("ConsumeTimeout", text, at_ms))

    def suspended(self, message: Any, failure: Failure, number: int, delay_ms: int) -> None:
        """Log that a message of an orderly queue has failed."""
        self._failures.suspended(message, failure, number, delay_ms, self._now_ms)

    def settle(self, now_ms: int, wait_s: float = 0.0) -> None:
        """Do nothing: no hop is on its way."""

    def turn(self, now_ms: int) -> None:
        """Begin a turn of the loop: log how many failures had no line of their own."""
        self._now_ms = now_ms
        self._failures.turn(now_ms)

    def close(self) -> None:
        """Do nothing: there is no producer."""

    def _drop(self, chunk: Work, message: Any, failure: Failure) -> None:
        self.counts.dropped += 1
        chunk.stored((message,))
        count = self._failures.add(failure, self._now_ms, is_final=True)
        if count:
            record = coordinates(message)
            end = "it is dropped, as always in BROADCASTING"
            self._failures.write(failure, Attempt(record, record, 1, 1, None, event="dropped", end=end), count)
