"""The worker with targets that are unknown or no longer known, in virtual time."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, murmur2

from rocketshim.errors import ConfigError, WorkerError
from rocketshim.kafka.clients import Clients, confluent_clients
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.targets import NEVER_NS, TargetTable
from rocketshim.worker.topic_lookup import Answer
from rocketshim.worker.worker import DelayWorker

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
STAMPED = {"message.timestamp.type": "LogAppendTime"}


class SlowLookup:
    """Answers one question each three milliseconds; no topic but `orders` exists."""

    failure = None

    def __init__(self, sim: Any) -> None:
        self.clock, self.free_ns = sim.clock, 0
        self.asked: dict[str, int] = {}

    def ask(self, topic: str, ticket: int, *, is_urgent: bool) -> None:
        del is_urgent
        if not self.asked:
            self.free_ns = self.clock.monotonic_ns()
        self.asked[topic] = ticket

    def answers(self) -> Any:
        while self.asked and self.free_ns + 3_000_000 <= self.clock.monotonic_ns():
            self.free_ns += 3_000_000
            topic = next(iter(self.asked))
            yield Answer(topic, self.asked.pop(topic), 3 if topic == "orders" else 0)

    def close(self) -> None: ...


class Lookup:
    """Answers when the test allows it."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim
        self.asked: list[tuple[str, int]] = []
        self.is_silent = False
        self.failure = None

    def ask(self, topic: str, ticket: int, *, is_urgent: bool) -> None:
        del is_urgent
        self.asked.append((topic, ticket))

    def answers(self) -> Iterator[Answer]:
        while self.asked and not self.is_silent:
            topic, ticket = self.asked.pop(0)
            there = topic in self.sim.kafka.topics()
            yield Answer(topic, ticket, len(self.sim.kafka._topic(topic).partitions) if there else 0)

    def close(self) -> None: ...


def watched(sim: Any, **settings: Any) -> tuple[Any, Lookup]:
    worker, lookup = sim.worker(**settings), Lookup(sim)
    worker._targets.set_lookup(lookup)
    return worker, lookup


