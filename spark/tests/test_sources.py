"""The parts of `sources` that need no broker."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, TopicCollection

from rocketshim_spark import sources
from rocketshim_spark.sources import Cluster, PartitionBounds, offsets_json, since
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import BrokerUnavailableError, ConfigError


def test_an_unknown_librdkafka_setting_is_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        Cluster("127.0.0.1:1", {"nosuch": "1"})


class Silent:
    """An admin client that never answers, and does not keep its own time limit."""

    def describe_topics(self, topics: TopicCollection, **_: object) -> dict[str, Future[None]]:
        return {name: Future() for name in topics.topic_names}


class Half:
    """An admin client of two brokers, of which one does not answer."""

    def list_consumer_groups(self, **_: object) -> Future[SimpleNamespace]:
        answer: Future[SimpleNamespace] = Future()
        answer.set_result(SimpleNamespace(valid=[], errors=[KafkaError(KafkaError._TIMED_OUT)]))
        return answer


def test_groups_of_a_broker_that_does_not_answer_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("127.0.0.1:1")
    monkeypatch.setattr(cluster, "_admin", Half())
    with pytest.raises(BrokerUnavailableError, match="did not answer a request for the consumer groups"):
        cluster.groups()


def test_a_request_without_an_answer_is_reported_as_brokers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_TIMEOUT_S", 0.0)
    monkeypatch.setattr("rocketshim.kafka.positions._GRACE_S", 0.01)
    cluster = Cluster("127.0.0.1:1")
    monkeypatch.setattr(cluster, "_admin", Silent())
    with pytest.raises(BrokerUnavailableError, match="did not answer a request for orders"):
        cluster.bounds(["orders"])


def test_changed_starts_stay_between_the_earliest_offset_and_the_end() -> None:
    bounds = [PartitionBounds("t", number, "id", 5, 5, 9) for number in range(4)]
    moved = since(bounds, {TopicPartitionKey("t", 0): 3, TopicPartitionKey("t", 1): 7, TopicPartitionKey("t", 2): 12})
    assert [each.start for each in moved] == [5, 7, 9, 5]
    assert [(each.earliest, each.end) for each in moved] == [(5, 9)] * 4


def test_offsets_are_formatted_for_spark() -> None:
    values = {TopicPartitionKey("a", 0): 1, TopicPartitionKey("a", 1): 2, TopicPartitionKey("b.c", 0): 3}
    assert offsets_json(values) == '{"a": {"0": 1, "1": 2}, "b.c": {"0": 3}}'
    assert offsets_json({TopicPartitionKey("a", 0): 0, TopicPartitionKey("a", 1): 1}, as_list=True) == '{"a": [0, 1]}'
