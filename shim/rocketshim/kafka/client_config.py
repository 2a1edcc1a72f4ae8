"""librdkafka settings: which ones users may pass, which are protected, refused or secret.

* **Protected** keys decide about correctness (when an offset is stored, which records a reader sees, how a key maps to
  a partition). A protected key with another value is a `ConfigError`; our own value is accepted.
* **Refused** keys are code: they load a shared object, run a shell command or fetch a URL. They are accepted only if
  `allow_code_settings` is set by a user who knows the origin of the settings, or `--allow-code-settings` is typed.
* **Callbacks** (`error_cb`, `stats_cb`, `throttle_cb`) are wrapped: what they raise is logged. An error that leaves one
  ends the client's call, which then drops the messages that it has fetched: a pull consumer missed them.
* **Addresses** are `host:port`, separated by commas: `check_bootstrap` refuses anything else with a hint.
* **Secret** keys are masked wherever settings are displayed: `mask` and every `repr` of settings objects.

Source: kafka CVE-2025-27817 and similar ones (foreign settings reach a privileged actor); librdkafka's
CONFIGURATION.md.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rocketshim.core.user_values import safe_text
from rocketshim.errors import ConfigError
from rocketshim.logs import safe_logger

__all__ = [
    "CODE_KEYS",
    "CONSUMER_DEFAULTS",
    "CONSUMER_ONLY",
    "GROUP_METADATA_REFRESH",
    "KAFKA_SESSION_MS",
    "METADATA_REFRESH",
    "PROTECTED_CONSUMER",
    "PROTECTED_PRODUCER",
    "WORKER_SESSION_MS",
    "check_bootstrap",
    "check_group",
    "client_settings",
    "flat",
    "for_reading",
    "kafka_hint",
    "mask",
    "merge",
    "same",
]

_LOG = safe_logger("rocketshim.client")

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
"""Required settings of every consumer that this library creates."""

METADATA_REFRESH: Final[Mapping[str, Any]] = {"topic.metadata.refresh.interval.ms": 5_000}
"""How soon a producer notices a topic's new partitions; librdkafka's own default is five minutes."""

GROUP_METADATA_REFRESH: Final[Mapping[str, Any]] = {"topic.metadata.refresh.interval.ms": 10_000}
"""How soon a consumer notices a topic's new partitions.

It must be longer than two requests take. The leader of a group asks for metadata when it has joined, and joins again if
other metadata arrive before the answer. With 3 s and with 5 s, and a link on which a request takes 3 s, it never got a
partition (librdkafka 2.16, measured).
"""

CONSUMER_DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "rocketshim",
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.message.max.bytes": 1_048_576,
    "fetch.queue.backoff.ms": 10,
    **GROUP_METADATA_REFRESH,
}
"""Default settings of consumers, which the user may override. librdkafka's own defaults prefetch 64 MB for a consumer,
and fetching pauses for a second when the prefetch queue is full. A fast listener empties the queue in less time than
the pause. With a pause of 50 ms it got 185,000 messages of 1 KiB a second, with both cores idle for two thirds of the
time; with 10 ms it got 495,000 and with 1 ms 526,000 (measured)."""

KAFKA_SESSION_MS: Final = 45_000
WORKER_SESSION_MS: Final = 10_000
"""The session time-outs of consumers, as Kafka has it, and of workers, if the user sets none."""

PROTECTED_PRODUCER: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",
    "delivery.report.only.error": False,
}
"""Required settings of every producer that this library creates. The partitioner is the Java client's, so that all
clients map a key to the same partition. Without reports of success nothing would ever count as stored."""

CONSUMER_ONLY: Final = re.compile(
    r"session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\.interval\.ms|group\.(instance\.id|protocol.*|remote.*)"
    r"|partition\.assignment\.strategy|fetch\..*|queued\..*|auto\.offset\.reset|check\.crcs|consume\..*"
    r"|enable\.(auto\.commit|auto\.offset\.store|partition\.eof)|auto\.commit\.interval\.ms|isolation\.level"
)
"""Settings that a producer would only warn about. They are passed to consumers only, and not refused
(test_settings_of_consumers_do_not_reach_producers)."""

_PRODUCER_ONLY: Final = re.compile(
    r"acks|request\.required\.acks|retries|message\.(send\.max\.retries|timeout\.ms)|(delivery|request)\.timeout\.ms"
    r"|linger\.ms|queue\.buffering\..*|queuing\.strategy|batch\..*|compression\..*|enable\.(idempotence|gapless.*)"
    r"|transaction.*|partitioner|sticky\..*|produce\..*|delivery\.report\..*|dr_(msg_)?cb|on_delivery"
)

_KAFKA_NAME: Final = re.compile(
    CONSUMER_ONLY.pattern
    + r"|acks|retries|request\..*|batch\..*|compression\..*|linger\.ms|queue\..*|message\..*|delivery\..*|enable\..*"
    r"|max\.in\.flight.*|partitioner|sticky\..*|security\.protocol|sasl\..*|ssl\..*|https\..*|socket\..*|reconnect\..*"
    r"|retry\.backoff.*|connections\..*|metadata\..*|topic\.metadata\..*|broker\..*|api\.version\..*|client\.(id|rack|dns\..*)"
    r"|statistics\..*|debug|log[._].*|[a-z_]+_cb|plugin\..*|allow\.auto\..*|buffer\.memory|max\.(request|block)\..*"
)
"""What Kafka's own settings look like; a name that it only resembles costs a hint that is beside the point."""

