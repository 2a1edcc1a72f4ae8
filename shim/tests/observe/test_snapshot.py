"""What a snapshot says of offsets, positions and times."""

from rocketshim.observe.snapshot import (
    GroupStanding,
    Offsets,
    PartitionStanding,
    Snapshot,
    groups_of,
    snapshot_of,
)
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

NAMES, LEVELS = TopicNames(""), DelayLevels.parse("1s 10s")
SCHEDULE, ORDERS = NAMES.schedule, "orders"
NOW_MS = 1_700_000_000_000


def key(topic: str, partition: int = 0) -> TopicPartitionKey:
    return TopicPartitionKey(topic, partition)


def group(name: str, *partitions: PartitionStanding) -> dict[str, GroupStanding]:
    return {name: GroupStanding(name, partitions=partitions)}


def snapshot(offsets: Offsets) -> Snapshot:
    return snapshot_of(NOW_MS, NAMES, LEVELS, offsets)


def test_a_queue_is_late_when_its_head_has_waited_longer_than_the_queue() -> None:
    found = snapshot(
        Offsets(
            topics={SCHEDULE: 2},
            standings=group(
                NAMES.worker_group,
                PartitionStanding(SCHEDULE, 0, 4, 0, 10, first_unread_ms=NOW_MS - 3_000),
                PartitionStanding(SCHEDULE, 1, 9, 0, 10, first_unread_ms=NOW_MS - 3_000),
            ),
        )
    )
    assert [(queue.waiting, queue.delay_ms, queue.late_ms(NOW_MS)) for queue in found.queues] == [
        (6, 1_000, 2_000),
        (1, 10_000, 0),
    ]
    assert (found.waiting, found.late_ms) == (7, 2_000)
    assert found.queues[1].due_ms == NOW_MS + 7_000


def test_a_group_is_behind_by_what_still_exists_and_has_lost_what_retention_took() -> None:
    found = snapshot(
        Offsets(
            topics={ORDERS: 2, NAMES.retry("pay"): 1},
            standings=group(
                "pay",
                PartitionStanding(ORDERS, 0, 2, 5, 12, first_unread_ms=NOW_MS - 60_000),
                PartitionStanding(ORDERS, 1, 3, 0, 3),
            ),
            groups=("pay",),
        )
    )
    (pay,) = found.groups
    assert (pay.behind, pay.lost, pay.first_unread_ms) == (7, 3, NOW_MS - 60_000)
    assert list(pay.topics()) == [ORDERS]


def test_a_group_of_many_topics_is_divided_by_topic_in_one_pass() -> None:
    class Counted(PartitionStanding):
        asked = 0

        def __getattribute__(self, name: str) -> object:
            Counted.asked += name == "topic"
            return super().__getattribute__(name)

    audit = GroupStanding(
        "audit", partitions=tuple(Counted(f"t{number % 100}", number // 100, 0, 0, 1) for number in range(500))
    )
    assert [len(each.partitions) for each in audit.topics().values()] == [5] * 100
    assert Counted.asked == 500


def test_dead_letters_count_by_what_was_ever_appended_and_what_is_kept() -> None:
    dead = NAMES.dead_letter("pay")
    found = snapshot(
        Offsets(
            topics={dead: 2, NAMES.parked: 1},
            bounds={key(dead): (90, 100), key(dead, 1): (0, 5), key(NAMES.parked): (1, 2)},
        )
    )
    assert [(each.group, each.kept, each.appended) for each in found.dead] == [("pay", 15, 105)]
    assert found.parked is not None
    assert (found.parked.kept, found.parked.appended) == (1, 2)


def test_a_group_whose_topic_name_is_encoded_is_found_by_its_known_name() -> None:
    visible = {NAMES.dead_letter("pay"): 1, NAMES.retry("bill"): 1, NAMES.dead_letter("Zahlung/1"): 1}
    found = groups_of(NAMES, visible, ("Zahlung/1",))
    assert sorted(found.values()) == ["Zahlung/1", "bill", "pay"]
    assert min(groups_of(NAMES, visible).values()).startswith("Zahlung-1-")


def test_only_the_topics_of_the_namespace_count() -> None:
    other = TopicNames("test")
    assert groups_of(NAMES, {other.dead_letter("pay"): 1}) == {}
    assert list(groups_of(other, {other.dead_letter("pay"): 1}).values()) == ["pay"]
