"""librdkafka settings: what users may pass through, what we insist on, what is refused, what is never shown.

* **Protected** keys are those that correctness rests on (when an offset is stored, what a reader may see, how a key
  finds its partition). Passing one with another value is a `ConfigError`; passing our own value is fine.
* **Refused** keys are code: they load a shared object, run a shell command or fetch a URL. They pass only when
  `allow_code_settings` is set, by somebody who knows where the settings come from.
* **Secret** keys are masked wherever settings are shown: `mask` and every `repr` of settings objects.

Source: kafka CVE-2025-27817 and its like (settings from elsewhere reaching a privileged actor); librdkafka's
CONFIGURATION.md.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from rocketshim.errors import ConfigError

__all__ = [
    "CODE_KEYS",
    "CONSUMER_DEFAULTS",
    "CONSUMER_ONLY",
    "METADATA_REFRESH",
    "PROTECTED_CONSUMER",
    "PROTECTED_PRODUCER",
    "mask",
    "merge",
    "same",
]

CODE_KEYS: Final[frozenset[str]] = frozenset(
    {
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.location",
        "ssl.providers",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.jwt.template.file",
    }
)
"""Settings that load or run code or fetch from a URL."""

PROTECTED_CONSUMER: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": False,
}
"""What every consumer of ours is made with."""

METADATA_REFRESH: Final[Mapping[str, Any]] = {"topic.metadata.refresh.interval.ms": 3_000}
"""How soon a client notices that a topic has more partitions; librdkafka's own default is five minutes."""

CONSUMER_DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "rocketshim",
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.message.max.bytes": 1_048_576,
    "fetch.queue.backoff.ms": 10,
    **METADATA_REFRESH,
}
"""What consumers are made with where the user does not say otherwise: librdkafka's prefetch holds 64 MB a consumer, and
a full one pauses for a second. A fast listener empties the queue in less than a pause: with pauses of 50 ms it got
185,000 messages of 1 KiB a second, both cores idle for two thirds; with 10 ms 495,000, with 1 ms 526,000 (measured)."""

PROTECTED_PRODUCER: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",
}
"""What every producer of ours is made with; the partitioner is the Java client's, so that all agree on a key."""

CONSUMER_ONLY: Final = re.compile(
    r"session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\.interval\.ms|group\.(instance\.id|protocol.*|remote.*)"
    r"|partition\.assignment\.strategy|fetch\..*|queued\..*|auto\.offset\.reset|check\.crcs|consume\..*"
    r"|enable\.(auto\.commit|auto\.offset\.store|partition\.eof)|auto\.commit\.interval\.ms|isolation\.level"
)
"""Settings that a producer would only warn about; passed through to consumers alone."""

_ALIASES: Final[Mapping[str, str]] = {
    "request.required.acks": "acks",
    "metadata.broker.list": "bootstrap.servers",
}
_SECRET = re.compile(
    r"passw|secret|token|key\.pem|jaas|credential|passphrase|assertion"
    r"|^sasl\.(?!mechanisms?$|username$|kerberos\.|oauthbearer\.(method|scope)$)",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_MASK = "[hidden]"


def merge(
    user: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    required: Mapping[str, Any],
    allow_code_settings: bool = False,
) -> dict[str, Any]:
    """Settings for one Kafka client: defaults, then the user's, then what we insist on.

    A client is a consumer if `required` names its group; to all others settings of consumers are not passed.

    Args:
        user: librdkafka settings as passed by the user.
        defaults: ours, which the user's override.
        required: ours, which nothing overrides.
        allow_code_settings: let settings through that run code.

    Raises:
        ConfigError: a setting that runs code, or one that correctness rests on with another value.
    """
    merged = dict(defaults)
    is_consumer = "group.id" in required
    for key, value in user.items():
        name = _ALIASES.get(key, key)
        if not is_consumer and CONSUMER_ONLY.fullmatch(name):
            continue
        if name in CODE_KEYS and not allow_code_settings:
            raise ConfigError(
                f"the client setting {key!r} loads or runs code, so it is refused; "
                "set allow_code_settings=True if these settings come from nobody but you"
            )
        if name in required and not same(value, required[name]):
            raise ConfigError(
                f"the client setting {key!r} must be {required[name]!r} here: rocketshim's guarantees rest on it; "
                "leave it out"
            )
        merged[name] = value
    merged.update(required)
    return merged


def mask(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with every secret hidden, to be shown in logs, errors and listings."""
    return {key: _MASK if _SECRET.search(key) else _mask_value(value) for key, value in settings.items()}


def _mask_value(value: Any) -> Any:
    if isinstance(value, str):
        return _USERINFO.sub(_MASK, value)
    return value


def same(value: Any, wanted: Any) -> bool:
    """Whether two values mean the same to librdkafka: case, `True` and `-1` for `all` do not matter."""
    return _text(value) == _text(wanted)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value).strip().lower()
    return "all" if text == "-1" else text
