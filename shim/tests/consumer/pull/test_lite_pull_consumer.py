"""The lite pull consumer on the in-memory Kafka, in one thread; waiting moves the virtual clock."""

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.consumer.pull.lite_pull_consumer import LitePullConsumer
from rocketshim.consumer.pull.pull_consumer import PullConsumer
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConsumerError,
    FilterSyntaxError,
    NotAuthorizedError,
    TopicMissingError,
)
from rocketshim.filters import MessageSelector
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.settings.consumer import LitePullConsumerOptions, LitePullConsumerSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import TopicNames
from rocketshim_topics.message_queue import MessageQueue

Q0, Q1 = MessageQueue("orders", queue_id=0), MessageQueue("orders", queue_id=1)
Make = Callable[..., LitePullConsumer]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def kafka(clock: VirtualClock) -> InMemoryKafka:
    kafka = InMemoryKafka(clock)
    kafka.create_topic("orders", 2)
    return kafka


@pytest.fixture
def make(kafka: InMemoryKafka, clock: VirtualClock) -> Make:
    def of(**values: Any) -> LitePullConsumer:
        clients = kafka.clients(on_wait=lambda seconds: clock.advance(max(1, seconds * 1_000)))
        return LitePullConsumer(
            "memory:1",
            group="g",
            clients=clients,
            clock=clock,
            **{"consume_from_where": ConsumeFromWhere.FIRST_OFFSET, **values},
        )

    return of


def fill(kafka: InMemoryKafka, count: int, partition: int = 0, topic: str = "orders", tag: str = "a") -> None:
    for number in range(count):
        kafka.append(topic, str(number).encode(), partition=partition, headers=[("TAGS", tag.encode())])


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def drain(consumer: LitePullConsumer) -> list[Any]:
    """Poll until a poll finds nothing."""
    found: list[Any] = []
    while messages := consumer.poll(1_000):
        found += messages
    return found


def committed(kafka: InMemoryKafka, partition: int = 0) -> int | None:
    return kafka.committed("g").get(("orders", partition))


def test_members_with_different_filters_find_each_other_also_without_a_rebalance(
    kafka: InMemoryKafka, make: Make, clock: VirtualClock
) -> None:
    fill(kafka, 3, 0)
    fill(kafka, 3, 1)
    with make() as first, make() as second:
        for consumer, tag in ((first, "a"), (second, "b")):
            consumer.subscribe("orders", tag)
            for _ in range(20):
                first.poll(100)
                second.poll(100)
        assert second.subscription_conflicts == {"orders": "orders=a"}
        fill(kafka, 1, 0)
        fill(kafka, 1, 1)  # of which each commits its share
        for _ in range(2):
            second.poll(100)
            clock.advance(60_000)
            first.poll(100)
        assert first.subscription_conflicts == {"orders": "orders=b"}


def test_messages_of_a_poll_that_is_interrupted_are_returned_by_the_next_one(
    kafka: InMemoryKafka, make: Make, interrupt_fetch: Callable[[], None]
) -> None:
    fill(kafka, 25)
    with make() as consumer:
        consumer.subscribe("orders")
        assert len(consumer.poll(1_000)) == 10
        interrupt_fetch()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1_000)
        assert bodies(drain(consumer)) == [b"%d" % number for number in range(10, 25)]


# --- subscribe -------------------------------------------------------------------------------------------------------


def test_poll_returns_subscribed_messages_in_batches(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 25)
    with make() as consumer:
        consumer.subscribe("orders")
        sizes = []
        while messages := consumer.poll(1_000):
            sizes.append(len(messages))
        assert sizes == [10, 10, 5]
        assert consumer.assignment() == {Q0, Q1}


@pytest.mark.parametrize("time_ms", [-1, -0.5, math.nan, "1000"])
def test_a_poll_with_a_time_that_is_negative_or_no_number_is_an_error(
    kafka: InMemoryKafka, make: Make, time_ms: Any
) -> None:
    fill(kafka, 1)
    with make() as consumer:
        consumer.subscribe("orders")
        with pytest.raises(ConfigError, match="0 ms or more"):
            consumer.poll(time_ms)
        assert len(drain(consumer)) == 1


