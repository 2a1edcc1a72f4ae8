"""Drop-in classes: change `from confluent_kafka import …` to `from rocketshim.dropin import …` and keep every line.

`Consumer` and `Producer` are the originals with additions that do nothing until the program uses them. Every other
public name of `confluent_kafka` is the original itself.
"""

from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    DeserializingConsumer,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Node,
    SerializingProducer,
    ThrottleEvent,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
    Uuid,
    libversion,
    version,
)

from rocketshim.dropin.consumer import Consumer
from rocketshim.dropin.producer import Producer
from rocketshim.errors import FeatureNotEnabledError, NotSupportedError, StaleMessageError

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "Consumer",
    "ConsumerGroupState",
    "ConsumerGroupTopicPartitions",
    "ConsumerGroupType",
    "DeserializingConsumer",
    "ElectionType",
    "FeatureNotEnabledError",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "Message",
    "Node",
    "NotSupportedError",
    "Producer",
    "SerializingProducer",
    "StaleMessageError",
    "ThrottleEvent",
    "TopicCollection",
    "TopicPartition",
    "TopicPartitionInfo",
    "Uuid",
    "libversion",
    "version",
]

if not TYPE_CHECKING:  # type checkers know the names above

    def __getattr__(name: str) -> Any:
        """Return a name that a later `confluent_kafka` has, or a submodule of it."""
        return getattr(confluent_kafka, name)
