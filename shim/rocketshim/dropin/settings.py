"""Settings of the drop-in classes, and what other clients of the same program get of them.

The settings are keys that begin with `rocketshim.`, removed from a copy of the configuration.

The client's own constructor accepts a dict, keyword arguments, or both. `take` reads what is given, and returns
arguments in the same form without our keys. A configuration without our keys is returned as the same objects, so that
the original treats it as before, errors included.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import confluent_kafka
from confluent_kafka.admin import AdminClient
from pydantic import BeforeValidator, Field, model_validator

from rocketshim.at_exit import EXIT_TIMEOUT_MS
from rocketshim.core.next_hop import SEND_ON_TIMEOUT_MS
from rocketshim.core.retry_policy import DEFAULT_MAX_RECONSUME_TIMES
from rocketshim.errors import ConfigError
from rocketshim.kafka.client_config import GROUP_METADATA_REFRESH, METADATA_REFRESH, PROTECTED_PRODUCER, flat, merge
from rocketshim.kafka.clients import check_threads, real_clients, with_log
from rocketshim.kafka.membership import RUN_WORKER, GroupQuestion, WorkerWatch
from rocketshim.logs import safe_logger
from rocketshim.settings import Levels, Settings, with_environment
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.limits import INT_MAX
from rocketshim_topics.names import TopicNames, check_consumer_group

__all__ = [
    "PREFIX",
    "ClientFacts",
    "ConsumerDropinSettings",
    "OriginalConsumer",
    "ProducerDropinSettings",
    "client_facts",
    "connection",
    "inner_producer_config",
    "is_true",
    "take",
    "watched_workers",
    "with_credentials",
]

_LOG = safe_logger("rocketshim.dropin")
_Client = TypeVar("_Client")

PREFIX: Final = "rocketshim."

OriginalConsumer = confluent_kafka.Consumer
"""What the drop-in consumer extends. A tracer may put a class of its own in place of `confluent_kafka.Consumer` later;
`Consumer` and its part for retries must extend and call the same one."""

_ISOLATION: Final = "isolation.level"
_STORE: Final = "enable.auto.offset.store"
_PRODUCER_PREFIX: Final = "rocketshim.producer."
_CONNECTION: Final = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|security\.protocol|sasl\..*|ssl\..*|enable\.ssl\..*"
    r"|enable\.sasl\..*|client\.(id|rack|dns\.lookup)|broker\.address\..*|broker\.version\.fallback|api\.version\..*"
    r"|socket\..*|connections\.max\.idle\.ms|reconnect\..*|retry\.backoff\..*|metadata\.max\.age\.ms"
    r"|topic\.metadata\.refresh\..*|statistics\.interval\.ms|debug|log_level|logger|log\..*|plugin\.library\.paths"
    r"|https\..*|(error|throttle|stats|oauth|oauthbearer_token_refresh)_cb"
)
"""Settings that a second client of the same program shares with the first: brokers, identity, callbacks, logging."""

_CALLBACKS: Final = frozenset({"error_cb", "stats_cb", "throttle_cb"})  # the program wants them of its own client only

_TRUE: Final = frozenset({"true", "t", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "f", "0", "no", "off"})


def is_true(value: Any) -> bool:
    """Return a boolean as librdkafka reads it, from a bool or a text."""
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ConfigError(f"{value!r:.80} is neither true nor false")


Truth = Annotated[bool, BeforeValidator(is_true)]


class _DropinSettings(Settings):
    """Settings that users write as keys of a configuration; see `with_environment` for those that they leave out."""

    @model_validator(mode="before")
    @classmethod
    def _from_environment(cls, values: Any) -> Any:
        return with_environment(values, names=cls.model_fields) if isinstance(values, Mapping) else values

    @classmethod
    def shown(cls, field: str) -> str:
        """Return the key of a field in the configuration."""
        return PREFIX + field.replace("_", ".")

    @classmethod
    def place_of(cls, name: str) -> str:
        """Return nothing: what begins with `rocketshim.` belongs nowhere else."""
        del name
        return ""


class ConsumerDropinSettings(_DropinSettings):
    """Settings of `rocketshim.dropin.Consumer`. Each description begins with the setting's key in the configuration.

    Attributes:
        retry_enable: `rocketshim.retry.enable`: also read the group's retry topic, and allow send-back. Default False.
        max_reconsume_times: `rocketshim.max.reconsume.times`: retries before a message becomes a dead letter; -1: 16;
            other negative numbers and 0: the first failure is final. Default 16.
        delay_levels: `rocketshim.delay.levels`: the table of delay levels in RocketMQ's notation. Default RocketMQ's.
        namespace: `rocketshim.namespace`: prefix of every topic that rocketshim creates, `""` (default) for none.
        create_topics: `rocketshim.create.topics`: create missing rocketshim topics at `subscribe`. Default True.
        hop_timeout_ms: `rocketshim.hop.timeout.ms`: how long a send-back tries to store its record, in ms, at least
            100 and at most 2,147,483,647. Default 30 s.
        send_on_timeout_ms: `rocketshim.send.on.timeout.ms`: how long a retried message of a topic that this consumer
            does not subscribe to is sent on, uncounted, to the other members, in ms; then it is a dead letter. 0:
            immediately. Default one day.
        fail_stack: `rocketshim.fail.stack`: write the stack trace of the exception that a message is sent back with (at
            most 2 KiB, without texts) into the header `FAIL_STACK`. Default True.
        producer: `rocketshim.producer.<key>`: librdkafka settings of the inner producer; they override those it
            inherits. A dict of them as `rocketshim.producer` is accepted, too.
    """

    retry_enable: Truth = False
    max_reconsume_times: int = DEFAULT_MAX_RECONSUME_TIMES
    delay_levels: Levels = Field(default_factory=DelayLevels.default)
    namespace: str = ""
    create_topics: Truth = True
    hop_timeout_ms: int = Field(default=30_000, ge=100, le=INT_MAX)
    send_on_timeout_ms: int = Field(default=SEND_ON_TIMEOUT_MS, ge=0)
    fail_stack: Truth = True
    producer: dict[str, Any] = Field(default_factory=dict, repr=False)


class ProducerDropinSettings(_DropinSettings):
    """Settings of `rocketshim.dropin.Producer`. Each description begins with the setting's key in the configuration.

    Attributes:
        delay_levels: `rocketshim.delay.levels`: the table of delay levels in RocketMQ's notation. Default RocketMQ's.
        namespace: `rocketshim.namespace`: prefix of every topic that rocketshim creates, `""` (default) for none.
        allow_delay_in_transaction: `rocketshim.allow.delay.in.transaction`: allow delayed sends in a transaction. Until
            the transaction ends, it blocks its delay queue for everybody. Default False.
        max_delay_ms: `rocketshim.max.delay.ms`: longest delay, in ms, at least 1. Default 40 days.
        exit_timeout_ms: `rocketshim.exit.timeout.ms`: how long the exit of the interpreter waits for messages that the
            program has not flushed, in ms. 0: it does not wait, as the original. Default 10 s.
    """

    delay_levels: Levels = Field(default_factory=DelayLevels.default)
    namespace: str = ""
    allow_delay_in_transaction: Truth = False
    max_delay_ms: int = Field(default=40 * 86_400_000, ge=1)
    exit_timeout_ms: int = Field(default=EXIT_TIMEOUT_MS, ge=0)


def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]:
    """Split the arguments of a client's constructor: our settings by field name, and the arguments for the original.

    Without our keys these are the same objects. While a test harness is open, or with our keys in a process without
    usable threads, this is a ConfigError.
    """
    first = args[0] if args else None
    config: dict[str, Any] = first if isinstance(first, dict) else {}
    real_clients.check(config | kwargs)
    ours = {key: value for key, value in (config | kwargs).items() if _is_ours(key)}
    if not ours:
        return {}, args, kwargs
    check_threads()
    values: dict[str, Any] = {}
    producer: dict[str, Any] = {}
    for key, value in ours.items():
        if key.startswith(_PRODUCER_PREFIX):
            producer[key.removeprefix(_PRODUCER_PREFIX)] = value
        else:
            values[key.removeprefix(PREFIX).replace(".", "_")] = value
    if producer:
        whole = values.get("producer", {})
        values["producer"] = whole | producer if isinstance(whole, dict) else whole
    if isinstance(first, dict):
        args = ({key: value for key, value in first.items() if not _is_ours(key)}, *args[1:])
    return values, args, {key: value for key, value in kwargs.items() if not _is_ours(key)}


def _is_ours(key: object) -> bool:
    return isinstance(key, str) and key.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """What the configuration of a consumer with retry enabled says."""

    connection: dict[str, Any]  # for another client of the same program
    group: str
    stores: bool  # the program lets the client store offsets, so we store them
    is_cooperative: bool
    resets_to_beginning: bool  # `auto.offset.reset` is `earliest`, by one of its names
    sees_ends: bool  # the client reports the ends of partitions; those of the retry topic must be filtered out


def client_facts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ClientFacts, dict[str, Any]]:
    """Return what the configuration of a consumer says, and the one of its client, which stores no offsets itself.

    Without a configuration dict it raises the original's TypeError. A setting that does not work with retries is a
    ConfigError.
    """
    if len(args) > 1 or not all(isinstance(each, dict) for each in args):
        raise TypeError("expected configuration dict")
    config = flat({**GROUP_METADATA_REFRESH, **(args[0] if args else {}), **kwargs})
    group = config.get("group.id")
    if not group:
        raise ConfigError("rocketshim.retry.enable needs a group.id: retries belong to a group")
    check_consumer_group(group)
    if str(config.get(_ISOLATION, "read_committed")).lower() != "read_committed":
        raise ConfigError(f"{_ISOLATION} must be read_committed with rocketshim.retry.enable: leave it out")
    protocol = str(config.get("group.protocol", "classic")).lower()
    facts = ClientFacts(
        connection=connection(config),
        group=str(group),
        stores=is_true(config.get(_STORE, True)),
        is_cooperative=protocol == "consumer" or "cooperative" in str(config.get("partition.assignment.strategy", "")),
        resets_to_beginning=config.get("auto.offset.reset") in {"earliest", "smallest", "beginning"},
        sees_ends=is_true(config.get("enable.partition.eof", False)),
    )
    return facts, {**config, _STORE: False}


def connection(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a consumer's configuration that other clients of the same program use."""
    return {key: value for key, value in config.items() if _CONNECTION.fullmatch(key)}


