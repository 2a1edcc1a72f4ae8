"""How far the program has handled its messages, and the offsets that are stored for them.

The client stores a message's offset when it returns the message. Here that happens at the next `poll`, `consume` or
`close`: the caller has come back, so it has handled its messages. It also happens at a `commit()` without arguments,
which means the same. The client's `position` tells what was returned, so nothing is recorded per message. While
messages keep coming, offsets are stored every 100 ms, and always before a call that may wait; while none comes, about
once a second, because the position also passes transaction markers and aborted records. The stored offset does
not pass a message whose send-back is in progress or has failed (`SendBackTracker`).
"""

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Final, Protocol

from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition

from rocketshim.dropin.buffered import Buffered
from rocketshim.dropin.client_gate import ClientGate
from rocketshim.dropin.send_back_tracker import SendBackTracker
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["HandledOffsets", "OffsetClient"]

_LOG = safe_logger("rocketshim.dropin")
_STORE_INTERVAL_S: Final = 0.1
_IDLE_INTERVAL_S: Final = 1.0


class OffsetClient(Protocol):
    """The calls of a Kafka consumer that are needed here."""

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the offset after the last one that was returned, for each partition."""

    def store_offsets(self, *, offsets: list[TopicPartition]) -> None:
        """Store these offsets, to be committed."""


class HandledOffsets:
    """Notes positions and stores offsets.

    Args:
        stores: whether to store offsets; otherwise the program does.
        tracker: which messages limit the stored offsets.
        buffered: messages that the client has returned and the program has not got.
        gate: who may call the client.

    Attributes:
        dirty: a message was returned since offsets were last stored.
        store_at_s: when offsets are stored next while messages keep coming, monotonic time in seconds.
        positions: how far each partition was handed out when that was last noted; exact while the gate is waiting.

    Thread-safety: the poll thread's. Any thread may call `position` and `store`, and set `dirty`.
    """

    __slots__ = ("_buffered", "_gate", "_stores", "_tracker", "dirty", "positions", "store_at_s")

    def __init__(self, *, stores: bool, tracker: SendBackTracker, buffered: Buffered, gate: ClientGate) -> None:
        self.dirty = False
        self.store_at_s = 0.0
        self.positions: dict[TopicPartitionKey, TopicPartition] = {}
        self._stores = stores
        self._tracker = tracker
        self._buffered = buffered
        self._gate = gate

    def note_and_store(self, client: OffsetClient) -> None:
        """Note how far messages were returned, and store these offsets: every returned message is handled."""
        self.dirty = False
        self.store_at_s = monotonic() + _STORE_INTERVAL_S
        self.note(client)
        self.store(client, self.positions)

    def look_again(self) -> None:
        """Have offsets stored about once a second while no message comes, since markers move the position, too."""
        if monotonic() >= self.store_at_s + _IDLE_INTERVAL_S:
            self.dirty = True

    def note(self, client: OffsetClient) -> None:
        """Note how far messages were returned."""
        keys = self._tracker.assigned_keys()
        if not keys or self._gate.waiting:  # in a callback of a call that waits, its messages are not returned yet
            return
        found = client.position([TopicPartition(*key) for key in keys])
        # with the leader's epoch, as the client stores it
        positions = {TopicPartitionKey.of(each): each for each in found}
        for key, offset in self._buffered.first_offsets().items():
            positions[key] = TopicPartition(*key, offset)
        self.positions = positions

    def forget(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Forget the positions of partitions that were assigned again."""
        begun = set(keys)
        self.positions = {key: each for key, each in self.positions.items() if key not in begun}

    def position(self, client: OffsetClient, key: TopicPartitionKey, timeout_s: float) -> TopicPartition:
        """Return the offset after the last one handed out, negative for none; no wait for a `poll` that waits.

        Raises:
            SendTimeoutError: see `ClientGate.ask`.
        """
        unknown = TopicPartition(*key, OFFSET_INVALID)
        if key not in self._tracker.assigned_keys():  # if asked, the client refuses a later `seek` by another error
            return unknown

        def now() -> TopicPartition:
            try:
                return client.position([unknown])[0]
            except (RuntimeError, KafkaException):  # the client is closed, or the partition is unknown
                return unknown

        return self._gate.ask(now, lambda: self.positions.get(key, unknown), timeout_s)

    def store(self, client: OffsetClient, positions: Mapping[TopicPartitionKey, TopicPartition]) -> None:
        """Store these positions, or the lowest failing offset if that is lower."""
        if not self._stores:
            return
        while to_store := self._tracker.to_store({key: each.offset for key, each in positions.items()}):
            stores = [
                positions[key] if positions[key].offset == offset else TopicPartition(*key, offset)
                for key, offset in to_store.items()
            ]
            done = _store_each(client, stores)
            self._tracker.stored({TopicPartitionKey.of(each): each.offset for each in done})
            # another thread may have stored offsets meanwhile
            stored = [TopicPartitionKey.of(each) for each in done]
            positions = {key: positions[key] for key in stored}


def _store_each(client: OffsetClient, stores: list[TopicPartition]) -> list[TopicPartition]:
    """Store offsets; return those that were stored."""
    try:
        client.store_offsets(offsets=stores)
    except KafkaException:
        done = []
        for each in stores:
            try:
                client.store_offsets(offsets=[each])
                done.append(each)
            except KafkaException as error:  # the partition is being revoked now
                _LOG.debug("dropin.not-stored", extra={"partition": str(each), "error": str(error)})
        return done
    return stores
