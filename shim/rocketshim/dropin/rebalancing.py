"""The assignment of a consumer with retry enabled: the program's partitions, and beside them the retry topic.

`subscribe` adds the retry topic. The client's three rebalance callbacks are always ours. Each of them separates the
user's partitions from those of the retry topic, and from those of rocketshim topics that only a pattern matched; the
latter are never assigned. It calls the user's callback with the user's partitions, and then assigns or unassigns all of
them. If the user's callback has done so itself, its call has included ours. All callbacks run in the program's thread,
inside its `poll`, `consume` or `close`. There the program must not call `list_topics`, `poll` or `consume` of the same
client: the next callback would end the process (`DESIGN.md`, 37). What its callback raises, the outer call raises.

A partition of the retry topic starts at the beginning if it has no committed offset, or one that is no longer in its
log, regardless of `auto.offset.reset`: the messages there belong to this group. If this cannot be found out in time,
the partition is assigned paused, and a later `poll` seeks to its start.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, OFFSET_STORED, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim.dropin.handled_offsets import OffsetClient
from rocketshim.dropin.original import OriginalConsumer as _Original
from rocketshim.dropin.state import Rebalance, State
from rocketshim.kafka.clients import with_log
from rocketshim.kafka.lookups import check_answers
from rocketshim.kafka.positions import EARLIEST, LATEST, listed_offsets
from rocketshim.logs import safe_logger
from rocketshim_topics import provision
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["RebalancingConsumer", "is_a"]

_LOG = safe_logger("rocketshim.dropin")
_COMMITTED_TIMEOUT_S: Final = 10.0
_START_TIMEOUT_S: Final = 1.0
_PAUSED_AT: Final = 0  # not "the beginning": a late answer to the client's look-up of it would undo the seek
_NOT_READ: Final = "dropin.retry-topic-not-read"
_COMMITTED: Final = frozenset({OFFSET_INVALID, OFFSET_STORED})


class RebalancingConsumer(_Original):
    """The methods of the original that concern the assignment, and the rebalance callbacks."""

    __slots__ = ()
    _rocketshim: State

    # --- assignment --------------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], *args: Any, **kwargs: Any) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        names = ("on_assign", "on_revoke", "on_lost")
        given = dict(zip(names, args, strict=False)) | kwargs
        wrong = given.keys() - set(names) or not all(map(callable, given.values()))
        if wrong or not is_a(topics, list) or not topics or len(given) < len(args) + len(kwargs):
            super().subscribe(topics, *args, **kwargs)  # the original raises the error
            return
        topics = [str(each) for each in topics]  # as the client does
        self._shim_ensure_topics()
        super().subscribe(
            [*(each for each in topics if each != state.retries.topic), state.retries.topic],
            on_assign=_on_assign,
            on_revoke=_on_revoke,
            on_lost=_on_lost,
        )
        state.retries.subscribed(topics)
        state.callbacks = tuple(given.get(name) for name in names)
        state.subscribed = True

    def unsubscribe(self) -> None:  # noqa: D102 - the original's
        super().unsubscribe()
        self._rocketshim.subscribed = False

    def assignment(self) -> list[TopicPartition]:  # noqa: D102 - the original's
        state = self._rocketshim
        found = super().assignment()
        return [each for each in found if not state.retries.is_internal(each.topic)] if state.retries.is_read else found

    def assign(self, partitions: list[TopicPartition], /) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        rebalance = state.rebalance
        if rebalance is not None:
            retry_partitions = rebalance.retry_partitions
        elif state.subscribed:
            retry_partitions = self._shim_starts(state.retry_partitions(), [], _COMMITTED_TIMEOUT_S)[0]
        else:
            retry_partitions = []
        both = _joined(partitions, retry_partitions)
        super().assign(both)
        if rebalance is not None:
            rebalance.done = True
        state.retries.is_read = state.subscribed or rebalance is not None
        state.tracker.remove(state.tracker.assigned_keys())
        self._shim_begin(both, {} if rebalance is None else rebalance.starts)

    def incremental_assign(self, partitions: list[TopicPartition], /) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        rebalance = state.rebalance
        retry_partitions = [] if rebalance is None or rebalance.done else rebalance.retry_partitions
        both = _joined(partitions, retry_partitions)
        super().incremental_assign(both)
        if rebalance is not None:
            rebalance.done = True
        self._shim_begin(both, {} if rebalance is None else rebalance.starts)

    def unassign(self) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        super().unassign()
        if state.rebalance is not None:
            state.rebalance.done = True
        state.tracker.remove(state.tracker.assigned_keys())

    def incremental_unassign(self, partitions: list[TopicPartition], /) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        rebalance = state.rebalance
        retry_partitions = [] if rebalance is None or rebalance.done else rebalance.retry_partitions
        both = _joined(partitions, retry_partitions)
        super().incremental_unassign(both)
        if rebalance is not None:
            rebalance.done = True
        state.tracker.remove([TopicPartitionKey.of(each) for each in both])
        self._shim_follow_pauses()

    def _shim_begin(self, partitions: list[TopicPartition], starts: dict[TopicPartitionKey, int]) -> None:
        self._rocketshim.offsets.forget(TopicPartitionKey.of(each) for each in partitions)
        self._rocketshim.tracker.add(
            {
                TopicPartitionKey.of(each): starts.get(TopicPartitionKey.of(each), 0)
                if each.offset in _COMMITTED
                else max(each.offset, 0)
                for each in partitions
            }
        )
        self._shim_follow_pauses()

    def _shim_starts(
        self, retry_partitions: list[TopicPartition], theirs: list[TopicPartition], timeout_s: float
    ) -> tuple[list[TopicPartition], dict[TopicPartitionKey, int]]:
        """Return the starts of partitions: those of the retry topic, and the user's that were assigned before.

        Raises:
            KafkaException: the committed offsets were not available in time.
        """
        state = self._rocketshim
        asked = [*retry_partitions, *(each for each in theirs if state.tracker.was_held(TopicPartitionKey.of(each)))]
        if not asked:
            return [], {}
        plain = [TopicPartition(*TopicPartitionKey.of(each)) for each in asked]
        committed = check_answers(self._shim_committed(plain, timeout_s))
        offsets = {TopicPartitionKey.of(each): each.offset for each in committed if each.offset >= 0}
        resets = self._shim_resets([TopicPartitionKey.of(each) for each in retry_partitions], offsets, timeout_s)
        ready = [
            TopicPartition(*key, OFFSET_BEGINNING) if key in resets else each
            for each in retry_partitions
            for key in (TopicPartitionKey.of(each),)
        ]
        return ready, offsets

    def _shim_committed(self, partitions: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        return super().committed(partitions, timeout=timeout_s)

    def _shim_resets(
        self, retry_partitions: list[TopicPartitionKey], committed: dict[TopicPartitionKey, int], timeout_s: float
    ) -> set[TopicPartitionKey]:
        """Return the partitions without a committed offset that is still in their log: the client would reset them.

        A client of its own asks for the bounds. This one would wait half a second for each of them, behind its fetch.

        Raises:
            KafkaException: a broker does not know the bounds of a partition (yet).
        """
        missing = set(retry_partitions) - committed.keys()
        asked = [key for key in retry_partitions if key in committed]
        if self._rocketshim.resets_to_beginning or not asked:
            return missing
        admin = self._shim_admin()
        low = listed_offsets(admin, asked, EARLIEST, timeout_s=timeout_s)
        high = listed_offsets(admin, asked, LATEST, committed=False, timeout_s=timeout_s)
        if unknown := [key for key in asked if key not in low or key not in high]:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, f"{unknown}"))  # noqa: SLF001
        return missing | {key for key in asked if not low[key] <= committed[key] <= high[key]}

    # --- rebalance callbacks, from inside of poll, consume and close -----------------------------------------------

    def _shim_assigned(self, partitions: list[TopicPartition]) -> None:
        state = self._rocketshim
        theirs, retry_partitions = state.retries.split(partitions)
        rebalance = Rebalance([], {})
        try:
            rebalance.retry_partitions, rebalance.starts = self._shim_starts(
                retry_partitions, theirs, _COMMITTED_TIMEOUT_S
            )
        except KafkaException as error:
            _LOG.warning(_NOT_READ, extra={"error": str(error)})
            rebalance.retry_partitions = [
                TopicPartition(*TopicPartitionKey.of(each), _PAUSED_AT) for each in retry_partitions
            ]
            # paused until their start is known, and before they are assigned: a later pause is too late for a fetch
            super().position(rebalance.retry_partitions)  # the client pauses only what it knows
            super().pause(rebalance.retry_partitions)
            state.retries.awaiting_start |= {TopicPartitionKey.of(each) for each in retry_partitions}
            state.update_slow_path()
        self._shim_call(state.callbacks[0], theirs, rebalance)
        if not rebalance.done:
            partitions = [*theirs, *rebalance.retry_partitions]
            self._shim_finish(_Original.incremental_assign if state.cooperative else _Original.assign, partitions)
            if not state.cooperative:
                state.tracker.remove(state.tracker.assigned_keys())
            self._shim_begin(partitions, rebalance.starts)
        self._shim_follow_pauses()

    def _shim_start_awaiting(self) -> None:
        """Start the retry-topic partitions whose committed offsets were not available when they were assigned.

        They were assigned paused, because in an eager group nothing can be assigned between two rebalances.
        """
        state = self._rocketshim
        waiting = [TopicPartition(*key) for key in state.tracker.assigned_keys() if key in state.retries.awaiting_start]
        try:
            ready, committed = self._shim_starts(waiting, [], _START_TIMEOUT_S)
            for each in ready:
                key, offset = TopicPartitionKey.of(each), each.offset
                super().seek(TopicPartition(*key, committed[key] if offset in _COMMITTED else offset))
        except KafkaException as error:  # the next poll tries again
            _LOG.warning(_NOT_READ, extra={"error": str(error)})
            return
        state.retries.awaiting_start.clear()
        state.update_slow_path()
        self._shim_follow_pauses()

    def _shim_released(self, partitions: list[TopicPartition], callback: Callable[..., Any] | None) -> None:
        state = self._rocketshim
        theirs, retry_partitions = state.retries.split(partitions)
        notifies_user = bool(theirs) or not retry_partitions
        rebalance = Rebalance(retry_partitions, {})
        if notifies_user:
            self._shim_call(callback, theirs, rebalance)
        if (
            state.offsets.dirty
        ):  # the callback has sent a message back, and the client is about to commit the stored offsets
            self._shim_settle()
        if not rebalance.done:
            if state.cooperative:
                self._shim_finish(_Original.incremental_unassign, [*theirs, *retry_partitions])
            else:
                self._shim_finish(_Original.unassign)
        state.tracker.remove([TopicPartitionKey.of(each) for each in partitions])
        self._shim_follow_pauses()

    def _shim_call(
        self, callback: Callable[..., Any] | None, partitions: list[TopicPartition], rebalance: Rebalance
    ) -> None:
        if callback is None:
            return
        state = self._rocketshim
        state.rebalance = rebalance
        try:
            with self._shim_in_callback():
                # copies: as in the original, what the callback does to its list changes no assignment
                callback(self, [TopicPartition(*TopicPartitionKey.of(each), each.offset) for each in partitions])
        except BaseException as error:  # noqa: BLE001 - user code; the call in which it happened raises it
            state.raise_later(error)
        finally:
            state.rebalance = None

    @contextmanager
    def _shim_in_callback(self) -> Iterator[None]:
        """Let other threads send back during a user callback in a client call."""
        state = self._rocketshim
        if not state.gate.is_poll_thread:  # a thread of the client itself, as for `oauth_cb`
            yield
            return
        state.offsets.note(self._shim_original)
        was = state.gate.waiting
        try:
            state.gate.waiting = True
            yield
        finally:
            state.gate.waiting = was

    def _shim_finish(self, act: Callable[..., None], *arguments: list[TopicPartition]) -> None:
        try:
            act(self, *arguments)
        except KafkaException as error:
            self._rocketshim.raise_later(error)

    # --- pauses ------------------------------------------------------------------------------------------------------

    def pause(self, partitions: list[TopicPartition]) -> None:  # noqa: D102 - the original's
        super().pause(partitions)
        state = self._rocketshim
        state.retries.paused |= {TopicPartitionKey.of(each) for each in partitions} & set(state.tracker.assigned_keys())
        self._shim_follow_pauses(asked=True)

    def resume(self, partitions: list[TopicPartition]) -> None:  # noqa: D102 - the original's
        super().resume(partitions)
        self._rocketshim.retries.paused -= {TopicPartitionKey.of(each) for each in partitions}
        self._shim_follow_pauses()

    def _shim_follow_pauses(self, *, asked: bool = False) -> None:
        """Pause and resume the retry topic by the rules of `retry_partitions`.

        Args:
            asked: the user has called `pause`.
        """
        state = self._rocketshim
        state.retries.is_assigned = bool(state.retry_partitions())
        for each, is_paused in state.retries.pauses(state.tracker.assigned_keys(), asked=asked):
            self._shim_finish(_Original.pause if is_paused else _Original.resume, [each])

    @property
    def _shim_original(self) -> OffsetClient:
        """The client without our methods."""
        return cast("OffsetClient", super())

    def _shim_settle(self) -> None:
        """Note how far messages were returned, and store these offsets: every returned message is handled."""
        self._rocketshim.offsets.note_and_store(self._shim_original)

    def _shim_ensure_topics(self) -> None:
        state = self._rocketshim
        if state.ensured:
            return
        layout = state.layout()
        provision.ensure_topics(
            self._shim_admin(),
            (*layout.shared(), *layout.for_group(state.group, with_log=False)),
            create=state.settings.create_topics,
        )
        state.ensured = True

    def _shim_admin(self) -> AdminClient:
        admin = AdminClient(with_log(self._rocketshim.connection))
        self._rocketshim.hop_store.tell_credentials(admin)
        return admin


def _on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:
    consumer._shim_assigned(partitions)  # noqa: SLF001 - not a bound method: the client would keep the consumer alive


def _on_revoke(consumer: Any, partitions: list[TopicPartition]) -> None:
    state = consumer._rocketshim  # noqa: SLF001
    if state.offsets.dirty:
        consumer._shim_settle()  # noqa: SLF001
    consumer._shim_released(partitions, state.callbacks[1])  # noqa: SLF001


def _on_lost(consumer: Any, partitions: list[TopicPartition]) -> None:
    state = consumer._rocketshim  # noqa: SLF001
    state.tracker.remove([TopicPartitionKey.of(each) for each in partitions])  # another member already has them
    consumer._shim_released(partitions, state.callbacks[2] or state.callbacks[1])  # noqa: SLF001 - as the client


def _joined(partitions: list[TopicPartition], retry_partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Return both in one list; anything but a list is returned as it is, and the original refuses it."""
    return [*partitions, *retry_partitions] if is_a(partitions, list) else partitions


def is_a(value: object, kind: type) -> bool:
    """Return `isinstance`, for an argument whose type the signature promises but a caller may get wrong."""
    return isinstance(value, kind)
