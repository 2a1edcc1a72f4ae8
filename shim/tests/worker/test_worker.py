"""The worker's promises, in virtual time on the in-memory Kafka."""

import gc
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.redrive import redriven_parked
from rocketshim.admin.trace import life, step_text
from rocketshim.core.worker_notes import clock_ahead_ms_of
from rocketshim.errors import ConfigError, NotAuthorizedError, TopicMismatchError, WorkerError
from rocketshim.worker.hop_writer import HopBatch
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

LEVELS = DelayLevels.parse("1s 2s 3s 10s")
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
NAMES = TopicNames("")


def header(record: Message, name: str) -> str | None:
    value = dict(record.headers() or []).get(name)
    return value.decode() if isinstance(value, bytes) else value


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_record_is_delivered_when_its_level_is_over_and_not_before(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 100)
    sent = sim.schedule(level=2, value=b"v", key=b"k", headers=[("a", b"1"), ("a", None)])
    sim.run(worker, 1_990)
    assert sim.delivered() == []
    sim.run(worker, 60)
    [record] = sim.delivered()
    assert record.timestamp()[1] >= sent.timestamp()[1] + 2_000
    assert (record.key(), record.value()) == (b"k", b"v")
    assert record.headers()[-2:] == [("a", b"1"), ("a", None)]
    assert header(record, "HOP_ID") == f"{SCHEDULE}/1/{sent.offset()}"
    assert header(record, "REAL_TOPIC") is None


def test_any_delay_hops_through_the_queues_and_is_never_early(sim: Any) -> None:
    worker = sim.worker()
    sent = sim.schedule(relative=False, headers=[("DELAY_MS", b"4700")], level=3)
    sim.until(worker, lambda: bool(sim.delivered()))
    [record] = sim.delivered()
    late_ms = record.timestamp()[1] - sent.timestamp()[1] - 4_700
    assert 0 <= late_ms <= 60
    assert worker.counts.hopped >= 2


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_wall_clock_that_steps_by_an_hour_changes_nothing(sim: Any, step_ms: int) -> None:
    worker = sim.worker()
    sent = sim.schedule(level=2)
    sim.run(worker, 100)
    # the worker's wall clock is the broker's here: hold the leader where it was, so that only the worker's steps
    sim.clock.step_wall(step_ms)
    sim.kafka.set_leader_clock(-step_ms)
    sim.until(worker, lambda: bool(sim.delivered()))
    [record] = sim.delivered()
    assert 2_000 <= record.timestamp()[1] - sent.timestamp()[1] <= 2_050


@pytest.mark.parametrize("ahead_ms", [-86_400_000, 7_200_000, 86_400_000])
def test_a_worker_whose_clock_is_wrong_delivers_at_the_brokers_time_and_is_not_ready(sim: Any, ahead_ms: int) -> None:
    sim.kafka.set_leader_clock(-ahead_ms)
    sim.kafka.create_topic("audit", 1)  # takes the sender's time, at most an hour ahead, as `rmq.parked` does
    worker = sim.worker()
    sent = sim.schedule(topic="audit", level=2)
    sim.schedule(topic="audit", relative=False, headers=[("DELAY_MS", b"4700")], level=3)
    sim.schedule(topic=None, level=1)
    sim.until(worker, lambda: len(sim.delivered("audit")) == 2 and len(sim.parked()) == 1)
    sim.run(worker, 1_500)
    assert not any((worker.counts.re_appended, worker.counts.resent, worker.counts.aborted))
    brokers_ms = sim.clock.wall_ms() - ahead_ms
    for record in (*sim.delivered("audit"), *sim.kafka.records("rmq.parked")):
        assert sent.timestamp()[1] + 1_000 <= record.timestamp()[1] <= brokers_ms
    state = worker.state
    assert not state.is_ready(state.at_ns)
    assert abs(state.clock_ahead_ms - ahead_ms) <= 50
    assert worker.counts.alarms["worker.clock-differs"] == 1
    sim.clock.step_wall(-ahead_ms)  # somebody sets the clock
    sim.kafka.set_leader_clock(0)
    sim.run(worker, 2_500)
    assert worker.state.is_ready(worker.state.at_ns)


def test_a_worker_with_records_that_wait_compares_its_clock_every_ten_minutes(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 1_500)
    assert sim.kafka.records(SCHEDULE) == [], "an idle queue costs nothing"
    sim.schedule(level=4, relative=False, headers=[("DELIVER_AT_MS", b"%d" % (sim.clock.wall_ms() + 3_000_000))])
    sim.run(worker, 1_500)
    probes = [record for record in sim.kafka.records(SCHEDULE) if record.value() is None]
    assert len(probes) == 1


@pytest.mark.parametrize("has_delivered", [True, False], ids=["after-a-delivery", "while-its-first-record-waits"])
def test_the_commits_of_an_idle_worker_name_its_wrong_clock_and_later_the_right_one(
    sim: Any, *, has_delivered: bool
) -> None:
    sim.kafka.set_leader_clock(-7_200_000)
    worker = sim.worker()
    if has_delivered:
        sim.schedule(level=1)
        sim.until(worker, lambda: bool(sim.delivered()))
    else:
        sim.schedule(level=4)
    sim.run(worker, 8_000)
    assert {abs(clock_ahead_ms_of(each) - 7_200_000) <= 50 for each in committed_metadata(sim)} == {True}
    sim.clock.step_wall(-7_200_000)  # somebody sets the clock
    sim.kafka.set_leader_clock(0)
    sim.run(worker, 4_000)
    assert {clock_ahead_ms_of(each) for each in committed_metadata(sim)} == {0}
    assert worker.counts.alarms == {"worker.clock-differs": 1}


def committed_metadata(sim: Any) -> list[str | None]:
    """Return the metadata of the worker's last commit of each queue."""
    reader = sim.kafka.consumer({"group.id": "rmq.sched"})
    queues = [TopicPartition(SCHEDULE, number) for number in range(32)]
    return [each.metadata for each in reader.committed(queues)]


def test_a_leader_clock_that_steps_back_delivers_no_record_early(sim: Any) -> None:
    worker = sim.worker()
    for _ in range(3):
        sim.schedule(level=1)
        sim.run(worker, 300)
    sim.kafka.set_leader_clock(-5_000)
    sent = sim.schedule(level=1, value=b"after")
    sent_ns = sim.clock.monotonic_ns()
    sim.until(worker, lambda: any(record.value() == b"after" for record in sim.delivered()))
    assert sim.clock.monotonic_ns() - sent_ns >= 1_000 * 1_000_000
    [last] = [record for record in sim.delivered() if record.value() == b"after"]
    assert last.timestamp()[1] - sent.timestamp()[1] >= 1_000


def test_a_record_with_an_append_time_in_the_future_counts_from_when_it_was_first_seen(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 10)
    sim.kafka.set_leader_clock(+7_200_000)
    sim.schedule(level=1)
    sim.kafka.set_leader_clock(0)
    sim.until(worker, lambda: bool(sim.delivered()), 3_000)


def test_records_already_due_are_delivered_immediately_after_a_restart(sim: Any) -> None:
    first = sim.worker()
    sim.run(first, 10)
    first.close()
    for number in range(20):
        sim.schedule(level=1, value=b"%d" % number)
    sim.clock.advance(3_600_000)
    second = sim.worker()
    sim.until(second, lambda: len(sim.delivered()) == 20, 200)


def test_with_another_level_table_a_record_that_leaves_too_soon_hops_again(sim: Any) -> None:
    worker = sim.worker()
    # the sender's level 1 is 5 s, the worker's 1 s; and a level 20 the worker does not have
    first = sim.schedule(relative=False, headers=[("DELAY_MS", b"5000")], partition=0)
    second = sim.schedule(relative=False, headers=[("DELAY_MS", b"4000")], partition=19, value=b"long")
    sim.until(worker, lambda: len(sim.delivered()) == 2)
    for record in sim.delivered():
        sent, delay = (first, 5_000) if record.value() == b"body" else (second, 4_000)
        assert 0 <= record.timestamp()[1] - sent.timestamp()[1] - delay <= 80


def test_a_hop_that_could_not_be_stored_until_its_record_was_due_is_not_made(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 500)
    sent = sim.schedule(level=4, relative=False, headers=[("DELAY_MS", b"18000")])
    sim.run(worker, 9_500)
    sim.kafka.deny(SCHEDULE, read=False)
    sim.run(worker, 12_000)
    sim.kafka.allow(SCHEDULE)
    sim.until(worker, lambda: len(sim.delivered()) == 1, 6_000)
    sim.run(worker, 100)
    assert worker.counts.hopped == 0
    late_ms = sim.delivered()[0].timestamp()[1] - sent.timestamp()[1] - 18_000
    assert late_ms >= 0
    assert abs(worker.counts.lateness.total * 1e3 - late_ms) <= 30