def test_the_loops_own_consumer_never_looks_up_a_target(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = sim.worker()

    def refuse(*_: Any, **__: Any) -> Any:
        pytest.fail("a client that fetches answers half a second later")

    monkeypatch.setattr(worker._consumer, "list_topics", refuse)
    sim.schedule()
    sim.schedule(topic="audit.gone")
    sim.until(worker, lambda: bool(sim.delivered()) and bool(sim.parked()))


def test_an_unknown_target_does_not_block_another_queue(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1, config=STAMPED)
    worker, lookup = watched(sim)
    sim.schedule(level=2)
    sim.run(worker, 100)  # `orders` is looked up
    lookup.is_silent = True
    sent = sim.schedule(topic="audit", level=1)
    sim.run(worker, 3_000)
    assert sim.delivered("audit") == []
    [record] = sim.delivered()
    assert record.timestamp()[1] - sim.kafka.records(SCHEDULE, 1)[0].timestamp()[1] <= 2_050
    assert not worker.counts.alarms
    assert sim.position() == sent.offset()
    lookup.is_silent = False
    sim.until(worker, lambda: len(sim.delivered("audit")) == 1, 50)
    sim.until(worker, lambda: sim.position() > sent.offset(), 1_000)
    assert worker.counts.aborted == worker.counts.re_appended == 0


@pytest.mark.only("at-least-once")
def test_records_that_wait_for_their_target_keep_their_order_and_do_not_block_others_of_their_queue(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1, config=STAMPED)
    worker, lookup = watched(sim)
    sim.schedule(value=b"first")
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    lookup.is_silent = True
    for number in range(5):
        sim.schedule(topic="audit", value=b"%d" % number)
        sim.schedule(value=b"other %d" % number)
    sim.until(worker, lambda: len(sim.delivered()) == 6, 1_100)
    sim.clock.advance(400)
    for number in range(5, 10):
        sim.schedule(topic="audit", value=b"%d" % number)
    sim.clock.advance(1_000)  # due, and not fetched yet
    lookup.is_silent = False
    sim.until(worker, lambda: len(sim.delivered("audit")) == 10, 100)
    assert [record.value() for record in sim.delivered("audit")] == [b"%d" % number for number in range(10)]


@pytest.mark.only("at-least-once")
def test_records_that_have_waited_for_their_target_are_not_all_sent_at_the_same_time(sim: Any) -> None:
    """Below a quota of 20 kB/s they would wait longer in the client than its time-out, and be sent again."""
    worker, lookup = watched(sim)
    lookup.is_silent = True
    for number in range(1_000):
        sim.schedule(value=b"%d" % number + bytes(2_000))
    sim.run(worker, 1_500)
    sim.kafka.hold_sends()
    lookup.is_silent = False
    most = 0
    for _ in range(10):
        sim.run(worker, 10)
        most = max(most, len(worker._delivery._producers))
    assert 50 <= most <= 200, "about 256 kB"
    sim.kafka.release()
    sim.until(worker, lambda: len(sim.delivered()) == 1_000, 5_000)
    for partition in range(3):
        numbers = [int(record.value().rstrip(bytes(1))) for record in sim.kafka.records("orders", partition)]
        assert numbers == sorted(numbers)
    assert worker.counts.resent == 0


def test_records_that_wait_for_their_target_are_dropped_with_their_partition(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1, config=STAMPED)
    worker, lookup = watched(sim)
    lookup.is_silent = True
    sim.schedule(topic="audit")
    sim.run(worker, 1_200)
    sim.kafka.evict(worker._consumer)
    sim.run(worker, 500)
    lookup.is_silent = False
    sim.until(worker, lambda: len(sim.delivered("audit")) == 1)
    sim.run(worker, 2_000)
    assert len(sim.delivered("audit")) == 1
    assert sim.position() >= 1


def test_targets_are_looked_up_when_their_records_are_fetched(sim: Any) -> None:
    worker, lookup = watched(sim)
    lookup.is_silent = True
    for number in range(30):
        sim.schedule(topic=f"audit.{number}", level=4)
    sim.run(worker, 200)
    assert [topic for topic, _ in lookup.asked] == [f"audit.{number}" for number in range(30)]


def test_a_target_is_looked_up_again_in_the_background(sim: Any) -> None:
    worker, lookup = watched(sim)
    for _ in range(80):
        sim.schedule()
        sim.run(worker, 100)
        lookup.is_silent = len(sim.delivered()) > 0 and sim.clock.monotonic_ns() < 3_500e6
    assert len(sim.delivered()) >= 65, "nobody waited for an answer that was late"
    assert worker._targets._targets["orders"].ticket in {3, 4}


def test_a_target_in_use_keeps_its_answer_while_the_cluster_does_not_answer_and_is_asked_for_once(sim: Any) -> None:
    worker, lookup = watched(sim)
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    lookup.is_silent = True
    for number in range(60):
        sim.schedule(value=b"%d" % number)
        sim.run(worker, 200)
    assert len(sim.delivered()) >= 55
    assert len(lookup.asked) == 1
    sim.schedule()
    lookup.is_silent = False
    sim.until(worker, lambda: len(sim.delivered()) == 62, 2_000)
    assert worker.counts.aborted == worker.counts.re_appended == 0


def test_an_idle_target_is_looked_up_before_it_is_written_to(sim: Any) -> None:
    worker, lookup = watched(sim)
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    sim.run(worker, 6_000)
    lookup.is_silent = True
    sim.schedule()
    sim.run(worker, 3_000)
    assert len(sim.delivered()) == 1
    lookup.is_silent = False
    sim.until(worker, lambda: len(sim.delivered()) == 2, 1_000)


def test_a_missing_target_that_is_created_meanwhile_gets_its_records(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(topic="audit")
    sim.until(worker, lambda: len(sim.parked()) == 1)
    sim.kafka.create_topic("audit", 1, config=STAMPED)
    sim.run(worker, 1_000)
    sim.schedule(topic="audit")
    sim.until(worker, lambda: len(sim.delivered("audit")) == 1, 2_000)
    assert len(sim.parked()) == 1


def test_records_for_more_missing_targets_than_are_looked_up_in_a_second_are_parked(sim: Any) -> None:
    worker = sim.worker()
    worker._targets.set_lookup(SlowLookup(sim))
    for number in range(600):
        sim.schedule(topic=f"audit.{number}")
    sim.schedule()
    sim.until(worker, lambda: len(sim.parked()) == 600 and len(sim.delivered()) == 1)


def test_a_failed_lookup_is_an_alarm_and_no_record_is_lost(sim: Any) -> None:
    worker = sim.worker()
    client = worker._targets._lookup._client = worker._targets._lookup._make_client()
    answers = client.list_topics
    client.list_topics = lambda *_, **__: (_ for _ in ()).throw(KafkaException("nobody answers"))
    sim.schedule()
    sim.until(worker, lambda: "worker.metadata-failed" in worker.counts.alarms)
    client.list_topics = answers
    sim.until(worker, lambda: len(sim.delivered()) == 1, 5_000)
    assert not sim.parked()


def test_a_record_for_a_topic_that_was_never_known_is_not_written_while_the_cluster_does_not_answer(sim: Any) -> None:
    """The write could create the topic."""
    worker, lookup = watched(sim)
    answers = lookup.answers
    lookup.answers = lambda: (answer._replace(partitions=None, error="nobody answers") for answer in answers())  # type: ignore[method-assign]
    sent = sim.schedule(topic="audit.gone")
    sim.run(worker, 4_000)
    assert worker.counts.alarms.keys() == {"worker.metadata-failed"}
    assert worker.counts.alarms["worker.metadata-failed"] <= 5, "it is looked up once a second"
    assert sim.position() <= sent.offset()
    lookup.answers = answers  # type: ignore[method-assign]
    sim.until(worker, lambda: bool(sim.parked()))
    assert sim.parked()[0][0] == "unknown-topic:audit.gone"
    assert worker.counts.aborted == 0


def test_a_target_that_was_known_gets_its_records_while_the_cluster_does_not_answer(sim: Any) -> None:
    worker, lookup = watched(sim)
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    answers = lookup.answers
    lookup.answers = lambda: (answer._replace(partitions=None, error="nobody answers") for answer in answers())  # type: ignore[method-assign]
    sim.run(worker, 10_000)
    sim.schedule()
    sim.until(worker, lambda: len(sim.delivered()) == 2, 1_100)


def test_a_client_for_lookups_that_cannot_be_made_ends_the_worker_with_an_error(sim: Any) -> None:
    worker = sim.worker()

    def refuse() -> Any:
        raise ConfigError("a setting is wrong")

    worker._targets._lookup._make_client = refuse
    sim.schedule()
    with pytest.raises(WorkerError, match="a setting is wrong"):
        sim.run(worker, 1_000)


@pytest.mark.parametrize("session_ms", [6_000, 400_000])
def test_both_consumers_have_legal_settings_with_any_session_time_out(session_ms: int) -> None:
    made: list[dict[str, Any]] = []
    settings = WorkerSettings.make(bootstrap="b:1", allow=("orders",), client={"session.timeout.ms": session_ms})
    clients = DelayWorker(settings, clients=Clients(consumer=made.append, producer=made.append))._clients  # type: ignore[arg-type]
    clients.consumer()
    clients.lookup_consumer()
    assert len(made) == 2
    for config in made:
        assert config["heartbeat.interval.ms"] < config["session.timeout.ms"] == session_ms
        assert config["max.poll.interval.ms"] >= session_ms


def test_the_error_for_the_new_group_protocol_names_the_setting_that_was_given() -> None:
    settings = WorkerSettings.make(bootstrap="b:1", allow=("orders",), client={"group.protocol": "consumer"})
    clients = DelayWorker(settings, clients=confluent_clients())._clients
    with pytest.raises(ConfigError, match=r"'group\.protocol' must be 'classic' here"):
        clients.consumer()


def test_a_target_that_records_wait_for_stays_in_a_full_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.worker.targets._MOST_TARGETS", 5)
    targets, lookup = TargetTable(lambda *_, **__: None), Lookup(None)
    asked: list[Answer] = []
    lookup.answers = lambda: iter(asked)  # type: ignore[method-assign]
    targets.set_lookup(lookup)  # type: ignore[arg-type]
    awaited = [targets.target(f"audit.{number}", 0) for number in range(10)]
    asked += [Answer(topic, ticket, 1) for topic, ticket in lookup.asked]
    targets.process_answers(1)
    assert all(target.ready_ns < NEVER_NS for target in awaited)
    for number in range(10, 20):
        targets.target(f"audit.{number}", 2)
        asked[:] = [Answer(topic, ticket, 1) for topic, ticket in lookup.asked]
        targets.process_answers(2)
    assert len(targets._targets) <= 5
    assert all(target.ask_ns == 0 for target in awaited), "the router asks the table about them again"


# --- targets that grow -----------------------------------------------------------------------------------------------


def test_a_target_that_grows_gets_every_record_and_its_new_partitions_within_five_seconds(sim: Any) -> None:
    worker = sim.worker()
    for number in range(120):
        if number == 30:
            sim.kafka.add_partitions("orders", 8)
            grown_ms = sim.clock.wall_ms()
        sim.schedule(key=b"%d" % number, value=b"%d" % number)
        sim.run(worker, 100)
    sim.until(worker, lambda: len(sim.delivered()) >= 120, 5_000)
    assert len(sim.delivered()) == 120
    assert not worker.counts.parked
    assert worker.counts.re_appended == worker.counts.aborted == 0
    new = [record.timestamp()[1] for record in sim.delivered() if record.partition() >= 3]
    assert min(new) - grown_ms <= 5_000
    late = [record for record in sim.delivered() if record.timestamp()[1] - grown_ms > 5_000]
    assert all(record.partition() == murmur2(record.key(), 8) for record in late)


def test_the_partition_that_a_record_names_is_looked_up_again_before_its_key_decides(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(key=b"k")
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    sim.run(worker, 1_000)
    sim.kafka.add_partitions("orders", 8)
    sim.schedule(key=b"k", headers=[("REAL_QID", b"7")])
    sim.until(worker, lambda: len(sim.delivered()) == 2, 1_200)
    assert {record.partition() for record in sim.delivered()} == {murmur2(b"k", 3), 7}
    assert not worker.counts.parked
    assert worker.counts.re_appended == 0


def test_a_producer_with_old_metadata_makes_no_target_avoided(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(key=b"k")
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    sim.kafka.add_partitions("orders", 8)
    worker._targets._targets["orders"].partitions = 8  # the worker knows these partitions, its producer does not
    for number in range(20):
        sim.schedule(key=b"%d" % number, value=b"%d" % number)
    sim.until(worker, lambda: len(sim.delivered()) == 21, 1_400)
    assert {record.partition() for record in sim.delivered()} == {murmur2(b"%d" % n, 8) for n in range(20)} | {
        murmur2(b"k", 3)
    }
    assert not worker.counts.parked
    assert worker.counts.re_appended == 0
    assert "worker.target-avoided" not in worker.counts.alarms


def test_a_target_that_a_producer_does_not_know_for_long_is_avoided(sim: Any) -> None:
    worker, lookup = watched(sim)
    lookup.answers = lambda: iter([Answer(lookup.asked[0][0], lookup.asked.pop(0)[1], 8)] if lookup.asked else [])  # type: ignore[method-assign]
    sim.schedule(headers=[("REAL_QID", b"7")])
    sim.until(worker, lambda: worker.counts.re_appended == 1, 5_000)
    assert not worker.counts.parked


def test_a_lane_that_is_added_while_the_worker_runs_is_used_within_seconds(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule()
    sim.schedule(relative=False, headers=[("DELAY_MS", b"4700")], level=3)  # it hops
    sim.until(worker, lambda: len(sim.delivered()) == 2)
    sim.kafka.add_partitions(SCHEDULE, 64)
    sim.until(worker, lambda: sim.key(63) in worker._assignment.held, 10_000)
    sim.schedule(relative=False, headers=[("DELAY_MS", b"4700")], partition=32 + 2)
    sim.until(worker, lambda: len(sim.delivered()) == 3, 5_000)
    assert worker.counts.re_appended == 0
    for _ in range(10):
        sim.schedule(partition=32)
        sim.run(worker, 2_000)
    assert len(sim.delivered()) == 13
    assert worker.counts.alarms["worker.probe-failed"] <= 3, "probes are written there, too"


def test_a_target_recreated_with_fewer_partitions_gets_its_records(sim: Any) -> None:
    worker = sim.worker()
    sim.schedule(key=b"k")
    sim.until(worker, lambda: len(sim.delivered()) == 1)
    sim.kafka.delete_topic("orders")
    sim.kafka.create_topic("orders", 1, config=STAMPED)
    for number in range(20):
        sim.schedule(key=b"%d" % number)
    sim.until(worker, lambda: len(sim.delivered()) == 20, 5_000)
    assert not worker.counts.parked
