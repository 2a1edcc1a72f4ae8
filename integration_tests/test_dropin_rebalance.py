"""Assignments of the drop-in consumer with retry switched on: callbacks, patterns, pauses, errors in callbacks."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import TopicNames
from rocketshim.dropin import Consumer, retry_side
from rocketshim.errors import StaleMessageError
from rocketshim_local import Broker

from .waiting import add_partitions

GUARD_S = 150.0
SOON = {"heartbeat.interval.ms": 300}  # a member hears of the others' coming and going at its next heartbeat
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": SOON,
    "cooperative": {**SOON, "partition.assignment.strategy": "cooperative-sticky"},
    "KIP-848": {"group.protocol": "consumer"},
}


def state_of(consumer: Consumer) -> retry_side.RetrySide:
    assert consumer._rocketshim is not None
    return consumer._rocketshim


class Stage:
    def __init__(self, broker: Broker, namespace: str, topic: Callable[..., str], group: str) -> None:
        self.bootstrap = broker.bootstrap
        self.names = TopicNames(namespace)
        self.topic = topic(partitions=2)
        self.group = group
        self.retry = self.names.retry(group)
        self.made: list[confluent_kafka.Consumer] = []
        self.producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    def consumer(self, cls: type[Consumer] = Consumer, /, **config: Any) -> Consumer:
        made = cls(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "rocketshim.retry.enable": True,
                "rocketshim.namespace": self.names.namespace,
                **config,
            }
        )
        self.made.append(made)
        return made

    def send(self, *values: bytes | None, topic: str | None = None, partition: int = 0) -> None:
        for value in values:
            self.producer.produce(topic or self.topic, value, partition=partition)
        assert self.producer.flush(GUARD_S) == 0

    def commit(self, place: TopicPartition) -> None:
        """Commit an offset of the group, which has no members yet."""
        with confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group}) as committer:
            committer.commit(offsets=[place], asynchronous=False)


@pytest.fixture
def stage(broker: Broker, namespace: str, topic: Callable[..., str], group: Callable[..., str]) -> Iterator[Stage]:
    one = Stage(broker, namespace, topic, group())
    yield one
    for consumer in one.made:
        consumer.close()


def until(done: Callable[[], Any], *consumers: Consumer) -> None:
    deadline = time.monotonic() + GUARD_S
    while not done():
        assert time.monotonic() < deadline
        for consumer in consumers:
            assert consumer.poll(0.05) is None


def got(consumer: Consumer) -> Message:
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            return message
    raise TimeoutError("no message came")


def original_assignment(consumer: Consumer) -> set[str]:
    """Topics of everything that is assigned, what is hidden included."""
    return {each.topic for each in confluent_kafka.Consumer.assignment(consumer)}


def shared_out(*consumers: Consumer) -> bool:
    """Whether each holds something (be it the retry topic alone) and together they hold all three partitions once."""
    held = [confluent_kafka.Consumer.assignment(consumer) for consumer in consumers]
    return all(held) and sum(map(len, held)) == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_callbacks_and_assignment_know_the_users_partitions_only(stage: Stage, protocol: str) -> None:
    seen: list[tuple[str, list[tuple[str, int]]]] = []

    def note(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, partitions: seen.append((what, sorted((p.topic, p.partition) for p in partitions)))

    both = [(stage.topic, 0), (stage.topic, 1)]
    first = stage.consumer(**PROTOCOLS[protocol])
    first.subscribe([stage.topic], on_assign=note("assign"), on_revoke=note("revoke"), on_lost=note("lost"))
    until(lambda: len(first.assignment()) == 2 and stage.retry in original_assignment(first), first)
    assert sorted((p.topic, p.partition) for p in first.assignment()) == both
    second = stage.consumer(**PROTOCOLS[protocol])
    second.subscribe([stage.topic])
    until(lambda: shared_out(first, second), first, second)
    held = [(p.topic, p.partition) for p in first.assignment()]
    taken = [each for what, partitions in seen if what == "revoke" for each in partitions]
    assert set(taken) >= set(both) - set(held)
    first.close()
    assert {each for _, partitions in seen for each in partitions} == set(both)
    assert [what for what, _ in seen if what == "lost"] == []
    until(lambda: len(second.assignment()) == 2 and stage.retry in original_assignment(second), second)
    stage.send(b"x", topic=stage.retry)
    assert got(second).topic() == stage.retry


@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
def test_a_callback_may_assign_by_itself_and_the_retry_topic_is_read_along(stage: Stage, protocol: str) -> None:
    stage.send(b"a", b"b", b"c")
    told = threading.Event()

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            each.offset = 2 if each.partition == 0 else 0
        if protocol == "eager":
            consumer.assign(partitions)
        else:
            consumer.incremental_assign(partitions)
        told.set()

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if protocol == "eager":
            consumer.unassign()
        else:
            consumer.incremental_unassign(partitions)

    consumer = stage.consumer(**PROTOCOLS[protocol])
    consumer.subscribe([stage.topic], on_assign=assigned, on_revoke=revoked)
    message = got(consumer)
    assert (told.is_set(), message.value()) == (True, b"c")
    stage.send(b"r", topic=stage.retry)
    assert got(consumer).value() == b"r"
    consumer.unsubscribe()
    until(lambda: not original_assignment(consumer), consumer)


def told_by(consumer: Consumer, topic: str, names: tuple[str, ...]) -> list[tuple[str, int]]:
    """Subscribe with these callbacks; they write down who was called with how many partitions."""
    calls: list[tuple[str, int]] = []
    callbacks: dict[str, Any] = {name: lambda _, places, name=name: calls.append((name, len(places))) for name in names}
    consumer.subscribe([topic], **callbacks)
    return calls


@pytest.mark.parametrize("names", [("on_assign", "on_revoke", "on_lost"), ("on_assign", "on_revoke")])
def test_partitions_that_are_lost_are_told_as_by_the_original(stage: Stage, names: tuple[str, ...]) -> None:
    stage.send(b"a")
    impatient: dict[str, Any] = {
        "session.timeout.ms": 2_000,
        "max.poll.interval.ms": 2_000,
        "heartbeat.interval.ms": 300,
    }
    config = {"bootstrap.servers": stage.bootstrap, "group.id": f"{stage.group}-original"}
    ours, theirs = stage.consumer(**impatient), Consumer({**config, **impatient})
    stage.made.append(theirs)
    calls = {each: told_by(each, stage.topic, names) for each in (ours, theirs)}
    deadline = time.monotonic() + GUARD_S
    old: Message | None = None
    while old is None or not calls[theirs]:
        assert time.monotonic() < deadline
        theirs.poll(0.05)
        message = ours.poll(0.05)
        if message is not None and message.error() is None:
            old = message
    while any(len(mine) < 2 for mine in calls.values()):
        assert time.monotonic() < deadline
        time.sleep(2.5)  # nobody polls for longer than is allowed
        for consumer in [each for _ in range(5) for each in calls if len(calls[each]) < 2]:
            consumer.poll(0.0)
    if len(calls[ours]) == 2:  # a starved machine may have lost it once more, and have it again
        with pytest.raises(StaleMessageError):
            ours.dead_letter(old, "x")
    assert [mine[:2] for mine in calls.values()] == [[("on_assign", 2), (names[-1], 2)]] * 2


@pytest.mark.parametrize("how", ["poll", "consume"])
def test_an_error_in_a_callback_is_raised_and_no_message_is_lost(stage: Stage, how: str) -> None:
    stage.send(*(b"%d" % number for number in range(20)))

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        del consumer, partitions
        raise OSError("no room")

    consumer = stage.consumer()
    consumer.subscribe([stage.topic], on_assign=assigned)
    raised = 0
    values: list[bytes | None] = []
    deadline = time.monotonic() + GUARD_S
    while len(values) < 20:
        assert time.monotonic() < deadline
        try:
            messages = [consumer.poll(0.2)] if how == "poll" else consumer.consume(7, 0.2)
        except OSError:
            raised += 1
            continue
        values += [each.value() for each in messages if each is not None]
    assert (raised, values) == (1, [b"%d" % number for number in range(20)])


def test_what_retention_has_left_of_the_retry_topic_is_read_whatever_the_reset_says(
    stage: Stage, admin: AdminClient
) -> None:
    consumer = stage.consumer(**{"auto.offset.reset": "latest"})
    state_of(consumer).ensure_topics()
    stage.send(b"handled", b"deleted", b"left", topic=stage.retry)
    stage.commit(TopicPartition(stage.retry, 0, 1))
    (deleted,) = admin.delete_records([TopicPartition(stage.retry, 0, 2)]).values()
    deleted.result(GUARD_S)
    consumer.subscribe([stage.topic])
    assert got(consumer).value() == b"left"


@pytest.mark.parametrize(("reset", "comes"), [("earliest", b"left"), ("latest", b"new")])
def test_retention_that_overtakes_a_member_while_it_reads_the_retry_topic_is_the_clients_to_handle(
    stage: Stage, admin: AdminClient, reset: str, comes: bytes
) -> None:
    """A limit that the documentation tells: the client resets by itself, and says so to nobody but its log."""
    consumer = stage.consumer(**{"auto.offset.reset": reset})
    state_of(consumer).ensure_topics()
    stage.send(b"handled", topic=stage.retry)
    consumer.subscribe([stage.topic])
    assert got(consumer).value() == b"handled"
    consumer.pause(consumer.assignment())
    stage.send(b"deleted", b"left", topic=stage.retry)
    (deleted,) = admin.delete_records([TopicPartition(stage.retry, 0, 2)]).values()
    deleted.result(GUARD_S)
    consumer.resume(consumer.assignment())
    deadline = time.monotonic() + GUARD_S
    message = None
    while message is None:
        assert time.monotonic() < deadline
        message = consumer.poll(0.2)
        stage.send(b"new", topic=stage.retry)  # until one comes behind where the client has gone
    assert message.value() == comes


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_retry_topic_whose_committed_offset_cannot_be_had_waits_for_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    consumer = stage.consumer(**PROTOCOLS[protocol])
    state_of(consumer).ensure_topics()
    stage.send(b"handled", b"waits", topic=stage.retry)
    stage.commit(TopicPartition(stage.retry, 0, 1))
    consumer.subscribe([stage.topic])
    partitions = state_of(consumer).partitions

    def unanswered(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with monkeypatch.context() as patched:
        patched.setattr(retry_side, "check_answers", unanswered)
        until(partitions.awaiting_start, consumer)
        held = [each.offset for each in confluent_kafka.Consumer.assignment(consumer) if each.topic == stage.retry]
        assert held == [0], "no look-up of the client's is under way: its late answer would undo the seek"
        stage.send(b"a")
        assert got(consumer).value() == b"a"
        assert consumer.poll(0.5) is None
    assert got(consumer).value() == b"waits"
    assert not partitions.awaiting_start()
    stage.send(b"b", topic=stage.retry)
    assert got(consumer).value() == b"b"


def test_a_handled_retry_is_not_read_again_if_a_broker_does_not_know_the_partition_yet(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = stage.consumer(**{"auto.offset.reset": "latest"})
    state_of(consumer).ensure_topics()
    stage.send(b"handled", b"waits", topic=stage.retry)
    stage.commit(TopicPartition(stage.retry, 0, 1))
    consumer.subscribe([stage.topic])
    asked: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(retry_side, "listed_offsets", lambda *_, **__: asked.append(_) or {})
        until(lambda: asked, consumer)
    assert got(consumer).value() == b"waits"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_partition_added_to_the_retry_topic_is_read_within_seconds(
    stage: Stage, admin: AdminClient, protocol: str
) -> None:
    consumer = stage.consumer(**PROTOCOLS[protocol], **{"auto.offset.reset": "latest"})
    consumer.subscribe([stage.topic])
    until(lambda: stage.retry in original_assignment(consumer), consumer)
    add_partitions(admin, stage.retry, 2)
    stage.send(b"waits", topic=stage.retry, partition=1)
    asked = time.monotonic()
    assert got(consumer).value() == b"waits"
    assert time.monotonic() - asked < 60, "librdkafka by itself looks every five minutes"


def test_what_waits_in_the_retry_topic_is_read_from_its_beginning_whatever_the_reset_says(stage: Stage) -> None:
    before = stage.consumer()
    before.subscribe([stage.topic])
    until(before.assignment, before)  # a member that leaves before it has joined is waited for
    before.close()
    stage.send(b"waits", topic=stage.retry)
    consumer = stage.consumer(**{"auto.offset.reset": "latest"})
    consumer.subscribe([stage.topic])
    assert got(consumer).value() == b"waits"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pattern_that_matches_the_shims_topics_shows_none_of_them_but_the_retries(
    stage: Stage, protocol: str
) -> None:
    consumer = stage.consumer(**PROTOCOLS[protocol], **{"topic.metadata.refresh.interval.ms": 500})
    consumer.subscribe([f"^{stage.topic}", f"^{stage.names.namespace}.*"])
    until(lambda: len(consumer.assignment()) == 2, consumer)
    for topic in (stage.names.schedule, stage.names.dead_letter(stage.group), stage.names.parked):
        stage.send(b"not for us", topic=topic)
    stage.send(b"retried", topic=stage.retry)
    stage.send(b"plain")
    assert {got(consumer).value() for _ in range(2)} == {b"retried", b"plain"}
    until_nothing = time.monotonic() + 0.5
    while time.monotonic() < until_nothing:
        assert consumer.poll(0.1) is None
    assert {each.topic for each in consumer.assignment()} == {stage.topic}
    consumer.commit(asynchronous=False)
    second = stage.consumer(**PROTOCOLS[protocol])
    second.subscribe([stage.topic])
    held = confluent_kafka.Consumer.assignment
    until(lambda: held(second) and len(held(consumer)) + len(held(second)) == 3, consumer, second)
    consumer.unsubscribe()
    until(lambda: len(second.assignment()) == 2 and not original_assignment(consumer), consumer, second)


def test_a_topic_of_the_shims_that_is_named_is_read(stage: Stage) -> None:
    maker = stage.consumer()
    maker.subscribe([stage.topic])
    maker.close()
    dead = stage.names.dead_letter(stage.group)
    stage.send(b"dead", topic=dead)
    consumer = stage.consumer()
    consumer.subscribe([dead])
    assert got(consumer).topic() == dead
    assert {each.topic for each in consumer.assignment()} == {dead}


def test_the_retry_topic_is_paused_while_all_of_the_users_partitions_are(stage: Stage) -> None:
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    until(lambda: len(consumer.assignment()) == 2, consumer)
    consumer.pause([TopicPartition(stage.topic, 0)])
    stage.send(b"one paused", topic=stage.retry)
    assert got(consumer).value() == b"one paused"
    consumer.pause([TopicPartition(stage.topic, 1)])
    stage.send(b"all paused", topic=stage.retry)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert consumer.poll(0.1) is None
    consumer.resume([TopicPartition(stage.topic, 1)])
    assert got(consumer).value() == b"all paused"


def test_a_pause_of_the_retry_topic_does_not_outlive_its_assignment(stage: Stage) -> None:
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    until(lambda: len(consumer.assignment()) == 2, consumer)
    consumer.pause(consumer.assignment())
    consumer.unsubscribe()
    until(lambda: not consumer.assignment(), consumer)
    consumer.subscribe([stage.topic])
    until(lambda: len(consumer.assignment()) == 2, consumer)
    consumer.resume(consumer.assignment())
    stage.send(b"r", topic=stage.retry)
    assert got(consumer).value() == b"r"


def test_storing_a_retried_message_whose_partition_was_taken_away_is_no_error(stage: Stage) -> None:
    consumer = stage.consumer(**{"enable.auto.offset.store": False})
    consumer.subscribe([stage.topic])
    stage.send(b"a")
    stage.send(b"r", topic=stage.retry)
    found = {message.topic(): message for message in (got(consumer), got(consumer))}
    consumer.unsubscribe()
    until(lambda: not original_assignment(consumer), consumer)
    consumer.store_offsets(message=found[stage.retry])
    consumer.store_offsets(offsets=[TopicPartition(stage.retry, 0, 1)])
    with pytest.raises(KafkaException):
        consumer.store_offsets(message=found[stage.topic])


def test_a_subclass_reaches_the_reading_layer_through_super(stage: Stage) -> None:
    class Counting(Consumer):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            self.polls = 0

        def poll(self, timeout: float = -1) -> Message | None:
            self.polls += 1
            return super().poll(timeout)

    consumer = stage.consumer(Counting)
    consumer.subscribe([stage.topic])
    stage.send(b"a")
    message = got(consumer)
    assert isinstance(consumer, Counting)
    assert (consumer.polls > 0, consumer.reconsume_times(message)) == (True, 0)
    consumer.dead_letter(message, "x")
    with pytest.raises(ValueError, match="level and delay"):
        consumer.reconsume_later(message, level=1, delay="1s")


def test_ends_of_the_users_partitions_are_reported_and_those_of_the_retry_topic_are_not(stage: Stage) -> None:
    stage.send(b"a")
    consumer = stage.consumer(**{"enable.partition.eof": True})
    consumer.subscribe([stage.topic])
    events = []
    deadline = time.monotonic() + GUARD_S
    while len(events) < 3 and time.monotonic() < deadline:
        events += consumer.consume(2, 0.5)
    errors = sorted((e.topic(), e.partition(), e.error().code()) for e in events if e.error() is not None)
    assert errors == [(stage.topic, number, KafkaError._PARTITION_EOF) for number in (0, 1)]
    assert [each.value() for each in events if each.error() is None] == [b"a"]