def test_two_members_share_the_queues(make: Make) -> None:
    with make() as one, make() as two:
        one.subscribe("orders")
        two.subscribe("orders")
        for _ in range(10):
            one.poll(10)
            two.poll(10)
        assert one.assignment() | two.assignment() == {Q0, Q1}
        assert not one.assignment() & two.assignment()


def test_a_filter_skips_other_messages_and_the_position_moves(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 3, tag="a")
    fill(kafka, 3, tag="b")
    with make() as consumer:
        consumer.subscribe("orders", MessageSelector.by_tag("b || c"))
        assert bodies(drain(consumer)) == [b"0", b"1", b"2"]
        assert consumer.position(Q0) == 6
        consumer.subscribe("orders", MessageSelector.by_sql("TAGS = 'a'"))
        consumer.seek_to_begin(Q0)
        assert len(drain(consumer)) == 3


def test_unsubscribe_commits_and_stops_delivery(kafka: InMemoryKafka, make: Make) -> None:
    kafka.create_topic("other")
    fill(kafka, 2)
    with make() as consumer:
        consumer.subscribe("orders")
        consumer.subscribe("other")
        assert len(drain(consumer)) == 2
        consumer.unsubscribe("orders")
        consumer.unsubscribe("orders")
        fill(kafka, 2)
        fill(kafka, 1, topic="other")
        assert [message.topic for message in drain(consumer)] == ["other"]
        assert committed(kafka) == 2
        consumer.unsubscribe("other")
        assert drain(consumer) == []
        assert consumer.assignment() == set()


def test_a_missing_topic_is_an_error_and_nothing_stays_open(make: Make) -> None:
    consumer = make()
    consumer.subscribe("absent")
    with pytest.raises(TopicMissingError, match="absent"):
        consumer.start()
    assert not consumer.is_running
    with make() as running, pytest.raises(TopicMissingError):
        running.subscribe("absent")


def test_a_filter_that_does_not_compile_changes_nothing(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 1)
    with make() as consumer:
        consumer.subscribe("orders")
        with pytest.raises(FilterSyntaxError):
            consumer.subscribe("orders", "||")
        assert len(drain(consumer)) == 1


# --- commits ----------------------------------------------------------------------------------------------------------


def test_messages_of_a_poll_are_committed_after_the_next_poll_began(
    kafka: InMemoryKafka, make: Make, clock: VirtualClock
) -> None:
    fill(kafka, 15)
    with make() as consumer:
        consumer.subscribe("orders")
        assert len(consumer.poll()) == 10
        clock.advance(5_000)
        assert len(consumer.poll()) == 5
        assert committed(kafka) == 10


def test_stop_does_not_commit_the_messages_of_the_last_poll(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 15)
    with make() as consumer:
        consumer.subscribe("orders")
        consumer.poll()
        consumer.poll()
    assert committed(kafka) == 10
    with make() as again:
        again.subscribe("orders")
        assert bodies(again.poll()) == [b"10", b"11", b"12", b"13", b"14"]


def test_commit_sync_commits_the_messages_of_the_last_poll(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 4)
    with make(auto_commit=False) as consumer:
        consumer.subscribe("orders")
        consumer.poll()
        assert consumer.committed(Q0) == 0  # the resolved start offset
        consumer.commit_sync()
        assert consumer.committed(Q0) == 4


