"""Translates the settings of a pull consumer into the settings of its Kafka clients."""

from typing import Any

from rocketshim.kafka.client_config import CONSUMER_DEFAULTS, PROTECTED_CONSUMER, merge
from rocketshim.settings import LitePullConsumerSettings, PullConsumerSettings

__all__ = ["lite_pull_config", "pull_config"]


def lite_pull_config(
    settings: LitePullConsumerSettings, callbacks: dict[str, Any], defaults: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings of a client that may join the group."""
    required = {"auto.offset.reset": "earliest", **callbacks}  # if retention deleted the position: repeat, never lose
    if settings.client.get("group.protocol", "classic") != "consumer":  # KIP-848 assigns on the broker
        required["partition.assignment.strategy"] = "cooperative-sticky"
    return _config(settings, required, defaults)


def pull_config(settings: PullConsumerSettings, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a client that joins no group."""
    required = {"enable.partition.eof": True, "auto.offset.reset": "error"}  # OFFSET_ILLEGAL is the caller's decision
    return _config(settings, required, {"fetch.wait.max.ms": 100, **defaults})


def _config(
    settings: LitePullConsumerSettings | PullConsumerSettings, required: dict[str, Any], defaults: dict[str, Any]
) -> dict[str, Any]:
    always = {**PROTECTED_CONSUMER, "bootstrap.servers": settings.bootstrap, "group.id": settings.group}
    return merge(
        settings.client,
        defaults={**CONSUMER_DEFAULTS, **defaults},
        required={**always, **required},
        allow_code_settings=settings.allow_code_settings,
    )
