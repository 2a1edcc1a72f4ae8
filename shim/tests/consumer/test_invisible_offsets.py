"""Commits pass what no reader sees (transaction markers, aborted records), and never a message that is not finished."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from rocketshim.core.partition import FlowLimits
from rocketshim.testing import InMemoryKafka, VirtualClock

from .conftest import GROUP, Bench, cluster
from .orderly.test_loop import Stage

Make = Callable[..., Bench]
TOPIC = "orders"
PARTITIONS = 3
STEPS = ("plain", "commit", "abort", *["turn", "work"] * 4, "pass", "pass", "join", "leave", "pause")


class Sends:
    """Writes messages and transactions into `orders`; knows the offsets that a reader of committed messages sees."""

    def __init__(self, kafka: InMemoryKafka) -> None:
        self.kafka = kafka
        self.producer = kafka.producer({"transactional.id": "sends"})
        self.producer.init_transactions()

    def plain(self, count: int = 1, partition: int = 0) -> None:
        for _ in range(count):
            self.kafka.append(TOPIC, b"", partition=partition)

    def transaction(self, count: int = 1, partition: int = 0, *, is_committed: bool) -> None:
        self.producer.begin_transaction()
        for _ in range(count):
            self.producer.produce(TOPIC, b"", partition=partition)
        self.producer.flush(10)
        if is_committed:
            self.producer.commit_transaction(10)
        else:
            self.producer.abort_transaction(10)

    def seen(self, partition: int) -> list[int]:
        return [record.offset() or 0 for record in self.kafka.records(TOPIC, partition)]


def nothing(message: Any, context: Any) -> None:
    del message, context


@pytest.fixture
def sends(kafka: InMemoryKafka) -> Sends:
    return Sends(kafka)


def test_a_consumer_commits_to_the_end_behind_markers_and_aborted_records(
    kafka: InMemoryKafka, bench: Make, sends: Sends
) -> None:
    sends.transaction(10, is_committed=True)
    sends.transaction(10, is_committed=False)
    b = bench(nothing)
    b.run(20)
    b.commit_now()
    assert b.committed() == kafka.end_offsets(TOPIC)[0] == 22


def test_a_transaction_that_is_aborted_later_is_passed_with_the_next_commit(
    kafka: InMemoryKafka, bench: Make, sends: Sends
) -> None:
    sends.plain()
    b = bench(nothing)
    b.run()
    b.commit_now()
    before = len(kafka.commits(GROUP))
    sends.transaction(5, is_committed=False)
    b.turn()
    b.commit_now()
    b.commit_now()
    assert b.committed() == 7
    assert len([each for each in kafka.commits(GROUP)[before:] if each.topic == TOPIC]) == 1


def test_a_new_group_at_the_start_of_a_log_without_a_visible_message_commits_to_its_end(
    bench: Make, sends: Sends
) -> None:
    sends.transaction(3, is_committed=False)
    b = bench(nothing)
    b.turn()
    b.commit_now()
    assert b.committed() == 4


def test_a_message_in_progress_holds_what_is_behind_it(bench: Make, sends: Sends) -> None:
    sends.plain()
    b = bench(nothing)
    sends.transaction(3, is_committed=False)
    b.turn(3)
    b.commit_now()
    assert b.committed() == 0
    b.pool.work_all()
    b.commit_now()
    assert b.committed() == 5


def test_closing_passes_what_was_read_and_no_message_that_it_drops(bench: Make, sends: Sends) -> None:
    sends.transaction(1, is_committed=True)
    b = bench(nothing)
    b.turn(2)
    for chunk in b.pool.tasks:
        chunk.in_work = (next(chunk.todo),)

    def work_while_closing() -> None:  # a client may hand out messages after a pause: the closing loop drops them
        b.consumer.resume([TopicPartition(TOPIC, 0)])
        sends.plain(2)
        b.consumer.poll(0)
        b.consumer.poll(0)
        b.pool.work_all()

    b.pool.on_wait = work_while_closing
    b.loop.stop(1_000)
    b.loop.close()
    assert b.committed() == 2


def test_a_message_in_hand_is_not_passed_when_its_partition_is_revoked_within_the_same_fetch(
    kafka: InMemoryKafka, unopened: Make, sends: Sends
) -> None:
    kafka.add_partitions(TOPIC, 4)
    a, other = unopened(nothing).open(), unopened(nothing)
    a.run()
    consume, in_hand = a.consumer.consume, []

    def with_a_rebalance(count: int, timeout_s: float) -> list[Any]:
        if not other.consumers:
            other.loop.open()
            before = len(a.loop.mode.queues)
            fetched: list[Any] = consume(count, timeout_s)
            in_hand.append(before > len(a.loop.mode.queues))
            return fetched
        return consume(count, timeout_s)  # type: ignore[no-any-return]

    a.consumer.consume = with_a_rebalance
    for partition in range(4):
        sends.plain(1, partition)
    for _ in range(6):
        a.clock.advance(5_000)
        a.turn()
        other.turn()
    assert in_hand == [True]  # a partition was revoked while the message before it was in no queue
    assert {a.committed(TOPIC, number) for number in range(4)} == {0}
    for _ in range(6):
        a.run(1)
        other.run(1)
    a.commit_now()
    other.commit_now()
    assert {a.committed(TOPIC, number) for number in range(4)} == {1}


def test_an_orderly_consumer_commits_to_the_end_and_waits_for_a_message_in_progress() -> None:
    stage = Stage()
    stage.topic()
    sends = Sends(stage.kafka)
    sends.transaction(3, is_committed=True)
    sends.transaction(3, is_committed=False)
    stage.join("a")
    stage.turn()
    stage.wait(1_000)
    assert stage.committed() == 8
    sends.plain()
    sends.transaction(3, is_committed=False)
    stage.wait(1_000, work=False)
    assert stage.committed() == 8
    stage.wait(1_000)
    assert stage.committed() == 13
    sends.transaction(2, is_committed=True)
    stage.turn()
    stage.leave("a")
    assert stage.committed() == 16


class RandomRun:
    """Two members of a group, and everything that can happen to them; each commit is compared with what was handled."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - a repeatable one
        self.kafka = cluster(VirtualClock())
        self.kafka.add_partitions(TOPIC, PARTITIONS)
        self.sends = Sends(self.kafka)
        self.handled: set[tuple[int, int]] = set()
        self.members: list[Bench] = []
        self.checked = 0
        self.join()

    def listener(self, message: Any, context: Any) -> None:
        del context
        self.handled.add((message.queue_id, message.queue_offset))

    def join(self) -> None:
        limits = self.random.choice([FlowLimits(), FlowLimits(count=3), FlowLimits(span=4, resume_span=4)])
        member = Bench(
            self.kafka, self.listener, limits=limits, settings={"pull_batch_size": self.random.choice([1, 3, 32])}
        )
        member.loop.open()
        self.members.append(member)

    def step(self) -> None:
        partition, count = self.random.randrange(PARTITIONS), self.random.randint(1, 4)
        member = self.random.choice(self.members)
        match self.random.choice(
            ("plain", "commit", "abort", *["turn", "work"] * 4, "pass", "pass", "join", "leave", "pause")
        ):
            case "plain":
                self.sends.plain(count, partition)
            case "commit" | "abort" as end:
                self.sends.transaction(count, partition, is_committed=end == "commit")
            case "turn":
                member.turn(count)
            case "work":
                member.pool.work(min(count, len(member.pool.tasks)))
            case "pass":
                member.clock.advance(self.random.choice([100, 2_000, 6_000]))
            case "join" if len(self.members) < 3:
                self.join()
            case "leave" if len(self.members) > 1:
                self.members.remove(member)
                member.loop.stop(self.random.choice([0, 1_000]))
                member.pool.on_wait = self.random.choice([None, member.pool.work_all])
                member.loop.close()
            case "pause":
                member.loop.ask(lambda loop: loop.suspend() if not loop.reader.is_suspended else loop.reader.resume())
            case _:
                pass
        self.check()

    def check(self) -> None:
        commits = self.kafka.commits(GROUP)
        for commit in commits[self.checked :]:
            number = commit.partition
            if commit.topic == TOPIC:
                assert {(number, at) for at in self.sends.seen(number) if at < commit.next_offset} <= self.handled
        self.checked = len(commits)

    def settle(self) -> None:
        for member in self.members:
            member.loop.ask(lambda loop: loop.reader.resume())
        for _ in range(60):
            self.members[0].clock.advance(600)
            for member in self.members:
                member.run(1)
            self.check()


@pytest.mark.parametrize("seed", range(16))
def test_whatever_happens_commits_pass_nothing_unfinished_and_reach_the_end(seed: int) -> None:
    run = RandomRun(seed)
    for _ in range(120):
        run.step()
    run.settle()
    ends = run.kafka.end_offsets(TOPIC)
    assert {number: run.kafka.committed(GROUP)[TOPIC, number] for number in range(PARTITIONS)} == ends
    assert run.handled == {(number, offset) for number in range(PARTITIONS) for offset in run.sends.seen(number)}