def test_what_no_reader_sees_is_committed_with_the_messages_before_it(
    kafka: InMemoryKafka, make: Make, clock: VirtualClock
) -> None:
    fill(kafka, 3)
    kafka.skip_offsets("orders", count=2)
    with make() as consumer:
        consumer.subscribe("orders")
        assert len(drain(consumer)) == 3
        clock.advance(5_000)
        assert consumer.poll() == []
        assert committed(kafka) == 5
        fill(kafka, 1)
        kafka.skip_offsets("orders", count=2)
        assert len(consumer.poll()) == 1
        clock.advance(5_000)
    assert committed(kafka) == 5  # the last message, and so the marker behind it, was not handled
    with make(auto_commit=False) as again:
        again.subscribe("orders")
        assert len(drain(again)) == 1
        again.commit_sync()
        assert committed(kafka) == 8
        kafka.skip_offsets("orders", count=1)
        assert again.poll() == []
        again.commit_sync()
        assert committed(kafka) == 9


def test_stop_does_not_take_back_what_commit_sync_has_committed(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 4)
    with make() as consumer:
        consumer.subscribe("orders")
        consumer.poll()
        consumer.commit_sync()
    assert committed(kafka) == 4


def test_without_auto_commit_nothing_is_committed_automatically(
    kafka: InMemoryKafka, make: Make, clock: VirtualClock
) -> None:
    fill(kafka, 4)
    with make(auto_commit=False) as consumer:
        consumer.subscribe("orders")
        drain(consumer)
        clock.advance(60_000)
        consumer.poll(0)
    assert committed(kafka) == 0


def test_commit_sync_commits_given_offsets(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 4)
    with make(auto_commit=False) as consumer:
        consumer.subscribe("orders")
        drain(consumer)
        consumer.commit_sync({Q0: 2})
        assert consumer.committed(Q0) == 2
        with pytest.raises(ConfigError, match="-1"):
            consumer.commit_sync({Q0: -1})
        with pytest.raises(ConsumerError, match="not assigned to this consumer"):
            consumer.commit_sync({MessageQueue("orders", queue_id=7): 2})


def test_committed_is_none_for_a_queue_without_a_commit(make: Make) -> None:
    with make() as consumer:
        assert consumer.committed(Q1) is None


def test_a_rejected_commit_is_an_error_and_is_tried_again(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 2)
    with make(auto_commit=False) as consumer:
        consumer.subscribe("orders")
        drain(consumer)
        kafka.fail_commits(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
        with pytest.raises(ConsumerError, match="UNKNOWN_MEMBER_ID"):
            consumer.commit_sync()
        consumer.commit_sync()
        assert committed(kafka) == 2


def test_commit_sync_also_commits_what_an_automatic_commit_has_sent_without_an_answer(
    kafka: InMemoryKafka, clock: VirtualClock
) -> None:
    clients = kafka.clients(on_wait=lambda seconds: clock.advance(max(1, seconds * 1_000)))

    def unanswered(config: dict[str, Any]) -> ConsumerClient:
        client: Any = clients.consumer(config)
        commit = client.commit
        client.commit = lambda *, asynchronous, **values: None if asynchronous else commit(asynchronous=False, **values)
        return client

    fill(kafka, 2)
    made = LitePullConsumer(
        "memory:1",
        group="g",
        clients=replace(clients, consumer=unanswered),
        clock=clock,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    with made as consumer:
        consumer.subscribe("orders")
        assert len(consumer.poll()) == 2
        clock.advance(5_000)
        consumer.poll(0)
        assert committed(kafka) == 0
        consumer.commit_sync()
        assert committed(kafka) == 2


def test_a_revoked_partition_is_committed_up_to_the_finished_messages(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 3, 0)
    fill(kafka, 3, 1)
    with make(pull_batch_size=2) as one:
        one.subscribe("orders")
        drain(one)
        with make() as two:
            two.subscribe("orders")
            for _ in range(10):
                one.poll(10)
                two.poll(10)
            (moved,) = two.assignment()
            assert committed(kafka, moved.queue_id) == 3
            assert two.position(moved) == 3


# --- start offsets ----------------------------------------------------------------------------------------------------


def test_a_new_group_begins_at_the_end_of_a_queue_that_is_not_young(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 3)
    with make(consume_from_where=ConsumeFromWhere.LAST_OFFSET, young_queue_max_messages=2) as consumer:
        consumer.subscribe("orders")
        assert drain(consumer) == []
        fill(kafka, 1)
        assert len(drain(consumer)) == 1


def test_a_new_group_begins_at_the_start_of_a_young_queue(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 3)
    with make(consume_from_where=ConsumeFromWhere.LAST_OFFSET) as consumer:
        consumer.subscribe("orders")
        assert len(drain(consumer)) == 3


def test_nothing_is_handed_out_while_the_start_offset_is_unknown(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 2)
    with make() as consumer:
        known = consumer._partitions.reader.starts.resolve

        def unknown(*_: Any) -> Any:
            raise KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE))

        consumer._partitions.reader.starts.resolve = unknown  # type: ignore[assignment]
        consumer.subscribe("orders")
        assert consumer.poll(500) == []
        assert consumer.assignment() == {Q0, Q1}
        with pytest.raises(ConsumerError, match="not assigned to this consumer"):
            consumer.position(Q0)
        consumer._partitions.reader.starts.resolve = known
        assert bodies(drain(consumer)) == [b"0", b"1"]


