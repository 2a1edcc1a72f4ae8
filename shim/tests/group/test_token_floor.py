"""What commits tell of tokens."""

from confluent_kafka import TopicPartition

from rocketshim.core.start_position import CommitMetadata, encode_metadata
from rocketshim.group.log_clients import token_floor
from rocketshim.testing import InMemoryKafka


def test_the_floor_lies_above_every_token_that_a_commit_carries() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("orders", 4)
    consumer = kafka.consumer({"group.id": "g"})
    assert token_floor(consumer, ["orders"]) is None
    for number, metadata in enumerate(
        [encode_metadata(CommitMetadata("d", 4, "t", 90)), encode_metadata(CommitMetadata("d", 4, "t", 70)), "other's"]
    ):
        consumer.commit(offsets=[TopicPartition("orders", number, 5, metadata=metadata)], asynchronous=False)
    assert token_floor(consumer, ["orders", "missing"]) == 91
