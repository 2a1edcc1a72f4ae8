"""The poll thread of a push consumer: it owns the Kafka consumer, the queues, the commits and the rebalance callbacks.

One turn processes the results of the listener threads and the delivery reports, does what is due, hands out pending
messages, and fetches. `PartitionReader` reads, `AssignedQueues` has what was read and commits it, `Dispatch` has
the listeners, and `Housekeeping` does the recurring work. Concurrent and orderly consumption are two `Mode`s. Rules:

* User code is never called here, and nothing here blocks on a listener for longer than a fraction of a second.
* The consumer is polled at least twice a second, so that a slow listener never costs the membership of the group. A
  queue with too many buffered messages is paused (`flow_control`). Before that the listeners get 50 ms to catch up, or
  half a second while all of them have work, because a pause discards what librdkafka has fetched. Each time messages
  leave a queue, the loop checks whether it may be resumed.
* No message of a partition is handed out before its start is known and committed (`start_offsets.PartitionStarter`).
* Commits are the offsets after the longest finished prefixes, every `commit_interval_ms`, and at revoke, suspend
  and close. `core.commit_positions` prevents them from going backwards.
* Offsets that go backwards within an assignment mean that the log was cut or created again. The queue is dropped, and a
  new epoch starts where the log continues. Messages may be repeated, but none is lost.
* Closing: no new call begins, and running calls may finish until the deadline while the group is still served. Then the
  loop commits once, and leaves the group.
"""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future  # noqa: TC003 - tools that inspect annotations need it at run time
from queue import SimpleQueue
from typing import Any, Final, Generic, Protocol, assert_never

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.dispatch import Dispatch
from rocketshim.consumer.housekeeping import Housekeeping
from rocketshim.consumer.loop_parts import LoopParts
from rocketshim.consumer.queues import AssignedQueues
from rocketshim.consumer.reader.partition_queue import QueueT
from rocketshim.consumer.requests import (
    Asked,
    Request,
    Resize,
    Resume,
    Seek,
    SeekToTime,
    Subscribe,
    Suspend,
    Unsubscribe,
)
from rocketshim.consumer.state import ConsumerState
from rocketshim.core.user_values import safe_text
from rocketshim.errors import ConsumerError, NotAuthorizedError, RocketshimError
from rocketshim.kafka.clients import Parting, unsubscribes
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import DENIED

__all__ = ["Mode", "PollLoop"]

_LOG = safe_logger("rocketshim.consumer")
_SERVE_MS: Final = 500
_LEAVE_S: Final = 1.0
_BUSY_S: Final = 0.005
_GATHER_S: Final = 0.001  # nothing waits for results, and an iteration for each would cost more than they do
_CATCH_UP_MS: Final = 50
_SATURATED_MS: Final = 500


class Mode(Protocol):
    """What concurrent and orderly consumption do differently. The poll thread calls it."""

    def take_up(self, partitions: list[TopicPartition]) -> None:
        """Accept partitions that were assigned. Raises as `PartitionOwner.take_up`."""

    def give_up(self, keys: Collection[TopicPartitionKey]) -> None:
        """Give up what the mode has of partitions that are no longer assigned. Never raises."""

    def put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        """Add a fetched run to its queue."""

    def turn(self, now_ms: int) -> float:
        """Do what is due now, and return how long the loop may wait for messages, in seconds.

        Raises:
            RocketshimError: the consumer cannot continue.
        """

    def finish(self) -> bool:
        """While closing: finish what can be finished now; return whether nothing is left."""

    def close(self) -> None:
        """Clean up: the loop has left the group."""


