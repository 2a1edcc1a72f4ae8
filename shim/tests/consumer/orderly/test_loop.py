"""The orderly loop, turned by hand on the in-memory Kafka: order, locks, hand-over, counts, dead letters."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.dispatch import Result
from rocketshim.consumer.listeners import adapt
from rocketshim.consumer.orderly import OrderlyDispatch, OrderlyMode, OrderlyRunner
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.clock import now_ms_of
from rocketshim.core.listener_answers import ConsumeOrderlyContext, ConsumeOrderlyStatus, DeadLetter, RetryLater
from rocketshim.core.orderly_queue import OrderlyQueue
from rocketshim.core.partition import FlowLimits
from rocketshim.core.process_deaths import CarefulStart, Handling
from rocketshim.core.start_position import (
    CommitMetadata,
    ConsumeFromWhere,
    StartRules,
    decode_metadata,
    encode_metadata,
)
from rocketshim.core.subscriptions import Subscription, Subscriptions
from rocketshim.locks.lease import Lease, Ownership, QueueLockSettings
from rocketshim.locks.log_thread import connect_group_log
from rocketshim.metrics import metrics_text
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import ClaimRecord, LeaseEntry, ReleaseRecord, RenewRecord, decode_group_record
from rocketshim_topics.layout import Layout

from ..conftest import HandPool

GROUP = "g"
NAMES = TopicNames()
LEVELS = DelayLevels.parse("1s 2s 3s 4s 5s")
SHORT = QueueLockSettings(lock_lease_ms=6_000, lock_hold_ms=3_000, lock_renew_ms=1_000)
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK


class TopicIds:
    """`TopicId` over the in-memory Kafka, whose topics have no ids: an answer is as old as the question before."""

    def __init__(self, kafka: InMemoryKafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._answer: str | None = None
        self._seen: list[Any] = []  # kept, so that no later topic gets the same id

    def now(self) -> str | None:
        topic = self._kafka._broker.topics.get(self._topic)
        self._seen.append(topic)
        self._answer = None if topic is None else str(id(topic))
        return self._answer

    def latest(self) -> str | None:
        before = self._answer
        self.now()
        return before


class Member:
    """One orderly member of group `g` on `orders`; its group-log thread is turned with it."""

    def __init__(
        self,
        kafka: InMemoryKafka,
        name: str,
        listener: Callable[..., Any],
        *,
        limit: int = -1,
        batch_count: int = 1,
        by_key: bool = False,
        span: int | None = None,
        count: int = 1_000,
        fetch_count: int = 1_000,
        matches: Callable[[Any], bool] | None = None,
        where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET,
        locks: QueueLockSettings = SHORT,
        care: CarefulStart | None = None,
    ) -> None:
        clock = kafka.clock
        assert isinstance(clock, VirtualClock)
        self.kafka, self.clock = kafka, clock
        subscriptions = {"orders": Subscription("orders", adapt(listener), matches)}
        self.log = connect_group_log(
            PushConsumerSettings.make(
                bootstrap="memory:1",
                group=GROUP,
                client_id=name,
                lock_lease_ms=locks.lock_lease_ms,
                lock_hold_ms=locks.lock_hold_ms,
                lock_renew_ms=locks.lock_renew_ms,
            ),
            topics=lambda: ["orders", NAMES.retry(GROUP)],
            clients=kafka.clients(),
            clock=clock,
        )
        self.log._reader.topic_id = TopicIds(kafka, NAMES.group_log(GROUP))  # type: ignore[assignment]
        self.log.start = lambda *_: self.log.open()  # type: ignore[method-assign]
        config = {
            "group.id": GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
        }
        self.consumers: list[Any] = []

        def make_consumer(on_commit: Any) -> Any:
            self.consumers.append(kafka.consumer({**config, "on_commit": on_commit}))
            return self.consumers[-1]

        settings = PushConsumerSettings.make(
            bootstrap="memory:1",
            group=GROUP,
            max_reconsume_times=limit,
            order="key" if by_key else "queue",
            consume_message_batch_max_size=batch_count,
            pull_batch_size=fetch_count,
            delay_levels=LEVELS,
        )
        self.runner = OrderlyRunner(settings, subscriptions.get, clock)
        self.pool = HandPool(self.runner, clock)  # type: ignore[arg-type]
        send_back = SendBack(lambda: kafka.producer({"enable.idempotence": True}), settings, 1, clock)
        source = Subscriptions(NAMES, NAMES.retry(GROUP))
        source.add(Subscription("orders", adapt(print)))
        reader = PartitionReader(
            make_consumer=make_consumer,
            make_lookup_client=lambda: kafka.consumer({"group.id": "g"}),
            rules=StartRules(NAMES.retry(GROUP), where, timestamp_ms=0, digest="d", subscription="orders"),
            ownership=Ownership(now_ms_of(clock), needs_lease=True, is_fenced=True),
            now_ms=now_ms_of(clock),
            care=care,
        )
        pool: Any = self.pool
        dispatch = OrderlyDispatch(pool, send_back, settings, clock, reader)
        limits = FlowLimits(count, span=span, resume_span=span)
        mode = OrderlyMode(reader, dispatch, settings, limits, self.log)
        self.loop = PollLoop(mode, source)
        self.counts = self.loop.dispatch.orderly_counts
        self.mode: Any = self.loop.mode
        self.lookups: Any = self.loop.reader.lookups
        self.loop.open()

    def turn(self, *, work: bool = True) -> None:
        self.log.turn(0)
        self.loop.turn()
        if work:
            self.pool.work_all()

    @property
    def held(self) -> list[int]:
        return sorted(queue.key.partition for queue in self.loop.mode.queues if queue.key.topic == "orders")


class Stage:
    """Members of one group and what their listeners saw."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kafka = InMemoryKafka(self.clock)
        self.kafka.create_topics(Layout(NAMES, LEVELS).shared())
        self.kafka.create_topics(Layout(NAMES, LEVELS).for_group(GROUP, with_log=True))
        self.members: dict[str, Member] = {}
        self.seen: list[Any] = []
        self.contexts: list[ConsumeOrderlyContext] = []
        self.answer: Callable[[Any], Any] = lambda _: None

    def topic(self, partitions: int = 1) -> None:
        self.kafka.create_topic("orders", partitions)

    def fill(self, count: int, partition: int = 0, **options: Any) -> None:
        for number in range(count):  # a message that is tested for truth would not be seen
            headers = [("n", str(number).encode())]
            self.kafka.append("orders", b"" if number % 2 else None, partition=partition, headers=headers, **options)

    def listener(self, message: Any, context: ConsumeOrderlyContext) -> Any:
        self.seen.append(message)
        self.contexts.append(context)
        return self.answer(message)

    def join(self, name: str, listener: Callable[..., Any] | None = None, **options: Any) -> Member:
        self.members[name] = Member(self.kafka, name, listener or self.listener, **options)
        return self.members[name]

    def leave(self, name: str) -> Member:
        member = self.members.pop(name)
        member.loop.stop(1_000)
        member.loop.close()
        for _ in range(3):
            member.log.turn(0)
        return member

    def turn(self, times: int = 10, *names: str, work: bool = True) -> None:
        for _ in range(times):
            for name in names or tuple(self.members):
                self.members[name].turn(work=work)

    def wait(self, ms: int, *names: str, work: bool = True) -> None:
        for _ in range(ms // 100):
            self.clock.advance(100)
            self.turn(2, *names, work=work)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return [(message.queue_id, message.queue_offset) for message in self.seen]

    def committed(self, partition: int = 0) -> int | None:
        return self.kafka.committed(GROUP).get(("orders", partition))

    def dead(self) -> list[Any]:
        return self.kafka.records(NAMES.dead_letter(GROUP))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def times(view: Any) -> int:
    count: int = view.reconsume_times
    return count


# --- order and counts -------------------------------------------------------------------------------------------


def test_messages_come_in_order_under_a_token_and_are_committed_with_it(stage: Stage) -> None:
    stage.topic()
    stage.fill(5)
    stage.join("a")
    stage.turn()
    assert stage.offsets == [(0, number) for number in range(5)]
    assert len({context.fencing_token for context in stage.contexts}) == 1
    stage.wait(5_100)
    assert stage.committed() == 5
    found = decode_metadata(stage.kafka.commits(GROUP)[-1].metadata)
    assert found is not None
    assert found.token == stage.contexts[0].fencing_token


def test_a_crash_repeats_at_most_one_second_of_progress(stage: Stage) -> None:
    stage.topic()
    a = stage.join("a", locks=QueueLockSettings())  # it renews after 20 s
    stage.turn()
    before_ms: list[int] = []
    for _ in range(49):  # the commit interval of the settings is 5 s
        before_ms.append(len(stage.seen))
        stage.fill(1)
        stage.wait(100)
    handled = len(stage.seen)
    assert handled == 49
    stage.members.pop("a")
    stage.kafka.kill(a.consumers[0])
    stage.join("b", locks=QueueLockSettings())
    stage.fill(1)
    stage.wait(70_000)
    after = [offset for _, offset in stage.offsets[handled:]]
    assert after == list(range(after[0], handled + 1))
    assert after[0] >= before_ms[-10], "what was handled a second before the crash is not repeated"


def test_a_start_that_a_rebalance_refuses_is_tried_again_as_soon_as_the_group_may_be_stable(stage: Stage) -> None:
    stage.topic()
    stage.fill(3)
    a = stage.join("a", locks=QueueLockSettings())
    taken, refused = a.consumers[0].commit, 0

    def commit(**options: Any) -> Any:
        nonlocal refused
        if options["asynchronous"] or refused == 3:
            return taken(**options)
        refused += 1
        stage.clock.advance(1_500)  # the coordinator answers late while a hundred members join
        raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))

    a.consumers[0].commit = commit
    stage.turn()
    stage.wait(1_000)
    assert refused == 3
    assert len(stage.seen) == 3


