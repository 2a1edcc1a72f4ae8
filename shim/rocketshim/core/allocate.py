"""RocketMQ's allocation strategies, reproduced exactly: which queues of a topic belong to which client.

Every client of a group computes only its own share, from the same sorted queues and the same sorted client ids. A
strategy is a pure function of them, so the shares fit together without communication between the clients. Clients that
see different lists for a while compute shares that overlap or leave gaps. That costs fairness, never safety: a client
consumes a queue only under its lease (group log).

Rules of this file (`AbstractAllocateMessageQueueStrategy#check`, unless the class says otherwise):

* An empty own id, no queues or no clients: `ConfigError` (RocketMQ: IllegalArgumentException).
* An own id that is not among the clients: an empty share.
* n queues over k clients, i = own index. With n < k the surplus clients get no queue. An id that occurs twice counts
  twice, and both clients get the share of the first.

`share_of` sorts as `RebalanceImpl#rebalanceByTopic` does and calls the strategy. Java compares strings by UTF-16 units,
which differs from Python's order above U+FFFF; ids and rooms are sorted in Java's order.

A custom strategy is any object with `name` and `allocate`. All clients of a group must use the same strategy. RocketMQ
does not check this. The group log carries `name`, so that a mix can be detected and reported.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final, Protocol, runtime_checkable

from rocketshim.errors import ConfigError
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
    "Allocation",
    "MachineRoomResolver",
    "share_of",
]


@runtime_checkable
class AllocateMessageQueueStrategy(Protocol):
    """The share of one client in the queues of one topic.

    Thread-safety: called from one thread at a time per consumer; must not block and must not keep state.
    """

    @property
    def name(self) -> str:
        """The name by which members of a group compare their strategies (RocketMQ's `getName()`)."""
        ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of `client_id`.

        Args:
            group: logical name of the group; used only in error messages.
            client_id: own id.
            queues: all queues of one topic, sorted.
            client_ids: ids of all members of the group, sorted.

        Raises:
            ConfigError: an argument is empty.
        """
        ...


class MachineRoomResolver(Protocol):
    """The machine rooms of brokers and clients. Source: `AllocateMachineRoomNearby.MachineRoomResolver`."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        """Return the room of a queue's broker; never empty."""
        ...

    def consumer_deploy_in(self, client_id: str) -> str:
        """Return the room of a client; never empty."""
        ...


def share_of(
    strategy: AllocateMessageQueueStrategy,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """Sort as RocketMQ's rebalance does, then call the strategy; return the queues of `client_id`.

    A queue that is given twice counts once, a member twice. Source: `RebalanceImpl#rebalanceByTopic`.
    """
    return strategy.allocate(group, client_id, sorted(set(queues)), sorted(client_ids, key=_java_order))


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one member of a group needs to compute its share."""

    strategy: AllocateMessageQueueStrategy
    group: str
    client_id: str
    logical: Mapping[str, str]  # physical to logical name of topics where they differ (the group's retry topic)

    def share(
        self, topic: str, partitions: Iterable[TopicPartitionKey], members: Collection[str]
    ) -> set[TopicPartitionKey]:
        """Return those of a topic's partitions that this member reads. Raises what the strategy raises."""
        name = self.logical.get(topic, topic)
        keys = {MessageQueue(name, queue_id=key.partition): key for key in partitions if key.topic == topic}
        if not keys or self.client_id not in members:
            return set()
        share = share_of(self.strategy, self.group, self.client_id, keys, members)
        return {keys[queue] for queue in share if queue in keys}


class AllocateMessageQueueAveragely:
    """Contiguous blocks whose sizes differ by at most one; RocketMQ's default. 10 over 4: 3, 3, 2, 2.

    Source: `AllocateMessageQueueAveragely`.
    """

    __slots__ = ()
    name: Final = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the block of `client_id`; arguments and errors as in `AllocateMessageQueueStrategy`."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        index = client_ids.index(client_id)
        quotient, remainder = divmod(len(queues), len(client_ids))
        start = index * quotient + min(index, remainder)
        return list(queues[start : start + quotient + (index < remainder)])


class AllocateMessageQueueAveragelyByCircle:
    """Round-robin: client i gets the queues i, i + k, i + 2k and so on.

    Source: `AllocateMessageQueueAveragelyByCircle`.
    """

    __slots__ = ()
    name: Final = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every k-th queue; arguments and errors as in `AllocateMessageQueueStrategy`."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class AllocateMessageQueueConsistentHash:
    """A hash ring: when a client joins or leaves, only its own queues move.

    Each client has `virtual_node_count` nodes on the ring, at the hashes of `<client id>-0`, `<client id>-1`, … A queue
    belongs to the first node whose hash is not below the hash of the queue's text; after the last node it belongs to
    the first node of the ring. If two nodes have the same hash, the later one counts.

    Args:
        virtual_node_count: nodes per client, 0 or more (0: no client gets a queue). Default 10.
        hash_function: maps a text to a number; None (default) is RocketMQ's: the first four bytes of the MD5 of the
            UTF-8 text, big-endian.

    Raises:
        ConfigError: the number of nodes is negative.

    Source: `AllocateMessageQueueConsistentHash`, `ConsistentHashRouter`.
    """

    __slots__ = ("_hash", "_virtual_node_count")
    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_node_count: int = 10, hash_function: Callable[[str], int] | None = None) -> None:
        if virtual_node_count < 0:
            raise ConfigError(f"virtual_node_count={virtual_node_count}: a client needs 0 or more nodes on the ring")
        self._virtual_node_count = virtual_node_count
        self._hash = hash_function or _md5_hash

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues on the arcs of `client_id`; arguments and errors as in `AllocateMessageQueueStrategy`."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        ring = self._ring(client_ids)
        hashes = sorted(ring)
        if not hashes:
            return []
        return [
            queue
            for queue in queues
            if ring[hashes[bisect_left(hashes, self._hash(str(queue))) % len(hashes)]] == client_id
        ]

    def _ring(self, client_ids: Sequence[str]) -> dict[int, str]:
        ring: dict[int, str] = {}
        seen: set[str] = set()
        for client_id in client_ids:
            # The nodes of a repeated id are numbered after its existing ones (getExistingReplicas).
            first = sum(1 for owner in ring.values() if owner == client_id) if client_id in seen else 0
            seen.add(client_id)
            for number in range(first, first + self._virtual_node_count):
                ring[self._hash(f"{client_id}-{number}")] = client_id
        return ring


class AllocateMessageQueueByConfig:
    """The queues named at construction, for every client and every topic; nothing is checked.

    Args:
        queues: what every client that has this object consumes.

    Source: `AllocateMessageQueueByConfig`.
    """

    __slots__ = ("_queues",)
    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = tuple(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the configured queues; the arguments are ignored."""
        del group, client_id, queues, client_ids
        return list(self._queues)


class AllocateMessageQueueByMachineRoom:
    """Only the queues of chosen rooms; the broker name contains the room, before an `@`.

    Of p such queues client i gets the block of p ÷ k from i · (p ÷ k) on. It also gets one of the remainder at the end
    of the list if i < p % k. The remainder is *not* next to the block (5 over 2: 0, 1, 4 and 2, 3).

    Args:
        rooms: rooms whose queues are consumed.

    Source: `AllocateMessageQueueByMachineRoom` (`consumeridcs`).
    """

    __slots__ = ("_rooms",)
    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of the chosen rooms' queues; arguments and errors as in `AllocateMessageQueueStrategy`."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        chosen = [queue for queue in queues if _room_before_at(queue.broker_name) in self._rooms]
        index = client_ids.index(client_id)
        quotient, remainder = divmod(len(chosen), len(client_ids))
        share = chosen[quotient * index : quotient * (index + 1)]
        if index < remainder:
            share.append(chosen[quotient * len(client_ids) + index])
        return share


class AllocateMachineRoomNearby:
    """Queues of a room go to the clients of that room; queues of rooms without clients go to all clients.

    Args:
        strategy: how the clients of one room share its queues, and all clients the queues of rooms without clients.
        resolver: returns the rooms of brokers and clients.

    Source: `AllocateMachineRoomNearby`.
    """

    __slots__ = ("_resolver", "_strategy")

    def __init__(self, strategy: AllocateMessageQueueStrategy, resolver: MachineRoomResolver) -> None:
        self._strategy = strategy
        self._resolver = resolver

    @property
    def name(self) -> str:
        """`MACHINE_ROOM_NEARBY-` and the name of the inner strategy."""
        return f"MACHINE_ROOM_NEARBY-{self._strategy.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of the own room's queues, then of the queues of rooms without clients.

        Arguments as in `AllocateMessageQueueStrategy`.

        Raises:
            ConfigError: an argument is empty, or the resolver returned no room for a queue or a client.
        """
        if not _is_member(group, client_id, queues, client_ids):
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self._resolver.broker_deploy_in(queue)
            if not room:
                raise ConfigError(f"the machine-room resolver returned no room for the broker of {queue}")
            queues_of.setdefault(room, []).append(queue)
        clients_of: dict[str, list[str]] = {}
        own_room = ""
        for client in client_ids:
            room = self._resolver.consumer_deploy_in(client)
            if not room:
                raise ConfigError(f"the machine-room resolver returned no room for the client {client!r}")
            clients_of.setdefault(room, []).append(client)
            if client == client_id:
                own_room = room
        share: list[MessageQueue] = []
        if own_room in queues_of:
            share += self._strategy.allocate(group, client_id, queues_of[own_room], clients_of[own_room])
        for room in sorted(queues_of.keys() - clients_of.keys(), key=_java_order):
            share += self._strategy.allocate(group, client_id, queues_of[room], client_ids)
        return share


def _is_member(group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    """Return whether `client_id` takes part; raise an error for an empty argument."""
    if not client_id:
        raise ConfigError(f"group {group!r}: its own client id is empty; queues cannot be allocated without one")
    if not queues:
        raise ConfigError(f"group {group!r}: there are no queues to allocate")
    if not client_ids:
        raise ConfigError(f"group {group!r}: there are no clients to allocate queues to")
    return client_id in client_ids


def _room_before_at(broker_name: str) -> str | None:
    """Return the room of `room@broker`, None for other forms. As in Java's split, trailing empty pieces are ignored."""
    pieces = broker_name.split("@")
    while pieces and not pieces[-1]:
        pieces.pop()
    return pieces[0] if len(pieces) == 2 else None


def _md5_hash(text: str) -> int:
    """Return RocketMQ's hash: the first four bytes of the MD5 of the UTF-8 text, big-endian, 0 to 2³² - 1."""
    return int.from_bytes(md5(text.encode(errors="replace"), usedforsecurity=False).digest()[:4], "big")


def _java_order(text: str) -> bytes:
    """Return a sort key that orders texts as Java's `String#compareTo` does: by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