# --- assign ----------------------------------------------------------------------------------------------------------


def test_only_assigned_queues_are_read(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 2, 0)
    fill(kafka, 3, 1)
    with make() as consumer:
        consumer.assign([Q1])
        assert len(drain(consumer)) == 3
        consumer.assign([Q1, Q0])
        assert len(drain(consumer)) == 2
        assert consumer.assignment() == {Q0, Q1}
        consumer.assign([Q0])
        fill(kafka, 1, 1)
        assert drain(consumer) == []
        assert committed(kafka, 1) == 3


def test_assigned_queues_start_at_the_committed_offset(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 4)
    with make(auto_commit=False) as consumer:
        consumer.assign([Q0])
        drain(consumer)
        consumer.commit_sync({Q0: 3})
    with make() as again:
        again.assign([Q0])
        assert bodies(drain(again)) == [b"3"]


def test_assigned_queues_have_one_filter_per_topic(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 2, tag="a")
    fill(kafka, 1, tag="b")
    consumer = make()
    consumer.assign([Q0])
    consumer.set_sub_expression_for_assign("orders", "b")
    with consumer:
        assert [message.tag for message in drain(consumer)] == ["b"]


def test_assign_and_subscribe_exclude_each_other(make: Make) -> None:
    one, two = make(), make()
    one.assign([Q0])
    with pytest.raises(ConfigError, match="exclude"):
        one.subscribe("orders")
    two.subscribe("orders")
    with pytest.raises(ConfigError, match="exclude"):
        two.assign([Q0])


def test_assigning_a_missing_queue_is_an_error_and_changes_nothing(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 1)
    with make() as consumer:
        consumer.assign([Q0])
        with pytest.raises(ConfigError, match="no queue 9"):
            consumer.assign([MessageQueue("orders", queue_id=9)])
        with pytest.raises(TopicMissingError):
            consumer.assign([MessageQueue("absent")])
        assert len(drain(consumer)) == 1


# --- seek, pause -----------------------------------------------------------------------------------------------------


def test_seek_moves_the_position_and_is_committed_also_backwards(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 10)
    with make() as consumer:
        consumer.subscribe("orders")
        drain(consumer)
        consumer.commit_sync()
        consumer.seek(Q0, 7)
        consumer.commit_sync()
        assert committed(kafka) == 7
        assert bodies(drain(consumer)) == [b"7", b"8", b"9"]
        consumer.seek_to_end(Q0)
        assert drain(consumer) == []
        consumer.seek_to_begin(Q0)
        assert len(drain(consumer)) == 10


@pytest.mark.parametrize("offset", [-1, 11])
def test_seek_outside_the_bounds_is_rejected(kafka: InMemoryKafka, make: Make, offset: int) -> None:
    fill(kafka, 10)
    with make() as consumer:
        consumer.subscribe("orders")
        drain(consumer)
        with pytest.raises(ConfigError, match="0 to 10"):
            consumer.seek(Q0, offset)
        assert consumer.position(Q0) == 10


