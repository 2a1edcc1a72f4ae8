"""The poll loop, turn by turn on the in-memory Kafka: what it commits, what it sends back, what it survives."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.dispatch import Result
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.core.listener_answers import DeadLetter, RetryLater
from rocketshim.core.partition import FlowLimits, PauseReason
from rocketshim.core.retry_policy import AtLevel
from rocketshim.core.start_position import CommitMetadata, ConsumeFromWhere, encode_metadata
from rocketshim.core.user_values import class_name
from rocketshim.errors import ConsumerError, NotAuthorizedError, TopicMissingError
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.coordinates import TopicPartitionKey

Make = Callable[..., Any]
KEY = TopicPartitionKey("orders", 0)


def nothing(message: Any) -> None:
    del message


def fill(kafka: InMemoryKafka, count: int, topic: str = "orders", partition: int = 0) -> None:
    """Every value is empty or absent: a message that is tested for truth would not be seen."""
    for number in range(count):
        kafka.append(topic, b"" if number % 2 else None, partition=partition, headers=[("n", str(number).encode())])


def header(record: Any, name: str) -> str | None:
    return next((value.decode() for key, value in record.headers() or () if key == name), None)


# --- commits ------------------------------------------------------------------------------------------------------


def test_messages_without_a_value_are_handled_and_committed(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 5)
    seen: list[Any] = []
    b = bench(seen.append)
    b.run()
    b.commit_now()
    assert [message.body for message in seen] == [None, b"", None, b"", None]
    assert b.committed() == 5


def test_a_commit_never_passes_a_message_in_progress(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 4)
    b = bench(nothing)
    b.turn(3)
    assert len(b.pool.tasks) == 4
    first = b.pool.tasks.popleft()
    b.pool.work_all()
    b.commit_now()
    assert b.committed() == 0
    b.pool.submit(first)
    b.pool.work_all()
    b.commit_now()
    assert b.committed() == 4


def test_nothing_is_committed_twice_and_nothing_backwards(kafka: InMemoryKafka, bench: Make) -> None:
    b = bench(nothing)
    for _ in range(4):
        fill(kafka, 3)
        b.run()
        b.commit_now()
        b.commit_now()
    positions = [commit.next_offset for commit in kafka.commits("g") if commit.topic == "orders"]
    assert positions == [0, 3, 6, 9, 12]


def test_a_refused_commit_is_repeated_with_the_next(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3)
    b = bench(nothing)
    b.run()
    kafka.fail_commits(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
    b.commit_now()
    assert b.committed() == 0
    assert b.loop.mode.commits.failing_since_ms is not None
    b.commit_now()
    assert b.committed() == 3
    b.turn()
    assert b.loop.mode.commits.failing_since_ms is None


def test_holes_in_the_log_do_not_hold_the_commit(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 1)
    kafka.skip_offsets("orders", count=7)
    fill(kafka, 1)
    b = bench(nothing)
    b.run()
    b.commit_now()
    assert b.committed() == 9


# --- failures -----------------------------------------------------------------------------------------------------


def test_a_failure_is_finished_only_when_its_retry_is_stored(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 2)

    def handle(message: Any) -> None:
        if message.properties["n"] == "0":
            raise OSError("no")

    b = bench(handle)
    kafka.hold_reports("SCHEDULE_TOPIC_XXXX")
    b.run()
    b.commit_now()
    assert len(b.retries()) == 1
    assert b.committed() == 0
    kafka.release()
    b.turn(2)
    b.commit_now()
    assert b.committed() == 2
    assert header(b.retries()[0], "RECONSUME_TIMES") == "1"
    assert header(b.retries()[0], "FAIL_CLASS") == "OSError"


def test_a_retry_that_cannot_be_stored_is_sent_again_after_a_pause_and_is_not_an_attempt(
    kafka: InMemoryKafka, bench: Make
) -> None:
    fill(kafka, 1)

    def handle(message: Any) -> None:
        raise OSError(message)

    b = bench(handle)
    kafka.fail_produce(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), topic="SCHEDULE_TOPIC_XXXX", count=2)
    b.run()
    assert b.send_back.counts.not_stored == 1
    assert (b.committed(), len(b.retries())) == (0, 0)
    b.clock.advance(4_000)
    b.turn(2)
    assert b.send_back.counts.not_stored == 1
    for _ in range(2):
        b.clock.advance(5_000)
        b.turn(3)
    assert b.send_back.counts.not_stored == 2
    assert header(b.retries()[0], "RECONSUME_TIMES") == "1"
    b.commit_now()
    assert b.committed() == 1


@pytest.mark.parametrize("stored", [False, True])
def test_a_retry_that_is_reported_without_an_offset_is_made_again_as_the_same_hop(
    kafka: InMemoryKafka, bench: Make, stored: bool
) -> None:
    fill(kafka, 1)

    def handle(message: Any) -> None:
        raise OSError(message)

    b = bench(handle)
    kafka.fail_produce(None, topic="SCHEDULE_TOPIC_XXXX", stored=stored)
    b.run()
    assert (b.send_back.counts.not_stored, b.committed(), len(b.retries())) == (1, 0, int(stored))
    b.commit_now()
    b.clock.advance(5_000)
    b.turn(3)
    b.commit_now()
    assert b.committed() == 1
    assert len({header(record, "HOP_ID") for record in b.retries()}) == 1
    assert {header(record, "RECONSUME_TIMES") for record in b.retries()} == {"1"}


@pytest.mark.parametrize(
    ("asked", "topic", "partition"),
    [
        (RetryLater(level=1), "SCHEDULE_TOPIC_XXXX", 0),
        (RetryLater("2s"), "SCHEDULE_TOPIC_XXXX", 1),
        (DeadLetter("enough"), "rmq.dlq.g", 0),
    ],
    ids=repr,
)
def test_a_repeated_hop_keeps_the_level_that_the_listener_requested(
    kafka: InMemoryKafka, bench: Make, asked: BaseException, topic: str, partition: int
) -> None:
    """RocketMQ's second way back, a normal send, forgets the level that was asked for and counts otherwise."""
    fill(kafka, 1)

    def handle(message: Any) -> None:
        del message
        raise asked

    b = bench(handle)
    kafka.fail_produce(KafkaError(KafkaError._MSG_TIMED_OUT), topic=topic)
    b.run()
    assert kafka.records(topic) == []
    b.clock.advance(5_000)
    b.turn(3)
    (hop,) = kafka.records(topic)
    assert (hop.partition(), header(hop, "RECONSUME_TIMES")) == (partition, "1")


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_message_too_large_for_its_next_hop_becomes_a_dead_letter_by_reference(
    kafka: InMemoryKafka, bench: Make, *, synchronous: bool
) -> None:
    kafka.append("orders", b"x" * 100, headers=[("a", b"b")])

    def handle(message: Any) -> None:
        raise OSError(message)

    kafka.fail_produce(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), topic="SCHEDULE_TOPIC_XXXX", synchronous=synchronous)
    b = bench(handle)
    b.run()
    (dead,) = b.dead()
    assert dead.value() is None
    assert (header(dead, "FAIL_TEXT") or "").startswith("[by reference: sha256=")
    assert header(dead, "ORIGIN_MESSAGE_ID") == "orders/0/0"
    assert b.send_back.counts.dead_by_reference == 1
    b.commit_now()
    assert b.committed() == 1


