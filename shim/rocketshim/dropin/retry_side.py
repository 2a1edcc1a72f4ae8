"""What a consumer with retry enabled does beside the original client: the retry topic, offsets, and messages sent back.

**The assignment.** `subscribe` adds the group's retry topic. The client's three rebalance callbacks are always ours.
Each of them separates the program's partitions from the others (`dropin.partitions`), calls the program's callback with
its partitions, and then assigns or unassigns all of them. If the program's callback has done so itself, its call has
included ours. All callbacks run in the program's thread, inside its `poll`, `consume` or `close`. There it must not
call `list_topics`, `poll` or `consume` of the same client: the next callback ends the process (`kafka.confluent`).

A partition of the retry topic starts at the beginning if it has no committed offset, or one that is no longer in its
log, regardless of `auto.offset.reset`: the messages there belong to this group. If this cannot be found out in time,
the partition is assigned paused, and a later `poll` seeks to its start
(test_a_retry_topic_whose_committed_offset_cannot_be_had_waits_for_it).

**Offsets.** The client stores a message's offset when it returns the message. Here that happens at the next `poll`,
`consume` or `close`: the caller has come back, so it has handled its messages. It also happens at a `commit()` without
arguments, which means the same. While messages keep coming, offsets are stored every 100 ms, and always before a call
that may wait. While none comes, they are stored about once a second, because the client's position also passes the
marks of transactions and aborted records. The stored offset does not pass a message whose send-back is in progress or
has failed. A commit with `message=` or `offsets=` is the program's own, and is passed on unchanged: it is safe once
`reconsume_later` has returned.

**Threads.** confluent_kafka lets one call into a consumer at a time, and a `poll` may wait forever. So a thread that
sends a message back, stores or commits asks the client for no position: the thread that polls notes the last message of
each partition when it hands it out. While a call waits, nothing of it is handed out yet, so a callback of that call
stores nothing of it. The thread that polls asks for positions between two calls: while no message comes, and in place
of noting many messages (test_another_thread_sends_back_while_the_poll_thread_waits_for_messages,
test_any_callback_may_wait_for_a_thread_that_sends_back).

**Errors of callbacks.** If an error escapes from a callback into the client, the client drops the message that it was
about to return. So our callbacks let no error escape. The call in which it happened raises it (one error a call), and
the next calls return the messages that came with it (test_an_error_in_a_callback_is_raised_and_no_message_is_lost).

**Sending back.** The caller's thread makes the next hop and waits until it is stored (`DropinSendBack`). There is one
idempotent producer per consumer, made at the first send-back (`kafka.record_sender.RecordSender`). A consumer whose
messages never fail makes none. The next hop is decided as for every other consumer, also that of a record that breaks
the wire format or is too large (`core.next_hop`). Each stored hop finishes the message. It has the brokers' time as its
timestamp, once a delivery report of the schedule topic has shown it. If a broker refuses the time of this machine
before that, a probe in the schedule topic shows it.

**Retries of others.** Any member of the group may get a retried message. One of a topic that the program never
subscribed to is sent on, uncounted, to the other members, and the program does not see it.

Not handled: a message may be delivered twice if one thread sends it back at the moment when another loses its
partition, as at any loss of a partition. So may a message that is sent back later than `max.poll.interval.ms` after the
last `poll`: the client has left its group, and learns of it in the next `poll`.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import Any, Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from rocketshim.clock import SystemClock
from rocketshim.consumer_metrics import FailureCounts, SendBackCounts
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Clock
from rocketshim.core.next_hop import NO_LISTENER, FailedMessage, Hop, HopKind, HopMaker
from rocketshim.core.user_values import safe_text
from rocketshim.dropin.partitions import Partitions, key_of, offset_of
from rocketshim.dropin.settings import (
    ClientFacts,
    ConsumerDropinSettings,
    client_facts,
    inner_producer_config,
    watched_workers,
    with_credentials,
)
from rocketshim.dropin.settings import OriginalConsumer as _Original
from rocketshim.errors import MessageError, NotSupportedError, RocketshimError, SendTimeoutError, StaleMessageError
from rocketshim.failures import FailureLog, FailureMaker
from rocketshim.kafka.clients import ProducerClient, with_log
from rocketshim.kafka.confluent import Producer
from rocketshim.kafka.lanes import Lanes
from rocketshim.kafka.lookups import check_answers
from rocketshim.kafka.positions import EARLIEST, LATEST, listed_offsets
from rocketshim.kafka.record_sender import RecordSender
from rocketshim.kafka.reports import UNCONFIRMED
from rocketshim.kafka.send_errors import send_error
from rocketshim.logs import safe_logger
from rocketshim.metrics import Metric
from rocketshim_topics import Failure, TopicNames, provision
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.hops import OutgoingRecord, clock_probe
from rocketshim_topics.kafka_codes import TOO_LARGE
from rocketshim_topics.layout import Layout
from rocketshim_topics.wire import coordinates

__all__ = ["DropinSendBack", "Rebalance", "RetrySide", "prepare"]

_LOG = safe_logger("rocketshim.dropin")
_COMMITTED_TIMEOUT_S: Final = 10.0
_START_TIMEOUT_S: Final = 1.0
_STORE_INTERVAL_S: Final = 0.1
_IDLE_INTERVAL_S: Final = 1.0
_PAUSE_S: Final = 1.0
_TOPIC: Final = Message.topic  # 0.03 µs a message in `map`, with `methodcaller` 0.12 µs (our measurement)
_FEW: Final = 20  # one question to the client costs as much as noting this number of messages
_PAUSED_AT: Final = 0  # not "the beginning": a late answer to the client's look-up of it would undo the seek
_NOT_READ: Final = "dropin.retry-topic-not-read"
_CALLBACKS: Final = ("on_assign", "on_revoke", "on_lost")
_Callback = Callable[..., Any] | None
_GRACE_S: Final = 5.0
_DEAD_LETTER_LEVEL: Final = -1
_COUNTED: Final = (*(kind.value for kind in HopKind), "not_stored")


class DropinSendBack:
    """Makes and stores the next hop of each failed message of one consumer. Any thread may call every method.

    Source: `ConsumeMessageConcurrentlyService#sendMessageBack`, `AbstractSendMessageProcessor#consumerSendMsgBack`.
    """

    def __init__(
        self,
        make_producer: Callable[[], ProducerClient],
        settings: ConsumerDropinSettings,
        group: str,
        clock: Clock | None = None,
        connection: Mapping[str, Any] | None = None,
    ) -> None:
        names = TopicNames(settings.namespace)
        self._group = group
        self._timeout_s = settings.hop_timeout_ms / 1_000
        self._clock = clock or SystemClock()
        self._names = names
        self._hop_maker = HopMaker(
            names,
            settings.delay_levels,
            group,
            limit=settings.max_reconsume_times,
            send_on_timeout_ms=settings.send_on_timeout_ms,
        )
        self._lanes = Lanes(names.schedule, self._timeout_s)
        self._random = random.Random()  # noqa: S311 - jitter, nothing secret
        self._make_failure = FailureMaker(self._clock, wants_stack=settings.fail_stack)
        self.credentials: deque[tuple[str, str]] = deque(maxlen=1)  # that the program has set, for every client
        credentials = self.credentials  # no cycle of references: it would keep the Kafka client
        worker = None if connection is None else watched_workers(connection, credentials, names, group=group)
        self._failure_log = FailureLog(_LOG, self._hop_maker, prefix="dropin", worker=worker)
        self._counts = SendBackCounts()
        self._failures = FailureCounts()
        self._counting = threading.Lock()
        self._sender = RecordSender(
            lambda: with_credentials(make_producer(), credentials),
            thread_name="rocketshim-dropin-reports",
            closed_text="the consumer is closed; nothing was sent",
            on_unconfirmed=_log_unconfirmed,
            on_error=_log_error,
            time=BrokerClock(self._clock, _log_wrong_clock),
        )
        self._sender.watch_workers(worker)

    def reconsume_later(
        self, message: Message, error: BaseException | str | None, *, level: int | None, delay_ms: int | None
    ) -> None:
        """Send to the retry topic after a delay, or to the dead letters if the limit is reached."""
        self._send(message, self._failure(error, "ReconsumeLater"), level or 0, delay_ms)

    def dead_letter(self, message: Message, reason: BaseException | str) -> None:
        """Send to the dead letters immediately."""
        self._send(message, self._failure(reason, "DeadLetter"), _DEAD_LETTER_LEVEL)

    def send_on(self, message: Message, topic: str) -> None:
        """Send a retried message on to the other members, since this one does not subscribe to its topic."""
        text, at_ms = f"this consumer does not subscribe to {topic!r}", self._clock.wall_ms()
        # a dead letter only when it can no longer be sent on
        self._send(message, Failure(NO_LISTENER, text, at_ms, unhandled=True), _DEAD_LETTER_LEVEL)

    def metrics(self) -> Iterator[Metric]:
        """Yield the counts of what was sent back, by where it went, by failed attempts, and by class of the failure."""
        with self._counting:
            failures = self._failures.copy()
            hops = {name: getattr(self._counts, name) for name in _COUNTED}
        mine = {"group": self._group}
        yield Metric(
            "rocketshim_dropin_sent_back_total", "counter", "messages sent back by where they went",
            tuple(("", mine | {"hop": name}, count) for name, count in hops.items()),
        )  # fmt: skip
        yield from failures.metrics("rocketshim_dropin", mine)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the credentials as the client does; also for a producer that is made later."""
        self.credentials.append((username, password))
        if self._sender.producer is not None:
            with_credentials(self._sender.producer, self.credentials)

    def close(self) -> None:
        """Close the producer after waiting for records in flight. A second call does nothing."""
        self._sender.close(monotonic() + self._timeout_s)

    def _failure(self, error: BaseException | str | None, name: str) -> Failure:
        if issubclass(type(error), BaseException):  # `isinstance` would ask the error for its `__class__`
            return self._make_failure.of(cast("BaseException", error))
        text = "the consumer asked for it" if error is None else safe_text(error)
        return Failure(name, text, self._clock.wall_ms())

    def _send(self, message: Message, failure: Failure, level: int, delay_ms: int | None = None) -> None:
        try:
            hop = self._stored(FailedMessage(message, failure, level, delay_ms))
        except BaseException:
            with self._counting:
                self._counts.not_stored += 1
            raise
        with self._counting:
            self._counts.add(hop.kind)
            self._failures.add(hop.kind, hop.reconsume_times, failure.exception_class)
        now_ms = self._clock.monotonic_ns() // 1_000_000
        self._failure_log.turn(now_ms)
        if hop.kind is not HopKind.PARKED:
            self._failure_log.hop(hop, now_ms)

    def _stored(self, failed: FailedMessage) -> Hop:
        """Store the next hop of a message; return it, or the smaller one that was accepted in its place."""
        message = failed.message
        for what, content in (("value", message.value()), ("key", message.key())):
            if content is not None and not isinstance(content, bytes):
                raise MessageError(
                    f"the message's {what} was replaced by {type(content).__name__}; only a message as it was fetched "
                    "can be sent back: keep decoded values outside the message"
                )
        hop = self._hop_maker.first(
            failed,
            lane=lambda: self._lanes.choose(message.key(), self._sender.list_topics),
            unit=self._random.random(),
        )
        while (error := self._store(hop)) is not None:
            smaller = self._hop_maker.smaller(hop) if error.code() in TOO_LARGE else None
            if smaller is None:
                raise send_error(error, hop.out.topic) from KafkaException(error)
            hop = smaller
        return hop

    def _store(self, hop: Hop) -> KafkaError | None:
        """Store a hop's record; return the error because of which it is not stored."""
        record = coordinates(hop.failed.message)
        if hop.kind is HopKind.PARKED:
            _LOG.warning("dropin.parked", extra={"record": record, "reason": hop.reason})
        elif hop.kind is HopKind.BY_REFERENCE:
            _LOG.warning("dropin.dead-by-reference", extra={"record": record})
        until_s = monotonic() + self._timeout_s + _GRACE_S
        error = self._produce(hop.out, until_s)
        if error is not None and error.code() == KafkaError.INVALID_TIMESTAMP:
            self._produce(clock_probe(self._names, partition=0), until_s)
            error = self._produce(hop.out, until_s)
        return error

    def _produce(self, out: OutgoingRecord, until_s: float) -> KafkaError | None:
        """Send a record once, and return the error of its report, or of a call that the client refuses.

        After a SendTimeoutError the record may or may not be stored.
        """
        future: Future[KafkaError | None] = Future()
        try:
            self._sender.send(
                out, lambda error, _: future.set_result(error), room_until_s=until_s, again_until_s=until_s
            )
            return future.result(max(0.0, until_s - monotonic()))
        except KafkaException as refused:
            return cast("KafkaError", refused.args[0])
        except BufferError as error:
            raise SendTimeoutError(
                f"the queue of the inner producer stayed full; nothing was sent to {out.topic!r}"
            ) from error
        except TimeoutError as error:
            raise SendTimeoutError(
                f"no delivery report for {out.topic!r} within {self._timeout_s} s; it may or may not be stored"
            ) from error


