"""A slow broker: no target is blamed, no record is re-appended, and records keep the order of their due times."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.errors import ConfigError
from rocketshim.settings.worker import WorkerSettings
from rocketshim.testing.producer import InMemoryProducer

from .conftest import SCHEDULE, header

STAMPED = {"message.timestamp.type": "LogAppendTime"}


@pytest.mark.only("at-least-once")
def test_records_for_a_bounded_number_of_topics_are_in_the_producer(sim: Any) -> None:
    for number in range(500):
        sim.kafka.create_topic(f"audit.{number}", 1, config=STAMPED)
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka.hold_sends()
    for number in range(500):
        sim.schedule(topic=f"audit.{number}")
    sim.run(worker, 1_500)
    assert len(worker._delivery._in_flight.topics) == 200
    sim.kafka.release()
    sim.until(worker, lambda: worker.counts.delivered == 500, 1_000)
    stored_ms = [sim.delivered(f"audit.{number}")[0].timestamp()[1] for number in range(500)]
    assert stored_ms == sorted(stored_ms), "a later record overtook an earlier one"
    assert not worker.counts.alarms


@pytest.mark.only("at-least-once")
def test_only_five_topics_are_added_while_another_one_is_late(sim: Any) -> None:
    for number in range(20):
        sim.kafka.create_topic(f"audit.{number}", 1, config=STAMPED)
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka.hold_sends("audit.0")
    sim.schedule(topic="audit.0")
    sim.run(worker, 700)
    for number in range(1, 20):
        sim.schedule(topic=f"audit.{number}")
        sim.kafka.hold_sends(f"audit.{number}")
    sim.run(worker, 1_100)
    assert len(worker._delivery._in_flight.topics) == 1 + 5
    sim.kafka.release()
    sim.until(worker, lambda: worker.counts.delivered == 20, 1_000)
    assert not worker.counts.alarms
    assert len(sim.delivered("audit.0")) == 1


@pytest.mark.only("at-least-once")
def test_a_probe_does_not_prove_that_a_target_is_silent_while_reports_arrive(sim: Any) -> None:
    targets = [f"audit.{number}" for number in range(10)]
    for topic in targets:
        sim.kafka.create_topic(topic, 1, config=STAMPED)
        sim.kafka.hold_sends(topic)
    worker = sim.worker()
    sim.run(worker, 100)
    for topic in targets:
        sim.schedule(topic=topic)
    sim.run(worker, 1_000)
    for topic in targets:
        sim.run(worker, 1_000)
        sim.kafka.release(topic)
    sim.until(worker, lambda: worker.counts.delivered == 10, 1_000)
    assert not worker.counts.alarms


@pytest.mark.only("at-least-once")
def test_a_target_that_fails_while_its_records_wait_gets_none_of_them(sim: Any) -> None:
    for number in range(201):
        sim.kafka.create_topic(f"audit.{number}", 1, config=STAMPED)
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka.hold_sends()
    for number in range(201):
        sim.schedule(topic=f"audit.{number}")
    sim.run(worker, 1_500)
    [(_, group, _)] = worker._delivery._backlog
    assert group.target.failed(sim.clock.monotonic_ns(), "test")
    sim.kafka.release()
    sim.until(worker, lambda: worker.counts.delivered == 200, 1_000)
    assert worker.counts.re_appended == 1
    sim.until(worker, lambda: worker.counts.delivered == 201, 10_000)


def test_a_record_that_was_not_sent_in_time_is_sent_again_and_its_target_is_not_avoided(sim: Any) -> None:
    worker = sim.worker()
    sim.kafka.fail_produce(KafkaError(KafkaError._MSG_TIMED_OUT), topic="orders", count=3)
    for number in range(6):
        sim.schedule(value=b"%d" % number, key=b"k")
    sim.until(worker, lambda: len({record.value() for record in sim.delivered()}) == 6, 10_000)
    assert worker.counts.re_appended == 0
    assert "worker.target-avoided" not in worker.counts.alarms


@pytest.mark.only("at-least-once")
def test_no_target_of_a_broker_that_throttles_is_silent_and_nothing_more_is_sent_to_it(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka.create_topic("audit", 1, config=STAMPED)
    sim.kafka.hold_sends("orders")
    sim.schedule()
    sim.until(worker, lambda: worker._delivery._pace.in_flight > 0)
    worker._delivery._producers._config["throttle_cb"](SimpleNamespace(throttle_time=9.0))
    sim.schedule(topic="audit")
    sim.run(worker, 8_500)
    assert len(worker._delivery._producers) == 1
    sim.kafka.release("orders")
    sim.until(worker, lambda: worker.counts.delivered == 2, 1_500)
    assert not worker.counts.alarms
    assert len(sim.delivered()) == len(sim.delivered("audit")) == 1


@pytest.mark.only("exactly-once")
def test_after_a_transaction_that_took_too_long_the_next_ones_are_smaller(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = sim.worker()
    sim.until(worker, lambda: worker._delivery._producer.current is not None)
    producer = worker._delivery._producer.current
    flush, left = producer.flush, [80]

    def slowly(timeout: float = -1) -> int:  # a report each second, and the calls may take ten
        if not timeout or worker._delivery._open is None or left[0] == 60:
            return flush(timeout)
        sim.clock.advance(max(1_000, timeout * 1_000))
        left[0] -= 1
        return left[0]

    monkeypatch.setattr(producer, "flush", slowly)
    sizes: list[int] = []
    committed = worker._delivery._committed

    def noted(transaction: Any, began_ns: int) -> None:
        sizes.append(transaction.count)
        committed(transaction, began_ns)

    worker._delivery._committed = noted
    for number in range(80):
        sim.schedule(value=b"%d" % number)
    sim.until(worker, lambda: len(sim.delivered()) >= 80, 60_000)
    assert worker.counts.aborted == 1
    assert sum(sizes) == 80
    assert sizes[0] < 60
    assert "worker.target-avoided" not in worker.counts.alarms


@pytest.mark.only("exactly-once")
def test_a_broker_that_throttles_for_longer_than_a_transaction_lasts_aborts_it_and_no_target_is_avoided(
    sim: Any,
) -> None:
    worker = sim.worker()

    def throttle(name: str) -> None:
        if name == "after-produce" and worker.counts.aborted == 0:
            worker._delivery._producer._config["throttle_cb"](SimpleNamespace(throttle_time=30.0))

    worker._delivery._point = throttle
    for number in range(4):
        sim.schedule(value=b"%d" % number)
    sim.run(worker, 29_000)
    assert (worker.counts.aborted, len(sim.delivered())) == (1, 0)
    sim.until(worker, lambda: len(sim.delivered()) == 4, 5_000)
    assert worker.counts.aborted == 1
    assert "worker.target-avoided" not in worker.counts.alarms


@pytest.mark.only("exactly-once")
def test_a_silent_target_does_not_make_the_next_transactions_smaller(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1, config=STAMPED)
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka.hold_sends("orders")
    sizes: list[int] = []
    committed = worker._delivery._committed

    def noted(transaction: Any, began_ns: int) -> None:
        sizes.append(transaction.count)
        committed(transaction, began_ns)

    worker._delivery._committed = noted
    sim.schedule()
    for number in range(100):
        sim.schedule(topic="audit", value=b"%d" % number)
    sim.until(worker, lambda: len(sim.delivered("audit")) == 100, 10_000)
    assert worker.counts.aborted == 1
    assert max(sizes) >= 100


@pytest.mark.only("exactly-once")
def test_a_coordinator_that_does_not_answer_does_not_make_the_next_transactions_smaller(sim: Any) -> None:
    worker = sim.worker()
    sim.run(worker, 100)
    sim.kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))
    sim.schedule()
    sim.until(worker, lambda: worker.counts.recycled == 1)
    assert worker._delivery._pace.room_count(sim.clock.monotonic_ns()) >= 200
    sim.until(worker, lambda: len(sim.delivered()) == 1)


def kept_ids(sim: Any, monkeypatch: pytest.MonkeyPatch) -> set[str | None]:
    """Each `transactional.id` that is added is kept by its last transaction: no producer with it is accepted."""
    kept: set[str | None] = set()
    init = InMemoryProducer.init_transactions

    def init_unless_kept(producer: InMemoryProducer, timeout: float) -> None:
        if producer._session.name in kept:
            sim.clock.advance(timeout * 1_000)
            raise KafkaException(KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, retriable=True))
        init(producer, timeout)

    monkeypatch.setattr(InMemoryProducer, "init_transactions", init_unless_kept)
    return kept


@pytest.mark.only("exactly-once")
def test_a_silent_target_holds_up_others_for_the_configured_patience_each_time_it_is_tried(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction keeps the `transactional.id`: the coordinator cannot end it while the leader does not answer."""
    kept, abort = kept_ids(sim, monkeypatch), InMemoryProducer.abort_transaction

    def abort_kept(producer: InMemoryProducer, timeout: float) -> None:
        abort(producer, timeout)
        kept.add(producer._session.name)

    monkeypatch.setattr(InMemoryProducer, "abort_transaction", abort_kept)
    sim.kafka.create_topic("audit", 1, config=STAMPED)
    worker = sim.worker(target_patience_ms=2_000)
    sim.run(worker, 100)
    sim.kafka.hold_sends("orders")
    for _ in range(300):
        sim.schedule()
        sim.schedule(topic="audit")
        sim.run(worker, 100)
    sim.until(worker, lambda: len(sim.delivered("audit")) == 300, 10_000)
    assert worker.counts.aborted >= 3
    sent_ms = [
        record.timestamp()[1] for record in sim.kafka.records(SCHEDULE) if header(record, "REAL_TOPIC") == "audit"
    ]
    stored_ms = [record.timestamp()[1] for record in sim.delivered("audit")]
    assert max(after - before for before, after in zip(sent_ms, stored_ms, strict=True)) <= 1_000 + 2_500


