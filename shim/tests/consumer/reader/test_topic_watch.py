"""Which topics are read: found by patterns at an interval, and missed only when they stay away."""

from confluent_kafka import KafkaError

from rocketshim.consumer.poll_loop import TopicWatch
from rocketshim.core.subscriptions import Subscription, Subscriptions
from rocketshim.errors import TopicMissingError
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import TopicNames


def ignored(error: KafkaError, topic: str) -> None:
    """Log nothing."""


def subscribed(*topics: str) -> Subscriptions:
    made = Subscriptions(TopicNames())
    for topic in topics:
        made.add(Subscription(topic, print))
    return made


def test_topics_are_looked_up_only_at_the_interval(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    watch = TopicWatch(subscribed("^orders"), 1_000)
    assert watch.look(consumer, 0)
    assert watch.topics == ["orders"]
    kafka.create_topic("orders.eu")
    assert not watch.look(consumer, 999)
    assert watch.look(consumer, 1_000)
    assert watch.topics == ["orders", "orders.eu"]
    assert not watch.look(consumer, 2_000)


def test_without_patterns_nothing_is_looked_up_and_a_change_is_looked_up_immediately(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    source = subscribed("orders")
    watch = TopicWatch(source, 1_000)
    assert not watch.look(consumer, 0)
    assert not watch.refresh()
    source.put(Subscription("^ord", print))
    source.remove("orders")
    assert watch.refresh()
    assert watch.topics == []
    assert watch.look(consumer, 0)
    assert watch.topics == ["orders"]


def test_unknown_topic_is_looked_up_again_after_half_a_minute(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    watch = TopicWatch(subscribed("orders", "gone"), 1_000)
    for topic in ("orders", "gone"):
        watch.note_unknown(topic, 0)
        watch.note_unknown(topic, 29_000)  # the first doubt counts
    assert watch.missing(consumer, 29_999, ignored) is None
    assert isinstance(watch.missing(consumer, 30_000, ignored), TopicMissingError)
    assert watch.missing(consumer, 90_000, ignored) is None, "said once; the other one is there"


def test_without_brokers_the_wait_for_an_unknown_topic_starts_again(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    watch = TopicWatch(subscribed("gone"), 1_000)
    watch.note_unknown("gone", 0)
    kafka.stop_broker()
    logged: list[str] = []
    assert watch.missing(consumer, 30_000, lambda _, topic: logged.append(topic)) is None
    assert logged == ["gone"]
    kafka.start_broker()
    assert watch.missing(consumer, 59_999, ignored) is None
    assert watch.missing(consumer, 60_000, ignored) is not None


def test_an_unsubscribed_topic_may_be_deleted(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    source = subscribed("orders", "gone")
    watch = TopicWatch(source, 1_000)
    watch.note_unknown("gone", 0)
    source.remove("gone")
    watch.refresh()
    watch.note_unknown("gone", 0)  # the client may report it once more
    assert watch.missing(consumer, 30_000, ignored) is None


def test_a_deleted_topic_that_a_pattern_matched_is_no_longer_read(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    kafka.create_topic("orders.eu")
    watch = TopicWatch(subscribed("^orders"), 3_600_000)
    watch.look(consumer, 0)
    kafka.delete_topic("orders.eu")
    watch.note_unknown("orders.eu", 1)
    assert watch.missing(consumer, 30_001, ignored) is None
    assert watch.look(consumer, 30_001), "the patterns are not due for an hour, but they are looked up"
    assert watch.topics == ["orders"]
