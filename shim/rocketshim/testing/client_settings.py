"""The librdkafka settings that the in-memory clients support; every other key is accepted and has no effect.

Values may have their own type or be text, as in librdkafka. The defaults are librdkafka's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rocketshim.testing.group_coordinator import BY_COORDINATOR
from rocketshim.testing.kafka_errors import invalid

__all__ = ["ConsumerSettings", "ProducerSettings"]

Callback = Callable[..., Any]
_TRUE = ("true", "t", "1", "yes")
_SETTINGS_OF_CLASSIC = (
    "session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy", "group.protocol.type"
)  # fmt: skip


def _flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name, default)
    return value if isinstance(value, bool) else str(value).lower() in _TRUE


def _count(config: Mapping[str, Any], name: str, default: int, *aliases: str) -> int:
    value = next((config[key] for key in (name, *aliases) if key in config), default)
    try:
        return int(value)
    except ValueError as error:
        raise invalid(f'Invalid value "{value}" for configuration property "{name}"') from error


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of the in-memory consumer; times in milliseconds."""

    group_id: str
    client_id: str
    strategy: str
    auto_offset_reset: str
    auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_store: bool
    partition_eof: bool
    read_committed: bool
    session_timeout_ms: int
    max_poll_interval_ms: int
    on_commit: Callback | None
    error_cb: Callback | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ConsumerSettings":
        """Read the settings from a configuration; without `group.id` a `ValueError`, as in confluent_kafka."""
        if not config.get("group.id"):
            raise ValueError("Failed to create consumer: group.id must be set")
        return cls(
            group_id=str(config["group.id"]),
            client_id=str(config.get("client.id", "rdkafka")),
            strategy=_strategy(config),
            auto_offset_reset=_reset_policy(str(config.get("auto.offset.reset", "latest"))),
            auto_commit=_flag(config, "enable.auto.commit", default=True),
            auto_commit_interval_ms=_count(config, "auto.commit.interval.ms", 5_000),
            auto_offset_store=_flag(config, "enable.auto.offset.store", default=True),
            partition_eof=_flag(config, "enable.partition.eof", default=False),
            read_committed=str(config.get("isolation.level", "read_committed")) == "read_committed",
            session_timeout_ms=_count(config, "session.timeout.ms", 45_000),
            max_poll_interval_ms=_count(config, "max.poll.interval.ms", 300_000),
            on_commit=config.get("on_commit"),
            error_cb=config.get("error_cb"),
        )


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of the in-memory producer; times in milliseconds, sizes in bytes."""

    client_id: str
    partitioner: str
    message_max_bytes: int
    queue_max_count: int
    delivery_timeout_ms: int
    reports_only_errors: bool
    transactional_id: str | None
    transaction_timeout_ms: int
    metadata_refresh_ms: int
    on_delivery: Callback | None
    error_cb: Callback | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ProducerSettings":
        """Read the settings from a configuration; raise `_INVALID_ARG` for what librdkafka would reject."""
        return cls(
            client_id=str(config.get("client.id", "rdkafka")),
            partitioner=str(config.get("partitioner", "consistent_random")),
            message_max_bytes=_count(config, "message.max.bytes", 1_000_000),
            queue_max_count=_count(config, "queue.buffering.max.messages", 100_000),
            delivery_timeout_ms=_count(config, "delivery.timeout.ms", 300_000, "message.timeout.ms"),
            reports_only_errors=_flag(config, "delivery.report.only.error", default=False),
            transactional_id=config.get("transactional.id") or None,
            transaction_timeout_ms=_count(config, "transaction.timeout.ms", 60_000),
            metadata_refresh_ms=_count(config, "topic.metadata.refresh.interval.ms", 300_000),
            on_delivery=config.get("on_delivery"),
            error_cb=config.get("error_cb"),
        )


def _strategy(config: Mapping[str, Any]) -> str:
    """Return the assignor to use: the first of the list; with KIP-848 that of the coordinator."""
    if str(config.get("group.protocol", "classic")).lower() == "consumer":
        for name in _SETTINGS_OF_CLASSIC:
            if name in config:
                raise invalid(f"Failed to create consumer: `{name}` is not supported for `group.protocol=consumer`")
        return BY_COORDINATOR
    text = str(config.get("partition.assignment.strategy", "range,roundrobin"))
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in {"range", "roundrobin", "cooperative-sticky"}:
            raise invalid(f"Failed to create consumer: Unsupported partition.assignment.strategy: {name}")
    if len({name == "cooperative-sticky" for name in names}) > 1:
        raise invalid(
            f"Failed to create consumer: All partition.assignment.strategy ({text}) assignors must have the same "
            "protocol type"
        )
    return names[0]


def _reset_policy(value: str) -> str:
    match value:
        case "smallest" | "earliest" | "beginning":
            return "earliest"
        case "largest" | "latest" | "end":
            return "latest"
        case "error":
            return "error"
        case _:
            raise invalid(f'Invalid value "{value}" for configuration property "auto.offset.reset"')
