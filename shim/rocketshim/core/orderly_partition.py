"""A partition of an orderly consumer under its lease, and a run of it for a listener thread.

An `OrderlyPartition` has the same interface for the loop as a `ProcessQueue`; the rules are in `OrderlyQueue`. The poll
thread owns both classes. A listener thread reads its `OrderlyTask` and sets `began_ms`, `failure`, `malformed` and
`passed` of the task.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rocketshim.core.consume_orderly import BatchAnswer, OrderlyAction
from rocketshim.core.orderly_queue import OrderlyQueue
from rocketshim.locks.lease import Lease, ReconsumeCounts
from rocketshim_topics.hops import Failure

__all__ = ["OrderlyPartition", "OrderlyTask", "Progress", "StoppedKeys"]

Progress = tuple[int | None, ReconsumeCounts]
"""Position and failed attempts, in the form of the group's log."""

_RUN_MIN: Final = 32
_RUN_MAX: Final = 1_000


class OrderlyTask:
    """A run of one queue for one listener thread.

    Attributes:
        queue: the partition of the run.
        lease: the lease to check before each listener call.
        messages: the messages in order; the same list as in the core.
        counts: failed attempts by offset (`OrderlyQueue.counts`).
        withheld: set by the poll thread: start no further call.
        began_ms: set by the listener thread: when it began the run; None: it has not.
        failure: set by the listener thread: why the run stopped early.
        malformed: set by the listener thread: why the message that stopped the run violates the wire format.
        passed: set by the listener thread if the order is by key: `failure` and `malformed` of the messages that failed
            without stopping the run, by offset.
        key_of: returns a message's key, if the order is by key; None: a failure ends the run.
    """

    __slots__ = (
        "began_ms", "counts", "failure", "key_of", "lease", "malformed", "messages", "passed", "queue", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        queue: "OrderlyPartition",
        messages: list[Any],
        counts: Mapping[int, int],
        key_of: Callable[[Any], Hashable] | None = None,
    ) -> None:
        self.queue = queue
        self.lease = queue.lease
        self.messages = messages
        self.counts = counts
        self.withheld = False
        self.began_ms: int | None = None
        self.failure: Failure | None = None
        self.malformed: str | None = None
        self.passed: dict[int, tuple[Failure | None, str | None]] = {}
        self.key_of = key_of

    def why(self, message: Any) -> tuple[Failure | None, str | None]:
        """Return why a message failed, and why it violates the wire format, if it does."""
        return self.passed.get(message.offset(), (self.failure, self.malformed))

    def batches(self, begin: int, end: int, size: int) -> Iterator[list[Any]]:
        """Yield the messages from index `begin` up to `end` in batches; by key, a message that has failed is alone.

        Otherwise a message that keeps failing would take down the same messages of other keys with each attempt.
        """
        while begin < end:
            until = min(begin + size, end)
            if self.key_of is not None and self.counts:
                failed = (at for at in range(begin, until) if self.messages[at].offset() in self.counts)
                until = max(next(failed, until), begin + 1)
            yield self.messages[begin:until]
            begin = until

    @property
    def dropped(self) -> bool:
        """Whether the consumer has released the run's queue."""
        return self.queue.dropped

    def stored(self, messages: Collection[Any]) -> None:
        """Record that dead letters are stored."""
        self.queue.stored(self, messages)


class StoppedKeys:
    """For order by key: the keys with a failed message in this run, and the messages behind the failed ones.

    Attributes:
        keys: the keys for which the listener is not called again in this run.
        left: messages of these keys that the run has reached and skipped, by offset.
    """

    __slots__ = ("_key_of", "_task", "keys", "left")

    def __init__(self, task: OrderlyTask) -> None:
        self._task = task
        self._key_of = task.key_of
        self.keys: set[Hashable] = set()
        self.left: dict[int, Any] = {}

    def goes_on(self, message: Any, answer: BatchAnswer) -> bool:
        """Return whether the run continues after a failed message; if so, skip further messages of its key."""
        task = self._task
        if self._key_of is None or not answer.auto_commit:
            return False
        self.keys.add(self._key_of(message))
        task.passed[message.offset()] = (task.failure, task.malformed)
        task.failure = task.malformed = None
        return True

    def leaves(self, message: Any) -> bool:
        """Return whether a message is behind a failed one of its key, so that it stays for a later run."""
        if self._key_of is None or self._key_of(message) not in self.keys:
            return False
        self.left[message.offset()] = message
        return True

    def put_behind(self, answers: Iterable[BatchAnswer]) -> None:
        """Move skipped messages behind the answered ones, since answers must cover the beginning of a run."""
        if self.left:
            answered = sum(answer.msg_count for answer in answers)
            others = [message for message in self._task.messages if message.offset() not in self.left]
            self._task.messages[:] = [*others[:answered], *self.left.values(), *others[answered:]]


