"""The client's view of one partition in concurrent mode: which messages wait, are in progress, or are done.

Rules of this file (RocketMQ's `ProcessQueue`, for a log with holes and for hand-over in chunks):

* A message is *pending* (put, not taken), *in flight* (taken: in a chunk of a listener thread, or on its way to a retry
  or dead-letter topic), or *done*. Every offset that was put is in exactly one of the three.
* `take` hands out a `Chunk`: messages in delivery order. A listener thread takes them from `chunk.todo` one by one and
  reports the chunk once. `split` takes back what the thread has not begun, so that one slow message does not block its
  neighbours. Both take from one list iterator, each time in one step of the interpreter: a message goes to only one of
  them.
* The report of the chunk names the failed messages; the others have succeeded. A failed message *awaits its next hop*:
  it stays in flight until `stored` confirms that its next hop is stored. So the position to commit never passes a
  message that is neither processed nor stored elsewhere.
* `expire` returns messages whose listener call takes longer than the consume timeout. From then on they count as failed
  and await their next hop; the listener's later answer for them changes nothing.
* After `drop` the queue returns nothing any more: its partition belongs to another consumer. Late results are ignored;
  the new owner gets the messages again.

Flow control by count, size and span reads this object; `core.partition.must_pause` decides.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress, filterfalse
from operator import length_hint
from typing import Any

from rocketshim.core.offset_tracker import OffsetTracker, Run
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Chunk", "ProcessQueue"]


class Chunk:
    """Messages of one queue handed to one listener thread.

    The listener thread writes `in_work` and `outcomes`, the event loop's thread `calls`; the owner reads them.
    """

    __slots__ = (
        "awaiting_hop", "calls", "expired", "in_work", "messages", "outcomes", "outcomes_taken", "queue", "reported",
        "run", "seen_calls", "seen_in_work", "seen_ms", "size_bytes", "todo",
    )  # fmt: skip

    def __init__(self, queue: "ProcessQueue", messages: Sequence[Any], run: Run, size_bytes: int) -> None:
        self.queue = queue
        self.messages = messages  # in delivery order; of the owner thread
        self.size_bytes = size_bytes
        self.todo = iter(messages)  # what was not begun; a `deque` cost a fast listener twice as much
        # what the current call processes; each call uses a new object, by which the sweep tells calls apart
        self.in_work: Any | tuple[Any, ...] | list[Any] | None = None
        self.outcomes: list[Any] = []  # of failed messages, written before the next message is begun
        self.outcomes_taken = 0  # how many of them the owner has processed
        self.reported = False
        self.run = run
        self.expired: set[int] | None = None  # offsets that `expire` returned
        self.awaiting_hop: set[int] | None = None  # offsets that wait for `stored`
        self.calls: dict[int, Sequence[Any]] = {}  # in place of `in_work`, of coroutines that share the chunk
        self.seen_calls: dict[int, int] = {}  # by number of a call: time of the first sweep that saw it
        self.seen_in_work: object = None
        self.seen_ms = 0

    @property
    def todo_count(self) -> int:
        """Number of messages that the listener thread has not begun."""
        return length_hint(self.todo)

    @property
    def dropped(self) -> bool:
        """Whether its queue was dropped."""
        return self.queue.dropped

    def take_back(self) -> list[Any]:
        """Take everything that the listener thread has not begun, in delivery order."""
        return list(self.todo)


class ProcessQueue:
    """Messages of one assignment of one partition; `epoch` is its number, by which listeners tell assignments apart.

    Thread-safety: none, one owner thread; listener threads touch only `todo`, `in_work`, `calls` and `outcomes` of a
        `Chunk`.

    Source: `ProcessQueue`, `ConsumeMessageConcurrentlyService` of RocketMQ.
    """

    __slots__ = (
        "_awaiting_hop_count", "_chunks", "_head_taken", "_newest", "_pending", "_pending_bytes", "_tracker",
        "_withheld", "dropped", "epoch", "key", "msg_bytes", "msg_count", "pending_count",
    )  # fmt: skip

    def __init__(self, key: TopicPartitionKey, epoch: int = 0) -> None:
        self.key = key
        self.epoch = epoch
        self.dropped = False
        self.msg_count = 0
        self.msg_bytes = 0  # of the values of all messages that are not done
        self._pending: deque[Sequence[Any]] = deque()  # runs as they were put
        self._head_taken = 0  # number of messages of the first run that are taken
        self.pending_count = self._pending_bytes = 0  # of what was put and not taken
        self._newest = -1
        self._chunks: dict[Chunk, None] = {}
        self._awaiting_hop_count = 0
        self._withheld = False
        self._tracker = OffsetTracker()

    def put(self, messages: Sequence[Any]) -> None:
        """Accept fetched messages, in order; they are pending. After `withhold` they are ignored.

        The sequence is kept, not copied. For speed only the first and the last offset are checked. After a ValueError
        (the queue was dropped, or the offsets do not rise) nothing was accepted.
        """
        self._alive()
        if not messages or self._withheld:
            return
        first = messages[0].offset()
        last = messages[-1].offset()
        if first is None or last is None or first <= self._newest or last - first < len(messages) - 1:
            raise ValueError(f"offsets {first} to {last} of {self.key} do not rise above {self._newest}")
        self._newest = last
        self._pending.append(messages)
        self.pending_count += len(messages)
        size_bytes = sum(map(len, messages))
        self._pending_bytes += size_bytes
        self.msg_bytes += size_bytes
        self.msg_count += len(messages)

    @property
    def next_put(self) -> int:
        """Offset after the last message that was put, or that `skip_to` passed; 0: there was none."""
        return self._newest + 1

    def skip_to(self, position: int) -> None:
        """Have the position to commit pass offsets behind the last message that no reader sees, once that is done.

        The client reads on at this position, and everything that it has returned was put. While a message is pending,
        after `withhold` and after `drop` nothing changes.
        """
        if position > self._newest + 1 and not (self.pending_count or self._withheld or self.dropped):
            self._newest = position - 1
            self._tracker.skip_to(position)

    def take(self, limit: int) -> Chunk | None:
        """Move up to `limit` pending messages into flight, in order; None when none is pending or may begin."""
        if limit < 1:
            raise ValueError(f"limit={limit}: a chunk has at least one message")
        if self.dropped or self._withheld or not self.pending_count:
            return None
        messages = self._next_pending(limit)
        self.pending_count -= len(messages)
        size_bytes = sum(map(len, messages)) if self.pending_count else self._pending_bytes  # all that was pending
        self._pending_bytes -= size_bytes
        chunk = Chunk(self, messages, self._tracker.deliver(messages), size_bytes)
        self._chunks[chunk] = None
        return chunk

    def _next_pending(self, limit: int) -> Sequence[Any]:
        """Take at most `limit` messages from the waiting runs; as slices, because most runs are longer than a chunk."""
        run = self._pending[0]
        end = self._head_taken + limit
        if not self._head_taken and end >= len(run) and len(self._pending) == 1:  # the whole run, not copied
            return self._pending.popleft()
        if end < len(run):
            self._head_taken, begin = end, self._head_taken
            return run[begin:end]
        messages: list[Any] = []
        while self._pending and len(messages) < limit:
            run = self._pending[0]
            end = self._head_taken + limit - len(messages)
            messages += run[self._head_taken : end]
            if end >= len(run):
                self._pending.popleft()
                self._head_taken = 0
            else:
                self._head_taken = end
        return messages

    def split(self, chunk: Chunk, limit: int = 1) -> list[Chunk]:
        """Take back what the listener thread has not begun, as new chunks of up to `limit` messages, in order."""
        if limit < 1:
            raise ValueError(f"limit={limit}: a chunk has at least one message")
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

    def report(self, chunk: Chunk, failed: Iterable[Any] = ()) -> list[Any]:
        """Finish a chunk that a listener thread has completed; all its messages but the `failed` are done.

        Return the failed messages that must still be sent to their next hop, in delivery order: expired ones have been
        sent already, and those of a dropped queue belong to its next owner. After a ValueError nothing has changed.

        Decides: Does the result of a listener call still count? Not if the queue was dropped meanwhile (revoked,
            sought, cut); then its next owner gets the message again.
        """
        if chunk.queue is not self:
            raise ValueError(f"the chunk is not one of {self.key} in epoch {self.epoch}")
        if chunk.reported:
            raise ValueError("the chunk was reported before")
        if chunk.todo_count and not self.dropped:
            raise ValueError(f"{chunk.todo_count} messages of the chunk were not begun: they cannot be done")
        refused = {message.offset() or 0: message for message in failed}
        is_whole = chunk.expired is None and chunk.run.unfinished == len(chunk.messages) > 0 and not self.dropped
        if is_whole:
            self._tracker.finish_all(chunk.run, refused)
        elif not refused.keys() <= {message.offset() or 0 for message in chunk.messages}:
            raise ValueError(f"offsets {list(refused)} are not all in the chunk of the run at {chunk.run.first_offset}")
        chunk.in_work = chunk.seen_in_work = None
        to_send: list[Any] = []
        if is_whole:
            to_send = [refused[offset] for offset in sorted(refused)]
            self.msg_count -= len(chunk.messages) - len(to_send)
            self.msg_bytes -= chunk.size_bytes - sum(map(len, to_send))
            self._await_hop(chunk, to_send)
        elif not self.dropped:
            to_send = self.report_part(chunk, (), refused.values())
        chunk.reported = True
        self._chunks.pop(chunk, None)
        if not self.dropped:
            chunk.messages = ()  # a hop that cannot be stored keeps only its own message in memory, not its neighbours
            chunk.todo = iter(())
        return to_send

    def report_part(self, chunk: Chunk, still_open: Collection[int], failed: Iterable[Any]) -> list[Any]:
        """Finish all messages of a chunk except these, which a call may keep forever; they are reported later.

        Otherwise a call that never ends would block, through its chunk, the commit of messages that others have
        finished, and their failures. The result is as of `report`.
        """
        if self.dropped or chunk not in self._chunks:
            return []
        if chunk.todo_count:
            raise ValueError(f"{chunk.todo_count} messages of the chunk were not begun: they cannot be done")
        completed = [message for message in chunk.messages if message.offset() not in still_open]
        offsets = [message.offset() or 0 for message in completed]
        sent_before = chunk.expired or set()
        kept = sent_before | {message.offset() or 0 for message in failed}
        unfinished = list(compress(completed, map(kept.__contains__, offsets)))  # in C, like the next line
        done = list(filterfalse(kept.__contains__, offsets))
        chunk.messages = [message for message in chunk.messages if message.offset() in still_open]
        size_bytes = sum(map(len, completed))
        chunk.size_bytes -= size_bytes
        self._finish(chunk, done, size_bytes - sum(map(len, unfinished)))
        to_send = [message for message in unfinished if message.offset() not in sent_before]
        self._await_hop(chunk, to_send)
        return to_send

    def stored(self, chunk: Chunk, messages: Collection[Any]) -> None:
        """Mark failed or expired messages of a chunk as done: their next hops are stored. Ignored for a dropped queue.

        After a ValueError (a message awaits no next hop) nothing has changed.
        """
        if self.dropped:
            return
        offsets = {message.offset() or 0 for message in messages}
        if (
            chunk.queue is not self
            or chunk.awaiting_hop is None
            or not offsets <= chunk.awaiting_hop
            or len(offsets) != len(messages)
        ):
            raise ValueError(f"offsets {list(offsets)} of {self.key} do not all await a next hop")
        chunk.awaiting_hop -= offsets
        self._awaiting_hop_count -= len(offsets)
        self._finish(chunk, offsets, sum(map(len, messages)))

    def expire(self, now_ms: int, timeout_ms: int) -> list[tuple[Chunk, Any]]:
        """Return messages whose listener call takes longer than the consume timeout; they then await a next hop.

        Each message is returned once. The age of a call counts from the first sweep that saw it. So a sweep every s ms
        returns a call's messages at least `timeout_ms` and less than `timeout_ms + 2 s` after it began, and the
        listener threads never read a clock. Send each back, and then pass it to `stored`.

        Source: `ProcessQueue#cleanExpiredMsg`, which checks only the lowest offset and only once per timeout.

        Decides: Does a listener call take too long? A concurrent consumer's message is then retried at level 3
            (`consumer.send_back.SendBack.send_timed_out`); an orderly call has no time-out.
        """
        # (test_sweep_reports_a_call_within_two_sweeps_after_the_timeout,
        # test_late_success_of_an_expired_message_does_not_finish_it)
        expired: list[tuple[Chunk, Any]] = []
        if self.dropped:
            return expired
        for chunk in self._chunks:
            in_work = chunk.in_work
            if chunk.calls or chunk.seen_calls:
                calls = list(chunk.calls.copy().items())  # copied in one step, because another thread changes it
                chunk.seen_calls = {number: chunk.seen_calls.get(number, now_ms) for number, _ in calls}
                for number, messages in calls:
                    if now_ms - chunk.seen_calls[number] >= timeout_ms:
                        expired.extend(self._expire(chunk, messages))
            elif in_work is None:
                chunk.seen_in_work = None
            elif chunk.seen_in_work is not in_work:
                chunk.seen_in_work = in_work
                chunk.seen_ms = now_ms
            elif now_ms - chunk.seen_ms >= timeout_ms:
                expired.extend(self._expire(chunk, in_work if isinstance(in_work, tuple | list) else (in_work,)))
        return expired

    def _expire(self, chunk: Chunk, messages: Sequence[Any]) -> Iterable[tuple[Chunk, Any]]:
        if chunk.expired is None:
            chunk.expired = set()
        late = [message for message in messages if message.offset() not in chunk.expired]
        self._await_hop(chunk, late)
        chunk.expired.update(message.offset() or 0 for message in late)
        return [(chunk, message) for message in late]

    def withhold(self) -> int:
        """Begin no more messages: pending, handed-out but not begun, and later ones stay undone. Safe to call twice.

        For a queue that will be revoked soon: `is_drained` once the messages that had begun are completed. Return how
        many handed-out messages were taken back.
        """
        self._withheld = True
        taken_back = 0
        for chunk in self.chunks:
            for part in self.split(chunk, len(chunk.messages) or 1):
                del self._chunks[part]
                part.take_back()
                taken_back += len(part.messages)
        return taken_back

    @property
    def is_drained(self) -> bool:
        """Whether no listener has a message of this queue and no message awaits a next hop; true after `drop`."""
        return self._awaiting_hop_count == 0 and not any(chunk.messages for chunk in self._chunks)

    def in_progress(self) -> Iterator[int]:
        """Yield the offsets that listener threads have, begun or not, and whose calls have not timed out."""
        for chunk in self._chunks:
            expired = chunk.expired or ()
            for message in chunk.messages:
                offset = message.offset() or 0
                if offset not in expired:
                    yield offset

    def failing(self, now_ms: int) -> None:
        """Return None: a failed message is sent back, so no attempts are counted here."""

    def oldest_in_work_ms(self, now_ms: int) -> int:
        """Return the age of the oldest listener call as the sweeps saw it, in ms; 0 when none is known."""
        ages = [now_ms - c.seen_ms for c in self._chunks if c.seen_in_work is not None and c.in_work is not None]
        ages.extend(now_ms - min(c.seen_calls.values()) for c in self._chunks if c.seen_calls)
        return max(ages, default=0)

    def is_waiting(self, now_ms: int) -> bool:
        """Return False: no message waits here for another attempt."""
        del now_ms
        return False

    def drop(self) -> None:
        """Forget everything and ignore later results: the partition is no longer ours. Safe to call twice.

        Listener threads find no more messages in their chunks; a running listener call is not interrupted.

        Source: `ConsumeMessageConcurrentlyService.ConsumeRequest#run`, which begins no message of a dropped queue.
        """
        self.dropped = True
        for chunk in self._chunks:
            chunk.take_back()
        self._pending.clear()
        self._chunks.clear()
        self._awaiting_hop_count = 0
        self._tracker = OffsetTracker()  # the old one would keep its messages as long as a thread keeps a chunk
        self.pending_count = self._pending_bytes = self._head_taken = 0
        self.msg_count = 0
        self.msg_bytes = 0

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Chunks that are not reported, oldest first; a copy, so that they can be split during iteration."""
        return tuple(self._chunks)

    @property
    def late(self) -> Sequence[Chunk]:
        """Chunks with a call that has timed out and with other messages that may be completed."""
        late = [(chunk, chunk.expired) for chunk in self._chunks if chunk.expired]
        return [chunk for chunk, expired in late if any(message.offset() not in expired for message in chunk.messages)]

    @property
    def next_offset(self) -> int | None:
        """The position to commit; None while nothing of this assignment is done, and after `drop`."""
        return None if self.dropped else self._tracker.next_offset

    @property
    def span(self) -> int:
        """Distance in offsets from the oldest message that is not done to the newest one put; 0 when none is open."""
        lowest = self._tracker.lowest_unfinished
        if self.pending_count:
            return self._newest - (lowest if lowest is not None else self._pending[0][self._head_taken].offset() or 0)
        return self._tracker.span

    def _await_hop(self, chunk: Chunk, messages: Sequence[Any]) -> None:
        if messages:
            chunk.awaiting_hop = (chunk.awaiting_hop or set()) | {message.offset() or 0 for message in messages}
            self._awaiting_hop_count += len(messages)

    def _finish(self, chunk: Chunk, offsets: Collection[int], size_bytes: int) -> None:
        if not offsets:
            return
        self._tracker.finish_many(chunk.run, offsets)
        self.msg_count -= len(offsets)
        self.msg_bytes -= size_bytes

    def _alive(self) -> None:
        if self.dropped:
            raise ValueError(f"{self.key} of epoch {self.epoch} was dropped")
