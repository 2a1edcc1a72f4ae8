"""The contract on the cluster: topic names, wire format, delay levels, group-log records, topic layout.

Importing this package loads no Kafka client. Only `rocketshim_topics.provision` needs one; it is loaded when one of its
names is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
    UnknownVersionError,
)
from rocketshim_topics.hops import Failure, OutgoingRecord
from rocketshim_topics.layout import Difference, Layout, Plan, TopicSpec, TopicState
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message, MessageView, Origin
from rocketshim_topics.names import SCHEDULE_TOPIC, TopicNames, dead_letter_topic, group_of, retry_topic
from rocketshim_topics.partitioner import lane_for, murmur2, partition_for
from rocketshim_topics.wire import Envelope, Record, decode, encode

if TYPE_CHECKING:
    from rocketshim_topics import provision
    from rocketshim_topics.provision import ensure_topics

__all__ = [
    "SCHEDULE_TOPIC",
    "BrokerUnavailableError",
    "ClusterError",
    "ConfigError",
    "DelayLevels",
    "Difference",
    "Duration",
    "Envelope",
    "Failure",
    "Layout",
    "MalformedRecordError",
    "Message",
    "MessageError",
    "MessageTooLargeError",
    "MessageView",
    "NotAuthorizedError",
    "Origin",
    "OutgoingRecord",
    "Plan",
    "Record",
    "ReservedHeaderError",
    "RocketshimError",
    "TopicMismatchError",
    "TopicMissingError",
    "TopicNames",
    "TopicSpec",
    "TopicState",
    "UnknownVersionError",
    "dead_letter_topic",
    "decode",
    "encode",
    "ensure_topics",
    "group_of",
    "lane_for",
    "murmur2",
    "parse_duration_ms",
    "partition_for",
    "provision",
    "retry_topic",
]


def __getattr__(name: str) -> Any:
    if name in {"ensure_topics", "provision"}:
        provisioning = importlib.import_module("rocketshim_topics.provision")
        return provisioning if name == "provision" else provisioning.ensure_topics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
