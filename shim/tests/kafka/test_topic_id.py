"""The id of a topic, as brokers of different versions tell it."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Uuid

from rocketshim.kafka.topic_id import TopicId

OLD_BROKER, ID, ANOTHER = Uuid(0, 0), Uuid(1, 2), Uuid(3, 4)


class Admin:
    """An admin client whose brokers answer these ids in turn."""

    def __init__(self, *ids: Uuid) -> None:
        self._ids = list(ids)

    def describe_topics(self, topics: Any, *, request_timeout: float) -> dict[str, Any]:
        del topics, request_timeout
        answer: Future[Any] = Future()
        if self._ids:
            answer.set_result(SimpleNamespace(topic_id=self._ids.pop(0)))
        return {"log": answer}


def test_a_broker_that_knows_no_ids_tells_nothing() -> None:
    assert TopicId(Admin(OLD_BROKER, OLD_BROKER), "log").now() is None


def test_while_brokers_are_updated_one_by_one_a_topic_keeps_its_id() -> None:
    topic = TopicId(Admin(ID, OLD_BROKER, ID, OLD_BROKER, ANOTHER), "log")
    assert [topic.latest() for _ in range(6)] == [None, *[str(ID)] * 4, str(ANOTHER)]
