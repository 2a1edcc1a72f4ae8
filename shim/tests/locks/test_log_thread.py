"""The group-log thread, turned by hand on the in-memory Kafka: who holds what when, and what ends it."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.admin.group_log_snapshot import read_group_log, release_record
from rocketshim.errors import ConsumerError, TopicMismatchError, TopicMissingError
from rocketshim.kafka.clients import LastClientError
from rocketshim.locks.fold import GroupLog, Member, Owner
from rocketshim.locks.lease import Lease, QueueLockSettings, StopReason
from rocketshim.locks.log_clients import LogReader, LogWriter, token_floor
from rocketshim.locks.log_thread import GroupLogThread
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.group_log import MemberRecord, decode_group_record, encode_group_record
from rocketshim_topics.message_queue import MessageQueue

LOG = "rmq.group.g"
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
SHORT = QueueLockSettings(lock_lease_ms=6_000, lock_hold_ms=3_000, lock_renew_ms=1_000)
Q0, Q1 = MessageQueue("orders", queue_id=0), MessageQueue("orders", queue_id=1)


class Fleet:
    """A group's members, turned one after the other."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kafka = InMemoryKafka(self.clock)
        self.kafka.create_topic(LOG, config=APPEND_TIME)
        self.members: dict[str, GroupLogThread] = {}
        self.seen: dict[str, list[Lease]] = {}
        self.producers: list[Any] = []

    def join(
        self,
        name: str,
        *wanted: MessageQueue,
        settings: QueueLockSettings = SHORT,
        strategy: str | None = None,
        floor: Callable[[Any], int | None] = lambda _: None,
        topic_id: Any = None,
    ) -> None:
        def make_producer() -> Any:
            self.producers.append(self.kafka.producer({"enable.idempotence": True}))
            return self.producers[-1]

        config = {"group.id": "g", "auto.offset.reset": "error", "isolation.level": "read_uncommitted"}
        member = GroupLogThread(
            LogReader(LOG, lambda: self.kafka.consumer(config), floor, topic_id),
            LogWriter(LOG, make_producer),
            owner=Owner(name, "1"),
            settings=settings,
            clock=self.clock,
            strategy=strategy,
        )
        member.open()
        member.want(wanted)
        self.members[name] = member
        self.seen[name] = []

    def turn(self, *names: str, times: int = 4) -> None:
        for _ in range(times):
            for name in names or self.members:
                self.members[name].turn(0)
                while self.members[name].leases.qsize():
                    self.seen[name].append(self.members[name].leases.get())

    def wait(self, ms: int, *names: str) -> None:
        for _ in range(ms // 100):
            self.clock.advance(100)
            self.turn(*names, times=2)

    def started(self, name: str) -> list[Lease]:
        return list(dict.fromkeys(self.seen[name]))

    def stops(self, name: str) -> list[StopReason]:
        stopped = [lease for number, lease in enumerate(self.seen[name]) if lease in self.seen[name][:number]]
        return [lease.stopped for lease in stopped if lease.stopped is not None]

    def lease(self, name: str) -> Lease:
        return self.started(name)[-1]

    def holds(self, name: str) -> bool:
        return self.lease(name).holds(self.now_ms)

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // 1_000_000

    def kinds(self) -> list[str]:
        return [decode_group_record(record.value()).kind for record in self.kafka.records(LOG)]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_a_member_of_a_new_group_gets_its_queues_immediately(fleet: Fleet) -> None:
    fleet.join("a", Q0, Q1)
    fleet.turn()
    assert [lease.queue for lease in fleet.started("a")] == [Q0, Q1]
    assert fleet.holds("a")
    assert fleet.members["a"].members == ("a",)
    assert fleet.kinds() == ["member", "claim"]


def test_heartbeats_have_the_version_of_the_library(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    first = decode_group_record(fleet.kafka.records(LOG)[0].value())
    assert isinstance(first, MemberRecord)
    assert first.version == importlib.metadata.version("rocketshim")


def test_a_lease_is_renewed_while_the_thread_runs(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.wait(60_000)
    assert fleet.holds("a")
    assert not fleet.stops("a")


def test_a_queue_has_one_owner_and_changes_owner_when_it_is_released(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.join("b", Q0)
    fleet.wait(10_000)
    assert not fleet.started("b")
    a = fleet.members["a"]
    a.want(())
    fleet.turn("a")
    assert fleet.stops("a") == [StopReason.UNWANTED]
    assert fleet.holds("a"), "what is done may still be committed"
    a.release(fleet.lease("a"), 7, ((9, 2),))
    fleet.turn()
    assert not fleet.holds("a")
    (started,) = fleet.started("b")
    assert (started.next_offset, started.reconsume_counts) == (7, ((9, 2),))
    assert started.token > fleet.lease("a").token


def test_a_queue_drained_before_its_stop_event_is_released_immediately(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    a, lease = fleet.members["a"], fleet.lease("a")
    a.want(())
    a.release(lease, 3, ())
    fleet.turn(times=2)
    assert fleet.kinds()[-1] == "release"
    assert not lease.holds(fleet.now_ms)


def test_a_dead_owner_is_replaced_after_one_lease(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.join("b", Q0)
    fleet.turn()
    fleet.wait(5_000, "b")
    assert not fleet.started("b")
    fleet.wait(3_500, "b")
    assert fleet.holds("b")


def awaited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__ for record in caplog.records if getattr(record, "event", "") == "consumer.lock-awaited"]


def test_the_owner_for_whose_locks_a_member_waits_is_named_once_after_5_s(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    long = QueueLockSettings(lock_lease_ms=60_000, lock_hold_ms=30_000, lock_renew_ms=10_000)
    fleet.join("a", Q0, Q1, settings=long)
    fleet.turn()
    fleet.join("b", Q0, Q1, settings=long)
    fleet.wait(4_900, "b")
    assert not awaited(caplog)
    fleet.wait(50_000, "b")
    (line,) = awaited(caplog)
    assert line["partitions"] == ["orders/0", "orders/1"]
    assert line["owners"] == ["a (1)"], "the client id and the run, as in the group's log"
    assert line["lease_left_s"] in range(50, 60)
    assert "group release" in line["hint"]
    fleet.wait(10_000, "b")
    assert len(fleet.started("b")) == 2
    assert len(awaited(caplog)) == 1


def test_a_member_that_waits_for_the_log_itself_names_no_owner(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.kafka.delete_topic(LOG)
    fleet.join("a", Q0)
    fleet.wait(6_000)
    (line,) = awaited(caplog)
    assert line["owners"] == []
    assert "names no owner" in line["hint"]


def test_a_member_whose_own_listener_has_a_queue_waits_for_nobody(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.kafka.delete_topic(LOG)
    fleet.kafka.create_topic(LOG, config=APPEND_TIME)
    fleet.wait(60_000)
    assert fleet.stops("a") == [StopReason.LOG_LOST]
    assert not awaited(caplog)


def test_renewals_carry_progress_to_the_successor_of_a_dead_owner(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.members["a"].progress(fleet.lease("a"), 41, ((41, 3),))
    fleet.wait(1_500)
    fleet.join("b", Q0)
    fleet.wait(9_000, "b")
    (started,) = fleet.started("b")
    assert (started.next_offset, started.reconsume_counts) == (41, ((41, 3),))


def test_the_lease_of_a_frozen_owner_has_ended_before_its_next_iteration(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    lease = fleet.lease("a")
    fleet.clock.advance(3_000)
    assert not lease.holds(fleet.now_ms)
    fleet.turn("a")
    assert fleet.stops("a") == [StopReason.UNCONFIRMED]
    fleet.members["a"].release(lease, None, ())
    fleet.turn("a")
    assert fleet.lease("a") is not lease
    assert fleet.lease("a").token > lease.token


def test_a_lease_that_expires_between_two_reads_of_the_clock_is_still_stopped(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.clock.advance(3_000)
    assert not fleet.holds("a")
    fleet.turn("a")
    assert fleet.stops("a") == [StopReason.UNCONFIRMED]


def test_a_stopped_queue_does_not_start_again_before_it_is_drained(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.clock.advance(3_000)
    fleet.wait(20_000)
    assert len(fleet.started("a")) == 1


def test_a_log_created_again_ends_every_lease_and_tokens_keep_rising(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.wait(3_000)
    lease = fleet.lease("a")
    fleet.kafka.delete_topic(LOG)
    fleet.kafka.create_topic(LOG, config=APPEND_TIME)
    fleet.kafka.set_leader_clock(-3_600_000)
    fleet.wait(2_000)
    assert fleet.stops("a") == [StopReason.LOG_LOST]
    assert not lease.holds(fleet.now_ms)
    fleet.members["a"].release(lease, None, ())
    fleet.wait(3_000)
    assert len(fleet.started("a")) == 1, "nothing is claimed for one lease"
    fleet.wait(15_000)
    assert fleet.holds("a")
    assert fleet.lease("a").token > lease.token


def test_a_topic_with_another_id_is_another_log_whatever_its_length(fleet: Fleet) -> None:
    class Ids:
        value = "one"

        def now(self) -> str:
            return self.value

        latest = now

    ids = Ids()
    fleet.join("a", Q0, topic_id=ids)
    fleet.turn()
    fleet.wait(3_000)
    assert not fleet.stops("a")
    ids.value = "two"
    fleet.wait(2_500)
    assert fleet.stops("a") == [StopReason.LOG_LOST]


def test_a_thread_that_was_frozen_checks_the_topic_id_before_it_reads(fleet: Fleet) -> None:
    class Ids:
        """An answer is as old as the question before."""

        known = real = "one"

        def now(self) -> str:
            self.known = self.real
            return self.real

        def latest(self) -> str:
            before, self.known = self.known, self.real
            return before

    ids = Ids()
    fleet.join("a", Q0, topic_id=ids)
    fleet.turn()
    fleet.kafka.delete_topic(LOG)
    fleet.kafka.create_topic(LOG, config=APPEND_TIME)
    ids.real = "two"
    fleet.join("b", Q0)
    fleet.turn("b")
    fleet.wait(2_000, "b")  # the new log has grown past what a has read
    fleet.clock.advance(30_000)
    fleet.turn("a", times=1)
    assert not fleet.holds("a")


def test_a_log_truncated_before_it_was_read_ends_every_lease(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.join("b")
    fleet.turn()
    fleet.wait(1_000, "b")
    for number in range(3):
        record = MemberRecord(client_id="x", incarnation="x", seq=number + 1, lease_ms=6_000)
        fleet.kafka.append(LOG, encode_group_record(record))
    fleet.kafka.truncate(LOG, before_offset=len(fleet.kafka.records(LOG)))
    fleet.turn("a")
    assert fleet.stops("a") == [StopReason.LOG_LOST]


def test_truncation_of_records_already_read_changes_nothing(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.kafka.truncate(LOG, before_offset=2)
    fleet.wait(10_000)
    assert fleet.holds("a")
    assert not fleet.stops("a")


def test_a_record_of_an_unknown_version_ends_every_lease(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.kafka.append(LOG, b'{"v":2}')
    fleet.turn()
    assert fleet.stops("a") == [StopReason.LOG_LOST]


@pytest.mark.parametrize("value", [None, b"", b"null", b'{"v":1,"kind":"claim"}'])
def test_an_invalid_record_is_skipped(fleet: Fleet, value: bytes | None) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.kafka.append(LOG, value)
    fleet.wait(3_000)
    assert fleet.holds("a")
    assert not fleet.stops("a")


def test_a_log_without_append_times_is_refused(fleet: Fleet) -> None:
    fleet.kafka.delete_topic(LOG)
    fleet.kafka.create_topic(LOG)
    fleet.join("a", Q0)
    with pytest.raises(TopicMismatchError, match="CreateTime"):
        fleet.turn()


def test_a_group_allocates_in_the_way_of_its_first_member(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.join("b", Q1, strategy="averagely")
    with pytest.raises(ConsumerError, match="a was first"):
        fleet.turn("b")
    fleet.turn("a")
    assert fleet.members["a"].error is None


def test_members_come_and_go_by_heartbeats(fleet: Fleet) -> None:
    fleet.join("a")
    fleet.join("b")
    fleet.turn()
    assert fleet.members["a"].members == ("a", "b")
    fleet.wait(9_000, "a")
    assert fleet.members["a"].members == ("a",)


def test_closing_releases_leaves_and_ends(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    a = fleet.members["a"]
    a.close_within(5)
    fleet.turn()
    assert not a.is_over
    a.release(fleet.lease("a"), 5, ())
    fleet.turn()
    assert a.is_over
    assert fleet.kinds()[-2:] == ["release", "leave"]


def test_closing_does_not_release_a_queue_that_a_listener_still_processes(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.members["a"].close_within(1)
    fleet.wait(1_000)
    assert fleet.members["a"].is_over
    assert "release" not in fleet.kinds()
    assert "leave" not in fleet.kinds()


def test_an_unreachable_broker_ends_leases_in_time_but_not_the_thread(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    lease = fleet.lease("a")
    fleet.kafka.stop_broker()
    fleet.wait(3_500)
    assert fleet.stops("a") == [StopReason.UNCONFIRMED]
    fleet.members["a"].release(lease, None, ())
    fleet.kafka.start_broker()
    fleet.wait(20_000)
    assert fleet.holds("a")


def test_a_log_whose_bounds_are_not_answered_in_time_is_logged_and_read_later(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.join("a", Q0)
    consumer: Any = fleet.members["a"]._reader._consumer
    answer, consumer.get_watermark_offsets = consumer.get_watermark_offsets, lambda *_, **__: None
    fleet.turn()
    assert [record.__dict__.get("event") for record in caplog.records] == ["group.log-unreachable"]
    consumer.get_watermark_offsets = answer
    fleet.wait(2_000)
    assert fleet.holds("a")


def test_a_producer_that_is_broken_is_replaced(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fleet.kafka.fail_produce(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True), topic=LOG)
    fleet.wait(2_500)
    assert len(fleet.producers) == 2
    fleet.wait(5_000)
    assert fleet.holds("a")


def test_a_producer_that_the_brokers_refuse_is_not_replaced_all_the_time(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    writer = fleet.members["a"]._writer
    make = writer._sender.make_producer
    made: list[Any] = []

    def refused() -> Any:
        made.append(make())
        made[-1]._session.die(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no id", fatal=True))
        return made[-1]

    writer._sender.make_producer = refused
    fleet.kafka.fail_produce(KafkaError(KafkaError._FATAL, fatal=True), topic=LOG)
    fleet.wait(10_000)
    assert 3 <= len(made) <= 11


def test_a_broken_producer_that_fails_again_while_closing_is_still_replaced_and_closed(
    fleet: Fleet,
) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True)

    def flush(timeout: float = -1) -> int:
        del timeout
        raise KafkaException(fatal)

    fleet.producers[0].flush = flush
    fleet.kafka.fail_produce(fatal, topic=LOG)
    fleet.wait(2_500)
    assert len(fleet.producers) == 2
    fleet.producers[1].flush = flush
    reader = fleet.members["a"]._reader._consumer
    assert reader is not None
    fleet.members["a"].close()
    with pytest.raises(RuntimeError, match="closed"):
        reader.poll(0)


def test_the_token_floor_is_looked_up_before_the_end_of_the_log(fleet: Fleet) -> None:
    floors: list[int] = []

    def floor(consumer: Any) -> int:
        del consumer
        floors.append(len(fleet.kafka.records(LOG)))
        return 10**15

    fleet.join("a", Q0, floor=floor)
    fleet.turn()
    assert floors == [0]
    fleet.wait(20_000)
    assert fleet.lease("a").token > 10**15


def test_no_look_up_after_a_lost_log_waits_behind_a_fetch_of_that_log(fleet: Fleet) -> None:
    fleet.kafka.create_topic("orders")
    fleet.join("a", Q0, floor=lambda consumer: token_floor(consumer, ["orders"]))
    fleet.turn()
    assert fleet.started("a")
    fleet.kafka.delete_topic(LOG)
    fleet.kafka.create_topic(LOG, config=APPEND_TIME)
    fleet.wait(2_000)
    fleet.members["a"].release(fleet.lease("a"), None, ())
    fleet.wait(20_000)
    assert len(fleet.started("a")) == 2
    assert not [method for method, _ in fleet.kafka.delayed_lookups if method == "list_topics"]


def test_differing_leases_are_logged_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.join("a", Q0)
    fleet.join("b", settings=QueueLockSettings(lock_lease_ms=9_000, lock_hold_ms=3_000, lock_renew_ms=1_000))
    fleet.wait(5_000)
    said = [record for record in caplog.records if getattr(record, "event", None) == "group.leases-differ"]
    assert len(said) == 2, "each says it of the other"


def test_the_thread_works_by_itself() -> None:
    fleet = Fleet()
    fleet.join("a", Q0)
    member = fleet.members.pop("a")
    member.start()
    try:
        lease = member.leases.get(timeout=60)
        member.want(())
        member.release(lease, 1, ())
    finally:
        assert member.stop(0) or member.stop(60)
    assert fleet.kinds()[:2] == ["member", "claim"]


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_clock_step_of_the_leader_neither_ends_nor_transfers_a_lease(fleet: Fleet, step_ms: int) -> None:
    calm = QueueLockSettings(lock_lease_ms=20_000, lock_hold_ms=6_000, lock_renew_ms=1_000)
    fleet.join("a", Q0, settings=calm)
    fleet.join("b", Q0, settings=calm)
    fleet.turn()
    first = "a" if fleet.started("a") else "b"
    other = "b" if first == "a" else "a"
    fleet.wait(2_000)
    fleet.kafka.set_leader_clock(step_ms)
    fleet.wait(30_000)
    assert fleet.holds(first)
    assert not fleet.stops(first)
    assert not fleet.started(other)
    fleet.wait(60_000, other)
    assert fleet.holds(other), "and time goes on"


def test_a_release_written_by_an_operator_stops_a_live_owner(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    fleet.turn()
    reader = fleet.kafka.consumer({"group.id": "g", "auto.offset.reset": "error"})
    record = release_record(read_group_log(reader, LOG, LastClientError()), Q0)
    assert record is not None
    fleet.kafka.append(LOG, encode_group_record(record))
    fleet.turn()
    assert fleet.stops("a") == [StopReason.LOST]
    before = fleet.lease("a")
    fleet.members["a"].release(before, None, ())
    fleet.turn()
    assert fleet.lease("a").token > before.token
    fleet.wait(10_000)
    assert fleet.holds("a")


def test_a_queue_without_an_owner_is_not_released(fleet: Fleet) -> None:
    reader = fleet.kafka.consumer({"group.id": "g", "auto.offset.reset": "error"})
    assert release_record(read_group_log(reader, LOG, LastClientError()), Q0) is None


def test_a_group_without_a_log_is_reported(fleet: Fleet) -> None:
    reader = fleet.kafka.consumer({"group.id": "g", "auto.offset.reset": "error"})
    with pytest.raises(TopicMissingError, match="no log"):
        read_group_log(reader, "rmq.group.other", LastClientError())


class Counted(GroupLog):
    """Counts how often all members are sorted."""

    __slots__ = ()
    sorted_times = 0

    @property
    def members(self) -> tuple[Member, ...]:
        Counted.sorted_times += 1
        return super().members


def test_members_are_checked_when_they_change_and_not_at_each_record(fleet: Fleet) -> None:
    fleet.join("a", Q0)
    for number in range(20):
        fleet.join(f"m{number}")
    fleet.turn()
    assert len(fleet.members["a"].members) == 21
    fleet.members["a"]._log.__class__ = Counted
    fleet.wait(20_000)
    assert len(fleet.kinds()) > 200
    assert Counted.sorted_times == 0
    fleet.members["m7"].stop(0)
    fleet.turn()
    assert "m7" not in fleet.members["a"].members
    assert Counted.sorted_times <= 3


def test_a_claim_that_is_reported_without_an_offset_counts_as_not_stored_and_is_made_again(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.join("a", Q0)
    fleet.kafka.fail_produce(None, topic=LOG, count=3)
    fleet.wait(20_000)
    assert fleet.holds("a")
    assert [record.__dict__.get("event") for record in caplog.records].count("group.record-not-stored") == 3


def test_an_error_of_the_client_that_repeats_is_logged_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    reader = LogReader("rmq.group.g", lambda: None, lambda _: None, None)  # type: ignore[arg-type, return-value]
    for now_ms in (0, 1_000, 59_000):
        assert reader.why_lost_by(KafkaError(KafkaError._TRANSPORT), now_ms) is None
    assert caplog.text.count("group.client-error") == 1
    reader.why_lost_by(KafkaError(KafkaError._TRANSPORT), 60_000)
    assert "count=3" in caplog.text
