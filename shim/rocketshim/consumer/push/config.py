"""Translates the settings of a push consumer into those of its Kafka clients and its flow control."""

from collections.abc import Callable
from typing import Any, Final

from rocketshim.core.flow_control import FlowLimits
from rocketshim.kafka.client_config import (
    CONSUMER_DEFAULTS,
    METADATA_REFRESH,
    PROTECTED_CONSUMER,
    PROTECTED_PRODUCER,
    merge,
)
from rocketshim.settings import PushConsumerSettings

__all__ = ["connection", "consumer_config", "flow_limits", "producer_config"]

_SESSION_MS: Final = 45_000  # Kafka's default
_SESSION_MIN_MS: Final = 6_000  # the broker's default minimum
_HEARTBEAT_MS: Final = 500  # members learn of a departure by heartbeat: a clean stop hands over within 1 s


def connection(
    settings: PushConsumerSettings, required: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings of any client of this consumer: those of the connection, plus the given ones."""
    return merge(
        settings.client,
        defaults=defaults or {},
        required={"bootstrap.servers": settings.bootstrap, **(required or {})},
        allow_code_settings=settings.allow_code_settings,
    )


def consumer_config(settings: PushConsumerSettings, *, orderly: bool, on_commit: Callable[..., None]) -> dict[str, Any]:
    """Return the settings of the Kafka consumer that reads."""
    required = {
        **PROTECTED_CONSUMER,
        "group.id": settings.group,
        "auto.offset.reset": "earliest",  # if retention deleted the position: repeat, never lose
        "on_commit": on_commit,
    }
    if settings.client.get("group.protocol", "classic") != "consumer":  # KIP-848 assigns on the broker
        required["partition.assignment.strategy"] = "cooperative-sticky"
    defaults: dict[str, Any] = dict(CONSUMER_DEFAULTS)
    if orderly and "partition.assignment.strategy" in required:
        # The queues of a dead member are reassigned when its session ends: let it end no later than its locks.
        session_ms = min(max(settings.lock_lease_ms, _SESSION_MIN_MS), _SESSION_MS)
        defaults |= {"session.timeout.ms": session_ms, "heartbeat.interval.ms": _HEARTBEAT_MS}
    return connection(settings, required, defaults)


def producer_config(settings: PushConsumerSettings) -> dict[str, Any]:
    """Return the settings of the producer that sends messages back."""
    defaults = {"client.id": "rocketshim", "linger.ms": 1, "message.max.bytes": 100_000_000, **METADATA_REFRESH}
    return connection(settings, {**PROTECTED_PRODUCER, "delivery.timeout.ms": settings.hop_timeout_ms}, defaults)


def flow_limits(settings: PushConsumerSettings, *, orderly: bool) -> FlowLimits:
    """Return when a queue has so much that it is paused."""
    span: int | None = settings.consume_concurrently_max_span
    if orderly:
        span = settings.order_by_key_max_span if settings.order == "key" else None
    return FlowLimits(
        settings.pull_threshold_for_queue,
        settings.pull_threshold_size_for_queue_bytes,
        span,
        resume_span=span if orderly else None,
    )