@pytest.mark.parametrize(
    ("asked", "partition"),
    [
        (RetryLater(level=1), 0),
        (RetryLater(level=99), 4),
        (RetryLater("2s"), 1),
        (RetryLater(), 2),
        (SystemExit(3), 2),
        (KeyboardInterrupt(), 2),
    ],
    ids=repr,
)
def test_the_delay_of_a_failed_message(kafka: InMemoryKafka, bench: Make, asked: BaseException, partition: int) -> None:
    fill(kafka, 1)

    def handle(message: Any) -> None:
        del message
        raise asked

    b = bench(handle)
    b.run()
    (retry,) = b.retries()
    assert retry.partition() == partition
    assert b.loop.error is None


def test_a_listener_sends_a_message_to_the_dead_letters(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 2)

    def handle(message: Any, context: Any) -> None:
        if message.properties["n"] == "0":
            raise DeadLetter("hopeless")
        context.delay_level_when_next_consume = -1
        raise OSError("worse")

    b = bench(handle)
    b.run()
    assert [header(dead, "FAIL_TEXT") for dead in b.dead()] == ["hopeless", "worse"]
    assert b.retries() == []


@pytest.mark.parametrize(("limit", "is_dead"), [(-1, False), (-2, True), (0, True), (1, False)])
def test_the_limit_of_the_group(kafka: InMemoryKafka, bench: Make, limit: int, *, is_dead: bool) -> None:
    fill(kafka, 1)

    def handle(message: Any) -> None:
        raise OSError(message)

    b = bench(handle, limit=limit)
    b.run()
    assert (len(b.dead()), len(b.retries())) == ((1, 0) if is_dead else (0, 1))


@pytest.mark.parametrize("answer", [OSError("a policy that raises"), "nonsense"])
def test_a_broken_retry_policy_does_not_end_the_consumer(kafka: InMemoryKafka, bench: Make, answer: Any) -> None:
    fill(kafka, 1)

    asked: list[int] = []

    class Broken:
        def next_hop(self, reconsume_times: int, unit: float) -> Any:
            del unit
            asked.append(reconsume_times)
            if len(asked) <= 16:  # the consumer asks for each attempt when it is made
                return AtLevel(1)
            if isinstance(answer, Exception):
                raise answer
            return answer

    def handle(message: Any) -> None:
        raise OSError(message)

    b = bench(handle, policy=Broken())
    b.run()
    assert [retry.partition() for retry in b.retries()] == [2]


def retried(kafka: InMemoryKafka, *, topic: str | None = "orders", times: bytes = b"1") -> None:
    headers = [("UNIQ_KEY", b"id"), ("RECONSUME_TIMES", times), ("CONSUMER_GROUP", b"g")]
    if topic is not None:
        headers.append(("RETRY_TOPIC", topic.encode()))
    kafka.append("rmq.retry.g", b"body", headers=headers)