def test_seek_on_an_unassigned_queue_is_an_error(make: Make) -> None:
    with make() as consumer:
        consumer.assign([Q0])
        with pytest.raises(ConsumerError, match="not assigned to this consumer"):
            consumer.seek_to_end(Q1)


def test_a_paused_queue_delivers_nothing_and_loses_nothing(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 30, 0)
    fill(kafka, 30, 1)
    with make(pull_batch_size=5) as consumer:
        consumer.subscribe("orders")
        found = consumer.poll()
        consumer.pause([Q0, MessageQueue("orders", queue_id=9)])
        rest = drain(consumer)
        assert {message.queue_id for message in rest} == {1}
        consumer.resume([Q0])
        everything = found + rest + drain(consumer)
        assert sorted((m.queue_id, m.queue_offset) for m in everything) == [(q, n) for q in (0, 1) for n in range(30)]


# --- queues, times ---------------------------------------------------------------------------------------------------


def test_queues_and_offsets_for_times_can_be_looked_up(kafka: InMemoryKafka, make: Make) -> None:
    for at_ms in (1_000, 2_000, 3_000):
        kafka.append("orders", b"", timestamp_ms=at_ms)
    with make() as consumer:
        assert consumer.fetch_message_queues("orders") == [Q0, Q1]
        assert consumer.offset_for_timestamp(Q0, 1_500) == 1
        assert consumer.offset_for_timestamp(Q0, 9_999) == 3
        assert consumer.offset_for_timestamp(Q1, 0) == 0
        with pytest.raises(ConfigError, match="-5"):
            consumer.offset_for_timestamp(Q0, -5)
        with pytest.raises(TopicMissingError):
            consumer.fetch_message_queues("absent")


def test_a_queue_listener_that_is_not_callable_is_rejected(make: Make) -> None:
    with make() as consumer, pytest.raises(ConfigError, match=r"pass a function of \(topic, queues\)"):
        consumer.register_topic_message_queue_change_listener("orders", 3)  # type: ignore[arg-type]


def test_a_registered_listener_is_called_with_new_queues(kafka: InMemoryKafka, make: Make) -> None:
    heard: list[tuple[str, int]] = []
    with make() as consumer:
        consumer.register_topic_message_queue_change_listener("orders", lambda topic, q: heard.append((topic, len(q))))
        consumer.assign([Q0])
        consumer.poll(31_000)
        assert heard == []
        kafka.add_partitions("orders", 3)
        consumer.poll(31_000)
        consumer.poll(31_000)
        assert heard == [("orders", 3)]


def test_a_queue_listener_may_assign_new_queues_immediately(kafka: InMemoryKafka, make: Make) -> None:
    with make() as consumer:
        consumer.assign([Q0, Q1])
        consumer.register_topic_message_queue_change_listener("orders", lambda _, queues: consumer.assign(queues))
        consumer.poll(31_000)
        kafka.add_partitions("orders", 3)
        kafka.append("orders", b"new", partition=2)
        assert bodies(consumer.poll(31_000)) == [b"new"]


def test_poll_raises_what_a_queue_listener_raises_and_loses_nothing(kafka: InMemoryKafka, make: Make) -> None:
    def listener(topic: str, queues: list[MessageQueue]) -> None:
        raise OSError(topic, queues)

    with make() as consumer:
        consumer.register_topic_message_queue_change_listener("orders", listener)
        consumer.assign([Q0])
        consumer.poll(31_000)
        kafka.add_partitions("orders", 3)
        fill(kafka, 2)
        with pytest.raises(OSError, match="orders"):
            consumer.poll()
        assert len(consumer.poll()) == 2


def test_without_a_broker_lookups_are_errors_and_polls_are_empty(kafka: InMemoryKafka, make: Make) -> None:
    fill(kafka, 1)
    with make() as consumer:
        consumer.assign([Q0])
        kafka.stop_broker()
        with pytest.raises(BrokerUnavailableError):
            consumer.fetch_message_queues("orders")
        assert consumer.poll(100) == []
        kafka.start_broker()
        assert len(drain(consumer)) == 1


