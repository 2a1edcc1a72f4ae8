"""The consumer with retry switched on: the group's retry topic is read along, offsets are stored when handled.

**Reading along.** `subscribe` adds the retry topic. The client's three rebalance callbacks are always ours; each tells
the partitions of the retry topic (and those of the shim's topics that only a pattern matched, which are never assigned)
from the user's, calls the user's callback with the user's, and then assigns or unassigns all, unless the callback has
done so: then its own call took ours with it. A partition of the retry topic that has no committed offset, or one that
is not in its log any more, begins at the beginning, whatever `auto.offset.reset` says: what waits there belongs to this
group. Where that cannot be told in time it is assigned all the same, paused, and a later `poll` goes where it begins.

**Errors in callbacks.** An error that escapes from a callback into the client makes it drop the message it was about to
return. So ours let nothing escape: the error is raised by the `poll` or `consume` in which it happened, and a message
that came with it is returned by the next call.

**Offsets.** The client stores a message's offset when it returns the message. Here that happens at the next `poll`,
`consume` or `close` (the caller came back, so what it had is handled), or at a `commit()` without arguments, which says
so. What was returned is what the client's `position` says, so nothing is noted per message. While messages keep coming
`poll` stores offsets every 100 ms, and always before it waits. A send-back that is under way or has failed holds its
partition's offset down.

**Threads.** The client lets one call in at a time: a call from another thread waits for the `poll` that is under way,
be it for ever. So a send-back from another thread must not ask the client where it is while the poll thread waits in
it; it takes the positions that were noted just before the wait (`State.positions`), which are exact, since a call
that waits has returned nothing yet. Nor may it while a `poll` that does not wait is under way, whose rebalance callback
may wait for that very thread: it tries again until the `poll` is over or the callback's positions are noted, as before
each callback. The one that we cannot see is a handler of the client's `logger`: a thread for which it waits gives up
after the hop timeout.

Not handled: a message that is sent back by one thread in the moment in which another loses its partition may be
delivered twice, as at any loss of a partition.
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
from rocketshim.dropin.send_back_tracker import TopicPartitionKey
from rocketshim.dropin.state import Rebalance, partition_key
from rocketshim.errors import NotSupportedError, SendTimeoutError
from rocketshim.kafka.clients import with_log
from rocketshim.logs import safe_logger
from rocketshim_topics import provision
from rocketshim_topics.durations import parse_duration_ms
from rocketshim_topics.message import MessageView

__all__ = ["RetryingConsumer"]

_LOG = safe_logger("rocketshim.dropin")
_SETTLE_INTERVAL_S: Final = 0.1
_COMMITTED_TIMEOUT_S: Final = 10.0
_OWED_TIMEOUT_S: Final = 1.0
_HELD_AT: Final = 0  # not "the beginning": a late answer to the client's own look-up would undo the seek
_NOT_READ: Final = "dropin.retry-topic-not-read"
_COMMITTED: Final = frozenset({OFFSET_INVALID, OFFSET_STORED})
_Original = confluent_kafka.Consumer
_poll = _Original.poll
_consume = _Original.consume


class RetryingConsumer(Consumer):
    """See `Consumer`, of whose objects this becomes the class."""

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
            raise ValueError("level and delay are given: a retry waits for one of them")
        delay_ms = None if delay is None else parse_duration_ms(delay)
        state = self._rocketshim
        checked(message)
        if not state.reads_retries and not state.retry_partitions():
            raise NotSupportedError(
                "with assign() the group's retry topic is not read along, so a message sent back would lie there: use "
                "subscribe(), or dead_letter()"
            )
        self._send_back(message, lambda: state.send_back.retry(message, error, level=level, delay_ms=delay_ms))

    def dead_letter(self, message: Message, reason: BaseException | str) -> None:  # noqa: D102
        checked(message)
        self._send_back(message, lambda: self._rocketshim.send_back.kill(message, reason))

    def _view(self, message: Message) -> MessageView:
        return viewed(message, trusted=message.topic() == self._rocketshim.retry_topic)

    def _send_back(self, message: Message, store: Callable[[], None]) -> None:
        state = self._rocketshim
        place: TopicPartitionKey = (message.topic() or "", _number(message.partition()))
        offset = _number(message.offset())
        future, is_ours = state.ledger.begin(place, offset, self._position(place).offset)
        if not is_ours:
            future.result()
            return
        state.dirty = True  # the offset may be stored already: hold it down again
        try:
            self._ensure_topics()
            store()
        except BaseException as error:
            state.ledger.end(place, offset, future, error)
            raise
        state.ledger.end(place, offset, future, None)
        state.dirty = True

    def _position(self, place: TopicPartitionKey) -> TopicPartition:
        """The offset after the last one handed out; negative for none. From any thread, without waiting for `poll`."""
        state = self._rocketshim
        if get_ident() == state.poller:  # also from its callbacks, in which it may be in the client already
            return self._position_now(place)
        deadline = monotonic() + state.settings.hop_timeout_ms / 1_000
        while True:
            with state.entering:
                state.asking = True  # before looking at `polling`, as `poll` sets that before looking at this
                try:
                    if state.waiting:
                        return state.positions.get(place, TopicPartition(*place, OFFSET_INVALID))
                    if not state.polling:
                        return self._position_now(place)
                finally:
                    state.asking = False
            if monotonic() > deadline:
                raise SendTimeoutError(
                    f"a poll has been in a handler of the client's logger for {state.settings.hop_timeout_ms} ms, and "
                    "until it returns nothing can be sent back from another thread; nothing was sent. A log handler "
                    "must not wait for a thread that sends back"
                )
            sleep(0.0005)  # a poll that does not wait is under way; in a callback of it positions are noted

    def _position_now(self, place: TopicPartitionKey) -> TopicPartition:
        state = self._rocketshim
        unknown = TopicPartition(*place, OFFSET_INVALID)
        if state.waiting:
            return state.positions.get(place, unknown)
        try:
            return super().position([unknown])[0]
        except (RuntimeError, KafkaException):  # closed, or not known
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
                    state.entering.acquire()  # once it is free, nobody who has not seen `polling` is in the client
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
        """Make a call of the client's that may wait, after what was returned before has been settled."""
        state = self._rocketshim
        if state.dirty:
            self._settle()
        state.poller = get_ident()
        with state.entering:
            waiting, state.waiting = state.waiting, True  # it waits already where a callback polls
        try:
            return call(self, *args)
        finally:
            state.waiting = waiting

    def _poll_slowly(self, timeout: float) -> Message | None:
        return next(iter(self._slowly(1, timeout, lambda _, left: self._wait(_poll, left))), None)

    def _consume_slowly(self, num_messages: int, timeout: float) -> list[Message]:
        return self._slowly(num_messages, timeout, lambda count, left: self._wait(_consume, count, left))

    def _slowly(self, count: int, timeout: float, fetch: Callable[[int, float], Any]) -> list[Message]:
        """Messages with what was put by first, and without the ends of the retry topic.

        Args:
            count: most messages.
            timeout: as the caller gave it, in seconds; negative: for ever.
            fetch: takes the count and the time that are left; returns one message, a list or None.
        """
        state = self._rocketshim
        self._attend_all([])
        if state.awaiting_start:
            self._begin_owed()
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
        """After a call in which a callback failed: put by what came, and raise."""
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
        """Note how far messages were returned, and store these offsets: all that was returned is handled."""
        state = self._rocketshim
        state.dirty = False
        state.settle_at = monotonic() + _SETTLE_INTERVAL_S
        self._note()
        self._store_handled(state.positions)

    def _note(self) -> None:
        """Note how far messages were returned."""
        state = self._rocketshim
        places = state.ledger.places()
        if places and not state.waiting:  # in a callback of a call that waits, what it holds is not returned yet
            found = super().position([TopicPartition(*place) for place in places])
            positions = {
                partition_key(each): each for each in found
            }  # with the leader's epoch, as the client stores it
            for message in reversed(state.buffered):
                if message.error() is None:
                    place = message.topic() or "", _number(message.partition())
                    positions[place] = TopicPartition(*place, _number(message.offset()))
            state.positions = positions

    def _store_handled(self, positions: dict[TopicPartitionKey, TopicPartition]) -> None:
        """Store these positions, or what holds them down."""
        state = self._rocketshim
        if not state.stores:
            return
        while to_store := state.ledger.to_store({place: each.offset for place, each in positions.items()}):
            stores = [
                positions[place] if positions[place].offset == offset else TopicPartition(*place, offset)
                for place, offset in to_store.items()
            ]
            done = self._stored(stores)
            state.ledger.stored({partition_key(each): each.offset for each in done})
            positions = {
                partition_key(each): positions[partition_key(each)] for each in done
            }  # another thread may have stored

    def _stored(self, stores: list[TopicPartition]) -> list[TopicPartition]:
        """Store offsets; returns those that could be."""
        try:
            super().store_offsets(offsets=stores)
        except KafkaException:
            done = []
            for each in stores:
                try:
                    super().store_offsets(offsets=[each])
                    done.append(each)
                except KafkaException as error:  # being taken away at this moment
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
            rest = [each for each in several if not self._has_left(each)]
            if len(rest) < len(several):
                if isinstance(given[0], list) and rest:
                    super().store_offsets(offsets=rest)
                return
        super().store_offsets(*args, **kwargs)

    def _has_left(self, each: object) -> bool:
        """Whether this is of a partition of the retry topic that was taken away: no callback tells the user of it."""
        state = self._rocketshim
        match each:
            case Message():
                place = each.topic() or "", _number(each.partition())
            case TopicPartition():
                place = partition_key(each)
            case _:
                return False
        return place[0] == state.retry_topic and place not in state.ledger.places()

    def seek(self, partition: TopicPartition) -> None:  # noqa: D102 - the original's
        if not _is_a(partition, TopicPartition):
            super().seek(partition)  # the original says what is wrong
            return
        state, place = self._rocketshim, partition_key(partition)
        before = self._position(place)
        super().seek(partition)
        if not state.buffered:  # what lies before the target is left behind, and so handled
            goes_on = partition.offset >= before.offset or partition.offset == OFFSET_END
            self._store_handled({place: before if goes_on else TopicPartition(*place, partition.offset)})
        state.ledger.sought(place, partition.offset, before.offset)

    def consumer_group_metadata(self) -> Any:
        """Refused: offsets sent to a transaction and retries that are stored outside of it do not go together."""
        super().consumer_group_metadata()  # after close() it raises, as ever
        raise NotSupportedError(
            "send_offsets_to_transaction is refused with rocketshim.retry.enable: a message sent back is stored at "
            "once, also if the transaction that commits its offset is aborted. Use a consumer without it"
        )

    # --- assignment --------------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], *args: Any, **kwargs: Any) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        names = ("on_assign", "on_revoke", "on_lost")
        given = dict(zip(names, args, strict=False)) | kwargs
        wrong = given.keys() - set(names) or not all(map(callable, given.values()))
        if wrong or not _is_a(topics, list) or not topics or len(args) > len(names):
            super().subscribe(topics, *args, **kwargs)  # the original says what is wrong
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
        state.ledger.remove(state.ledger.places())
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
        state.ledger.remove(state.ledger.places())

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
        self._rocketshim.positions = {place: each for place, each in known.items() if place not in begun}
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
        """Where partitions begin: those of the retry topic, and the user's that were held before.

        Raises:
            KafkaException: the committed offsets could not be had in time.
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
        offsets = {place: each.offset for place, each in committed.items() if each.offset >= 0}
        ready = [
            each if self._is_there(each, offsets, timeout_s) else TopicPartition(*partition_key(each), OFFSET_BEGINNING)
            for each in retry_partitions
        ]
        return ready, offsets

    def _is_there(self, partition: TopicPartition, committed: dict[TopicPartitionKey, int], timeout_s: float) -> bool:
        """Whether a partition has a committed offset that is in its log still; else the client would reset it."""
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
            rebalance.retry_partitions = [TopicPartition(*partition_key(each), _HELD_AT) for each in retry_partitions]
            state.awaiting_start |= {
                partition_key(each) for each in retry_partitions
            }  # paused, until it is known where they begin
            state.settle_attention()
        self._call(state.callbacks[0], theirs, rebalance)
        if not rebalance.done:
            partitions = [*theirs, *rebalance.retry_partitions]
            self._finish(_Original.incremental_assign if state.cooperative else _Original.assign, partitions)
            if not state.cooperative:
                state.ledger.remove(state.ledger.places())
            self._begin(partitions, rebalance.starts)
        self._follow_pauses()

    def _begin_owed(self) -> None:
        """Begin those of the retry topic whose committed offsets could not be had when they were assigned.

        They were assigned all the same, paused: in an eager group nothing can be assigned between two rebalances.
        """
        state = self._rocketshim
        owed = [TopicPartition(*place) for place in state.ledger.places() if place in state.awaiting_start]
        try:
            ready, committed = self._starts(owed, [], _OWED_TIMEOUT_S)
            for each in ready:
                place, offset = partition_key(each), each.offset
                super().seek(TopicPartition(*place, committed[place] if offset in _COMMITTED else offset))
        except KafkaException as error:  # tried again by the next poll
            _LOG.warning(_NOT_READ, extra={"error": str(error)})
            return
        state.awaiting_start.clear()
        state.settle_attention()
        self._follow_pauses()

    def _released(self, partitions: list[TopicPartition], callback: Callable[..., Any] | None) -> None:
        state = self._rocketshim
        theirs = [each for each in partitions if not state.is_internal(each.topic)]
        is_told = bool(theirs) or all(each.topic != state.retry_topic for each in partitions)
        retry_partitions = [each for each in partitions if each.topic == state.retry_topic]
        rebalance = Rebalance(retry_partitions, {})
        if is_told:
            self._call(callback, theirs, rebalance)
        if state.dirty:  # sent back in the callback, and the client is about to commit what is stored
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
        except BaseException as error:  # noqa: BLE001 - user code; raised by the call that it happened in
            state.raise_later(error)
        finally:
            state.rebalance = None

    @contextmanager
    def _in_callback(self) -> Iterator[None]:
        """A callback of the user's in a call of the client's, in which other threads may send back."""
        state = self._rocketshim
        if get_ident() != state.poller:  # a thread of the client's own, as for `oauth_cb`
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
        state.paused |= {partition_key(each) for each in partitions} & set(state.ledger.places())
        self._follow_pauses(asked=True)

    def resume(self, partitions: list[TopicPartition]) -> None:  # noqa: D102 - the original's
        super().resume(partitions)
        self._rocketshim.paused -= {partition_key(each) for each in partitions}
        self._follow_pauses()

    def _follow_pauses(self, *, asked: bool = False) -> None:
        """Pause the retry topic while all of the user's partitions are paused, and those that may not begin yet.

        The client keeps a pause across assignments, so that what was paused in an earlier one is resumed here too.

        Args:
            asked: the user has asked for a pause. Whoever has nothing but partitions of the retry topic pauses an empty
                list, and is then to get nothing until the next `resume` or rebalance.
        """
        state = self._rocketshim
        retry_partitions = [each for each in state.retry_partitions() if partition_key(each) not in state.paused]
        if not state.reads_retries or not retry_partitions:
            return
        theirs = {place for place in state.ledger.places() if not state.is_internal(place[0])}
        waits = theirs <= state.paused and (asked or bool(theirs))
        for each in retry_partitions:
            is_paused = waits or partition_key(each) in state.awaiting_start
            self._finish(_Original.pause if is_paused else _Original.resume, [each])

    # --- the end -----------------------------------------------------------------------------------------------------

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
            state.ledger.remove(state.ledger.places())
            state.hop_store.close()
        if state.raised:
            raise state.raised.popleft()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, exc_traceback: TracebackType | None
    ) -> bool | None:
        RetryingConsumer.close(self)  # as the original: not a close() of a subclass
        return None


def _on_assign(consumer: RetryingConsumer, partitions: list[TopicPartition]) -> None:
    consumer._assigned(partitions)  # noqa: SLF001 - no bound methods for the client: it would hold the consumer


def _on_revoke(consumer: RetryingConsumer, partitions: list[TopicPartition]) -> None:
    state = consumer._rocketshim  # noqa: SLF001
    if state.dirty:
        consumer._settle()  # noqa: SLF001
    consumer._released(partitions, state.callbacks[1])  # noqa: SLF001


def _on_lost(consumer: RetryingConsumer, partitions: list[TopicPartition]) -> None:
    state = consumer._rocketshim  # noqa: SLF001
    state.ledger.remove([partition_key(each) for each in partitions])  # they are another member's already
    consumer._released(partitions, state.callbacks[2] or state.callbacks[1])  # noqa: SLF001 - as the client


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _is_a(value: object, kind: type) -> bool:
    """`isinstance`, for what the signature promises and a caller may still get wrong."""
    return isinstance(value, kind)
