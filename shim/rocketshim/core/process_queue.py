"""The client's image of one partition in concurrent mode: what waits, what is in work, what is done.

Rules of this file (RocketMQ's `ProcessQueue`, done for a log with holes and for hand-over in chunks):

* A message is *pending* (put, not taken), *in flight* (taken: in a chunk that a listener thread works on, or on its
  way to a retry or dead-letter topic), or *done*. Every offset that was put is in exactly one of the three.
* `take` hands out a `Chunk`: messages in delivery order. A listener thread takes them from `chunk.todo` one by one and
  reports the chunk once. `split` takes back what the thread has not begun, so that one slow message does not hold its
  neighbours. Both take from one list iterator, each time in one step of the interpreter: a message goes to one of them.
* What failed comes with the report of the chunk, the rest has succeeded; a failed message is *owed*: in flight until
  `stored` says that its next hop is. So the position to commit never passes a message that is neither handled nor
  stored elsewhere.
* `expire` names messages that one listener call has held for longer than the consume timeout. From then on they count
  as failed and are owed; what the listener says about them later changes nothing.
* After `drop` the queue says nothing any more: its partition belongs to somebody else. Results that come in late are
  ignored; the new owner gets the messages again.

Flow control by count, size and span is asked of this object and decided in `flow_control`.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import compress, filterfalse
from operator import length_hint
from typing import Any, Generic, Protocol, TypeVar

from rocketshim.core.offset_tracker import OffsetTracker, Run

__all__ = ["Chunk", "ProcessQueue", "QueuedMessage"]


class QueuedMessage(Protocol):
    """What the queue asks of a message (`confluent_kafka.Message` has it)."""

    def offset(self) -> int | None:
        """Offset in the partition."""

    def __len__(self) -> int:
        """Size of the value in bytes."""


MessageT = TypeVar("MessageT", bound=QueuedMessage)


class Chunk(Generic[MessageT]):
    """Messages of one queue handed to one listener thread.

    Attributes:
        queue: where they come from.
        messages: all that belong to the chunk, in delivery order. Owner thread only.
        todo: gives what the listener thread has not begun; taking from a `deque` cost a fast listener twice as much.
        in_work: what a listener call holds now: a message, a tuple or list of them, or None. Written by the listener
            thread, read by the owner; another object for each call (the sweep tells calls apart by it).
        calls: in place of `in_work` where several calls hold messages of one chunk at once (coroutines): what each of
            them holds, under a number of its own. Written by the event loop's thread, read by the owner.
        outcomes: what listeners have left of messages that failed, written before another message is in work.
        outcomes_taken: how many of them the owner has dealt with.
        reported: whether the listener thread is through with it.
    """

    __slots__ = (
        "calls", "expired", "in_work", "messages", "outcomes", "outcomes_taken", "owed", "queue", "reported", "run",
        "seen_calls", "seen_in_work", "seen_ms", "size_bytes", "todo",
    )  # fmt: skip

    def __init__(
        self, queue: "ProcessQueue[MessageT]", messages: Sequence[MessageT], run: Run, size_bytes: int
    ) -> None:
        self.queue = queue
        self.messages = messages
        self.size_bytes = size_bytes
        self.todo = iter(messages)
        self.in_work: MessageT | tuple[MessageT, ...] | list[MessageT] | None = None
        self.outcomes: list[Any] = []
        self.outcomes_taken = 0
        self.reported = False
        self.run = run
        self.expired: set[int] | None = None  # offsets that `expire` named
        self.owed: set[int] | None = None  # offsets that wait for `stored`
        self.calls: dict[int, Sequence[MessageT]] = {}
        self.seen_calls: dict[int, int] = {}  # number of a call to the time of the first sweep that saw it
        self.seen_in_work: object = None
        self.seen_ms = 0

    @property
    def todo_count(self) -> int:
        """How many messages the listener thread has not begun."""
        return length_hint(self.todo)

    @property
    def dropped(self) -> bool:
        """Whether its queue is given up."""
        return self.queue.dropped

    def stored(self, messages: Collection[MessageT]) -> None:
        """As `ProcessQueue.stored`, of this chunk."""
        self.queue.stored(self, messages)

    def take_back(self) -> list[MessageT]:
        """Take all that the listener thread has not begun, in delivery order."""
        return list(self.todo)


class ProcessQueue(Generic[MessageT]):
    """Messages of one assignment of one partition.

    Args:
        topic: physical name of the topic.
        partition: number of the partition.
        epoch: number of the assignment; a result that names another epoch is dropped by the shell.

    Thread-safety: none, one owner thread; listener threads touch `Chunk.todo` and `Chunk.in_work` only.

    Source: `ProcessQueue`, `ConsumeMessageConcurrentlyService` of RocketMQ.
    """

    __slots__ = (
        "_begun", "_chunks", "_newest", "_owed_count", "_pending", "_pending_count", "_taken_bytes", "_tracker",
        "_withheld", "dropped", "epoch", "msg_count", "partition", "paused", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, epoch: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self.epoch = epoch
        self.dropped = False
        self.paused = False
        self.msg_count = 0
        self._taken_bytes = 0  # of messages in flight; those that wait are counted when somebody asks
        self._pending: deque[Sequence[MessageT]] = deque()  # runs as they were put
        self._begun = 0  # how many messages of the first of them are taken
        self._pending_count = 0
        self._newest = -1
        self._chunks: dict[Chunk[MessageT], None] = {}
        self._owed_count = 0
        self._withheld = False
        self._tracker = OffsetTracker(epoch)

    def put(self, messages: Sequence[MessageT]) -> None:
        """Take fetched messages, in order; they are pending.

        Args:
            messages: offsets strictly rising, above all that was put before. For speed only the first and the last are
                looked at: Kafka keeps the order within. Kept as it is: not to be changed afterwards.

        After `withhold` nothing is taken and nothing said.

        Raises:
            ValueError: the queue was dropped, or offsets do not rise; nothing was taken.
        """
        self._alive()
        if not messages or self._withheld:
            return
        first = messages[0].offset()
        last = messages[-1].offset()
        if first is None or last is None or first <= self._newest or last - first < len(messages) - 1:
            raise ValueError(
                f"offsets {first} to {last} of {self.topic}/{self.partition} do not rise above {self._newest}"
            )
        self._newest = last
        self._pending.append(messages)
        self._pending_count += len(messages)
        self.msg_count += len(messages)

    def take(self, limit: int) -> Chunk[MessageT] | None:
        """Move up to `limit` pending messages into flight, in order; None when none is pending or may be begun.

        Raises:
            ValueError: limit below 1; nothing changed.
        """
        if limit < 1:
            raise ValueError(f"limit={limit}: a chunk holds at least one message")
        if self.dropped or self._withheld or not self._pending_count:
            return None
        messages = self._next_pending(limit)
        self._pending_count -= len(messages)
        size_bytes = sum(map(len, messages))
        self._taken_bytes += size_bytes
        chunk = Chunk(self, messages, self._tracker.deliver(messages), size_bytes)
        self._chunks[chunk] = None
        return chunk

    def _next_pending(self, limit: int) -> Sequence[MessageT]:
        """Take up to `limit` messages from the runs that wait; slices, since most runs are longer than a chunk."""
        run = self._pending[0]
        end = self._begun + limit
        if not self._begun and end >= len(run) and len(self._pending) == 1:  # of a fast listener: all of it, uncopied
            return self._pending.popleft()
        if end < len(run):
            self._begun, begun = end, self._begun
            return run[begun:end]
        messages: list[MessageT] = []
        while self._pending and len(messages) < limit:
            run = self._pending[0]
            end = self._begun + limit - len(messages)
            messages += run[self._begun : end]
            if end >= len(run):
                self._pending.popleft()
                self._begun = 0
            else:
                self._begun = end
        return messages

    def split(self, chunk: Chunk[MessageT], limit: int = 1) -> list[Chunk[MessageT]]:
        """Take back what the listener thread has not begun, as new chunks of up to `limit` messages.

        Returns:
            New chunks in delivery order, to be handed to other threads; none when nothing was left or the chunk is of
            a dropped queue.

        Raises:
            ValueError: limit below 1; nothing changed.
        """
        if limit < 1:
            raise ValueError(f"limit={limit}: a chunk holds at least one message")
        if self.dropped or chunk not in self._chunks:
            return []
        back = chunk.take_back()
        if not back:
            return []
        chunk.messages = chunk.messages[: len(chunk.messages) - len(back)]
        parts = [back[at : at + limit] for at in range(0, len(back), limit)]
        chunks = [Chunk(self, part, chunk.run, sum(map(len, part))) for part in parts]
        chunk.size_bytes -= sum(part.size_bytes for part in chunks)
        self._chunks.update(dict.fromkeys(chunks))
        return chunks

    def report(self, chunk: Chunk[MessageT], failed: Iterable[MessageT] = ()) -> list[MessageT]:
        """A listener thread is through with a chunk.

        Args:
            chunk: as taken; reported once.
            failed: messages of the chunk that are to be sent back or to the dead-letter topic. The others are done.

        Returns:
            Those of `failed` that are still to be sent, in delivery order: what expired before has been sent already.
            They are owed. Nothing for a dropped queue.

        Raises:
            ValueError: reported before, or of another queue, or not begun to the end, or a failed message is not in
                it; nothing changed.
        """
        if chunk.queue is not self:
            raise ValueError(f"the chunk is not one of {self.topic}/{self.partition} in epoch {self.epoch}")
        if chunk.reported:
            raise ValueError("the chunk was reported before")
        if chunk.todo_count and not self.dropped:
            raise ValueError(f"{chunk.todo_count} messages of the chunk were not begun: they cannot be done")
        messages = chunk.messages
        refused = {message.offset() or 0: message for message in failed}
        as_whole = chunk.expired is None and chunk.run.unfinished == len(messages) > 0 and not self.dropped
        offsets = [] if as_whole else [message.offset() or 0 for message in messages]
        if as_whole:
            self._tracker.finish_all(chunk.run, refused)
        elif not refused.keys() <= set(offsets):
            raise ValueError(f"offsets {list(refused)} are not all in the chunk of the run at {chunk.run.first_offset}")
        chunk.reported = True
        chunk.in_work = chunk.seen_in_work = None
        if self.dropped:
            return []
        del self._chunks[chunk]
        if as_whole:
            to_send = [refused[offset] for offset in sorted(refused)]
            self.msg_count -= len(messages) - len(to_send)
            self._taken_bytes -= chunk.size_bytes - sum(map(len, to_send))
        else:
            sent_before = chunk.expired or set()
            kept = sent_before | refused.keys()
            held = list(compress(messages, map(kept.__contains__, offsets)))  # in C, as what follows
            done = list(filterfalse(kept.__contains__, offsets))
            self._finish(chunk, done, chunk.size_bytes - sum(map(len, held)))
            to_send = [message for message in held if message.offset() not in sent_before]
        self._owe(chunk, to_send)
        chunk.messages = ()  # a hop that cannot be stored holds its own message, and not what surrounds it
        chunk.todo = iter(())
        return to_send

    def report_part(
        self, chunk: Chunk[MessageT], still_open: Collection[int], failed: Iterable[MessageT]
    ) -> list[MessageT]:
        """All messages of a chunk are through but these, which a call may hold for ever; the rest is reported later.

        Else a call that never ends would hold, by its chunk, the commit of what others have done, and its failures.

        Args:
            chunk: as taken, begun to the end (`split`).
            still_open: offsets of its messages that are not through.
            failed: those that are through and are to be sent back.

        Returns:
            As `report`. Nothing for a chunk that is reported, or of a dropped queue.

        Raises:
            ValueError: messages of the chunk are not begun; nothing changed.
        """
        if self.dropped or chunk not in self._chunks:
            return []
        if chunk.todo_count:
            raise ValueError(f"{chunk.todo_count} messages of the chunk were not begun: they cannot be done")
        through = [message for message in chunk.messages if message.offset() not in still_open]
        sent_before = chunk.expired or set()
        kept = sent_before | {message.offset() or 0 for message in failed}
        held = [message for message in through if message.offset() in kept]
        done = [message for message in through if message.offset() not in kept]
        chunk.messages = [message for message in chunk.messages if message.offset() in still_open]
        chunk.size_bytes -= sum(map(len, through))
        self._finish(chunk, [message.offset() or 0 for message in done], sum(map(len, done)))
        to_send = [message for message in held if message.offset() not in sent_before]
        self._owe(chunk, to_send)
        return to_send

    def stored(self, chunk: Chunk[MessageT], messages: Collection[MessageT]) -> None:
        """The next hops of failed or expired messages of a chunk are stored: they are done. Not for a dropped queue.

        Raises:
            ValueError: one is not owed: neither failed nor expired, or stored before; nothing changed.
        """
        if self.dropped:
            return
        offsets = {message.offset() or 0 for message in messages}
        if chunk.queue is not self or chunk.owed is None or not offsets <= chunk.owed or len(offsets) != len(messages):
            raise ValueError(f"offsets {list(offsets)} of {self.topic}/{self.partition} do not all wait for a next hop")
        chunk.owed -= offsets
        self._owed_count -= len(offsets)
        self._finish(chunk, offsets, sum(map(len, messages)))

    def expire(self, now_ms: int, timeout_ms: int) -> list[tuple[Chunk[MessageT], MessageT]]:
        """Messages whose listener call has lasted longer than the consume timeout; each is named once and is owed.

        The age of a call counts from the first sweep that saw it, so a sweep every s ms names a call at least
        `timeout_ms` and less than `timeout_ms + 2 s` after it began, and the listener threads never look at a clock.

        Args:
            now_ms: monotonic time in ms.
            timeout_ms: consume timeout in ms.

        Returns:
            Each with its chunk, to be sent back and then to be named to `stored`. Nothing for a dropped queue.

        Source: `ProcessQueue#cleanExpiredMsg`, which looks at the lowest offset only and every timeout only.
        """
        expired: list[tuple[Chunk[MessageT], MessageT]] = []
        if self.dropped:
            return expired
        for chunk in self._chunks:
            in_work = chunk.in_work
            if chunk.calls or chunk.seen_calls:
                calls = list(chunk.calls.copy().items())  # in one step, for another thread changes it
                chunk.seen_calls = {number: chunk.seen_calls.get(number, now_ms) for number, _ in calls}
                for number, held in calls:
                    if now_ms - chunk.seen_calls[number] >= timeout_ms:
                        expired.extend(self._expire(chunk, held))
            elif in_work is None:
                chunk.seen_in_work = None
            elif chunk.seen_in_work is not in_work:
                chunk.seen_in_work = in_work
                chunk.seen_ms = now_ms
            elif now_ms - chunk.seen_ms >= timeout_ms:
                expired.extend(self._expire(chunk, in_work if isinstance(in_work, tuple | list) else (in_work,)))
        return expired

    def _expire(self, chunk: Chunk[MessageT], held: Sequence[MessageT]) -> Iterable[tuple[Chunk[MessageT], MessageT]]:
        if chunk.expired is None:
            chunk.expired = set()
        late = [message for message in held if message.offset() not in chunk.expired]
        self._owe(chunk, late)
        chunk.expired.update(message.offset() or 0 for message in late)
        return [(chunk, message) for message in late]

    def withhold(self) -> int:
        """Let nothing more begin: what is pending, handed out and not begun, or put later, stays undone. Safe twice.

        For a queue that is about to be given up: `settled` says when what had begun is through.

        Returns:
            How many messages that had been handed out were taken back.
        """
        self._withheld = True
        taken_back = 0
        for chunk in self.in_flight:
            for part in self.split(chunk, len(chunk.messages) or 1):
                del self._chunks[part]
                part.take_back()
                taken_back += len(part.messages)
        return taken_back

    @property
    def settled(self) -> bool:
        """Whether no listener holds a message of this queue and no hop is owed; true of a dropped queue."""
        return self._owed_count == 0 and not any(chunk.messages for chunk in self._chunks)

    def oldest_in_work_ms(self, now_ms: int) -> int:
        """Age of the oldest listener call as the sweeps saw it, in ms; 0 when none is known."""
        ages = [now_ms - c.seen_ms for c in self._chunks if c.seen_in_work is not None and c.in_work is not None]
        ages.extend(now_ms - min(c.seen_calls.values()) for c in self._chunks if c.seen_calls)
        return max(ages, default=0)

    def drop(self) -> None:
        """The partition is no longer ours: forget everything, ignore what comes. Safe twice.

        Listener threads find nothing more in their chunks; the call that one of them is in is not interrupted.

        Source: `ConsumeMessageConcurrentlyService.ConsumeRequest#run`, which begins nothing of a dropped queue.
        """
        self.dropped = True
        for chunk in self._chunks:
            chunk.take_back()
        self._pending.clear()
        self._chunks.clear()
        self._owed_count = 0
        self._tracker = OffsetTracker(self.epoch)  # the old one would keep messages as long as a thread keeps a chunk
        self._pending_count = self._begun = 0
        self.msg_count = 0
        self._taken_bytes = 0

    @property
    def msg_bytes(self) -> int:
        """Bytes of the values of all messages that are not done."""
        if not self._pending_count:
            return self._taken_bytes
        waiting = sum(sum(map(len, run)) for run in self._pending)
        return self._taken_bytes + waiting - sum(map(len, self._pending[0][: self._begun]))

    @property
    def pending_count(self) -> int:
        """Messages put and not taken."""
        return self._pending_count

    @property
    def in_flight(self) -> Sequence[Chunk[MessageT]]:
        """Chunks that are not reported, oldest first; a copy, so that they can be split while one goes through it."""
        return tuple(self._chunks)

    @property
    def late(self) -> Sequence[Chunk[MessageT]]:
        """Chunks with a call that has timed out, and other messages that may be through."""
        return [chunk for chunk in self._chunks if chunk.expired and len(chunk.messages) > len(chunk.expired)]

    @property
    def next_offset(self) -> int | None:
        """The position to commit; None while nothing of this assignment is done, and after `drop`."""
        return None if self.dropped else self._tracker.next_offset

    @property
    def span(self) -> int:
        """Distance in offsets from the oldest message that is not done to the newest one put; 0 when none is open."""
        lowest = self._tracker.lowest_unfinished
        if self._pending_count:
            return self._newest - (lowest if lowest is not None else self._pending[0][self._begun].offset() or 0)
        return self._tracker.span

    @property
    def idle(self) -> bool:
        """Whether nothing is pending or in flight."""
        return not self._pending_count and self._tracker.idle

    def _owe(self, chunk: Chunk[MessageT], messages: Sequence[MessageT]) -> None:
        if messages:
            chunk.owed = (chunk.owed or set()) | {message.offset() or 0 for message in messages}
            self._owed_count += len(messages)

    def _finish(self, chunk: Chunk[MessageT], offsets: Collection[int], size_bytes: int) -> None:
        if not offsets:
            return
        self._tracker.finish_many(chunk.run, offsets)
        self.msg_count -= len(offsets)
        self._taken_bytes -= size_bytes

    def _alive(self) -> None:
        if self.dropped:
            raise ValueError(f"{self.topic}/{self.partition} of epoch {self.epoch} was dropped")