def test_poll_raises_if_a_topic_is_not_authorized(kafka: InMemoryKafka, make: Make) -> None:
    kafka.deny("orders")
    with make() as consumer:
        consumer.subscribe("orders")
        with pytest.raises(NotAuthorizedError):
            consumer.poll(1_000)


def test_a_refused_commit_of_several_queues_is_one_failed_commit(
    kafka: InMemoryKafka, clock: VirtualClock, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in range(2):
        kafka.append("orders", b"", partition=partition)
    with make() as consumer:
        consumer.assign([Q0, Q1])
        assert len(drain(consumer)) == 2
        kafka.fail_commits(KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE))
        clock.advance(10_000)
        drain(consumer)
        failed = [each for each in consumer.metrics() if each.name.endswith("commits_failed_total")]
        assert [count for each in failed for *_, count in each.samples] == [1]
        assert caplog.text.count("consumer.commit-failed") == 1


def test_a_position_that_is_refused_does_not_make_the_others_refused(
    kafka: InMemoryKafka, clock: VirtualClock, make: Make
) -> None:
    """Kafka's client reports the error of one partition for all of them; here one topic of two is gone."""
    kafka.create_topic("gone")
    fill(kafka, 3)
    fill(kafka, 1, topic="gone")
    with make() as consumer:
        consumer.assign([Q0, MessageQueue("gone", queue_id=0)])
        assert len(drain(consumer)) == 4
        kafka.delete_topic("gone")
        with pytest.raises(TopicMissingError, match="of group 'g' of gone/0 were not committed"):
            consumer.commit_sync({Q0: 2, MessageQueue("gone", queue_id=0): 1})
        for _ in range(3):
            clock.advance(10_000)
            consumer.poll(0)
        stored = [each.next_offset for each in kafka.commits("g") if each.topic == "orders"]
        assert stored == [0, 2, 3]  # each once
        kafka.create_topic("gone")


def test_poll_raises_if_the_client_can_do_nothing_more(kafka: InMemoryKafka, clock: VirtualClock, make: Make) -> None:
    fill(kafka, 1)
    with make() as consumer:
        consumer.subscribe("orders")
        drain(consumer)
        kafka.fail_commits(KafkaError(KafkaError._FATAL, "it is over"))
        clock.advance(10_000)
        with pytest.raises(ConsumerError, match="it is over"):
            drain(consumer)


# --- lifecycle --------------------------------------------------------------------------------------------------------


def test_calls_before_start_and_after_stop_are_errors(make: Make) -> None:
    consumer = make()
    with pytest.raises(ConsumerError, match="not started"):
        consumer.poll()
    consumer.subscribe("orders")
    consumer.start()
    consumer.start()
    assert consumer.is_running
    consumer.stop()
    consumer.stop()
    assert not consumer.is_running
    with pytest.raises(ConsumerError, match="stopped"):
        consumer.poll()
    with pytest.raises(ConsumerError, match="create a new one"):
        consumer.start()


def test_stop_during_a_poll_ends_the_poll(kafka: InMemoryKafka, clock: VirtualClock) -> None:
    """As a signal handler does: in the thread that polls."""
    consumer: LitePullConsumer

    def on_wait(seconds: float) -> None:
        clock.advance(max(1, seconds * 1_000))
        consumer.stop()

    consumer = LitePullConsumer("memory:1", group="g", clients=kafka.clients(on_wait=on_wait), clock=clock)
    consumer.assign([Q0])
    consumer.start()
    assert consumer.poll(60_000) == []
    assert not consumer.is_running
    assert kafka.members("g") == []


