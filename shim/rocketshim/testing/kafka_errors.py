# ruff: noqa: SLF001 - librdkafka's own error codes are public names of KafkaError that begin with an underscore
"""Errors like those of confluent_kafka: codes, and `KafkaError` objects with librdkafka's texts."""

from typing import Final

from confluent_kafka import KafkaError, KafkaException

__all__ = ["Code", "failure", "invalid", "kafka_error"]


class Code:
    """The codes that the in-memory clients use."""

    ALL_BROKERS_DOWN: Final = int(KafkaError._ALL_BROKERS_DOWN)
    AUTO_OFFSET_RESET: Final = int(KafkaError._AUTO_OFFSET_RESET)
    CONFLICT: Final = int(KafkaError._CONFLICT)
    FATAL: Final = int(KafkaError._FATAL)
    FENCED: Final = int(KafkaError._FENCED)
    ILLEGAL_GENERATION: Final = int(KafkaError.ILLEGAL_GENERATION)
    INCONSISTENT: Final = int(KafkaError._INCONSISTENT)
    INVALID_ARG: Final = int(KafkaError._INVALID_ARG)
    INVALID_RECORD: Final = int(KafkaError.INVALID_RECORD)
    INVALID_TIMESTAMP: Final = int(KafkaError.INVALID_TIMESTAMP)
    MAX_POLL_EXCEEDED: Final = int(KafkaError._MAX_POLL_EXCEEDED)
    MSG_SIZE_TOO_LARGE: Final = int(KafkaError.MSG_SIZE_TOO_LARGE)
    MSG_TIMED_OUT: Final = int(KafkaError._MSG_TIMED_OUT)
    NOT_CONFIGURED: Final = int(KafkaError._NOT_CONFIGURED)
    NO_OFFSET: Final = int(KafkaError._NO_OFFSET)
    OUTDATED: Final = int(KafkaError._OUTDATED)
    PARTITION_EOF: Final = int(KafkaError._PARTITION_EOF)
    PURGE_QUEUE: Final = int(KafkaError._PURGE_QUEUE)
    STATE: Final = int(KafkaError._STATE)
    TIMED_OUT: Final = int(KafkaError._TIMED_OUT)
    TOPIC_AUTHORIZATION_FAILED: Final = int(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    TRANSPORT: Final = int(KafkaError._TRANSPORT)
    UNKNOWN_MEMBER_ID: Final = int(KafkaError.UNKNOWN_MEMBER_ID)
    UNKNOWN_PARTITION: Final = int(KafkaError._UNKNOWN_PARTITION)
    UNKNOWN_TOPIC: Final = int(KafkaError._UNKNOWN_TOPIC)
    UNKNOWN_TOPIC_OR_PART: Final = int(KafkaError.UNKNOWN_TOPIC_OR_PART)
    WAIT_COORD: Final = int(KafkaError._WAIT_COORD)


def kafka_error(
    code: int, doing: str = "", *, fatal: bool = False, retriable: bool = False, txn_requires_abort: bool = False
) -> KafkaError:
    """Return a `KafkaError` with librdkafka's text for the code, after `doing` and a colon if that is not empty."""
    text = KafkaError(code).str()
    reason = f"{doing}: {text}" if doing else text
    return KafkaError(code, reason, fatal, retriable, txn_requires_abort)


def failure(
    code: int, doing: str = "", *, fatal: bool = False, retriable: bool = False, txn_requires_abort: bool = False
) -> KafkaException:
    """Return the exception for a code."""
    return KafkaException(
        kafka_error(code, doing, fatal=fatal, retriable=retriable, txn_requires_abort=txn_requires_abort)
    )


def invalid(text: str) -> KafkaException:
    """Return the exception for an invalid argument or configuration, with exactly this text."""
    return KafkaException(KafkaError(Code.INVALID_ARG, text))
