"""Look-ups of offsets, positions and append times, over the in-memory Kafka."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.errors import BrokerUnavailableError
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.sampler import Sampler
from rocketshim.observe.snapshot import Earlier, GroupStanding, PartitionStanding, Snapshot, snapshot_of
from rocketshim.observe.tables import levels_table, summary
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import LeaseEntry, RenewRecord, encode_group_record
from rocketshim_topics.hops import clock_probe
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

NAMES, LEVELS = TopicNames(""), DelayLevels.default()
HEADERS = [("REAL_TOPIC", b"orders")]


class Refusing:
    """The consumer of a group whose positions cannot be had."""

    def __init__(self, code: int) -> None:
        self.code = code

    def committed(self, *_: object, **__: object) -> list[TopicPartition]:
        raise KafkaException(KafkaError(self.code))

    def poll(self, *_: object) -> None:
        """Nothing is known of why."""

    def close(self) -> None:
        """Nothing is open."""


class World:
    """A cluster with a schedule topic, and a group that reads one topic. `refused`: groups with Kafka's error."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}
        self.clock = VirtualClock()
        self.kafka = InMemoryKafka(self.clock)
        self.kafka.create_topic(NAMES.schedule, 2)
        self.kafka.create_topic("orders", 2)
        self.kafka.create_topic(NAMES.retry("pay"), 1)
        made = self.kafka.clients()

        def consumer(settings: dict[str, Any]) -> Any:
            code = self.refused.get(settings["group.id"])
            return made.consumer(settings) if code is None else Refusing(code)

        self.clients = replace(made, consumer=consumer)
        self.lookup = OffsetLookup("memory:1", NAMES, clients=self.clients, clock=self.clock)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        consumer = self.kafka.consumer({"bootstrap.servers": "memory:1", "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
        consumer.close()

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.clock.wall_ms(), NAMES, LEVELS, self.lookup.look_up())


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.lookup.close()


def test_an_installation_without_messages_is_calm(world: World) -> None:
    found = world.snapshot()
    assert (found.waiting, found.late_ms, found.dead, found.parked, found.unknown) == (0, 0, (), None, ())
    assert [(group.group, group.behind) for group in found.groups] == [("pay", 0)]


def test_a_partition_whose_leader_is_away_is_named_and_missing_in_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit("pay", "orders", 0, 0)
    away = (TopicPartitionKey(NAMES.schedule, 1), TopicPartitionKey("orders", 0))
    reader = world.lookup._reader
    bounds_of = reader.bounds_of

    def answered(keys: Any) -> Any:
        return {key: bounds for key, bounds in bounds_of(keys).items() if key not in away}

    monkeypatch.setattr(reader, "bounds_of", answered)
    found = world.snapshot()
    assert [queue.partition for queue in found.queues] == [0]
    assert found.groups[0].partitions == ()
    assert found.unknown == away


def test_a_head_that_no_worker_delivers_is_late(world: World) -> None:
    world.kafka.append(NAMES.schedule, b"a", partition=0, headers=HEADERS)
    world.clock.advance(3_000)
    found = world.snapshot()
    assert (found.waiting, found.late_ms) == (1, 2_000)


def test_commands_of_named_timers_that_no_worker_reads_are_late_and_no_delay_queue(world: World) -> None:
    world.kafka.create_topic(NAMES.timers, 8)
    assert {each.late_ms(world.clock.wall_ms()) for each in world.snapshot().timers} == {0}
    world.kafka.append(NAMES.timers, b"a", partition=0, headers=HEADERS)
    world.clock.advance(5_000)
    found = world.snapshot()
    assert [each.standing.topic for each in found.queues] == [NAMES.schedule] * 2
    assert [each.waiting for each in found.timers if each.waiting] == [1]
    assert found.late_ms >= 5_000
    assert levels_table(found).rows[-1] == ("timer log", 1, found.late_ms / 1e3, 0)


def test_a_group_that_moves_on_before_retention_deletes_has_lost_nothing_in_a_slow_round(
    world: World,
) -> None:
    for _ in range(9):
        world.kafka.append("orders", b"x", partition=0)
    world.commit("pay", "orders", 0, 2)
    requests = 0

    def between() -> None:
        nonlocal requests
        requests += 1
        if requests == 2:  # its position has been read
            world.commit("pay", "orders", 0, 6)
            world.kafka.truncate("orders", before_offset=5)

    found = snapshot_of(world.clock.wall_ms(), NAMES, LEVELS, world.lookup.look_up(between))
    assert [(group.behind, group.lost) for group in found.groups] == [(3, 0)]
    world.kafka.truncate("orders", before_offset=8)
    assert [(group.behind, group.lost) for group in world.snapshot().groups] == [(1, 2)]


def test_a_clock_that_is_behind_the_stamp_of_a_waiting_record_is_known_to_be_wrong(world: World) -> None:
    tomorrow_ms = world.clock.wall_ms() + 86_400_000
    world.kafka.append(NAMES.schedule, b"a", partition=0, headers=HEADERS, timestamp_ms=tomorrow_ms)
    assert world.snapshot().clock_behind_ms == 86_400_000
    assert "86400 s OR MORE BEHIND" in summary(world.snapshot())
    world.clock.advance(86_400_000 - 60_000)
    assert world.snapshot().clock_behind_ms == 0


def test_a_probe_is_never_late(world: World) -> None:
    world.kafka.append(NAMES.schedule, None, partition=0, headers=clock_probe(NAMES, partition=0).headers)
    world.clock.advance(3_000)
    assert world.snapshot().late_ms == 0
    world.kafka.append(NAMES.schedule, b"a", partition=0, headers=HEADERS)
    world.clock.advance(1_500)
    assert world.snapshot().late_ms == 500


class Describing:
    """An admin client that describes the worker's group and the group `pay`, and refuses every other one."""

    def describe_consumer_groups(self, groups: list[str], **_: object) -> "dict[str, Future[Any]]":
        answers: dict[str, Future[Any]] = {group: Future() for group in groups}
        for group, answer in answers.items():
            owned = [TopicPartition("orders", 1), TopicPartition(NAMES.schedule, 0)]
            member = SimpleNamespace(
                client_id="shop", host="/10.0.0.1", assignment=SimpleNamespace(topic_partitions=owned)
            )
            known = SimpleNamespace(state=SimpleNamespace(name="STABLE"), members=[member], authorized_operations=None)
            if group in {"pay", NAMES.worker_group}:
                answer.set_result(known)
            else:
                answer.set_exception(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
        return answers

    def poll(self, _: float) -> int:
        return 0


def test_one_look_knows_members_and_subscriptions_of_groups_as_far_as_the_cluster_tells(world: World) -> None:
    world.kafka.create_topic(NAMES.retry("ship"), 1)
    for number in (0, 1):
        world.commit("pay", "orders", number, 0)
    clients = replace(world.clients, admin=lambda _: Describing())
    lookup = OffsetLookup("memory:1", NAMES, clients=clients, clock=world.clock)
    found = snapshot_of(0, NAMES, LEVELS, lookup.look_up())
    lookup.close()
    paying, shipping = found.groups
    assert (paying.state, paying.members) == ("STABLE", ("shop@10.0.0.1",))
    assert [(each.topic, each.member) for each in paying.partitions] == [("orders", None), ("orders", "shop@10.0.0.1")]
    assert (shipping.state, shipping.members) == ("UNKNOWN", None)
    assert found.worker is not None
    assert found.worker.members == ("shop@10.0.0.1",)
    assert [queue.standing.member for queue in found.queues] == ["shop@10.0.0.1", None]
    assert world.snapshot().worker is None, "a Kafka in memory does not tell"


def test_nothing_is_kept_of_groups_that_are_gone(world: World) -> None:
    for number in range(20):
        world.kafka.create_topic(NAMES.retry(f"old{number}"), 1)
    assert len(world.snapshot().groups) == 21
    for number in range(20):
        world.kafka.delete_topic(NAMES.retry(f"old{number}"))
    assert [group.group for group in world.snapshot().groups] == ["pay"]
    assert list(world.lookup._read_by) == ["pay"]


def test_no_clients_of_groups_are_kept(world: World) -> None:
    """Each has threads and file handles, two for each broker; a process may often have no more than 1,024 of these."""
    for number in range(200):
        world.kafka.create_topic(NAMES.retry(f"g{number}"), 1)
        world.commit(f"g{number}", NAMES.retry(f"g{number}"), 0, 0)
    for _ in range(2):
        standings = world.lookup.look_up().standings
        assert sum(bool(standings[f"g{number}"].partitions) for number in range(200)) == 200
        assert len(world.kafka._broker.consumers) == 1


def test_the_oldest_unread_record_follows_the_position(world: World) -> None:
    for _ in range(3):
        world.kafka.append("orders", b"a", partition=0)
        world.clock.advance(1_000)
    world.commit("pay", "orders", 0, 1)
    started_ms = 1_700_000_000_000
    assert world.snapshot().groups[0].first_unread_ms == started_ms + 1_000
    world.commit("pay", "orders", 0, 2)
    assert world.snapshot().groups[0].first_unread_ms == started_ms + 2_000
    world.commit("pay", "orders", 0, 3)
    assert world.snapshot().groups[0].first_unread_ms is None


def test_two_groups_at_different_positions_of_one_partition_have_their_own_times(world: World) -> None:
    world.kafka.create_topic(NAMES.dead_letter("bill"), 1)
    for _ in range(3):
        world.kafka.append("orders", b"a", partition=0)
        world.clock.advance(1_000)
    world.commit("pay", "orders", 0, 1)
    world.commit("bill", "orders", 0, 2)
    times = {group.group: group.first_unread_ms for group in world.snapshot().groups}
    assert times == {"bill": 1_700_000_002_000, "pay": 1_700_000_001_000}


def test_a_record_is_read_once_while_its_position_stands_still(world: World) -> None:
    world.kafka.append("orders", b"a", partition=0)
    world.commit("pay", "orders", 0, 0)
    first = world.snapshot().groups[0].first_unread_ms
    world.kafka.deny("orders", read=True)  # a second read would fail
    assert world.snapshot().groups[0].first_unread_ms == first


def test_what_died_or_was_parked_within_a_day_is_counted(world: World) -> None:
    dead = NAMES.dead_letter("pay")
    for topic in (dead, NAMES.parked):
        world.kafka.create_topic(topic, 2)
        world.kafka.append(topic, b"old", partition=0)
    world.clock.advance(86_400_001)
    for partition in (0, 1, 1):
        world.kafka.append(dead, b"new", partition=partition)
    found = world.snapshot()
    assert [(each.recent, each.kept) for each in found.dead] == [(3, 4)]
    assert found.parked is not None
    assert (found.parked.recent, found.parked.kept) == (0, 1)


def test_a_topic_that_a_group_begins_to_read_is_found_within_ten_rounds(world: World) -> None:
    world.commit("pay", "orders", 0, 0)
    world.snapshot()
    world.kafka.create_topic("bills", 1)
    world.commit("pay", "bills", 0, 0)
    found = [[each.topic for each in world.snapshot().groups[0].partitions] for _ in range(10)]
    assert found[0] == ["orders"]
    assert found[-1] == ["bills", "orders"]


def test_the_first_round_asks_a_group_for_no_topic_that_belongs_to_another_group(world: World) -> None:
    for group in ("bill", "ship"):
        world.kafka.create_topic(NAMES.retry(group), 1)
        world.kafka.create_topic(NAMES.dead_letter(group), 1)
        world.commit(group, NAMES.retry(group), 0, 0)
    world.commit("bill", "orders", 0, 0)
    world.commit("ship", NAMES.dead_letter("bill"), 0, 0)
    asked: list[tuple[str, str]] = []
    consumer = world.clients.consumer

    def noting(settings: dict[str, Any]) -> Any:
        made: Any = consumer(settings)
        ask = made.committed

        def committed(partitions: list[TopicPartition], **kwargs: Any) -> Any:
            asked.extend((settings["group.id"], each.topic) for each in partitions)
            return ask(partitions, **kwargs)

        made.committed = committed
        return made

    world.clients = replace(world.clients, consumer=noting)
    for known, has_both in (((), False), (("ship",), True)):
        asked.clear()
        with closing(OffsetLookup("memory:1", NAMES, groups=known, clients=world.clients, clock=world.clock)) as lookup:
            standings = lookup.look_up().standings
            assert [each.topic for each in standings["bill"].partitions] == ["orders", NAMES.retry("bill")]
            assert ("bill", NAMES.retry("ship")) not in asked
            read = {each.topic for each in standings["ship"].partitions}
            assert read == {NAMES.retry("ship")} | ({NAMES.dead_letter("bill")} if has_both else set())
            for _ in range(10):
                standings = lookup.look_up().standings
            assert {each.topic for each in standings["ship"].partitions} == {
                NAMES.retry("ship"), NAMES.dead_letter("bill"),
            }  # fmt: skip


def test_a_cluster_that_does_not_answer_is_an_error(world: World) -> None:
    world.kafka.stop_broker()
    with pytest.raises(BrokerUnavailableError):
        world.snapshot()


def test_one_group_that_may_not_be_described_is_left_out_for_ten_rounds(world: World) -> None:
    world.kafka.create_topic(NAMES.retry("ship"), 1)
    world.refused["ship"] = KafkaError._TIMED_OUT
    assert [group.group for group in world.snapshot().groups] == ["pay"]
    world.refused.clear()
    shown = ["ship" in [group.group for group in world.snapshot().groups] for _ in range(11)]
    assert shown == [False] * 10 + [True]


def test_groups_that_may_not_be_described_do_not_hide_the_others(world: World) -> None:
    for group in ("bill", "ship", "tell"):
        world.kafka.create_topic(NAMES.retry(group), 1)
        world.refused[group] = KafkaError.GROUP_AUTHORIZATION_FAILED
    assert [group.group for group in world.snapshot().groups] == ["pay"]


def test_a_topic_that_may_not_be_read_hides_only_its_own_times(world: World) -> None:
    world.kafka.create_topic("bills", 1)
    for topic, partition in (("orders", 0), ("orders", 1), ("bills", 0)):
        world.kafka.append(topic, b"a", partition=partition)
        world.commit("pay", topic, partition, 0)
    world.kafka.deny("orders", write=False)
    for _ in range(2):
        rows = world.snapshot().groups[0].partitions
        found = {(each.topic, each.behind, each.first_unread_ms is None) for each in rows}
        assert found == {("orders", 1, True), ("bills", 1, False)}
    world.kafka.allow("orders")
    for _ in range(10):
        rows = world.snapshot().groups[0].partitions
    assert [each.first_unread_ms is None for each in rows] == [False] * 3


def test_two_groups_that_do_not_answer_in_one_round_are_an_error(world: World) -> None:
    world.kafka.create_topic(NAMES.retry("ship"), 1)
    world.refused.update(pay=KafkaError._TIMED_OUT, ship=KafkaError._TIMED_OUT)
    with pytest.raises(BrokerUnavailableError):
        world.lookup.look_up()
    assert world.snapshot().groups == ()


def test_several_groups_that_do_not_answer_are_left_out_one_after_another_by_the_look_ups_of_a_sampler(
    world: World,
) -> None:
    for group in ("bill", "ship", "tell"):
        world.kafka.create_topic(NAMES.retry(group), 1)
        world.refused[group] = KafkaError._TIMED_OUT
    lookup = partial(OffsetLookup, "memory:1", NAMES, clients=world.clients, clock=world.clock, left_out={})
    with Sampler(lookup, NAMES, LEVELS, every_s=0.01, clock=world.clock) as sampler, sampler.watch() as watch:
        snapshot = watch.wait_newer(None, 60.0)
        while snapshot is not None and snapshot.error is not None:
            snapshot = watch.wait_newer(snapshot, 60.0)
    assert snapshot is not None
    assert [group.group for group in snapshot.groups] == ["pay"]


def test_nothing_is_committed_and_no_group_is_joined(world: World) -> None:
    world.kafka.append("orders", b"a", partition=0)
    world.commit("pay", "orders", 0, 0)
    before = len(world.kafka.commits("pay"))
    world.snapshot()
    assert len(world.kafka.commits("pay")) == before
    assert world.kafka.members("pay") == []
    assert world.kafka.members(NAMES.worker_group) == []


def delayed(world: World, target: str, partition: int = 0) -> None:
    world.kafka.append(NAMES.schedule, b"a", partition=partition, headers=[("REAL_TOPIC", target.encode())])


def test_a_target_that_does_not_exist_is_known_before_its_messages_are_due(world: World) -> None:
    delayed(world, "orders")
    assert world.snapshot().missing == ()
    delayed(world, "invoices", 1)
    delayed(world, "invoices")
    (missing,) = world.snapshot().missing
    assert (missing.topic, missing.count) == ("invoices", 2)
    assert missing.due_ms is not None
    world.kafka.create_topic("invoices", 1)
    assert world.snapshot().missing == ()


def test_a_target_is_looked_for_at_the_head_and_the_end_of_a_long_queue(world: World) -> None:
    for target in ["first", *["orders"] * 20, "last"]:
        delayed(world, target)
    assert [each.topic for each in world.snapshot().missing] == ["first", "last"]


def test_a_target_of_a_named_timer_is_looked_for_also_while_no_worker_has_read_its_command(world: World) -> None:
    world.kafka.create_topic(NAMES.timers, 1)
    for topic, command, more in (
        ("orders", "SET", [("DELAY_MS", b"3600000")]),
        ("invoices", "SET", [("DELAY_MS", b"3600000")]),
        ("reports", "SET-IF-ABSENT", [("TIMER_REPEAT", b"0 9 * * 1")]),
        ("reminders", "CANCEL", []),
    ):
        named = [("REAL_TOPIC", topic.encode()), ("TIMER", b"t"), ("TIMER_DO", command.encode()), *more]
        world.kafka.append(NAMES.timers, b"a", partition=0, headers=named)
    in_an_hour_ms = world.clock.wall_ms() + 3_600_000
    found = [(each.topic, each.count, each.due_ms) for each in world.snapshot().missing]
    assert found == [("invoices", 1, in_an_hour_ms), ("reports", 1, None)]


def test_a_target_that_no_topic_can_have_is_not_missing(world: World) -> None:
    delayed(world, "no topic")
    world.kafka.append(NAMES.schedule, b"a", partition=0)
    assert world.snapshot().missing == ()


def test_new_dead_letters_are_counted_with_their_most_frequent_cause(world: World) -> None:
    dead = NAMES.dead_letter("pay")
    world.kafka.create_topic(dead, 2)
    for number, (partition, name) in enumerate(((0, b"Key"), (0, b"Key"), (0, b"Value"), (1, b"Value"), (1, b"Value"))):
        headers = [("FAIL_CLASS", name), ("FAIL_TEXT", b"order %d" % number)]
        world.kafka.append(dead, b"x", partition=partition, headers=headers)
    (topic,) = world.snapshot().dead
    assert (topic.new, topic.recent, topic.cause) == (5, 5, "Value: order #")
    world.clock.advance(900_001)
    (topic,) = world.snapshot().dead
    assert (topic.new, topic.recent, topic.cause) == (0, 5, "")


def renewed(world: World, token: int, *counts: tuple[int, int], owner: str = "c") -> None:
    entry = LeaseEntry(topic="orders", queue_id=1, token=token, confirmed_offset=0, reconsume_counts=counts)
    if counts:
        entry = entry.model_copy(update={"failing_ms": 2_000, "cause": "KeyError: 'x'", "trace": "in ship"})
    record = RenewRecord(client_id=owner, incarnation="i", seq=1, lease_ms=60_000, base=0, queues=(entry,))
    world.kafka.append(NAMES.group_log("pay"), encode_group_record(record))


def test_a_message_that_blocks_its_queue_is_known_from_its_owners_report(world: World) -> None:
    world.kafka.create_topic(NAMES.group_log("pay"), 1)
    assert world.snapshot().failing == ()
    renewed(world, 5, (3, 1), (9, 1))
    renewed(world, 5, (3, 80), (9, 2))
    renewed(world, 4, (3, 2))  # a former owner, late
    found = world.snapshot()
    assert [(each.group, each.record, each.attempts) for each in found.failing] == [("pay", "orders/1/3", 80)]
    assert (found.failing[0].since_ms, found.failing[0].cause) == (found.at_ms - 2_000, "KeyError: 'x'")
    assert (found.failing[0].owner, found.failing[0].token) == ("c", 5)
    assert found.failing[0].trace == "in ship"
    assert found.log_members == {"pay": 1}
    renewed(world, 6, owner="d")
    found = world.snapshot()
    assert (found.failing, found.log_members) == ((), {"pay": 2})


def test_the_cause_and_trace_of_a_message_that_the_group_has_passed_are_not_those_of_the_next(world: World) -> None:
    world.kafka.create_topic(NAMES.group_log("pay"), 1)
    renewed(world, 5, (3, 80), (9, 4))
    world.commit("pay", "orders", 1, 4)
    (found,) = world.snapshot().failing
    assert (found.offset, found.attempts, found.since_ms, found.cause, found.trace) == (9, 4, None, None, None)


def test_a_message_that_the_group_has_passed_or_whose_owner_is_gone_blocks_nothing(world: World) -> None:
    world.kafka.create_topic(NAMES.group_log("pay"), 1)
    world.kafka.append(NAMES.group_log("pay"), b"not a record")
    renewed(world, 5, (3, 80))
    assert len(world.snapshot().failing) == 1
    world.commit("pay", "orders", 1, 4)
    again = OffsetLookup("memory:1", NAMES, clients=world.clients, clock=world.clock)
    assert again.look_up().failing == ()
    again.close()
    world.clock.advance(121_000)
    found = world.snapshot()
    assert (found.failing, found.log_members) == ((), {})


def test_the_sampler_knows_how_far_behind_a_group_was_before() -> None:
    clock = VirtualClock()
    with Sampler(lambda: None, NAMES, LEVELS, clock=clock) as sampler:  # type: ignore[arg-type, return-value]
        behind = [GroupStanding("pay", partitions=(PartitionStanding("orders", 0, 0, 0, end),)) for end in (3, 9)]
        first = sampler._with_trend(Snapshot(at_ms=0, groups=(behind[0],)))
        later = sampler._with_trend(Snapshot(at_ms=5_000, groups=(behind[1],)))
        last = sampler._with_trend(Snapshot(at_ms=90_000, groups=(behind[1],)))
    assert (first.earlier, later.earlier, last.earlier) == (None, Earlier(0, {"pay": 3}), None)