def test_a_stop_at_the_first_instruction_of_a_call_ends_that_call(make: Make) -> None:
    """As a signal handler does: in the thread that polls."""
    consumer = make()
    consumer.assign([Q0])
    consumer.start()
    lock = consumer._session._lock

    class Interrupted:
        def acquire(self, blocking: bool) -> bool:
            has_it = lock.acquire(blocking)
            consumer._session._lock = lock
            consumer.stop()
            return has_it

    consumer._session._lock = Interrupted()  # type: ignore[assignment]
    errors: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll()
        except ConsumerError as error:
            errors.append(error)

    polling = threading.Thread(target=poll, daemon=True)
    polling.start()
    polling.join(60)
    assert not polling.is_alive()
    assert [str(error) for error in errors] == ["the consumer is stopped"]


def test_a_second_thread_is_rejected(kafka: InMemoryKafka, clock: VirtualClock) -> None:
    caught: list[BaseException] = []
    consumer: LitePullConsumer

    def other() -> None:
        try:
            consumer.poll()
        except ConsumerError as error:
            caught.append(error)

    def on_wait(seconds: float) -> None:
        clock.advance(max(1, seconds * 1_000))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    consumer = LitePullConsumer("memory:1", group="g", clients=kafka.clients(on_wait=on_wait), clock=clock)
    with consumer:
        consumer.assign([Q0])
        consumer.poll(50)
    assert "one thread at a time" in str(caught[0])


def test_settings_and_arguments_exclude_each_other() -> None:
    settings = LitePullConsumerSettings.make(bootstrap="b:1", group="g")
    assert LitePullConsumer(settings=settings).settings is settings
    with pytest.raises(ConfigError, match="not both"):
        LitePullConsumer("b:1", settings=settings)


def test_its_options_are_its_settings() -> None:
    assert set(LitePullConsumerOptions.__annotations__) == set(LitePullConsumerSettings.model_fields) - {
        "bootstrap",
        "group",
    }


def test_start_raises_if_kafka_rejects_a_client_setting(kafka: InMemoryKafka) -> None:
    consumer = LitePullConsumer("memory:1", group="g", clients=kafka.clients(), client={"session.timeout.ms": "soon"})
    with pytest.raises(ConfigError, match="rejects"):
        consumer.start()


def test_an_empty_or_absent_body_is_a_message(kafka: InMemoryKafka, make: Make) -> None:
    for value in (b"", None, b""):
        kafka.append("orders", value)
    with make() as consumer:
        consumer.subscribe("orders")
        assert bodies(drain(consumer)) == [b"", None, b""]


@pytest.mark.parametrize("group", ["payments", "mailer"])
@pytest.mark.parametrize("namespace", ["", "shop"])
def test_a_dead_letter_is_shown_the_same_whatever_the_readers_group_is(
    kafka: InMemoryKafka, clock: VirtualClock, group: str, namespace: str
) -> None:
    letters = TopicNames(namespace).dead_letter("payments")
    kafka.create_topic(letters, 1)
    headers = {"UNIQ_KEY": "u-1", "TAGS": "created", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "orders/0/4",
               "RECONSUME_TIMES": "17", "CONSUMER_GROUP": "payments", "FAIL_CLASS": "OSError", "p": "v"}  # fmt: skip
    kafka.append(letters, b"x", headers=[(name, value.encode()) for name, value in headers.items()])
    clients = kafka.clients(on_wait=lambda seconds: clock.advance(max(1, seconds * 1_000)))
    shared: dict[str, Any] = {"group": group, "namespace": namespace, "clients": clients, "clock": clock}
    with LitePullConsumer("memory:1", consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **shared) as lite:
        lite.subscribe("%DLQ%payments")
        (polled,) = drain(lite)
    with PullConsumer("memory:1", **shared) as pull:
        (pulled,) = pull.pull(MessageQueue("%DLQ%payments", queue_id=0), "*", 0, 10).messages
    for message in (polled, pulled):
        assert (message.topic, str(message.origin), message.reconsume_times) == ("orders", "orders/0/4", 17)
        assert (message.msg_id, message.tag, dict(message.properties)) == ("u-1", "created", {"p": "v"})
