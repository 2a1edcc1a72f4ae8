"""One queue consumed in order: which messages are handed out next, and which offset may be committed.

There is one listener call at a time per queue. The owner thread takes a *run* of messages (`OrderlyTask`) and hands it
to one listener thread. That thread calls the listener batch by batch and ends at the first answer that stops
(`BatchAnswer.stops`). The answers are reported together and applied in order, by the rules below.
Messages that were not reached are put back.

* A message is pending, in the run, being evaluated (its batch was suspended and dead letters are being stored), open,
  or finished. `OffsetTracker` knows the position to commit.
* After 60 s of runs without a pause the queue yields for 10 ms.
* A person may give up a message that has failed, or have it tried now (`give_up`, `try_now`). It is given up when no
  listener has a message of the queue: without another attempt it becomes a dead letter, as at its limit. Messages that
  are open stay open.
* Counts are kept per offset until the message is finished. They are given at construction (from the release or renewal
  of the last owner) and read for the next owner, so that they survive restarts and rebalances.
* **By key** (`key_of`): a stop blocks only the messages with the keys of the failed batch. They wait in *backlogs*, one
  a key; other messages continue. Within a key the order is kept. The shell's flow control, which reads `msg_count`,
  `msg_bytes` and `span`, bounds the number of messages behind the finished prefix. Without `key_of` the whole queue
  stops.
* By key a run may have several answers that stop, each for its own keys: the listener thread moves messages of a
  stopped key behind those that it answers. Backlogs whose wait is over and messages without a backlog take turns in a
  run, so that neither waits for all of the other. They also take turns in beginning a run, because a slow listener
  answers only the first message of each.

The rules of answers (`ConsumeMessageOrderlyService#processConsumeResult`, `#checkReconsumeTimes`). A message is "open"
when the listener answered it with success and it is not committed:

===========  ================================  ============================================  ==================
auto-commit  answer                            what happens                                  committed
===========  ================================  ============================================  ==================
yes          SUCCESS (or COMMIT, ROLLBACK:     continue                                      batch and all open
             taken for SUCCESS and logged)
yes          SUSPEND, a message is retried     batch back, stop, wait                        –
yes          SUSPEND, all dead-lettered        continue                                      batch and all open
no           SUCCESS                           batch is open, continue                       –
no           COMMIT                            continue                                      batch and all open
no           ROLLBACK                          batch and all open back, counts unchanged,    –
                                               stop, wait
no           SUSPEND, a message is retried     batch back (open messages stay open), stop,   –
                                               wait
no           SUSPEND, all dead-lettered        batch is open, continue                       –
===========  ================================  ============================================  ==================

SUSPEND evaluates each message of the batch. A message at its limit, or one for which the listener asked for it, becomes
a dead letter, and the queue waits until that is stored. Otherwise its count rises by one and it is retried.

*Differs on purpose*: when the dead letter of a message in a mixed batch is stored, that message is never handed out or
dead-lettered again, even after a ROLLBACK (RocketMQ does both in every round). With auto-commit it is finished
immediately. Otherwise it is open, and the next commit includes it.

The wait after a stop is the listener's or the consumer's time, clamped to 10 … 30,000 ms. A message is delivered at
most its limit + 1 times. A limit of -1 means indefinitely; `Suspended` then names the blocked message and its failed
attempts, so that one can alert on it.

A queue belongs to one assignment. After `withhold` it hands out nothing more, after `drop` it returns nothing any more.
Who may hand out its messages, and commit, is not decided here but by the lease of its partition (`locks.lease`).
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocketshim.core.listener_answers import ConsumeOrderlyStatus
from rocketshim.core.offset_tracker import OffsetTracker
from rocketshim.core.user_values import one_line, printable_lines
from rocketshim.locks.lease import NO_TROUBLE, Lease, ReconsumeCounts, Trouble
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import CAUSE_CHARS, TRACE_CHARS
from rocketshim_topics.hops import Failure
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "CONTINUOUS_RUN_MAX_MS",
    "LONG_CALL_MS",
    "SUSPEND_MAX_MS",
    "SUSPEND_MIN_MS",
    "BatchAnswer",
    "OrderlyAction",
    "OrderlyQueue",
    "OrderlyTask",
    "Progress",
    "Suspended",
    "ToDeadLetters",
]

Progress = tuple[int | None, ReconsumeCounts, Trouble]
"""Position and failed attempts, in the form of the group's log, and what holds up the queue."""

CONTINUOUS_RUN_MAX_MS: Final = 60_000
"""Time of continuous runs after which a queue yields, in ms. Source: `MAX_TIME_CONSUME_CONTINUOUSLY`."""

