"""Settings of producers, consumers and the worker: frozen, checked when they are made, unknown names refused.

Names of durations end in `_ms` and names of sizes in `_bytes`. Names of counts have no suffix or end in `_count`. Where
RocketMQ has the setting, the name is RocketMQ's in snake case. Every object can be printed: secrets in `client` are
hidden.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypedDict

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rocketshim.at_exit import EXIT_TIMEOUT_MS
from rocketshim.codecs import Codec
from rocketshim.core.allocate import AllocateMessageQueueStrategy
from rocketshim.core.failure_rules import ExceptionTypes
from rocketshim.core.message_model import MessageModel
from rocketshim.core.next_hop import SEND_ON_TIMEOUT_MS
from rocketshim.core.options import advice, check_options
from rocketshim.core.retry_policy import LevelTableRetryPolicy, RetryPolicy, check_policy
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.core.user_values import call_problem
from rocketshim.errors import ConfigError
from rocketshim.kafka.client_config import check_bootstrap, client_settings, kafka_hint, mask, merge
from rocketshim.locks.lease import QueueLockSettings
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.limits import EPOCH_SECONDS
from rocketshim_topics.message import Message
from rocketshim_topics.names import TopicNames, check_consumer_group

__all__ = [
    "BOOTSTRAP_VARIABLE",
    "ConnectionSettings",
    "ListenerOptions",
    "LitePullConsumerOptions",
    "LitePullConsumerSettings",
    "ProducerOptions",
    "ProducerSettings",
    "PullConsumerOptions",
    "PullConsumerSettings",
    "PushConsumerOptions",
    "PushConsumerSettings",
    "Settings",
    "WorkerSettings",
    "check_listener_options",
    "place_of",
    "with_environment",
]

_DAY_MS = 86_400_000
_MIB = 1_048_576
_WORKER_BYTES = 192 * _MIB  # a worker without records: the program, and what its consumer has fetched
_YEAR_2286_MS = 10**13  # 14 digits: RocketMQ's 20260101000000 would mean the year 2611


class Settings(BaseModel):
    """Base of all settings: they are frozen, an unknown name is an error, and every error is a `ConfigError`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True, hide_input_in_errors=True
    )

    if not TYPE_CHECKING:  # type checkers see the constructor that pydantic describes to them

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                found = "; ".join(_error_text(item, type(self)) for item in error.errors(include_url=False))
                raise ConfigError(f"{type(self).__name__}: {found}") from None  # it has all that pydantic says

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Make a settings object from keyword arguments whose names a type checker does not know.

        Raises:
            ConfigError: a name is not a setting, or a value is out of its range. The message lists all of them.
        """
        return cls(**values)

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation in {int, float, int | None}:
            raise ValueError("give a number")
        return value

    @field_validator("consume_from_where", "message_model", mode="before", check_fields=False)
    @classmethod
    def _check_name(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept the name of a member as text, as files and variables have it, also RocketMQ's longer form of it."""
        if not isinstance(value, str):
            return value
        kind = MessageModel if info.field_name == "message_model" else ConsumeFromWhere
        name = value.upper().removeprefix("CONSUME_FROM_")
        if name not in kind.__members__:
            raise ValueError(f"give {' or '.join(f'{kind.__name__}.{each}' for each in kind.__members__)}")
        return kind[name]

    @field_validator("consume_timestamp_ms", check_fields=False)
    @classmethod
    def _check_time(cls, value: int | None) -> int | None:
        if value is not None and (value in EPOCH_SECONDS or value >= _YEAR_2286_MS):
            raise ValueError("give epoch milliseconds: not seconds, and not a date in digits, as RocketMQ takes")
        return value

    @classmethod
    def shown(cls, field: str) -> str:
        """Return the name by which users know a field."""
        return field

    @classmethod
    def place_of(cls, name: str) -> str:
        """Return where a name belongs that is not a setting of this class; `""` if it is known nowhere."""
        return place_of(name)