class PollLoop(Generic[QueueT]):
    """The loop of one thread over one Kafka consumer. `push.assembly` puts it together.

    Attributes:
        opened: set when `open` has succeeded or failed.
        is_open: whether it has succeeded.

    Thread-safety: only one thread calls `run`; any thread may call `stop` and `ask`, and read counts and `error`.
    """

    def __init__(
        self,
        parts: LoopParts,
        dispatch: Dispatch[QueueT, Any, Any],
        queues: AssignedQueues[QueueT],
        mode: Mode,
    ) -> None:
        self.opened = threading.Event()
        self.is_open = False
        self.reader = parts.reader
        self.queues = queues
        self.dispatch = dispatch
        self.mode = mode
        self._house = Housekeeping(parts, queues, dispatch)
        self._settings = parts.settings
        self._unsubscribes = unsubscribes(parts.settings.client)
        self._now_ms = parts.reader.now_ms
        self._log = parts.log
        self._error: BaseException | None = None
        self._stop_by_ms: int | None = None  # None: no stop requested; no Event: a signal handler may need its lock
        self._asked: SimpleQueue[Asked] = SimpleQueue()
        self._idle_s = 0.0
        self._next_pull_ms = 0
        self._next_poll_ms = 0

    # --- any thread --------------------------------------------------------------------------------------------------

    @property
    def error(self) -> BaseException | None:
        """Return why the loop ends, or has ended; None: no error."""
        known = (self._error, self.reader.error, self.dispatch.died)
        return next((error for error in known if error is not None), None)

    def _fail(self, error: BaseException) -> None:
        """Keep the first error; an error of user code may have no truth value."""
        self._error = error if self.error is None else self.error

    @property
    def state(self) -> ConsumerState | None:
        """Return the state of the consumer, at most a second old; None: there is none yet."""
        return self._house.state

    def stop(self, timeout_ms: int) -> None:
        """Request the loop to end within a time. Any thread may call it, also twice; the earlier deadline counts."""
        by_ms = self._now_ms() + timeout_ms
        self._stop_by_ms = by_ms if self._stop_by_ms is None else min(by_ms, self._stop_by_ms)

    def ask(self, request: Request) -> "Future[None]":
        """Let the loop perform a request between two turns; the future has its error. Any thread may call it."""
        asked = Asked(request)
        self._asked.put(asked)
        return asked.answer

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until `stop`, or until an error ends the loop; then `error` has the reason. Never raises."""
        self._keep_error(self._consume)
        self.opened.set()
        self._keep_error(self.close)

    def _consume(self) -> None:
        self.open()
        while self._stop_by_ms is None:
            self.turn()

    def _keep_error(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - the top of a thread: kept, logged, and raised by the facade
            self._fail(error)
            _LOG.exception("consumer.poll-thread-failed")

    def open(self) -> None:
        """Make the clients and subscribe, without network calls except the look-up of topics that match patterns."""
        self.dispatch.send_back.open()
        self.reader.open(self)
        self._house.open()
        if self._log is not None:
            self._log.start(f"rocketshim-group-log-{self._log.owner.client_id}")
        self.is_open = True
        self.opened.set()

    def turn(self) -> None:
        """Do one iteration of the loop.

        Raises:
            ConsumerError: the loop cannot continue.
        """
        now_ms = self._now_ms()
        self.dispatch.take()
        self.queues.resume_drained()
        try:
            self._house.do_due(now_ms)
            self._idle_s = self.mode.turn(now_ms)
        except RocketshimError as error:
            self._fail(error)
        while self._asked.qsize():
            self._perform(self._asked.get())
        self.dispatch.hand_out(self.queues.owned())
        reason = self.error
        if reason is not None:
            raise ConsumerError(f"the consumer cannot go on: {safe_text(reason)}") from reason
        self._fetch()

    def close(self) -> None:
        """Finish running calls within the deadline, commit, leave the group. A second call is safe."""
        deadline_ms = self._now_ms() if self._stop_by_ms is None else self._stop_by_ms
        self.reader.is_closing = True
        try:
            if self.reader.is_open:
                self._finish_up(deadline_ms)
        except (KafkaException, RuntimeError) as error:
            self._fail(error)
        finally:
            self.reader.forget_all()
            if self.reader.assigner is not None:
                self.reader.assigner.close()
            self.dispatch.pool.stop(max(0, deadline_ms - self._now_ms()) / 1_000)
            self._leave(deadline_ms)
            self.dispatch.send_back.close()
            self.mode.close()
            self._house.close()
            while self._asked.qsize():
                self._asked.get().answer.set_exception(ConsumerError("the consumer is not open"))

    def _finish_up(self, deadline_ms: int) -> None:
        """Join, drain and commit while polling, so that rebalances and reports do not wait for this consumer."""
        consumer = self.reader.client()
        if self._unsubscribes:  # with KIP-848 no member waits for one that leaves while it joins
            self._poll_while(lambda: self.reader.is_joining and self.error is None, deadline_ms)
        self.reader.suspend()
        self.dispatch.withhold(self.queues)
        while self.error is None and any(not queue.settled for queue in self.queues):
            if self._now_ms() >= deadline_ms:
                break
            self.dispatch.wait(_BUSY_S)
            consumer.poll(0)  # its message is not finished, so not committed: the next owner gets it
        self.queues.commit()
        self._poll_while(lambda: self.queues.commits.outstanding > 0, max(deadline_ms, self._now_ms() + 1_000))
        while self.error is None and not self.mode.finish() and self._now_ms() < deadline_ms:
            self.dispatch.wait(_BUSY_S)

    def _poll_while(self, condition: Callable[[], bool], deadline_ms: int) -> None:
        """Poll the client while a condition holds, until the deadline; messages are dropped."""
        while condition() and self._now_ms() < deadline_ms:
            before_ms = self._now_ms()
            self.reader.client().poll(_BUSY_S)
            if self._now_ms() == before_ms:  # a test's clock, which only the test moves
                break

    def _leave(self, deadline_ms: int) -> None:
        """Leave the group and close the client; abandon the client if no broker answers."""
        unanswered = self.queues.commits.outstanding
        timeout_s = max(_LEAVE_S, (deadline_ms - self._now_ms()) / 1_000)
        try:
            parting = self.reader.leave(timeout_s, unsubscribe=self._unsubscribes)
        except (KafkaException, RuntimeError) as error:
            self._fail(error)
            return
        if parting is Parting.LEFT:
            return
        group = self._settings.group
        if unanswered:
            self._fail(
                ConsumerError(
                    f"the consumer of group {group!r} has ended, but its last commit was not answered in time (no "
                    "broker can be reached, or the group waits for another member): what was finished since the commit "
                    "before may be delivered again"
                )
            )
        _LOG.warning("consumer.not-left", extra={"group": group})

    def _perform(self, asked: Asked) -> None:
        if not asked.answer.set_running_or_notify_cancel():
            return
        try:
            match asked.request:
                case Suspend():
                    self.reader.suspend()
                    self.queues.commit()
                case Resume():
                    self.reader.resume()
                case Seek(targets):
                    self.queues.seek(targets)
                case SeekToTime(topic, timestamp_ms):
                    self.queues.seek_to_time(topic, timestamp_ms)
                case Resize(size):
                    self.dispatch.pool.resize(size)
                case Subscribe() | Unsubscribe() as change:
                    self._house.change_topics(change)
                case _:
                    assert_never(asked.request)
            asked.answer.set_result(None)
        except Exception as error:  # noqa: BLE001 - the caller of `ask` gets it
            asked.answer.set_exception(error)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        if self.queues.is_too_full():
            self._catch_up()
            return
        wait_s = _GATHER_S if self.dispatch.has_results else (_BUSY_S if self.dispatch.is_busy else self._idle_s)
        count = self._settings.pull_batch_size
        if self._settings.pull_interval_ms:
            count, wait_s = self._keep_interval(wait_s)
        if count:
            self._put_fetched(count, wait_s)

    def _put_fetched(self, count: int, wait_s: float) -> None:
        for key, run in self.reader.fetch(count, wait_s):
            self.mode.put(key, run)

    def _keep_interval(self, wait_s: float) -> tuple[int, float]:
        """Return how many messages may be fetched now, and how long to wait for them; 0: none, and the wait is over."""
        left_ms = self._next_pull_ms - self._now_ms()
        if left_ms > 0:
            self.dispatch.wait(min(left_ms / 1_000, wait_s))
            if self._now_ms() < self._next_poll_ms:
                return 0, 0.0
        self._next_poll_ms = self._now_ms() + _SERVE_MS
        if left_ms > 0:  # only because the consumer must poll to stay in the group
            return 1, 0.0
        self._next_pull_ms = self._now_ms() + self._settings.pull_interval_ms
        return self._settings.pull_batch_size, wait_s

    def _catch_up(self) -> None:
        """Give the listeners time to catch up; then pause the queues that are still too full, and keep polling.

        They get more time while all of them have work: no other call could begin meanwhile, and with 20 threads that
        take 1 ms, a pause caused each message to be fetched ten times. They also get more time while hops are on their
        way to the broker, which mostly takes milliseconds.
        """
        began_ms = self._now_ms()
        while self.queues.is_too_full():
            longest_ms = _SATURATED_MS if self.dispatch.is_saturated else _CATCH_UP_MS
            left_ms = began_ms + longest_ms - self._now_ms()
            if left_ms <= 0 or self._stop_by_ms is not None:
                self.queues.pause_full()
                self._put_fetched(1, 0)  # it was fetched before the pause took effect
                return
            self.dispatch.wait(min(left_ms, _CATCH_UP_MS) / 1_000)
            self.queues.resume_drained()
            self.dispatch.hand_out(self.queues.owned())

    # --- what the reader asks (`PartitionOwner`) ---------------------------------------------------------------------

    def take_up(self, partitions: list[TopicPartition]) -> None:
        """Accept partitions."""
        self.mode.take_up(partitions)
        self._house.compare_soon()

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a partition."""
        self.queues.begin(key, offset)

    def position(self, key: TopicPartitionKey) -> int | None:
        """Return where to read a partition again."""
        return self.queues.position(key)

    def release(self, keys: Collection[TopicPartitionKey]) -> None:
        """Wait for the listeners of partitions that leave, and commit."""
        self.queues.finish(keys, self._now_ms() + self._settings.revoke_drain_ms)

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Give up partitions."""
        self.mode.give_up(keys)
        self.queues.forget(keys)

    def committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Process the answer to a commit."""
        self.queues.committed(error, partitions)

    def client_error(self, message: Any) -> None:
        """End the loop if the error is fatal; else log it."""
        error, topic = message.error(), message.topic()
        if error.fatal():
            self._error = KafkaException(error)
        elif error.code() in DENIED:
            self._error = NotAuthorizedError(f"not authorized to read {topic or 'in this group'}: {error.str()}")
        else:
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
                self._house.doubt(topic)
            _LOG.warning("consumer.client-error", extra={"error": str(error), "topic": topic})
