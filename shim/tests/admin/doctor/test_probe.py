"""What a probe says of append times, on the in-memory Kafka, and of a broker that does not answer."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.admin.doctor.probe import APPEND_TIME, Capability, _ignored, _size, _transaction, append_times
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka, VirtualClock


@pytest.mark.parametrize("kind", ["LogAppendTime", "CreateTime"])
def test_a_broker_that_does_not_keep_append_times_is_found_by_a_record(kind: str) -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic("probe", 1, config={"message.timestamp.type": kind})
    producer, reader = kafka.producer({}), kafka.consumer({"group.id": "g"})
    found = append_times(producer, reader, "probe", 1.0, now_ms=clock.wall_ms())
    where = "not in the answer to the producer and the stored record, though the topic has LogAppendTime"
    is_kept = kind == "LogAppendTime"
    assert found == Capability(APPEND_TIME, is_kept, "kept" if is_kept else where, "delays, retries, locks")


class Unanswered:
    """A producer whose records get no report."""

    def produce(self, *_: Any, **__: Any) -> None:
        """Take a record."""

    def flush(self, _: float) -> int:
        return 1


def test_a_record_without_a_report_is_not_measured() -> None:
    producer: Any = Unanswered()
    assert _size(producer, "probe", 0.0).works is None


class NotKnownYet:
    """An admin client whose broker knows a new topic from the third request on."""

    def __init__(self) -> None:
        self._asked = 0

    def describe_topics(self, _: Any, **__: Any) -> dict[str, "Future[Any]"]:
        future: Future[Any] = Future()
        self._asked += 1
        if self._asked < 3:
            future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        else:
            future.set_result(SimpleNamespace(partitions=[0]))
        return {"probe": future}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, "Future[Any]"]:
        future: Future[Any] = Future()
        future.set_result({"retention.ms": SimpleNamespace(name="retention.ms", value="1")})
        return dict.fromkeys(resources, future)


def test_a_topic_that_is_not_known_yet_is_awaited() -> None:
    """Before, `doctor --probe` ended with a KeyError on a broker that was busy (seen on Kafka 4.4.0)."""
    admin: Any = NotKnownYet()
    assert _ignored(admin, "probe", {"retention.ms": "2"}, 60.0) == ["retention.ms"]


@pytest.mark.parametrize("has_coordinator", [True, False])
def test_a_time_out_of_a_transaction_means_that_the_cluster_has_none(has_coordinator: bool) -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("probe")
    if not has_coordinator:
        kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT, "timed out"), count=9)
    clients = Clients(consumer=kafka.consumer, producer=kafka.producer)
    reader = kafka.consumer({"group.id": "g"})
    assert _transaction(clients, dict, reader, "probe", 1.0).works is has_coordinator
