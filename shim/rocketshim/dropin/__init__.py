"""Drop-in classes: change `from confluent_kafka import …` to `from rocketshim.dropin import …` and keep every line.

`Consumer` and `Producer` are the originals with additions that do nothing until they are asked for; the other public
names of `confluent_kafka` that such programs import are the originals themselves.
"""

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
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
    "FeatureNotEnabledError",
    "KafkaError",
    "KafkaException",
    "Message",
    "NotSupportedError",
    "Producer",
    "StaleMessageError",
    "TopicPartition",
    "libversion",
    "version",
]