_WAYS_OUT: Final[Mapping[str, str]] = {
    "bootstrap": ": give host:port of a broker, or set ROCKETSHIM_BOOTSTRAP (profiles count for commands only)"
}


def _error_text(item: Any, settings: type[Settings]) -> str:
    """Describe one pydantic error in our own words: the setting, its value, the rule."""
    field = ".".join(map(str, item["loc"]))
    name = settings.shown(field) if field else ""
    match item["type"]:
        case "missing":
            return f"{name} is required{_WAYS_OUT.get(field, '')}"
        case "extra_forbidden":
            hint = advice(field, settings.model_fields, settings.place_of, settings.shown)
            return f"{name}={_safe_value(item)}: there is no such setting{hint and f'; {hint}'}"
        case "string_too_short" if not item["input"]:
            return f"{name} is empty; it is required"
        case "value_error":
            why = str(item["ctx"]["error"])
            return f"{name}={_safe_value(item)}: {why}" if name else why
        case _:
            return f"{name}={_safe_value(item)}: {item['msg']}"


def _safe_value(item: Any) -> str:
    """Return the refused value as text, with secrets hidden."""
    name = str(item["loc"][-1]) if item["loc"] else ""
    if not {"client", "producer"}.isdisjoint(item["loc"]):
        return "…"  # they may contain passwords
    return str(mask({name: item.get("input")})[name]) if name else "…"


def _levels(value: Any) -> Any:
    return DelayLevels.parse(value) if isinstance(value, str) else value


Levels = Annotated[DelayLevels, BeforeValidator(_levels)]


BOOTSTRAP_VARIABLE: Final = "ROCKETSHIM_BOOTSTRAP"
_CLIENT_VARIABLE: Final = "ROCKETSHIM_CLIENT"
_SHARED_VARIABLES: Final[Mapping[str, str]] = {
    "namespace": "ROCKETSHIM_NAMESPACE",
    "delay_levels": "ROCKETSHIM_DELAY_LEVELS",
}


