"""`LitePullConsumer`: ask for messages instead of being called with them.

One thread polls. What a poll returned is done when the next one begins, and not before: `stop`, and leaving the `with`
block, do not commit what the last poll returned, since nobody can tell whether its messages were handled; `commit_sync`
says so. Nothing is retried and nothing is dead: whoever polls decides what becomes of a message. Two ways to come by
queues, never both:

* `subscribe`: the group's members share the queues (Kafka's group protocol, cooperative);
* `assign`: exactly these queues, whoever else reads them. Such a consumer is no member, and its commits are not fenced:
  two that commit the same queue overwrite each other.

Rules of this file:

* Where a queue begins is decided as for push consumers (`start_offsets.StartOffsets`), and committed before the first
  message is handed out. While that is not possible (coordinator away) the queue is held, and gives nothing.
* A record of a queue that was assigned, taken away or paused since it was fetched is not handed out; the queue is read
  again from its position.
* Rebalance callbacks run inside `poll` and never raise: what goes wrong there is raised by `poll` itself, when it has
  no message to return.
* `poll` waits in slices of 0.1 s, so that `stop` is heard.
* A message with a header whose name is no UTF-8 cannot be filtered: it is passed over, and said like what goes wrong in
  a callback. Without an expression it is handed out, and what asks for its headers raises `MalformedRecordError`.
"""

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self, Unpack

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.consumer.listener import matching
from rocketshim.consumer.reader.pauses import PauseReason, Pauses
from rocketshim.consumer.reader.runs import runs_of
from rocketshim.consumer.reader.start_offsets import PartitionStarter, StartOffsets
from rocketshim.core.clock import Clock
from rocketshim.core.pull_positions import PullPositions
from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError, RocketshimError
from rocketshim.filters import MessageSelector, TagFilter
from rocketshim.kafka.client_config import CONSUMER_DEFAULTS, PROTECTED_CONSUMER, merge
from rocketshim.kafka.clients import (
    Clients,
    ConsumerClient,
    LastClientError,
    Parting,
    close_consumer,
    confluent_clients,
    explained,
    unsubscribes,
)
from rocketshim.kafka.lookups import Lookups
from rocketshim.kafka.partitions import TopicPartitionKey
from rocketshim.kafka.queue_lookup import QueueLookup, cluster_errors
from rocketshim.logs import safe_logger
from rocketshim.settings import LitePullConsumerOptions, LitePullConsumerSettings
from rocketshim_topics import MalformedRecordError, MessageView, TopicNames
from rocketshim_topics.kafka_codes import DENIED
from rocketshim_topics.message import first_views
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import BAD_HEADER_KEY, coordinates

__all__ = ["LitePullConsumer", "as_selector", "unreadable_headers"]

_LOG = safe_logger("rocketshim.consumer")
_SLICE_S: Final = 0.1
_LEAVE_S: Final = 10.0
_HALF_HOUR_MS: Final = 1_800_000

QueuesListener = Callable[[str, list[MessageQueue]], None]


def unreadable_headers(record: Any) -> MalformedRecordError:
    """What a pull consumer says of a message that no filter can judge."""
    return MalformedRecordError(
        BAD_HEADER_KEY,
        f"{coordinates(record)} was passed over: a header's name is no UTF-8, so that no expression can judge it; read "
        "it without an expression",
    )


def as_selector(expression: MessageSelector | str | None) -> MessageSelector:
    """A filter as pull consumers take it: a selector as it is, a text as a tag expression, None as everything."""
    return expression if isinstance(expression, MessageSelector) else MessageSelector.by_tag(expression)


