"""The poll thread of a push consumer: it owns the Kafka consumer, the queues, the commits and the rebalance callbacks.

One turn processes the results of the listener threads and the delivery reports, does what is due, hands out pending
messages, and fetches. `PartitionReader` reads, a `Mode` has what was read and commits it, and `Dispatch` has
the listeners. Concurrent and orderly consumption are two `Mode`s. Rules:

* User code is never called here, and nothing here blocks on a listener for longer than a fraction of a second.
* The consumer is polled at least twice a second, so that a slow listener never costs the membership of the group. A
  queue with too many buffered messages is paused (`core.partition.must_pause`). Before that the listeners get 50 ms
  to catch up, or half a second while all of them have work, because a pause discards what librdkafka has fetched. Each
  time messages leave a queue, the loop checks whether it may be resumed.
* No message of a partition is handed out before its start is known and committed (`PartitionReader.start`).
* Commits are the offsets after the longest finished prefixes, at an interval, and at revoke, suspend and close.
  `core.partition` prevents them from going backwards.
* Closing: no new call begins, and the loop commits. Running calls may finish until the deadline while the group is
  still served; a rebalance does not wait for them. Then the loop commits again, and leaves the group.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.at_exit import at_exit
from rocketshim.consumer.mode import Mode
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer_metrics import ConsumerQueueState, ConsumerState
from rocketshim.core.clock import Interval
from rocketshim.core.partition import PartitionQueue
from rocketshim.core.subscriptions import Subscription, Subscriptions
from rocketshim.core.user_values import safe_text
from rocketshim.errors import ConsumerError, NotAuthorizedError, RocketshimError, TopicMissingError
from rocketshim.kafka.clients import LookupClient, Parting, is_fatal, unsubscribes
from rocketshim.kafka.queue_lookup import no_such_topics
from rocketshim.logs import safe_logger
from rocketshim_topics.kafka_codes import DENIED

__all__ = ["PollLoop", "TopicWatch"]

_LOG = safe_logger("rocketshim.consumer")
_SERVE_MS: Final = 500
_LEAVE_S: Final = 1.0
_BUSY_S: Final = 0.005
_GATHER_S: Final = 0.001  # nothing waits for results, and an iteration for each would cost more than they do
_CATCH_UP_MS: Final = 50
_SATURATED_MS: Final = 500
_SHOW_MS: Final = 1_000
_TIMEOUT_S: Final = 5.0
_MISSING_GRACE_MS: Final = 30_000


class TopicWatch:
    """Which topics a consumer reads (`topics`, by physical name) by its subscriptions, and whether they exist.

    Topics that match patterns are looked up at an interval. A topic that the cluster reports as unknown may be new, or
    the broker's metadata may be outdated. So the consumer waits for half a minute, and then looks the topic up. A
    missing topic is an error only if it is subscribed by name.
    """

    def __init__(self, source: Subscriptions, interval_ms: int) -> None:
        self.topics = source.topics()
        self.source = source
        self._look = Interval(interval_ms)
        self._unknown: dict[str, int] = {}  # topic to the time of its look-up, monotonic ms

    def refresh(self) -> bool:
        """Read the topics from a changed source; return whether they have changed. Patterns are looked up soon."""
        self._look.next_ms = 0
        return self._have_changed()

    def look(self, lookups: LookupClient, now_ms: int) -> bool:
        """Look up the existing topics, if it is time; return whether the topics to read have changed."""
        if not self.source.has_patterns or not self._look.is_due(now_ms):
            return False
        try:
            existing = lookups.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            _LOG.warning("consumer.topics-unknown", extra={"error": str(error)})
            return False
        self.source.match_patterns(existing)
        return self._have_changed()

    def _have_changed(self) -> bool:
        before, self.topics = self.topics, self.source.topics()
        return before != self.topics

    def note_unknown(self, topic: str, now_ms: int) -> None:
        """Note that the cluster reports a topic as unknown."""
        self._unknown.setdefault(topic, now_ms + _MISSING_GRACE_MS)

    def missing(
        self, lookups: LookupClient, now_ms: int, log_error: Callable[[KafkaError, str], None]
    ) -> TopicMissingError | None:
        """Look up topics that were reported as unknown half a minute ago; return an error for a missing one.

        Topics that are no longer read are not looked up. For a topic that a pattern matched, the patterns are.
        """
        self._unknown = {topic: until_ms for topic, until_ms in self._unknown.items() if topic in self.topics}
        for topic in [topic for topic, until_ms in self._unknown.items() if now_ms >= until_ms]:
            del self._unknown[topic]
            try:
                found = lookups.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
            except KafkaException as error:
                log_error(error.args[0], topic)
                self.note_unknown(topic, now_ms)
                continue
            if found is not None and found.partitions:
                continue
            if not self.source.is_matched(topic):
                return no_such_topics([topic])
            self._look.next_ms = 0
        return None


class PollLoop:
    """The loop of one thread over one Kafka consumer. `push.assembly` puts it together.

    Thread-safety: only one thread calls `run`; any thread may call `stop` and `ask`, and read counts and `error`.
    """

    def __init__(
        self,
        mode: Mode[Any],
        source: Subscriptions,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        settings = mode.settings
        self.opened = threading.Event()  # `open` has succeeded (`is_open`) or failed
        self.has_begun = threading.Event()  # the start of each partition of the first assignment is committed
        self.is_open = False
        self.ended = threading.Event()  # everything is closed
        self.exit_timeout_ms = settings.exit_timeout_ms  # 0: the exit of the interpreter does not stop the loop
        self.state: ConsumerState | None = None  # replaced each second
        self.reader = mode.reader
        self.mode = mode
        self.dispatch = mode.dispatch
        self._on_close = on_close  # releases what the loop does not know: files, the admin client
        self._settings = settings
        self._now_ms = mode.reader.now_ms
        self._watch = TopicWatch(source, settings.rebalance_interval_ms)
        self._show = Interval(_SHOW_MS)
        self._stop_by_ms: int | None = None  # None: no stop requested; no Event: a signal handler may need its lock
        self._asked: SimpleQueue[tuple[Callable[[PollLoop], None], Future[None]]] = SimpleQueue()
        self._next_pull_ms = self._next_poll_ms = 0

    # --- any thread --------------------------------------------------------------------------------------------------

    @property
    def error(self) -> BaseException | None:
        """Return why the loop ends, or has ended; None: no error."""
        known = (self.reader.error, self.dispatch.died, self.mode.commits.fatal)
        return next((error for error in known if error is not None), None)

    def _fail(self, error: BaseException) -> None:
        """Keep the first error; an error of user code may have no truth value."""
        if self.error is None:
            self.reader.fail(error)

    def stop(self, timeout_ms: int) -> None:
        """Request the loop to end within a time. Any thread may call it, also twice; the earlier deadline counts."""
        by_ms = self._now_ms() + timeout_ms
        self._stop_by_ms = by_ms if self._stop_by_ms is None else min(by_ms, self._stop_by_ms)

    def ask(self, act: Callable[["PollLoop"], None]) -> "Future[None]":
        """Have the poll thread call a function with this loop between two turns; any thread may call this.

        The answer is an exception if the function raised, or if the loop closes or has ended.
        """
        answer: Future[None] = Future()
        self._asked.put((act, answer))
        if self.reader.is_closing:
            self._refuse_asked()
        return answer

    def _refuse_asked(self) -> None:
        """Answer everything that was asked with an error; any thread may call this."""
        why = "" if self.error is None else f": it stopped after an error: {safe_text(self.error)}"
        with suppress(Empty):
            while True:
                self._asked.get_nowait()[1].set_exception(ConsumerError(f"the consumer is not running{why}"))

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until `stop`, or until an error ends the loop; then `error` has the reason. Never raises."""
        at_exit.add_consumer(self)
        self._keep_error(self._consume)
        self.opened.set()
        self.end()

    def end(self) -> None:
        """Close everything, also if `run` was not called. Never raises."""
        self._keep_error(self.close)
        self._keep_error(self._on_close)
        self.ended.set()

    def begin_exit(self) -> None:
        """Stop, since the interpreter exits and the program has not called `stop`; see `at_exit`."""
        if self.exit_timeout_ms:
            self.stop(max(0, self.exit_timeout_ms - round(_LEAVE_S * 1_000)))

    def finish_exit(self, until_s: float) -> int:
        """Wait for the end until a monotonic time in seconds; return 0: a consumer holds nothing that was sent."""
        if self.exit_timeout_ms and not self.ended.wait(max(0.0, until_s - time.monotonic())):
            _LOG.warning("consumer.not-left", extra={"group": self._settings.group})
        return 0

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
        self.reader.open(self.mode, self.mode.commits.answered, self._client_error)
        self._watch.look(self.reader.lookups, self._now_ms())
        self.reader.subscribe(self._watch.topics)
        self.mode.open()
        self.is_open = True
        self.opened.set()

    def turn(self) -> None:
        """Do one iteration of the loop. Raises ConsumerError if it cannot continue."""
        now_ms = self._now_ms()
        self.dispatch.take()
        self.mode.resume_with_room()
        idle_s = 0.0
        try:
            self._do_due(now_ms)
            idle_s = self.mode.turn(now_ms)
        except RocketshimError as error:
            self._fail(error)
        while self._asked.qsize():
            self._perform(*self._asked.get())
        self.dispatch.hand_out(self.mode.owned())
        if self.mode.commits.is_urgent():
            self.mode.commit()
        if (reason := self.error) is not None:
            raise ConsumerError(f"the consumer cannot go on: {safe_text(reason)}") from reason
        if not self.has_begun.is_set() and self._knows_its_starts():
            self.has_begun.set()
        self._fetch(idle_s)

    def _knows_its_starts(self) -> bool:
        return self.reader.assigned is not None and all(each.sent >= 0 for each in self.reader.partitions.values())

    def close(self) -> None:
        """Finish running calls within the deadline, commit, leave the group. A second call is safe."""
        deadline_ms = self._now_ms() if self._stop_by_ms is None else self._stop_by_ms
        self.reader.is_closing = True
        self._refuse_asked()
        try:
            if self.reader.is_open:
                self._finish_up(deadline_ms)
        except (KafkaException, RuntimeError) as error:
            self._fail(error)
        finally:
            self.reader.forget_all()
            self.dispatch.pool.stop(max(0, deadline_ms - self._now_ms()) / 1_000)
            self._leave(deadline_ms)
            self.dispatch.send_back.close()
            self.mode.close()
            self.state = self.state and _state_of(self._settings.group, self.reader, self.mode, self._now_ms())

    def _finish_up(self, deadline_ms: int) -> None:
        """Join, drain and commit while polling, so that rebalances and reports do not wait for this consumer."""
        consumer = self.reader.client()
        if self.error is None:  # else a turn may have ended before it put everything into the queues
            self.mode.skip_invisible()
        if unsubscribes(self._settings.client):  # with KIP-848 no member waits for one that leaves while it joins
            self._poll_while(lambda: self.reader.is_joining and self.error is None, deadline_ms)
        self.reader.suspend()
        self.dispatch.withhold(self.mode.queues)
        self.mode.commit()  # the process may be killed while it waits
        while self.error is None and not self.mode.is_drained and self._now_ms() < deadline_ms:
            self.dispatch.wait(_BUSY_S)
            consumer.poll(0)  # its message is not finished, so not committed: the next owner gets it
        commits, until_ms = self.mode.commits, max(deadline_ms, self._now_ms() + 1_000)
        self._poll_while(lambda: commits.outstanding > 0, until_ms)  # one without an answer would prevent the last one
        self.mode.mark_released()
        self.mode.commit()
        self._poll_while(lambda: commits.outstanding > 0, until_ms)
        while self.error is None and not self.mode.finish() and self._now_ms() < deadline_ms:
            self.dispatch.wait(_BUSY_S)
            consumer.poll(0)

    def _poll_while(self, condition: Callable[[], bool], deadline_ms: int) -> None:
        """Poll the client while a condition holds, until the deadline; messages are dropped."""
        while condition() and self._now_ms() < deadline_ms:
            before_ms = self._now_ms()
            self.reader.client().poll(_BUSY_S)
            if self._now_ms() == before_ms:  # a test's clock, which only the test moves
                break

    def _leave(self, deadline_ms: int) -> None:
        """Leave the group and close the client; abandon the client if no broker answers."""
        unanswered = self.mode.commits.outstanding
        timeout_s = max(_LEAVE_S, (deadline_ms - self._now_ms()) / 1_000)
        try:
            parting = self.reader.leave(timeout_s, unsubscribe=unsubscribes(self._settings.client))
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

    # --- between two turns -------------------------------------------------------------------------------------------

    def _do_due(self, now_ms: int) -> None:
        """Do what is due now. Raises RocketshimError: the consumer cannot continue."""
        reader = self.reader
        if self._watch.look(reader.lookups, now_ms):
            reader.subscribe(self._watch.topics)
        reader.follow_assigner()
        self.mode.commit_if_due(now_ms)
        reader.start_waiting()
        reader.look_at_group()
        if reader.joining.is_member:
            reader.starts.compare(self._watch.topics, now_ms)
        if (missing := self._watch.missing(reader.lookups, now_ms, reader.log_error)) is not None:
            raise missing
        if self._show.is_due(now_ms):
            self.state = _state_of(self._settings.group, reader, self.mode, now_ms)

    def _perform(self, act: Callable[["PollLoop"], None], answer: "Future[None]") -> None:
        try:
            act(self)
            answer.set_result(None)
        except Exception as error:  # noqa: BLE001 - the caller of `ask` gets it
            answer.set_exception(error)

    # --- for `ask` ---------------------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Read nothing until the reader is resumed; messages that were read are still processed."""
        self.reader.suspend()
        self.mode.commit()

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription, or replace the one of the same topic."""
        self._subscribe(lambda source: source.put(subscription))

    def unsubscribe(self, topic: str) -> None:
        """Read a topic (physical name, or pattern) no longer."""
        self._subscribe(lambda source: source.remove(topic))

    def _subscribe(self, change: Callable[[Subscriptions], object]) -> None:
        """Change the subscription, have the next commits carry it, and read by it."""
        source = self._watch.source
        change(source)
        self.reader.starts.subscribe(source.digest(), source.text())
        self.mode.commits.commit_again(self.reader.partitions)  # even if no message arrives
        self.mode.commit()
        if self._watch.refresh():
            self.reader.subscribe(self._watch.topics)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _fetch(self, idle_s: float) -> None:
        if self.mode.is_too_full():
            self._catch_up()
            return
        has_results = self.dispatch.pool.results.qsize() > 0
        wait_s = (
            _GATHER_S if has_results or self.dispatch.awaits_commit else (_BUSY_S if self.dispatch.is_busy else idle_s)
        )
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
        while self.mode.is_too_full():
            longest_ms = _SATURATED_MS if self.dispatch.is_saturated else _CATCH_UP_MS
            longest_ms = 0 if self.dispatch.awaits_commit else longest_ms  # its answer comes with a poll
            left_ms = began_ms + longest_ms - self._now_ms()
            if left_ms <= 0 or self._stop_by_ms is not None:
                self.mode.pause_full()
                self._put_fetched(1, 0)  # it was fetched before the pause took effect
                return
            self.dispatch.wait(min(left_ms, _CATCH_UP_MS) / 1_000)
            self.mode.resume_with_room()
            self.dispatch.hand_out(self.mode.owned())

    def _client_error(self, message: Any) -> None:
        """End the loop if the error is fatal; else log it."""
        error, topic = message.error(), message.topic()
        if is_fatal(error):
            self._fail(_fatal(error, self.reader.joining.explained(error)))
        elif error.code() in DENIED:
            self._fail(NotAuthorizedError(f"not authorized to read {topic or 'in this group'}: {error.str()}"))
        else:
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
                self._watch.note_unknown(topic, self._now_ms())
            self.reader.log_error(error, topic)


def _fatal(error: KafkaError, explanation: str) -> Exception:
    """Return what ends the loop: Kafka's error, or what it means."""
    return ConsumerError(f"{error.str()}{explanation}") if explanation else KafkaException(error)