def _log_wrong_clock(ahead_ms: int) -> None:
    _LOG.warning("dropin.clock-differs", extra={"ahead_ms": ahead_ms})


def _log_unconfirmed(out: OutgoingRecord) -> None:
    _LOG.warning("dropin.hop-not-stored", extra={"topic": out.topic, "error": UNCONFIRMED.name()})


def _log_error(error: BaseException) -> None:
    _LOG.warning("dropin.producer-error", extra={"error": safe_text(error)})


@dataclass(slots=True)
class Rebalance:
    """A rebalance callback in progress."""

    retries: list[TopicPartition]  # of the retry topic, with their starts
    awaiting: frozenset[TopicPartitionKey] = frozenset()  # of the retry topic; their start is not known yet
    done: bool = False  # the program's callback has itself assigned or unassigned the partitions, and ours with them


class RetrySide:
    """The part of one consumer that exists if retry is enabled.

    The consumer is an argument of each method, so that no cycle of references keeps it alive. It belongs to the poll
    thread. Any thread may call `send`, and store or commit as with the original.
    """

    def __init__(self, settings: ConsumerDropinSettings, facts: ClientFacts, send_back: DropinSendBack) -> None:
        self._settings = settings
        self.facts = facts
        self._names = TopicNames(settings.namespace)
        self.send_back = send_back
        self.partitions = Partitions(self._names.retry(facts.group), self._names)
        self.is_dirty = False  # a message was handed out or sent back since offsets were last stored
        self.store_at_s = 0.0  # when offsets are stored next while messages keep coming, monotonic
        self.is_slow = facts.sees_ends  # ends are to be filtered out; or see `_update_slow`
        self.messages: deque[Message] = deque()  # returned by the client, not yet by us; in order
        self.errors: deque[BaseException] = deque()  # of callbacks; in order
        self.callbacks: tuple[_Callback, ...] = (None, None, None)  # the program's for assign, revoke and lost
        self.rebalance: Rebalance | None = None  # the callback in progress
        self.has_topics = False  # the rocketshim topics are known to exist
        self.is_closing = False
        self.subscribed = False  # `subscribe` was called, and `unsubscribe` not since

    # --- sending back ------------------------------------------------------------------------------------------------

    def send(self, message: Message, store: Callable[[], None]) -> None:
        """Send a message back once by `store`, and let no stored offset pass it before; raise what `store` raises.

        A message that does not belong to the assignment is a StaleMessageError, and `store` is not called.
        """
        key, offset = key_of(message), offset_of(message)
        future, is_ours = self.partitions.begin(key, offset)
        if not is_ours:
            future.result()
            return
        self.is_dirty = True  # the offset may be stored already: it must be lowered again
        try:
            self.ensure_topics()
            store()
        except BaseException as error:
            self.partitions.end(key, offset, future, error)
            raise
        self.partitions.end(key, offset, future, None)
        self.is_dirty = True

    @property
    def reads_retry_topic(self) -> bool:
        """Whether a message that is sent back would come again to this consumer."""
        return self.partitions.reads_retries or bool(self.partitions.of_retry_topic())

    # --- messages ----------------------------------------------------------------------------------------------------

    def wait(self, consumer: Any, call: Callable[..., Any], *args: Any) -> Any:
        """Make a client call that may wait, after the offsets of returned messages were stored."""
        if self.is_dirty:
            self.store_handled(consumer)
        return call(consumer, *args)

    def take(self, consumer: Any, count: int, timeout_s: float) -> list[Message]:
        """Return messages, buffered ones first, without the ends of the retry topic. A negative time-out: forever."""
        if self.is_slow:
            self.hand_out(consumer, [])
            if self.partitions.awaiting_start():
                self._start_awaiting(consumer)
        deadline = monotonic() + timeout_s if timeout_s >= 0 else None
        while True:
            if self.messages and count > 0:
                self.store_handled(consumer)
                buffered = [self.messages.popleft() for _ in range(min(count, len(self.messages)))]
                messages = self.hand_out(consumer, buffered)
                self._update_slow()
                if messages or (deadline is not None and monotonic() >= deadline):
                    return messages
                if self.messages:  # one could not be sent on
                    sleep(_PAUSE_S if deadline is None else max(0.0, min(_PAUSE_S, deadline - monotonic())))
                continue
            came = self.wait(consumer, _Original.consume, count, timeout_s)
            mine = [each for each in came if not self._is_end(each)] if self.facts.sees_ends else came
            messages = self.hand_out(consumer, mine)
            if messages or not came:
                return messages
            timeout_s = -1.0 if deadline is None else max(0.0, deadline - monotonic())

    def hand_out(self, consumer: Any, messages: list[Message]) -> list[Message]:
        """Return the messages that the client has just returned and that are the program's, and note them.

        If a callback has failed, buffer them and raise its error.

        Decides: What if a callback of the program raises while a poll has a message? This poll raises, the next one
            returns the message.
        """
        if messages:
            self.is_dirty = True
        elif monotonic() >= self.store_at_s + _IDLE_INTERVAL_S:
            self.is_dirty = True
            self._ask(consumer)
        if self.errors:
            self.messages.extend(messages)
            error = self.errors.popleft()
            self._update_slow()
            raise error
        if self.partitions.retry_topic in map(_TOPIC, messages):
            return self._mine(messages)
        if len(messages) > _FEW and not self.messages:
            self._ask(consumer)
            self.partitions.began(messages)
        else:
            for message in messages:
                self.partitions.handed_out(message)
        return messages

    def _mine(self, messages: list[Message]) -> list[Message]:
        """Return the messages that the program subscribes to; send retries of other topics on to other members.

        If one cannot be sent on now, it and those after it wait in the buffer, and the next poll tries again.
        """
        mine: list[Message] = []
        for at, message in enumerate(messages):
            self.partitions.handed_out(message)
            topic = self.partitions.topic_of_others(message)
            if topic is None:
                mine.append(message)
                continue
            try:
                self.send(message, partial(self.send_back.send_on, message, topic))
            except StaleMessageError:
                continue  # its partition was taken away: the next owner gets it
            except (RocketshimError, KafkaException) as error:
                _LOG.warning("dropin.not-sent-on", extra={"record": coordinates(message), "error": str(error)})
                self.messages.extendleft(reversed(messages[at:]))
                self._update_slow()
                break
        return mine

    def _is_end(self, message: Message) -> bool:
        error = message.error()
        return (
            error is not None
            and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - no public spelling
            and message.topic() == self.partitions.retry_topic
        )

    def _raise_later(self, error: BaseException) -> None:
        self.errors.append(error)
        self.is_slow = True

    def _update_slow(self) -> None:
        awaits = bool(self.partitions.awaiting_start())
        self.is_slow = self.facts.sees_ends or bool(self.messages or self.errors) or awaits

    # --- offsets -----------------------------------------------------------------------------------------------------

    def store_handled(self, consumer: Any) -> None:
        """Store the offsets of all messages that were handed out: the program has handled them."""
        self.is_dirty = False
        self.store_at_s = monotonic() + _STORE_INTERVAL_S
        self.store(consumer, self.partitions.positions())

    def _ask(self, consumer: Any) -> None:
        """Ask the client how far it has returned messages, between two calls of the thread that polls."""
        if not (keys := self.partitions.keys()):  # it may be closed
            return
        positions = _Original.position(consumer, [TopicPartition(*key) for key in keys])
        found = {TopicPartitionKey.of(each): each for each in positions}  # with the leader's epoch
        for message in reversed(self.messages):
            if message.error() is None:
                key = key_of(message)
                found[key] = TopicPartition(*key, offset_of(message))
        self.partitions.answered(found)

    def store(self, consumer: Any, positions: Mapping[TopicPartitionKey, TopicPartition]) -> None:
        """Store these positions, or the lowest failing offset if that is lower."""
        if not self.facts.stores:
            return
        while stores := self.partitions.to_store(positions):
            done = _store_each(consumer, stores)
            self.partitions.stored(done)
            positions = {key: positions[key] for key in map(TopicPartitionKey.of, done)}  # others may store, too

    def commit(self, consumer: Any, *args: Any, **kwargs: Any) -> Any:
        """Commit as the original; without arguments, everything that was handed out counts as handled."""
        if all(each is None for each in (*args[:2], kwargs.get("message"), kwargs.get("offsets"))):
            self.store_handled(consumer)
        return _Original.commit(consumer, *args, **kwargs)

    def store_offsets(
        self, consumer: Any, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Store offsets as the original, but none of a revoked partition of the retry topic.

        No callback tells the program that it has lost such a partition.
        """
        is_right = is_a(offsets, list) if message is None else offsets is None and is_a(message, Message)
        if self.is_closing or not is_right:
            _Original.store_offsets(consumer, message, offsets)
            return
        if self.facts.stores:
            raise KafkaException(
                KafkaError(
                    KafkaError._INVALID_ARG,  # noqa: SLF001 - no public spelling
                    "StoreOffsets failed: Local: Invalid argument or configuration",
                )
            )
        if offsets is not None:
            kept = [each for each in offsets if not is_a(each, TopicPartition) or self._has(TopicPartitionKey.of(each))]
            if kept or not offsets:
                _Original.store_offsets(consumer, offsets=kept)
        elif message is not None and self._has(key_of(message)):
            _Original.store_offsets(consumer, message)

    def _has(self, key: TopicPartitionKey) -> bool:
        return key.topic != self.partitions.retry_topic or key in self.partitions.by_key

    def seek(self, consumer: Any, partition: TopicPartition) -> None:
        """Seek as the original; messages before the target count as handled."""
        if not is_a(partition, TopicPartition):
            _Original.seek(consumer, partition)  # the original raises the error
            return
        key = TopicPartitionKey.of(partition)
        before = self.partitions.positions().get(key, TopicPartition(*key, OFFSET_INVALID))
        _Original.seek(consumer, partition)
        if not self.messages:
            goes_on = partition.offset >= before.offset or partition.offset == OFFSET_END
            self.store(consumer, {key: before if goes_on else TopicPartition(*key, partition.offset)})
        self.partitions.sought(key, partition.offset)

    def consumer_group_metadata(self, consumer: Any) -> Any:
        """Refuse: an offset in a transaction may be aborted, and a stored retry cannot."""
        _Original.consumer_group_metadata(consumer)  # after close() it raises
        raise NotSupportedError(
            "send_offsets_to_transaction is refused with rocketshim.retry.enable: a message that is sent back is "
            "stored immediately, even if the transaction that commits its offset is aborted. Use a consumer without it"
        )

    # --- the assignment ----------------------------------------------------------------------------------------------

    def subscribe(self, consumer: Any, topics: list[str], *args: Any, **kwargs: Any) -> None:
        """Subscribe to the program's topics and to the retry topic; the original refuses wrong arguments."""
        given = dict(zip(_CALLBACKS, args, strict=False)) | kwargs
        wrong = given.keys() - set(_CALLBACKS) or not all(map(callable, given.values()))
        if wrong or not is_a(topics, list) or not topics or len(given) < len(args) + len(kwargs):
            _Original.subscribe(consumer, topics, *args, **kwargs)  # the original raises the error
            return
        topics = [str(each) for each in topics]  # as the client does
        self.ensure_topics()
        retry_topic = self.partitions.retry_topic
        _Original.subscribe(
            consumer,
            [*(each for each in topics if each != retry_topic), retry_topic],
            on_assign=_on_assign,
            on_revoke=_on_revoke,
            on_lost=_on_lost,
        )
        self.partitions.subscribed(topics)
        self.callbacks = tuple(given.get(name) for name in _CALLBACKS)
        self.subscribed = True

    def unsubscribe(self, consumer: Any) -> None:
        """Unsubscribe as the original."""
        _Original.unsubscribe(consumer)
        self.subscribed = False

    def assignment(self, consumer: Any) -> list[TopicPartition]:
        """Return the program's partitions."""
        found: list[TopicPartition] = _Original.assignment(consumer)
        if not self.partitions.reads_retries:
            return found
        return [each for each in found if not self.partitions.is_internal(each.topic)]

    def assign(self, consumer: Any, partitions: list[TopicPartition], /) -> None:
        """Replace the assignment, and keep the retry topic's partitions if the program subscribes."""
        rebalance = self.rebalance
        if rebalance is None:
            ours = self.partitions.of_retry_topic() if self.subscribed else []
            rebalance = Rebalance(self._starts(consumer, ours, _COMMITTED_TIMEOUT_S))
        both = _joined(partitions, rebalance.retries)
        _Original.assign(consumer, both)
        rebalance.done = True
        self.partitions.reads_retries = self.subscribed or self.rebalance is not None
        self.partitions.remove(self.partitions.keys())
        self._begin(consumer, both, rebalance)

    def incremental_assign(self, consumer: Any, partitions: list[TopicPartition], /) -> None:
        """Add to the assignment; in a callback for new partitions, also those of the retry topic."""
        rebalance = self.rebalance or Rebalance([])
        both = _joined(partitions, [] if rebalance.done else rebalance.retries)
        _Original.incremental_assign(consumer, both)
        rebalance.done = True
        self._begin(consumer, both, rebalance)

    def unassign(self, consumer: Any) -> None:
        """End the assignment, and that of the retry topic with it."""
        _Original.unassign(consumer)
        if self.rebalance is not None:
            self.rebalance.done = True
        self.partitions.remove(self.partitions.keys())

    def incremental_unassign(self, consumer: Any, partitions: list[TopicPartition], /) -> None:
        """Take from the assignment; in a callback for lost partitions, also those of the retry topic."""
        rebalance = self.rebalance or Rebalance([])
        both = _joined(partitions, [] if rebalance.done else rebalance.retries)
        _Original.incremental_unassign(consumer, both)
        rebalance.done = True
        self.partitions.remove([TopicPartitionKey.of(each) for each in both])
        self._follow_pauses(consumer)

    def pause(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Pause as the original, and the retry topic if all of the program's partitions are paused."""
        _Original.pause(consumer, partitions)
        self.partitions.paused |= {TopicPartitionKey.of(each) for each in partitions} & set(self.partitions.keys())
        self._follow_pauses(consumer, asked=True)

    def resume(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Resume as the original, and the retry topic."""
        _Original.resume(consumer, partitions)
        self.partitions.paused -= {TopicPartitionKey.of(each) for each in partitions}
        self._follow_pauses(consumer)

    def _follow_pauses(self, consumer: Any, *, asked: bool = False) -> None:
        """Pause and resume the retry topic by the rules of `dropin.partitions`; `asked`: after a `pause`."""
        for each, is_paused in self.partitions.pauses(asked=asked):
            try:
                (_Original.pause if is_paused else _Original.resume)(consumer, [each])
            except KafkaException as error:
                self._raise_later(error)

    def _begin(self, consumer: Any, partitions: list[TopicPartition], rebalance: Rebalance) -> None:
        self.partitions.add([TopicPartitionKey.of(each) for each in partitions], rebalance.awaiting)
        self._update_slow()
        self._follow_pauses(consumer)

    def _starts(self, consumer: Any, retries: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """Return partitions of the retry topic with their committed offsets, or with their beginning.

        The client would reset one without a committed offset that is still in its log. A client of its own asks for the
        bounds: this one would wait half a second for each of them, behind its fetch.
        """
        if not retries:
            return []
        keys = [TopicPartitionKey.of(each) for each in retries]
        answers = check_answers(
            _Original.committed(consumer, [TopicPartition(*key) for key in keys], timeout=timeout_s)
        )
        committed = {TopicPartitionKey.of(each): each for each in answers if each.offset >= 0}
        if committed and not self.facts.resets_to_beginning:
            admin, asked = self._admin(), list(committed)
            low = listed_offsets(admin, asked, EARLIEST, timeout_s=timeout_s)
            high = listed_offsets(admin, asked, LATEST, committed=False, timeout_s=timeout_s)
            if unknown := [key for key in asked if key not in low or key not in high]:
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, f"{unknown}"))  # noqa: SLF001
            committed = {key: each for key, each in committed.items() if low[key] <= each.offset <= high[key]}
        return [committed.get(key, TopicPartition(*key, OFFSET_BEGINNING)) for key in keys]

    def _start_awaiting(self, consumer: Any) -> None:
        """Start the retry-topic partitions whose committed offsets were not available when they were assigned.

        They were assigned paused, because in an eager group nothing can be assigned between two rebalances.
        """
        try:
            ready = self._starts(consumer, self.partitions.awaiting_start(), _START_TIMEOUT_S)
            for each in ready:
                _Original.seek(consumer, each)
        except KafkaException as error:  # the next poll tries again
            _LOG.warning(_NOT_READ, extra={"error": str(error)})
            return
        for each in ready:
            self.partitions.by_key[TopicPartitionKey.of(each)].awaits_start = False
        self._update_slow()
        self._follow_pauses(consumer)

    # --- rebalance callbacks, inside of poll, consume and close ------------------------------------------------------

    def assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Assign the partitions that the group gives, after the program's callback."""
        theirs, ours = self.partitions.split(partitions)
        try:
            rebalance = Rebalance(self._starts(consumer, ours, _COMMITTED_TIMEOUT_S))
        except KafkaException as error:
            _LOG.warning(_NOT_READ, extra={"error": str(error)})
            keys = [TopicPartitionKey.of(each) for each in ours]
            rebalance = Rebalance([TopicPartition(*key, _PAUSED_AT) for key in keys], frozenset(keys))
            # paused until their start is known, and before they are assigned: a later pause is too late for a fetch
            _Original.position(consumer, rebalance.retries)  # the client pauses only what it knows
            _Original.pause(consumer, rebalance.retries)
        change = self.incremental_assign if self.facts.is_cooperative else self.assign
        self._rebalance(consumer, rebalance, self.callbacks[0], theirs, partial(change, consumer, theirs))

    def released(self, consumer: Any, partitions: list[TopicPartition], callback: _Callback) -> None:
        """Unassign the partitions that the group takes, after the program's callback."""
        theirs, ours = self.partitions.split(partitions)
        change = partial(self.unassign, consumer)
        if self.facts.is_cooperative:
            change = partial(self.incremental_unassign, consumer, theirs)
        self._rebalance(consumer, Rebalance(ours), callback if theirs or not ours else None, theirs, change)
        self.partitions.remove([TopicPartitionKey.of(each) for each in partitions])
        self._follow_pauses(consumer)

    def _rebalance(
        self,
        consumer: Any,
        rebalance: Rebalance,
        callback: _Callback,
        theirs: list[TopicPartition],
        change: Callable[[], None],
    ) -> None:
        """Call the program's callback, and change the assignment as it might have done, unless it has."""
        self.rebalance = rebalance
        try:
            if callback is not None:  # copies: as in the original, what it does to its list changes no assignment
                callback(consumer, [TopicPartition(*TopicPartitionKey.of(each), each.offset) for each in theirs])
        except BaseException as error:  # noqa: BLE001 - user code; the call in which it happened raises it
            self._raise_later(error)
        try:
            if self.is_dirty:  # it has sent a message back, and the client may be about to commit stored offsets
                self.store_handled(consumer)
            if not rebalance.done:
                change()
        except KafkaException as error:
            self._raise_later(error)
        finally:
            self.rebalance = None

    # --- other clients -----------------------------------------------------------------------------------------------

    def ensure_topics(self) -> None:
        """Create the rocketshim topics that are missing, or check that they exist, once."""
        if self.has_topics:
            return
        layout = Layout(self._names, self._settings.delay_levels)
        specs = (*layout.shared(), *layout.for_group(self.facts.group, with_log=False))
        provision.ensure_topics(self._admin(), specs, create=self._settings.create_topics)
        self.has_topics = True

    def _admin(self) -> AdminClient:
        return with_credentials(AdminClient(with_log(self.facts.connection)), self.send_back.credentials)

    def set_sasl_credentials(self, consumer: Any, username: str, password: str) -> None:
        """Set the credentials of every client of the consumer."""
        _Original.set_sasl_credentials(consumer, username, password)
        self.send_back.set_sasl_credentials(username, password)

    def close(self, consumer: Any) -> None:
        """Store offsets, leave the group, and close what belongs to the consumer; raise the error of a callback."""
        self.store_handled(consumer)
        if self.rebalance is not None:
            self.rebalance.done = True
        self.is_closing = True
        try:
            _Original.close(consumer)
        finally:
            self.partitions.remove(self.partitions.keys())
            self.send_back.close()
        if self.errors:
            raise self.errors.popleft()


def prepare(
    settings: ConsumerDropinSettings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[RetrySide, dict[str, Any]]:
    """Make the retries of a consumer and the configuration of its client, from its arguments without our keys."""
    facts, config = client_facts(args, kwargs)
    make_producer = partial(_make_producer, inner_producer_config(config, settings))
    if settings.producer:
        make_producer()  # what the client refuses is an error now, and not at the first message that fails
    return RetrySide(
        settings, facts, DropinSendBack(make_producer, settings, facts.group, connection=facts.connection)
    ), config


def is_a(value: object, kind: type) -> bool:
    """Return `isinstance`, for an argument whose type the signature promises but a caller may get wrong."""
    return isinstance(value, kind)


def _on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:
    consumer._rocketshim.assigned(consumer, partitions)  # noqa: SLF001 - not bound: the client would keep the consumer


def _on_revoke(consumer: Any, partitions: list[TopicPartition]) -> None:
    retries: RetrySide = consumer._rocketshim  # noqa: SLF001
    if retries.is_dirty:
        retries.store_handled(consumer)
    retries.released(consumer, partitions, retries.callbacks[1])


def _on_lost(consumer: Any, partitions: list[TopicPartition]) -> None:
    retries: RetrySide = consumer._rocketshim  # noqa: SLF001
    retries.partitions.remove([TopicPartitionKey.of(each) for each in partitions])  # another member already has them
    retries.released(consumer, partitions, retries.callbacks[2] or retries.callbacks[1])  # as the client


def _store_each(consumer: Any, stores: list[TopicPartition]) -> list[TopicPartition]:
    """Store offsets; return those that were stored."""
    try:
        _Original.store_offsets(consumer, offsets=stores)
    except KafkaException:
        done = []
        for each in stores:
            try:
                _Original.store_offsets(consumer, offsets=[each])
                done.append(each)
            except KafkaException as error:  # the partition is being revoked now
                _LOG.debug("dropin.not-stored", extra={"partition": str(each), "error": str(error)})
        return done
    return stores


def _joined(partitions: list[TopicPartition], retries: list[TopicPartition]) -> list[TopicPartition]:
    """Return both in one list; anything but a list is returned as it is, and the original refuses it."""
    return [*partitions, *retries] if is_a(partitions, list) else partitions


def _make_producer(config: dict[str, Any]) -> ProducerClient:
    return Producer(with_log(config))