def inner_producer_config(config: Mapping[str, Any], settings: ConsumerDropinSettings) -> dict[str, Any]:
    """Return the inner producer's configuration: the consumer's connection, `rocketshim.producer.*`, required settings.

    Settings that load code are accepted: they come from the consumer's configuration, which has loaded them already.
    """
    return merge(
        {**connection(config), **settings.producer},
        defaults={
            "linger.ms": 1,
            "message.max.bytes": 100_000_000,
            "topic.metadata.propagation.max.ms": 2_000,
            **METADATA_REFRESH,
        },
        required={**PROTECTED_PRODUCER, "delivery.timeout.ms": settings.hop_timeout_ms},
        allow_code_settings=True,
    )


def with_credentials(client: _Client, credentials: Iterable[tuple[str, str]]) -> _Client:
    """Set credentials in a client, if there are any, and return it."""
    for username, password in tuple(credentials):  # another thread may set newer ones meanwhile
        client.set_sasl_credentials(username, password)  # type: ignore[attr-defined]
    return client


def watched_workers(
    connection: Mapping[str, Any], credentials: Iterable[tuple[str, str]], names: TopicNames, **facts: str
) -> WorkerWatch:
    """Return what logs `dropin.no-worker` with these facts while no worker of the namespace runs."""
    group = names.worker_group
    return WorkerWatch(
        GroupQuestion(
            lambda settings: with_credentials(AdminClient(with_log(settings)), credentials),
            {name: value for name, value in connection.items() if name not in _CALLBACKS},
            group,
        ),
        lambda: _LOG.warning("dropin.no-worker", extra={**facts, "workers": group, "fix": RUN_WORKER}),
    )