def _state_of(group: str, reader: PartitionReader, mode: Mode[Any], now_ms: int) -> ConsumerState:
    """Return the state of the consumer, which the loop replaces each second."""
    dispatch, commits = mode.dispatch, mode.commits
    counts, since_ms = dispatch.counts, commits.failing_since_ms

    def of_queue(queue: PartitionQueue, unpaused: str = "") -> ConsumerQueueState:
        key = queue.key
        partition, position = reader.partitions.get(key), queue.next_offset
        committed = -1 if partition is None else partition.stored
        try:
            _, high = reader.client().get_watermark_offsets(TopicPartition(*key), cached=True)
        except (KafkaException, TypeError, ConsumerError):
            high = -1
        at = committed if position is None else position
        times, failing_ms = queue.failing(now_ms) or (None, 0)
        return ConsumerQueueState(
            topic=key.topic,
            queue_id=key.partition,
            epoch=queue.epoch,
            position=position,
            committed=committed,
            lag=max(0, high - at) if high >= 0 and at >= 0 else None,
            msg_count=queue.msg_count,
            msg_bytes=queue.msg_bytes,
            oldest_in_work_ms=queue.oldest_in_work_ms(now_ms),
            paused="|".join(reason.name or "" for reason in (partition.pauses if partition else ())) or unpaused,
            reconsume_times=times,
            failing_ms=failing_ms,
        )

    return ConsumerState(
        at_ns=now_ms * 1_000_000,
        group=group,
        is_member=reader.joining.is_member,
        suspended=reader.is_suspended,
        commits_fail_since_ns=None if since_ms is None else since_ms * 1_000_000,
        commits_failed=commits.failed,
        workers=dispatch.pool.size,
        in_flight=dispatch.in_flight,
        messages={"SUCCESS": counts.succeeded, **counts.failed_by_type},
        listener_s=counts.listener_ns / 1e9,
        listener_times=counts.listener_times.copy(),
        latencies=counts.latencies.copy(),
        send_back=replace(dispatch.send_back.counts),
        failures=dispatch.send_back.failures.copy(),
        subscription_conflicts=dict(reader.starts.conflicts),
        clock_ahead_ms=dispatch.send_back.clock_ahead_ms,
        queues=(*map(of_queue, mode.queues), *(of_queue(queue, "REVOKED") for queue in mode.ended)),
    )