_OUR_NAME: Final[Mapping[str, str]] = {
    "bootstrap.servers": "it is called bootstrap here",
    "metadata.broker.list": "it is called bootstrap here",
    "namesrv.addr": "write bootstrap, the addresses of Kafka's brokers",
    "group.id": "it is called group here",
    "auto.offset.reset": (
        "write consume_from_where=ConsumeFromWhere.FIRST_OFFSET for 'earliest', ConsumeFromWhere.LAST_OFFSET for "
        "'latest'"
    ),
    "enable.auto.commit": (
        "leave it out: a push consumer commits what its listeners have handled; LitePullConsumer has auto_commit"
    ),
    "enable.auto.offset.store": "leave it out: a push consumer commits what its listeners have handled",
    "auto.commit.interval.ms": (
        "write persist_consumer_offset_interval_ms, or auto_commit_interval_ms for a LitePullConsumer"
    ),
    "max.poll.records": "write pull_batch_size",
    "transactional.id": "transactions are in rocketshim.dropin.Producer",
    **dict.fromkeys(
        ("value.serializer", "value.deserializer"),
        "write codec=, such as JsonCodec() or SerializerCodec(serializer, deserializer)",
    ),
    **dict.fromkeys(("key.serializer", "key.deserializer"), "keys are text or bytes, and need no serializer"),
}
"""Kafka's settings that have another name here, or none."""

_PROTOCOL: Final = re.compile(r"\s*(?:(?:plaintext|ssl|sasl_plaintext|sasl_ssl)://)?", re.IGNORECASE)
"""What Kafka's client accepts before an address."""

