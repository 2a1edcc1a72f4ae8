"""The consumer with retry enabled: it also reads the group's retry topic, and stores offsets of handled messages.

**The retry topic.** `subscribe` adds the retry topic. The client's three rebalance callbacks are always ours. Each of
them separates the user's partitions from those of the retry topic, and from those of rocketshim topics that only a
pattern matched; the latter are never assigned. It calls the user's callback with the user's partitions, and then
assigns or unassigns all of them. If the user's callback has done so itself, its call has included ours. A partition of
the retry topic starts at the beginning if it has no committed offset, or one that is no longer in its log, regardless
of `auto.offset.reset`: the messages there belong to this group. If this cannot be found out in time, the partition is
assigned paused, and a later `poll` seeks to its start.

**Errors in callbacks.** If an error escapes from a callback into the client, the client drops the message that it was
about to return. So our callbacks let no error escape. The `poll` or `consume` in which it happened raises it, and the
next call returns a message that came with it.

**Offsets.** The client stores a message's offset when it returns the message. Here that happens at the next `poll`,
`consume` or `close`: the caller has come back, so it has handled its messages. It also happens at a `commit()` without
arguments, which means the same. The client's `position` tells what was returned, so nothing is recorded per message.
While messages keep coming, `poll` stores offsets every 100 ms, and always before it waits. The stored offset does not
pass a message whose send-back is in progress or has failed.

**Threads.** The client allows one call at a time: a call from another thread waits for a running `poll`, if necessary
forever. So a send-back from another thread must not ask the client for the position while the poll thread waits in it.
It uses the positions that were recorded just before the wait (`State.positions`). They are exact, because a call that
waits has returned nothing yet. Nor may it ask during a `poll` that does not wait, because a rebalance callback of that
`poll` may wait for this thread. It tries again until the `poll` is over, or until the positions are recorded, as they
are before each callback. One case is not visible to us: a handler of the client's `logger`. A thread for which such a
handler waits gives up after the hop timeout.

Not handled: a message may be delivered twice if one thread sends it back at the moment when another loses its
partition, as at any loss of a partition.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import get_ident
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Final

import confluent_kafka
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from rocketshim.dropin.consumer import Consumer, checked, viewed
from rocketshim.dropin.state import Rebalance, partition_key
from rocketshim.errors import NotSupportedError, SendTimeoutError
from rocketshim.kafka.clients import with_log
from rocketshim.logs import safe_logger
from rocketshim_topics import provision
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.durations import parse_duration_ms
from rocketshim_topics.message import MessageView

__all__ = ["RetryingConsumer"]

_LOG = safe_logger("rocketshim.dropin")
_SETTLE_INTERVAL_S: Final = 0.1
_COMMITTED_TIMEOUT_S: Final = 10.0
_START_TIMEOUT_S: Final = 1.0
_PAUSED_AT: Final = 0  # not "the beginning": a late answer to the client's look-up of it would undo the seek
_NOT_READ: Final = "dropin.retry-topic-not-read"
_COMMITTED: Final = frozenset({OFFSET_INVALID, OFFSET_STORED})
_Original = confluent_kafka.Consumer
_poll = _Original.poll
_consume = _Original.consume


class RetryingConsumer(Consumer):
    """See `Consumer`: this class becomes the class of its objects."""

    __slots__ = ()

    # --- what is new -------------------------------------------------------------------------------------------------

    def reconsume_later(  # noqa: D102 - documented in Consumer
        self,
        message: Message,
        error: BaseException | str | None = None,
        *,
        level: int | None = None,
        delay: timedelta | str | None = None,
    ) -> None:
        if level is not None and delay is not None:
            raise ValueError("both level and delay are given: give one of them")
        delay_ms = None if delay is None else parse_duration_ms(delay)
        state = self._rocketshim
        checked(message)
        if not state.reads_retries and not state.retry_partitions():
            raise NotSupportedError(
                "with assign() the group's retry topic is not read, so a message that was sent back would stay there: "
                "use subscribe(), or dead_letter()"
            )
        self._send_back(message, lambda: state.send_back.retry(message, error, level=level, delay_ms=delay_ms))

    def dead_letter(self, message: Message, reason: BaseException | str) -> None:  # noqa: D102
        checked(message)
        self._send_back(message, lambda: self._rocketshim.send_back.kill(message, reason))

    def _view(self, message: Message) -> MessageView:
        return viewed(message, trusted=message.topic() == self._rocketshim.retry_topic)

    def _send_back(self, message: Message, store: Callable[[], None]) -> None:
        state = self._rocketshim
        key = TopicPartitionKey(message.topic() or "", _number(message.partition()))
        offset = _number(message.offset())
        future, is_ours = state.ledger.begin(key, offset, self._position(key).offset)
        if not is_ours:
            future.result()
            return
        state.dirty = True  # the offset may be stored already: it must be lowered again
        try:
            self._ensure_topics()
            store()
        except BaseException as error:
            state.ledger.end(key, offset, future, error)
            raise
        state.ledger.end(key, offset, future, None)
        state.dirty = True

    def _position(self, key: TopicPartitionKey) -> TopicPartition:
        """Return the offset after the last one handed out, negative for none; any thread, no wait for `poll`."""
        state = self._rocketshim
        if get_ident() == state.poller:  # also from its callbacks, in which it may already be in a client call
            return self._position_now(key)
        deadline = monotonic() + state.settings.hop_timeout_ms / 1_000
        while True:
            with state.entering:
                state.asking = True  # set before `polling` is read, as `poll` sets `polling` before it reads this
                try:
                    if state.waiting:
                        return state.positions.get(key, TopicPartition(*key, OFFSET_INVALID))
                    if not state.polling:
                        return self._position_now(key)
                finally:
                    state.asking = False
            if monotonic() > deadline:
                raise SendTimeoutError(
                    f"a poll has been in a handler of the client's logger for {state.settings.hop_timeout_ms} ms; "
                    "until it returns, no other thread can send a message back; nothing was sent. A log handler must "
                    "not wait for a thread that sends messages back"
                )
            sleep(0.0005)  # a poll that does not wait is running; its callbacks record the positions

    def _position_now(self, key: TopicPartitionKey) -> TopicPartition:
        state = self._rocketshim
        unknown = TopicPartition(*key, OFFSET_INVALID)
        if state.waiting:
            return state.positions.get(key, unknown)
        try:
            return super().position([unknown])[0]
        except (RuntimeError, KafkaException):  # the client is closed, or the partition is unknown
            return unknown

    def _ensure_topics(self) -> None:
        state = self._rocketshim
        if state.ensured:
            return
        layout = state.layout()
        admin = AdminClient(with_log(state.connection))
        state.hop_store.tell_credentials(admin)
        provision.ensure_topics(
            admin,
            (*layout.shared(), *layout.for_group(state.group, with_log=False)),
            create=state.settings.create_topics,
        )
        state.ensured = True

    # --- messages ----------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Message | None:  # noqa: D102 - the original's
        state = self._rocketshim
        if state.slow_path:
            return self._poll_slowly(timeout)
        message = None
        if state.dirty:
            if monotonic() >= state.settle_at:
                self._settle()
            state.poller = get_ident()
            state.polling = True
            try:
                if state.asking:
                    state.entering.acquire()  # once it is free, no thread that has not seen `polling` is in the client
                    state.entering.release()
                message = _poll(self, 0.0)
            finally:
                state.polling = False
        if message is None and not state.raised:
            message = self._wait(_poll, timeout)
        if message is not None:
            state.dirty = True
        return self._attend(message) if state.raised else message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:  # noqa: D102 - the original's
        state = self._rocketshim
        if state.slow_path:
            return self._consume_slowly(num_messages, timeout)
        messages: list[Message] = self._wait(_consume, num_messages, timeout)
        if messages:
            state.dirty = True
        return self._attend_all(messages) if state.raised else messages

    def _wait(self, call: Callable[..., Any], *args: Any) -> Any:
        """Make a client call that may wait, after the offsets of returned messages were stored."""
        state = self._rocketshim
        if state.dirty:
            self._settle()
        state.poller = get_ident()
        with state.entering:
            waiting, state.waiting = state.waiting, True  # already set if a callback polls
        try:
            return call(self, *args)
        finally:
            state.waiting = waiting

    def _poll_slowly(self, timeout: float) -> Message | None:
        return next(iter(self._slowly(1, timeout, lambda _, left: self._wait(_poll, left))), None)

    def _consume_slowly(self, num_messages: int, timeout: float) -> list[Message]:
        return self._slowly(num_messages, timeout, lambda count, left: self._wait(_consume, count, left))

    def _slowly(self, count: int, timeout: float, fetch: Callable[[int, float], Any]) -> list[Message]:
        """Return messages, buffered ones first, without the ends of the retry topic.

        Args:
            count: maximum number of messages.
            timeout: as the caller gave it, in seconds; negative: forever.
            fetch: takes the remaining count and time; returns one message, a list or None.
        """
        state = self._rocketshim
        self._attend_all([])
        if state.awaiting_start:
            self._start_awaiting()
        if state.buffered and count > 0:
            self._settle()
            messages = [state.buffered.popleft() for _ in range(min(count, len(state.buffered)))]
            state.settle_attention()
            state.dirty = True
            return messages
        deadline = monotonic() + timeout if timeout >= 0 else None
        while True:
            found = fetch(count, timeout)
            came = [found] if isinstance(found, Message) else found or []
            if came:
                state.dirty = True
            messages = [each for each in came if not self._is_end(each)]
            if messages or not came or state.raised:
                return self._attend_all(messages)
            timeout = -1.0 if deadline is None else max(0.0, deadline - monotonic())

    def _attend(self, message: Message | None) -> Message | None:
        return next(iter(self._attend_all([] if message is None else [message])), None)

    def _attend_all(self, messages: list[Message]) -> list[Message]:
        """Return the messages; if a callback has failed in the call, buffer them and raise its error."""
        state = self._rocketshim
        if not state.raised:
            return messages
        state.buffered.extend(messages)
        error = state.raised.popleft()
        state.settle_attention()
        raise error

    def _is_end(self, message: Message) -> bool:
        error = message.error()
        return (
            error is not None
            and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - no public spelling
            and message.topic() == self._rocketshim.retry_topic
        )

    def _settle(self) -> None:
        """Record how far messages were returned, and store these offsets: every returned message is handled."""
        state = self._rocketshim
        state.dirty = False
        state.settle_at = monotonic() + _SETTLE_INTERVAL_S
        self._note()
        self._store_handled(state.positions)

    def _note(self) -> None:
        """Record how far messages were returned."""
        state = self._rocketshim
        keys = state.ledger.assigned_keys()
        if keys and not state.waiting:  # in a callback of a call that waits, its messages are not returned yet
            found = super().position([TopicPartition(*key) for key in keys])
            # with the leader's epoch, as the client stores it
            positions = {partition_key(each): each for each in found}
            for message in reversed(state.buffered):
                if message.error() is None:
                    key = TopicPartitionKey(message.topic() or "", _number(message.partition()))
                    positions[key] = TopicPartition(*key, _number(message.offset()))
            state.positions = positions

    def _store_handled(self, positions: dict[TopicPartitionKey, TopicPartition]) -> None:
        """Store these positions, or the lowest failing offset if that is lower."""
        state = self._rocketshim
        if not state.stores:
            return
        while to_store := state.ledger.to_store({key: each.offset for key, each in positions.items()}):
            stores = [
                positions[key] if positions[key].offset == offset else TopicPartition(*key, offset)
                for key, offset in to_store.items()
            ]
            done = self._store_each(stores)
            state.ledger.stored({partition_key(each): each.offset for each in done})
            # another thread may have stored offsets meanwhile
            positions = {partition_key(each): positions[partition_key(each)] for each in done}

    def _store_each(self, stores: list[TopicPartition]) -> list[TopicPartition]:
        """Store offsets; return those that were stored."""
        try:
            super().store_offsets(offsets=stores)
        except KafkaException:
            done = []
            for each in stores:
                try:
                    super().store_offsets(offsets=[each])
                    done.append(each)
                except KafkaException as error:  # the partition is being revoked now
                    _LOG.debug("dropin.not-stored", extra={"partition": str(each), "error": str(error)})
            return done
        return stores

    # --- offsets -----------------------------------------------------------------------------------------------------

    def commit(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - the original's
        if not any(each is not None for each in (*args[:2], kwargs.get("message"), kwargs.get("offsets"))):
            self._settle()
        return super().commit(*args, **kwargs)

    def store_offsets(self, *args: Any, **kwargs: Any) -> None:  # noqa: D102 - the original's
        given = [each for each in (*args, *kwargs.values()) if each is not None]
        is_right = len(given) == 1 and isinstance(given[0], Message | list)
        if is_right and not self._rocketshim.closing:
            if self._rocketshim.stores:
                raise KafkaException(
                    KafkaError(
                        KafkaError._INVALID_ARG,  # noqa: SLF001 - no public spelling
                        "StoreOffsets failed: Local: Invalid argument or configuration",
                    )
                )
            several = given[0] if isinstance(given[0], list) else given
            assigned = [each for each in several if not self._has_left(each)]
            if len(assigned) < len(several):
                if isinstance(given[0], list) and assigned:
                    super().store_offsets(offsets=assigned)
                return
        super().store_offsets(*args, **kwargs)

    def _has_left(self, each: object) -> bool:
        """Return whether this belongs to a revoked partition of the retry topic; no callback tells the user of it."""
        state = self._rocketshim
        match each:
            case Message():
                key = TopicPartitionKey(each.topic() or "", _number(each.partition()))
            case TopicPartition():
                key = partition_key(each)
            case _:
                return False
        return key.topic == state.retry_topic and key not in state.ledger.assigned_keys()

    def seek(self, partition: TopicPartition) -> None:  # noqa: D102 - the original's
        if not _is_a(partition, TopicPartition):
            super().seek(partition)  # the original raises the error
            return
        state, key = self._rocketshim, partition_key(partition)
        before = self._position(key)
        super().seek(partition)
        if not state.buffered:  # messages before the target count as handled
            goes_on = partition.offset >= before.offset or partition.offset == OFFSET_END
            self._store_handled({key: before if goes_on else TopicPartition(*key, partition.offset)})
        state.ledger.sought(key, partition.offset, before.offset)

    def consumer_group_metadata(self) -> Any:
        """Refuse the call: offsets in a transaction and retries that are stored outside of it do not fit together."""
        super().consumer_group_metadata()  # after close() it raises, as in the original
        raise NotSupportedError(
            "send_offsets_to_transaction is refused with rocketshim.retry.enable: a message that is sent back is "
            "stored immediately, even if the transaction that commits its offset is aborted. Use a consumer without it"
        )

    # --- assignment --------------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], *args: Any, **kwargs: Any) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        names = ("on_assign", "on_revoke", "on_lost")
        given = dict(zip(names, args, strict=False)) | kwargs
        wrong = given.keys() - set(names) or not all(map(callable, given.values()))
        if wrong or not _is_a(topics, list) or not topics or len(args) > len(names):
            super().subscribe(topics, *args, **kwargs)  # the original raises the error
            return
        topics = [str(each) for each in topics]  # as the client does
        self._ensure_topics()
        super().subscribe(
            [*(each for each in topics if each != state.retry_topic), state.retry_topic],
            on_assign=_on_assign,
            on_revoke=_on_revoke,
            on_lost=_on_lost,
        )
        state.named = frozenset(each for each in topics if not each.startswith("^"))
        state.callbacks = tuple(given.get(name) for name in names)
        state.subscribed = state.reads_retries = True

    def unsubscribe(self) -> None:  # noqa: D102 - the original's
        super().unsubscribe()
        self._rocketshim.subscribed = False

    def assignment(self) -> list[TopicPartition]:  # noqa: D102 - the original's
        state = self._rocketshim
        found = super().assignment()
        return [each for each in found if not state.is_internal(each.topic)] if state.reads_retries else found

    def assign(self, partitions: list[TopicPartition]) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        rebalance = state.rebalance
        if rebalance is not None:
            retry_partitions = rebalance.retry_partitions
        elif state.subscribed:
            retry_partitions = self._starts(state.retry_partitions(), [], _COMMITTED_TIMEOUT_S)[0]
        else:
            retry_partitions = []
        super().assign([*partitions, *retry_partitions])
        if rebalance is not None:
            rebalance.done = True
        state.reads_retries = state.subscribed or rebalance is not None
        state.ledger.remove(state.ledger.assigned_keys())
        self._begin([*partitions, *retry_partitions], {} if rebalance is None else rebalance.starts)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        rebalance = state.rebalance
        retry_partitions = [] if rebalance is None or rebalance.done else rebalance.retry_partitions
        super().incremental_assign([*partitions, *retry_partitions])
        if rebalance is not None:
            rebalance.done = True
        self._begin([*partitions, *retry_partitions], {} if rebalance is None else rebalance.starts)

    def unassign(self) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        super().unassign()
        if state.rebalance is not None:
            state.rebalance.done = True
        state.ledger.remove(state.ledger.assigned_keys())

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        rebalance = state.rebalance
        retry_partitions = [] if rebalance is None or rebalance.done else rebalance.retry_partitions
        super().incremental_unassign([*partitions, *retry_partitions])
        if rebalance is not None:
            rebalance.done = True
        state.ledger.remove([partition_key(each) for each in (*partitions, *retry_partitions)])
        self._follow_pauses()

    def _begin(self, partitions: list[TopicPartition], starts: dict[TopicPartitionKey, int]) -> None:
        begun, known = {partition_key(each) for each in partitions}, self._rocketshim.positions
        self._rocketshim.positions = {key: each for key, each in known.items() if key not in begun}
        self._rocketshim.ledger.add(
            {
                partition_key(each): starts.get(partition_key(each), 0)
                if each.offset in _COMMITTED
                else max(each.offset, 0)
                for each in partitions
            }
        )
        self._follow_pauses()

    def _starts(
        self, retry_partitions: list[TopicPartition], theirs: list[TopicPartition], timeout_s: float
    ) -> tuple[list[TopicPartition], dict[TopicPartitionKey, int]]:
        """Return the starts of partitions: those of the retry topic, and the user's that were assigned before.

        Raises:
            KafkaException: the committed offsets were not available in time.
        """
        state = self._rocketshim
        asked = [*retry_partitions, *(each for each in theirs if state.ledger.was_held(partition_key(each)))]
        if not asked:
            return [], {}
        plain = [TopicPartition(*partition_key(each)) for each in asked]
        committed = {partition_key(each): each for each in super().committed(plain, timeout=timeout_s)}
        for each in committed.values():
            if each.error is not None:
                raise KafkaException(each.error)
        offsets = {key: each.offset for key, each in committed.items() if each.offset >= 0}
        ready = [
            each if self._is_there(each, offsets, timeout_s) else TopicPartition(*partition_key(each), OFFSET_BEGINNING)
            for each in retry_partitions
        ]
        return ready, offsets

    def _is_there(self, partition: TopicPartition, committed: dict[TopicPartitionKey, int], timeout_s: float) -> bool:
        """Return whether a partition has a committed offset that is still in its log; else the client resets it."""
        offset = committed.get(partition_key(partition))
        if offset is None or self._rocketshim.resets_to_beginning:
            return offset is not None
        low, high = super().get_watermark_offsets(TopicPartition(*partition_key(partition)), timeout=timeout_s)
        return low <= offset <= high

    # --- rebalance callbacks, from inside of poll, consume and close -----------------------------------------------

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        state = self._rocketshim
        theirs = [each for each in partitions if not state.is_internal(each.topic)]
        retry_partitions = [each for each in partitions if each.topic == state.retry_topic]
        rebalance = Rebalance([], {})
        try:
            rebalance.retry_partitions, rebalance.starts = self._starts(retry_partitions, theirs, _COMMITTED_TIMEOUT_S)
        except KafkaException as error:
            _LOG.warning(_NOT_READ, extra={"error": str(error)})
            rebalance.retry_partitions = [TopicPartition(*partition_key(each), _PAUSED_AT) for each in retry_partitions]
            # paused until their start is known
            state.awaiting_start |= {partition_key(each) for each in retry_partitions}
            state.settle_attention()
        self._call(state.callbacks[0], theirs, rebalance)
        if not rebalance.done:
            partitions = [*theirs, *rebalance.retry_partitions]
            self._finish(_Original.incremental_assign if state.cooperative else _Original.assign, partitions)
            if not state.cooperative:
                state.ledger.remove(state.ledger.assigned_keys())
            self._begin(partitions, rebalance.starts)
        self._follow_pauses()

    def _start_awaiting(self) -> None:
        """Start the retry-topic partitions whose committed offsets were not available when they were assigned.

        They were assigned paused, because in an eager group nothing can be assigned between two rebalances.
        """
        state = self._rocketshim
        waiting = [TopicPartition(*key) for key in state.ledger.assigned_keys() if key in state.awaiting_start]
        try:
            ready, committed = self._starts(waiting, [], _START_TIMEOUT_S)
            for each in ready:
                key, offset = partition_key(each), each.offset
                super().seek(TopicPartition(*key, committed[key] if offset in _COMMITTED else offset))
        except KafkaException as error:  # the next poll tries again
            _LOG.warning(_NOT_READ, extra={"error": str(error)})
            return
        state.awaiting_start.clear()
        state.settle_attention()
        self._follow_pauses()

    def _released(self, partitions: list[TopicPartition], callback: Callable[..., Any] | None) -> None:
        state = self._rocketshim
        theirs = [each for each in partitions if not state.is_internal(each.topic)]
        notifies_user = bool(theirs) or all(each.topic != state.retry_topic for each in partitions)
        retry_partitions = [each for each in partitions if each.topic == state.retry_topic]
        rebalance = Rebalance(retry_partitions, {})
        if notifies_user:
            self._call(callback, theirs, rebalance)
        if state.dirty:  # the callback has sent a message back, and the client is about to commit the stored offsets
            self._settle()
        if not rebalance.done:
            if state.cooperative:
                self._finish(_Original.incremental_unassign, [*theirs, *retry_partitions])
            else:
                self._finish(_Original.unassign)
        state.ledger.remove([partition_key(each) for each in partitions])
        self._follow_pauses()

    def _call(
        self, callback: Callable[..., Any] | None, partitions: list[TopicPartition], rebalance: Rebalance
    ) -> None:
        if callback is None:
            return
        state = self._rocketshim
        state.rebalance = rebalance
        try:
            with self._in_callback():
                callback(self, partitions)
        except BaseException as error:  # noqa: BLE001 - user code; the call in which it happened raises it
            state.raise_later(error)
        finally:
            state.rebalance = None

    @contextmanager
    def _in_callback(self) -> Iterator[None]:
        """Let other threads send back during a user callback in a client call."""
        state = self._rocketshim
        if get_ident() != state.poller:  # a thread of the client itself, as for `oauth_cb`
            yield
            return
        self._note()
        waiting, state.waiting = state.waiting, True
        try:
            yield
        finally:
            state.waiting = waiting

    def _finish(self, act: Callable[..., None], *arguments: list[TopicPartition]) -> None:
        try:
            act(self, *arguments)
        except KafkaException as error:
            self._rocketshim.raise_later(error)

    # --- pauses ------------------------------------------------------------------------------------------------------

    def pause(self, partitions: list[TopicPartition]) -> None:  # noqa: D102 - the original's
        super().pause(partitions)
        state = self._rocketshim
        state.paused |= {partition_key(each) for each in partitions} & set(state.ledger.assigned_keys())
        self._follow_pauses(asked=True)

    def resume(self, partitions: list[TopicPartition]) -> None:  # noqa: D102 - the original's
        super().resume(partitions)
        self._rocketshim.paused -= {partition_key(each) for each in partitions}
        self._follow_pauses()

    def _follow_pauses(self, *, asked: bool = False) -> None:
        """Pause the retry topic while all of the user's partitions are paused, and those whose start is unknown.

        The client keeps a pause across assignments. So partitions that were paused in an earlier one are resumed here.

        Args:
            asked: the user has called `pause`. A program that has only partitions of the retry topic pauses an empty
                list, and then gets no message until the next `resume` or rebalance.
        """
        state = self._rocketshim
        retry_partitions = [each for each in state.retry_partitions() if partition_key(each) not in state.paused]
        if not state.reads_retries or not retry_partitions:
            return
        theirs = {key for key in state.ledger.assigned_keys() if not state.is_internal(key.topic)}
        waits = theirs <= state.paused and (asked or bool(theirs))
        for each in retry_partitions:
            is_paused = waits or partition_key(each) in state.awaiting_start
            self._finish(_Original.pause if is_paused else _Original.resume, [each])

    # --- closing -----------------------------------------------------------------------------------------------------

    def set_sasl_credentials(self, username: str, password: str) -> None:  # noqa: D102 - the original's
        super().set_sasl_credentials(username, password)
        self._rocketshim.hop_store.set_sasl_credentials(username, password)

    def close(self) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        self._settle()
        state.closing = True
        if state.rebalance is not None:
            state.rebalance.done = True
        with state.entering:
            state.waiting = True
        try:
            super().close()
        finally:
            state.ledger.remove(state.ledger.assigned_keys())
            state.hop_store.close()
        if state.raised:
            raise state.raised.popleft()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, exc_traceback: TracebackType | None
    ) -> bool | None:
        RetryingConsumer.close(self)  # as the original: it does not call a subclass's close()
        return None


def _on_assign(consumer: RetryingConsumer, partitions: list[TopicPartition]) -> None:
    consumer._assigned(partitions)  # noqa: SLF001 - not a bound method: the client would keep the consumer alive


def _on_revoke(consumer: RetryingConsumer, partitions: list[TopicPartition]) -> None:
    state = consumer._rocketshim  # noqa: SLF001
    if state.dirty:
        consumer._settle()  # noqa: SLF001
    consumer._released(partitions, state.callbacks[1])  # noqa: SLF001


def _on_lost(consumer: RetryingConsumer, partitions: list[TopicPartition]) -> None:
    state = consumer._rocketshim  # noqa: SLF001
    state.ledger.remove([partition_key(each) for each in partitions])  # another member already has them
    consumer._released(partitions, state.callbacks[2] or state.callbacks[1])  # noqa: SLF001 - as the client


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _is_a(value: object, kind: type) -> bool:
    """Return `isinstance`, for an argument whose type the signature promises but a caller may get wrong."""
    return isinstance(value, kind)
