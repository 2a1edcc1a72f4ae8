"""Hands runs of orderly partitions to listener threads, and takes their answers. Owned by the poll thread."""

from collections.abc import Iterable

from rocketshim.consumer.dispatch import Dispatch, Result
from rocketshim.consumer.orderly.partition import OrderlyPartition, OrderlyTask
from rocketshim.core.consume_orderly import BatchAnswer

__all__ = ["OrderlyDispatch"]


class OrderlyDispatch(Dispatch[OrderlyPartition, OrderlyTask, BatchAnswer]):
    """Hands runs to listener threads, one run of each queue at a time.

    Thread-safety: none; only the poll thread uses it.
    """

    def hand_out(self, queues: Iterable[OrderlyPartition]) -> None:
        """Hand out a run of each queue that is ready."""
        for queue in queues:
            task = queue.take(self._batch_count)
            if task is not None:
                self.in_flight += len(task.messages)
                self.pool.submit(task)

    def _take(self, result: Result[OrderlyTask, BatchAnswer]) -> None:
        task, answers = result.chunk, result.outcomes or []
        self.in_flight -= len(task.messages)
        if result.died is not None:
            self.died = self.died or result.died
            return
        stopped = sum(answer.msg_count for answer in answers if answer.stops)
        self.counts.failed += stopped
        self.counts.succeeded += sum(answer.msg_count for answer in answers) - stopped
        self.counts.add_call(result.elapsed_ns, task.messages, self._wall_ms)
        task.queue.report(task, answers)
