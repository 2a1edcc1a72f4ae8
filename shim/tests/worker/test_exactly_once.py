"""Transactions with an uncertain outcome, in virtual time."""

from collections import Counter
from typing import Any

import pytest
from confluent_kafka import KafkaError

from rocketshim.errors import WorkerError
from rocketshim.testing.producer import InMemoryProducer
from rocketshim.worker import exactly_once, worker_clients
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import timer_partition

pytestmark = pytest.mark.only("exactly-once")
GROUP = "rmq.sched"
NAMES = TopicNames("")
SCHEDULE = NAMES.schedule


def values(sim: Any, topic: str = "orders") -> list[bytes]:
    return [record.value() for record in sim.delivered(topic)]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True),
        KafkaError(KafkaError._FENCED, "fenced", fatal=True),
        KafkaError(KafkaError._TRANSPORT, "gone", retriable=True),
    ],
)
def test_a_commit_with_an_uncertain_outcome_delivers_each_record_once(
    sim: Any, error: KafkaError, applied: bool
) -> None:
    worker = sim.worker()
    for number in range(30):
        sim.schedule(value=b"%d" % number, level=1 + number % 3)
    sim.kafka.fail_transaction(error, applied=applied)
    sim.until(worker, lambda: len(values(sim)) >= 30, 20_000)
    sim.run(worker, 3_000)
    assert sorted(values(sim)) == sorted(b"%d" % number for number in range(30))
    assert worker.counts.recycled == 1
    assert sim.position(0) >= 10


def test_each_producer_is_connected_before_it_begins_transactions(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    list_topics, init = InMemoryProducer.list_topics, InMemoryProducer.init_transactions

    def list_noted(producer: InMemoryProducer, topic: str, timeout: float) -> Any:
        asked.append(producer)
        return list_topics(producer, topic, timeout)

    def init_noted(producer: InMemoryProducer, timeout: float) -> None:
        assert asked.count(producer) == 2
        init(producer, timeout)

    monkeypatch.setattr(InMemoryProducer, "list_topics", list_noted)
    monkeypatch.setattr(InMemoryProducer, "init_transactions", init_noted)
    worker = sim.worker()
    sim.schedule()
    sim.kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))
    sim.until(worker, lambda: len(values(sim)) == 1)
    assert len(set(asked)) == 2


def test_a_producer_that_cannot_begin_transactions_is_closed(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    close = worker_clients.close_producer
    monkeypatch.setattr(
        worker_clients, "close_producer", lambda producer, s: (closed.append(producer), close(producer, s))
    )
    worker = sim.worker()
    sim.kafka.stop_broker()
    sim.run(worker, 3_000)
    sim.kafka.start_broker()
    sim.schedule()
    sim.until(worker, lambda: len(values(sim)) == 1)
    assert closed
    assert worker._delivery._producer.current not in closed


def test_an_outcome_that_is_uncertain_again_and_again_costs_a_producer_at_most_each_tenth_of_a_second(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.kafka.fail_transaction(KafkaError(KafkaError._TRANSPORT, "gone", retriable=True), count=1_000)
    sim.run(worker, 5_000)
    assert 10 <= worker.counts.recycled <= 41


def test_a_transaction_that_turns_out_to_be_committed_is_counted(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 500)
    sim.kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True), applied=True)
    sim.schedule()
    sim.schedule(topic="__nobody")
    sim.run(worker, 4_000)
    assert (len(values(sim)), len(sim.parked())) == (1, 1)
    assert worker.counts.delivered == sum(worker.counts.lateness.counts) == 1
    assert worker.counts.parked == {"forbidden-target": 1}
    assert worker.counts.alarms["worker.parked"] == 1


def test_an_error_in_place_of_a_position_leaves_the_outcome_uncertain(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = sim.worker()
    sim.run(worker, 500)
    monkeypatch.setattr(worker._consumer, "committed", lambda asked, **_: [sim.denied_position(each) for each in asked])
    sim.kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True), applied=True)
    sim.schedule()
    sim.run(worker, 4_000)
    monkeypatch.undo()
    sim.run(worker, 4_000)
    assert len(values(sim)) == 1


