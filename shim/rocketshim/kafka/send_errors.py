"""Typed errors for failed sends: which error a `KafkaError` means, and what the user can do about it.

librdkafka's local errors have no public spelling, hence the underscores.
"""
# ruff: noqa: SLF001

from typing import Final

from confluent_kafka import KafkaError

from rocketshim.errors import (
    BrokerUnavailableError,
    MessageTooLargeError,
    NotAuthorizedError,
    RocketshimError,
    SendError,
    SendTimeoutError,
    TopicMissingError,
)
from rocketshim_topics.kafka_codes import AWAY, DENIED, MISSING, NO_LOGIN, TOO_LARGE
from rocketshim_topics.names import init_command

__all__ = ["send_error"]

_UNCERTAIN: Final = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._SSL,
        KafkaError._BAD_MSG,
        KafkaError._DESTROY,
        KafkaError._DESTROY_BROKER,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._PURGE_QUEUE,  # also of a record that was sent and waits to be sent again
        KafkaError.UNKNOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.DUPLICATE_SEQUENCE_NUMBER,  # of `kafka.reports`: a success without an offset
    }
)
"""Errors of a send that may be stored: librdkafka calls it possibly persisted, or does not know.

For other requests most of them only mean that no broker answers. `_FATAL` is not among them: the client refuses the
call with it, and nothing is sent.
"""


def send_error(error: KafkaError, topic: str) -> RocketshimError:
    """Return the typed error for a send to a physical topic, by the error of its delivery report or of the call."""
    code = error.code()
    what = f"{error.name()}: {error.str()}"
    if code in MISSING:
        return TopicMissingError(
            f"the topic {topic!r}, or that partition, does not exist ({what}); create it: "
            f"{init_command(topic, '--fix')}"
        )
    if code in DENIED | NO_LOGIN:
        return NotAuthorizedError(
            f"the principal may not write to {topic!r} ({what}); grant it Write, see: rocketshim acls --role ROLE"
        )
    if code in TOO_LARGE:
        return MessageTooLargeError(
            f"the message is larger than {topic!r} accepts ({what}); send a smaller message, or raise "
            "max.message.bytes of the topic"
        )
    if code == KafkaError.INVALID_TIMESTAMP:
        return SendError(
            f"the message for {topic!r} was not stored ({what}): this machine's clock is ahead of the broker's by more "
            "than the topic's message.timestamp.after.max.ms (1 hour by default in Kafka 4), or behind it by more than "
            "message.timestamp.before.max.ms; set the clock"
        )
    if code in _UNCERTAIN:
        return SendTimeoutError(
            f"no broker confirmed that the message for {topic!r} is stored ({what}); it may be stored or not"
        )
    if code in AWAY:
        return BrokerUnavailableError(f"no broker accepts messages for {topic!r} ({what}); check the bootstrap address")
    return SendError(f"the message for {topic!r} was not stored ({what})")
