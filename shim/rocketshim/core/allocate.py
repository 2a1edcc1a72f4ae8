"""Which queues of a topic belong to which client: RocketMQ's allocation strategies, to the bit.

Every client of a group computes its own share alone, from the same sorted queues and the same sorted client ids; a
strategy is a pure function of them, so shares fit together without a word between clients. Clients that see different
lists for a while compute shares that overlap or leave gaps. That costs fairness, never safety: a queue is consumed
only under its lease (group log).

Rules of this file (`AbstractAllocateMessageQueueStrategy#check`, unless said otherwise at the class):

* an empty own id, no queues or no clients: `ConfigError` (RocketMQ: IllegalArgumentException);
* an own id that is not among the clients: an empty share;
* n queues over k clients, i = own index. With n < k the surplus clients idle. Ids that occur twice count twice, and
  both get the share of the first.

`share_of` sorts the way `RebalanceImpl#rebalanceByTopic` does and calls the strategy. Java compares strings by UTF-16
units, which differs from Python's order above U+FFFF; ids and rooms are sorted Java's way.

A strategy of one's own is any object with `name` and `allocate`. All clients of a group must use the same one; RocketMQ
checks nothing here, the group log carries `name`, so that a mix can be found and said.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import md5
from typing import Protocol, runtime_checkable

from rocketshim.errors import ConfigError
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
    "MachineRoomResolver",
    "share_of",
]


@runtime_checkable
class AllocateMessageQueueStrategy(Protocol):
    """Share of one client among the queues of one topic.

    Thread-safety: called from one thread at a time per consumer; must not block and must not keep state.
    """

    @property
    def name(self) -> str:
        """Name by which members of a group compare their strategies (RocketMQ's `getName()`)."""
        ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of `client_id`.

        Args:
            group: logical name of the group; for messages only.
            client_id: own id.
            queues: all queues of one topic, sorted.
            client_ids: ids of all members of the group, sorted.

        Raises:
            ConfigError: an argument is empty.
        """
        ...


class MachineRoomResolver(Protocol):
    """Where brokers and clients stand. Source: `AllocateMachineRoomNearby.MachineRoomResolver`."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        """Room of the broker of a queue; never empty."""
        ...

    def consumer_deploy_in(self, client_id: str) -> str:
        """Room of a client; never empty."""
        ...


def share_of(
    strategy: AllocateMessageQueueStrategy,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """Sort as RocketMQ's rebalance does, then ask the strategy.

    Args:
        strategy: whom to ask.
        group: logical name of the group.
        client_id: own id.
        queues: the queues of one topic in any order; one that is named twice counts once.
        client_ids: ids of all members in any order; one that is named twice counts twice.

    Returns:
        The queues of `client_id`.

    Raises:
        ConfigError: an argument is empty, as the strategy says.

    Source: `RebalanceImpl#rebalanceByTopic`.
    """
    return strategy.allocate(group, client_id, sorted(set(queues)), sorted(client_ids, key=_java_order))


class AllocateMessageQueueAveragely:
    """Contiguous blocks, sizes differing by at most one; the default of RocketMQ. 10 over 4: 3, 3, 2, 2.

    Source: `AllocateMessageQueueAveragely`.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """`AVG`."""
        return "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The block of `client_id`; arguments and errors as in `AllocateMessageQueueStrategy`."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        index = client_ids.index(client_id)
        quotient, remainder = divmod(len(queues), len(client_ids))
        start = index * quotient + min(index, remainder)
        return list(queues[start : start + quotient + (index < remainder)])


class AllocateMessageQueueAveragelyByCircle:
    """Dealt out like cards: client i gets the queues i, i + k, i + 2k and so on.

    Source: `AllocateMessageQueueAveragelyByCircle`.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """`AVG_BY_CIRCLE`."""
        return "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Every k-th queue; arguments and errors as in `AllocateMessageQueueStrategy`."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class AllocateMessageQueueConsistentHash:
    """A ring of hashes: when a client comes or goes, only its own queues move.

    Each client stands on the ring `virtual_node_count` times, at the hashes of `<client id>-0`, `<client id>-1`, …; a
    queue belongs to the first node whose hash is not below the hash of the queue's text, past the end to the first of
    the ring. Of two nodes on one hash the later one counts.

    Args:
        virtual_node_count: nodes a client, 0 or more (0: nobody gets anything). Default 10.
        hash_function: text to a number; None (default) is RocketMQ's: the first four bytes of the MD5 of the UTF-8
            text, big-endian.

    Raises:
        ConfigError: a negative number of nodes.

    Source: `AllocateMessageQueueConsistentHash`, `ConsistentHashRouter`.
    """

    __slots__ = ("_hash", "_virtual_node_count")

    def __init__(self, virtual_node_count: int = 10, hash_function: Callable[[str], int] | None = None) -> None:
        if virtual_node_count < 0:
            raise ConfigError(f"virtual_node_count={virtual_node_count}: a client has 0 or more places on the ring")
        self._virtual_node_count = virtual_node_count
        self._hash = hash_function or _md5_hash

    @property
    def name(self) -> str:
        """`CONSISTENT_HASH`."""
        return "CONSISTENT_HASH"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues on the arcs of `client_id`; arguments and errors as in `AllocateMessageQueueStrategy`."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        ring = self._ring(client_ids)
        places = sorted(ring)
        if not places:
            return []
        return [
            queue
            for queue in queues
            if ring[places[bisect_left(places, self._hash(str(queue))) % len(places)]] == client_id
        ]

    def _ring(self, client_ids: Sequence[str]) -> dict[int, str]:
        ring: dict[int, str] = {}
        seen: set[str] = set()
        for client_id in client_ids:
            # An id that occurs again goes on counting its nodes where it stopped (getExistingReplicas).
            first = sum(1 for owner in ring.values() if owner == client_id) if client_id in seen else 0
            seen.add(client_id)
            for number in range(first, first + self._virtual_node_count):
                ring[self._hash(f"{client_id}-{number}")] = client_id
        return ring


class AllocateMessageQueueByConfig:
    """The queues named at construction, whatever there is and whoever asks; nothing is checked.

    Args:
        queues: what every client that carries this object consumes.

    Source: `AllocateMessageQueueByConfig`.
    """

    __slots__ = ("_queues",)

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = tuple(queues)

    @property
    def name(self) -> str:
        """`CONFIG`."""
        return "CONFIG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The configured queues; the arguments are not looked at."""
        del group, client_id, queues, client_ids
        return list(self._queues)


class AllocateMessageQueueByMachineRoom:
    """Queues of chosen rooms only, the room standing in the broker name before an `@`.

    Of p such queues client i gets the block of p ÷ k from i · (p ÷ k) on, and one of the remainder at the end of the
    list if i < p % k: the remainder is *not* next to the block (5 over 2: 0, 1, 4 and 2, 3).

    Args:
        rooms: rooms whose queues are consumed.

    Source: `AllocateMessageQueueByMachineRoom` (`consumeridcs`).
    """

    __slots__ = ("_rooms",)

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    @property
    def name(self) -> str:
        """`MACHINE_ROOM`."""
        return "MACHINE_ROOM"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Share of the chosen rooms' queues; arguments and errors as in `AllocateMessageQueueStrategy`."""
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
    """The queues of a room to the clients of that room; those of rooms without clients to everybody.

    Args:
        strategy: how the clients of one room, and all of them, share.
        resolver: where brokers and clients stand.

    Source: `AllocateMachineRoomNearby`.
    """

    __slots__ = ("_resolver", "_strategy")

    def __init__(self, strategy: AllocateMessageQueueStrategy, resolver: MachineRoomResolver) -> None:
        self._strategy = strategy
        self._resolver = resolver

    @property
    def name(self) -> str:
        """`MACHINE_ROOM_NEARBY-` and the name of the strategy inside."""
        return f"MACHINE_ROOM_NEARBY-{self._strategy.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Share of the own room's queues, then of those nobody is near to.

        Arguments as in `AllocateMessageQueueStrategy`.

        Raises:
            ConfigError: an argument is empty, or the resolver knows no room for a queue or a client.
        """
        if not _is_member(group, client_id, queues, client_ids):
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self._resolver.broker_deploy_in(queue)
            if not room:
                raise ConfigError(f"the machine-room resolver names no room for the broker of {queue}")
            queues_of.setdefault(room, []).append(queue)
        clients_of: dict[str, list[str]] = {}
        own_room = ""
        for client in client_ids:
            room = self._resolver.consumer_deploy_in(client)
            if not room:
                raise ConfigError(f"the machine-room resolver names no room for the client {client!r}")
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
    """Whether `client_id` takes part; empty arguments are errors."""
    if not client_id:
        raise ConfigError(f"group {group!r}: the own client id is empty; queues cannot be allocated to nobody")
    if not queues:
        raise ConfigError(f"group {group!r}: there are no queues to allocate")
    if not client_ids:
        raise ConfigError(f"group {group!r}: there are no clients to allocate queues to")
    return client_id in client_ids


def _room_before_at(broker_name: str) -> str | None:
    """The room of `room@broker`, None for any other form. As Java's split: empty pieces at the end do not count."""
    pieces = broker_name.split("@")
    while pieces and not pieces[-1]:
        pieces.pop()
    return pieces[0] if len(pieces) == 2 else None


def _md5_hash(text: str) -> int:
    """RocketMQ's hash: the first four bytes of the MD5 of the UTF-8 text, big-endian, 0 to 2³² - 1."""
    return int.from_bytes(md5(text.encode(errors="replace"), usedforsecurity=False).digest()[:4], "big")


def _java_order(text: str) -> bytes:
    """Sort key that orders texts as Java's `String#compareTo` does: by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