SUSPEND_MIN_MS: Final = 10
"""Shortest wait after a stop, in ms. Source: `ConsumeMessageOrderlyService#submitConsumeRequestLater`."""

SUSPEND_MAX_MS: Final = 30_000
"""Longest wait after a stop, in ms. Source: the same."""

LONG_CALL_MS: Final = 5_000
"""Time after which a listener call is long enough for the group's log, in ms."""

_YIELD_MS: Final = 10
_NOT_SET: Final = Lease(MessageQueue("", queue_id=0), -1, 0)  # it never holds
_FOREVER: Final = 2**31 - 1
_RUN_MIN: Final = 32
_RUN_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer of one listener call, or of several consecutive calls with the same successful answer.

    It covers `msg_count` messages of the run, from where the previous answer ended. `auto_commit` and `suspend_ms`
    (below 0: the consumer's setting) are those of the context after the call.
    """

    msg_count: int
    status: ConsumeOrderlyStatus = ConsumeOrderlyStatus.SUCCESS
    auto_commit: bool = True
    suspend_ms: int = -1
    dead_letter: bool = False
    """The listener asked for the dead-letter topic (`DeadLetter`); the status is SUSPEND then."""
    skipped: bool = False
    """No listener was called, and open messages stay open. The filter matched none of these messages, and they are
    finished; or, with SUSPEND, they failed before they reached a listener."""

    @property
    def stops(self) -> bool:
        """Whether the listener thread ends the run here (by key: for these keys). Later messages were not called."""
        if self.status is ConsumeOrderlyStatus.ROLLBACK:
            return not self.auto_commit
        return self.status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


@dataclass(frozen=True, slots=True)
class ToDeadLetters:
    """Write a message to the dead-letter topic and then call `dead_lettered`; the queue waits for it."""

    message: Any
    reconsume_times: int
    """Failed attempts before this one; the dead letter carries it + 1."""


@dataclass(frozen=True, slots=True)
class Suspended:
    """The queue (or the keys of the failed batch) waits. For metrics, logs and alerts; no action is needed."""

    until_ms: int
    """Monotonic time of the next attempt."""
    message: Any
    """The first message that is retried."""
    reconsume_times: int
    """Its failed attempts so far."""
    forever: bool
    """It has no limit, so it can block the queue forever."""


OrderlyAction = ToDeadLetters | Suspended

_NO_CALL: Final = BatchAnswer(1, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, dead_letter=True, skipped=True)
"""Stands for the answer of a listener about a message that was given up."""


class OrderlyTask:
    """A run of one queue for one listener thread.

    The poll thread sets `lease` and `withheld`: the listener thread asks both before each call. The listener thread
    sets the others, and may put `messages` into another order, which is the queue's own list.
    """

    __slots__ = (
        "began_ms",
        "called",
        "counts",
        "failure",
        "key_of",
        "lease",
        "malformed",
        "messages",
        "passed",
        "queue",
        "skipped",
        "stopped",
        "withheld",
    )  # fmt: skip

    def __init__(
        self,
        queue: "OrderlyQueue",
        messages: list[Any],
        counts: Mapping[int, int],
        key_of: Callable[[Any], Hashable] | None = None,
    ) -> None:
        self.queue = queue
        self.lease = _NOT_SET
        self.messages = messages
        self.counts = counts  # failed attempts by offset
        self.key_of = key_of  # if the order is by key; None: a failure ends the run
        self.withheld = False  # start no further call
        self.began_ms: int | None = None
        self.called: Any = None  # the first message of the call that began last
        self.failure: Failure | None = None  # why the run stopped early
        self.malformed: str | None = None  # why the message that stopped the run breaks the wire format
        self.passed: dict[int, tuple[Failure | None, str | None]] = {}  # the same of those that did not stop it
        self.stopped: set[Hashable] = set()  # keys for which the listener is not called again in this run
        self.skipped: dict[int, Any] = {}  # messages of these keys that the run has reached and skipped, by offset

    @property
    def dropped(self) -> bool:
        """Whether its queue was dropped."""
        return self.queue.dropped

    def why(self, message: Any) -> tuple[Failure | None, str | None]:
        """Return why a message failed, and why it breaks the wire format, if it does."""
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

    def continues_after(self, message: Any, answer: BatchAnswer) -> bool:
        """Return whether the run continues after a failed message: by key, with the messages of other keys."""
        if self.key_of is None or not answer.auto_commit:
            return False
        self.stopped.add(self.key_of(message))
        self.passed[message.offset()] = (self.failure, self.malformed)
        self.failure = self.malformed = None
        return True

    def skips(self, message: Any) -> bool:
        """Return whether a message is behind a failed one of its key, so that it stays for a later run."""
        if self.key_of is None or self.key_of(message) not in self.stopped:
            return False
        self.skipped[message.offset()] = message
        return True

    def put_skipped_behind(self, answers: Iterable[BatchAnswer]) -> None:
        """Move skipped messages behind the answered ones, since answers must cover the beginning of a run."""
        if self.skipped:
            answered = sum(answer.msg_count for answer in answers)
            others = [message for message in self.messages if message.offset() not in self.skipped]
            self.messages[:] = [*others[:answered], *self.skipped.values(), *others[answered:]]


class _Attempts:
    """How often the messages of a queue have failed, by offset, and how often one may fail.

    Counts are kept until a message is finished. A message that was not counted yet may carry a count of its own.
    """

    __slots__ = ("_limit", "_message_limit", "_since_ms", "_stored_count", "counts", "failures")

    def __init__(
        self,
        limit: int,
        counts: Iterable[tuple[int, int]],
        stored_count: Callable[[Any], int] | None,
        message_limit: Callable[[Any], int | None] | None,
    ) -> None:
        self.counts = dict(counts)
        self._since_ms: dict[int, int] = {}  # first failure here
        self.failures: dict[int, Failure] = {}  # the last one here
        self._limit = _FOREVER if limit == -1 else limit
        self._stored_count = stored_count
        self._message_limit = message_limit

    def of(self, message: Any) -> int:
        """Return the failed attempts of a message so far: counted here or by the last owner, else its own count."""
        count = self.counts.get(message.offset() or 0)
        if count is None:
            count = 0 if self._stored_count is None else self._stored_count(message)
        return count

    def limit_of(self, message: Any) -> int:
        """Return the failed attempts after which a message is dead-lettered: the queue's limit or its own, if lower."""
        own = None if self._message_limit is None else self._message_limit(message)
        return self._limit if own is None else min(self._limit, own)

    def add(self, message: Any, now_ms: int) -> None:
        """Count a failure."""
        offset = message.offset() or 0
        self.counts[offset] = self.of(message) + 1
        self._since_ms.setdefault(offset, now_ms)

    def oldest(self, first: int, now_ms: int) -> tuple[int, int]:
        """Return the count of the oldest message from offset `first` on, and for how long it has failed here, in ms."""
        offset = min((offset for offset in self.counts if offset >= first), default=None)
        return (0, 0) if offset is None else (self.counts[offset], now_ms - self._since_ms.get(offset, now_ms))

    def trouble(self, offset: int) -> Trouble:
        """Return since when a message has failed here, and why."""
        since_ms, failure = self._since_ms.get(offset), self.failures.get(offset)
        if since_ms is None or failure is None:
            return NO_TROUBLE
        cause = one_line(f"{failure.exception_class}: {failure.text}")[:CAUSE_CHARS]
        trace = printable_lines(failure.stack_bytes.decode("utf-8", "replace").rstrip("\n"))
        return Trouble(since_ms, cause, trace[-TRACE_CHARS:] or None)

    def forget(self, offsets: Collection[int]) -> None:
        """Forget messages that are finished, or do not exist any more."""
        if self.counts and not self.counts.keys().isdisjoint(offsets):
            for offset in offsets:
                self.counts.pop(offset, None)
                self._since_ms.pop(offset, None)
                self.failures.pop(offset, None)

    def drop(self) -> None:
        """Forget everything; the former counts are not cleared, since a listener thread may read them."""
        self.counts = {}
        self._since_ms, self.failures = {}, {}


class _SuspendedBatch:
    """A batch that was suspended and whose dead letters are being stored."""

    __slots__ = ("again", "answer", "dead", "waiting")

    def __init__(self, answer: BatchAnswer) -> None:
        self.answer = answer
        self.again: list[Any] = []
        self.dead: list[Any] = []
        self.waiting: dict[int, Any] = {}


_Stop = tuple[int, int, Hashable]
"""End of a backlog's wait, the number of that stop, the backlog's key."""


class _Backlog:
    """Messages that wait because one with their key failed, or because they are behind such a message."""

    __slots__ = ("messages", "stop")

    def __init__(self) -> None:
        self.messages: deque[Any] = deque()
        self.stop = 0  # number of the stop it waits for, or waited for last


class _Order:
    """The messages that are not taken, in the order in which they may be: of the whole queue, or of each key.

    `counts` are the failed attempts of the queue, by offset. Waiting backlogs cost nothing (a heap); no operation
    iterates over all of them.
    """

    __slots__ = (
        "_backlogs", "_counts", "_due", "_pending_first", "_stops", "_waiting", "key_of", "not_before_ms", "pending",
    )  # fmt: skip

    def __init__(self, key_of: Callable[[Any], Hashable] | None, counts: Mapping[int, int]) -> None:
        self.key_of = key_of
        self.pending: deque[Any] = deque()  # those without a backlog
        self.not_before_ms: int | None = None  # the whole queue waits
        self._counts = counts
        self._backlogs: dict[Hashable, _Backlog] = {}
        self._waiting: list[_Stop] = []  # a heap
        self._due: deque[_Stop] = deque()  # backlogs whose wait was over at the last `take`, the next one first
        self._pending_first = False  # which of the two begins the next run that has both
        self._stops = 0

    def __bool__(self) -> bool:
        return bool(self.pending or self._backlogs)

    @property
    def is_behind_failures(self) -> bool:
        """Whether every message waits for another attempt, its own or of one before it."""
        return bool(self._backlogs) and not self.pending

    def next_wakeup_ms(self) -> int:
        """Return when `take` may return messages, if there are any; 0: now."""
        if self.not_before_ms is not None:
            return self.not_before_ms
        while self._due and not self._is_current(self._due[0]):
            self._due.popleft()
        if self.pending or self._due:
            return 0
        while not self._is_current(self._waiting[0]):  # every backlog that is not due has an entry here
            heapq.heappop(self._waiting)
        return self._waiting[0][0]

    def stop(self, back: list[Any], until_ms: int) -> None:
        """Put messages back in front, and let the backlogs of their keys wait, or the queue."""
        if self.key_of is None:
            self.pending.extendleft(reversed(back))
            self.not_before_ms = until_ms
            return
        by_key: dict[Hashable, list[Any]] = {}
        for message in sorted(back, key=_offset):
            by_key.setdefault(self.key_of(message), []).append(message)
        for key, messages in by_key.items():
            backlog = self._backlogs.setdefault(key, _Backlog())
            backlog.messages.extendleft(reversed(messages))
            heapq.heappush(self._waiting, self._new_stop(key, until_ms))

    def _new_stop(self, key: Hashable, until_ms: int) -> _Stop:
        self._stops += 1
        self._backlogs[key].stop = self._stops
        return until_ms, self._stops, key

    def take(self, limit: int, now_ms: int) -> list[Any]:
        """Take the messages that may be handed out now, at most `limit`."""
        if self.key_of is not None:
            return self._by_turns(limit, now_ms)
        if len(self.pending) <= limit:
            messages = list(self.pending)
            self.pending.clear()
            return messages
        return [self.pending.popleft() for _ in range(limit)]

    def _by_turns(self, limit: int, now_ms: int) -> list[Any]:
        """Take in turn from due backlogs (only the head of one if it has failed) and from messages without one."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            self._due.append(heapq.heappop(self._waiting))
        messages: list[Any] = []
        if self._due and self.pending:
            if self._pending_first:
                self._take_pending(messages, limit)
            self._pending_first = not self._pending_first
        remaining: list[_Stop] = []  # backlogs that still have messages after this run
        while len(messages) < limit and (self._due or self.pending):
            stop = self._due.popleft() if self._due else None
            if stop is not None and self._is_current(stop) and self._take_of(stop[2], messages, limit):
                remaining.append(stop)
            self._take_pending(messages, limit)
        self._due.extend(remaining)
        return messages

    def _take_of(self, key: Hashable, messages: list[Any], limit: int) -> bool:
        """Take messages of a backlog; return whether some are left in it."""
        backlog = self._backlogs[key]
        count = 1 if backlog.messages[0].offset() in self._counts else limit - len(messages)
        while backlog.messages and count > 0:
            messages.append(backlog.messages.popleft())
            count -= 1
        if backlog.messages:
            return True
        del self._backlogs[key]
        return False

    def _take_pending(self, messages: list[Any], limit: int) -> None:
        """Take the next message without a backlog, or all of them if no backlog is due.

        Messages whose backlog waits are appended to that backlog.
        """
        key_of = self.key_of
        while key_of is not None and self.pending and len(messages) < limit:
            message = self.pending.popleft()
            backlog = self._backlogs.get(key_of(message)) if self._backlogs else None
            if backlog is not None:
                backlog.messages.append(message)
                continue
            messages.append(message)
            if self._due:
                return

    def remove(self, offset: int) -> Any | None:
        """Remove a message that is not taken and end the wait of those behind it; None: it is not here."""
        messages = self.end_wait(offset)
        at = None if messages is None else _index(messages, offset)
        if messages is None or at is None:
            return None
        message = messages[at]
        del messages[at]
        self._backlogs = {key: each for key, each in self._backlogs.items() if each.messages}
        return message

    def end_wait(self, offset: int) -> deque[Any] | None:
        """End the wait of a message, and of those that wait with it; return them all. None: it is not here."""
        if _index(self.pending, offset) is not None:
            self.not_before_ms = None
            return self.pending
        for key, backlog in self._backlogs.items():
            if _index(backlog.messages, offset) is not None:
                heapq.heappush(self._waiting, self._new_stop(key, 0))
                return backlog.messages
        return None

    def _is_current(self, stop: _Stop) -> bool:
        """Return whether this is the last stop of a backlog; it is not if the backlog was emptied or stopped again."""
        backlog = self._backlogs.get(stop[2])
        return backlog is not None and backlog.stop == stop[1]

    def put_back(self, messages: list[Any]) -> None:
        """Put back messages that were taken and not begun, in front of the messages that follow them.

        A message that has failed before is due again. Otherwise the failed ones would be in front of all others.
        """
        if self.key_of is None or not (self._backlogs or self._counts):
            self.pending.extendleft(reversed(messages))
            return
        for message in reversed(messages):
            key = self.key_of(message)
            backlog = self._backlogs.get(key)
            if backlog is None and message.offset() in self._counts:
                backlog = self._backlogs[key] = _Backlog()
                self._due.appendleft(self._new_stop(key, 0))
            (self.pending if backlog is None else backlog.messages).appendleft(message)


class OrderlyQueue:
    """Messages of one assignment of one partition, consumed in order.

    With `max_reconsume_times` n, failure n + 1 makes a message a dead letter; with -1 none does, with another negative
    number the first one does (`#getMaxReconsumeTimes`). `stored_count` returns the failed attempts that a message
    itself carries (retry topic), and is asked only at a failure; `message_limit` the limit that its sender has set, or
    None. `suspend_ms` is the wait after a stop when the listener sets none. Messages with equal keys (`key_of`) stay in
    order; without it the whole queue does.

    Thread-safety: none; one owner thread. A listener thread has an `OrderlyTask`, and sets `suspect_until`.

    Source: `ProcessQueue` (`consumingMsgOrderlyTreeMap`), `ConsumeMessageOrderlyService` of RocketMQ.

    Decides: Which message of an orderly queue comes next? The first one that has not succeeded; with `key_of`,
        the first one of a key that waits for no failed message.
    """

    __slots__ = (
        "_attempts", "_given_up", "_open", "_order", "_run_since_ms", "_suspend_ms", "_suspended", "_tracker",
        "dropped", "epoch", "key", "msg_bytes", "msg_count", "next_put", "out", "reported", "run_limit",
        "suspect_until", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        key: TopicPartitionKey,
        epoch: int = 0,
        *,
        max_reconsume_times: int = -1,
        suspend_ms: int = 1_000,
        reconsume_counts: Iterable[tuple[int, int]] = (),
        stored_count: Callable[[Any], int] | None = None,
        message_limit: Callable[[Any], int | None] | None = None,
        key_of: Callable[[Any], Hashable] | None = None,
    ) -> None:
        self.key = key
        self.epoch = epoch
        self.dropped = False
        self.withheld = False
        self.msg_count = 0
        self.msg_bytes = 0
        self.next_put = 0  # offset after the last message that was put, or that `skip_to` passed
        self.out: OrderlyTask | None = None  # the run that a listener thread has
        self.run_limit = _RUN_MIN  # messages that the next run may have: about what takes two time slices
        self.reported: Progress | None = None  # the progress last reported to the group's log
        # set by the listener thread: offsets up to this one are retried, since one of them has unreadable headers
        self.suspect_until = -1
        self._suspend_ms = suspend_ms
        self._attempts = _Attempts(max_reconsume_times, reconsume_counts, stored_count, message_limit)
        self._order = _Order(key_of, self._attempts.counts)
        self._suspended: dict[int, _SuspendedBatch] = {}  # by offset of each dead letter that is being stored
        self._given_up: dict[int, str] = {}  # by offset: who gave the message up
        self._open: list[tuple[Any, bool]] = []  # each with whether it is dead-lettered
        self._tracker = OffsetTracker()
        self._run_since_ms: int | None = None

    # --- messages in and out ------------------------------------------------------------------------------------

    def put(self, messages: Sequence[Any]) -> None:
        """Accept fetched messages, in order; ignore them after `withhold`. After a ValueError nothing was accepted."""
        if self.dropped:
            raise ValueError("the queue was dropped")
        offsets = [message.offset() or 0 for message in messages]
        if not offsets or self.withheld:
            return
        is_first = self._tracker.last_offset < 0
        self._tracker.deliver_offsets(offsets)
        if is_first:
            self._attempts.forget([offset for offset in self._attempts.counts if offset < offsets[0]])
        self.next_put = offsets[-1] + 1
        self._order.pending.extend(messages)
        self.msg_count += len(messages)
        self.msg_bytes += sum(map(len, messages))

    def skip_to(self, position: int) -> None:
        """Have the position to commit pass offsets behind the last message that no reader sees, once that is finished.

        The client reads on at this position, and everything that it has returned was put.
        """
        if position > self.next_put and not (self.withheld or self.dropped):
            self._tracker.skip_to(position)
            self.next_put = position

    def take(self, limit: int, now_ms: int) -> OrderlyTask | None:
        """Return a run of messages for one listener thread, in order; report it afterwards. None: none may begin now.

        The listener thread may move the messages that its filter skips to the front, and answers them first. By key it
        may continue after a failed message; then it moves later messages of the same key behind those that it answers.
        """
        if limit < 1:
            raise ValueError(f"limit={limit}: a run has at least one message")
        order = self._order
        is_later = order.not_before_ms is not None and now_ms < order.not_before_ms
        if self.dropped or self.withheld or is_later or not self.is_drained:
            return None
        order.not_before_ms = None
        if self._run_since_ms is not None and now_ms - self._run_since_ms > CONTINUOUS_RUN_MAX_MS:
            self._run_since_ms = None
            order.not_before_ms = now_ms + _YIELD_MS
            return None
        messages = order.take(limit, now_ms)
        if not messages:
            self._run_since_ms = None
            return None
        if self._run_since_ms is None:
            self._run_since_ms = now_ms
        self.out = OrderlyTask(self, messages, self._attempts.counts, order.key_of)
        return self.out

    def report(self, answers: Sequence[BatchAnswer], now_ms: int) -> list[OrderlyAction]:
        """Apply the answers of a listener thread that has ended its run.

        They cover the beginning of the run, in order; the messages behind it were not begun. None follows one that
        stops (by key: one that stops without auto-commit). After a ValueError nothing has changed.
        """
        if self.dropped:
            return []
        if self.out is None:
            raise ValueError("no run is in progress")
        run, answered = self.out.messages, sum(answer.msg_count for answer in answers)
        if any(a.msg_count < 1 for a in answers) or answered > len(run):
            raise ValueError(f"answers for {[a.msg_count for a in answers]} messages of a run of {len(run)}")
        if any(answer.stops and (self._order.key_of is None or not answer.auto_commit) for answer in answers[:-1]):
            raise ValueError("a listener thread ends its run at an answer that stops")
        self.out = None
        self.run_limit = min(max(2 * answered, _RUN_MIN), _RUN_MAX)
        actions: list[OrderlyAction] = []
        stopped: list[tuple[BatchAnswer, list[Any]]] = []
        begin = 0
        for answer in answers:
            batch = run[begin : begin + answer.msg_count]
            begin += answer.msg_count
            if answer.stops:
                stopped.append((answer, batch))
            else:
                actions += self._apply(answer, batch, now_ms)
        self._order.put_back(run[begin:])  # before the failed messages, which are put in front of these
        for answer, batch in stopped:
            actions += self._apply(answer, batch, now_ms)
        return actions

    def dead_lettered(self, offset: int, now_ms: int) -> list[OrderlyAction]:
        """Report that a dead letter of the last batch is stored. Ignored for a dropped queue."""
        if self.dropped:
            return []
        suspended = self._suspended.pop(offset, None)
        if suspended is None:
            raise ValueError(f"no dead letter of offset {offset} is being stored")
        suspended.dead.append(suspended.waiting.pop(offset))
        return [] if suspended.waiting else self._conclude(suspended, now_ms)

    def try_now(self, offset: int) -> bool:
        """End the wait of a message that has failed; return whether it was waiting here."""
        return self._has_failed(offset) and self._order.end_wait(offset) is not None

    def give_up(self, offset: int, by: str) -> bool:
        """Have `take_given_up` return a message that has failed; return whether it has, and is not finished."""
        if self._has_failed(offset) and offset not in self._suspended:
            self._given_up[offset] = by
            return True
        return False

    def take_given_up(self) -> list[tuple[OrderlyTask, ToDeadLetters, str]]:
        """Return what was given up, no listener has, and is still not finished, and by whom.

        The queue waits for the dead letters; a task has the last failure here.

        Decides: When does an orderly queue pass a message that a person has given up? As at its limit, when its dead
            letter is stored: `dead_lettered`. A message that a listener has is asked for again when it has failed.
        """
        found: list[tuple[OrderlyTask, ToDeadLetters, str]] = []
        if not self._given_up or self.withheld or self.dropped or not self.is_drained:
            return found
        attempts = self._attempts
        for offset, by in list(self._given_up.items()):
            message = self._order.remove(offset) if offset in attempts.counts else None
            if message is not None:
                suspended = self._suspended[offset] = _SuspendedBatch(_NO_CALL)
                suspended.waiting[offset] = message
                task = OrderlyTask(self, [message], attempts.counts)
                task.failure = attempts.failures.get(offset)
                found.append((task, ToDeadLetters(message, max(0, attempts.of(message) - 1)), by))
            if message is not None or offset not in attempts.counts:
                del self._given_up[offset]
        return found

    def _has_failed(self, offset: int) -> bool:
        """Return whether a message has failed, and is not finished; also if its attempts were under the last owner."""
        return offset in self._attempts.counts and not self.withheld

    def withhold(self) -> int:
        """Start no further run; a run in progress ends after its current call, and keeps its messages: return 0."""
        self.withheld = True
        if self.out is not None:
            self.out.withheld = True
        return 0

    def drop(self) -> None:
        """Forget everything and ignore later results: the partition is no longer ours. Safe to call twice."""
        self.dropped = True
        self._suspended.clear()
        self._attempts.drop()
        self._order = _Order(self._order.key_of, self._attempts.counts)
        self._open.clear()
        self._tracker = OffsetTracker()
        self.out = None
        self.msg_count = self.msg_bytes = 0

    # --- state out ----------------------------------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """Whether no listener has a message and no dead letter is being stored."""
        return self.out is None and not self._suspended

    def is_waiting(self, now_ms: int) -> bool:
        """Return whether nothing is in progress, and nothing but further attempts can be handed out now."""
        wakeup_ms = self.next_wakeup_ms
        return self.is_drained and (wakeup_ms is None or wakeup_ms > now_ms or self._order.is_behind_failures)

    @property
    def awaits_commit(self) -> bool:
        """Whether every buffered message was answered with success and is not committed."""
        return self.is_drained and self.next_wakeup_ms is None and self.msg_count > 0

    def in_progress(self) -> Iterator[int]:
        """Yield the offsets that a listener thread has."""
        return iter(() if self.out is None else [message.offset() for message in self.out.messages])

    def oldest_in_work_ms(self, now_ms: int) -> int:
        """Return how long a listener thread has had the run, in ms; its last call began at most 100 ms later."""
        began_ms = None if self.out is None else self.out.began_ms
        return 0 if began_ms is None else now_ms - began_ms

    @property
    def next_offset(self) -> int | None:
        """The position to commit; None while nothing of this assignment is committed, and after `drop`."""
        return self._tracker.next_offset

    @property
    def reconsume_counts(self) -> ReconsumeCounts:
        """(offset, failed attempts) of messages that are not committed, ascending: for renewals and the release."""
        first = self._tracker.next_offset or 0
        return tuple(sorted(item for item in self._attempts.counts.items() if item[0] >= first))

    def progress(self, now_ms: int) -> Progress:
        """Return what the group's log is to know of the queue, even if the lease does not hold any more."""
        counts = self.reconsume_counts
        trouble = self._attempts.trouble(counts[0][0]) if counts else NO_TROUBLE
        task, took_ms = self.out, self.oldest_in_work_ms(now_ms)
        if task is not None and task.called is not None and took_ms >= LONG_CALL_MS:
            trouble = trouble._replace(call=(_offset(task.called), now_ms - took_ms))
        return self.next_offset, counts, trouble

    def note_failure(self, message: Any, failure: Failure) -> None:
        """Remember why a message has failed, for those who look at the group's log, and for its dead letter."""
        self._attempts.failures[message.offset() or 0] = failure

    def failing(self, now_ms: int) -> tuple[int, int]:
        """Return the failed attempts of the oldest failing message, and how long it has been failing, in ms.

        It is the oldest message that has failed and is not finished. The time is counted from its first failure in this
        queue, not under the last owner. (0, 0): there is no such message.
        """
        # the last owner may have counted messages that no longer exist
        return self._attempts.oldest(self._tracker.next_offset or 0, now_ms)

    @property
    def span(self) -> int:
        """Distance in offsets from the oldest message that is not finished to the newest one put; 0 for none."""
        return self._tracker.span

    @property
    def next_wakeup_ms(self) -> int | None:
        """When `take` may return messages: 0 for now, None for not before a put or a report."""
        if not self.is_drained or self.dropped or self.withheld or not self._order:
            return None
        return self._order.next_wakeup_ms()

    # --- answers ------------------------------------------------------------------------------------------------

    def _apply(self, answer: BatchAnswer, batch: list[Any], now_ms: int) -> Iterable[OrderlyAction]:
        if answer.skipped and not answer.stops:
            self._finish(batch)
            return []
        match answer.status:
            case ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
                return self._suspend(answer, batch, now_ms)
            case ConsumeOrderlyStatus.ROLLBACK if not answer.auto_commit:
                back = [message for message, is_dead in self._open if not is_dead] + batch
                self._open = [each for each in self._open if each[1]]
                return [self._stop(answer, back, now_ms)]
            case ConsumeOrderlyStatus.SUCCESS if not answer.auto_commit:
                self._open += [(message, False) for message in batch]
                return []
        self._commit(batch)
        return []

    def _suspend(self, answer: BatchAnswer, batch: list[Any], now_ms: int) -> list[OrderlyAction]:
        """Count a failure of each message of a batch, and let it wait or make it a dead letter.

        Decides: Is a failed message of an orderly queue tried again, or is it dead? With a limit of n, failure n + 1
            makes it a dead letter; without one, which is the default, none does.
        """
        suspended: _SuspendedBatch = _SuspendedBatch(answer)
        actions: list[OrderlyAction] = []
        for message in batch:
            count, offset = self._attempts.of(message), message.offset() or 0
            if answer.dead_letter or count >= self._attempts.limit_of(message):
                suspended.waiting[offset] = message
                actions.append(ToDeadLetters(message, count))
            else:
                self._attempts.add(message, now_ms)
                suspended.again.append(message)
        self._suspended.update(dict.fromkeys(suspended.waiting, suspended))
        return actions or self._conclude(suspended, now_ms)

    def _conclude(self, suspended: _SuspendedBatch, now_ms: int) -> list[OrderlyAction]:
        """Continue or stop: every dead letter of the batch is stored."""
        if suspended.answer.skipped:
            self._finish(suspended.dead)
        elif not suspended.answer.auto_commit:
            self._open += [(message, True) for message in suspended.dead]
        elif suspended.again:
            self._finish(suspended.dead)
        else:
            self._commit(suspended.dead)
        if not suspended.again:
            return []
        suspended.again.sort(key=_offset)
        return [self._stop(suspended.answer, suspended.again, now_ms)]

    def _stop(self, answer: BatchAnswer, back: list[Any], now_ms: int) -> Suspended:
        """Put messages back in front and let their backlog wait.

        Decides: How long does an orderly queue wait, and what waits behind a failed message (with `order="key"`, too)?
            As long as the listener asks, else `suspend_ms`; the whole queue, or the messages with the same key.
        """
        asked_ms = self._suspend_ms if answer.suspend_ms < 0 else answer.suspend_ms
        until_ms = now_ms + min(max(asked_ms, SUSPEND_MIN_MS), SUSPEND_MAX_MS)
        self._order.stop(back, until_ms)
        if self._order.key_of is None:
            self._run_since_ms = None
        first, attempts = back[0], self._attempts
        return Suspended(until_ms, first, attempts.of(first), attempts.limit_of(first) == _FOREVER)

    # --- inside -------------------------------------------------------------------------------------------------

    def _commit(self, batch: list[Any]) -> None:
        """Finish the batch and all open messages."""
        if self._open:
            batch = [message for message, _ in self._open] + batch
            self._open = []
        self._finish(batch)

    def _finish(self, messages: list[Any]) -> None:
        self.msg_count -= len(messages)
        self.msg_bytes -= sum(map(len, messages))
        # without failures, batches finish in order
        in_order = messages and self._order.key_of is None and not self._attempts.counts
        if in_order and self._tracker.finish_first(len(messages), _offset(messages[-1])):
            return
        offsets = [_offset(message) for message in messages]
        self._attempts.forget(offsets)
        self._tracker.finish(offsets)


def _index(messages: Iterable[Any], offset: int) -> int | None:
    return next((at for at, message in enumerate(messages) if message.offset() == offset), None)


def _offset(message: Any) -> int:
    offset: int = message.offset()
    return offset
