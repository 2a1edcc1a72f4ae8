"""Settings of push and pull consumers, and options of listeners."""

from collections.abc import Mapping
from typing import Any, Final, Literal, Self, TypedDict

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rocketshim.at_exit import EXIT_TIMEOUT_MS
from rocketshim.codecs import Codec
from rocketshim.core.allocate import AllocateMessageQueueStrategy
from rocketshim.core.listener_answers import ExceptionTypes
from rocketshim.core.message_model import MessageModel
from rocketshim.core.next_hop import SEND_ON_TIMEOUT_MS
from rocketshim.core.retry_policy import LevelTableRetryPolicy, RetryPolicy, check_policy
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.core.user_values import call_problem
from rocketshim.errors import ConfigError
from rocketshim.locks.lease import QueueLockSettings
from rocketshim.settings import MIB, ConnectionSettings, check_options, place_of
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.limits import EPOCH_SECONDS
from rocketshim_topics.names import check_consumer_group

__all__ = [
    "ListenerOptions",
    "LitePullConsumerOptions",
    "LitePullConsumerSettings",
    "PullConsumerOptions",
    "PullConsumerSettings",
    "PushConsumerOptions",
    "PushConsumerSettings",
    "check_listener_options",
]

_YEAR_2286_MS: Final = 10**13  # 14 digits: RocketMQ's 20260101000000 would mean the year 2611


def _member(value: Any, info: ValidationInfo) -> Any:
    """Accept the name of a member as text, as files and variables have it, also RocketMQ's longer form of it."""
    if not isinstance(value, str):
        return value
    kind = MessageModel if info.field_name == "message_model" else ConsumeFromWhere
    name = value.upper().removeprefix("CONSUME_FROM_")
    if name not in kind.__members__:
        raise ValueError(f"give {' or '.join(f'{kind.__name__}.{each}' for each in kind.__members__)}")
    return kind[name]


def _epoch_ms(value: int | None) -> int | None:
    if value is not None and (value in EPOCH_SECONDS or value >= _YEAR_2286_MS):
        raise ValueError("give epoch milliseconds: not seconds, and not a date in digits, as RocketMQ takes")
    return value


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
            into the header `FAIL_STACK` of the retry or dead letter, and of a message that blocks an orderly queue into
            the group's log. Default yes.
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
    pull_threshold_size_for_queue_bytes: int = Field(default=100 * MIB, ge=1, le=1_024 * MIB)
    pull_threshold_for_topic: int = Field(default=-1, ge=-1, le=6_553_500)
    pull_threshold_size_for_topic_bytes: int = Field(default=-1, ge=-1, le=102_400 * MIB)
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

    _check_name = field_validator("consume_from_where", "message_model", mode="before")(_member)
    _check_time = field_validator("consume_timestamp_ms")(_epoch_ms)

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
            and the commits of other members for other subscriptions, in ms. Default 30 s.
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

    _check_name = field_validator("consume_from_where", mode="before")(_member)
    _check_time = field_validator("consume_timestamp_ms")(_epoch_ms)

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


def check_listener_options(options: Mapping[str, object]) -> None:
    """Raise a ConfigError if an option of a listener does not exist, or `orderly` is neither True nor False."""
    check_options("a listener", options, ListenerOptions.__annotations__, place_of)
    orderly = options.get("orderly", False)
    if not isinstance(orderly, bool):
        raise ConfigError(f"orderly={orderly!r:.80}: give True or False")
