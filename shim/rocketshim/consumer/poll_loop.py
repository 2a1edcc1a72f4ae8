"""The poll thread: it owns the Kafka consumer, every process queue, every commit and the rebalance callbacks.

One iteration processes the results of the listener threads and the delivery reports, commits when it is time, hands out
pending messages, and fetches. Rules:

* User code is never called here, and nothing here blocks on a listener for longer than a fraction of a second.
* The consumer is polled at least twice a second, so that a slow listener never costs the membership of the group. A
  queue with too many buffered messages is paused (`flow_control`). Before that the listeners get 50 ms to catch up, or
  half a second while all of them have work, because a pause discards what librdkafka has fetched. Each time messages
  leave a queue, the loop checks whether it may be resumed.
* No message of a partition is handed out before its start is known and committed (`start_offsets.PartitionStarter`).
* Commits are the offsets after the longest finished prefixes, every `commit_interval_ms`, and at revoke, suspend
  and close. `commits.Committer` prevents them from going backwards.
* A rebalance callback never raises, because an exception there would lose a fetched record. An error is kept, and the
  loop raises it.
* Offsets that go backwards within an assignment mean that the log was cut or created again. The queue is dropped, and a
  new epoch starts where the log continues. Messages may be repeated, but none is lost.
* Closing: no new call begins, and running calls may finish until the deadline while the group is still served. Then the
  loop commits once, and leaves the group.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rocketshim.consumer.dispatch import Dispatch, Pool
from rocketshim.consumer.outcome import FailedMessage, safe_text
from rocketshim.consumer.reader.commits import Committer
from rocketshim.consumer.reader.offset_store import OffsetStore
from rocketshim.consumer.reader.partition_assigner import PartitionAssigner
from rocketshim.consumer.reader.partition_queue import QueueT, Work
from rocketshim.consumer.reader.pauses import PauseReason, Pauses
from rocketshim.consumer.reader.runs import runs_of
from rocketshim.consumer.reader.start_offsets import PartitionStarter, StartOffsets
from rocketshim.consumer.reader.throttle import Throttle
from rocketshim.consumer.reader.topic_watch import FindTopics, TopicWatch
from rocketshim.consumer.send_back import FailedSink, SendBackCounts
from rocketshim.consumer.state import ConsumerQueueState, ConsumerState
from rocketshim.core.clock import Clock
from rocketshim.core.flow_control import FlowLimits
from rocketshim.errors import ConsumerError, NotAuthorizedError
from rocketshim.kafka.clients import ConsumerClient, Parting, close_consumer
from rocketshim.kafka.lookups import Lookups
from rocketshim.kafka.partitions import partition_names
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import DENIED

__all__ = ["LoopSettings", "PollLoop"]

_LOG = safe_logger("rocketshim.consumer")
T = TypeVar("T")
_ERROR: Final = Message.error  # called in C, by `map`
_SERVE_MS: Final = 500
_SHOW_MS: Final = 1_000
_LEAVE_S: Final = 1.0
_IDLE_S: Final = 0.1
_BUSY_S: Final = 0.005
_GATHER_S: Final = 0.001  # nothing waits for results, and an iteration for each would cost more than they do
_CATCH_UP_MS: Final = 50
_SATURATED_MS: Final = 500
_COMPARE_TIMEOUT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The settings of one poll loop; all durations in ms; `topic_*` -1 for no limit."""

    batch_count: int
    commit_interval_ms: int
    consume_timeout_ms: int
    sweep_interval_ms: int
    revoke_drain_ms: int
    limits: FlowLimits
    watch_interval_ms: int = 20_000
    topic_count: int = -1
    topic_size_bytes: int = -1
    fetch_count: int = 1_000
    pull_interval_ms: int = 0
    group: str = ""
    unsubscribes: bool = True  # whether to unsubscribe before closing; see `clients.close_consumer`


