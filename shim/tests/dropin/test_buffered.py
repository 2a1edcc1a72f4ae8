"""What a client call had in hand when a callback failed."""

import pytest
from confluent_kafka import KafkaError, Message

from rocketshim.dropin.buffered import Buffered
from rocketshim_topics.coordinates import TopicPartitionKey


def message(offset: int, partition: int = 0) -> Message:
    return Message("orders", partition, offset, value=b"x")


def test_without_an_error_the_messages_go_through() -> None:
    buffered, came = Buffered(), [message(1)]
    assert buffered.hand_out(came) == came
    assert buffered.is_empty


def test_each_call_raises_one_error_and_no_message_is_lost() -> None:
    buffered, came = Buffered(), [message(1), message(2)]
    buffered.errors.extend([OSError("first"), ValueError("second")])
    with pytest.raises(OSError, match="first"):
        buffered.hand_out(came)
    with pytest.raises(ValueError, match="second"):
        buffered.hand_out([])
    assert (buffered.take(1), buffered.take(5)) == (came[:1], came[1:])
    assert buffered.is_empty


def test_the_first_buffered_offset_of_each_partition_limits_what_is_handled() -> None:
    buffered = Buffered()
    end = Message("orders", 2, 9, error=KafkaError(KafkaError._PARTITION_EOF))
    buffered.messages.extend([message(4), message(7, partition=1), message(5), end])
    assert buffered.first_offsets() == {TopicPartitionKey("orders", 0): 4, TopicPartitionKey("orders", 1): 7}
