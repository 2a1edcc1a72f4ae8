"""The contract on the cluster: topic names, wire format, delay levels, group-log records, topic layout.

Importing this package loads no Kafka client: the names of `rocketshim_topics.provision`, its only module with one, are
resolved when they are first asked for.
"""

from rocketshim_topics.durations import Duration, parse_duration_ms
from rocketshim_topics.errors import (
    BrokerUnavailableError,
    ClusterError,
    ConfigError,
    MalformedRecordError,
    MessageError,
    MessageTooLargeError,
    NotAuthorizedError,
    ReservedHeaderError,
    RocketshimError,
    TopicMismatchError,
    TopicMissingError,
)
from rocketshim_topics.hops import Failure, OutgoingRecord
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message, MessageView, Origin
from rocketshim_topics.names import SCHEDULE_TOPIC, TopicNames, dead_letter_topic, group_of, retry_topic
from rocketshim_topics.partitioner import lane_for, murmur2, partition_for
from rocketshim_topics.wire import Envelope, Record, decode, encode

__all__ = [
    "SCHEDULE_TOPIC",
    "BrokerUnavailableError",
    "ClusterError",
    "ConfigError",
    "DelayLevels",
    "Duration",
    "Envelope",
    "Failure",
    "MalformedRecordError",
    "Message",
    "MessageError",
    "MessageTooLargeError",
    "MessageView",
    "NotAuthorizedError",
    "Origin",
    "OutgoingRecord",
    "Record",
    "ReservedHeaderError",
    "RocketshimError",
    "TopicMismatchError",
    "TopicMissingError",
    "TopicNames",
    "dead_letter_topic",
    "decode",
    "encode",
    "group_of",
    "lane_for",
    "murmur2",
    "parse_duration_ms",
    "partition_for",
    "retry_topic",
]