_CALLBACKS: Final = frozenset({"error_cb", "stats_cb", "throttle_cb"})
_NESTED: Final = "default.topic.config"  # confluent_kafka's former form for settings of topics
_ALIASES: Final[Mapping[str, str]] = {
    "request.required.acks": "acks",
    "metadata.broker.list": "bootstrap.servers",
    "message.timeout.ms": "delivery.timeout.ms",
}
_TYPED: Final = "allow.code.settings"
_ALLOWED: Final = object()  # no file, variable or JSON text can have it
_SECRET = re.compile(
    r"passw|secret|token|key\.pem|jaas|credential|passphrase|assertion"
    r"|^sasl\.(?!mechanisms?$|username$|kerberos\.|oauthbearer\.(method|scope)$)",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_MASK = "[hidden]"


def for_reading(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a program for a consumer beside its producers: without those that it would warn about."""
    return {name: value for name, value in flat(client).items() if not _PRODUCER_ONLY.fullmatch(name)}


def merge(
    user: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    required: Mapping[str, Any],
    allow_code_settings: bool = False,
) -> dict[str, Any]:
    """Return the settings for one Kafka client: defaults, then the user's, then the required ones.

    A client is a consumer if `required` names its group. Other clients do not get settings of consumers. A setting that
    runs code, a protected setting with another value, or a blank name of the group is a ConfigError.

    Decides: Which settings has a Kafka client? What we require is protected, if the caller gives it as required.
    """
    merged = dict(defaults)
    if user.get(_TYPED) is _ALLOWED:
        user, allow_code_settings = {name: user[name] for name in user.keys() - {_TYPED}}, True
    is_consumer = "group.id" in required
    if is_consumer:
        check_group(required["group.id"])
    for key, value in flat(user).items():
        name = _ALIASES.get(key, key)
        if not is_consumer and CONSUMER_ONLY.fullmatch(name):
            continue
        if name in CODE_KEYS and not allow_code_settings:
            raise ConfigError(
                f"the client setting {key!r} loads or runs code, so it is refused; "
                "if only you can set these settings, a program may set allow_code_settings=True, and you may type "
                "--allow-code-settings behind a command"
            )
        if name in required and not same(value, required[name]):
            raise ConfigError(
                f"the client setting {key!r} must be {required[name]!r} here: rocketshim's guarantees depend on it; "
                "leave it out"
            )
        merged[name] = _quiet(name, value) if name in _CALLBACKS and callable(value) else value
    merged.update(required)
    return merged


def kafka_hint(name: str) -> str:
    """Return how to set one of Kafka's settings that was given as an option; `""`: it is none of them."""
    dotted = name if name.endswith(("_cb", "_level")) else name.replace("_", ".")
    if dotted in _OUR_NAME:
        return _OUR_NAME[dotted]
    if _KAFKA_NAME.fullmatch(dotted) is None:
        return ""
    required = {**PROTECTED_CONSUMER, **PROTECTED_PRODUCER}.get(dotted)
    fixed = "" if required is None else f", where it has to be {required!r}"
    return f"Kafka's own settings go into client={{{dotted!r}: …}}{fixed}"


def check_bootstrap(addresses: str) -> str:
    """Return the addresses of brokers. Raises ConfigError: there is none, or one is a URL, or it has a path."""
    if not addresses.strip(", "):
        raise ConfigError("bootstrap is empty: write host:port of at least one broker (is a variable not set?)")
    for address in addresses.split(","):
        rest = address[_PROTOCOL.match(address).end() :]  # type: ignore[union-attr]  # it matches the empty text
        if "/" in rest or "@" in rest:
            shown = _USERINFO.sub(_MASK, address.strip())
            why = "Kafka's protocol is not HTTP" if shown.lower().startswith("http") else "an address is not a URL"
            host = rest.rpartition("://")[2].rpartition("@")[2].partition("/")[0]
            raise ConfigError(f"{shown!r:.80} is not the address of a broker: {why}. Write {host}, without the rest")
    return addresses


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those of `default.topic.config` among the others.

    The client lets them override all others. So a setting that is read or required must not hide there.
    """
    nested = settings.get(_NESTED)
    if not isinstance(nested, Mapping):
        return dict(settings)
    return {key: value for key, value in settings.items() if key != _NESTED} | dict(nested)


def check_group(group: str) -> None:
    """Refuse a name with which confluent_kafka ends the process: in C it is no text, or nothing is left of it."""
    try:
        is_name = bool(group.encode().partition(b"\0")[0].strip())
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise ConfigError(f"{group!r:.80} is not the name of a group: give a text that is not blank")


def _quiet(name: str, callback: Callable[..., Any]) -> Callable[..., None]:
    """Return a callback that logs what the user's raises."""

    def called(*args: Any) -> None:
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - user code
            _LOG.exception("client.callback-failed", extra={"callback": name, "error": safe_text(error, repr)})

    return called


def mask(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same settings with every secret masked, for logs, errors and listings."""
    return {key: _MASK if _SECRET.search(key) else _mask_value(value) for key, value in settings.items()}


def _mask_value(value: Any) -> Any:
    if isinstance(value, str):
        return _USERINFO.sub(_MASK, value)
    return value


def same(value: Any, wanted: Any) -> bool:
    """Return whether two values mean the same to librdkafka: case, `True` for `true` and `-1` for `all` are ignored."""
    return _text(value) == _text(wanted)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value).strip().lower()
    return "all" if text == "-1" else text


def client_settings(
    given: Iterable[str] | None, option: str = "--client", *, allow_code_settings: bool = False
) -> dict[str, Any]:
    """Return the settings of `--client`, or of another option of this form; a later one wins.

    `allow_code_settings`: `merge` accepts those that run code, wherever the returned settings are passed on.

    A file has the form of the Java clients' files: one `NAME=VALUE` per line. Empty lines and lines that begin with `#`
    are skipped. A text that is neither a pair nor a readable file is a ConfigError, which never names a value.
    """
    settings: dict[str, Any] = {_TYPED: _ALLOWED} if allow_code_settings else {}
    for text in given or ():
        if not text.startswith("@"):
            settings.update([_pair(text, option)])
            continue
        path = Path(text[1:])
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{option} {text}: cannot read the file ({type(error).__name__})") from error
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                settings.update([_pair(line.strip(), f"{option} {text}, line {number}")])
    return settings


def _pair(text: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{where}: write NAME=VALUE, for example security.protocol=SASL_SSL")
    return name.strip(), value.strip()