# --- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.only("at-least-once")
def test_a_position_moves_only_when_the_report_has_arrived(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.kafka.hold_reports("orders")
    sim.run(worker, 1_900)
    assert len(sim.delivered()) == 1
    assert sim.position() == 0
    sim.kafka.release()
    sim.run(worker, 400)
    assert sim.position() >= 1


def test_the_first_start_commits_a_position_for_every_partition(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 10)
    assert {sim.position(number) for number in range(32)} == {0}


@pytest.mark.parametrize(("refused", "alarms"), [(3, set()), (99, {"worker.positions-unknown"})])
def test_leaders_that_do_not_know_a_new_topic_yet_are_asked_again_at_assignment(
    sim: Any, monkeypatch: pytest.MonkeyPatch, refused: int, alarms: set[str]
) -> None:
    worker = sim.worker()
    answers, asked = worker._consumer.offsets_for_times, 0

    def young(*given: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= refused:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return answers(*given, **named)

    monkeypatch.setattr(worker._consumer, "offsets_for_times", young)
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1, 20_000)
    assert asked >= min(refused, 20)
    assert worker.counts.alarms.keys() - {"worker.position-out-of-range"} == alarms


def test_positions_that_cannot_be_read_are_asked_for_again_and_alarm_until_they_can_be(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sim.worker()
    sim.run(first, 100)
    first.close()
    worker = sim.worker()
    answers, is_unstable = worker._consumer.committed, True
    waits_s: list[float] = []

    def committed(*given: Any, **named: Any) -> Any:
        waits_s.append(named["timeout"])
        if is_unstable:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return answers(*given, **named)

    monkeypatch.setattr(worker._consumer, "committed", committed)
    sim.run(worker, 35_000)
    assert worker.counts.alarms["worker.positions-unknown"] == 4
    assert waits_s == [5, 0.5, 1, 2], "slow brokers get more time"
    is_unstable = False
    sim.run(worker, 35_000)
    assert worker.counts.alarms["worker.positions-unknown"] == 4


def position_after_a_delivery(sim: Any) -> Any:
    """Return the position of a worker that has delivered a record and is closed."""
    first = sim.worker()
    sim.schedule()
    sim.until(first, lambda: len(sim.delivered()) == 1)
    sim.run(first, 1_000)
    first.close()
    return sim.position()


def test_an_error_in_place_of_a_position_is_not_taken_for_a_missing_position(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = position_after_a_delivery(sim)
    worker = sim.worker()
    monkeypatch.setattr(worker._consumer, "committed", lambda asked, **_: [sim.denied_position(each) for each in asked])
    sim.run(worker, 5_000)
    assert worker.counts.alarms["worker.positions-unknown"] == 1
    assert len(sim.delivered()) == 1
    assert sim.position() == position


def test_a_position_that_was_unknown_at_the_start_is_asked_for_before_reading_resumes(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = position_after_a_delivery(sim)
    worker = sim.worker()
    monkeypatch.setattr(worker._consumer, "committed", lambda asked, **_: [sim.denied_position(asked[0])])
    sim.run(worker, 2_500)
    worker._assignment.overtaken(sim.key(0))  # a leader that has just moved denies the position
    sim.run(worker, 1_500)
    assert worker._assignment._unread == {sim.key(0)}
    monkeypatch.undo()
    sim.run(worker, 1_500)
    assert worker._assignment._unread == set()
    assert len(sim.delivered()) == 1
    assert sim.position() >= position
    assert "worker.position-out-of-range" not in worker.counts.alarms


def test_a_position_that_retention_has_deleted_starts_at_the_earliest_record_with_an_alarm(sim: Any) -> None:
    first = sim.worker()
    sim.run(first, 10)
    first.close()
    for number in range(5):
        sim.schedule(value=b"%d" % number)
    sim.kafka.truncate(SCHEDULE, 0, before_offset=3)
    second = sim.worker()
    sim.until(second, lambda: len(sim.delivered()) == 2)
    assert [record.value() for record in sim.delivered()] == [b"3", b"4"]
    assert second.counts.alarms["worker.position-out-of-range"] == 1


@pytest.mark.parametrize("has_records", [True, False])
def test_a_start_without_positions_is_logged_if_the_queues_have_records(
    sim: Any, caplog: pytest.LogCaptureFixture, *, has_records: bool
) -> None:
    if has_records:
        sim.schedule()
    sim.run(sim.worker(), 10)
    assert ("worker.positions-missing" in caplog.text) is has_records


def test_records_are_never_delivered_early_under_another_level_table(sim: Any) -> None:
    sent = {b"%d" % level: (sim.schedule(level=level, value=b"%d" % level), level) for level in (1, 2, 3, 4)}
    worker = sim.worker(delay_levels="4s 1s")  # one longer, one shorter, two that it does not have
    sim.until(worker, lambda: len(sim.delivered()) == len(sent), 30_000)
    for record in sim.delivered():
        first, level = sent[record.value()]
        assert record.timestamp()[1] - first.timestamp()[1] >= LEVELS.delay_ms(level)


def test_a_running_worker_whose_position_retention_deletes_continues_at_the_earliest_record_with_an_alarm(
    sim: Any,
) -> None:
    worker = sim.worker(prefetch_count=2)
    sim.schedule(value=b"0", level=4)
    sim.run(worker, 100)
    sent = [sim.schedule(value=b"%d" % number, level=4) for number in range(1, 8)]
    sim.kafka.truncate(SCHEDULE, 3, before_offset=sent[5].offset())
    sim.until(worker, lambda: len(sim.delivered()) == 3)
    assert [record.value() for record in sim.delivered()] == [b"0", b"6", b"7"]
    assert worker.counts.alarms["worker.position-out-of-range"] == 1
    sim.until(worker, lambda: sim.position(3) > sent[6].offset())


def test_a_client_that_stopped_reading_resumes_at_its_position_once_the_cluster_answers(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = sim.worker()
    sim.schedule(value=b"0")
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    consumer = worker._consumer
    answers, asked = consumer.offsets_for_times, 0

    def moved(*given: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return answers(*given, **named)

    monkeypatch.setattr(consumer, "offsets_for_times", moved)
    worker._assignment.overtaken(sim.key(0))
    sim.schedule(value=b"1")
    sim.until(worker, lambda: asked >= 3, 10_000)
    sim.until(worker, lambda: len(sim.delivered()) == 2, 10_000)
    sim.run(worker, 3_000)
    assert [record.value() for record in sim.delivered()] == [b"0", b"1"]
    assert "worker.position-out-of-range" not in worker.counts.alarms


@pytest.mark.only("at-least-once")
def test_a_paused_partition_whose_reading_is_resumed_does_not_stay_paused(sim: Any) -> None:
    worker = sim.worker(prefetch_count=1_000, drain_count=300, max_in_flight_count=300)
    sim.kafka.hold_reports("orders")
    for number in range(2_500):
        sim.schedule(value=b"%d" % number, level=4)
    sim.run(worker, 10_100)
    held = worker._assignment.held[sim.key(3)]
    assert held.paused
    assert not held.queue.full
    assert not held.queue.hungry
    worker._assignment.overtaken(sim.key(3))  # the client found it before the pause and reports it now
    sim.run(worker, 100)
    sim.kafka.release()
    sim.until(worker, lambda: len(sim.delivered()) == 2_500)


def test_partitions_whose_positions_were_deleted_are_looked_up_in_one_request_and_do_not_block_each_other(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = sim.worker()
    sim.schedule(value=b"0")
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    consumer = worker._consumer
    answers = consumer.offsets_for_times
    questions: list[list[int]] = []
    away: set[int] = set()

    def ask(places: Any, **named: Any) -> Any:
        questions.append([place.partition for place in places])
        if away & set(questions[-1]):
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return answers(places, **named)

    monkeypatch.setattr(consumer, "offsets_for_times", ask)
    for number in range(4):
        worker._assignment.overtaken(sim.key(number))
    sim.run(worker, 1)
    assert questions == [[0, 1, 2, 3]] * 2, "where the logs begin, and where they end"
    away.add(1)
    for number in range(3):
        worker._assignment.overtaken(sim.key(number))
    sim.run(worker, 1)
    assert worker._assignment._unread == {sim.key(1)}
    away.clear()
    sim.run(worker, 1_100)
    assert worker._assignment._unread == set()
    sim.schedule(value=b"1")
    sim.until(worker, lambda: len(sim.delivered()) == 2, 10_000)


def test_brokers_that_do_not_answer_in_time_are_not_asked_for_each_partition(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = sim.worker()
    sim.schedule(value=b"0")
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    consumer, questions = worker._consumer, [0]
    answers = consumer.offsets_for_times

    def time_out(*_: Any, **__: Any) -> Any:
        questions[0] += 1
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(consumer, "offsets_for_times", time_out)
    for number in range(32):
        worker._assignment.overtaken(sim.key(number))
    sim.run(worker, 1)
    assert questions == [1], "each of them takes five seconds, and the loop has to turn"
    monkeypatch.setattr(consumer, "offsets_for_times", answers)
    sim.run(worker, 1_100)
    assert worker._assignment._unread == set()


def test_gaps_in_the_log_do_not_block_the_position(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.kafka.skip_offsets(SCHEDULE, 0, count=3)
    sim.schedule()
    sim.run(worker, 1_500)
    assert len(sim.delivered()) == 2
    assert sim.position() >= 5


def test_the_position_of_a_finished_partition_passes_its_probes(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.run(worker, 3_000)
    end = sim.kafka.records(SCHEDULE, 0)[-1].offset() + 1
    assert sim.position() == end


def test_a_finished_queue_is_committed_to_its_end_behind_markers_and_aborted_records(sim: Any) -> None:
    """A delay of 5 s hops from queue to queue: exactly once, each of these hops is in a transaction of its own."""
    worker = sim.worker()
    sim.schedule(level=2, relative=False, headers=[("DELAY_MS", b"5000")])
    sender = sim.kafka.producer({"transactional.id": "sender"})
    sender.init_transactions()
    for ends in (sender.commit_transaction, sender.abort_transaction):
        sender.begin_transaction()
        sender.produce(SCHEDULE, b"x", partition=0, headers=[("REAL_TOPIC", b"orders"), ("DELAY_MS", b"1000")])
        sender.flush(10)
        ends(10)
        sim.run(worker, 20_000)  # a probe that dates a record would pass what is before it
    assert len(sim.delivered()) == 2
    ends_of_queues = {number: end for number, end in sim.kafka.end_offsets(SCHEDULE).items() if end}
    assert ends_of_queues[0] >= 4
    assert {number: sim.position(number) for number in ends_of_queues} == ends_of_queues


def test_what_waits_and_what_is_in_flight_holds_the_position(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 1_000)
    sim.schedule(level=4)
    partition = LEVELS.partition(4)
    sim.kafka.skip_offsets(SCHEDULE, partition, count=2)
    sim.run(worker, 8_000)
    assert sim.position(partition) == 0
    sim.kafka.hold_reports("orders")
    sim.run(worker, 2_100)
    worker._skip_ns = 0
    sim.run(worker, 500)
    assert sim.position(partition) == 0
    sim.kafka.release()
    sim.run(worker, 6_000)
    assert sim.position(partition) == sim.kafka.end_offsets(SCHEDULE)[partition]


def test_nothing_is_early_when_a_probe_is_appended_late_in_a_turn(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report is younger than the turn in which it comes: what the turn did before it may have taken long."""
    worker = sim.worker()
    sim.run(worker, 100)
    producer, assignment = worker._prober._producer, worker._assignment
    produce, throttle = producer.produce, assignment.throttle
    late: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def slowly(*arguments: Any) -> None:
        throttle(*arguments)
        if late:
            sim.clock.advance(300)
            monkeypatch.setattr(producer, "produce", produce)
        while late:
            values, options = late.pop()
            produce(*values, **options)

    monkeypatch.setattr(producer, "produce", lambda *values, **options: late.append((values, options)))
    monkeypatch.setattr(assignment, "throttle", slowly)
    sent = sim.schedule()
    sim.clock.advance(500)  # it has waited before it is seen, so that a probe is written behind it
    sim.until(worker, sim.delivered)
    [delivered] = sim.delivered()
    assert delivered.timestamp()[1] - sent.timestamp()[1] >= 1_000


def test_the_next_commit_includes_a_failed_one(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 300)
    sim.kafka.fail_commits(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
    sim.schedule()
    sim.run(worker, 3_000)
    assert sim.position() >= 1


@pytest.mark.only("at-least-once")
@pytest.mark.parametrize("code", [KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS])
@pytest.mark.parametrize("ends", ["stops", "is revoked"])
def test_the_last_commit_of_a_queue_is_made_again_in_the_new_generation(sim: Any, code: int, ends: str) -> None:
    """No later commit would include it, and the next owner would repeat what is stored already."""
    worker = sim.worker(commit_interval_ms=60_000)
    sim.run(worker, 300)
    sim.schedule()
    sim.until(worker, sim.delivered)
    sim.run(worker, 100)
    before = sim.position()
    sim.kafka.fail_commits(KafkaError(code), count=2)
    if ends == "stops":
        worker.close()
    else:
        worker._leave(list(worker._assignment.held.values()))
    assert sim.position() > max(0, before)


@pytest.mark.only("at-least-once")
def test_an_asynchronous_commit_waits_for_the_answer_to_the_one_before(sim: Any) -> None:
    """Otherwise a commit that librdkafka repeats, with the coordinator changing, may be stored after a later one."""
    worker = sim.worker()
    sim.run(worker, 300)
    delivery, consumer = worker._delivery, worker._consumer
    assigned = worker._assignment.held[sim.key(0)]
    sent: list[tuple[int, bool]] = []
    delivery._consumer = SimpleNamespace(
        commit=lambda offsets, asynchronous: sent.append((offsets[0].offset, asynchronous)) or []
    )
    for position in (7, 8):
        assigned.skipped_to = position
        delivery.commit([assigned], asynchronous=True)
    delivery.commit([assigned], asynchronous=False)
    assert sent == [(7, True), (8, False)]
    assigned.skipped_to = 9
    delivery.commit([assigned], asynchronous=True)
    assigned.skipped_to = 10
    delivery.commit([assigned], asynchronous=True)
    worker._assignment.on_commit(None, [assigned.at(9)])
    delivery.commit([assigned], asynchronous=True)
    assert sent[2:] == [(9, True), (10, True)]
    delivery._consumer = consumer


@pytest.mark.parametrize("value", [None, b""])
def test_records_without_a_value_are_records(sim: Any, value: bytes | None) -> None:
    worker = sim.worker()
    for _ in range(3):
        sim.schedule(value=value, key=None)
    sim.until(worker, lambda: len(sim.delivered()) == 3)
    assert {record.value() for record in sim.delivered()} == {value}


@pytest.mark.only("at-least-once")
def test_the_next_worker_delivers_the_records_in_flight_of_a_worker_that_died(sim: Any) -> None:
    worker = sim.worker()
    for number in range(50):
        sim.schedule(value=b"%d" % number, uniq=None)
    sim.kafka.hold_reports("orders")
    sim.run(worker, 1_100)
    consumer, delivery = worker._consumer, worker._delivery
    sim.kafka.kill(consumer)
    sim.kafka.kill(delivery._producers._plain)
    worker._consumer = None  # the process is gone
    sim.kafka.release()
    sim.clock.advance(60_000)
    second = sim.worker()
    sim.run(second, 3_000)
    assert {record.value() for record in sim.delivered()} == {b"%d" % number for number in range(50)}
    identities: dict[bytes, set[tuple[str | None, str | None]]] = {}
    for record in sim.delivered():
        identities.setdefault(record.value(), set()).add((header(record, "UNIQ_KEY"), header(record, "HOP_ID")))
    assert all(len(found) == 1 for found in identities.values())
    assert len(sim.delivered()) > 50  # some are duplicates, which their identity reveals


# --- failing targets -------------------------------------------------------------------------------------------------


def test_a_hop_that_is_not_stored_blocks_the_position_and_is_made_again(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(relative=False, headers=[("DELAY_MS", b"9000")], level=2)
    sim.kafka.fail_produce(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), topic=SCHEDULE, partition=2, count=2)
    sim.run(worker, 3_100)
    assert sim.position(1) == 0
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    assert worker.counts.resent >= 2 or worker.counts.aborted >= 2


def test_a_target_that_refuses_gets_its_records_later_with_their_tries_counted(sim: Any) -> None:
    worker = sim.worker()
    sim.kafka.fail_produce(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), topic="orders")
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    assert worker.counts.re_appended == 1
    [again] = [record for record in sim.kafka.records(SCHEDULE) if header(record, "TARGET_TRIES")]
    assert header(again, "TARGET_TRIES") == "1"
    assert header(sim.delivered()[0], "TARGET_TRIES") is None


def test_a_worker_that_may_not_read_its_queues_any_more_ends_with_an_error(sim: Any) -> None:
    """Kafka's client reports it once. The worker stayed ready, and delivered nothing."""
    worker = sim.worker()
    sim.run(worker, 1_000)
    sim.kafka.deny(SCHEDULE, write=False)
    sim.schedule()
    with pytest.raises(WorkerError, match="may not read SCHEDULE_TOPIC_XXXX: grant it Read") as caught:
        sim.run(worker, 10_000)
    assert isinstance(caught.value.__cause__, NotAuthorizedError)


def test_a_worker_that_may_not_read_the_log_of_timers_delivers_all_others(sim: Any) -> None:
    """So it is with the rights that a worker needed before there were named timers."""
    worker = sim.worker()
    sim.kafka.deny("rmq.timers", write=False)
    sim.run(worker, 1_000)
    sim.kafka.append("rmq.timers", b"x")
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    assert worker.counts.alarms["worker.client-error"] >= 1


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_topic_that_a_broker_does_not_know_is_missing_after_half_a_minute(sim: Any, *, comes_back: bool) -> None:
    """The client reports it once, gives the partitions up, and has them again if the broker knows the topic again."""
    worker = sim.worker()
    sim.run(worker, 1_000)
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "Subscribed topic not available")
    worker._fetcher._client_error(Message(topic=SCHEDULE, error=unknown))
    held = [
        TopicPartition(*key) for key in worker._assignment.held if key.topic == SCHEDULE
    ]  # and those of timers stay
    worker._assignment.on_lost(worker._consumer, held)
    sim.run(worker, 20_000)
    if not comes_back:
        with pytest.raises(WorkerError, match=r"SCHEDULE_TOPIC_XXXX does not exist.*rocketshim init"):
            sim.run(worker, 15_000)
        return
    worker._assignment.on_assign(worker._consumer, held)
    sim.schedule()
    sim.run(worker, 60_000)
    assert len(sim.delivered()) == 1


def test_a_time_that_a_topic_refuses_is_not_the_fault_of_a_record(sim: Any) -> None:
    """The worker's clock is ahead: Kafka 4 accepts an hour, where it does not set the time itself."""
    worker = sim.worker()
    ahead = KafkaError(KafkaError.INVALID_TIMESTAMP)
    sim.kafka.fail_produce(ahead, topic="orders")
    sim.kafka.fail_produce(ahead, topic="rmq.parked")
    sim.schedule(topic=None, value=b"names no target")
    sim.schedule(value=b"sound")
    sim.until(worker, lambda: bool(sim.delivered() and sim.parked()))
    assert [reason for reason, _ in sim.parked()] == ["missing-header:REAL_TOPIC"]
    assert sim.kafka.records("rmq.parked")[0].value() == b"names no target"


def test_a_record_has_the_timestamp_that_its_sender_gave_unless_the_target_refuses_it(sim: Any) -> None:
    """Kafka refuses the whole batch with a timestamp that is too far ahead; by default that is an hour."""
    sim.kafka.create_topic("audit", 1)
    sim.kafka.create_topic("rmq.retry.g", 1)
    worker, began_ms = sim.worker(), sim.clock.wall_ms()
    old_ms, future_ms = began_ms - 3_600_000, began_ms + 2 * 86_400_000

    def send(value: bytes, stamp_ms: int, topic: str = "audit", **more: Any) -> None:
        own = [("TARGET_TIMESTAMP_MS", b"%d" % stamp_ms), *more.pop("headers", [])]
        sim.schedule(topic=topic, value=value, headers=own, **more)

    send(b"old", old_ms, level=2)
    send(b"future", future_ms, level=2)
    send(b"zero", 0, level=2)
    sim.schedule(topic="audit", value=b"none", level=2)
    send(b"hops", old_ms, partition=31)
    send(b"retry", old_ms, topic="%RETRY%g", headers=[("CONSUMER_GROUP", b"g")])
    sim.until(worker, lambda: len(sim.delivered("audit")) == 5 and bool(sim.kafka.records("rmq.retry.g")))
    found = {record.value(): record for record in sim.delivered("audit")}
    assert found[b"old"].timestamp()[1] == found[b"hops"].timestamp()[1] == old_ms
    for value in (b"future", b"zero", b"none"):
        assert began_ms + 2_000 <= found[value].timestamp()[1] <= sim.clock.wall_ms()
    assert began_ms < sim.kafka.records("rmq.retry.g")[0].timestamp()[1] <= sim.clock.wall_ms()
    assert all(header(record, "TARGET_TIMESTAMP_MS") is None for record in found.values())
    assert worker.counts.alarms["worker.timestamp-refused"] == 1
    assert not sim.parked()
    before = dict(worker.counts.alarms)
    for _ in range(3):
        send(b"again", future_ms + 60_000)
    send(b"old", old_ms)
    sim.until(worker, lambda: len(sim.delivered("audit")) == 9)
    assert {record.timestamp()[1] for record in sim.delivered("audit") if record.value() == b"old"} == {old_ms}
    assert worker.counts.alarms == before, "the target is not asked again what it has refused"


def test_records_of_a_denied_target_are_parked_after_their_tries_and_others_continue(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    sim.kafka.deny("audit", read=False)
    worker = sim.worker(target_tries=2)
    sim.schedule(topic="audit", value=b"denied")
    for number in range(10):
        sim.schedule(value=b"%d" % number)
    # a transaction is aborted first, to find the refused record
    sim.until(worker, lambda: len(sim.delivered()) == 10, 2_500 if sim.exactly_once else 1_200)
    sim.until(worker, lambda: bool(sim.parked()))
    assert sim.parked()[0][0] == "target-refused:TOPIC_AUTHORIZATION_FAILED"
    assert worker.counts.re_appended == 2


def test_a_target_may_refuse_for_half_a_minute_before_its_records_are_parked(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    sim.kafka.deny("audit", read=False)
    worker = sim.worker(delay_levels=DelayLevels.default())
    due_ms = sim.schedule(topic="audit").timestamp()[1] + 1_000
    sim.until(worker, lambda: bool(sim.parked()))
    [record] = sim.kafka.records("rmq.parked")
    assert 31_000 <= record.timestamp()[1] - due_ms < 34_000, "waits of 1, 5, 5, 10 and 10 s"


def test_a_silent_target_does_not_block_its_level(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    sim.kafka.hold_sends("audit")
    worker = sim.worker()
    sim.schedule(topic="audit", value=b"held")
    sim.schedule(value=b"first")
    sim.run(worker, 3_500)
    sim.schedule(value=b"second")
    sim.run(worker, 4_500 if sim.exactly_once else 2_000)
    assert [record.value() for record in sim.delivered()] == [b"first", b"second"]
    assert worker.counts.re_appended >= 1
    assert sim.position() >= 2  # after the record that blocked the position
    sim.kafka.release()
    sim.until(worker, lambda: bool(sim.delivered("audit")))
    assert {record.value() for record in sim.delivered("audit")} == {b"held"}


def test_a_target_that_is_deleted_does_not_delay_other_targets(sim: Any) -> None:
    """librdkafka reports nothing for a record whose topic was deleted, until its time-out; so does a held send."""
    sim.kafka.create_topic("audit", 1)
    worker = sim.worker()
    sim.schedule(topic="audit")
    sim.until(worker, lambda: worker.counts.delivered == 1)
    sim.kafka.hold_sends("audit")
    sim.kafka.delete_topic("audit")
    sim.schedule(topic="audit")
    sim.schedule(value=b"other")
    sim.run(worker, 1_500)
    assert [record.value() for record in sim.delivered()] == [b"other"]
    sim.kafka.release()
    sim.until(worker, lambda: bool(sim.parked()))
    assert sim.parked()[0][0] == "unknown-topic:audit"
    assert [record.value() for record in sim.delivered()] == [b"other"]
    assert worker.counts.re_appended == 5, "the other target has not failed"


@pytest.mark.only("at-least-once")
def test_the_only_target_gets_its_records_later_if_it_does_not_answer(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    sim.kafka.hold_sends("audit")
    worker = sim.worker()
    sim.schedule(topic="audit", value=b"held")
    sim.until(worker, lambda: worker.counts.re_appended == 1, 5_000)


@pytest.mark.only("at-least-once")
def test_records_in_flight_to_a_silent_target_do_not_block_other_targets(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    sim.kafka.hold_sends("audit")
    worker = sim.worker(max_in_flight_count=50, hop_timeout_ms=60_000)
    for number in range(60):
        sim.schedule(topic="audit", value=b"held %d" % number)
    for number in range(20):
        sim.schedule(value=b"%d" % number, level=1 + number % 2)
    sim.until(worker, lambda: len(sim.delivered()) == 20, 8_000)


@pytest.mark.only("at-least-once")
@pytest.mark.parametrize("limit", [{"max_in_flight_count": 50}, {"max_in_flight_bytes": 5_000}])
def test_records_that_wait_for_a_topic_of_the_shim_are_bounded(sim: Any, limit: dict[str, int]) -> None:
    worker = sim.worker(drain_count=20, **limit)
    for number in range(500):
        sim.schedule(topic="__nobody", value=b"%d" % number + b"." * 97)
    sim.kafka.deny("rmq.parked", read=False)
    sim.run(worker, 5_000)
    # 70: a run more than 5,000 bytes
    assert len(worker._delivery._waiting) <= 70, "what cannot be parked was taken from its queue without end"
    assert not worker.counts.parked
    sim.kafka.allow("rmq.parked")
    sim.until(worker, lambda: len(sim.parked()) == 500)
    sim.until(worker, lambda: sim.position() >= 500)
    assert worker.counts.parked == {"forbidden-target": 500}


@pytest.mark.only("at-least-once")
def test_the_group_is_polled_however_many_records_are_due(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = sim.worker()
    sim.run(worker, 100)
    for number in range(5_000):
        sim.schedule(topic=f"audit.{number}", level=4)
    consumer, polls = worker._consumer, [0]
    lookup = worker._targets._lookup._client = worker._targets._lookup._make_client()
    list_topics, poll = lookup.list_topics, consumer.poll

    def slowly(*args: Any, **kwargs: Any) -> Any:
        sim.clock.advance(3)  # each of them is looked up, and none exists
        return list_topics(*args, **kwargs)

    def noted(timeout: float) -> Any:
        polls.append(sim.clock.monotonic_ns())
        return poll(timeout)

    monkeypatch.setattr(lookup, "list_topics", slowly)
    monkeypatch.setattr(consumer, "poll", noted)
    sim.until(worker, lambda: len(sim.parked()) == 5_000)
    longest_ms = max(later - before for before, later in pairwise(polls)) / 1e6
    assert longest_ms < 5_000, "the group puts out who does not poll for 15 s"


@pytest.mark.only("at-least-once")
@pytest.mark.parametrize("headers", [[("blob", b"x" * 10_000)], [("h", b"")] * 300], ids=["large", "many"])
def test_headers_count_towards_the_bytes_in_flight(sim: Any, headers: list[tuple[str, bytes | None]]) -> None:
    worker = sim.worker(prefetch_bytes=100_000, max_in_flight_bytes=200_000)
    sim.kafka.hold_reports("orders")
    for _ in range(400):
        sim.schedule(value=b"", headers=headers)
    sim.run(worker, 1_500)
    assert 10 <= worker._delivery._in_flight.count <= 40
    sim.kafka.release()
    sim.until(worker, lambda: len(sim.delivered()) >= 400)


def test_an_unknown_target_is_parked_after_half_a_minute(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(topic="audit.gone")
    sim.run(worker, 25_000)
    assert not sim.parked()
    sim.until(worker, lambda: bool(sim.parked()), 10_000)
    [(reason, _)] = sim.parked()
    assert reason == "unknown-topic:audit.gone"
    assert worker.counts.parked == {"unknown-topic": 1}


@pytest.mark.parametrize(
    ("name", "physical", "more"),
    [("audit", "audit", {}), ("%RETRY%g", "rmq.retry.g", {"headers": [("CONSUMER_GROUP", b"g")]})],
)
def test_a_target_that_is_deleted_and_created_again_gets_what_was_due_in_between(
    sim: Any, name: str, physical: str, more: dict[str, Any]
) -> None:
    sim.kafka.create_topic(physical, 1)
    worker = sim.worker()
    sim.schedule(topic=name, value=b"before", **more)
    sim.until(worker, lambda: len(sim.delivered(physical)) == 1)
    sim.kafka.delete_topic(physical)
    for number in range(5):
        sim.schedule(topic=name, value=b"%d" % number, **more)
    sim.run(worker, 10_000)
    sim.kafka.create_topic(physical, 1)
    sim.until(worker, lambda: len(sim.delivered(physical)) == 5, 30_000)
    assert {record.value() for record in sim.delivered(physical)} == {b"%d" % number for number in range(5)}
    assert not sim.parked()


def test_records_of_a_deleted_target_are_parked(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    worker = sim.worker()
    sim.schedule(topic="audit")
    sim.until(worker, lambda: len(sim.delivered("audit")) == 1)
    sim.schedule(topic="audit")
    sim.kafka.delete_topic("audit")
    sim.until(worker, lambda: bool(sim.parked()))
    assert sim.parked()[0][0] == "unknown-topic:audit"


def test_if_the_named_partition_no_longer_exists_the_key_decides(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(key=b"k", headers=[("REAL_QID", b"2")], value=b"there")
    sim.schedule(key=b"k", headers=[("REAL_QID", b"9")], value=b"gone")
    sim.until(worker, lambda: len(sim.delivered()) == 2)
    by_value = {record.value(): record.partition() for record in sim.delivered()}
    assert by_value[b"there"] == 2
    assert by_value[b"gone"] in {0, 1, 2}


def test_a_record_too_large_for_its_target_is_parked(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1, config={"max.message.bytes": "2000"})
    worker = sim.worker()
    sim.schedule(topic="audit", value=b"x" * 5_000)
    sim.schedule(topic="audit", value=b"small")
    sim.until(worker, lambda: bool(sim.parked()) and bool(sim.delivered("audit")))
    assert sim.parked()[0][0] == "target-refused:MSG_SIZE_TOO_LARGE"
    assert [record.value() for record in sim.delivered("audit")] == [b"small"]


def test_a_record_too_large_to_be_parked_is_parked_without_its_body(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1, config={"max.message.bytes": "2000"})
    sim.kafka.delete_topic("rmq.parked")
    sim.kafka.create_topic("rmq.parked", 1, config={"max.message.bytes": "3000"})
    worker = sim.worker()
    sent = sim.schedule(topic="audit", value=b"x" * 5_000, headers=[("big", b"h" * 5_000)])
    sim.until(worker, lambda: bool(sim.parked()))
    [record] = sim.kafka.records("rmq.parked")
    assert record.value() is None
    assert header(record, "PARK_FROM") == f"{SCHEDULE}/0/{sent.offset()}"


def test_a_record_larger_than_the_whole_queue_of_the_producer_is_parked_without_its_body(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, refused = sim.kafka.producer, []

    def small(config: dict[str, Any]) -> Any:
        producer = make(config)
        produce = producer.produce

        def refuse(topic: str, value: bytes | None, *arguments: Any, **named: Any) -> None:
            if len(value or b"") > 5_000:
                refused.append(topic)
                assert len(refused) < 100, "the writer waits for room that there never is"
                raise BufferError("Local: Queue full")
            produce(topic, value, *arguments, **named)

        monkeypatch.setattr(producer, "produce", refuse)
        return producer

    monkeypatch.setattr(sim.kafka, "producer", small)
    worker = sim.worker()
    sim.schedule(value=b"x" * 10_000)
    sim.schedule(value=b"small")
    sim.until(worker, lambda: bool(sim.parked()) and bool(sim.delivered()))
    assert [record.value() for record in sim.kafka.records("rmq.parked")] == [None]
    assert sim.parked()[0][0] == "target-refused:MSG_SIZE_TOO_LARGE"
    assert [record.value() for record in sim.delivered()] == [b"small"]
    assert "worker.target-avoided" not in worker.counts.alarms


def test_a_keyless_record_for_a_compacted_target_is_parked_alone(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1, config={"cleanup.policy": "compact"})
    worker = sim.worker()
    sim.schedule(topic="audit", key=b"k", value=b"keyed")
    sim.schedule(topic="audit", key=None, value=b"keyless")
    sim.until(worker, lambda: bool(sim.parked()))
    assert sim.parked()[0][0] == "target-refused:INVALID_RECORD"
    assert {record.value() for record in sim.delivered("audit")} == {b"keyed"}


# --- what must not be delivered --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "headers", "reason"),
    [
        ("__consumer_offsets", [], "forbidden-target:internal"),
        ("SCHEDULE_TOPIC_XXXX", [], "forbidden-target:shim-topic"),
        ("rmq.parked", [], "forbidden-target:shim-topic"),
        ("rmq.retry.g", [("CONSUMER_GROUP", b"g")], "forbidden-target:shim-topic"),
        ("%DLQ%g", [("CONSUMER_GROUP", b"g")], "forbidden-target:dead-letter"),
        ("%RETRY%g", [("CONSUMER_GROUP", b"h")], "forbidden-target:retry-of-another-group"),
        ("%RETRY%", [("CONSUMER_GROUP", b"")], "forbidden-target:retry-of-another-group"),
        ("%RETRY%" + "g" * 300, [("CONSUMER_GROUP", b"g" * 300)], "malformed:REAL_TOPIC"),
        ("a/../b", [], "malformed:REAL_TOPIC"),
        (None, [], "missing-header:REAL_TOPIC"),
        ("orders", [("DELAY_MS", b"1000")], "duplicate-header:DELAY_MS"),
        ("orders", [("DELIVER_AT_MS", b"1")], "two-due-times"),
        ("orders", [("SHIM", b"2")], "unknown-version"),
        ("orders", [("REAL_QID", b"-1")], "bad-number:REAL_QID"),
        ("orders", [("TAGS", None)], "null-header:TAGS"),
    ],
)
def test_forbidden_and_malformed_records_are_parked_with_their_reason(
    sim: Any, topic: str | None, headers: list[tuple[str, bytes | None]], reason: str
) -> None:
    sim.kafka.create_topic("payments", 1)
    worker = sim.worker()
    sent = sim.schedule(topic=topic, headers=headers, value=b"bad")
    sim.schedule(value=b"good")
    sim.until(worker, lambda: bool(sim.parked()) and bool(sim.delivered()))
    assert sim.parked() == [(reason, f"{SCHEDULE}/0/{sent.offset()}")]
    assert [record.value() for record in sim.kafka.records("rmq.parked")] == [b"bad"]
    assert [record.value() for record in sim.delivered()] == [b"good"]


def test_a_record_whose_target_is_not_allowed_is_offered_to_other_workers_and_finally_parked(sim: Any) -> None:
    sim.kafka.create_topic("payments", 1)
    worker = sim.worker()
    sim.schedule(topic="payments", value=b"bad")
    sim.schedule(value=b"good")
    sim.until(worker, lambda: bool(sim.delivered()), 1_500)
    sim.until(worker, lambda: bool(sim.parked()), 30_000)
    assert [reason for reason, _ in sim.parked()] == ["forbidden-target:not-allowed"]
    assert [record.value() for record in sim.kafka.records("rmq.parked")] == [b"bad"]
    assert sim.kafka.records("payments") == []
    tries = sorted(
        (int(header(record, "TARGET_TRIES") or 0), record.partition())
        for record in sim.kafka.records(SCHEDULE)
        if record.value() == b"bad"
    )
    assert tries == [(0, 0), (1, 0), (2, 27), (3, 3), (4, 27), (5, 3)], "queues of 1 s, 0.5 s, 10 s, 0.5 s, 10 s"
    assert worker.counts.alarms["worker.not-allowed"] == worker.counts.re_appended == 5
    assert "worker.target-avoided" not in worker.counts.alarms


@pytest.mark.parametrize("is_narrow_first", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
def test_with_different_allow_lists_a_worker_that_may_deliver_a_record_delivers_it(
    sim: Any, is_narrow_first: bool, lanes: int
) -> None:
    """One of the workers has half of the queues, and may not write to the target."""
    sim.kafka.create_topic("payments", 1, config={"message.timestamp.type": "LogAppendTime"})
    sim.kafka.add_partitions(SCHEDULE, 32 * lanes)
    lists = [("orders",), ("orders", "payments")]
    first = sim.worker(allow=lists[0 if is_narrow_first else 1])
    sim.run(first, 300)
    second = sim.worker(allow=lists[1 if is_narrow_first else 0])
    for _ in range(6):
        sim.run(first, 50)
        sim.run(second, 50)
    assert all(worker._assignment.held for worker in (first, second))
    sent = [
        sim.schedule(topic="payments", level=level, partition=32 * lane + level - 1)
        for level in (1, 2, 3, 4)
        for lane in range(lanes)
    ]
    for _ in range(10_000):
        sim.run(first, 5)
        sim.run(second, 5)
        if len(sim.delivered("payments")) == len(sent):
            break
    assert len(sim.delivered("payments")) == len(sent)
    assert sim.parked() == []


@pytest.mark.parametrize("name", ["DELAY_MS", "DELIVER_AT_MS"])
def test_a_record_due_after_the_longest_delay_is_parked(sim: Any, name: str) -> None:
    worker = sim.worker()
    sim.schedule(relative=False, headers=[(name, b"9223372036854775807")])
    sim.until(worker, lambda: bool(sim.parked()))
    assert sim.parked()[0][0] == "due-too-late"


def test_a_record_that_only_looks_like_a_probe_is_a_record(sim: Any) -> None:
    worker = sim.worker()
    sim.kafka.append(SCHEDULE, b"a message", partition=0, headers=[("CLOCK", b"1")])
    sim.kafka.append(SCHEDULE, None, key=b"k", partition=0, headers=[("CLOCK", b"1")])
    sim.until(worker, lambda: len(sim.parked()) == 2)
    assert {reason for reason, _ in sim.parked()} == {"missing-header:REAL_TOPIC"}


def test_large_records_are_fetched_a_few_at_a_time(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = sim.worker(prefetch_bytes=100_000)
    consumer, fetched = worker._consumer, [0]
    consume = consumer.consume

    def counted(count: int, timeout: float) -> Any:
        got = consume(count, timeout)
        fetched.append(len(got) + 1)
        return got

    monkeypatch.setattr(consumer, "consume", counted)
    for _ in range(400):
        sim.schedule(value=b"", headers=[("blob", b"x" * 10_000)])
    sim.until(worker, lambda: len(sim.delivered()) == 400)
    assert max(fetched) <= 11


def test_invalid_topic_names_are_not_remembered(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(topic="x" * 100_000, headers=[("BORN_TIMESTAMP", b"1")])
    sim.until(worker, lambda: len(sim.parked()) == 1)
    assert not worker._fetcher._router._routes


def test_marks_of_records_are_forgotten_with_their_partition(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.run(worker, 1_500)
    reasons = worker._fetcher._router.refusals.reasons
    reasons[*sim.key(0), 5] = reasons[*sim.key(1), 5] = "target-refused:MSG_SIZE_TOO_LARGE"
    worker._fetcher.offer(
        worker._assignment.held[sim.key(0)], sim.kafka.records(SCHEDULE, 0)[:1], sim.clock.monotonic_ns()
    )
    assert set(reasons) == {(*sim.key(1), 5)}, (
        "the log of partition 0 started again, and its offset 5 is another record"
    )
    worker._consumer.unsubscribe()
    sim.until(worker, lambda: not worker._assignment.held)
    assert not reasons


def test_a_retry_reaches_its_group_with_all_its_headers(sim: Any) -> None:
    sim.kafka.create_topic("rmq.retry.g", 1)
    worker = sim.worker()
    known = [("RETRY_TOPIC", b"orders"), ("RECONSUME_TIMES", b"2"), ("CONSUMER_GROUP", b"g"), ("FAIL_CLASS", b"E")]
    sim.schedule(topic="%RETRY%g", headers=[*known, ("mine", b"1")])
    sim.until(worker, lambda: bool(sim.delivered("rmq.retry.g")))
    [record] = sim.delivered("rmq.retry.g")
    assert [pair for pair in record.headers() if pair in known or pair[0] == "mine"] == [*known, ("mine", b"1")]
    assert header(record, "SHIM") == "1"


# --- groups and shutdown ---------------------------------------------------------------------------------------------


def test_partitions_move_to_a_second_worker_without_loss(sim: Any) -> None:
    first = sim.worker()
    sim.run(first, 50)
    for level in (1, 2, 3, 4):
        for number in range(20):
            sim.schedule(level=level, value=b"%d-%d" % (level, number))
    second = sim.worker()
    for _ in range(3_000):
        sim.run(first, 5)
        sim.run(second, 5)
        if len(sim.delivered()) >= 80:
            break
    assert sorted(record.value() for record in sim.delivered()) == sorted(
        b"%d-%d" % (level, number) for level in (1, 2, 3, 4) for number in range(20)
    )
    assert first._assignment.held
    assert second._assignment.held
    assert not set(first._assignment.held) & set(second._assignment.held)


@pytest.mark.only("at-least-once")
def test_lost_partitions_are_not_committed(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.run(worker, 900)
    sim.kafka.hold_reports("orders")
    sim.run(worker, 300)
    sim.kafka.evict(worker._consumer)
    sim.run(worker, 10)
    sim.kafka.release()
    before = len(sim.kafka.commits("rmq.sched"))
    held = worker._assignment.held.get(0)
    assert held is None or held.queue.next_offset is None
    sim.until(worker, lambda: (sim.position() or 0) >= 1)
    assert len(sim.kafka.commits("rmq.sched")) > before


@pytest.mark.only("at-least-once")
def test_close_waits_for_records_in_flight_but_not_forever(sim: Any) -> None:
    worker = sim.worker(stop_timeout_ms=500)
    sim.schedule()
    sim.kafka.hold_reports("orders")
    sim.run(worker, 1_100)
    before_ns = sim.clock.monotonic_ns()
    worker.close()
    assert 400 <= (sim.clock.monotonic_ns() - before_ns) / 1e6 <= 2_500
    assert sim.position() == 0
    worker.close()


def test_close_commits_the_confirmed_position(sim: Any) -> None:
    worker = sim.worker(commit_interval_ms=60_000)
    sim.schedule()
    sim.run(worker, 1_200)
    worker.close()
    assert sim.position() >= 1


def test_steps_before_the_start_are_refused(sim: Any) -> None:
    with pytest.raises(WorkerError, match="not started"):
        sim.worker(start=False).step()


def test_a_start_that_fails_leaves_no_client_open_and_can_be_repeated(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, consumers = sim.kafka.consumer, []

    def refuse(_: dict[str, Any]) -> Any:
        raise ConfigError("a setting is wrong")

    def noted(config: dict[str, Any]) -> Any:
        consumers.append(make(config))
        return consumers[-1]

    monkeypatch.setattr(sim.kafka, "consumer", noted)
    worker = sim.worker(start=False)
    make_producer, worker._clients.make_producer = worker._clients.make_producer, refuse
    with pytest.raises(ConfigError, match="a setting is wrong"):
        worker.run()
    with pytest.raises(RuntimeError, match="closed"):
        consumers[0].poll(0)
    worker._clients.make_producer = make_producer
    worker.start()
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1)


def test_a_start_without_a_thread_for_lookups_leaves_nothing_open_and_can_be_repeated(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")

    worker = sim.worker(start=False)
    with monkeypatch.context() as patched:
        patched.setattr("rocketshim.worker.worker.TopicLookup", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            worker.start()
    worker.start()
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1)


def test_a_closed_worker_does_not_start_again(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 50)
    worker.close()
    with pytest.raises(WorkerError, match="runs only once"):
        worker.start()
    assert sim.kafka.members("rmq.sched") == []


def test_a_schedule_topic_that_does_not_stamp_ends_the_worker(sim: Any) -> None:
    sim.kafka.delete_topic(SCHEDULE)
    sim.kafka.create_topic(SCHEDULE, 32)
    worker = sim.worker()
    sim.schedule()
    with pytest.raises((WorkerError, TopicMismatchError), match="CreateTime"):
        sim.run(worker, 2_000)


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 3_600_000])
def test_a_schedule_topic_that_no_longer_stamps_ends_a_worker_that_has_run_for_long(sim: Any, ahead_ms: int) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    sim.kafka._topic(SCHEDULE).config["message.timestamp.type"] = "CreateTime"
    at_ms = sim.clock.wall_ms() + ahead_ms
    sim.kafka.append(SCHEDULE, b"new", partition=0, headers=[("REAL_TOPIC", b"orders")], timestamp_ms=at_ms)
    with pytest.raises(TopicMismatchError, match="CreateTime"):
        sim.run(worker, 1_500)
    assert len(sim.delivered()) == 1


def test_a_record_without_append_time_is_parked_when_a_probe_is_stored_however_late(sim: Any) -> None:
    topic = sim.kafka._topic(SCHEDULE)
    topic.config["message.timestamp.type"] = "CreateTime"
    sim.kafka.append(SCHEDULE, b"old", partition=0, headers=[("REAL_TOPIC", b"orders")], timestamp_ms=1)
    topic.config["message.timestamp.type"] = "LogAppendTime"
    sim.kafka.fail_produce(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), topic=SCHEDULE, partition=0, count=3)
    worker = sim.worker()
    steps = 0
    while not sim.parked():
        worker.step()
        steps += 1
        assert steps < 1_000, "the loop does not wait"
    assert worker.counts.alarms["worker.probe-failed"] == 3


def test_records_from_before_the_topic_stamped_append_times_are_parked_and_later_ones_are_delivered(sim: Any) -> None:
    sim.kafka.delete_topic(SCHEDULE)
    sim.kafka.create_topic(SCHEDULE, 32)
    long_ago_ms = sim.clock.wall_ms() - 3_600_000
    for level in (1, 4):
        sim.kafka.append(
            SCHEDULE, b"old", partition=level - 1, headers=[("REAL_TOPIC", b"orders")], timestamp_ms=long_ago_ms
        )
    sim.kafka._topic(SCHEDULE).config["message.timestamp.type"] = "LogAppendTime"
    for level in (1, 4):
        sim.schedule(value=b"%d" % level, level=level)
    worker = sim.worker()
    sim.run(worker, 9_900)
    assert [record.value() for record in sim.delivered()] == [b"1"]
    sim.until(worker, lambda: len(sim.delivered()) == 2)
    assert {reason for reason, _ in sim.parked()} == {"no-append-time"}
    assert len(sim.parked()) == 2


def test_a_record_without_append_time_between_others_is_parked_and_not_delivered_early(sim: Any) -> None:
    sim.schedule(level=4, value=b"before")
    topic = sim.kafka._topic(SCHEDULE)
    topic.config["message.timestamp.type"] = "CreateTime"
    long_ago_ms = sim.clock.wall_ms() - 3_600_000
    sim.kafka.append(SCHEDULE, b"old", partition=3, headers=[("REAL_TOPIC", b"orders")], timestamp_ms=long_ago_ms)
    topic.config["message.timestamp.type"] = "LogAppendTime"
    sim.schedule(level=4, value=b"after")
    worker = sim.worker()
    sim.until(worker, lambda: len(sim.delivered()) == 2, 11_000)
    assert [record.value() for record in sim.delivered()] == [b"before", b"after"]
    assert sim.parked() == [("no-append-time", f"{SCHEDULE}/3/1")]


def test_a_record_without_append_time_from_a_clock_that_is_ahead_makes_no_other_early(sim: Any) -> None:
    sim.schedule(level=4, value=b"before")
    due_ms = sim.clock.wall_ms() + 10_000
    topic = sim.kafka._topic(SCHEDULE)
    topic.config["message.timestamp.type"] = "CreateTime"
    ahead_ms = sim.clock.wall_ms() + 3_600_000
    sim.kafka.append(SCHEDULE, b"ahead", partition=3, headers=[("REAL_TOPIC", b"orders")], timestamp_ms=ahead_ms)
    topic.config["message.timestamp.type"] = "LogAppendTime"
    worker = sim.worker()
    sim.until(worker, lambda: bool(sim.delivered()), 30_000)
    assert [record.value() for record in sim.delivered()] == [b"before"]
    assert sim.delivered()[0].timestamp()[1] >= due_ms


def test_a_recreated_topic_is_read_from_its_beginning(sim: Any) -> None:
    worker = sim.worker()
    for _ in range(5):
        sim.schedule()
    sim.run(worker, 1_500)
    held = worker._assignment.held[sim.key(0)]
    records = sim.kafka.records(SCHEDULE, 0)[:1]
    worker._fetcher.offer(held, records, sim.clock.monotonic_ns())
    assert held.gone
    assert worker._assignment.held[sim.key(0)].queue.waiting_count == 1


def test_records_of_a_recreated_topic_may_arrive_with_the_last_ones_of_the_old_topic(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 100)
    for number in range(6):
        sim.schedule(value=b"%d" % number)
    records = sim.kafka.records(SCHEDULE, 0)
    worker._fetcher.offer(worker._assignment.held[sim.key(0)], [*records[4:], *records[:3]], sim.clock.monotonic_ns())
    assert worker.counts.alarms == {"worker.log-restarted": 1}
    assert worker._assignment.held[sim.key(0)].queue.waiting_count == 3, "those of the new log"


def test_marks_of_the_records_that_show_that_a_log_was_recreated_are_kept(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka._topic(SCHEDULE).config["message.timestamp.type"] = "CreateTime"
    for _ in range(2):
        sim.kafka.append(SCHEDULE, b"old", partition=0, headers=[("REAL_TOPIC", b"orders")], timestamp_ms=1)
    first, second = sim.kafka.records(SCHEDULE, 0)
    for run in ([second], [first]):
        worker._fetcher.offer(worker._assignment.held[sim.key(0)], run, sim.clock.monotonic_ns())
    assert worker._fetcher._router.refusals.reasons == {(*sim.key(0), 0): "no-append-time"}


def test_a_producer_is_replaced_after_a_fatal_error_and_no_record_is_lost(sim: Any) -> None:
    worker = sim.worker()
    for number in range(5):
        sim.schedule(value=b"%d" % number)
    sim.kafka.fail_produce(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "x", fatal=True), topic="orders")
    sim.until(worker, lambda: len({record.value() for record in sim.delivered()}) == 5)
    assert worker.counts.recycled + worker.counts.aborted >= 1
    sim.until(worker, lambda: (sim.position() or 0) >= 5, 3_000)


@pytest.mark.only("at-least-once")
def test_a_producer_that_the_brokers_refuse_is_not_replaced_all_the_time(sim: Any) -> None:
    """As without the right to write to any topic; when it is there, every record is delivered."""
    worker = sim.worker()
    made: list[Any] = []

    def refused(config: dict[str, Any]) -> Any:
        made.append(sim.kafka.producer(config))
        if len(made) < 10:
            made[-1]._session.die(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no id", fatal=True))
        return made[-1]

    worker._clients.make_producer = refused
    worker._delivery._producers._plain._session.die(KafkaError(KafkaError._FATAL, "x", fatal=True))
    for number in range(5):
        sim.schedule(value=b"%d" % number)
    sim.run(worker, 5_000)
    assert 4 <= len(made) <= 6
    sim.until(worker, lambda: len(sim.delivered()) == 5)
    sim.until(worker, lambda: sim.position() == 5, 3_000)


def test_a_queue_with_a_far_head_buffers_few_records_and_one_with_a_near_head_more(sim: Any) -> None:
    worker = sim.worker(prefetch_count=1_000)
    for _ in range(3_000):
        sim.schedule(level=4, value=b"far")
    sim.run(worker, 500)
    held = worker._assignment.held[sim.key(3)]
    assert held.paused
    assert held.queue.waiting_count <= 1_100
    sim.until(worker, lambda: len(sim.delivered()) == 3_000, 20_000)


def test_an_unavailable_broker_loses_no_record(sim: Any) -> None:
    worker = sim.worker()
    for number in range(20):
        sim.schedule(value=b"%d" % number)
    sim.run(worker, 500)
    sim.kafka.stop_broker()
    sim.run(worker, 5_000)
    sim.kafka.start_broker()
    sim.until(worker, lambda: len({record.value() for record in sim.delivered()}) == 20, 60_000)
    sim.until(worker, lambda: (sim.position() or 0) >= 20, 60_000)


def test_a_second_start_changes_nothing(sim: Any) -> None:
    worker = sim.worker()
    consumer = worker._consumer
    worker.start()
    assert worker._consumer is consumer
    assert isinstance(TopicPartition("t", 0), TopicPartition)


def test_busy_queues_do_not_block_other_queues(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = sim.worker(max_in_flight_count=1_000, drain_count=1_000)
    sim.run(worker, 100)
    for partition in range(4, 10):
        for number in range(4_000):
            sim.schedule(value=b"%d" % number, partition=partition)
    sim.schedule(value=b"other", partition=20)
    sim.until(worker, lambda: sum(held.queue.waiting_count for held in worker._assignment.held.values()) == 24_001)
    delivery, served = worker._delivery, []
    relay = delivery.relay

    def noted(held: Any, due: Any, now_ns: int) -> None:
        served.append(held.number)
        relay(held, due, now_ns)

    monkeypatch.setattr(delivery, "relay", noted)
    sim.until(worker, lambda: len(sim.delivered()) == 24_001)
    a_round = served[served.index(20) + 1 :][:6]
    assert sorted(a_round) == list(range(4, 10)), "each is served once before one is served again"


@pytest.mark.parametrize("stored", [False, True])
def test_a_delivery_that_is_reported_without_an_offset_is_made_again(sim: Any, stored: bool) -> None:
    worker = sim.worker()
    sim.kafka.fail_produce(None, topic="orders", count=3, stored=stored)
    for number in range(3):
        sim.schedule(value=b"%d" % number)
    sim.until(worker, lambda: {record.value() for record in sim.delivered()} == {b"0", b"1", b"2"})
    sim.run(worker, 5_000)
    hops: dict[bytes, set[str | None]] = {}
    for record in sim.delivered():
        hops.setdefault(record.value(), set()).add(header(record, "HOP_ID"))
    assert sorted(hops) == [b"0", b"1", b"2"]
    assert all(len(names) == 1 for names in hops.values())
    assert worker.counts.delivered == 3
    assert worker.counts.re_appended == 0, "it is nothing against the target"
    assert worker.counts.resent == 3 or worker.counts.aborted >= 1


def test_a_hop_that_is_reported_without_an_offset_is_made_again(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(relative=False, headers=[("DELAY_MS", b"2500")], level=2)
    sim.kafka.fail_produce(None, topic=SCHEDULE, partition=27, count=2)
    sim.run(worker, 3_100)
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    assert worker.counts.alarms["worker.hop-not-stored"] >= 1


def test_a_worker_keeps_nothing_of_the_records_that_it_has_delivered(sim: Any) -> None:
    def batches() -> int:
        gc.collect()
        return sum(type(each) is HopBatch for each in gc.get_objects())

    worker, before = sim.worker(), batches()
    for _ in range(10):
        sim.schedule()
        sim.run(worker, 100)
    sim.until(worker, lambda: len(sim.delivered()) == 10)
    assert batches() - before <= 2, "those of the last turn at most"


@pytest.mark.parametrize("what", ["a probe", "a hop"])
def test_a_worker_ends_when_its_schedule_topic_is_compacted(sim: Any, what: str) -> None:
    """Ready and silent, it would deliver nothing; a hop is not to be parked for it."""
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka.fail_produce(KafkaError(KafkaError.INVALID_RECORD), topic=SCHEDULE, count=1_000)
    if what == "a probe":
        worker._prober.probe(worker._assignment.held[sim.key(0)])
    else:
        sim.schedule(headers=[("DELAY_MS", b"9000")])
        sim.clock.advance(5_000)
    with pytest.raises(TopicMismatchError, match=r"cleanup\.policy=compact.*rocketshim init --fix"):
        sim.run(worker, 30_000)
    assert not sim.parked()


def test_a_parked_record_that_is_sent_again_keeps_its_due_time_and_is_no_lateness_of_the_worker(sim: Any) -> None:
    worker = sim.worker(allow=("orders", "audit*", "invoices"))
    scheduled = sim.schedule(topic="invoices", level=1)
    sim.until(worker, sim.parked)
    [parked] = sim.kafka.records(NAMES.parked)
    sim.kafka.create_topic("invoices", 1, config={"message.timestamp.type": "LogAppendTime"})
    sim.run(worker, 3_600_000)
    counted = worker.counts.lateness.total
    again = redriven_parked(parked, NAMES, "0123456789abcdef0123.0.0")
    made = sim.kafka.append(again.topic, again.value, partition=again.partition, key=again.key, headers=again.headers)
    sim.until(worker, lambda: len(sim.delivered("invoices")) == 1)
    assert worker.counts.lateness.total - counted < 1, "it waited an hour for a person"
    [record] = sim.delivered("invoices")
    assert not {"PARK_FROM", "REPLAY_ID"} & {name for name, _ in record.headers()}
    history = life(
        [RecordView.of(each) for each in (scheduled, parked, made, record)],
        schedule=SCHEDULE, levels=LEVELS, low_offset=lambda *_: 0,
    )  # fmt: skip
    delivered = history[-1]
    assert isinstance(delivered, RecordView)
    assert delivered.late_ms == record.timestamp()[1] - scheduled.timestamp()[1] - 1_000, "late since it was due"
    steps = [step_text(each, NAMES) for each in history if isinstance(each, RecordView)]
    assert steps[-2] == "sent again by plan 0123456789abcdef0123, already due when it was stored, for invoices"


def test_a_parked_record_that_is_sent_again_before_it_is_due_is_not_early(sim: Any) -> None:
    worker = sim.worker()
    due_ms = sim.clock.wall_ms() + 60_000
    headers = [("DELIVER_AT_MS", b"%d" % due_ms), ("RECONSUME_TIMES", b"many")]
    sim.schedule(relative=False, headers=headers)
    sim.until(worker, sim.parked)
    [parked] = sim.kafka.records(NAMES.parked)
    kept = [header for header in parked.headers() if header[0] != "RECONSUME_TIMES"]
    again = redriven_parked(
        Message(topic=NAMES.parked, partition=0, offset=0, value=b"x", headers=kept), NAMES, "p.0.0"
    )
    sim.kafka.append(again.topic, again.value, partition=again.partition, key=again.key, headers=again.headers)
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    [record] = sim.delivered()
    assert due_ms <= record.timestamp()[1] < due_ms + 1_000
