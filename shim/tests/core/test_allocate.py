"""Facts about `rocketshim.core.allocate`.

The classes of RocketMQ 4.9.7 (`rocketmq-client`, Java 17) printed the literal tables for these inputs.
"""

from collections import Counter
from hashlib import md5
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    share_of,
)
from rocketshim.errors import ConfigError
from rocketshim_topics.message_queue import MessageQueue

AVG = AllocateMessageQueueAveragely()
CIRCLE = AllocateMessageQueueAveragelyByCircle()
HASH = AllocateMessageQueueConsistentHash()


class RoomBeforeDash:
    """Resolver of the tests: `A-b` is in room A."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        return queue.broker_name.partition("-")[0]

    def consumer_deploy_in(self, client_id: str) -> str:
        return client_id.partition("-")[0]


def queues(count: int, *brokers: str) -> list[MessageQueue]:
    return sorted(MessageQueue("orders", broker, i) for broker in brokers or ("kafka",) for i in range(count))


def clients(count: int) -> list[str]:
    return [f"10.0.0.1@7@{i}" for i in range(count)]


def ids(share: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in share]


def named(share: list[MessageQueue]) -> str:
    return " ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in share)


def shares(strategy: AllocateMessageQueueStrategy, all_queues: list[MessageQueue], client_ids: list[str]) -> list[str]:
    return [named(strategy.allocate("g", client, all_queues, client_ids)) for client in client_ids]


@pytest.mark.parametrize(
    ("strategy", "queue_count", "client_count", "expected"),
    [
        (AVG, 10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (AVG, 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (AVG, 3, 5, [[0], [1], [2], [], []]),
        (AVG, 1, 2, [[0], []]),
        (CIRCLE, 10, 4, [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
        (CIRCLE, 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (CIRCLE, 3, 5, [[0], [1], [2], [], []]),
        (HASH, 12, 4, [[4, 9, 10, 11], [5, 8], [1], [0, 2, 3, 6, 7]]),
        (
            HASH,
            24,
            3,
            [[0, 2, 3, 4, 9, 10, 11, 12, 13, 14, 15, 18, 23], [5, 6, 7, 8, 16, 20, 21], [1, 17, 19, 22]],
        ),
        (HASH, 6, 1, [[0, 1, 2, 3, 4, 5]]),
        (AllocateMessageQueueConsistentHash(1), 12, 4, [[9, 10], [], [5, 8], [0, 1, 2, 3, 4, 6, 7, 11]]),
        (AllocateMessageQueueConsistentHash(0), 12, 4, [[], [], [], []]),
    ],
)
def test_shares_equal_those_of_rocketmq(
    strategy: AllocateMessageQueueStrategy, queue_count: int, client_count: int, expected: list[list[int]]
) -> None:
    members = clients(client_count)
    assert [ids(strategy.allocate("g", m, queues(queue_count), members)) for m in members] == expected


def test_client_ids_are_hashed_as_utf_8() -> None:
    members = ["rechner-ä@1", "消费者@2"]
    assert [ids(HASH.allocate("g", m, queues(12), members)) for m in members] == [
        [1, 3, 4, 6, 7, 9],
        [0, 2, 5, 8, 10, 11],
    ]


def test_an_id_that_occurs_twice_counts_twice() -> None:
    members = ["c1", "c1", "c2"]
    assert shares(AVG, queues(6), members) == ["kafka:0 kafka:1", "kafka:0 kafka:1", "kafka:4 kafka:5"]
    assert ids(HASH.allocate("g", "c2", queues(24), members)) == [2, 5, 8, 9, 12, 13, 14, 15]
    assert len(HASH.allocate("g", "c1", queues(24), members)) == 16


def test_the_remainder_of_machine_rooms_is_not_next_to_the_block() -> None:
    strategy = AllocateMessageQueueByMachineRoom({"r1", "r2"})
    assert shares(strategy, queues(5, "r1@b"), ["c0", "c1"]) == ["r1@b:0 r1@b:1 r1@b:4", "r1@b:2 r1@b:3"]


def test_a_broker_name_has_a_room_if_javas_split_returns_two_pieces() -> None:
    brokers = ("r1@b", "r1@b@", "r1@", "@b", "r1@b@c", "r3@b", "kafka", "r2@x", "r1@@", "@", " r1@b")
    strategy = AllocateMessageQueueByMachineRoom({"r1", "r2", ""})
    assert shares(strategy, queues(2, *brokers), ["c0", "c1", "c2"]) == [
        "@b:0 @b:1 r2@x:0",
        "r1@b:0 r1@b:1 r2@x:1",
        "r1@b@:0 r1@b@:1",
    ]


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (
            AVG,
            [
                "A-b:0 A-b:1 A-b:2 C-b:0 C-b:1",
                "A-b:3 A-b:4 C-b:2",
                "B-b:0 B-b:1 B-b:2 B-b:3 B-b:4 C-b:3",
                "C-b:4",
            ],
        ),
        (
            CIRCLE,
            [
                "A-b:0 A-b:2 A-b:4 C-b:0 C-b:4",
                "A-b:1 A-b:3 C-b:1",
                "B-b:0 B-b:1 B-b:2 B-b:3 B-b:4 C-b:2",
                "C-b:3",
            ],
        ),
        (
            HASH,
            [
                "A-b:0 A-b:4",
                "A-b:1 A-b:2 A-b:3 C-b:2 C-b:3",
                "B-b:0 B-b:1 B-b:2 B-b:3 B-b:4 C-b:4",
                "C-b:0 C-b:1",
            ],
        ),
    ],
)
def test_nearby_gives_a_room_to_its_clients_and_rooms_without_clients_to_all(
    inside: AllocateMessageQueueStrategy, expected: list[str]
) -> None:
    strategy = AllocateMachineRoomNearby(inside, RoomBeforeDash())
    assert shares(strategy, queues(5, "A-b", "B-b", "C-b"), ["A-1", "A-2", "B-1", "D-1"]) == expected


def test_config_gives_its_list_to_every_client_and_checks_nothing() -> None:
    strategy = AllocateMessageQueueByConfig(queues(2))
    assert strategy.allocate("g", "", [], []) == queues(2)
    assert strategy.allocate("g", "anybody", queues(9), ["c0"]) == queues(2)


def test_strategies_have_rocketmqs_names() -> None:
    nearby = AllocateMachineRoomNearby(HASH, RoomBeforeDash())
    by_room, by_config = AllocateMessageQueueByMachineRoom(()), AllocateMessageQueueByConfig(())
    assert [s.name for s in (AVG, CIRCLE, HASH, by_config, by_room, nearby)] == [
        "AVG",
        "AVG_BY_CIRCLE",
        "CONSISTENT_HASH",
        "CONFIG",
        "MACHINE_ROOM",
        "MACHINE_ROOM_NEARBY-CONSISTENT_HASH",
    ]


CHECKED = [
    AVG,
    CIRCLE,
    HASH,
    AllocateMessageQueueByMachineRoom({"r1"}),
    AllocateMachineRoomNearby(AVG, RoomBeforeDash()),
]


@pytest.mark.parametrize("strategy", CHECKED, ids=lambda s: s.name)
def test_empty_arguments_are_config_errors_and_non_members_get_no_queue(strategy: AllocateMessageQueueStrategy) -> None:
    for own, all_queues, members in (("", queues(1), ["c"]), ("c", [], ["c"]), ("c", queues(1), [])):
        with pytest.raises(ConfigError):
            strategy.allocate("g", own, all_queues, members)
    assert strategy.allocate("g", "stranger", queues(1), ["c"]) == []


def test_a_negative_number_of_virtual_nodes_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="virtual_node_count=-1"):
        AllocateMessageQueueConsistentHash(-1)


@pytest.mark.parametrize(("broker", "client"), [("", "A-1"), ("A-b", "")])
def test_a_resolver_that_returns_no_room_is_a_config_error(broker: str, client: str) -> None:
    strategy = AllocateMachineRoomNearby(AVG, RoomBeforeDash())
    with pytest.raises(ConfigError, match="machine-room"):
        strategy.allocate("g", "A-1", queues(1, broker), ["A-1", client or "-1"])


def test_a_custom_hash_function_is_used() -> None:
    where = {"c0-0": 100, "c1-0": 200}
    strategy = AllocateMessageQueueConsistentHash(1, lambda text: where.get(text, 60 * int(text[-2] == "0") + 150))
    assert shares(strategy, queues(2), ["c0", "c1"]) == [
        "kafka:0",
        "kafka:1",
    ]  # 210: wraps around; 150: before c1


def test_share_of_sorts_queues_by_number_and_ids_as_java_does() -> None:
    backwards = [*reversed(queues(12)), MessageQueue("orders", "kafka", 3)]
    assert ids(share_of(AVG, "g", "b", backwards, ["c", "b", "a"])) == [4, 5, 6, 7]
    # Java's order, printed by Java: 1F600 (written as two units, the first D83D) before FFFD
    assert ids(share_of(AVG, "g", "\U0001f600", queues(2), ["�", "\U0001f600"])) == [0]


# --- properties ---------------------------------------------------------------------------------------------------

rooms = st.sampled_from(["A", "B", "C"])
client_lists = st.lists(st.builds("{}-{}".format, rooms, st.integers(0, 999)), min_size=1, max_size=9, unique=True)
queue_lists = st.lists(
    st.builds(MessageQueue, st.just("orders"), st.builds("{}-b".format, rooms), st.integers(0, 40)),
    min_size=1,
    max_size=40,
    unique=True,
)
partitioning = st.sampled_from([AVG, CIRCLE, HASH, AllocateMachineRoomNearby(AVG, RoomBeforeDash())])


@given(partitioning, queue_lists, client_lists)
def test_every_queue_goes_to_exactly_one_client(
    strategy: AllocateMessageQueueStrategy, all_queues: list[MessageQueue], members: list[str]
) -> None:
    given_out = Counter(q for m in members for q in share_of(strategy, "g", m, all_queues, members))
    assert given_out == Counter(all_queues)


@given(st.integers(1, 60), st.integers(1, 9))
def test_machine_rooms_share_out_only_the_queues_of_chosen_rooms(count: int, members: int) -> None:
    strategy = AllocateMessageQueueByMachineRoom({"r1"})
    names = [str(i) for i in range(members)]
    given_out = Counter(q for m in names for q in share_of(strategy, "g", m, queues(count, "r1@b", "r2@b"), names))
    assert given_out == Counter(queues(count, "r1@b"))


@given(partitioning, queue_lists, client_lists, st.randoms(use_true_random=False))
def test_shares_do_not_depend_on_the_order_of_the_lists(
    strategy: AllocateMessageQueueStrategy, all_queues: list[MessageQueue], members: list[str], random: Random
) -> None:
    own = members[0]
    expected = share_of(strategy, "g", own, all_queues, members)
    random.shuffle(all_queues)
    random.shuffle(members)
    assert share_of(strategy, "g", own, all_queues, members) == expected


@given(st.sampled_from([AVG, CIRCLE]), st.integers(1, 100), st.integers(1, 20))
def test_shares_of_the_average_strategies_differ_by_at_most_one(
    strategy: AllocateMessageQueueStrategy, count: int, members: int
) -> None:
    sizes = [len(strategy.allocate("g", m, queues(count), clients(members))) for m in clients(members)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(queue_lists, client_lists, st.text(min_size=1, max_size=8))
def test_consistent_hash_moves_queues_only_to_a_new_client(
    all_queues: list[MessageQueue], members: list[str], newcomer: str
) -> None:
    after = [*members, f"new-{newcomer}"]
    for member in members:
        before_share = share_of(HASH, "g", member, all_queues, members)
        assert set(share_of(HASH, "g", member, all_queues, after)) <= set(before_share)


@given(queue_lists, client_lists)
def test_consistent_hash_agrees_with_a_walk_around_the_ring(all_queues: list[MessageQueue], members: list[str]) -> None:
    def position(text: str) -> int:
        digest = md5(text.encode()).digest()  # noqa: S324 - RocketMQ's hash, not a secret
        return digest[0] << 24 | digest[1] << 16 | digest[2] << 8 | digest[3]

    nodes = [(position(f"{member}-{j}"), member) for member in members for j in range(10)]
    for queue in all_queues:
        # the nearest node upwards from the queue's hash, wrapping at 2^32
        distance, owner = min(((hash_ - position(str(queue))) % 2**32, member) for hash_, member in nodes)
        assert distance >= 0
        assert queue in share_of(HASH, "g", owner, all_queues, members)
