"""Facts about `rocketshim_topics.message_queue`."""

import dataclasses

import pytest

from rocketshim_topics.errors import ConfigError
from rocketshim_topics.message_queue import MessageQueue


def test_its_text_is_rocketmqs() -> None:
    # printed by RocketMQ 4.9.7 for new MessageQueue("orders", "kafka", 11)
    assert str(MessageQueue("orders", "kafka", 11)) == "MessageQueue [topic=orders, brokerName=kafka, queueId=11]"


def test_the_broker_name_is_kafka_unless_given() -> None:
    assert MessageQueue("orders", queue_id=3) == MessageQueue("orders", "kafka", 3)


def test_it_sorts_by_topic_broker_and_the_number_of_the_queue() -> None:
    in_order = [
        MessageQueue("a", "kafka", 11),
        MessageQueue("b", "east", 5),
        MessageQueue("b", "kafka", 2),
        MessageQueue("b", "kafka", 10),
    ]
    assert sorted(in_order[i] for i in (2, 0, 3, 1)) == in_order


def test_it_is_a_frozen_slotted_key() -> None:
    queue = MessageQueue("orders", "kafka", 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        queue.queue_id = 2  # type: ignore[misc]
    assert not hasattr(queue, "__dict__")
    assert {queue: 1}[MessageQueue("orders", "kafka", 1)] == 1


def test_a_queue_id_in_the_place_of_the_brokers_name_is_refused_and_does_not_mean_queue_0() -> None:
    with pytest.raises(ConfigError, match=r"write MessageQueue\('orders', queue_id=3\)"):
        MessageQueue("orders", 3)  # type: ignore[arg-type]