class PollLoop(ABC, Generic[QueueT]):
    """The loop of one thread over one Kafka consumer: what concurrent and orderly consumption share.

    Args:
        make_consumer: makes the Kafka consumer; called in the loop's own thread.
        make_lookup_client: makes a client that joins no group, for look-ups while the consumer fetches; called in the
            loop's own thread, too.
        topics: physical topics to subscribe to.
        make_send_back: makes the sender of failed messages; called in the loop's own thread, too.
        pool: runs the listeners.
        starts: finds start offsets and the metadata of commits.
        settings: the settings of the loop.
        clock: monotonic time.
        sharing: decides which partitions to read; None: Kafka's group protocol, over `topics`.
        store: where offsets are stored; None: in Kafka.
        find: called at an interval to choose the topics to read from the existing ones; None: `topics` do not change.

    Thread-safety: only one thread calls `run`; any thread may call `stop` and `ask` and read the counts.
    """

    def __init__(
        self,
        *,
        make_consumer: Callable[[], ConsumerClient],
        make_lookup_client: Callable[[], ConsumerClient],
        topics: list[str],
        make_send_back: Callable[[], FailedSink],
        pool: Pool[Any, Any],
        starts: StartOffsets,
        settings: LoopSettings,
        clock: Clock,
        sharing: PartitionAssigner | None = None,
        store: OffsetStore | None = None,
        find: FindTopics | None = None,
    ) -> None:
        self.error: BaseException | None = None
        self.assigned = threading.Event()
        self.opened = threading.Event()  # also set if opening has failed
        self.is_open = False
        self.commits = Committer(starts.metadata, store, None if sharing is None else self._may)
        self.dispatch: Dispatch[QueueT, Any, Any] = self._make_dispatch(pool, settings.batch_count)
        self.state: ConsumerState | None = None  # replaced each second; any thread may read it
        self.turn_ended_ms = 0
        self._make_consumer = make_consumer
        self._watch = TopicWatch(topics, find, settings.watch_interval_ms)
        self._make_send_back = make_send_back
        self._pool = pool
        self._starts = starts
        self.lookups = starts.lookups = Lookups(self._client, lambda: bool(self._queues), make_lookup_client)
        self._settings = settings
        self._clock = clock
        self._sharing = sharing
        self._shared: set[TopicPartitionKey] = set()  # the partitions that `sharing` wanted last
        self._next_comparison_ms: int | None = None  # None: nothing was assigned yet
        self._stop_by_ms: int | None = None  # None: no stop requested; no Event: a signal handler may need its lock
        self._closing = False
        self._suspended = False
        self._queues: dict[TopicPartitionKey, QueueT] = {}
        self._fresh: set[TopicPartitionKey] = set()  # assigned since the last poll
        self._pauses = Pauses()
        self._throttle = Throttle(
            settings.limits,
            settings.topic_count,
            settings.topic_size_bytes,
            in_flight=lambda: self.dispatch.in_flight,
            pauses=self._pauses,
        )
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        if sharing is not None:
            starts.may = self._may
        self._uptake = PartitionStarter(starts, self._pauses, self._begin, self._now_ms)
        self._epoch = 0
        self._next_commit_ms = 0
        self._next_sweep_ms = 0
        self._next_show_ms = 0
        self._next_pull_ms = 0
        self._next_poll_ms = 0
        self._consumer: ConsumerClient | None = None
        self._send_back: FailedSink | None = None

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    @property
    def send_back(self) -> FailedSink | None:
        """Return the sender of failed messages, once the loop runs; for its counts."""
        return self._send_back

    @property
    def queues(self) -> list[QueueT]:
        """Return the process queues assigned now; for counts."""
        return list(self._queues.values())

    @property
    def suspended(self) -> bool:
        """Return whether the consumer is suspended."""
        return self._suspended

    def stop(self, timeout_ms: int) -> None:
        """Request the loop to end within a time. Any thread may call it, also twice; the earlier deadline counts."""
        by_ms = self._now_ms() + timeout_ms
        self._stop_by_ms = by_ms if self._stop_by_ms is None else min(by_ms, self._stop_by_ms)

    def ask(self, action: Callable[[ConsumerClient], T]) -> "Future[T]":
        """Run an action with the Kafka consumer in the loop's thread, between two iterations.

        The future is cancelled if the loop ends first.
        """
        future: Future[T] = Future()

        def act() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(action(self._client()))
            except Exception as error:  # noqa: BLE001 - the caller of `ask` gets it
                future.set_exception(error)

        self._asked.put(act)
        return future

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
            self.error = error if self.error is None else self.error
            _LOG.exception("consumer.poll-thread-failed")

    def open(self) -> None:
        """Make the clients and subscribe, without network calls except the look-up of topics that match patterns."""
        self._send_back = self._make_send_back()
        self._consumer = self._make_consumer()
        self._watch.look(self.lookups, self._now_ms())
        self._subscribe(self._consumer)
        if self._sharing is not None:
            self._sharing.open()
        self.is_open = True
        self.opened.set()

    def _subscribe(self, consumer: ConsumerClient) -> None:
        if self._sharing is None:
            consumer.subscribe(
                self._watch.topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )

    def turn(self) -> None:
        """Do one iteration of the loop.

        Raises:
            ConsumerError: the loop cannot continue.
        """
        now_ms = self._now_ms()
        self.dispatch.take_results(now_ms)
        self._process_reports(now_ms)
        self._keep_house(now_ms)
        while self._asked.qsize():
            self._asked.get()()
        self.dispatch.hand_out(self._workable())
        self.error = self.dispatch.died if self.error is None else self.error
        if self.error is not None:
            raise ConsumerError(f"the consumer cannot go on: {safe_text(self.error)}") from self.error
        self._fetch()
        self.turn_ended_ms = now_ms

    def close(self) -> None:
        """Finish running calls within the deadline, commit, leave the group. A second call is safe."""
        deadline_ms = self._now_ms() if self._stop_by_ms is None else self._stop_by_ms
        consumer = self._consumer
        self._closing = True
        try:
            if consumer is not None:
                self._finish_up(consumer, deadline_ms)
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error
        finally:
            self._forget(list(self._queues))
            if self._sharing is not None:
                self._sharing.close()
            self._pool.stop(max(0, deadline_ms - self._now_ms()) / 1_000)
            self.lookups.close()
            self._leave(consumer, deadline_ms)
            self._consumer = None
            if self._send_back is not None:
                self._send_back.close()
            while self._asked.qsize():
                self._asked.get()()  # the action finds the consumer closed, and its future gets that error

    def _finish_up(self, consumer: ConsumerClient, deadline_ms: int) -> None:
        """Join, drain and commit while polling, so that rebalances and reports do not wait for this consumer."""
        self._finish_joining(consumer, deadline_ms)
        self._pauses.hold(consumer, list(self._queues), PauseReason.SUSPENDED)
        self.dispatch.withhold(self._queues.values())
        while self.error is None and any(not queue.settled for queue in self._queues.values()):
            if self._now_ms() >= deadline_ms:
                break
            self._wait(_BUSY_S)
            consumer.poll(0)  # its message is not finished, so not committed: the next owner gets it
        now_ms = self._now_ms()
        self.commits.commit(consumer, self._queues.values(), now_ms=now_ms, asynchronous=True)
        while self.commits.outstanding and self._now_ms() < max(deadline_ms, now_ms + 1_000):
            before_ms = self._now_ms()
            consumer.poll(_BUSY_S)
            if self._now_ms() == before_ms:  # a test's clock, which only the test moves
                break

    def _finish_joining(self, consumer: ConsumerClient, deadline_ms: int) -> None:
        """Poll until the first rebalance is over: the other members would wait for a member that leaves before.

        Not with KIP-848: there no member waits, and a member without partitions gets no callback.
        """
        while self._settings.unsubscribes and self._is_joining and self.error is None and self._now_ms() < deadline_ms:
            before_ms = self._now_ms()
            consumer.poll(_IDLE_S)
            if self._now_ms() == before_ms:  # a test's clock, which only the test moves
                break

    @property
    def _is_joining(self) -> bool:
        return self._sharing is None and not self.assigned.is_set()

    def _leave(self, consumer: ConsumerClient | None, deadline_ms: int) -> None:
        """Leave the group and close the client; abandon the client if no broker answers."""
        if consumer is None:
            return
        unanswered = self.commits.outstanding
        try:
            parting = close_consumer(
                consumer,
                max(_LEAVE_S, (deadline_ms - self._now_ms()) / 1_000),
                unsubscribe=self._settings.unsubscribes and self._sharing is None,
                has_joined=lambda: not self._is_joining,
            )
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error
            return
        if parting is Parting.LEFT:
            return
        group = self._settings.group
        if unanswered:
            self.error = self.error or ConsumerError(
                f"the consumer of group {group!r} has ended, but its last commit was not answered in time (no broker "
                "can be reached, or the group waits for another member): what was finished since the commit before may "
                "be delivered again"
            )
        _LOG.warning("consumer.not-left", extra={"group": group})

    # --- what concurrent and orderly consumption implement -----------------------------------------------------------

    @abstractmethod
    def _make_dispatch(self, pool: Pool[Any, Any], batch_count: int) -> Dispatch[QueueT, Any, Any]:
        """Make the dispatch that hands messages to the pool's listener threads."""

    @abstractmethod
    def _make_queue(self, key: TopicPartitionKey, epoch: int) -> QueueT:
        """Make the queue of a partition whose epoch begins."""

    @abstractmethod
    def _sweep(self, now_ms: int) -> None:
        """Find listener calls that take too long; called every `sweep_interval_ms`."""

    def _idle_s(self) -> float:
        """Return how long the consumer is polled while no listener has work, in seconds."""
        return _IDLE_S

    # --- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        consumer = self._client()
        if self._throttle.is_reached(self._queues.values()):
            self._catch_up(consumer)
            return
        outstanding = self.dispatch.in_flight or self._hops
        wait_s = _GATHER_S if self.dispatch.has_results else (_BUSY_S if outstanding else self._idle_s())
        count = self._settings.fetch_count
        if self._settings.pull_interval_ms:
            count = self._keep_interval(wait_s)
            if not count:
                return
        first = consumer.poll(wait_s if count > 1 else 0)
        if first is None:
            return
        self._fresh.clear()
        batch = consumer.consume(count - 1, 0) if count > 1 else []
        batch.insert(0, first)  # a new list would count every reference again
        if any(map(_ERROR, batch)):  # an error is true, None is not
            for message in batch:
                if message.error() is not None:
                    self._client_error(message)
            batch = [message for message in batch if message.error() is None]
        moved = (
            self._fresh & self._queues.keys()
        )  # messages of partitions that were assigned and revoked since are dropped below
        for key, run in runs_of(batch):
            if key in moved:  # assigned within `consume`: the run may belong to the previous assignment
                consumer.seek(TopicPartition(*key, self.commits.position(key)))
            else:
                self._put(key, run)

    def _keep_interval(self, wait_s: float) -> int:
        """Return how many messages may be fetched now.

        0: none, and the wait is over. 1: only because the consumer must poll to stay in the group.
        """
        left_ms = self._next_pull_ms - self._now_ms()
        if left_ms > 0:
            self._wait(min(left_ms / 1_000, wait_s))
            if self._now_ms() < self._next_poll_ms:
                return 0
        self._next_poll_ms = self._now_ms() + _SERVE_MS
        if left_ms > 0:
            return 1
        self._next_pull_ms = self._now_ms() + self._settings.pull_interval_ms
        return self._settings.fetch_count

    def _put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        queue = self._queues.get(key)
        if queue is None or key in self._uptake:
            return  # it was revoked meanwhile, or is read again once its start is known
        try:
            queue.put(run)
        except ValueError:
            _LOG.warning("consumer.log-cut", extra={"partition": str(key), "first_offset": run[0].offset()})
            self._begin(key, run[0].offset())
            self._queues[key].put(run)

    def _begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a new epoch of a partition, from this offset on."""
        before = self._queues.get(key)
        if before is not None:
            self.dispatch.withhold([before])
            before.drop()
        self._epoch += 1
        if offset >= 0:  # else it waits: `_put` drops its messages, and it is sought once its start is known
            self._fresh.add(key)
        self._queues[key] = self._make_queue(key, self._epoch)
        self.commits.adopt(key, offset)

    def _catch_up(self, consumer: ConsumerClient) -> None:
        """Give the listeners time to catch up; then pause the queues that are still too full, and keep polling.

        They get more time while all of them have work: no other call could begin meanwhile, and with 20 threads that
        take 1 ms, a pause caused each message to be fetched ten times. They also get more time while hops are on their
        way to the broker, which mostly takes milliseconds.
        """
        began_ms = self._now_ms()
        while True:
            if not self._throttle.is_reached(self._queues.values()):
                return
            patient = self._hops or self.dispatch.in_flight >= 2 * self._pool.size
            longest_ms = _SATURATED_MS if patient else _CATCH_UP_MS
            left_ms = began_ms + longest_ms - self._now_ms()
            if left_ms <= 0 or self._stop_by_ms is not None:
                break
            self._wait(min(left_ms, _CATCH_UP_MS) / 1_000)
            self.dispatch.hand_out(self._workable())
        self._throttle.pause(consumer, self._queues.values())
        message = consumer.poll(0)
        if message is None:
            return
        if message.error() is not None:
            self._client_error(message)
        else:  # it was fetched before the pause took effect
            self._put(TopicPartitionKey(message.topic(), message.partition()), [message])

    def _left(self, queue: QueueT) -> None:
        """Resume a queue, if messages have left it and it is below its thresholds again."""
        if queue.paused and self._consumer is not None:
            self._throttle.go_on(self._consumer, [queue])

    def _client_error(self, message: Any) -> None:
        error = message.error()
        code = error.code()
        if error.fatal():
            self.error = KafkaException(error)
        elif code in DENIED:
            self.error = NotAuthorizedError(
                f"not authorized to read {message.topic() or 'in this group'}: {error.str()}"
            )
        else:
            topic = message.topic()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
                self._watch.doubt(topic, self._now_ms())
            _LOG.warning("consumer.client-error", extra={"error": str(error), "topic": topic})

    # --- listeners, reports ------------------------------------------------------------------------------------------

    def _failed(self, chunk: Work, outcome: FailedMessage) -> None:
        if self._send_back is not None:
            self._send_back.send(chunk, outcome)

    @property
    def _hops(self) -> int:
        """Return how many failed messages are not yet stored elsewhere."""
        return 0 if self._send_back is None else self._send_back.outstanding

    def _wait(self, timeout_s: float) -> None:
        """Wait for one result, then process all results and delivery reports.

        While hops are on their way, wait at most 5 ms; if no listener has work, wait for a delivery report instead.
        """
        hops = self._hops
        if hops:
            timeout_s = min(timeout_s, _BUSY_S)
        reports_only = hops and not self.dispatch.in_flight
        if not reports_only:
            self.dispatch.wait(timeout_s)
        now_ms = self._now_ms()
        self.dispatch.take_results(now_ms)
        self._process_reports(now_ms, timeout_s if reports_only else 0)

    def _process_reports(self, now_ms: int, wait_s: float = 0.0) -> None:
        if self._send_back is not None and self._send_back.outstanding:
            self._send_back.settle(now_ms, wait_s)

    def _keep_house(self, now_ms: int) -> None:
        consumer = self._client()
        self._throttle.go_on(consumer, self._queues.values())
        if self._watch.look(self.lookups, now_ms):
            self._subscribe(consumer)
        if self._sharing is not None:
            self._follow(consumer, self._sharing, now_ms)
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + self._settings.sweep_interval_ms
            self._sweep(now_ms)
        if now_ms >= self._next_commit_ms:
            self._next_commit_ms = now_ms + self._settings.commit_interval_ms
            self.commits.commit(consumer, self._queues.values(), now_ms=now_ms, asynchronous=True)
        self._uptake.look_again(consumer)
        if self._next_comparison_ms is not None and now_ms >= self._next_comparison_ms:
            self._compare_subscriptions(consumer, now_ms)
        self.error = self.error or self._watch.missing(self.lookups, now_ms)
        if now_ms >= self._next_show_ms:
            self._next_show_ms = now_ms + _SHOW_MS
            self.state = self._shown(consumer, now_ms)

    def _shown(self, consumer: ConsumerClient, now_ms: int) -> ConsumerState:
        counts, since_ms = self.dispatch.counts, self.commits.failing_since_ms
        return ConsumerState(
            at_ns=now_ms * 1_000_000,
            group=self._settings.group,
            is_member=self.assigned.is_set(),
            suspended=self._suspended,
            commits_fail_since_ns=None if since_ms is None else since_ms * 1_000_000,
            commits_failed=self.commits.failed,
            workers=self._pool.size,
            in_flight=self.dispatch.in_flight,
            messages={"SUCCESS": counts.succeeded, **(counts.failed_by_type or {"FAILED": counts.failed})},
            listener_s=counts.listener_ns / 1e9,
            send_back=SendBackCounts() if self._send_back is None else replace(self._send_back.counts),
            subscription_conflicts=dict(self._starts.conflicts),
            queues=tuple(self._queue_shown(consumer, queue, now_ms) for queue in self._queues.values()),
        )

    def _queue_shown(self, consumer: ConsumerClient, queue: QueueT, now_ms: int) -> ConsumerQueueState:
        key = TopicPartitionKey.of(queue)
        position, committed = queue.next_offset, self.commits.stored(key)
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        except (KafkaException, TypeError):
            high = -1
        at = committed if position is None else position
        return ConsumerQueueState(
            topic=queue.topic,
            queue_id=queue.partition,
            epoch=queue.epoch,
            position=position,
            committed=committed,
            lag=max(0, high - at) if high >= 0 and at >= 0 else None,
            msg_count=queue.msg_count,
            msg_bytes=queue.msg_bytes,
            oldest_in_work_ms=queue.oldest_in_work_ms(now_ms),
            paused="|".join(reason.name or "" for reason in self._pauses.why(key)),
        )

    def _compare_subscriptions(self, consumer: ConsumerClient, now_ms: int) -> None:
        """Check whether a member of the group subscribes differently: two subscriptions of one group lose messages."""
        self._next_comparison_ms = now_ms + self._settings.watch_interval_ms
        try:
            self._starts.look(consumer, self._watch.topics, _COMPARE_TIMEOUT_S)
        except KafkaException as error:
            _LOG.debug("consumer.subscriptions-unknown", extra={"error": str(error)})

    def _may(self, key: TopicPartitionKey) -> bool:
        return self._sharing is None or self._sharing.holds(key, self._now_ms())

    def _workable(self) -> Iterable[QueueT]:
        """Return the queues whose messages may be handed out now."""
        if self._sharing is None:
            return self._queues.values()
        return [queue for key, queue in self._queues.items() if self._may(key)]

    def _follow(self, consumer: ConsumerClient, sharing: PartitionAssigner, now_ms: int) -> None:
        """Assign and revoke partitions until exactly the wanted ones are read."""
        wanted = sharing.wanted(self.lookups, self._shared, now_ms)
        if wanted is None:
            return
        gone = sorted(self._shared - wanted)
        new = [TopicPartition(*key) for key in sorted(wanted - self._shared)]
        self._shared = wanted
        lost = [TopicPartition(*key) for key in gone if not sharing.holds(key, now_ms)]
        given_back = [TopicPartition(*key) for key in gone if sharing.holds(key, now_ms)]
        if lost:
            self._on_lost(consumer, lost)
        if given_back:
            self._on_revoke(consumer, given_back)
        if new:
            self._on_assign(consumer, new)
        self.assigned.set()

    # --- actions for `ask`, requested by other threads ---------------------------------------------------------------

    def read_topics(self, consumer: ConsumerClient, topics: list[str], find: FindTopics | None) -> None:
        """Read these topics from now on, and look for others if there is a `find`. For `ask`.

        Commit every queue again, so that its commit carries the new subscription even if no message arrives.
        """
        self.commits.commit_again(consumer, self._committable(), now_ms=self._now_ms())
        if self._watch.change(topics, find):
            self._subscribe(consumer)

    def _committable(self) -> list[TopicPartitionKey]:
        return [key for key in self._queues if key not in self._uptake]

    def suspend(self, consumer: ConsumerClient) -> None:
        """Stop reading until `resume_reading`; messages that were read are still processed. For `ask`."""
        self._suspended = True
        self._pauses.hold(consumer, list(self._queues), PauseReason.SUSPENDED)
        self.commits.commit(consumer, self._queues.values(), now_ms=self._now_ms(), asynchronous=True)

    def resume_reading(self, consumer: ConsumerClient) -> None:
        """Resume reading. For `ask`."""
        self._suspended = False
        self._pauses.release(consumer, list(self._queues), PauseReason.SUSPENDED)

    def seek(self, consumer: ConsumerClient, targets: Mapping[TopicPartitionKey, int]) -> None:
        """Continue at other offsets, in a new epoch: buffered messages are discarded, running calls no longer count.

        For `ask`.

        Raises:
            ConsumerError: a queue is not assigned to this consumer; nothing was moved.
            KafkaException: Kafka refused; the queues before that one were moved, that one and the others were not.
        """
        absent = [str(key) for key in targets if key not in self._queues or not self._may(key)]
        if absent:
            raise ConsumerError(
                f"{', '.join(absent)}: not read by this consumer now; nothing was moved. Seek in the consumer that "
                "reads them"
            )
        for key, offset in targets.items():
            self.commits.move(consumer, key, offset)
            consumer.seek(TopicPartition(*key, offset))  # if it fails, the next commit restores the group's offset
            self._uptake.forget([key])
            self._begin(key, offset)
            self._pauses.release(consumer, [key], PauseReason.FLOW | PauseReason.UNRESOLVED)

    def held(self, topic: str) -> list[TopicPartitionKey]:
        """Return the queues of a topic that are read now."""
        return [key for key in self._queues if key.topic == topic]

    # --- rebalancing: called from `poll` and `close`; none of these may raise ----------------------------------------

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Process the answer to an asynchronous commit."""
        self.commits.answered(error, partitions, self._now_ms())

    def _on_assign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        keys = [TopicPartitionKey.of(item) for item in partitions]
        try:
            self._uptake.take_up(consumer, partitions, look=not self._closing)
            if self._suspended or self._closing:
                self._pauses.hold(consumer, keys, PauseReason.SUSPENDED)
                if self._closing:
                    self.dispatch.withhold([self._queues[key] for key in keys])
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error
            return
        self._throttle.share(len(self._queues))
        self._next_comparison_ms = self._now_ms()
        self.assigned.set()
        _LOG.info("consumer.assigned", extra={"partitions": partition_names(keys)})

    def _on_revoke(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        keys = [TopicPartitionKey.of(item) for item in partitions]
        try:
            if not self._closing:
                leaving = [self._queues[key] for key in keys if key in self._queues]
                self._drain(self._now_ms() + self._settings.revoke_drain_ms, leaving)
                self.commits.commit(consumer, leaving, now_ms=self._now_ms(), asynchronous=False)
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error
        finally:
            self._depart(consumer, partitions, keys)

    def _on_lost(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        keys = [TopicPartitionKey.of(item) for item in partitions]
        _LOG.warning("consumer.lost", extra={"partitions": partition_names(keys)})
        self._depart(consumer, partitions, keys)

    def _depart(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], keys: list[TopicPartitionKey]
    ) -> None:
        self._forget(keys)
        self._throttle.share(len(self._queues))
        try:
            consumer.incremental_unassign(partitions)
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error

    def _forget(self, keys: list[TopicPartitionKey]) -> None:
        self._pauses.forget(keys)
        self._uptake.forget(keys)
        for key in keys:
            queue = self._queues.pop(key, None)
            self.commits.forget(key)
            if queue is not None:
                self.dispatch.withhold([queue])
                queue.drop()
            if self._sharing is not None:
                self._sharing.gave_up(key)

    def _drain(self, deadline_ms: int, queues: list[QueueT]) -> None:
        """Wait for listeners and hops of these queues, at most until the deadline; hand out nothing more of them."""
        self.dispatch.withhold(queues)
        while any(not queue.settled for queue in queues):
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0:
                return
            self._wait(min(left_ms, 10) / 1_000)
            self.dispatch.hand_out(self._workable())

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _client(self) -> ConsumerClient:
        if self._consumer is None:
            raise ConsumerError("the consumer is not open")
        return self._consumer