def test_nothing_is_handed_out_before_the_start_is_committed_under_the_token(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)
    stage.join("a")
    stage.turn(20, work=False)
    assert stage.committed() == 0
    assert any(decode_metadata(commit.metadata).token for commit in stage.kafka.commits(GROUP))  # type: ignore[union-attr]


def test_a_failing_message_holds_its_queue_and_no_other(stage: Stage) -> None:
    stage.topic(2)
    stage.fill(3, 0)
    stage.fill(3, 1)
    stage.answer = lambda m: SUSPEND if m.queue_id == 0 and m.queue_offset == 1 and times(m) < 2 else None
    stage.join("a")
    stage.turn()
    assert stage.offsets.count((1, 2)) == 1
    assert (0, 2) not in stage.offsets
    stage.wait(2_500)
    assert [offset for queue, offset in stage.offsets if queue == 0] == [0, 1, 1, 1, 2]
    assert [times(m) for m in stage.seen if m.queue_id == 0] == [0, 0, 1, 2, 0]


def test_the_listener_sets_the_wait(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)

    def fail(message: Any) -> Any:
        if times(message) == 0:
            raise RetryLater("3s")
        stage.contexts[-1].suspend_current_queue_time_ms = 200
        return SUSPEND if times(message) == 1 else None

    stage.answer = fail
    stage.join("a")
    stage.turn()
    stage.wait(2_900)
    assert len(stage.seen) == 1
    stage.wait(200)
    assert len(stage.seen) == 2
    stage.wait(300)
    assert len(stage.seen) == 3


def test_at_the_limit_a_message_is_dead_and_its_queue_goes_on_when_that_is_stored(stage: Stage) -> None:
    stage.topic()
    stage.fill(2)

    def fail(message: Any) -> None:
        if message.queue_offset == 0:
            raise OSError("no")

    stage.answer = fail
    stage.join("a", limit=1)
    stage.turn()
    stage.kafka.hold_reports(NAMES.dead_letter(GROUP))
    stage.wait(1_500)
    assert stage.offsets == [(0, 0), (0, 0)]
    assert len(stage.dead()) == 1
    stage.kafka.release()
    stage.turn()
    assert stage.offsets[-1] == (0, 1)
    headers = dict(stage.dead()[0].headers())
    assert headers["RECONSUME_TIMES"] == b"2"
    assert headers["FAIL_CLASS"] == b"OSError"
    stage.wait(5_000)
    assert stage.committed() == 2


def test_a_requested_dead_letter_is_sent_immediately(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)

    def fail(_: Any) -> None:
        raise DeadLetter("hopeless")

    stage.answer = fail
    stage.join("a")
    stage.turn()
    assert dict(stage.dead()[0].headers())["FAIL_TEXT"] == b"hopeless"


def test_manual_commits_cover_what_is_open_and_rollback_takes_it_back(stage: Stage) -> None:
    stage.topic()
    stage.fill(4)
    answers = iter([None, ROLLBACK, None, COMMIT, None, None])

    def manual(message: Any) -> Any:
        del message
        stage.contexts[-1].auto_commit = False
        return next(answers)

    stage.answer = manual
    stage.join("a")
    stage.turn()
    assert stage.offsets == [(0, 0), (0, 1)]
    stage.wait(1_200)
    assert stage.offsets[2:] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [times(m) for m in stage.seen] == [0] * 6
    stage.wait(5_000)
    assert stage.committed() == 2


def commit_each(count: int, stage: Stage) -> Callable[[Any], Any]:
    """Return a listener that commits after each `count` messages."""

    def manual(message: Any) -> Any:
        del message
        stage.contexts[-1].auto_commit = False
        return COMMIT if len(stage.seen) % count == 0 else None

    return manual


def test_a_queue_that_waits_for_a_commit_is_read_up_to_its_limit(stage: Stage) -> None:
    stage.topic()
    stage.fill(100)
    stage.answer = commit_each(7, stage)
    stage.join("a", count=10, fetch_count=20)
    stage.wait(3_000)
    assert stage.offsets == [(0, number) for number in range(100)]
    assert stage.committed() == 98