def test_the_watchdog_gives_the_lookup_of_positions_a_time_of_its_own(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = sim.worker()
    sim.run(worker, 500)
    calls: list[str] = []
    committed, init = worker._consumer.committed, InMemoryProducer.init_transactions

    def noted(name: str, call: Any) -> Any:
        return lambda *args, **named: (calls.append(name), call(*args, **named))[1]

    monkeypatch.setattr(exactly_once.TransactionProducer, "beat", lambda _: calls.append("beat"))
    monkeypatch.setattr(worker._consumer, "committed", noted("committed", committed))
    monkeypatch.setattr(InMemoryProducer, "init_transactions", noted("init", init))
    sim.kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True), applied=True)
    sim.schedule()
    sim.run(worker, 4_000)
    assert calls[calls.index("init") :][:3] == ["init", "beat", "committed"]


@pytest.mark.parametrize("call", ["send_offsets_to_transaction", "commit_transaction"])
def test_an_abort_delivers_each_record_once(sim: Any, call: str) -> None:
    worker = sim.worker()
    for number in range(30):
        sim.schedule(value=b"%d" % number)
    sim.kafka.fail_transaction(
        KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "wait", txn_requires_abort=True), call=call
    )
    sim.until(worker, lambda: len(values(sim)) >= 30, 20_000)
    sim.run(worker, 2_000)
    assert values(sim) == [b"%d" % number for number in range(30)]
    assert worker.counts.aborted == 1


