"""The results of commits: those of asynchronous ones arrive in a callback of the consumer."""

from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, TopicPartition

from rocketshim.core.clock import Clock
from rocketshim.worker.assignment import AssignedPartition

__all__ = ["CommitResults"]


class CommitResults:
    """Takes the results of commits; the next commit repeats positions that were not committed.

    Args:
        assigned: the partitions assigned to the worker, by number.
        clock: the monotonic clock.
        alarm: called with an event and its facts.

    Thread-safety: none; the worker's thread, which polls the consumer.
    """

    def __init__(self, assigned: Mapping[int, AssignedPartition], clock: Clock, alarm: Callable[..., None]) -> None:
        self._fail_since_ns: int | None = None
        self._assigned = assigned
        self._clock = clock
        self._alarm = alarm

    def failing_since_ns(self) -> int | None:
        """Return since when commits fail; None: they succeed, or nothing is due or to be committed any more."""
        now_ns = self._clock.monotonic_ns()
        if not any(_has_work(each, now_ns) for each in self._assigned.values()):
            self._fail_since_ns = None  # what could not be committed was revoked
        return self._fail_since_ns

    def succeeded(self) -> None:
        """Note that a commit has succeeded."""
        self._fail_since_ns = None

    def failed(self) -> None:
        """Note that a commit has failed."""
        if self._fail_since_ns is None:
            self._fail_since_ns = self._clock.monotonic_ns()

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take the result of one commit."""
        answered = {item.partition for item in partitions}
        for number, each in self._assigned.items():
            if number in answered or not answered:
                each.awaits_commit = False
        if error is None and all(item.error is None for item in partitions):
            self.succeeded()
            return
        self.failed()
        for item in partitions:
            if error is not None or item.error is not None:
                assigned = self._assigned.get(item.partition)
                if assigned is not None:
                    assigned.commit_failed(item.offset)
                self._alarm("worker.commit-failed", partition=item.partition, error=str(error or item.error))


def _has_work(assigned: AssignedPartition, now_ns: int) -> bool:
    due_ns = assigned.queue.oldest_due_ns
    return assigned.awaits_commit or assigned.uncommitted is not None or (due_ns is not None and due_ns <= now_ns)