def test_a_retried_message_shows_its_first_topic_and_count(kafka: InMemoryKafka, bench: Make) -> None:
    retried(kafka, times=b"4")
    seen: list[Any] = []
    b = bench(lambda message: seen.append((message.topic, message.reconsume_times)))
    b.run()
    assert seen == [("orders", 4)]


def test_a_retried_message_without_a_listener_is_sent_on_uncounted(kafka: InMemoryKafka, bench: Make) -> None:
    retried(kafka, topic="bills", times=b"16")
    b = bench(nothing)
    b.run()
    (waits,) = b.retries()
    found = [header(waits, name) for name in ("RECONSUME_TIMES", "RETRY_TOPIC", "REAL_TOPIC")]
    assert found == ["16", "bills", "%RETRY%g"]
    assert header(waits, "UNHANDLED_SINCE_MS") == str(kafka.records("rmq.retry.g")[0].timestamp()[1])
    assert b.dead() == []
    b.commit_now()
    assert b.committed("rmq.retry.g") == 1


def test_a_retried_message_too_large_to_be_sent_on_is_logged_as_dead(
    kafka: InMemoryKafka, bench: Make, caplog: pytest.LogCaptureFixture
) -> None:
    retried(kafka, topic="bills")
    kafka.fail_produce(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), topic="SCHEDULE_TOPIC_XXXX")
    b = bench(nothing)
    b.run()
    assert len(b.dead()) == 1
    events = [getattr(record, "event", None) for record in caplog.records]
    assert [event for event in events if event == "consumer.message-dead"] == ["consumer.message-dead"]


def test_a_record_of_another_program_in_the_retry_topic_is_dead_immediately(kafka: InMemoryKafka, bench: Make) -> None:
    retried(kafka, topic=None)
    b = bench(nothing)
    b.run()
    assert [header(dead, "FAIL_CLASS") for dead in b.dead()] == ["NoListener"]


def test_a_malformed_retry_is_parked_and_its_queue_continues(kafka: InMemoryKafka, bench: Make) -> None:
    retried(kafka, times=b"many")
    retried(kafka)
    seen: list[Any] = []
    b = bench(seen.append)
    b.run()
    assert len(seen) == 1
    assert len(kafka.records("rmq.parked")) == 1
    b.commit_now()
    assert b.committed("rmq.retry.g") == 2


def test_a_malformed_retry_that_is_too_large_to_be_parked_is_parked_as_far_as_it_fits(
    kafka: InMemoryKafka, bench: Make
) -> None:
    retried(kafka, times=b"many")
    b = bench(nothing)
    kafka.fail_produce(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), topic="rmq.parked", count=2)
    b.run()
    (parked,) = kafka.records("rmq.parked")
    assert parked.value() is None
    assert dict(parked.headers() or ()).keys() == {"HOP_ID", "PARK_REASON", "PARK_FROM"}
    b.commit_now()
    assert b.committed("rmq.retry.g") == 1


def test_a_listener_of_batches_gets_retried_messages_as_lists_too(kafka: InMemoryKafka, bench: Make) -> None:
    retried(kafka)
    fill(kafka, 3)
    seen: list[Any] = []
    b = bench(lambda messages: seen.append([message.topic for message in messages]), batch_count=2)
    b.run()
    assert sorted(map(tuple, seen)) == [("orders",), ("orders",), ("orders", "orders")]


def test_a_producer_with_a_fatal_error_is_replaced(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 1)

    def handle(message: Any) -> None:
        raise OSError(message)

    b = bench(handle)
    kafka.fail_produce(KafkaError(KafkaError._FATAL, fatal=True), topic="SCHEDULE_TOPIC_XXXX")
    b.run()
    assert len(b.producers) == 2
    b.clock.advance(5_000)
    b.turn(3)
    assert len(b.retries()) == 1


def test_a_producer_that_dies_between_two_calls_is_replaced_too(kafka: InMemoryKafka, bench: Make) -> None:
    """Its fatal error comes out of the next `poll`, and is no reason for the consumer to end."""
    fill(kafka, 1)

    def handle(message: Any) -> None:
        raise OSError(message)

    b = bench(handle)
    kafka.hold_sends("SCHEDULE_TOPIC_XXXX")
    b.run(2)
    b.producers[0]._session.die(KafkaError(KafkaError._FENCED, "gone", fatal=True))
    b.turn(2)
    assert len(b.producers) == 2
    kafka.release()
    b.clock.advance(5_000)
    b.turn(3)
    assert len(b.retries()) == 1


