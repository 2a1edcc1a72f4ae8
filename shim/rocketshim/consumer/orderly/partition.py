"""One queue that an orderly consumer holds, between the poll loop and the core; and a run that a listener thread has.

An `OrderlyPartition` shows the loop what a `ProcessQueue` shows it; the rules are `OrderlyQueue`'s. The poll thread
owns it; a listener thread reads its `OrderlyTask` and sets the two last attributes of that.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Final

from rocketshim.core.consume_orderly import BatchAnswer, OrderlyAction, OrderlyRun
from rocketshim.core.orderly_queue import OrderlyQueue
from rocketshim.core.queue_lock_actions import ReconsumeCounts
from rocketshim.group.lease import Lease
from rocketshim_topics.hops import Failure

__all__ = ["OrderlyPartition", "OrderlyTask"]

Progress = tuple[int | None, ReconsumeCounts]
"""Position and failed attempts, as the group's log carries them."""

_RUN_MIN: Final = 32
_RUN_MAX: Final = 1_000


class OrderlyTask:
    """A run of one queue for one listener thread.

    Attributes:
        queue: the place it was taken from.
        lease: to be asked before each listener call; None: no lock is needed.
        messages: in order; the run as the core keeps it.
        counts: failed attempts by offset.
        withheld: set by the poll thread: begin nothing more.
        failure: set by the listener thread: why the run ended before its end.
        malformed: set by the listener thread: the message that ended it breaks the wire format, for this reason.
        passed: written by the listener thread, by key: both of these for messages that failed and did not end the run,
            by offset.
        key_of: by key: what tells a message's key; None: a failure ends the run.
    """

    __slots__ = ("counts", "failure", "key_of", "lease", "malformed", "messages", "passed", "queue", "withheld")

    def __init__(
        self, queue: "OrderlyPartition", run: OrderlyRun[Any], key_of: Callable[[Any], Hashable] | None = None
    ) -> None:
        self.queue = queue
        self.lease = queue.lease
        self.messages = run.messages
        self.counts = run.reconsume_counts
        self.withheld = False
        self.failure: Failure | None = None
        self.malformed: str | None = None
        self.passed: dict[int, tuple[Failure | None, str | None]] = {}
        self.key_of = key_of

    def why(self, message: Any) -> tuple[Failure | None, str | None]:
        """Why a message failed, and in which way it breaks the wire format, if it does."""
        return self.passed.get(message.offset(), (self.failure, self.malformed))

    @property
    def dropped(self) -> bool:
        """Whether its queue is given up."""
        return self.queue.dropped

    def stored(self, messages: Collection[Any]) -> None:
        """Dead letters are stored."""
        self.queue.stored(self, messages)


class OrderlyPartition:
    """A queue of one assignment under one lease.

    Args:
        topic, partition, epoch: of the assignment.
        lease: None: no lock is needed (broadcasting).
        queue: the core.
        key_of: as the core has it.
        now_ms: monotonic time in ms.
        perform: called with what the core wants done.

    Attributes:
        paused: for `flow_control`.
        withheld: nothing more begins.
        out: the run that a listener thread has.
        told: the progress that the group's log was told last.
        is_fresh: nothing was put yet.
        next_put: offset after the last message that was put.
        suspect_until: set by the listener thread: up to this offset messages come again of which one failed that has
            headers nobody can read; -1: there is none.

    Thread-safety: none; the poll thread's.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        epoch: int,
        *,
        lease: Lease | None,
        queue: OrderlyQueue[Any],
        key_of: Callable[[Any], Hashable] | None = None,
        now_ms: Callable[[], int],
        perform: Callable[["OrderlyPartition", OrderlyTask, Iterable[OrderlyAction[Any]]], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.epoch = epoch
        self.lease = lease
        self.paused = False
        self.withheld = False
        self.out: OrderlyTask | None = None
        self.told: Progress | None = None
        self.is_fresh = True
        self.next_put = 0
        self.suspect_until = -1
        self._queue = queue
        self._key_of = key_of
        self._now_ms = now_ms
        self._perform = perform
        self._limit = _RUN_MIN

    # --- what the loop asks of every queue ---------------------------------------------------------------------------

    @property
    def dropped(self) -> bool:
        """Whether it is given up."""
        return self._queue.dropped

    @property
    def msg_count(self) -> int:
        """Messages that are not finished."""
        return self._queue.msg_count

    @property
    def msg_bytes(self) -> int:
        """Bytes of them."""
        return self._queue.msg_bytes

    @property
    def span(self) -> int:
        """Distance in offsets from the oldest of them to the newest message."""
        return self._queue.span

    @property
    def next_offset(self) -> int | None:
        """The position to commit; None: nothing new, or the lease does not hold: then nothing may be committed."""
        return self._queue.next_offset if self.holds() else None

    def oldest_in_work_ms(self, now_ms: int) -> int:
        """Not known: orderly consumption has no consume timeout, and so no sweeps."""
        del now_ms
        return 0

    @property
    def settled(self) -> bool:
        """Whether no listener holds a message and no dead letter is under way."""
        return not self._queue.busy

    def put(self, messages: Sequence[Any]) -> None:
        """Take fetched messages. Raises ValueError when their offsets do not rise."""
        if not self.withheld:
            self._queue.put(messages)
            self.is_fresh = False
            self.next_put = (messages[-1].offset() or 0) + 1

    def withhold(self) -> int:
        """Begin nothing more; a run that is out ends at its present call."""
        self.withheld = True
        if self.out is not None:
            self.out.withheld = True
        return 0

    def drop(self) -> None:
        """Forget everything; results that come are ignored."""
        self._queue.drop()

    # --- orderly -----------------------------------------------------------------------------------------------------

    def holds(self) -> bool:
        """Whether messages may be handed out and committed now."""
        return self.lease is None or self.lease.holds(self._now_ms())

    def take(self, batch_count: int) -> OrderlyTask | None:
        """The next run, or None."""
        if self.withheld or self._queue.dropped or not self.holds():
            return None
        run = self._queue.take(max(self._limit, batch_count), self._now_ms())
        if run is None:
            return None
        self.out = OrderlyTask(self, run, self._key_of)
        return self.out

    def report(self, task: OrderlyTask, answers: Sequence[BatchAnswer]) -> None:
        """A listener thread is through with a run; the next one is as long as it can do in about two time slices."""
        done = sum(answer.msg_count for answer in answers)
        self._limit = min(max(2 * done, _RUN_MIN), _RUN_MAX)
        self.out = None
        self._perform(self, task, self._queue.report(answers, self._now_ms()))

    def stored(self, task: OrderlyTask, messages: Iterable[Any]) -> None:
        """Dead letters are stored."""
        for message in messages:
            self._perform(self, task, self._queue.dead_lettered(message.offset(), stored=True, now_ms=self._now_ms()))

    @property
    def progress(self) -> Progress:
        """Position and counts for the group's log, whatever the lease says."""
        return self._queue.next_offset, self._queue.reconsume_counts

    @property
    def failing(self) -> tuple[int, int]:
        """Failed attempts of the oldest message that fails, and for how long it does, in ms."""
        return self._queue.failing(self._now_ms())

    @property
    def next_wakeup_ms(self) -> int | None:
        """When a run may be taken: 0 now, None not before something happens."""
        return None if self.withheld else self._queue.next_wakeup_ms
