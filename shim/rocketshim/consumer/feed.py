"""The listeners, as the poll thread sees them: it hands out messages, and takes results and reports of failed ones.

Owned by the poll thread. While failed messages are on their way to their next topic, no wait is longer than 5 ms, and
none waits for listeners alone: the producer's reports arrive only through its `poll`.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Generic

from rocketshim.consumer.dispatch import Dispatch
from rocketshim.consumer.reader.partition_queue import QueueT
from rocketshim.consumer.send_back import FailedSink

__all__ = ["ListenerFeed"]

_REPORTS_S: Final = 0.005
_DRAIN_STEP_S: Final = 0.01


class ListenerFeed(Generic[QueueT]):
    """The listeners of one consumer, and what failed in them.

    Args:
        dispatch: hands messages to listener threads.
        sink: gets failed messages.
        now_ms: returns monotonic time in ms.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self, dispatch: Dispatch[QueueT, Any, Any], sink: FailedSink, now_ms: Callable[[], int]) -> None:
        self.dispatch = dispatch
        self.sink = sink
        self._now_ms = now_ms

    @property
    def is_busy(self) -> bool:
        """Return whether a listener has messages, or a failed message is not stored yet."""
        return self.dispatch.in_flight > 0 or self.sink.outstanding > 0

    @property
    def is_saturated(self) -> bool:
        """Return whether every listener thread has work, or hops are on their way: waiting longer pays."""
        return self.sink.outstanding > 0 or self.dispatch.in_flight >= 2 * self.dispatch.pool.size

    def take(self, reports_s: float = 0.0) -> None:
        """Process all results and delivery reports that have arrived; wait up to `reports_s` seconds for a report."""
        now_ms = self._now_ms()
        self.sink.turn(now_ms)
        self.dispatch.take_results(now_ms)
        if self.sink.outstanding:
            self.sink.settle(now_ms, reports_s)

    def wait(self, timeout_s: float) -> None:
        """Wait for one result (for a delivery report, if no listener has work); process all that have arrived."""
        outstanding = self.sink.outstanding
        if outstanding:
            timeout_s = min(timeout_s, _REPORTS_S)
        if outstanding and not self.dispatch.in_flight:
            self.take(timeout_s)
            return
        self.dispatch.wait(timeout_s)
        self.take()

    def drain(self, queues: Collection[QueueT], others: Callable[[], Iterable[QueueT]], deadline_ms: int) -> None:
        """Hand out nothing more of these queues, and wait until they have nothing in progress.

        Args:
            queues: the queues.
            others: returns the queues whose messages are handed out meanwhile.
            deadline_ms: end of the wait at the latest, monotonic ms.
        """
        self.dispatch.withhold(queues)
        while any(not queue.settled for queue in queues):
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0:
                return
            self.wait(min(left_ms / 1_000, _DRAIN_STEP_S))
            self.dispatch.hand_out(others())
