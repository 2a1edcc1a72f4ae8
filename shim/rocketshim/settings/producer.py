"""Settings of a producer."""

from typing import Any, TypedDict

from pydantic import Field

from rocketshim.at_exit import EXIT_TIMEOUT_MS
from rocketshim.settings import DAY_MS, ConnectionSettings
from rocketshim_topics.levels import DelayLevels

__all__ = ["ProducerOptions", "ProducerSettings"]


class ProducerOptions(TypedDict, total=False):
    """The names of `ProducerSettings` that are keyword arguments of `Producer`, for editors and type checkers.

    `ProducerSettings` documents the meaning, range and default of each.
    """

    namespace: str
    delay_levels: DelayLevels | str
    client: dict[str, Any]
    allow_code_settings: bool
    max_delay_ms: int
    max_message_bytes: int
    delivery_timeout_ms: int
    linger_ms: float
    exit_timeout_ms: int


class ProducerSettings(ConnectionSettings):
    """Settings of a `Producer`.

    Attributes:
        max_delay_ms: longest delay of a message, in ms. Default 40 days.
        max_message_bytes: largest record that may be sent, headers included, in bytes. Default 4 MiB (RocketMQ's
            limit for a body). The limit includes space reserved for headers that later hops add.
        delivery_timeout_ms: how long librdkafka tries to send before it reports a failure, in ms. Default 30 s.
        linger_ms: how long a batch waits for more messages, in ms. Default 5.
        exit_timeout_ms: how long the exit of the interpreter waits for messages of a producer that was not closed, in
            ms. What is not stored by then is counted in the log (`producer.not-stored-at-exit`). 0: it does not wait.
            Default 10 s.
    """

    max_delay_ms: int = Field(default=40 * DAY_MS, ge=1)
    max_message_bytes: int = Field(default=4_194_304, ge=1_024)
    delivery_timeout_ms: int = Field(default=30_000, ge=100)
    linger_ms: float = Field(default=5.0, ge=0)
    exit_timeout_ms: int = Field(default=EXIT_TIMEOUT_MS, ge=0)