def test_a_producer_that_the_brokers_refuse_is_not_replaced_all_the_time(kafka: InMemoryKafka, unopened: Make) -> None:
    """As without the right to write to any topic: no broker gives it the id of an idempotent producer."""
    fill(kafka, 1)

    def handle(message: Any) -> None:
        raise OSError(message)

    b = unopened(handle)
    make = b.send_back._sender.make_producer

    def refused() -> Any:
        made = make()
        made._session.die(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no id", fatal=True))
        return made

    b.send_back._sender.make_producer = refused
    b.open()
    began_ms = b.loop.reader.now_ms()
    for _ in range(100):
        b.clock.advance(100)
        b.run(1)
    seconds = (b.loop.reader.now_ms() - began_ms) / 1_000
    assert 3 <= len(b.producers) <= 2 + seconds / 5


# --- time-outs ----------------------------------------------------------------------------------------------------


def test_a_message_of_a_too_long_call_is_sent_back_once_at_level_3(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 2)
    b = bench(nothing, settings={"consume_timeout_ms": 10_000})
    b.turn(3)
    stuck = b.pool.tasks.popleft()
    stuck.in_work = (next(stuck.todo),)
    for _ in range(14):
        b.clock.advance(1_000)
        b.turn()
    (retry,) = b.retries()
    assert (retry.partition(), header(retry, "FAIL_CLASS")) == (2, "ConsumeTimeout")
    assert b.committed() == 0
    b.pool.work_all()
    b.commit_now()
    assert b.committed() == 2  # the message counts as sent back; its listener is still in it
    b.pool.submit(stuck)  # and at last it fails, which changes nothing
    stuck.take_back()
    b.pool.work_all()
    b.turn(2)
    assert len(b.retries()) == 1


# --- flow ---------------------------------------------------------------------------------------------------------


def is_full(b: Any, queue: Any) -> bool:
    return PauseReason.FLOW in b.loop.reader.partitions[queue.key].pauses


def test_a_full_queue_is_paused_and_resumes_at_half(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 400)
    b = bench(nothing, limits=FlowLimits(count=50))
    b.turn(60)
    (queue,) = [queue for queue in b.loop.mode.queues if queue.key.topic == "orders"]
    held = queue.msg_count
    assert is_full(b, queue)
    b.turn(20)
    assert queue.msg_count == held
    while queue.msg_count > 26:
        b.pool.work()
        b.turn()
        assert is_full(b, queue)
    b.pool.work(2)
    b.turn()
    assert not is_full(b, queue)
    b.run(turns=100)
    b.commit_now()
    assert b.committed() == 400


def test_one_stuck_message_stops_the_commit_and_at_most_the_span(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3_000)
    b = bench(nothing, limits=FlowLimits(span=200))
    b.turn(2)
    stuck = b.pool.tasks.popleft()
    for _ in range(300):
        b.pool.work_all()
        b.turn()
    (queue,) = [queue for queue in b.loop.mode.queues if queue.key.topic == "orders"]
    assert is_full(b, queue)
    assert queue.msg_count == 1
    assert 200 < queue.span <= 1_200
    b.commit_now()
    assert b.committed() == 0
    b.pool.submit(stuck)
    for _ in range(300):
        b.pool.work_all()
        b.turn()
    b.commit_now()
    assert b.committed() == 3_000


def test_an_empty_queue_that_was_paused_because_of_others_is_resumed(
    kafka: InMemoryKafka, bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.consumer.mode._MAX_IN_FLIGHT", 40)
    kafka.create_topic("bills")
    fill(kafka, 100)
    b = bench(nothing, topics=("orders", "bills"))
    b.turn(20)
    (idle,) = [queue for queue in b.loop.mode.queues if queue.key.topic == "bills"]
    assert is_full(b, idle)
    b.run(turns=20)
    assert not is_full(b, idle)
    fill(kafka, 5, topic="bills")
    b.run()
    b.commit_now()
    assert b.committed("bills") == 5


def test_limits_of_the_topic_are_divided_among_the_assigned_queues(kafka: InMemoryKafka, bench: Make) -> None:
    kafka.create_topic("bills", 3)
    b = bench(nothing, topics=("orders", "bills"), settings={"pull_threshold_for_topic": 100})
    b.turn(5)
    assert len(b.loop.mode.queues) == 5  # the retry topic's queue is one of them, as in RocketMQ
    assert b.loop.mode._limits.count == 20


def test_a_suspended_consumer_reads_nothing_and_commits_finished_messages(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3)
    seen: list[Any] = []
    b = bench(seen.append)
    b.run()
    asked = b.loop.ask(PollLoop.suspend)
    b.turn(2)
    assert asked.result(0) is None
    assert b.committed() == 3
    fill(kafka, 2)
    b.run()
    assert len(seen) == 3
    b.loop.ask(lambda loop: loop.reader.resume())
    b.run()
    assert len(seen) == 5


# --- assignment ---------------------------------------------------------------------------------------------------


def test_a_paused_partition_that_is_assigned_again_is_read(kafka: InMemoryKafka, bench: Make) -> None:
    kafka.create_topic("bills", 2)
    fill(kafka, 100, topic="bills", partition=0)
    fill(kafka, 100, topic="bills", partition=1)
    b = bench(nothing, topics=("bills",), limits=FlowLimits(count=10))
    b.turn(40)
    assert any(is_full(b, queue) for queue in b.loop.mode.queues)
    rival = kafka.consumer(
        {"group.id": "g", "partition.assignment.strategy": "cooperative-sticky", "enable.auto.commit": False}
    )
    rival.subscribe(["bills"])
    for _ in range(10):
        rival.poll(0)
        b.run(1)
    assert rival.assignment()
    rival.close()
    b.run(80)
    b.commit_now()
    assert [b.committed("bills", number) for number in (0, 1)] == [100, 100]


def test_a_result_of_a_former_assignment_changes_nothing(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3)

    def handle(message: Any) -> None:
        raise OSError(message)

    b = bench(handle)
    b.turn(3)
    old = list(b.pool.tasks)
    begun = old[0]
    message = next(begun.todo)
    begun.in_work = (message,)
    kafka.evict(b.consumer)
    b.turn(5)
    assert all(not chunk.todo_count for chunk in old)  # nothing of it is begun any more
    b.pool.work(len(old))
    b.turn(2)
    assert b.retries() == []
    b.run()
    assert len(b.retries()) == 3
    b.commit_now()
    assert b.committed() == 3


def test_at_revocation_running_calls_finish_and_are_committed(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3)
    b = bench(nothing)
    b.turn(3)
    begun = b.pool.tasks[0]
    begun.in_work = (next(begun.todo),)  # the second and third chunk are not begun: they are taken back
    waits: list[int] = []

    def finish() -> None:
        waits.append(1)
        if len(waits) == 3:
            b.pool.work_all()

    b.pool.on_wait = finish
    b.loop.reader._on_revoke(b.consumer, [TopicPartition("orders", 0)])
    assert begun.reported
    assert b.committed() == 1
    assert [queue.key.topic for queue in b.loop.mode.queues] == ["rmq.retry.g"]


def test_an_error_in_a_rebalance_callback_is_kept_and_not_raised(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench(nothing)
    b.run()

    def refuse(_: Any) -> None:
        raise RuntimeError("the client is closed")

    monkeypatch.setattr(b.consumer, "incremental_unassign", refuse)
    b.loop.reader._on_revoke(b.consumer, [TopicPartition("orders", 0)])
    monkeypatch.undo()
    with pytest.raises(ConsumerError, match="the client is closed"):
        b.turn()


def test_a_revocation_waits_at_most_the_drain_time(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 1)
    b = bench(nothing)
    b.turn(3)
    begun = b.pool.tasks[0]
    begun.in_work = (next(begun.todo),)
    before_ms = b.clock.monotonic_ns() // 1_000_000
    b.loop.reader._on_revoke(b.consumer, [TopicPartition("orders", 0)])
    assert 3_000 <= b.clock.monotonic_ns() // 1_000_000 - before_ms < 3_100
    assert b.committed() == 0


def test_a_start_that_cannot_be_found_is_looked_up_again(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3)
    seen: list[Any] = []
    b = bench(seen.append)
    b.run()
    b.commit_now()
    real = b.starts.resolve
    away, failed = [True], []

    def resolve(*arguments: Any) -> Any:
        if not away[0]:
            return real(*arguments)
        failed.append(1)
        kafka.stop_broker()
        try:
            return real(*arguments)
        finally:
            kafka.start_broker()

    b.starts.resolve = resolve
    kafka.evict(b.consumer)
    b.turn(5)
    assert failed
    fill(kafka, 2)
    b.run()
    assert len(seen) == 3  # nothing is handed out whose start is not known
    away[0] = False
    b.clock.advance(1_000)
    b.run()
    assert len(seen) == 5
    b.commit_now()
    assert b.committed() == 5


def test_a_late_start_look_up_of_the_client_brings_back_no_old_message(kafka: InMemoryKafka, bench: Make) -> None:
    """A log that begins at 20: the client looked up its beginning, and the answer came after the seek to 40."""
    fill(kafka, 60)
    kafka.truncate("orders", before_offset=20)
    seen: list[Any] = []
    b = bench(seen.append)
    b.turn(1)
    key, old = TopicPartitionKey("orders", 0), kafka.records("orders")
    b.loop.mode.begin(key, 40)
    b.loop.mode.put(key, old[:30])  # up to 49
    b.loop.mode.put(key, old[:10])  # up to 39, so the client has to be sent to 50
    b.run()
    b.commit_now()
    assert [message.queue_offset for message in seen] == list(range(40, 60))
    assert b.committed() == 60


def test_a_log_that_was_created_again_is_read_from_its_new_start(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 5)
    seen: list[Any] = []
    b = bench(seen.append)
    b.run()
    b.commit_now()
    kafka.delete_topic("orders")
    kafka.create_topic("orders")
    fill(kafka, 2)
    b.consumer.seek(TopicPartition("orders", 0, 0))
    b.run()
    assert len(seen) == 7
    b.commit_now()
    assert b.committed() == 2


def test_a_log_that_was_cut_within_a_fetch_is_read_from_its_new_start(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 5)
    seen: list[Any] = []
    b = bench(seen.append)
    b.run()
    records = kafka.records("orders")
    fill(kafka, 2)
    for key, run in b.loop.reader.current_runs([*kafka.records("orders")[5:], *records]):
        b.loop.mode.put(key, run)
    b.run()
    assert [message.queue_offset for message in seen] == [*range(5), *range(7)]
    assert b.loop.error is None


def test_a_log_that_was_cut_while_its_queue_was_full_is_read(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 100)
    seen: list[Any] = []
    b = bench(seen.append, limits=FlowLimits(count=10))
    b.turn(5)
    assert is_full(b, b.loop.mode.get(KEY))
    b.loop.mode.put(KEY, kafka.records("orders")[:1])  # the client had fetched it before the pause took effect
    fill(kafka, 3)
    b.run()
    assert [message.queue_offset for message in seen] == [0, 100, 101, 102]


def test_a_start_that_is_found_while_listeners_have_too_much_is_read(
    kafka: InMemoryKafka, bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.consumer.mode._MAX_IN_FLIGHT", 40)
    kafka.create_topic("bills")
    fill(kafka, 100)
    fill(kafka, 5, topic="bills")
    seen: list[Any] = []
    b = bench(seen.append, topics=("orders", "bills"))
    b.pool.tasks.clear()
    real, away = b.starts.find, [True]

    def find(keys: Any, timeout_s: float) -> Any:
        if away[0] and any(key.topic == "bills" for key in keys):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return real(keys, timeout_s)

    b.starts.find = find
    kafka.evict(b.consumer)
    b.turn(20)
    assert [is_full(b, queue) for queue in b.loop.mode.queues] == [True] * 3
    while b.loop.dispatch.in_flight > 30:
        b.pool.work()
        b.turn()
    away[0] = False
    b.clock.advance(20_000)
    b.turn()
    b.run(turns=20)
    assert {message.topic for message in seen} == {"orders", "bills"}


@pytest.mark.parametrize(
    ("where", "bodies"),
    [
        (ConsumeFromWhere.FIRST_OFFSET, [b"1", b"2", b"3", b"4"]),
        (ConsumeFromWhere.TIMESTAMP, [b"2", b"3", b"4"]),
        (ConsumeFromWhere.LAST_OFFSET, [b"4"]),
    ],
)
def test_where_a_new_group_begins(
    kafka: InMemoryKafka, bench: Make, where: ConsumeFromWhere, bodies: list[bytes]
) -> None:
    for number in (1, 2, 3):
        kafka.append("orders", str(number).encode(), timestamp_ms=number * 1_000)
    seen: list[Any] = []
    b = bench(lambda message: seen.append(message.body), where=where, timestamp_ms=1_500)
    kafka.append("orders", b"4")
    b.run()
    assert seen == bodies


def test_the_start_is_committed_before_the_first_message_is_handed_out(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 7)
    b = bench(nothing, where=ConsumeFromWhere.LAST_OFFSET)
    assert b.committed() == 7
    kafka.kill(b.consumer)
    fill(kafka, 2)
    b.clock.advance(60_000)
    seen: list[Any] = []
    second = bench(seen.append, where=ConsumeFromWhere.LAST_OFFSET)
    second.run()
    assert len(seen) == 2


def test_partitions_that_came_later_are_read_from_their_start(kafka: InMemoryKafka, bench: Make) -> None:
    first = bench(nothing, where=ConsumeFromWhere.LAST_OFFSET)
    first.run()
    first.loop.stop(0)
    first.loop.close()
    kafka.add_partitions("orders", 2)
    fill(kafka, 3, partition=1)
    seen: list[Any] = []
    second = bench(seen.append, where=ConsumeFromWhere.LAST_OFFSET)
    second.run()
    assert len(seen) == 3


def test_another_subscription_in_the_group_is_found_and_logged(bench: Make, caplog: pytest.LogCaptureFixture) -> None:
    first = bench(nothing, digest="paid || created")
    first.run()
    first.loop.stop(0)
    first.loop.close()
    second = bench(nothing, digest="paid")
    assert second.starts.conflicts == {"orders": "orders=paid || created"}
    (said,) = [record for record in caplog.records if getattr(record, "event", None) == "consumer.subscriptions-differ"]
    assert (said.__dict__["mine"], said.__dict__["theirs"]) == ("orders=paid", "orders=paid || created")


def test_a_member_that_has_only_a_queue_of_the_retry_topic_is_found_too(bench: Make) -> None:
    owner = bench(nothing, digest="paid")
    owner.starts.look(["orders", "rmq.retry.g"], 1)
    assert owner.starts.conflicts == {}
    for text, found in (("orders=created", {"orders": "orders=created"}), ("bills=created", {})):
        offset = TopicPartition("rmq.retry.g", 0, 0, metadata=encode_metadata(CommitMetadata("other", 1, text)))
        owner.loop.reader.client().commit(offsets=[offset], asynchronous=False)
        owner.starts.look(["orders", "rmq.retry.g"], 1)
        assert owner.starts.conflicts == found


def test_a_member_with_other_topics_and_the_same_filters_is_no_conflict_but_a_line(
    kafka: InMemoryKafka, bench: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A rolling deployment that adds one topic, and later the old member, which reads only the first."""
    kafka.create_topic("bills")
    first = bench(nothing, topics=("orders", "bills"), digest="paid")
    first.run()
    first.loop.stop(0)
    first.loop.close()
    second = bench(nothing, digest="paid")
    second.run()
    assert second.starts.conflicts == {}
    logged = [vars(record) for record in caplog.records if "differ" in str(vars(record).get("event"))]
    assert [record["event"] for record in logged] == ["consumer.topics-differ"]
    assert (logged[0]["only_mine"], logged[0]["only_theirs"]) == ([], ["bills"])
    assert "rolling deployment" in logged[0]["hint"]


def test_where_members_allocate_the_queues_other_topics_are_a_conflict(kafka: InMemoryKafka, bench: Make) -> None:
    kafka.create_topic("bills")
    first = bench(nothing, topics=("orders", "bills"), digest="paid")
    first.run()
    first.loop.stop(0)
    first.loop.close()
    second = bench(nothing, digest="paid")
    second.starts._rules = replace(second.starts._rules, allocates=True)
    second.starts.look(["orders"], 1)
    assert second.starts.conflicts == {"orders": "bills=paid, orders=paid"}


def test_a_topic_that_is_read_no_longer_has_no_conflict(kafka: InMemoryKafka, bench: Make) -> None:
    kafka.create_topic("bills")
    first = bench(nothing, topics=("orders", "bills"), digest="paid || created")
    first.run()
    first.loop.stop(0)
    first.loop.close()
    second = bench(nothing, topics=("orders", "bills"), digest="paid")
    assert second.starts.conflicts.keys() == {"orders", "bills"}
    second.loop.ask(lambda loop: loop.unsubscribe("orders"))
    second.turn()
    second.clock.advance(60_000)
    second.run()
    second.clock.advance(60_000)
    second.run()
    assert second.starts.conflicts == {}


# --- errors and ends ----------------------------------------------------------------------------------------------


def test_a_denied_topic_ends_the_consumer_with_a_typed_error(kafka: InMemoryKafka, bench: Make) -> None:
    b = bench(nothing)
    kafka.raise_in_poll(b.consumer, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(ConsumerError):
        b.turn(3)
    assert isinstance(b.loop.error, NotAuthorizedError)


@pytest.mark.parametrize("by", ["event", "commit"])
def test_a_client_that_can_do_nothing_more_ends_the_consumer(kafka: InMemoryKafka, bench: Make, by: str) -> None:
    """As with KIP-848 if the right to read in the group is taken away: `fatal()` of these errors is False."""
    fill(kafka, 1)
    b = bench(nothing)
    b.run()
    error = KafkaError(KafkaError._FATAL, "it is over")
    if by == "event":
        kafka.raise_in_poll(b.consumer, error)
    else:
        kafka.fail_commits(error)
    with pytest.raises(ConsumerError, match="it is over"):
        b.commit_now()


def test_the_first_of_two_errors_in_one_fetch_is_reported(kafka: InMemoryKafka, bench: Make) -> None:
    b = bench(nothing)
    b.run()
    kafka.raise_in_poll(b.consumer, KafkaError(KafkaError._FATAL, "it is over"))
    kafka.raise_in_poll(b.consumer, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(ConsumerError, match="it is over"):
        b.turn(3)


def test_a_topic_that_is_missing_for_a_moment_is_waited_for(kafka: InMemoryKafka, bench: Make) -> None:
    b = bench(nothing)
    kafka.delete_topic("orders")
    b.turn(3)
    kafka.create_topic("orders")
    b.clock.advance(31_000)
    b.turn(3)
    assert b.loop.error is None


def test_a_topic_that_stays_missing_ends_the_consumer(kafka: InMemoryKafka, bench: Make) -> None:
    b = bench(nothing)
    kafka.delete_topic("orders")
    b.turn(3)
    b.clock.advance(31_000)
    with pytest.raises(ConsumerError, match="orders"):
        b.turn(2)
    assert isinstance(b.loop.error, TopicMissingError)


def test_closing_finishes_running_calls_commits_and_leaves(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3)
    b = bench(nothing)
    b.turn(3)
    b.pool.work(2)
    b.loop.stop(5_000)
    b.loop.close()
    assert b.committed() == 2  # the third was not begun
    assert kafka.members("g") == []
    assert b.pool.stopped
    b.loop.close()  # safe twice


def test_closing_commits_what_was_finished_while_the_commit_before_was_not_answered(
    kafka: InMemoryKafka, bench: Make
) -> None:
    fill(kafka, 2)
    b = bench(nothing)
    b.turn(3)
    b.pool.work()
    b.loop.dispatch.take()
    b.loop.mode.commit()
    b.pool.work()
    b.loop.dispatch.take()
    b.loop.stop(5_000)
    b.loop.close()
    assert b.committed() == 2


def test_closing_commits_before_it_waits_for_running_calls(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 2)
    b = bench(nothing)
    b.turn(3)
    b.pool.work()
    b.loop.dispatch.take()
    running = b.pool.tasks[0]
    running.in_work = (next(running.todo),)
    seen: list[int | None] = []
    b.pool.on_wait = lambda: seen.append(b.committed())
    b.loop.stop(100)
    b.loop.close()
    assert seen[1] == 1


def test_a_rebalance_while_closing_commits_what_is_finished_and_waits_for_no_call(
    kafka: InMemoryKafka, bench: Make
) -> None:
    fill(kafka, 2)
    b = bench(nothing)
    b.turn(3)
    for chunk in b.pool.tasks:
        chunk.in_work = (next(chunk.todo),)
    waits: list[int] = []

    def first_call_ends_then_rebalance() -> None:
        waits.append(1)
        if len(waits) == 1:
            b.pool.work()
        else:
            b.loop.reader._on_revoke(b.consumer, [TopicPartition("orders", 0)])

    b.pool.on_wait = first_call_ends_then_rebalance
    began_ms = b.clock.monotonic_ns() // 1_000_000
    b.loop.stop(5_000)
    b.loop.close()
    assert b.committed() == 1
    assert b.clock.monotonic_ns() // 1_000_000 - began_ms < 100


def test_closing_abandons_a_call_that_never_ends_at_the_deadline(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 2)
    b = bench(nothing)
    b.turn(3)
    stuck = b.pool.tasks[0]
    stuck.in_work = (next(stuck.todo),)
    began_ms = b.clock.monotonic_ns() // 1_000_000
    b.loop.stop(2_000)
    b.loop.close()
    assert 2_000 <= b.clock.monotonic_ns() // 1_000_000 - began_ms < 2_100
    assert b.committed() == 0
    assert kafka.members("g") == []


def test_closing_without_a_broker_ends_in_time(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 2)
    b = bench(nothing)
    b.turn(3)
    b.pool.work_all()
    kafka.stop_broker()
    b.loop.stop(1_000)
    b.loop.close()
    assert b.loop.error is None


def test_after_an_error_finished_messages_are_still_committed(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 2)
    b = bench(nothing)
    b.turn(3)
    b.pool.work_all()
    b.turn()
    b.loop.reader.fail(ConsumerError("something"))
    b.loop.close()
    assert b.committed() == 2


def test_an_action_asked_of_a_closed_loop_fails(bench: Make) -> None:
    b = bench(nothing)
    b.loop.stop(0)
    asked = b.loop.ask(PollLoop.suspend)
    b.loop.close()
    assert asked.done(), "also if nobody asks again"
    for each in (asked, b.loop.ask(PollLoop.suspend)):
        with pytest.raises(ConsumerError, match="not running"):
            each.result(0)


def test_an_action_asked_of_a_loop_that_has_failed_fails_with_the_reason(bench: Make) -> None:
    b = bench(nothing)
    b.loop.reader.fail(ConsumerError("no access"))
    b.loop.close()
    with pytest.raises(ConsumerError, match="stopped after an error: no access"):
        b.loop.ask(PollLoop.suspend).result(0)


def test_the_neighbours_of_a_slow_message_are_taken_back(kafka: InMemoryKafka, bench: Make) -> None:
    b = bench(nothing)
    fill(kafka, 40)
    b.run(10)  # 32 fast chunks and more: from now on chunks are large
    fill(kafka, 64)
    b.turn(6)
    large = max(b.pool.tasks, key=lambda chunk: len(chunk.messages))
    assert len(large.messages) > 10
    b.pool.tasks.remove(large)
    large.in_work = (next(large.todo),)
    left = large.todo_count
    for _ in range(3):
        b.clock.advance(11)
        b.turn()
    assert not large.todo_count
    assert len([chunk for chunk in b.pool.tasks if len(chunk.messages) == 1]) >= left
    b.run(5)
    b.commit_now()
    assert b.committed() == 40


def test_an_exception_that_cannot_be_read_is_sent_back_with_a_short_text(
    kafka: InMemoryKafka, bench: Make, hostile: BaseException
) -> None:
    def handle(message: Any) -> None:
        if message.queue_offset == 1:
            raise hostile

    fill(kafka, 3)
    b = bench(handle)
    b.run()
    b.commit_now()
    (retry,) = b.retries()
    assert header(retry, "FAIL_CLASS") == class_name(hostile)
    assert len((header(retry, "FAIL_TEXT") or "").encode()) <= 1_024
    assert b.committed() == 3


@pytest.mark.usefixtures("broken_logging")
def test_a_loop_that_fails_keeps_its_error_before_it_logs(
    kafka: InMemoryKafka, unopened: Make, hostile: BaseException
) -> None:
    b = unopened(nothing)
    fill(kafka, 1)
    chunk: Any = type("Chunk", (), {"messages": []})()
    b.pool.results.put(Result(chunk, None, 0, died=hostile))
    b.loop.run()
    assert b.loop.error is hostile
    assert b.pool.stopped
    assert kafka.members("g") == []


def test_a_loop_that_cannot_close_keeps_that_error(unopened: Make) -> None:
    def stop(timeout_s: float) -> bool:
        raise OSError(f"no thread ends within {timeout_s} s")

    b = unopened(nothing)
    b.pool.stop = stop
    b.loop.stop(0)
    b.loop.run()
    assert isinstance(b.loop.error, OSError)