@pytest.mark.only("exactly-once")
def test_a_silent_target_is_avoided_though_its_transaction_has_no_other_target_and_keeps_the_id(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first transaction of an id could begin, so it is its own target that keeps it from ending."""
    kept, produce = kept_ids(sim, monkeypatch), InMemoryProducer.produce

    def produce_noted(producer: InMemoryProducer, topic: str, *args: Any, **kwargs: Any) -> None:
        produce(producer, topic, *args, **kwargs)
        if topic == "orders":
            kept.add(producer._session.name)

    monkeypatch.setattr(InMemoryProducer, "produce", produce_noted)
    worker = sim.worker(target_patience_ms=2_000, target_tries=100)
    sim.run(worker, 100)
    sim.kafka.hold_sends("orders")
    sim.schedule()
    sim.until(worker, lambda: "worker.target-avoided" in worker.counts.alarms, 20_000)
    sim.run(worker, 120_000)
    assert len(kept) < 20, "it is tried less and less often, and each time costs an id"


@pytest.mark.only("exactly-once")
@pytest.mark.parametrize("is_kept", [True, False], ids=["its-last-transaction-cannot-end", "its-coordinator-is-slow"])
def test_only_an_id_whose_last_transaction_cannot_end_is_replaced(
    sim: Any, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    tried: list[str | None] = []
    code = KafkaError.CONCURRENT_TRANSACTIONS if is_kept else KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    init = InMemoryProducer.init_transactions

    def init_noted(producer: InMemoryProducer, timeout: float) -> None:
        tried.append(producer._session.name)
        if len(tried) == 1:
            raise KafkaException(KafkaError(code, retriable=True))
        init(producer, timeout)

    monkeypatch.setattr(InMemoryProducer, "init_transactions", init_noted)
    worker = sim.worker(instance="a")
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1, 5_000)
    assert tried == ["rmq.sched.a", "rmq.sched.a+1" if is_kept else "rmq.sched.a"]


@pytest.mark.only("exactly-once")
def test_the_first_id_is_used_again_when_its_last_transaction_has_ended(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_ids(sim, monkeypatch)
    kept |= {"rmq.sched.a", *(f"rmq.sched.a+{number}" for number in range(1, 100))}  # of the process before
    worker = sim.worker(instance="a")
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1, 15_000)
    assert worker._delivery._producer.current._session.name == "rmq.sched.a+128"
    sim.run(worker, 600_000)
    assert worker._delivery._producer.current._session.name == "rmq.sched.a+128"
    assert worker.counts.alarms["worker.producer-recycled"] <= 8 + 4, "each try holds up everything for a second"
    kept.clear()
    sim.run(worker, 600_000)
    assert worker._delivery._producer.current._session.name == "rmq.sched.a"
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 2, 5_000)


@pytest.mark.only("exactly-once")
def test_the_other_ids_of_a_worker_are_those_of_no_other_worker(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_ids(sim, monkeypatch).add("rmq.sched.a")
    workers = [sim.worker(instance=instance) for instance in ("a", "a.1")]
    for each in workers:
        sim.run(each, 3_000)
    assert len({each._delivery._producer.current._session.name for each in workers}) == 2
    with pytest.raises(ConfigError):
        WorkerSettings(bootstrap="b:1", allow=("orders",), instance="a+1")


@pytest.mark.only("exactly-once")
def test_a_target_is_silent_if_others_of_its_transaction_are_stored_though_no_probe_is(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1, config=STAMPED)
    worker = sim.worker(target_patience_ms=2_000)
    sim.run(worker, 100)
    sim.kafka.hold_sends("orders")
    sim.schedule()
    sim.schedule(topic="audit")
    sim.run(worker, 50)
    sim.kafka.hold_sends(SCHEDULE)  # its leader is the silent broker, too: no probe is stored
    begin_ms = sim.clock.wall_ms()
    sim.until(worker, lambda: worker.counts.aborted >= 1, 20_000)
    assert sim.clock.wall_ms() - begin_ms < 5_000
    sim.kafka.release()
    sim.until(worker, lambda: len(sim.delivered("audit")) == 1, 20_000)


@pytest.mark.only("exactly-once")
@pytest.mark.parametrize("is_slow", [True, False], ids=["slow", "silent"])
def test_a_transaction_waits_while_reports_arrive(sim: Any, is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = sim.worker()
    sim.until(worker, lambda: worker._delivery._producer.current is not None)
    producer = worker._delivery._producer.current
    flush = producer.flush
    waited_s = 0.0

    def slowly(timeout: float = -1) -> int:  # a report each 1.5 s, or none for 4.5 s; the patience is 2 s
        nonlocal waited_s
        waited_s += max(0, timeout)
        sim.clock.advance(max(0, timeout) * 1_000)
        if waited_s >= 4.5:
            return flush(timeout)
        return 3 - int(waited_s / 1.5) if is_slow else 3

    monkeypatch.setattr(producer, "flush", slowly)
    for number in range(3):
        sim.schedule(value=b"%d" % number)
    sim.until(worker, lambda: len(sim.delivered()) == 3, 20_000)
    assert (worker.counts.aborted == 0) is is_slow


@pytest.mark.only("exactly-once")
def test_after_a_transaction_with_many_topics_the_next_ones_have_about_200(sim: Any) -> None:
    for number in range(1_000):
        sim.kafka.create_topic(f"audit.{number}", 1, config=STAMPED)
    worker = sim.worker()
    sim.run(worker, 100)
    sizes: list[int] = []
    committed = worker._delivery._committed

    def noted(transaction: Any, began_ns: int) -> None:
        sizes.append(len(transaction.topics))
        committed(transaction, began_ns)

    worker._delivery._committed = noted
    for turn in range(2):
        for number in range(1_000):
            sim.schedule(topic=f"audit.{number}", value=b"%d" % turn)
    sim.until(worker, lambda: worker.counts.delivered == 2_000, 10_000)
    assert max(sizes[1:]) <= 200
