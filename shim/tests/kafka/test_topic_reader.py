"""A topic is read also while the leader of a partition moves."""

from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock


def test_bounds_are_asked_again_where_the_leader_has_just_moved() -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    clients = kafka.clients()
    refusals = [KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))]

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        ask = made.get_watermark_offsets

        def refuse_once(*args: Any, **kwargs: Any) -> Any:
            if refusals:
                raise refusals.pop()
            return ask(*args, **kwargs)

        made.get_watermark_offsets = refuse_once  # type: ignore[method-assign]
        return made

    with TopicReader("memory:1", clients=replace(clients, consumer=consumer)) as reader:
        assert reader.bounds("orders", 0) == (0, 0)
    assert not refusals


def test_records_that_are_there_are_returned_without_a_wait_for_more() -> None:
    """A client waits for the number of records that `consume` asks for, or for the whole time."""
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    for number in range(3):
        kafka.append("orders", b"%d" % number)
    clients, waits_s = kafka.clients(), set()

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        consume = made.consume

        def watched(count: int, timeout_s: float) -> Any:
            waits_s.add(timeout_s)
            return consume(count, timeout_s)

        made.consume = watched  # type: ignore[method-assign, assignment]
        return made

    with TopicReader("memory:1", clients=replace(clients, consumer=consumer)) as reader:
        assert [message.value() for message in reader.read(["orders"])] == [b"0", b"1", b"2"]
    assert waits_s == {0}