def with_environment(values: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    """Return settings with those that are not given from the environment variables that the commands read, too.

    An empty variable counts as not set. `ROCKETSHIM_CLIENT` counts only if the brokers are those of
    `ROCKETSHIM_BOOTSTRAP`: other brokers must not get its passwords.

    Args:
        values: what is given; it wins.
        names: the settings that may be missing.

    Raises:
        ConfigError: `ROCKETSHIM_CLIENT` is neither a list of pairs nor of readable files.
    """
    found = dict(values)
    for name, variable in _SHARED_VARIABLES.items():
        if name in names and name not in found and (value := os.environ.get(variable)):
            found[name] = value
    bootstrap = os.environ.get(BOOTSTRAP_VARIABLE)
    if not bootstrap or "bootstrap" not in names:
        return found
    found.setdefault("bootstrap", bootstrap)
    if "client" not in found and found["bootstrap"] == bootstrap and (client := os.environ.get(_CLIENT_VARIABLE)):
        found["client"] = client_settings(client.split(), _CLIENT_VARIABLE)
    return found


class ConnectionSettings(Settings):
    """How a producer, consumer or worker connects to the cluster.

    What is not given comes from the environment variables of the commands: `ROCKETSHIM_BOOTSTRAP`,
    `ROCKETSHIM_NAMESPACE`, `ROCKETSHIM_DELAY_LEVELS`, and, with the brokers of the first, `ROCKETSHIM_CLIENT`.

    Attributes:
        bootstrap: `host:port` of at least one broker, separated by commas.
        namespace: prefix of every topic that rocketshim creates; `""` for none.
        delay_levels: the table of delay levels, or text in RocketMQ's notation.
        client: further librdkafka settings (TLS, SASL, …). They are checked and passed on.
        allow_code_settings: accept settings that run code; see `rocketshim.kafka.client_config`.
    """

    bootstrap: str = Field(min_length=1)
    namespace: str = ""
    delay_levels: Levels = Field(default_factory=DelayLevels.default)
    client: dict[str, Any] = Field(default_factory=dict)
    allow_code_settings: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_environment(cls, values: Any) -> Any:
        return with_environment(values, names=cls.model_fields) if isinstance(values, Mapping) else values

    @field_validator("bootstrap")
    @classmethod
    def _check_bootstrap(cls, value: str) -> str:
        return check_bootstrap(value)

    @classmethod
    def given(cls, settings: object, values: Mapping[str, Any], **connection: str | None) -> Self:
        """Return the settings of a client, which are given as one object or as arguments.

        Raises:
            ConfigError: both are given, or an object of another class, or see `make`.
        """
        owner = cls.__name__.removesuffix("Settings")
        if any(isinstance(value, Settings) for value in connection.values()):
            raise ConfigError(f"{owner}: give the settings object by name: settings=...")
        if settings is None:
            return cls.make(**{name: value for name, value in connection.items() if value is not None}, **values)
        if values or any(value is not None for value in connection.values()):
            raise ConfigError(f"{owner} takes settings=, or its fields as arguments, not both")
        if not isinstance(settings, cls):
            raise ConfigError(f"{owner} takes {cls.__name__} as settings=, not {type(settings).__name__}")
        return settings

    def client_config(self, required: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of a Kafka client: the defaults, then the user's, then what is required here.

        It is a consumer if `required` names its group.

        Raises:
            ConfigError: a setting of the user runs code, or has another value than is required.
        """
        return merge(
            self.client,
            defaults=defaults or {},
            required={"bootstrap.servers": self.bootstrap, **required},
            allow_code_settings=self.allow_code_settings,
        )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what `repr`, `str` and rich print, with secrets hidden."""
        for name, value in super().__repr_args__():
            yield name, mask(value) if name == "client" else value


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

    max_delay_ms: int = Field(default=40 * _DAY_MS, ge=1)
    max_message_bytes: int = Field(default=4_194_304, ge=1_024)
    delivery_timeout_ms: int = Field(default=30_000, ge=100)
    linger_ms: float = Field(default=5.0, ge=0)
    exit_timeout_ms: int = Field(default=EXIT_TIMEOUT_MS, ge=0)


class WorkerSettings(ConnectionSettings):
    """Settings of the delay-redelivery worker.

    Attributes:
        allow: logical topic names that the worker may deliver to, or prefixes with one trailing `*`. `%RETRY%g` needs
            no entry. There is no default: `*` lets the worker write to every topic.
        group: consumer group. None: `rmq.sched` of the namespace. Another name delivers everything again and needs
            `replay_everything`.
        replay_everything: confirms that another group name is intended.
        create_topics: create the schedule topics and the parking topic if they are missing.
        commit_interval_ms: how often confirmed offsets are committed, in ms. Default 200.
        max_delay_ms: a record whose due time is further away than this is parked, in ms. Default 40 days.
        memory_bytes: memory that the process stays below, in bytes, at least 256 MiB. Default 448 MiB. All queues share
            what the program and its Kafka clients leave (`buffer_bytes`); if that is used up, only a queue without a
            record fetches on. With more than 100 queues of large messages it needs more, see docs/capacity.md.
        prefetch_count: waiting records that are buffered per partition. A twentieth of it while the next record is due
            in more than 2 s. Default 5,000.
        prefetch_bytes: bytes of waiting records that are buffered per partition. Also the maximum number of bytes taken
            from one partition at a time. Default 8 MiB.
        drain_count: maximum number of records taken from one partition at a time. Default 1,000.
        max_in_flight_count: maximum number of records sent and not yet confirmed. Default 20,000. Not used with
            `exactly_once`: a transaction has 5,000 records at most.
        max_in_flight_bytes: maximum bytes of records sent and not yet confirmed. Default 64 MiB; at most a third of
            `buffer_bytes`, which is 42 MiB by default. Not used with
            `exactly_once`.
        target_patience_ms: how long a target may take to accept a record before the record is re-appended, in ms. It
            takes longer while the brokers are slow, and while they throttle the worker. Default 2 s.
        target_tries: how many times a record is re-appended before it is parked. Default 5.
        hop_timeout_ms: how long librdkafka tries to store a hop, in ms. Default 30 s.
        exactly_once: consume and produce in Kafka transactions. Default: at least once.
        instance: part of the `transactional.id` that distinguishes the workers of one group. With a stable name, a
            restarted worker immediately aborts the transaction that it left open. None: host name and a random part.
            Used with `exactly_once` only.
        transaction_timeout_ms: the broker aborts a transaction after this time, in ms. Each transactional call may take
            two thirds of it, so it must be longer than a broker takes to fence a dead broker (9 s by default). Default
            15 s.
        stop_timeout_ms: how long a stop waits for hops in flight, in ms. Default 10 s.
    """

    allow: tuple[str, ...] = Field(min_length=1)
    group: str | None = None
    replay_everything: bool = False
    create_topics: bool = True
    commit_interval_ms: int = Field(default=200, ge=1)
    max_delay_ms: int = Field(default=40 * _DAY_MS, ge=1)
    memory_bytes: int = Field(default=448 * _MIB, ge=256 * _MIB)
    prefetch_count: int = Field(default=5_000, ge=1)
    prefetch_bytes: int = Field(default=8 * _MIB, ge=1)
    drain_count: int = Field(default=1_000, ge=1)
    max_in_flight_count: int = Field(default=20_000, ge=1)
    max_in_flight_bytes: int = Field(default=64 * _MIB, ge=1)
    target_patience_ms: int = Field(default=2_000, ge=1)
    target_tries: int = Field(default=5, ge=0)
    hop_timeout_ms: int = Field(default=30_000, ge=100)
    exactly_once: bool = False
    instance: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,120}$")
    transaction_timeout_ms: int = Field(default=15_000, ge=1_000)
    stop_timeout_ms: int = Field(default=10_000, ge=0)

    @property
    def buffer_bytes(self) -> int:
        """How many bytes of records all queues may hold together: a record in flight is there a second time."""
        return (self.memory_bytes - _WORKER_BYTES) // 2

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.group not in {None, TopicNames(self.namespace).worker_group} and not self.replay_everything:
            raise ValueError(
                f"group {self.group!r} is not the worker group of the namespace, so it would deliver everything in the "
                "schedule topic again; leave group out, or set replay_everything if you intend that"
            )
        return self


class PushConsumerOptions(TypedDict, total=False):
    """The names of `PushConsumerSettings` that are keyword arguments of `PushConsumer`, for editors and type checkers.

    `PushConsumerSettings` documents the meaning, range and default of each.
    """

    namespace: str
    delay_levels: DelayLevels | str
    client: dict[str, Any]
    allow_code_settings: bool
    message_model: MessageModel
    allocate_message_queue_strategy: AllocateMessageQueueStrategy | None
    client_id: str | None
    offset_store_dir: str | None
    rebalance_interval_ms: int
    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int | None
    young_queue_max_messages: int
    consume_thread_min: int
    consume_thread_max: int
    async_concurrency: int
    consume_message_batch_max_size: int
    max_reconsume_times: int
    max_process_deaths: int
    consume_timeout_ms: int
    consume_concurrently_max_span: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue_bytes: int
    pull_threshold_for_topic: int
    pull_threshold_size_for_topic_bytes: int
    filter_support_retry: bool
    pull_interval_ms: int
    pull_batch_size: int
    persist_consumer_offset_interval_ms: int
    retry_policy: RetryPolicy
    send_on_timeout_ms: int
    fail_stack: bool
    create_topics: bool
    hop_timeout_ms: int
    hop_back_off_ms: int
    revoke_drain_ms: int
    suspend_current_queue_time_ms: int
    order: Literal["queue", "key"]
    order_by_key_max_span: int
    lock_lease_ms: int
    lock_hold_ms: int
    lock_renew_ms: int
    exit_timeout_ms: int


class ListenerOptions(TypedDict, total=False):
    """The names of the options of `PushConsumer.listener`, which documents them, for editors and type checkers."""

    tags: str | None
    sql: str | None
    selector: Any
    orderly: bool
    dead_on: ExceptionTypes | None
    retry_on: ExceptionTypes | None
    body: type[Any] | None
    codec: Codec[Any] | None


class PushConsumerSettings(ConnectionSettings):
    """Settings of a `PushConsumer`; names and defaults as in RocketMQ's `DefaultMQPushConsumer`, where it has them.

    Attributes:
        group: the consumer group.
        message_model: `CLUSTERING` (default) or `BROADCASTING`, or its name as text. In broadcasting every member gets
            every message, failed messages are dropped (orderly listeners: at their limit), and offsets are stored in a
            local file.
        client_id: this member's name. None: `host@pid@n`; in broadcasting `host@DEFAULT`, because offsets are stored
            under this name. There it must stay the same after a restart, and each process needs its own.
        offset_store_dir: directory of the offsets in broadcasting. None: `~/.rocketshim_offsets`.
        allocate_message_queue_strategy: how queues are allocated to members; the same in the whole group. None
            (default): Kafka's group protocol. With a strategy, each member computes the allocation from the members in
            the group log, and consumes the queues that it has a lease of (`lock_lease_ms` and the settings after it).
        rebalance_interval_ms: how often topics and queues are looked up where Kafka does not announce changes
            (broadcasting, patterns, strategies), in ms. Default 20 s.
        consume_from_where: where a group starts on a topic that it has never consumed. Default: at the end of each
            queue, but at the start of a young queue (`LAST_OFFSET`). A member's name as text is accepted, too.
        consume_timestamp_ms: epoch ms, for `ConsumeFromWhere.TIMESTAMP`. None: 30 minutes before the consumer is made.
        young_queue_max_messages: with `LAST_OFFSET`, a queue from which nothing was ever deleted, and which has at most
            this number of messages, is young: a new group begins at its start. 0: none is. It has no meaning in
            broadcasting. Default 10,000 (RocketMQ: while the first message is in the broker's memory).
        consume_thread_min: number of listener threads, 1 to 1,000. Default 20.
        consume_thread_max: upper bound of `update_core_pool_size`, 1 to 1,000, at least `consume_thread_min`. As in
            RocketMQ, the pool never grows beyond the minimum by itself. Default 1,000 (RocketMQ: 20).
        async_concurrency: maximum number of concurrent calls of `async def` listeners, 1 to 10,000. The thresholds of a
            queue limit it, too. Default 100.
        consume_message_batch_max_size: maximum number of messages of one listener call, 1 to 1,024. If it is above 1,
            the listener gets lists. Default 1.
        max_reconsume_times: retries before a message becomes a dead letter. -1 (default): 16, so a message is
            delivered 17 times; in orderly mode -1 means without limit. 0: the first failure is final. Other negative
            numbers are taken literally.
        max_process_deaths: number of processes that may die while a message is in progress (killed for its memory, a
            segmentation fault), 2 to 1,000, before it counts as failed, with the cause `ProcessDied` and that number
            of attempts. With the first one other messages may have been in progress; with the others it is alone.
            Default 3.
        consume_timeout_ms: how long one listener call may take before its message is sent back, in ms. Default 15 min.
        consume_concurrently_max_span: maximum distance in offsets between the oldest unfinished message and the newest
            message, 1 to 65,535. Default 2,000.
        pull_threshold_for_queue: messages buffered per queue, 1 to 65,535. Default 1,000.
        pull_threshold_size_for_queue_bytes: bytes of bodies buffered per queue, 1 to 1 GiB. Default 100 MiB.
        pull_threshold_for_topic: messages buffered over all queues, 1 to 6,553,500. It is divided evenly among the
            assigned queues and replaces `pull_threshold_for_queue`. -1 (default): off.
        pull_threshold_size_for_topic_bytes: the same for bytes of bodies, up to 100 GiB. -1 (default): off.
        filter_support_retry: whether SQL filters are evaluated again for retried messages; tags never are. A retried
            message that no longer matches is finished. Default no (RocketMQ: a setting of the broker, also off).
        pull_interval_ms: pause between two fetches of up to `pull_batch_size` messages, 0 to 65,535 ms, over all
            queues. Up to two more messages a second may arrive, because the consumer must poll to stay in the group.
            Default 0.
        pull_batch_size: maximum number of messages of one fetch, 1 to 1,024. Default 1,000 (RocketMQ: 32). The messages
            are already in this process, so a larger fetch only saves calls.
        persist_consumer_offset_interval_ms: how often offsets are committed, in ms. Default 5 s. Orderly consumers with
            locks commit at least every 0.5 s.
        retry_policy: how long to wait before the next attempt if the listener does not choose a delay. Default: the
            level table, from level 3 on.
        send_on_timeout_ms: how long a retried message is sent on that this member cannot handle, while another one may
            (it has no listener for the topic, or cannot decode the body), in ms. Then it is a dead letter. 0:
            immediately. Default one day.
        fail_stack: write the stack trace of an exception (at most 2 KiB of file names, lines and source, without texts)
            into the header `FAIL_STACK` of the retry or dead letter. Default yes.
        create_topics: create the group's retry and dead-letter topics if they are missing, and the topics of listeners
            if the cluster creates topics when they are used.
        hop_timeout_ms: how long librdkafka tries to store a retry or dead letter, in ms. Default 30 s.
        hop_back_off_ms: pause before a retry or dead letter that was not stored is sent again, in ms. Default 5 s.
        revoke_drain_ms: how long a rebalance waits for running listener calls, in ms. Default 3 s.
        suspend_current_queue_time_ms: orderly mode: pause before a failed message is tried again, in ms, 10 to 30,000.
            Default 1 s.
        order: orderly mode: the scope of the order. `"queue"` (default, as in RocketMQ), or `"key"`: a failing message
            delays only messages with the same key.
        order_by_key_max_span: with `order="key"`, maximum distance in offsets between the oldest unfinished message and
            the newest message, 1 to 1,000,000. It limits how far other messages run ahead of a failing one, and how
            many messages are repeated after a crash. Default 65,535.
        lock_lease_ms: how long the group log reserves a queue for its owner, in ms; above `lock_hold_ms`, at most a
            day, the same in the whole group. Default 60 s.
        lock_hold_ms: how long the owner relies on a lock, in ms; above `lock_renew_ms`. Default 30 s.
        lock_renew_ms: time between two renewals of a lock, in ms. Default 20 s.
        exit_timeout_ms: how long the exit of the interpreter waits for a consumer that was not stopped to finish its
            messages and to leave the group, in ms. 0: it does not stop it. Default 10 s.
    """

    group: str = Field(min_length=1)
    message_model: MessageModel = MessageModel.CLUSTERING
    allocate_message_queue_strategy: AllocateMessageQueueStrategy | None = None
    client_id: str | None = Field(default=None, min_length=1, max_length=255)
    offset_store_dir: str | None = Field(default=None, min_length=1)
    rebalance_interval_ms: int = Field(default=20_000, ge=10)
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int | None = Field(default=None, ge=0)
    young_queue_max_messages: int = Field(default=10_000, ge=0)
    consume_thread_min: int = Field(default=20, ge=1, le=1_000)
    consume_thread_max: int = Field(default=1_000, ge=1, le=1_000)
    async_concurrency: int = Field(default=100, ge=1, le=10_000)
    consume_message_batch_max_size: int = Field(default=1, ge=1, le=1_024)
    max_reconsume_times: int = -1
    max_process_deaths: int = Field(default=3, ge=2, le=1_000)
    consume_timeout_ms: int = Field(default=900_000, ge=1)
    consume_concurrently_max_span: int = Field(default=2_000, ge=1, le=65_535)
    pull_threshold_for_queue: int = Field(default=1_000, ge=1, le=65_535)
    pull_threshold_size_for_queue_bytes: int = Field(default=100 * _MIB, ge=1, le=1_024 * _MIB)
    pull_threshold_for_topic: int = Field(default=-1, ge=-1, le=6_553_500)
    pull_threshold_size_for_topic_bytes: int = Field(default=-1, ge=-1, le=102_400 * _MIB)
    filter_support_retry: bool = False
    pull_interval_ms: int = Field(default=0, ge=0, le=65_535)
    pull_batch_size: int = Field(default=1_000, ge=1, le=1_024)
    persist_consumer_offset_interval_ms: int = Field(default=5_000, ge=1)
    retry_policy: RetryPolicy = Field(default_factory=LevelTableRetryPolicy)
    send_on_timeout_ms: int = Field(default=SEND_ON_TIMEOUT_MS, ge=0)
    fail_stack: bool = True
    create_topics: bool = True
    hop_timeout_ms: int = Field(default=30_000, ge=100)
    hop_back_off_ms: int = Field(default=5_000, ge=1)
    revoke_drain_ms: int = Field(default=3_000, ge=0, le=60_000)
    suspend_current_queue_time_ms: int = Field(default=1_000, ge=10, le=30_000)
    order: Literal["queue", "key"] = "queue"
    order_by_key_max_span: int = Field(default=65_535, ge=1, le=1_000_000)
    lock_lease_ms: int = Field(default=60_000, ge=1)
    lock_hold_ms: int = Field(default=30_000, ge=1)
    lock_renew_ms: int = Field(default=20_000, ge=1)
    exit_timeout_ms: int = Field(default=EXIT_TIMEOUT_MS, ge=0)

    @property
    def lock_settings(self) -> QueueLockSettings:
        """Return the times of queue locks."""
        return QueueLockSettings(self.lock_lease_ms, self.lock_hold_ms, self.lock_renew_ms)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_consumer_group(self.group)
        _ = self.lock_settings  # raises if the times do not fit together
        check_policy(self.retry_policy, self.max_reconsume_times)
        if self.consume_thread_max < self.consume_thread_min:
            raise ValueError(
                f"consume_thread_max={self.consume_thread_max} is below consume_thread_min={self.consume_thread_min}"
            )
        strategy: object = self.allocate_message_queue_strategy
        if isinstance(strategy, type):
            name = strategy.__name__
            raise ValueError(f"allocate_message_queue_strategy={name} is a class: pass an object, {name}()")  # noqa: TRY004 - pydantic expects a ValueError
        problem = "" if strategy is None else call_problem(getattr(strategy, "allocate", None), 4)
        if problem:
            raise ValueError(
                f"allocate_message_queue_strategy: {problem}; it is allocate(self, group, client_id, queues, ids)"
            )
        if self.allocate_message_queue_strategy is not None and self.message_model is MessageModel.BROADCASTING:
            raise ValueError(
                "allocate_message_queue_strategy has no meaning in BROADCASTING: every member reads every queue"
            )
        for name in ("pull_threshold_for_topic", "pull_threshold_size_for_topic_bytes"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name}=0: no queue would ever be read; use -1 for no limit")
        return self


class LitePullConsumerOptions(TypedDict, total=False):
    """The names of `LitePullConsumerSettings` that are keyword arguments of `LitePullConsumer`."""

    namespace: str
    delay_levels: DelayLevels | str
    client: dict[str, Any]
    allow_code_settings: bool
    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int | None
    young_queue_max_messages: int
    auto_commit: bool
    auto_commit_interval_ms: int
    poll_timeout_ms: int
    pull_batch_size: int
    topic_metadata_check_interval_ms: int
    exit_timeout_ms: int


class LitePullConsumerSettings(ConnectionSettings):
    """Settings of a `LitePullConsumer`; names and defaults are those of RocketMQ's `DefaultLitePullConsumer`.

    Attributes:
        group: the consumer group.
        consume_from_where: where a group starts on a topic that it has never consumed. Default: at the end of each
            queue, but at the start of a young queue (`LAST_OFFSET`). A member's name as text is accepted, too.
        consume_timestamp_ms: epoch ms, for `ConsumeFromWhere.TIMESTAMP`. None: 30 minutes before the consumer is made.
        young_queue_max_messages: with `LAST_OFFSET`, a queue from which nothing was ever deleted, and which has at most
            this number of messages, is young: a new group begins at its start. 0: none is. Default 10,000.
        auto_commit: commit what earlier polls have returned. False: only `commit_sync` commits, but where a new group
            begins is committed in any case. Default True.
        auto_commit_interval_ms: how often, in ms; at least 1,000. Default 5 s.
        poll_timeout_ms: how long `poll` waits for a message if the caller gives no timeout, in ms. Default 5 s.
        pull_batch_size: maximum number of messages of one `poll`, 1 to 1,024. Default 10.
        topic_metadata_check_interval_ms: how often the queues of topics are looked up for registered change listeners,
            in ms. Default 30 s.
        exit_timeout_ms: how long the exit of the interpreter waits for a consumer that was not stopped to leave the
            group, in ms. 0: it does not stop it. Default 10 s.
    """

    group: str = Field(min_length=1)
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int | None = Field(default=None, ge=0)
    young_queue_max_messages: int = Field(default=10_000, ge=0)
    auto_commit: bool = True
    auto_commit_interval_ms: int = Field(default=5_000, ge=1_000)
    poll_timeout_ms: int = Field(default=5_000, ge=0)
    pull_batch_size: int = Field(default=10, ge=1, le=1_024)
    topic_metadata_check_interval_ms: int = Field(default=30_000, ge=1)
    exit_timeout_ms: int = Field(default=EXIT_TIMEOUT_MS, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_consumer_group(self.group)
        return self


class PullConsumerOptions(TypedDict, total=False):
    """The names of `PullConsumerSettings` that are keyword arguments of `PullConsumer`."""

    namespace: str
    delay_levels: DelayLevels | str
    client: dict[str, Any]
    allow_code_settings: bool
    consumer_pull_timeout_ms: int
    broker_suspend_max_time_ms: int


class PullConsumerSettings(ConnectionSettings):
    """Settings of a `PullConsumer`; names and defaults are those of RocketMQ's `DefaultMQPullConsumer`.

    Attributes:
        group: the consumer group whose offsets `update_consume_offset` and `fetch_consume_offset` write and read.
        consumer_pull_timeout_ms: how long `pull` waits for the cluster's answer, in ms. Default 10 s.
        broker_suspend_max_time_ms: how long `pull_block_if_not_found` waits for a message, in ms. Default 20 s.
    """

    group: str = Field(min_length=1)
    consumer_pull_timeout_ms: int = Field(default=10_000, ge=1)
    broker_suspend_max_time_ms: int = Field(default=20_000, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_consumer_group(self.group)
        return self


_PLACES: Final[tuple[tuple[str, Collection[str]], ...]] = (
    ("is a setting of the consumer: PushConsumer(…, {}=…)", PushConsumerSettings.model_fields),
    ("is an option of a listener: @consumer.listener(topic, {}=…)", ListenerOptions.__annotations__),
    ("is a setting of the producer: Producer(…, {}=…)", ProducerSettings.model_fields),
    ("is a setting of LitePullConsumer(…, {}=…)", LitePullConsumerSettings.model_fields),
    ("is a setting of PullConsumer(…, {}=…)", PullConsumerSettings.model_fields),
    ("is an option of a message: send(topic, body, {}=…)", {each.name for each in fields(Message) if each.kw_only}),
    ("is a setting of the worker: WorkerSettings(…, {}=…)", WorkerSettings.model_fields),
)
"""Where each option belongs; of a name with several places, the first one."""


def place_of(name: str) -> str:
    """Return where an option or setting belongs, for one that was given elsewhere; `""` if it is known nowhere."""
    place = next((text for text, names in _PLACES if name in names), None)
    return kafka_hint(name) if place is None else f"{name} {place.format(name)}"


def check_listener_options(options: Mapping[str, object]) -> None:
    """Raise a ConfigError if an option of a listener does not exist, or `orderly` is neither True nor False."""
    check_options("a listener", options, ListenerOptions.__annotations__, place_of)
    orderly = options.get("orderly", False)
    if not isinstance(orderly, bool):
        raise ConfigError(f"orderly={orderly!r:.80}: give True or False")
