"""Translates the settings of a producer into the settings of its Kafka client."""

from typing import Any, Final

from rocketshim.kafka.client_config import PROTECTED_PRODUCER
from rocketshim.kafka.clients import LastClientError
from rocketshim.settings import ProducerSettings
from rocketshim_topics.wire import MAX_SHIM_HEADERS_BYTES

__all__ = ["producer_config"]

_UNKNOWN_TOPIC_MS: Final = 2_000  # librdkafka waits 30 s for a topic to appear; `send` waits 3 s by default


def producer_config(settings: ProducerSettings, complaints: LastClientError) -> dict[str, Any]:
    """Return the settings of the Kafka client, which reports its errors to `complaints`."""
    required = {
        **PROTECTED_PRODUCER,
        "delivery.timeout.ms": settings.delivery_timeout_ms,
        "message.max.bytes": settings.max_message_bytes + MAX_SHIM_HEADERS_BYTES,
    }
    defaults = {
        "client.id": "rocketshim",
        "linger.ms": settings.linger_ms,
        **complaints.settings,
        "topic.metadata.propagation.max.ms": _UNKNOWN_TOPIC_MS,
    }
    return settings.client_config(required, defaults)