def test_a_transaction_that_is_refused_because_of_a_deleted_target_is_the_only_one(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.kafka.create_topic("audit")
    worker = sim.worker()
    for topic in ("orders", "audit"):
        sim.schedule(topic=topic)
    sim.until(worker, lambda: len(values(sim)) == len(values(sim, "audit")) == 1)
    producer = worker._delivery._producer.current
    flush = producer.flush

    def refused(timeout: float = -1) -> int:
        """As librdkafka does it: no record leaves the queue, and the error does not name the topic."""
        monkeypatch.undo()
        producer.purge()
        sim.kafka.delete_topic("audit")
        sim.kafka.release()
        return flush(timeout)

    sim.kafka.hold_sends()
    monkeypatch.setattr(producer, "flush", refused)
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown", txn_requires_abort=True)
    sim.kafka.fail_transaction(unknown, call="send_offsets_to_transaction")
    for topic in ("orders", "audit"):
        sim.schedule(topic=topic)
    sim.until(worker, lambda: len(values(sim)) == 2 and len(sim.parked()) == 1)
    assert worker.counts.aborted == 1


def test_an_abort_that_fails_has_an_uncertain_outcome(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.kafka.fail_transaction(KafkaError(KafkaError._INCONSISTENT, "x", txn_requires_abort=True))
    sim.kafka.fail_transaction(KafkaError(KafkaError._FENCED, "x", fatal=True), call="abort_transaction")
    sim.until(worker, lambda: len(values(sim)) == 1, 20_000)
    assert worker.counts.recycled == 1


def test_of_two_workers_with_the_same_instance_one_ends(sim: Any) -> None:
    worker = sim.worker(instance="a")

    def fence_again_and_again() -> None:
        for _ in range(4):
            sim.schedule()
            sim.run(worker, 1_200)
            sim.kafka.producer({"transactional.id": "rmq.sched.a"}).init_transactions()

    with pytest.raises(WorkerError, match="--instance"):
        fence_again_and_again()


def waiting(sim: Any) -> list[bytes]:
    return [record.value() for record in sim.kafka.records(SCHEDULE) if record.value()]


def fires(sim: Any) -> int:
    return sum(("TIMER_DO", b"FIRE") in record.headers() for record in sim.kafka.records(NAMES.timers))


def test_a_wait_and_a_fire_that_are_stored_twice_deliver_their_message_once(sim: Any) -> None:
    worker = sim.worker()
    aborts = KafkaError(KafkaError._INCONSISTENT, "x", txn_requires_abort=True)
    sim.command(delay_ms=1_000)
    sim.kafka.fail_transaction(aborts)
    sim.run(worker, 300)
    assert waiting(sim) == [b"body"] * 2
    sim.kafka.fail_transaction(aborts)
    sim.run(worker, 5_000)
    assert fires(sim) == 2
    assert values(sim) == [b"body"]
    assert worker.counts.aborted == 2
    worker.close()
    assert worker._delivery._beside is None


def test_a_name_is_free_only_when_its_message_is_stored(sim: Any) -> None:
    """The message waits without the transaction, but its position and state are in it."""
    worker = sim.worker()
    sim.kafka.hold_reports(SCHEDULE)
    sim.command(delay_ms=1_000)
    sim.run(worker, 30)
    assert waiting(sim) == [b"body"]
    assert not sim.kafka.records(NAMES.timer_state)
    sim.kafka.release()
    sim.run(worker, 10_000)
    assert [record.value() for record in sim.kafka.records(NAMES.timer_state)] == [b"", None]
    assert values(sim) == [b"body"]


def of_partition(number: int, count: int = 1) -> list[str]:
    """Return names whose commands are in this partition of the log."""
    names = (f"o-{at}" for at in range(10_000))
    return [name for name in names if timer_partition("orders", name) == number][:count]


def saved(sim: Any) -> list[int]:
    return [record.partition() for record in sim.kafka.records(NAMES.timer_state)]


def applied(sim: Any, number: int) -> int:
    """Return the position in a partition of the log."""
    return sim.kafka.committed(GROUP).get((NAMES.timers, number)) or 0


class Dead(Exception):  # noqa: N818 - it stands for SIGKILL
    pass


def set_and_kill(sim: Any, *further: str, delay_ms: int = 2_000, in_transaction: bool = False) -> None:
    """Kill a worker that has applied commands of three partitions of the log, and has saved the states of one."""
    is_armed = False

    def die(point: str) -> None:
        if is_armed and point == "before-commit":
            raise Dead

    worker = sim.worker(on_point=die)
    sim.run(worker, 1_500)
    for number in (1, 2, 3):
        (timer,) = of_partition(number)
        sim.command(timer=timer, delay_ms=delay_ms, value=b"%d" % number)
        for what in further:
            sim.command(what, timer=timer)
    sim.until(worker, lambda: all(applied(sim, number) == 1 + len(further) for number in (1, 2, 3)))
    assert saved(sim) == [1]
    if in_transaction:
        is_armed = True
        sim.schedule(topic="audit")
        with pytest.raises(Dead):
            sim.run(worker, 5_000)
    sim.kill(worker)


@pytest.mark.parametrize("in_transaction", [False, True])
def test_names_whose_state_is_not_saved_yet_survive_the_worker(sim: Any, *, in_transaction: bool) -> None:
    """If it ends in a transaction, the next one cannot read the positions at first."""
    set_and_kill(sim, in_transaction=in_transaction)
    sim.run(sim.worker(), 30_000)
    assert sorted(values(sim)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("exactly_once", [False, True])
def test_what_a_worker_found_unsaved_its_successor_knows(sim: Any, *, exactly_once: bool) -> None:
    """What it saves of later commands must not hide them; whichever way it delivers."""
    set_and_kill(sim, delay_ms=30_000)
    worker = sim.worker(exactly_once=exactly_once)
    later = [of_partition(number, 2)[1] for number in (1, 2, 3)]
    for timer in later:
        sim.command(timer=timer, delay_ms=600_000)
    sim.until(worker, lambda: sum(worker.counts.timers.values()) == 3, 20_000)
    sim.run(worker, 300)
    assert saved(sim) == [1, 1, 2, 2, 3, 3]
    sim.kill(worker)
    sim.run(sim.worker(), 60_000)
    assert sorted(values(sim)) == [b"1", b"2", b"3"]


def test_a_command_counts_though_the_next_worker_allows_shorter_delays(sim: Any) -> None:
    set_and_kill(sim)
    sim.run(sim.worker(max_delay_ms=1_500), 30_000)
    assert sorted(values(sim)) == [b"1", b"2", b"3"]


def test_a_delay_that_was_too_long_leaves_a_free_name_though_the_next_worker_allows_longer_ones(sim: Any) -> None:
    worker, (timer,) = sim.worker(max_delay_ms=1_500), of_partition(1)
    sim.command(timer=timer, delay_ms=1_000, value=b"replaced")
    sim.command(timer=timer, delay_ms=2_000, value=b"parked")
    sim.until(worker, lambda: applied(sim, 1) == 2)
    sim.kill(worker)
    worker = sim.worker()
    sim.command("SET-IF-ABSENT", timer=timer, delay_ms=1_000, value=b"new")
    sim.run(worker, 30_000)
    assert values(sim) == [b"new"]
    assert sim.parked() == [("due-too-late", "rmq.timers/1/1")]


def test_a_cancel_whose_state_is_not_saved_yet_survives_the_worker(sim: Any) -> None:
    set_and_kill(sim, "CANCEL")
    sim.run(sim.worker(), 30_000)
    assert values(sim) == []


def test_each_partition_of_the_log_is_saved_in_its_turn(sim: Any) -> None:
    worker, order = sim.worker(), []
    sim.run(worker, 1_500)
    for turn in range(1, 7):
        before = Counter(saved(sim))
        for number in (1, 2, 3):
            sim.command(timer=of_partition(number)[0], delay_ms=60_000)
        sim.until(worker, lambda turn=turn: sum(worker.counts.timers.values()) == 3 * turn, 1_000)
        order += (Counter(saved(sim)) - before).elements()
    assert order == [1, 2, 3, 1, 2, 3]


def set_three(sim: Any, worker: Any, turn: int = 1) -> None:
    """Have the worker apply a SET in each of three partitions of the log, in one transaction."""
    for number in (1, 2, 3):
        sim.command(timer=of_partition(number)[0], delay_ms=2_000, value=b"%d.%d" % (turn, number))
    sim.until(worker, lambda: sum(worker.counts.timers.values()) == 3 * turn, 1_000)


def test_all_states_are_saved_soon_when_nothing_else_happens(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 1_500)
    set_three(sim, worker)
    assert saved(sim) == [1]
    sim.run(worker, 120)
    assert saved(sim) == [1, 2, 3]


def test_not_too_many_states_wait_to_be_saved(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactly_once, "_MOST_UNSAVED", 9)
    worker = sim.worker()
    sim.run(worker, 1_500)
    for number in (1, 2, 3):
        for timer in of_partition(number, 5):
            sim.command(timer=timer, delay_ms=60_000)
    sim.until(worker, lambda: all(applied(sim, number) == 5 for number in (1, 2, 3)))
    assert saved(sim) == [1] * 5 + [2] * 5


def test_a_name_whose_message_was_refused_is_free_for_the_next_worker(sim: Any) -> None:
    """Its command says that it is pending: so what became of it is saved with the refusal, though it has no turn."""
    worker = sim.worker()
    sim.run(worker, 1_500)
    set_three(sim, worker)
    sim.kafka.fail_produce(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "x"), topic=SCHEDULE, synchronous=True)
    set_three(sim, worker, 2)
    assert sim.parked() == [("hop-refused:MSG_SIZE_TOO_LARGE", f"{NAMES.timers}/1/1")]
    assert saved(sim) == [1, 1, 2]
    sim.kill(worker)
    sim.command("SET-IF-ABSENT", timer=of_partition(1)[0], delay_ms=1_000, value=b"again")
    sim.run(sim.worker(), 30_000)
    assert sorted(values(sim)) == [b"2.2", b"2.3", b"again"]


def test_a_partition_whose_state_cannot_be_stored_holds_up_no_other(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 1_500)
    set_three(sim, worker)
    refused = KafkaError(KafkaError.NOT_ENOUGH_REPLICAS, "x")
    sim.kafka.fail_produce(refused, topic=NAMES.timer_state, partition=2, count=1_000)
    sim.schedule(value=b"unnamed")
    sim.run(worker, 5_000)
    assert {b"unnamed", b"1.1", b"1.3"} <= set(values(sim))


def test_a_state_is_not_kept_if_its_transaction_is_aborted(sim: Any) -> None:
    """It would come before what its command does."""
    worker = sim.worker()
    sim.run(worker, 1_500)
    aborts = KafkaError(KafkaError._INCONSISTENT, "x", txn_requires_abort=True)
    sim.kafka.fail_transaction(aborts)
    for number in (1, 2, 3):
        sim.command(timer=of_partition(number)[0], delay_ms=1_000, value=b"%d" % number)
    sim.until(worker, lambda: worker.counts.aborted == 1)
    assert not worker._delivery._unsaved.waiting(sim.clock.monotonic_ns())
    sim.run(worker, 10_000)
    assert sorted(values(sim)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("topic", [SCHEDULE, NAMES.timers])
@pytest.mark.parametrize("is_stored", [False, True])
def test_the_producer_of_waits_and_fires_is_replaced_after_a_fatal_error(
    sim: Any, topic: str, *, is_stored: bool
) -> None:
    worker = sim.worker()
    sim.command(delay_ms=1_000)
    fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "x", fatal=True)
    sim.kafka.fail_produce(fatal, topic=topic, stored=is_stored, count=2)  # the first may be a probe
    sim.run(worker, 6_000)
    assert values(sim) == [b"body"]
    assert worker.counts.aborted in {1, 2}


def test_the_producer_of_waits_and_fires_is_replaced_if_it_takes_no_record_any_more(sim: Any) -> None:
    worker = sim.worker()
    sim.command(delay_ms=1_000)
    sim.run(worker, 300)
    beside = worker._delivery._beside
    beside._session.die(KafkaError(KafkaError._FATAL, "x", fatal=True))
    beside._fatal_is_told = True  # its callbacks were served since
    sim.run(worker, 5_000)
    assert values(sim) == [b"body"]
    assert worker.counts.aborted == 1


def test_what_the_producer_of_waits_could_not_store_holds_up_no_later_transaction(sim: Any) -> None:
    worker = sim.worker()
    sim.kafka.hold_sends(SCHEDULE)
    sim.command(delay_ms=1_000)
    sim.until(worker, lambda: worker.counts.aborted > 0)
    sim.kafka.release()
    sim.schedule(value=b"unnamed")
    sim.run(worker, 3_000)
    assert sorted(values(sim)) == [b"body", b"unnamed"]
    assert worker.counts.aborted == 1


def test_a_worker_without_named_messages_has_one_producer_of_hops(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.schedule(level=2, relative=False, headers=[("DELIVER_AT_MS", b"%d" % (sim.clock.wall_ms() + 9_000))])
    sim.run(worker, 15_000)
    assert len(values(sim)) == 2
    assert worker._delivery._beside is None


def test_the_next_worker_resolves_the_transaction_of_a_worker_that_died(sim: Any) -> None:
    worker = sim.worker(instance="a")
    for number in range(10):
        sim.schedule(value=b"%d" % number)
    sim.run(worker, 900)

    def die(point: str) -> None:
        if point == "before-commit":
            raise Dead

    worker._delivery._point = die
    with pytest.raises(Dead):
        sim.run(worker, 500)
    sim.kafka.kill(worker._consumer)
    sim.kafka.kill(worker._delivery._producer.current)
    worker._consumer = None
    second = sim.worker(instance="a")
    sim.clock.advance(15_000)
    sim.until(second, lambda: len(values(sim)) >= 10, 20_000)
    sim.run(second, 2_000)
    assert sorted(values(sim)) == [b"%d" % number for number in range(10)]


def test_one_transaction_contains_the_due_records_of_all_queues(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 10)
    for level in (1, 2, 3):
        for number in range(5):
            sim.schedule(level=level, value=b"%d" % number)
    worker.close()
    sim.clock.advance(60_000)
    again = sim.worker()
    sim.until(again, lambda: len(values(sim)) == 15, 5_000)
    commits = {commit.monotonic_ns for commit in sim.kafka.commits(GROUP) if commit.next_offset > 0}
    assert len(commits) <= 3


def test_after_a_lost_connection_the_producer_is_replaced_at_most_once_a_second(
    sim: Any,
) -> None:
    worker = sim.worker()
    sim.run(worker, 1_500)
    first = worker._delivery._producer.current
    worker._clients.errors.append(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    sim.run(worker, 50)
    second = worker._delivery._producer.current
    worker._clients.errors.append(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    sim.run(worker, 500)
    assert first is not second is worker._delivery._producer.current
    sim.run(worker, 1_000)
    assert worker._delivery._producer.current is not second
    sim.schedule()
    sim.until(worker, lambda: len(values(sim)) == 1, 5_000)


def test_a_rebalance_aborts_the_open_transaction_before_any_slow_request(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sim.worker(), sim.worker()
    for _ in range(4):
        sim.run(first, 300)
        sim.run(second, 300)
    assert first._assignment.held
    assert second._assignment.held
    level = 1 + min(first._assignment.held).partition
    for number in range(6_000):
        sim.schedule(value=b"%d" % number, key=b"k", level=level, relative=False, headers=[("DELAY_MS", b"1000")])
    consumer, delivery = first._consumer, first._delivery
    committed = consumer.committed

    def slowly(*args: Any, **kwargs: Any) -> Any:
        sim.clock.advance(20_000)
        return committed(*args, **kwargs)

    def leave(point: str) -> None:
        if point == "after-produce" and second in sim.workers:
            sim.workers.remove(second)
            second.close()
            monkeypatch.setattr(consumer, "committed", slowly)

    delivery._point = leave
    sim.clock.advance(3_000)  # all of it is due before it is fetched
    sim.until(first, lambda: len(values(sim)) >= 6_000, 60_000)
    assert second not in sim.workers
    assert first.counts.alarms.get("worker.fenced", 0) == 0
    assert values(sim) == [b"%d" % number for number in range(6_000)]


def test_a_late_commit_of_the_consumer_moves_no_position_back(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = sim.worker()
    consumer = worker._consumer
    commit, late = consumer.commit, []

    def lately(*, offsets: list[Any], asynchronous: bool = True) -> Any:
        if not asynchronous:
            return commit(offsets=offsets, asynchronous=False)
        late.append(offsets)  # the coordinator is unknown for a moment
        return None

    monkeypatch.setattr(consumer, "commit", lately)
    sim.clock.advance(5_000)
    sim.schedule()
    sim.clock.advance(5_000)  # it has waited before it is seen, so that a probe is written behind it
    sim.until(worker, lambda: len(values(sim)) == 1)
    sim.run(worker, 1_000)
    assert worker._assignment.held[sim.key(0)].stored == len(sim.kafka.records("SCHEDULE_TOPIC_XXXX", 0)) == 2
    sim.schedule()
    sim.until(worker, lambda: len(values(sim)) == 2)
    done = sim.position()
    for offsets in late:
        commit(offsets=offsets, asynchronous=False)
    assert sim.position() >= done


@pytest.mark.parametrize("away", ["denied", "deleted"])
def test_a_record_that_cannot_be_parked_blocks_only_its_own_queue(sim: Any, away: str) -> None:
    worker = sim.worker()
    sim.run(worker, 100)
    if away == "denied":
        sim.kafka.deny("rmq.parked", read=False)
    else:
        sim.kafka.delete_topic("rmq.parked")
    sim.schedule(topic="__nobody")
    for number in range(5):
        sim.schedule(value=b"%d" % number, level=2)
    sim.until(worker, lambda: len(values(sim)) == 5, 10_000)
    assert worker.counts.aborted <= 3
    assert worker.counts.alarms["worker.hop-not-stored"] >= 1
    sim.kafka.allow("rmq.parked")
    if away == "deleted":
        sim.kafka.create_topic("rmq.parked", 1)
    sim.until(worker, lambda: len(sim.parked()) == 1, 10_000)