class OrderlyPartition:
    """A queue of one assignment under one lease; `perform` does the actions that the core decides on."""

    def __init__(
        self,
        topic: str,
        partition: int,
        epoch: int,
        *,
        lease: Lease,
        queue: OrderlyQueue[Any],
        key_of: Callable[[Any], Hashable] | None = None,
        now_ms: Callable[[], int],
        perform: Callable[[OrderlyTask, Iterable[OrderlyAction[Any]]], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.epoch = epoch
        self.lease = lease
        self.withheld = False  # no further run starts
        self.out: OrderlyTask | None = None  # the run that a listener thread has
        self.reported: Progress | None = None  # the progress last reported to the group's log
        self.is_alarmed = False  # an alarm reports that it awaits a commit
        self.next_put = 0  # offset after the last message that was put, or that `skip_to` passed
        # set by the listener thread: offsets up to this one are retried, since one of them has unreadable headers
        self.suspect_until = -1
        self._queue = queue
        self._key_of = key_of
        self._now_ms = now_ms
        self._perform = perform
        self._limit = _RUN_MIN

    # --- the interface that the loop needs of every queue ------------------------------------------------------------

    @property
    def dropped(self) -> bool:
        """Whether the consumer has released the partition."""
        return self._queue.dropped

    @property
    def msg_count(self) -> int:
        """The number of unfinished messages."""
        return self._queue.msg_count

    @property
    def msg_bytes(self) -> int:
        """The size of the unfinished messages in bytes."""
        return self._queue.msg_bytes

    @property
    def span(self) -> int:
        """The distance in offsets from the oldest unfinished message to the newest message."""
        return self._queue.span

    @property
    def next_offset(self) -> int | None:
        """The offset to commit; None: nothing new, or the lease is not valid, so that nothing may be committed."""
        return self._queue.next_offset if self.lease.holds(self._now_ms()) else None

    def oldest_in_work_ms(self, now_ms: int) -> int:
        """Return how long a listener thread has had the run, in ms; its last call began at most 100 ms later."""
        began_ms = None if self.out is None else self.out.began_ms
        return 0 if began_ms is None else now_ms - began_ms

    @property
    def settled(self) -> bool:
        """Whether no listener has a message and no dead letter is in flight."""
        return not self._queue.busy

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is in progress, and nothing but further attempts can be handed out now."""
        wakeup_ms = self._queue.next_wakeup_ms
        is_later = wakeup_ms is None or wakeup_ms > self._now_ms()
        return self.settled and (is_later or self._queue.is_behind_failures)

    @property
    def awaits_commit(self) -> bool:
        """Whether every buffered message was answered with success and is not committed."""
        return self.settled and self._queue.next_wakeup_ms is None and self.msg_count > 0

    def put(self, messages: Sequence[Any]) -> None:
        """Add fetched messages; raise ValueError if their offsets do not increase."""
        if not self.withheld:
            self._queue.put(messages)
            self.next_put = (messages[-1].offset() or 0) + 1

    def skip_to(self, position: int) -> None:
        """Have the position to commit pass offsets that no reader sees; see `OrderlyQueue.skip_to`."""
        if position > self.next_put and not self.withheld:
            self._queue.skip_to(position)
            self.next_put = position

    def withhold(self) -> int:
        """Start no further run; a run in a listener thread ends after its current call."""
        self.withheld = True
        if self.out is not None:
            self.out.withheld = True
        return 0

    def drop(self) -> None:
        """Drop all messages; later results are ignored."""
        self._queue.drop()

    # --- orderly -----------------------------------------------------------------------------------------------------

    def take(self, batch_count: int, limit: int | None = None) -> OrderlyTask | None:
        """Return the next run, of `limit` messages at most if it is set, or None."""
        if self.withheld or self._queue.dropped or not self.lease.holds(self._now_ms()):
            return None
        messages = self._queue.take(limit or max(self._limit, batch_count), self._now_ms())
        if messages is None:
            return None
        self.out = OrderlyTask(self, messages, self._queue.counts, self._key_of)
        return self.out

    def report(self, task: OrderlyTask, answers: Sequence[BatchAnswer]) -> None:
        """Process the answers to a run; limit the next run to about what takes two time slices."""
        done = sum(answer.msg_count for answer in answers)
        self._limit = min(max(2 * done, _RUN_MIN), _RUN_MAX)
        self.out = None
        self._perform(task, self._queue.report(answers, self._now_ms()))

    def stored(self, task: OrderlyTask, messages: Iterable[Any]) -> None:
        """Record that dead letters are stored."""
        for message in messages:
            self._perform(task, self._queue.dead_lettered(message.offset(), self._now_ms()))

    @property
    def progress(self) -> Progress:
        """Position and failure counts for the group's log, even if the lease is not valid."""
        return self._queue.next_offset, self._queue.reconsume_counts

    @property
    def failing(self) -> tuple[int, int]:
        """The failed attempts of the oldest failing message, and how long it has been failing, in ms."""
        return self._queue.failing(self._now_ms())

    @property
    def next_wakeup_ms(self) -> int | None:
        """The time at which a run may be taken: 0: now; None: not before another event."""
        return None if self.withheld else self._queue.next_wakeup_ms