class LitePullConsumer:
    """Polls messages of topics it shares with its group (`subscribe`), or of certain queues (`assign`).

    ::

        with LitePullConsumer("localhost:9092", group="reports") as consumer:
            consumer.subscribe("orders", MessageSelector.by_tag("paid"))
            while running:
                for message in consumer.poll():
                    ...                         # done when the next poll begins

    With `auto_commit` what a poll has returned is committed once the next poll has begun, or by `commit_sync`; never by
    `stop`. So what was not handled is delivered again, and at most one poll's messages although they were.

    Args:
        bootstrap: `host:port` of at least one broker; None when `settings` says it.
        group: the consumer group; None when `settings` says it.
        settings: everything at once, in place of the other arguments.
        clients: where Kafka clients come from; None: confluent_kafka.
        clock: time; None: this machine's.
        values: any other field of `LitePullConsumerSettings`, by name.

    Raises:
        ConfigError: a setting that does not exist or is out of range; nothing was opened.

    Thread-safety: one thread at a time, checked (`ConsumerError`); `stop` may be called from any, also from a signal
        handler.

    Source: `DefaultLitePullConsumer` of RocketMQ.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        group: str | None = None,
        settings: LitePullConsumerSettings | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        **values: Unpack[LitePullConsumerOptions],
    ) -> None:
        if settings is None:
            settings = LitePullConsumerSettings.make(bootstrap=bootstrap or "", group=group or "", **values)
        elif bootstrap is not None or group is not None or values:
            raise ConfigError("LitePullConsumer takes settings=, or its fields as arguments, not both")
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self._clients = clients
        self._clock: Clock = clock or SystemClock()
        self._starts = StartOffsets(
            retry_topic=self.names.retry(settings.group),
            where=settings.consume_from_where,
            timestamp_ms=settings.consume_timestamp_ms or self._clock.wall_ms() - _HALF_HOUR_MS,
            digest="",
            subscription="",
        )
        self._own_topics = {self.names.retry(settings.group), self.names.dead_letter(settings.group)}
        self._complaints = LastClientError()
        self._lookups = Lookups(
            self._client,
            lambda: bool(self._positions.places()),
            lambda: (clients or confluent_clients()).consumer(self._config()),
        )
        self._starts.lookups = self._lookups
        self._lookup = QueueLookup(self.names, lambda: self._lookups)
        self._subscribed: dict[str, MessageSelector] = {}  # physical topic
        self._wished: dict[TopicPartitionKey, MessageQueue] | None = None  # None: not by `assign`
        self._assign_filters: dict[str, MessageSelector] = {}
        self._logical: dict[str, str] = {}
        self._positions = PullPositions()
        self._pauses = Pauses()
        self._fresh: set[TopicPartitionKey] = set()
        self._uptake = PartitionStarter(self._starts, self._pauses, self._begin, self._now_ms)
        self._watched: dict[str, tuple[QueuesListener, list[MessageQueue] | None]] = {}
        self._failure: RocketshimError | None = None
        self._consumer: ConsumerClient | None = None
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._started = self._stopped = self._closing = self._has_joined = False
        self._stopping = threading.Event()
        self._next_commit_ms = self._next_check_ms = 0

    # --- what to read ------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: MessageSelector | str | None = None) -> None:
        """Share the queues of a topic with the group; of a topic that is subscribed, change the filter.

        Args:
            topic: logical name of the topic.
            expression: tags separated by `||`, a `MessageSelector`, or None for everything.

        Raises:
            ConfigError: `assign` was called before, or the name is none; nothing changed.
            FilterSyntaxError: the expression does not compile; nothing changed.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: of a consumer that runs; nothing changed.
        """
        selector = as_selector(expression)
        with self._call():
            if self._wished is not None:
                raise ConfigError("subscribe and assign exclude each other: this consumer has queues assigned")
            physical = self.names.physical(topic)
            is_new = physical not in self._subscribed
            if is_new and self._started:
                self._lookup.queues(topic)
            self._subscribed[physical] = selector
            self._logical[physical] = topic
            self._starts.subscribe(*self._description())
            if is_new and self._started:
                self._join()

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer; what was handed out of it is committed if `auto_commit` is on. Safe twice.

        Raises:
            ConfigError: the name is none.
        """
        with self._call():
            if self._subscribed.pop(self.names.physical(topic), None) is None:
                return
            self._starts.subscribe(*self._description())
            if self._started:
                self._join()

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues, each from where the group has committed it, or as `consume_from_where` says.

        Queues that were assigned before keep their position; those that are not named any more are given up.

        Raises:
            ConfigError: `subscribe` was called before, or a queue that cannot be one; nothing changed.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: of a consumer that runs; nothing changed.
        """
        with self._call():
            if self._subscribed:
                raise ConfigError("subscribe and assign exclude each other: this consumer has topics subscribed")
            before, self._wished = self._wished, {self._lookup.place(queue): queue for queue in queues}
            try:
                if self._started:
                    self._apply_assignment()
            except RocketshimError:
                self._wished = before
                raise

    def set_sub_expression_for_assign(self, topic: str, expression: MessageSelector | str | None) -> None:
        """Filter a topic whose queues are assigned; every queue of it alike.

        Raises:
            ConfigError: the name is none.
            FilterSyntaxError: the expression does not compile; nothing changed.
        """
        selector = as_selector(expression)
        with self._call():
            self._assign_filters[self.names.physical(topic)] = selector

    def register_topic_message_queue_change_listener(self, topic: str, listener: QueuesListener) -> None:
        """Have `listener(topic, queues)` called when the queues of a topic have changed.

        `poll` calls it before it looks for messages, in its own thread; the listener may call this consumer, `assign`
        say. What it raises comes out of `poll`, and no message is lost by it. Queues are looked up each
        `topic_metadata_check_interval_ms`; the first look only takes note.

        Raises:
            ConfigError: the name is not legal, or the listener cannot be called.
        """
        if not callable(listener):
            raise ConfigError(f"{listener!r:.80} is no listener: give a function of (topic, queues)")
        with self._call():
            self.names.physical(topic)
            self._watched[topic] = (listener, None)

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the client; join the group if topics are subscribed. Safe twice.

        Raises:
            ConfigError: a client setting that Kafka's client refuses.
            ConsumerError: it was stopped before.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: what is subscribed or assigned cannot be
                read. After each of these nothing is open, and start() may be called again.
        """
        with self._call():
            if self._stopped:
                raise ConsumerError("this consumer was stopped, and a consumer runs once: make a new one")
            if self._started:
                return
            config = self._config()
            try:
                self._consumer = (self._clients or confluent_clients()).consumer(config)
            except (KafkaException, ValueError, TypeError) as error:
                raise ConfigError(f"Kafka's client refuses its settings: {error}") from error
            try:
                with explained(self._complaints, self._consumer):
                    for physical in self._subscribed:
                        self._lookup.queues(self._logical[physical])
                if self._subscribed:
                    self._join()
                if self._wished is not None:
                    self._apply_assignment()
            except BaseException:
                self._lookups.close()
                self._consumer.close()
                self._consumer = None
                raise
            self._started = True
            self._next_commit_ms = self._now_ms() + self.settings.auto_commit_interval_ms

    def stop(self) -> None:
        """Commit what is done (if `auto_commit` is on), leave the group, close; within 10 s. Safe twice.

        What the last poll returned is not committed; `commit_sync` before does that. A poll that waits in another
        thread is ended, and waited for. Called by a signal handler while its own thread polls, it only asks: that poll
        closes, or the next call, if it has messages to return.

        Raises:
            ConsumerError, BrokerUnavailableError: the last commit failed; the consumer is closed all the same.
        """
        self._stopping.set()
        if self._holder == threading.get_ident():
            return
        with self._lock:
            self._close()

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._started and not self._stopping.is_set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- messages ----------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int | None = None) -> list[MessageView]:
        """The next messages, `pull_batch_size` at most; what the poll before returned counts as done.

        Args:
            timeout_ms: how long to wait for a message, in ms; 0: not at all; None: `poll_timeout_ms`.

        Returns:
            The messages, of one or several queues, each queue's in its order. Empty when none came in time, and when
            the consumer was stopped meanwhile.

        Raises:
            ConsumerError: not running, or it cannot go on.
            NotAuthorizedError: a topic or the group may not be read.
            TopicMissingError: a topic that is subscribed has gone.
            MalformedRecordError: a message with headers that nobody can read was passed over, since the expression
                could not judge it. The next poll goes on behind it.
        """
        wait_ms = self.settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        if self._watched:
            for listener, topic, queues in self._changed_queues():
                listener(topic, queues)
        with self._call():
            consumer = self._client()
            deadline_ms = self._now_ms() + wait_ms
            self._positions.begin_poll()
            while True:
                self._keep_house(consumer)
                left_ms = max(0, deadline_ms - self._now_ms())
                messages = self._fetch(consumer, min(left_ms / 1_000, _SLICE_S))
                if messages:
                    return messages
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if self._stopping.is_set():
                    self._close()
                    return []
                if self._now_ms() >= deadline_ms:
                    return []

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset of a queue that is held; the next commit says so, also when it lies before the last one.

        Args:
            queue: one of `assignment()`.
            offset: from the queue's first message to its end.

        Raises:
            ConfigError: the offset is outside; nothing changed.
            ConsumerError: the queue is not held, or not running.
            BrokerUnavailableError: the queue's bounds cannot be told; nothing changed.
        """
        with self._call():
            low, high = self._lookup.bounds(queue)
            if not low <= offset <= high:
                raise ConfigError(f"offset {offset} of {queue} is outside of what there is: {low} to {high}")
            self._move(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the queue's first message; as `seek`."""
        with self._call():
            self._move(queue, self._lookup.bounds(queue)[0])

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the queue's last message of now; as `seek`."""
        with self._call():
            self._move(queue, self._lookup.bounds(queue)[1])

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these queues until `resume`; those not held are passed over.

        A queue that is taken away and comes back is not paused any more.
        """
        with self._call():
            self._pauses.hold(self._client(), self._held(queues), PauseReason.USER)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out again what was paused; those not held are passed over."""
        with self._call():
            self._pauses.release(self._client(), self._held(queues), PauseReason.USER)

    # --- positions ---------------------------------------------------------------------------------------------------

    def commit_sync(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit, and wait for Kafka's answer.

        Args:
            offsets: the offset of the next message of each queue; None: of every queue held, behind the last message
                handed out.

        Raises:
            ConsumerError: a queue that is not held; not a member any more; not running. Nothing was committed, or the
                answer says of which queues.
            ConfigError: an offset below 0.
            BrokerUnavailableError: no answer; it may have been committed or not.

        Source: `DefaultLitePullConsumer#commitSync`, `#commit(Map, boolean)` of RocketMQ.
        """
        with self._call():
            consumer = self._client()
            if offsets is None:
                wanted = self._positions.due(everything=True)
            else:
                wanted = {self._held_place(queue): offset for queue, offset in offsets.items()}
                if any(offset < 0 for offset in wanted.values()):
                    raise ConfigError(f"commit_sync: offsets are 0 or more, got {min(wanted.values())}")
            self._commit(consumer, wanted)

    def committed(self, queue: MessageQueue) -> int | None:
        """What the group has committed of a queue; None for nothing.

        Raises:
            BrokerUnavailableError: it cannot be told.
        """
        with self._call(), cluster_errors(f"what is committed of {queue} cannot be told"):
            (answer,) = self._client().committed([TopicPartition(*self._lookup.place(queue))], timeout=10.0)
            if answer.error is not None:
                raise KafkaException(answer.error)
        return answer.offset if answer.offset >= 0 else None

    def position(self, queue: MessageQueue) -> int:
        """Offset at which the next message of a queue is looked for.

        Raises:
            ConsumerError: the queue is not held, or where it begins is not known yet.
        """
        with self._call():
            return self._positions.position(self._held_place(queue))

    def assignment(self) -> set[MessageQueue]:
        """The queues held now."""
        with self._call():
            return {self._queue(place) for place in self._positions.places()}

    @property
    def subscription_conflicts(self) -> dict[str, str]:
        """Topics that the group has consumed under another subscription; see `PushConsumer.subscription_conflicts`."""
        return dict(self._starts.conflicts)

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, sorted.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: they cannot be told.
        """
        with self._call():
            return self._lookup.queues(topic)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message of a queue not older than `timestamp_ms` (epoch ms); its end if there is none.

        Raises:
            ConfigError: a negative time.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be told.
        """
        with self._call():
            return self._lookup.offset_for_timestamp(queue, timestamp_ms)

    # --- inside: calls -----------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Every public call but `stop`: one thread at a time."""
        if not self._lock.acquire(blocking=False):
            raise ConsumerError("this consumer is being used by another call; it belongs to one thread at a time")
        self._holder = threading.get_ident()
        try:
            if self._stopping.is_set():
                self._close()
            yield
        finally:
            self._holder = None
            self._lock.release()

    def _client(self) -> ConsumerClient:
        if self._consumer is None:
            raise ConsumerError(f"the consumer is {'stopped' if self._stopped else 'not started'}")
        return self._consumer

    def _close(self) -> None:
        consumer, self._stopped = self._consumer, True
        if consumer is None:
            return
        due = self._positions.due() if self.settings.auto_commit else {}
        self._consumer, self._closing = None, True
        self._lookups.close()
        parting = close_consumer(
            consumer,
            _LEAVE_S,
            lambda: self._commit(consumer, due),
            unsubscribe=bool(self._subscribed) and unsubscribes(self.settings.client),
            has_joined=lambda: self._has_joined,
        )
        if parting is Parting.SILENT:
            raise BrokerUnavailableError(
                f"the consumer of group {self.settings.group!r} has ended, but its last commit was not answered in "
                "time (no broker can be reached, or the group waits for another member): what was done since the "
                "commit before may be delivered again"
            )
        if parting is Parting.STAYED:
            _LOG.warning("consumer.not-left", extra={"group": self.settings.group})

    def _config(self) -> dict[str, Any]:
        required = {
            **PROTECTED_CONSUMER,
            "bootstrap.servers": self.settings.bootstrap,
            "group.id": self.settings.group,
            "auto.offset.reset": "earliest",  # a position that retention has overtaken: repeat, never lose
            "on_commit": self._on_commit,
        }
        if self.settings.client.get("group.protocol", "classic") != "consumer":  # KIP-848 assigns on the broker
            required["partition.assignment.strategy"] = "cooperative-sticky"
        return merge(
            self.settings.client,
            defaults={**CONSUMER_DEFAULTS, **self._complaints.settings},
            required=required,
            allow_code_settings=self.settings.allow_code_settings,
        )

    # --- inside: reading ---------------------------------------------------------------------------------------------

    def _fetch(self, consumer: ConsumerClient, wait_s: float) -> list[MessageView]:
        first = consumer.poll(wait_s)
        if first is None:
            return []
        self._fresh.clear()
        batch = [first, *consumer.consume(self.settings.pull_batch_size - 1, 0)]
        for message in batch:
            if message.error() is not None:
                self._note(message)
        messages: list[MessageView] = []
        for place, run in runs_of([message for message in batch if message.error() is None]):
            if place not in self._positions or place in self._uptake:
                continue
            if place in self._fresh or self._pauses.why(place):  # what lies here may be of the assignment before
                consumer.seek(TopicPartition(*place, self._positions.position(place)))
                continue
            selected = list(self._selected(place[0], run))
            if place[0] in self._own_topics:
                messages.extend(MessageView(message, trusted=True) for message in selected)
            else:
                messages += first_views(selected)
            self._positions.hand_out(place, run[-1].offset() + 1)
        return messages

    def _selected(self, topic: str, run: list[Any]) -> Iterable[Any]:
        selector = (self._subscribed if self._wished is None else self._assign_filters).get(topic)
        if selector is None:
            return run
        if isinstance(selector.filter, TagFilter):
            return selector.filter.sieve(run, self._unreadable)
        return matching(selector.filter.matches_headers, run, self._unreadable)

    def _unreadable(self, record: Any, error: Exception) -> None:
        _LOG.error("consumer.headers-unreadable", extra={"record": coordinates(record), "error": str(error)})
        self._failure = self._failure or unreadable_headers(record)

    def _note(self, message: Any) -> None:
        """Keep what `poll` has to raise: what passes by itself is only said."""
        error: KafkaError = message.error()
        topic = message.topic()
        _LOG.warning("consumer.client-error", extra={"error": str(error), "topic": topic})
        try:
            if error.fatal() or error.code() in DENIED:
                with cluster_errors(f"reading {topic or 'in this group'}"):
                    raise KafkaException(error)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
                self._lookup.queues(self._logical.get(topic, topic))
        except BrokerUnavailableError:
            pass
        except RocketshimError as typed:
            self._failure = typed

    def _keep_house(self, consumer: ConsumerClient) -> None:
        now_ms = self._now_ms()
        if self.settings.auto_commit and now_ms >= self._next_commit_ms:
            self._next_commit_ms = now_ms + self.settings.auto_commit_interval_ms
            due = self._positions.due()
            if due:
                try:
                    consumer.commit(offsets=self._as_offsets(due), asynchronous=True)
                    self._positions.sent(due)
                except KafkaException as error:
                    _LOG.warning("consumer.commit-failed", extra={"error": str(error)})
        self._uptake.look_again(consumer)

    def _changed_queues(self) -> list[tuple[QueuesListener, str, list[MessageQueue]]]:
        """Listeners to be told, with what they are to be told; they are called outside of the call's lock."""
        changed: list[tuple[QueuesListener, str, list[MessageQueue]]] = []
        with self._call():
            self._client()
            now_ms = self._now_ms()
            if now_ms < self._next_check_ms:
                return changed
            self._next_check_ms = now_ms + self.settings.topic_metadata_check_interval_ms
            for topic, (listener, before) in list(self._watched.items()):
                try:
                    now = self._lookup.queues(topic)
                except RocketshimError as error:
                    _LOG.warning("consumer.queues-unknown", extra={"topic": topic, "error": str(error)})
                    continue
                self._watched[topic] = (listener, now)
                if before is not None and now != before:
                    changed.append((listener, topic, list(now)))
        return changed

    # --- inside: positions -------------------------------------------------------------------------------------------

    def _queue(self, place: TopicPartitionKey) -> MessageQueue:
        if self._wished is not None and place in self._wished:
            return self._wished[place]
        return MessageQueue(self._logical.get(place[0], place[0]), queue_id=place[1])

    def _held(self, queues: Iterable[MessageQueue]) -> list[TopicPartitionKey]:
        return [place for queue in queues if (place := self._lookup.place(queue)) in self._positions]

    def _held_place(self, queue: MessageQueue) -> TopicPartitionKey:
        place = self._lookup.place(queue)
        self._client()
        if place not in self._positions or place in self._uptake:
            raise ConsumerError(f"{queue} is not held by this consumer, see assignment()")
        return place

    def _move(self, queue: MessageQueue, offset: int) -> None:
        place = self._held_place(queue)
        with cluster_errors(f"{queue} cannot be read from offset {offset}"):
            self._client().seek(TopicPartition(*place, offset))
        self._positions.seek(place, offset)

    def _as_offsets(self, positions: Mapping[TopicPartitionKey, int]) -> list[TopicPartition]:
        return [
            TopicPartition(*place, offset, metadata=self._starts.metadata(place))
            for place, offset in sorted(positions.items())
        ]

    def _commit(self, consumer: ConsumerClient, positions: Mapping[TopicPartitionKey, int]) -> None:
        if not positions:
            return
        with cluster_errors(f"the positions of group {self.settings.group!r} were not committed"):
            answers = consumer.commit(offsets=self._as_offsets(positions), asynchronous=False)
            self._positions.sent({(item.topic, item.partition): item.offset for item in answers if item.error is None})
            for item in answers:
                if item.error is not None:
                    raise KafkaException(item.error)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for item in partitions:
            if error is not None or item.error is not None:
                self._positions.refused((item.topic, item.partition), item.offset)
                _LOG.warning("consumer.commit-failed", extra={"error": str(error or item.error)})

    def _description(self) -> tuple[str, str]:
        """Digest and text of the subscription, as push consumers of the same group make them."""
        parts = sorted(f"{name}={selector.filter.digest()}" for name, selector in self._subscribed.items())
        text = ", ".join(sorted(f"{name}={selector.expression}" for name, selector in self._subscribed.items()))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16], text

    # --- inside: queues come and go ----------------------------------------------------------------------------------

    def _join(self) -> None:
        consumer = self._client()
        with cluster_errors("the topics cannot be subscribed"):
            if self._subscribed:
                consumer.subscribe(
                    sorted(self._subscribed),
                    on_assign=self._on_assign,
                    on_revoke=self._on_revoke,
                    on_lost=self._on_lost,
                )
            else:
                consumer.unsubscribe()

    def _apply_assignment(self) -> None:
        consumer, wished = self._client(), self._wished or {}
        new = [place for place in wished if place not in self._positions]
        for topic in sorted({place[0] for place in new}):
            known = {queue.queue_id for queue in self._lookup.queues(topic)}
            absent = [place for place in new if place[0] == topic and place[1] not in known]
            if absent:
                raise ConfigError(f"{topic!r} has {len(known)} queues, and no queue {absent[0][1]}")
        gone = [place for place in self._positions.places() if place not in wished]
        with cluster_errors("the queues cannot be assigned"):
            partitions = [TopicPartition(*place) for place in new]
            starts = self._starts.resolve(consumer, partitions) if new else []
            if gone:
                if self.settings.auto_commit:
                    self._commit(consumer, self._positions.due(gone))
                consumer.incremental_unassign([TopicPartition(*place) for place in gone])
                self._forget(gone)
            if starts:
                starts_at = {(start.topic, start.partition): start.offset for start in starts}
                self._uptake.assign(consumer, partitions, starts_at)

    def _begin(self, place: TopicPartitionKey, offset: int) -> None:
        self._positions.adopt(place, offset)
        self._fresh.add(place)

    def _forget(self, places: Iterable[TopicPartitionKey]) -> None:
        places = list(places)
        self._positions.forget(places)
        self._pauses.forget(places)
        self._uptake.forget(places)

    def _on_assign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        self._has_joined = True
        try:
            self._uptake.take_up(consumer, partitions, look=not self._closing)
        except (KafkaException, RuntimeError) as error:
            names = [f"{item.topic}/{item.partition}" for item in partitions]
            self._failure = ConsumerError(f"the queues {names} could not be taken up: {error}")

    def _on_revoke(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        places = [(item.topic, item.partition) for item in partitions]
        due = {} if self._closing or not self.settings.auto_commit else self._positions.due(places)
        due = {place: offset for place, offset in due.items() if place not in self._uptake}
        try:
            if due:
                consumer.commit(offsets=self._as_offsets(due), asynchronous=False)
        except (KafkaException, RuntimeError) as error:
            _LOG.warning("consumer.commit-failed", extra={"error": str(error)})
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        self._forget((item.topic, item.partition) for item in partitions)
        try:
            consumer.incremental_unassign(partitions)
        except (KafkaException, RuntimeError) as error:
            self._failure = ConsumerError(f"queues could not be given up: {error}")

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
