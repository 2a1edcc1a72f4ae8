"""The consumer with retry enabled: it also reads the group's retry topic, and stores offsets of handled messages.

The parts, each with its own rules:

* `client_gate`: which thread may call the client, since it allows one call at a time.
* `handled_offsets`: when offsets are stored, and which.
* `buffered`: what becomes of messages and errors if a callback fails.
* `retry_partitions` and `rebalancing`: the retry topic beside the program's partitions.
* `send_back_tracker` and `send_back`: messages that are sent back.

Not handled: a message may be delivered twice if one thread sends it back at the moment when another loses its
partition, as at any loss of a partition.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from threading import get_ident
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from rocketshim.core.consume_concurrently import retry_delay_ms
from rocketshim.core.user_values import as_int, safe_text
from rocketshim.dropin.fetched import checked
from rocketshim.dropin.original import OriginalConsumer
from rocketshim.dropin.rebalancing import RebalancingConsumer, is_a
from rocketshim.errors import ConfigError, NotSupportedError, RocketshimError, StaleMessageError
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.wire import coordinates

__all__ = ["RetryingConsumer"]

_LOG = safe_logger("rocketshim.dropin")
_PAUSE_S: Final = 1.0
_TOPIC: Final = Message.topic  # 0.03 µs a message in `map`, with `methodcaller` 0.12 µs (our measurement)
_poll = OriginalConsumer.poll
_consume = OriginalConsumer.consume


class RetryingConsumer(RebalancingConsumer):
    """What the objects of `Consumer` become with retry enabled; its methods override those of the original."""

    __slots__ = ()

    # --- sending back -------------------------------------------------------------------------------------------------

    def _shim_reconsume_later(
        self, message: Message, error: BaseException | str | None, *, level: int | None, delay: timedelta | str | None
    ) -> None:
        if level is not None and delay is not None:
            raise ValueError("both level and delay are given: give one of them")
        asked_level = as_int(level)
        if level is not None and (asked_level is None or isinstance(level, bool)):
            raise ConfigError(
                f"level={safe_text(level, repr):.80} is not a delay level: give a whole number, or leave it out"
            )
        delay_ms = None if delay is None else retry_delay_ms(delay)
        state = self._rocketshim
        checked(message)
        if not state.retries.is_read and not state.retry_partitions():
            raise NotSupportedError(
                "with assign() the group's retry topic is not read, so a message that was sent back would stay there: "
                "use subscribe(), or dead_letter()"
            )
        self._shim_send_back(
            message, lambda: state.send_back.reconsume_later(message, error, level=asked_level, delay_ms=delay_ms)
        )

    def _shim_dead_letter(self, message: Message, reason: BaseException | str) -> None:
        checked(message)
        self._shim_send_back(message, lambda: self._rocketshim.send_back.dead_letter(message, reason))

    def _shim_send_back(self, message: Message, store: Callable[[], None]) -> None:
        state = self._rocketshim
        key = TopicPartitionKey(message.topic() or "", _number(message.partition()))
        offset = _number(message.offset())
        future, is_ours = state.tracker.begin(key, offset, self._shim_position(key).offset)
        if not is_ours:
            future.result()
            return
        state.offsets.dirty = True  # the offset may be stored already: it must be lowered again
        try:
            self._shim_ensure_topics()
            store()
        except BaseException as error:
            state.tracker.end(key, offset, future, error)
            raise
        state.tracker.end(key, offset, future, None)
        state.offsets.dirty = True

    def _shim_position(self, key: TopicPartitionKey) -> TopicPartition:
        """Return the offset after the last one handed out, negative for none; any thread, no wait for `poll`."""
        state = self._rocketshim
        return state.offsets.position(self._shim_original, key, state.settings.hop_timeout_ms / 1_000)

    # --- messages ----------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Message | None:  # noqa: D102 - the original's
        state = self._rocketshim
        if state.slow_path:
            return self._shim_poll_slowly(timeout)
        message, offsets = None, state.offsets
        if offsets.dirty:
            if monotonic() >= offsets.store_at_s:
                self._shim_settle()
            gate = state.gate
            gate.poll_thread = get_ident()  # `begin_poll` written out: it is called for each message
            gate.polling = True
            try:
                if gate.asking:
                    gate.await_asking()
                message = _poll(self, 0.0)
            finally:
                gate.polling = False
        if message is None and not state.buffered.errors:
            message = self._shim_wait(_poll, timeout)
        if message is not None:
            offsets.dirty = True
            retries = state.retries
            if retries.is_assigned and message.topic() == retries.topic and not state.buffered.errors:
                return message if self._shim_mine([message]) else self._shim_poll_slowly(timeout)
        else:
            offsets.look_again()
        return self._shim_hand_out_one(message) if state.buffered.errors else message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:  # noqa: D102 - the original's
        state = self._rocketshim
        if state.slow_path:
            return self._shim_consume_slowly(num_messages, timeout)
        messages: list[Message] = self._shim_wait(_consume, num_messages, timeout)
        if messages:
            state.offsets.dirty = True
            retries = state.retries
            if retries.is_assigned and retries.topic in map(_TOPIC, messages) and not state.buffered.errors:
                return self._shim_mine(messages) or self._shim_consume_slowly(num_messages, timeout)
        else:
            state.offsets.look_again()
        return self._shim_hand_out(messages) if state.buffered.errors else messages

    def _shim_mine(self, messages: list[Message]) -> list[Message]:
        """Return the messages that the program subscribes to; send retries of other topics on to other members.

        If one cannot be sent on now, it and those after it wait in the buffer, and the next poll tries again.
        """
        state = self._rocketshim
        mine: list[Message] = []
        for at, message in enumerate(messages):
            topic = state.retries.topic_of_others(message)
            if topic is None:
                mine.append(message)
                continue
            try:
                self._shim_send_back(message, partial(state.send_back.send_on, message, topic))
            except StaleMessageError:
                continue  # its partition was taken away: the next owner gets it
            except (RocketshimError, KafkaException) as error:
                _LOG.warning("dropin.not-sent-on", extra={"record": coordinates(message), "error": str(error)})
                state.buffered.messages.extendleft(reversed(messages[at:]))
                state.update_slow_path()
                break
        return mine

    def _shim_wait(self, call: Callable[..., Any], *args: Any) -> Any:
        """Make a client call that may wait, after the offsets of returned messages were stored."""
        state = self._rocketshim
        if state.offsets.dirty:
            self._shim_settle()
        gate = state.gate
        was = gate.waiting
        try:
            gate.begin_wait()
            return call(self, *args)
        finally:
            gate.waiting = was

    def _shim_poll_slowly(self, timeout: float) -> Message | None:
        return next(iter(self._shim_slowly(1, timeout, lambda _, left: self._shim_wait(_poll, left))), None)

    def _shim_consume_slowly(self, num_messages: int, timeout: float) -> list[Message]:
        return self._shim_slowly(num_messages, timeout, lambda count, left: self._shim_wait(_consume, count, left))

    def _shim_slowly(self, count: int, timeout: float, fetch: Callable[[int, float], Any]) -> list[Message]:
        """Return messages, buffered ones first, without the ends of the retry topic.

        Args:
            count: maximum number of messages.
            timeout: as the caller gave it, in seconds; negative: forever.
            fetch: takes the remaining count and time; returns one message, a list or None.
        """
        state = self._rocketshim
        self._shim_hand_out([])
        if state.retries.awaiting_start:
            self._shim_start_awaiting()
        deadline = monotonic() + timeout if timeout >= 0 else None
        while True:
            if state.buffered.messages and count > 0:
                self._shim_settle()
                messages = self._shim_mine(state.buffered.take(count))
                state.update_slow_path()
                state.offsets.dirty = True
                if messages or (deadline is not None and monotonic() >= deadline):
                    return messages
                if state.buffered.messages:
                    sleep(_PAUSE_S if deadline is None else max(0.0, min(_PAUSE_S, deadline - monotonic())))
                continue
            found = fetch(count, timeout)
            came = [found] if isinstance(found, Message) else found or []
            if came:
                state.offsets.dirty = True
            else:
                state.offsets.look_again()
            messages = [each for each in came if not self._shim_is_end(each)]
            if not state.buffered.errors:
                messages = self._shim_mine(messages)
            if messages or not came or state.buffered.errors:
                return self._shim_hand_out(messages)
            timeout = -1.0 if deadline is None else max(0.0, deadline - monotonic())

    def _shim_hand_out_one(self, message: Message | None) -> Message | None:
        return next(iter(self._shim_hand_out([] if message is None else [message])), None)

    def _shim_hand_out(self, messages: list[Message]) -> list[Message]:
        """Return the messages; if a callback has failed in the call, buffer them and raise its error."""
        state = self._rocketshim
        if not state.buffered.errors:
            return messages
        try:
            return state.buffered.hand_out(messages)
        finally:
            state.update_slow_path()

    def _shim_is_end(self, message: Message) -> bool:
        error = message.error()
        return (
            error is not None
            and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - no public spelling
            and message.topic() == self._rocketshim.retries.topic
        )

    # --- offsets -----------------------------------------------------------------------------------------------------

    def commit(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - the original's
        if not any(each is not None for each in (*args[:2], kwargs.get("message"), kwargs.get("offsets"))):
            self._shim_settle()
        return super().commit(*args, **kwargs)

    def store_offsets(  # noqa: D102 - the original's
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        given: list[Any] = [each for each in (message, offsets) if each is not None]
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
            assigned = [each for each in several if not self._shim_has_left(each)]
            if len(assigned) < len(several):
                if isinstance(given[0], list) and assigned:
                    super().store_offsets(offsets=assigned)
                return
        super().store_offsets(message, offsets)

    def _shim_has_left(self, each: object) -> bool:
        """Return whether this belongs to a revoked partition of the retry topic; no callback tells the user of it."""
        state = self._rocketshim
        match each:
            case Message():
                key = TopicPartitionKey(each.topic() or "", _number(each.partition()))
            case TopicPartition():
                key = TopicPartitionKey.of(each)
            case _:
                return False
        return key.topic == state.retries.topic and key not in state.tracker.assigned_keys()

    def seek(self, partition: TopicPartition) -> None:  # noqa: D102 - the original's
        if not is_a(partition, TopicPartition):
            super().seek(partition)  # the original raises the error
            return
        state, key = self._rocketshim, TopicPartitionKey.of(partition)
        before = self._shim_position(key)
        super().seek(partition)
        if not state.buffered.messages:  # messages before the target count as handled
            goes_on = partition.offset >= before.offset or partition.offset == OFFSET_END
            target = before if goes_on else TopicPartition(*key, partition.offset)
            state.offsets.store(self._shim_original, {key: target})
        state.tracker.sought(key, partition.offset, before.offset)

    def consumer_group_metadata(self) -> Any:
        """Refuse the call: offsets in a transaction and retries that are stored outside of it do not fit together."""
        super().consumer_group_metadata()  # after close() it raises, as in the original
        raise NotSupportedError(
            "send_offsets_to_transaction is refused with rocketshim.retry.enable: a message that is sent back is "
            "stored immediately, even if the transaction that commits its offset is aborted. Use a consumer without it"
        )

    # --- closing -----------------------------------------------------------------------------------------------------

    def set_sasl_credentials(self, username: str, password: str) -> None:  # noqa: D102 - the original's
        super().set_sasl_credentials(username, password)
        self._rocketshim.hop_store.set_sasl_credentials(username, password)

    def close(self) -> None:  # noqa: D102 - the original's
        state = self._rocketshim
        self._shim_settle()
        state.closing = True
        if state.rebalance is not None:
            state.rebalance.done = True
        state.gate.close()
        try:
            super().close()
        finally:
            state.tracker.remove(state.tracker.assigned_keys())
            state.hop_store.close()
        if state.buffered.errors:
            raise state.buffered.errors.popleft()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, exc_traceback: TracebackType | None
    ) -> bool | None:
        RetryingConsumer.close(self)  # as the original: it does not call a subclass's close()
        return None


def _number(value: int | None) -> int:
    return -1 if value is None else value
