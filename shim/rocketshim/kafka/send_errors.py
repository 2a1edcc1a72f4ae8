"""Kafka's errors as ours: which typed error a `KafkaError` means, and what to do about it."""

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

__all__ = ["send_error"]

_UNCERTAIN: Final = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - librdkafka's local errors have no public spelling
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.DUPLICATE_SEQUENCE_NUMBER,  # of `kafka.reports`: a success without an offset
    }
)
"""Of a send: it may have arrived. Elsewhere the two of a request only say that nobody answers."""


def send_error(error: KafkaError, topic: str) -> RocketshimError:
    """The typed error of a send that failed.

    Args:
        error: of the delivery report or of the call.
        topic: physical topic that was written to.
    """
    code = error.code()
    what = f"{error.name()}: {error.str()}"
    if code in MISSING:
        return TopicMissingError(
            f"the topic {topic!r}, or that partition, is not there ({what}); create it, for the shim's own topics "
            "with: rocketshim init"
        )
    if code in DENIED | NO_LOGIN:
        return NotAuthorizedError(
            f"the principal may not write to {topic!r} ({what}); grant it Write, see: rocketshim acls --role"
        )
    if code in TOO_LARGE:
        return MessageTooLargeError(
            f"the message is larger than {topic!r} takes ({what}); send less, or raise max.message.bytes of the topic"
        )
    if code in _UNCERTAIN:
        return SendTimeoutError(f"no broker took the message for {topic!r} in time ({what}); it may be stored or not")
    if code in AWAY:
        return BrokerUnavailableError(f"no broker takes messages for {topic!r} ({what}); check the bootstrap address")
    return SendError(f"the message for {topic!r} was not stored ({what})")