def test_a_queue_that_is_full_before_its_listener_commits_is_an_alarm(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.topic()
    stage.fill(100)
    stage.answer = commit_each(30, stage)
    member = stage.join("a", count=10, fetch_count=20)
    stage.wait(5_000)
    assert len(stage.seen) == 20
    assert {queue.paused for queue in member.loop.state.queues if queue.topic == "orders"} == {"FLOW"}
    (alarm,) = [record for record in caplog.records if getattr(record, "event", "") == "consumer.commit-missing"]
    assert (alarm.__dict__["partition"], alarm.__dict__["messages"]) == ("orders/0", 20)


def test_what_the_filter_skips_is_finished_and_leaves_open_what_is_open(stage: Stage) -> None:
    stage.topic()
    stage.fill(6)

    def manual(message: Any) -> Any:
        del message
        stage.contexts[-1].auto_commit = False

    stage.answer = manual
    stage.join("a", matches=lambda headers: dict(headers)["n"] in {b"1", b"4"})
    stage.turn()
    stage.wait(5_000)
    assert stage.offsets == [(0, 1), (0, 4)]
    assert stage.committed() == 1


def test_a_record_the_filter_cannot_read_fails_at_its_turn(stage: Stage) -> None:
    stage.topic()
    stage.fill(3)

    def matches(headers: Any) -> bool:
        if dict(headers)["n"] == b"1":
            raise ValueError("unreadable")
        return True

    stage.join("a", limit=0, matches=matches)
    stage.turn()
    assert stage.offsets == [(0, 0), (0, 2)]
    assert dict(stage.dead()[0].headers())["FAIL_TEXT"] == b"unreadable"


def test_batches_are_lists_in_order(stage: Stage) -> None:
    stage.topic()
    stage.fill(5)
    batches: list[list[int]] = []
    stage.join("a", lambda batch: batches.append([m.queue_offset for m in batch]), batch_count=2)
    stage.turn()
    assert batches == [[0, 1], [2, 3], [4]]


def test_by_key_a_failing_key_holds_only_itself(stage: Stage) -> None:
    stage.topic()
    for number in range(8):
        stage.kafka.append("orders", b"%d" % number, key=b"bad" if number in {2, 5} else b"good")
    stage.answer = lambda m: SUSPEND if m.key == b"bad" and times(m) == 0 and m.queue_offset == 2 else None
    stage.join("a", by_key=True, span=1_000)
    stage.turn()
    assert [offset for _, offset in stage.offsets if offset not in {2, 5}] == [0, 1, 3, 4, 6, 7]
    assert (0, 5) not in stage.offsets
    stage.wait(5_500)
    assert [offset for _, offset in stage.offsets][-2:] == [2, 5]
    assert stage.committed() == 8


@pytest.mark.parametrize("limit", [-1, 3])
def test_by_key_a_failing_message_fails_the_other_keys_of_its_batch_only_once(stage: Stage, limit: int) -> None:
    stage.topic()
    for number in range(9):
        stage.kafka.append("orders", b"%d" % number, key=b"%d" % number)
    done: list[int] = []

    def handle(batch: list[Any]) -> None:
        offsets = [message.queue_offset for message in batch]
        if 1 in offsets:
            raise ValueError
        done.extend(offsets)

    stage.join("a", handle, by_key=True, span=1_000, batch_count=3, limit=limit)
    stage.wait(10_000)
    assert sorted(done) == [0, *range(2, 9)]
    assert [letter.value() for letter in stage.dead()] == ([] if limit < 0 else [b"1"])


def test_by_key_the_others_go_on_only_as_far_ahead_as_the_span(stage: Stage) -> None:
    stage.topic()
    for number in range(30):
        stage.kafka.append("orders", b"%d" % number, key=b"bad" if number == 0 else b"%d" % number)
    stage.answer = lambda m: SUSPEND if m.key == b"bad" else None
    member = stage.join("a", by_key=True, span=10, fetch_count=1)
    stage.wait(5_000)
    reached = max(offset for _, offset in stage.offsets)
    assert 10 <= reached <= 12
    assert stage.committed() == 0
    (shown,) = [queue for queue in member.loop.state.queues if queue.topic == "orders"]
    assert shown.paused == "FLOW"
    stage.answer = lambda _: None
    stage.wait(10_000)
    assert sorted({offset for _, offset in stage.offsets}) == list(range(30))
    assert stage.committed() == 30


@pytest.mark.parametrize("took_ms", [0, 200])
def test_by_key_a_full_queue_is_read_again_when_only_failing_messages_below_its_limit_are_left(
    stage: Stage, took_ms: int
) -> None:
    """Also if a failing call takes a fifth of the wait: then one of them is always due."""
    stage.topic()
    for number in range(100):
        stage.kafka.append("orders", b"%d" % number, key=b"%d" % number)

    def fail_slowly(message: Any) -> Any:
        if message.queue_offset >= 7:
            return None
        stage.clock.advance(took_ms)
        return SUSPEND

    stage.answer = fail_slowly
    stage.join("a", by_key=True, span=1_000, count=10, fetch_count=20)
    stage.wait(15_000)
    assert {offset for _, offset in stage.offsets} == set(range(100))


def test_however_many_keys_fail_the_others_go_on_and_the_log_is_told_once_a_second(stage: Stage) -> None:
    stage.topic()
    for number in range(200):
        stage.kafka.append("orders", b"%d" % number, key=b"%d" % number)
    stage.answer = lambda m: SUSPEND if m.queue_offset < 100 else None
    member = stage.join("a", by_key=True, span=1_000)
    told: list[int | None] = []
    tell = member.log.progress

    def progress(lease: Any, next_offset: int | None, counts: Any, trouble: Any) -> None:
        told.append(next_offset)
        tell(lease, next_offset, counts, trouble)

    member.log.progress = progress  # type: ignore[assignment]
    stage.turn(20)
    assert {offset for _, offset in stage.offsets} == set(range(200)), "nobody waits for those that fail"
    stage.wait(4_000)
    assert 2 <= len(told) <= 6
    stage.answer = lambda _: None
    stage.wait(10_000)
    assert stage.committed() == 200


def entries(stage: Stage) -> list[LeaseEntry]:
    """Return what the renewals in the group's log say of `orders/0`, the newest last."""
    records = [decode_group_record(each.value()) for each in stage.kafka.records(NAMES.group_log(GROUP))]
    queues = [each for record in records if isinstance(record, RenewRecord) for each in record.queues]
    return [each for each in queues if (each.topic, each.queue_id) == ("orders", 0)]


def test_the_log_has_the_stack_trace_of_a_blocking_message_in_frames_of_user_code(stage: Stage) -> None:
    stage.topic()
    stage.fill(2)

    def ship(_: Any) -> None:
        raise ValueError("card 4111")

    stage.answer = ship
    stage.join("a")
    stage.turn()
    stage.wait(10_000)
    found = entries(stage)[-1]
    assert (found.reconsume_counts[0][0], found.cause) == (0, "ValueError: card 4111")
    lines = (found.trace or "").split("\n")
    assert lines[-3:] == [lines[-3], '    raise ValueError("card 4111")', "ValueError"]
    assert lines[-3].endswith("in ship")
    assert "rocketshim/consumer" not in (found.trace or "")
    stage.answer = lambda _: None
    stage.wait(10_000)
    found = entries(stage)[-1]
    assert (found.next_offset, found.cause, found.trace) == (2, None, None)


@pytest.mark.parametrize("batch_count", [1, 2])
def test_the_log_has_the_call_that_does_not_return_and_no_more_records_than_without(
    stage: Stage, batch_count: int
) -> None:
    stage.topic()
    stage.fill(6)
    calls: list[tuple[int | None, int | None]] = []
    records: list[int] = []

    def hang(message: Any) -> None:
        if message[0].queue_offset == 2 if batch_count > 1 else message.queue_offset == 2:
            before = len(entries(stage))
            stage.wait(20_000, work=False)
            calls.extend((each.call_offset, each.call_ms) for each in entries(stage)[before:])
            records.append(len(entries(stage)) - before)

    stage.answer = hang
    stage.join("a", batch_count=batch_count)
    stage.turn()
    known = [each for each in calls if each[0] is not None]
    assert {offset for offset, _ in known} == {2}
    lengths = [length_ms or 0 for _, length_ms in known]
    assert lengths == sorted(lengths)
    assert lengths[0] >= 5_000
    assert len(known) < len(calls), "a short call is not reported"
    assert records[0] <= 20_000 // SHORT.lock_renew_ms + 1
    stage.wait(10_000)
    assert (entries(stage)[-1].next_offset, entries(stage)[-1].call_offset) == (6, None)


def test_a_redriven_message_comes_from_the_retry_topic_in_order_too(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)

    def fail(_: Any) -> None:
        raise DeadLetter("x")

    stage.answer = fail
    stage.join("a")
    stage.turn()
    letter = stage.dead()[0]
    stage.answer = lambda _: None
    stage.kafka.append(NAMES.retry(GROUP), letter.value(), key=letter.key(), headers=letter.headers())
    stage.turn()
    assert stage.seen[-1].topic == "orders"
    assert stage.seen[-1].reconsume_times == 1


def test_a_redriven_message_that_this_member_has_no_listener_for_is_sent_on(stage: Stage) -> None:
    stage.topic()
    stage.join("a")
    stage.turn()
    headers = [("RETRY_TOPIC", b"bills"), ("RECONSUME_TIMES", b"0"), ("CONSUMER_GROUP", GROUP.encode())]
    stage.kafka.append(NAMES.retry(GROUP), b"x", headers=headers)
    stage.turn(3)
    (waits,) = stage.kafka.records(NAMES.schedule)
    assert dict(waits.headers() or [])["RECONSUME_TIMES"] == b"0"
    assert stage.dead() == []
    stage.wait(1_000)
    assert stage.kafka.committed(GROUP)[NAMES.retry(GROUP), 0] == 1


def test_a_message_that_blocks_its_queue_forever_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.topic()
    stage.fill(1)

    def fail(_: Any) -> None:
        raise ValueError("never")

    stage.answer = fail
    member = stage.join("a")
    stage.turn()
    stage.wait(17_000)
    (said,) = [record for record in caplog.records if getattr(record, "event", None) == "consumer.message-stuck"]
    assert said.__dict__["record"] == "orders/0/0"
    assert member.counts.stuck >= 1


def test_what_holds_up_a_queue_is_a_metric_while_it_does(stage: Stage) -> None:
    stage.topic(2)
    stage.fill(2)
    stage.answer = lambda _: SUSPEND
    member = stage.join("a")
    stage.turn()
    stage.wait(3_000)
    failing, calm = (q for q in sorted(member.loop.state.queues, key=lambda q: q.queue_id) if q.topic == "orders")
    assert failing.reconsume_times in {2, 3}
    assert 2_000 <= failing.failing_ms <= 3_000
    assert (calm.reconsume_times, calm.failing_ms) == (0, 0)
    metric = 'rocketshim_consumer_failing_reconsume_times{group="g",queue_id="0",topic="orders"}'
    assert f"{metric} {failing.reconsume_times}" in metrics_text(member.loop.state.metrics())
    stage.answer = lambda _: None
    stage.wait(3_000)
    assert {(queue.reconsume_times, queue.failing_ms) for queue in member.loop.state.queues} == {(0, 0)}


def test_a_listener_call_that_does_not_return_is_visible_also_after_its_queue_was_taken_away(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)
    a = stage.join("a")
    shown: list[tuple[int, str]] = []

    def show(ms: int) -> None:
        stage.wait(ms, work=False)
        (queue,) = [queue for queue in a.loop.state.queues if queue.topic == "orders"]
        assert a.loop.state.oldest_in_work_ms == queue.oldest_in_work_ms
        shown.append((queue.oldest_in_work_ms // 1_000, queue.paused))

    def hang(message: Any) -> None:
        del message
        show(5_100)
        a.loop.reader._on_lost(a.consumers[0], [TopicPartition("orders", 0)])
        show(2_000)
        a.loop.reader._on_assign(a.consumers[0], [TopicPartition("orders", 0)])
        show(2_000)

    stage.answer = hang
    stage.turn()
    assert shown == [(5, ""), (7, "REVOKED"), (9, "LOCK")]
    stage.answer = lambda _: None
    show(3_000)
    assert shown[-1] == (0, "")


def test_a_member_that_waits_long_for_a_lock_logs_it(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.topic()
    stage.fill(1)
    a = stage.join("a")
    stage.turn(10, work=False)
    b = stage.join("b")
    stage.kafka.evict(a.consumers[0])
    stage.wait(250_000, work=False)
    assert not b.held, "a listener of the other member has not returned"
    logged = [record for record in caplog.records if getattr(record, "event", "") == "consumer.lock-awaited"]
    assert [record.__dict__["partitions"] for record in logged] == [["orders/0"]] * len(logged)
    assert [record.__dict__["waited_s"] for record in logged] == list(range(5, 250, 12)), "5 s, then every two leases"
    assert {record.__dict__["owners"][0].split()[0] for record in logged} == {"a"}
    a.pool.work_all()
    stage.wait(1_000)
    assert a.held or b.held


# --- locks --------------------------------------------------------------------------------------------------------


def test_a_second_member_takes_over_where_the_first_has_stopped(stage: Stage) -> None:
    stage.topic(2)
    stage.fill(3, 0)
    stage.fill(3, 1)
    stage.join("a")
    stage.turn()
    stage.join("b")
    stage.wait(3_000)
    assert stage.members["a"].held != stage.members["b"].held
    assert sorted(stage.members["a"].held + stage.members["b"].held) == [0, 1]
    assert len(stage.seen) == 6, "nothing comes twice"
    stage.fill(2, 0)
    stage.fill(2, 1)
    stage.turn()
    assert [offset for queue, offset in stage.offsets if queue == 0] == [0, 1, 2, 3, 4]
    assert [offset for queue, offset in stage.offsets if queue == 1] == [0, 1, 2, 3, 4]


def test_counts_survive_a_hand_over(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)
    stage.answer = lambda _: SUSPEND
    stage.join("a", limit=5)
    stage.turn()
    stage.wait(2_100)
    before = times(stage.seen[-1])
    assert before == 2
    stage.leave("a")
    stage.join("b", limit=5)
    stage.wait(3_000)
    assert times(stage.seen[-1]) > before
    counts = [times(m) for m in stage.seen]
    assert counts == sorted(counts), "no count begins again"


def test_counts_survive_a_death_after_a_renewal(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)
    stage.answer = lambda _: SUSPEND
    a = stage.join("a", limit=50)
    stage.turn()
    stage.wait(4_000)
    before = times(stage.seen[-1])
    stage.kafka.kill(a.consumers[0])
    stage.members.pop("a")
    stage.join("b", limit=50)
    stage.wait(60_000)
    assert before - 1 <= times(stage.seen[before + 1])


def test_an_owner_that_was_frozen_hands_out_and_commits_nothing_more(stage: Stage) -> None:
    stage.topic()
    stage.fill(10)
    a = stage.join("a")
    stage.turn(10, work=False)
    assert len(a.pool.tasks) == 1
    stage.clock.advance(4_000)  # longer than it may believe
    a.pool.work_all()
    assert not stage.seen, "the run that was handed out is not begun"
    stage.wait(15_000)
    assert len(stage.offsets) == 10
    assert a.counts.lost == 2, "orders and the retry topic"
    assert a.counts.starts >= 2


@pytest.mark.parametrize("before_ms", [1_000, 7_000])
def test_a_call_that_does_not_return_is_in_the_log_also_while_its_queue_is_given_away(
    stage: Stage, before_ms: int
) -> None:
    stage.topic()
    stage.fill(2)
    a = stage.join("a")
    calls: list[tuple[int | None, int]] = []

    def hang(message: Any) -> None:
        if message.queue_offset == 1:
            stage.wait(before_ms, work=False)
            a.loop.reader._on_lost(a.consumers[0], [TopicPartition("orders", 0)])
            before = len(entries(stage))
            stage.wait(20_000, work=False)
            calls.extend((each.call_offset, each.call_ms or 0) for each in entries(stage)[before:])

    stage.answer = hang
    stage.turn()
    assert calls[-1][0] == 1
    assert calls[-1][1] >= 15_000


def test_a_listener_that_outlasts_its_lease_commits_nothing_and_is_waited_for(stage: Stage) -> None:
    stage.topic()
    stage.fill(2)
    a = stage.join("a")
    stage.turn(10, work=False)
    first = stage.seen

    def freeze(message: Any) -> None:
        del message
        if len(first) == 1:
            stage.clock.advance(4_000)

    stage.answer = freeze
    a.pool.work_all()
    assert stage.offsets == [(0, 0)], "the second call is not made"
    stage.turn(2)
    assert stage.committed() == 0
    stage.wait(10_000)
    assert stage.offsets == [(0, 0), (0, 0), (0, 1)]


def test_a_listener_that_outlasts_the_drain_keeps_the_lock_and_not_the_group_waiting(stage: Stage) -> None:
    stage.topic(1)
    stage.fill(3)
    a = stage.join("a")
    stage.turn(10, work=False)
    assert a.held == [0]
    b = stage.join("b")
    task = a.pool.tasks.popleft()
    stage.kafka.evict(a.consumers[0])
    stage.wait(2_000)
    holder, waiter = (a, b) if a.held else (b, a)
    assert not holder.held or holder is a
    assert not b.held, "the lock is still a's: its listener has not returned"
    a.pool.tasks.append(task)
    a.pool.work_all()
    stage.wait(12_000)
    assert b.held == [0] or a.held == [0]
    assert waiter in {a, b}
    assert sorted(set(stage.offsets)) == [(0, 0), (0, 1), (0, 2)]


def test_a_position_reset_while_nobody_was_there_counts(stage: Stage) -> None:
    stage.topic()
    stage.fill(5)
    stage.join("a")
    stage.turn()
    stage.leave("a")
    assert stage.committed() == 5
    tool = stage.kafka.consumer({"group.id": GROUP})
    tool.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    stage.join("b")
    stage.wait(3_000)
    assert stage.offsets[5:] == [(0, 2), (0, 3), (0, 4)]


def up(message: Any) -> None:
    del message


def down(message: Any) -> None:
    raise OSError(f"the database is down for {message}")


def fail_and_hand_over(stage: Stage) -> None:
    """Let "b" fail with its first message and leave, and "c" take over without failing."""
    stage.answer = down
    stage.join("b")
    stage.wait(1_000)
    stage.leave("b")
    stage.answer = up
    stage.join("c")
    stage.wait(3_000)


def test_a_position_reset_counts_also_after_an_owner_that_has_finished_nothing(stage: Stage) -> None:
    stage.topic()
    stage.fill(5)
    stage.join("a")
    stage.turn()
    stage.leave("a")
    tool = stage.kafka.consumer({"group.id": GROUP})
    tool.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    fail_and_hand_over(stage)
    assert stage.offsets[5:] == [(0, 2), (0, 2), (0, 3), (0, 4)]


def test_a_topic_created_again_is_read_from_its_beginning_also_after_an_owner_that_has_finished_nothing(
    stage: Stage,
) -> None:
    stage.topic()
    stage.fill(5)
    stage.join("a")
    stage.turn()
    stage.leave("a")
    stage.kafka.delete_topic("orders")
    stage.topic()
    stage.fill(7)
    fail_and_hand_over(stage)
    assert stage.offsets[5:] == [(0, 0), *((0, number) for number in range(7))]


def test_failed_attempts_of_a_topic_that_was_deleted_do_not_count_in_the_new_one(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)
    stage.answer = down
    stage.join("a")
    stage.wait(2_000)
    assert stage.seen[-1].reconsume_times > 0
    stage.leave("a")
    stage.kafka.delete_topic("orders")
    stage.topic()
    stage.fill(1)
    calls = len(stage.seen)
    stage.join("b")
    stage.wait(1_000)
    assert stage.seen[calls].reconsume_times == 0


def test_a_log_created_again_stops_the_queue_and_goes_on_with_a_higher_token(stage: Stage) -> None:
    stage.topic()
    stage.fill(2)
    a = stage.join("a")
    stage.turn()
    stage.wait(5_100)
    before = stage.contexts[-1].fencing_token
    stage.kafka.delete_topic(NAMES.group_log(GROUP))
    stage.kafka.create_topics(Layout(NAMES, LEVELS).for_group(GROUP, with_log=True))
    stage.wait(3_000)
    assert not a.held
    stage.fill(2)
    stage.wait(15_000)
    assert stage.offsets == [(0, 0), (0, 1), (0, 2), (0, 3)]
    after = stage.contexts[-1].fencing_token
    assert before is not None
    assert after is not None
    assert after > before


def test_a_topic_cut_while_it_is_read_goes_on_where_the_log_goes_on(stage: Stage) -> None:
    stage.topic()
    stage.fill(5)
    a = stage.join("a")
    stage.turn()
    stage.wait(5_000)
    stage.kafka.delete_topic("orders")
    stage.topic()
    stage.fill(2)
    stage.wait(10_000)
    assert a.loop.error is None
    assert stage.offsets[5:] == [(0, 0), (0, 1)]


def test_a_clean_stop_commits_releases_and_says_goodbye(stage: Stage) -> None:
    stage.topic()
    stage.fill(3)
    stage.join("a")
    stage.turn()
    stage.leave("a")
    assert stage.committed() == 3
    kinds = [decode_group_record(record.value()).kind for record in stage.kafka.records(NAMES.group_log(GROUP))]
    assert kinds[-3:] == ["release", "release", "leave"]


def test_what_a_listener_still_holds_at_the_end_is_not_released(stage: Stage) -> None:
    stage.topic()
    stage.fill(3)
    stage.join("a")
    stage.turn(10, work=False)
    stage.leave("a")
    named = [
        held.topic
        for record in stage.kafka.records(NAMES.group_log(GROUP))
        if isinstance(found := decode_group_record(record.value()), ReleaseRecord)
        for held in found.queues
    ]
    assert named == [NAMES.retry(GROUP)]


def test_a_closing_member_serves_the_group_while_a_queue_that_it_has_given_up_has_a_listener(stage: Stage) -> None:
    stage.topic(3)
    stage.fill(3)
    a = stage.join("a")
    stage.turn(10, work=False)
    a.loop.reader._on_lost(a.consumers[0], [TopicPartition("orders", 0)])
    b = stage.join("b")
    assigned: list[int] = []

    def let_the_other_turn() -> None:
        b.turn()
        assigned.append(len(b.loop.reader.partitions))

    a.pool.on_wait = let_the_other_turn
    stage.members.pop("a")
    a.loop.stop(2_000)
    a.loop.close()
    assert assigned[-1], "the rebalance has not waited for a"


def test_a_lock_that_is_won_while_its_loop_closes_is_given_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.consumer.orderly._LOG_STOP_S", 60.0)
    stage.topic()
    a = stage.join("a")
    won, closing = threading.Event(), threading.Event()

    class HeldBack(SimpleQueue[Lease]):
        def put(self, item: Lease, *_: Any) -> None:
            if item.stopped is None:
                won.set()
                assert closing.wait(60)
            super().put(item)

    def close_within(timeout_s: float, ask: Callable[[float], None] = a.log.close_within) -> None:
        ask(timeout_s)
        closing.set()

    def run() -> None:
        while not a.log.is_over:
            a.log.turn(a.log._wait_s())
        a.log.close()

    a.log.leases = HeldBack()
    a.log.close_within = close_within  # type: ignore[method-assign]
    while not a.mode._assigned:
        a.loop.turn()
    a.log._thread = threading.Thread(target=run, daemon=True)
    a.log._thread.start()
    assert won.wait(60)
    a.loop.close()
    stage.members.clear()
    kinds = [decode_group_record(record.value()).kind for record in stage.kafka.records(NAMES.group_log(GROUP))]
    assert kinds[-3:] == ["release", "release", "leave"]


def test_a_failed_group_log_ends_the_consumer(stage: Stage) -> None:
    stage.topic()
    a = stage.join("a")
    stage.turn()
    a.log.error = RuntimeError("gone")
    with pytest.raises(Exception, match="gone"):
        a.loop.turn()


def test_suspend_and_resume_reach_queues_that_start_meanwhile(stage: Stage) -> None:
    stage.topic()
    stage.fill(2)
    a = stage.join("a")
    a.loop.ask(PollLoop.suspend)
    stage.turn()
    assert not stage.seen
    a.loop.ask(lambda loop: loop.reader.resume())
    stage.turn()
    assert len(stage.seen) == 2


def test_a_queue_that_loses_its_lock_while_reading_is_suspended_is_read_again_after_it(stage: Stage) -> None:
    stage.topic()
    stage.fill(2)
    a = stage.join("a")
    stage.turn()
    a.loop.ask(PollLoop.suspend)
    stage.turn()
    stage.clock.advance(4_000)
    stage.turn()
    stage.fill(2)
    stage.wait(1_000)
    assert len(stage.seen) == 2
    a.loop.ask(lambda loop: loop.reader.resume())
    stage.wait(3_000)
    assert [offset for _, offset in stage.offsets][-2:] == [2, 3]


def test_counts_survive_a_lock_that_was_given_back_before_the_queue_began(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)
    stage.answer = lambda _: SUSPEND
    stage.join("a")
    stage.turn()
    stage.wait(2_100)
    before = times(stage.seen[-1])
    stage.leave("a")
    stage.join("b")
    b = stage.members["b"]
    for _ in range(50):  # up to where b has the lock and has not begun
        b.loop.turn()
        b.log.turn(0)
        if b.log.leases.qsize() >= 2:  # both queues
            break
    assert b.held == []
    stage.leave("b")
    stage.join("c")
    stage.wait(3_000)
    assert times(stage.seen[before + 1]) == before + 1


def test_of_a_fetch_from_before_the_position_the_part_behind_it_is_kept_in_order() -> None:
    stage = Stage()
    stage.topic(1)
    member = stage.join("a")
    stage.turn()
    stage.fill(60)
    stage.kafka.truncate("orders", before_offset=20)
    records = stage.kafka.records("orders")
    member.loop.mode.begin(TopicPartitionKey("orders", 0), 40)
    member.loop.mode.put(TopicPartitionKey("orders", 0), records[:31])
    member.loop.mode.put(TopicPartitionKey("orders", 0), records[31:])
    stage.turn(20)
    stage.wait(6_000)
    assert [offset for _, offset in stage.offsets] == list(range(40, 60))
    assert stage.committed() == 60


# --- what stands in the way of one queue ------------------------------------------------------------------------------


def refuse(*_: Any, **__: Any) -> Any:
    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))


def test_a_queue_with_an_unknown_start_offset_does_not_block_others(stage: Stage) -> None:
    stage.topic(3)
    for queue in range(3):
        stage.fill(2, queue)
    a = stage.join("a")
    answers, asked = a.lookups.offsets_for_times, 0
    away = True
    patience: list[float] = []

    def bounds(places: list[TopicPartition], timeout: float = 0) -> Any:
        nonlocal asked
        if away and any((place.topic, place.partition) == ("orders", 1) for place in places):
            asked += 1
            patience.append(timeout)
            stage.clock.advance(min(round(timeout * 1_000), 1_000))  # more would end the locks of a log turned by hand
            refuse()
        return answers(places, timeout)

    a.lookups.offsets_for_times = bounds
    stage.turn(20)
    assert sorted(stage.offsets) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    before = asked
    stage.wait(20_000)
    assert before < asked <= before + 3, "a try of a second is made each ten"
    away = False
    stage.wait(11_000)
    assert stage.offsets[4:] == [(1, 0), (1, 1)]
    assert patience[1:] == sorted(patience[1:]), "a cluster that answers slowly is given more time"
    assert patience[1] < patience[-1] <= 10


def test_a_start_that_kafka_rejects_does_not_block_others(stage: Stage) -> None:
    stage.topic(2)
    stage.fill(1, 0)
    stage.fill(1, 1)
    a = stage.join("a")
    taken = a.consumers[0].commit

    def commit(*, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        if any(item.topic == "orders" and item.partition == 0 for item in offsets):
            refuse()
        return taken(offsets=offsets, asynchronous=asynchronous)

    a.consumers[0].commit = commit
    stage.turn(20)
    assert stage.offsets == [(1, 0)]
    a.consumers[0].commit = taken
    stage.wait(2_000)
    assert stage.offsets == [(1, 0), (0, 0)]


def test_a_start_that_was_looked_up_for_longer_than_the_lock_lasts_is_not_committed(stage: Stage) -> None:
    stage.topic()
    stage.fill(3)
    a = stage.join("a")
    answers = a.lookups.offsets_for_times
    slow = True

    def bounds(places: list[TopicPartition], **options: Any) -> Any:
        nonlocal slow
        if slow:
            slow = False
            stage.clock.advance(4_000)  # it may believe for 3
        return answers(places, **options)

    a.lookups.offsets_for_times = bounds
    while slow:
        stage.turn(1)
    assert stage.kafka.commits(GROUP) == []
    stage.wait(15_000)
    assert stage.offsets == [(0, 0), (0, 1), (0, 2)]


def cut_under_a_listener(stage: Stage, **parts: Any) -> tuple[Member, Any]:
    """A member whose queue begins again at offset 0 once its listener returns: its log is shorter than it was."""
    stage.topic()
    stage.fill(3)
    a = stage.join("a", **parts)
    stage.turn()
    stage.fill(2)
    stage.turn(3, work=False)
    task = a.pool.tasks.popleft()
    bounds, a.lookups.get_watermark_offsets = a.lookups.get_watermark_offsets, lambda *_, **__: (0, 3)
    a.loop.mode.put(TopicPartitionKey("orders", 0), stage.kafka.records("orders")[:3])
    a.lookups.get_watermark_offsets = bounds
    assert a.mode._ended.keys() == a.mode._restarts.keys()
    assert a.mode._restarts
    return a, task


def test_a_queue_whose_log_was_cut_and_that_cannot_be_sought_is_tried_again(stage: Stage) -> None:
    a, task = cut_under_a_listener(stage)
    seek, a.consumers[0].seek = a.consumers[0].seek, refuse
    a.pool.tasks.append(task)
    a.pool.work_all()
    a.loop.dispatch.take_results(0)
    a.loop.reader._on_lost(a.consumers[0], [TopicPartition(NAMES.retry(GROUP), 0)])  # a callback never raises
    stage.wait(500)
    a.consumers[0].seek = seek
    stage.wait(1_000)
    assert stage.offsets == [(0, 0), (0, 1), (0, 2), *((0, number) for number in range(5))]


def test_a_queue_that_restarts_amid_a_fetch_is_read_from_its_first_message(stage: Stage) -> None:
    stage.topic()
    stage.fill(5)
    a = stage.join("a")
    stage.turn()
    bounds, a.lookups.get_watermark_offsets = a.lookups.get_watermark_offsets, lambda *_, **__: (0, 4)
    records = stage.kafka.records("orders")
    a.loop.mode.put(TopicPartitionKey("orders", 0), records[:2])
    a.lookups.get_watermark_offsets = bounds
    for key, run in a.loop.reader.current_runs(records[2:4]):  # behind the messages of another queue
        a.loop.mode.put(key, run)
    stage.wait(6_000)
    assert [offset for _, offset in stage.offsets] == [0, 1, 2, 3, 4] * 2
    assert stage.committed() == 5


def test_failed_attempts_do_not_count_in_a_log_that_was_cut_before_its_next_owner_read_it(stage: Stage) -> None:
    stage.topic()
    stage.fill(5)
    stage.answer = lambda message: SUSPEND if message.queue_offset == 2 else None
    stage.join("a")
    stage.wait(4_000)
    assert times(stage.seen[-1]) > 1
    stage.leave("a")
    stage.seen.clear()
    stage.answer = lambda _: None
    b = stage.join("b")
    put, b.mode.put = b.mode.put, lambda *_: None
    stage.turn(20)
    assert b.held
    b.mode.put = put
    bounds, b.lookups.get_watermark_offsets = b.lookups.get_watermark_offsets, lambda *_, **__: (0, 1)
    b.loop.mode.put(TopicPartitionKey("orders", 0), stage.kafka.records("orders"))
    b.lookups.get_watermark_offsets = bounds
    stage.wait(6_000)
    assert [(message.queue_offset, times(message)) for message in stage.seen] == [(offset, 0) for offset in range(5)]


def test_a_queue_that_restarts_while_reading_is_suspended_is_not_read(stage: Stage) -> None:
    a, task = cut_under_a_listener(stage)
    a.loop.ask(PollLoop.suspend)
    stage.turn()
    a.pool.tasks.append(task)
    a.pool.work_all()
    stage.wait(1_000)
    assert len(stage.seen) == 3
    a.loop.ask(lambda loop: loop.reader.resume())
    stage.wait(1_000)
    assert [offset for _, offset in stage.offsets] == [0, 1, 2, 0, 1, 2, 3, 4]


def test_a_lock_lost_before_a_queue_began_anew_is_not_given_back_under_its_listener(stage: Stage) -> None:
    a, task = cut_under_a_listener(stage)
    stage.clock.advance(4_000)
    stage.turn(3)
    a.loop.reader._on_lost(a.consumers[0], [TopicPartition("orders", 0)])
    a.loop.reader._on_assign(a.consumers[0], [TopicPartition("orders", 0)])
    stage.wait(10_000)
    claims = [
        queue.topic
        for record in stage.kafka.records(NAMES.group_log(GROUP))
        if isinstance(found := decode_group_record(record.value()), ClaimRecord)
        for queue in found.queues
    ]
    assert claims.count("orders") == 1, "its listener has not returned, so nothing is claimed again"
    a.pool.tasks.append(task)
    a.pool.work_all()
    stage.wait(10_000)
    assert sorted(set(stage.offsets)) == [(0, number) for number in range(5)]


def return_while_closing(a: Member) -> None:
    """Let a listener take the run that was handed out, and return while its loop waits for its threads to end."""
    task: Any = a.pool.tasks.popleft()
    result = Result(task, a.runner.run(task), 0)

    def stop(timeout_s: float) -> bool:
        del timeout_s
        a.pool.results.put(result)
        return True

    a.pool.stop = stop  # type: ignore[method-assign]


def test_what_a_listener_says_while_its_loop_closes_is_given_back_with_the_lock(stage: Stage) -> None:
    stage.topic()
    stage.fill(3)
    a = stage.join("a")
    stage.turn(10, work=False)
    return_while_closing(a)
    stage.leave("a")
    assert stage.committed() == 0
    stage.fill(1)
    stage.join("b")
    stage.wait(1_000)
    assert stage.offsets == [(0, 0), (0, 1), (0, 2), (0, 3)], "immediately, and none twice"


def test_a_dead_letter_asked_for_after_the_loop_has_closed_keeps_the_lock(stage: Stage) -> None:
    stage.topic()
    stage.fill(1)

    def fail(_: Any) -> None:
        raise DeadLetter("x")

    stage.answer = fail
    a = stage.join("a")
    stage.turn(10, work=False)
    return_while_closing(a)
    stage.leave("a")
    stage.join("b")
    stage.wait(2_000)
    assert stage.dead() == []
    stage.wait(10_000)
    assert len(stage.dead()) == 1
    assert stage.offsets == [(0, 0), (0, 0)]


class Looked(OrderlyQueue):
    """Counts how often a queue is asked whether it is drained."""

    __slots__ = ()
    times = 0

    @property
    def is_drained(self) -> bool:
        Looked.times += 1
        return super().is_drained


def test_giving_up_many_busy_queues_is_not_a_look_at_all_of_them_for_each(stage: Stage) -> None:
    count = 100
    stage.topic(count)
    for partition in range(count):
        stage.fill(1, partition)
    a = stage.join("a")
    stage.turn(10, work=False)
    assert len(a.loop.mode.queues) > count
    assert a.loop.dispatch.in_flight == count
    for place in a.loop.mode.queues:
        place.__class__ = Looked
    Looked.times = 0
    a.mode.forget(list(a.loop.reader.partitions))
    assert 0 < Looked.times <= 3 * count
    a.pool.work_all()
    stage.turn(5)
    assert not a.mode._draining


@pytest.mark.parametrize("status", [COMMIT, ROLLBACK])
def test_a_status_that_needs_no_auto_commit_is_a_success_and_is_logged_once(
    stage: Stage, caplog: pytest.LogCaptureFixture, status: ConsumeOrderlyStatus
) -> None:
    stage.topic()
    stage.fill(3)
    stage.answer = lambda _: status
    stage.join("a")
    stage.turn()
    assert stage.offsets == [(0, 0), (0, 1), (0, 2)]
    logged = [record for record in caplog.records if getattr(record, "event", "") == "consumer.status-misplaced"]
    assert [record.status for record in logged] == [status.name]  # type: ignore[attr-defined]


def test_each_failed_attempt_of_a_queue_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.topic()
    stage.fill(1)

    def fail(_: Any) -> None:
        raise ValueError("not now")

    stage.answer = fail
    stage.join("a")
    stage.turn()
    stage.wait(2_500)
    logged = [record for record in caplog.records if getattr(record, "event", "") == "consumer.listener-failed"]
    assert [record.attempt for record in logged] == [1, 2, 3]  # type: ignore[attr-defined]
    assert {record.delay_ms for record in logged} == {1_000}  # type: ignore[attr-defined]
    assert "Traceback" in logged[0].message
    assert not any("Traceback" in record.message for record in logged[1:])


# --- processes that died ----------------------------------------------------------------------------------------


def left(stage: Stage, handling: Handling) -> None:
    """What the last owner has committed."""
    before = stage.kafka.consumer({"group.id": GROUP})
    metadata = encode_metadata(CommitMetadata("d", 1, handling=handling))
    before.commit(offsets=[TopicPartition("orders", 0, 0, metadata=metadata)], asynchronous=False)
    before.close()


def handling_of(stage: Stage) -> Handling | None:
    commit = [each for each in stage.kafka.commits(GROUP) if each.topic == "orders"][-1]
    found = decode_metadata(commit.metadata)
    return None if found is None else found.handling


def careful() -> CarefulStart:
    return CarefulStart(max_deaths=3, window=4)


def test_after_an_open_end_a_run_begins_when_a_commit_has_noted_it(stage: Stage) -> None:
    stage.topic()
    left(stage, Handling(is_open=True))
    stage.fill(6)
    a = stage.join("a", care=careful())
    stage.turn(12, work=False)
    (task,) = a.pool.tasks
    assert [message.offset() for message in task.messages] == [0, 1, 2, 3]
    assert handling_of(stage) == Handling(is_open=True, deaths=1, begun=((0, 1), (1, 1), (2, 1), (3, 1)))
    stage.turn(20)
    assert stage.offsets == [(0, number) for number in range(6)]
    stage.leave("a")
    assert handling_of(stage) == Handling(is_open=False)
    assert stage.committed() == 6


def test_a_message_that_killed_too_many_processes_is_a_dead_letter_at_its_limit(stage: Stage) -> None:
    stage.topic()
    left(stage, Handling(is_open=True, begun=((1, 3),)))
    stage.fill(3)
    stage.join("a", limit=2, care=careful())
    stage.turn(40)
    assert stage.offsets == [(0, 0), (0, 2)]
    headers = dict(stage.dead()[0].headers() or ())
    assert (headers["FAIL_CLASS"], headers["RECONSUME_TIMES"]) == (b"ProcessDied", b"3")


def test_without_a_limit_it_waits_as_after_a_failure_and_is_tried_again_alone(stage: Stage) -> None:
    stage.topic()
    left(stage, Handling(is_open=True, begun=((0, 3),)))
    stage.fill(2)
    a = stage.join("a", care=careful())
    stage.turn(20)
    assert not stage.seen
    stage.wait(1_200, work=False)
    (task,) = a.pool.tasks
    assert [message.offset() for message in task.messages] == [0]
    assert handling_of(stage) == Handling(is_open=True, deaths=1, begun=((0, 4),))
    stage.turn(20)
    assert [times(view) for view in stage.seen] == [3, 0]


def test_a_log_that_was_cut_does_not_make_its_reader_one_that_was_cut_off(stage: Stage) -> None:
    care = careful()
    a, task = cut_under_a_listener(stage, care=care)
    a.pool.tasks.append(task)
    stage.wait(2_000)
    assert stage.offsets[-5:] == [(0, number) for number in range(5)]
    assert handling_of(stage) == Handling(is_open=True)  # if this process dies now, the next one is careful
    other = TopicPartitionKey("orders", 1)
    assert care.begin(other, 0, Handling(is_open=True, begun=((4, 2),))) == {4: 2}  # it believes the marks of others


def test_a_run_that_waits_for_a_commit_goes_back_when_its_queue_ends(stage: Stage) -> None:
    stage.topic()
    left(stage, Handling(is_open=True, begun=((0, 1),)))
    a = stage.join("a", care=careful())
    stage.turn(10)
    stage.fill(2)
    stage.kafka.fail_commits(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE), count=1)
    stage.turn(4, work=False)
    assert a.held == [0]
    assert a.loop.dispatch.awaits_commit
    assert a.loop.dispatch.in_flight == 1
    stage.leave("a")
    assert a.loop.dispatch.in_flight == 0
    assert not stage.seen
    stage.join("b", care=careful())
    stage.wait(3_000)
    assert stage.offsets == [(0, 0), (0, 1)]
