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

__all__ = ["TOO_LARGE", "send_error"]

_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's local errors have no public spelling
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""The record is larger than its topic, or the client, allows."""
_AWAY: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._AUTHENTICATION,  # noqa: SLF001
    }
)


def send_error(error: KafkaError, topic: str) -> RocketshimError:
    """The typed error of a send that failed.

    Args:
        error: of the delivery report or of the call.
        topic: physical topic that was written to.
    """
    code = error.code()
    what = f"{error.name()}: {error.str()}"
    if code in _MISSING:
        return TopicMissingError(
            f"the topic {topic!r}, or that partition, is not there ({what}); create it, for the shim's own topics "
            "with: rocketshim init"
        )
    if code in _DENIED:
        return NotAuthorizedError(
            f"the principal may not write to {topic!r} ({what}); grant it Write, see: rocketshim acls --role"
        )
    if code in TOO_LARGE:
        return MessageTooLargeError(
            f"the message is larger than {topic!r} takes ({what}); send less, or raise max.message.bytes of the topic"
        )
    if code == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001
        return SendTimeoutError(f"no broker took the message for {topic!r} in time ({what}); it may be stored or not")
    if code in _AWAY:
        return BrokerUnavailableError(f"no broker takes messages for {topic!r} ({what}); check the bootstrap address")
    return SendError(f"the message for {topic!r} was not stored ({what})")
