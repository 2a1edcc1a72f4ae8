"""Handle failed messages where nothing is retried (BROADCASTING): log, count and drop them.

Source: `ConsumeMessageConcurrentlyService#processConsumeResult`, case BROADCASTING. Owned by the poll thread.
"""

from typing import Any

from rocketshim.consumer.outcome import FailedMessage
from rocketshim.consumer.reader.partition_queue import Work
from rocketshim.consumer.send_back import SendBackCounts
from rocketshim.logs import safe_logger
from rocketshim_topics.wire import coordinates

__all__ = ["DropFailed"]

_LOG = safe_logger("rocketshim.consumer")


class DropFailed:
    """Replaces `SendBack` in BROADCASTING.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self) -> None:
        self.counts = SendBackCounts()

    @property
    def outstanding(self) -> int:
        """Return 0: no hop is ever on its way."""
        return 0

    def open(self) -> None:
        """Do nothing: there is no producer."""

    def send(self, chunk: Work, outcome: FailedMessage) -> None:
        """Drop a failed message."""
        failure = outcome.failure
        self._drop(chunk, outcome.message, failure.exception_class, failure.text)

    def send_timed_out(self, chunk: Work, message: Any, at_ms: int) -> None:
        """Drop a message whose listener call has taken too long; the call itself continues."""
        del at_ms
        self._drop(chunk, message, "ConsumeTimeout", "the listener call lasted longer than consume_timeout_ms")

    def settle(self, now_ms: int, wait_s: float = 0.0) -> None:
        """Do nothing: no hop is on its way."""

    def close(self) -> None:
        """Do nothing: there is no producer."""

    def _drop(self, chunk: Work, message: Any, name: str, text: str) -> None:
        record = coordinates(message)
        _LOG.warning("consumer.dropped", extra={"record": record, "error_class": name, "error": text})
        self.counts.dropped += 1
        chunk.stored((message,))
