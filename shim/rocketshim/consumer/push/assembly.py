"""Builds what a push consumer runs: checks the topics, opens the offset store, and makes the poll loop and its pool.

Nothing is kept here: what `build` returns belongs to the consumer. After an error everything that was opened is closed.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from rocketshim.consumer.concurrent import AsyncPool, ConcurrentDispatch, ConcurrentMode, ConcurrentRunner
from rocketshim.consumer.dispatch import ListenerPool, Pool
from rocketshim.consumer.orderly import OrderlyDispatch, OrderlyMode, OrderlyRunner
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.push.hooks import Hooks
from rocketshim.consumer.reader.joining import Joining
from rocketshim.consumer.reader.local_offsets import PROCESS_VARIABLE, LocalOffsetStore, offset_folder, stable_client_id
from rocketshim.consumer.reader.partition_assigner import LeasedAssigner, TopicAssigner
from rocketshim.consumer.reader.partition_reader import OnCommit, PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.allocate import Allocation
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.core.message_model import MessageModel
from rocketshim.core.partition import FlowLimits
from rocketshim.core.process_deaths import CarefulStart
from rocketshim.core.start_position import StartRules
from rocketshim.core.subscriptions import Subscriptions
from rocketshim.errors import ConsumerError, TopicMissingError
from rocketshim.kafka.client_config import (
    CONSUMER_DEFAULTS,
    KAFKA_SESSION_MS,
    METADATA_REFRESH,
    PROTECTED_CONSUMER,
    PROTECTED_PRODUCER,
)
from rocketshim.kafka.clients import Clients, ConsumerClient, LastClientError, answer_time_s, brokers_assign, explained
from rocketshim.kafka.membership import RUN_WORKER, GroupQuestion, worker_watch
from rocketshim.kafka.queue_lookup import cluster_errors, no_such_topics
from rocketshim.kafka.topic_id import TopicId
from rocketshim.locks.lease import Ownership
from rocketshim.locks.log_thread import GroupLogThread, connect_group_log
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.names import init_command, retry_topic

__all__ = ["GroupTopics", "PushAssembly", "producer_config"]

_LOG = safe_logger("rocketshim.consumer")
_CLUSTER_ID_S: Final = 10.0
_CAREFUL_WINDOW: Final = 64
_SESSION_MIN_MS: Final = 6_000  # the broker's default minimum
_HEARTBEAT_MS: Final = 500  # members learn of a departure by heartbeat: a clean stop hands over within 1 s


class GroupTopics:
    """Looks up topics for a group; creates missing ones if the settings and the cluster allow it. Thread-safe."""

    def __init__(self, admin: Any, settings: PushConsumerSettings) -> None:
        self._admin = admin
        self._group = settings.group
        self._create = settings.create_topics

    def close(self) -> None:
        """Release the admin client: an error may keep this object alive. Nothing can be looked up any more."""
        self._admin = None

    def look_up(self, needed: list[str], *others: str) -> dict[str, int]:
        """Return the partition counts of the needed topics, and of those other topics that exist.

        Raises TopicMissingError: a needed topic does not exist; ConsumerError: the cluster did not answer.
        """
        try:
            found = provision.read_topics(self._admin, [*others, *needed])
            missing = [name for name in needed if name not in found]
            if missing and self._create and provision.create_on_use(self._admin, missing):
                _LOG.warning("consumer.topics-created", extra={"group": self._group, "topics": missing})
                return self.look_up(needed, *others)
        except KafkaException as error:
            raise ConsumerError(f"the topics of group {self._group!r} could not be looked up: {error}") from error
        if missing:
            raise no_such_topics(missing)
        return {name: state.partitions for name, state in found.items()}


@dataclass(frozen=True, slots=True)
class PushAssembly:
    """Builds the parts of one push consumer.

    `timestamp_ms` (epoch ms) is for `ConsumeFromWhere.TIMESTAMP`. Without an `event_loop`, `async def` listeners get a
    new one. `make_pool` makes the pool of the other listeners from what runs a chunk, its size, and a name, because a
    simulation runs listeners in turns instead of in threads.
    """

    settings: PushConsumerSettings
    names: TopicNames
    subscriptions: Subscriptions
    hooks: Hooks
    clients: Clients
    clock: Clock
    timestamp_ms: int
    event_loop: asyncio.AbstractEventLoop | None = None
    make_pool: Callable[[Callable[[Any], Any], int, str], Any] = ListenerPool

    @property
    def _orderly(self) -> bool:
        return bool(self.subscriptions.orderly)

    @property
    def _broadcasts(self) -> bool:
        return self.settings.message_model is MessageModel.BROADCASTING

    @property
    def _needs_log(self) -> bool:
        """Return whether queues have locks or leases; a broadcast consumer reads every queue, so it needs none."""
        allocates = self.settings.allocate_message_queue_strategy is not None
        return (self._orderly or allocates) and not self._broadcasts

    @property
    def _careful_window(self) -> int:
        """Return how many messages may be noted: enough for every listener thread to have one while a commit runs."""
        size = self.settings.async_concurrency if self.subscriptions.awaits else self.settings.consume_thread_min
        return min(2 * size, _CAREFUL_WINDOW)

    def build(self) -> tuple[PollLoop, GroupTopics | None]:
        """Check and create the group's topics; return the loop, not open, and what looks up topics.

        If the cluster or the offset store does not meet the requirements, this is an error, and nothing is open.
        """
        opened = ExitStack()
        try:
            admin, topics, lanes = self._prepare()
            if topics is not None:
                opened.callback(topics.close)
            store = self._open_store(admin) if self._broadcasts else None
            if store is not None:
                opened.callback(store.close)
            return self._make(admin, lanes, store, opened), topics
        except BaseException:
            opened.close()
            raise

    def _prepare(self) -> tuple[Any, GroupTopics | None, int]:
        """Create and check the topics that the consumer needs; return admin client, topics and the number of lanes."""
        if self.clients.admin is None:
            return None, None, 1
        settings, named, schedule = self.settings, self.subscriptions.named(), self.names.schedule
        last_error = LastClientError()
        admin = self.clients.admin(settings.client_config({}, last_error.settings))
        topics = GroupTopics(admin, settings)
        with explained(last_error, admin):
            timeout_s = answer_time_s(admin, last_error)
            if self._broadcasts:
                topics.look_up(named)
                return admin, topics, 1
            specs = Layout(self.names, settings.delay_levels).for_group(settings.group, with_log=self._needs_log)
            provision.ensure_topics(admin, specs, create=settings.create_topics, timeout_s=timeout_s)
            partitions = topics.look_up(named, schedule)
            if schedule not in partitions:  # `ensure_topics` has raised the same for the group's own topics
                raise TopicMissingError(
                    f"missing: {schedule}. Retries need it: run `{init_command(schedule)}`, and start a worker"
                )
        return admin, topics, max(1, partitions[schedule] // DelayLevels.STRIDE)

    def _open_store(self, admin: Any) -> LocalOffsetStore:
        """Open the local offset file; first ask the cluster for its id."""
        settings = self.settings
        probe = self._make_lookup_client()
        try:
            with cluster_errors(f"the topics of group {settings.group!r} could not be looked up"):
                cluster = probe.list_topics(timeout=_CLUSTER_ID_S).cluster_id
        finally:
            probe.close()

        def topic_id(topic: str) -> str:
            return "" if admin is None else TopicId(admin, topic).now() or ""

        client_id = settings.client_id or stable_client_id()
        folder = offset_folder(settings.offset_store_dir, client_id, self.names, settings.group)
        return LocalOffsetStore(folder, cluster or "", topic_id)

    def _make(self, admin: Any, lanes: int, store: LocalOffsetStore | None, opened: ExitStack) -> PollLoop:
        settings, clock, orderly = self.settings, self.clock, self._orderly
        ownership = Ownership(now_ms_of(clock), needs_lease=self._needs_log, is_fenced=orderly)
        log = None
        if self._needs_log:
            topics = self.subscriptions.topics
            log = connect_group_log(settings, topics=topics, clients=self.clients, clock=clock, admin=admin)
        question = None
        if self.clients.admin is not None and not self._broadcasts:
            question = GroupQuestion(
                self.clients.admin, settings.client_config({}, LastClientError().settings), settings.group
            )
        reader = PartitionReader(
            make_consumer=lambda on_commit: self.clients.consumer(
                _consumer_config(settings, on_commit, orderly=orderly)
            ),
            make_lookup_client=self._make_lookup_client,
            rules=StartRules(
                self.names.retry(settings.group),
                settings.consume_from_where,
                self.timestamp_ms,
                self.subscriptions.digest(),
                self.subscriptions.text(),
                young_queue_max_messages=0 if self._broadcasts else settings.young_queue_max_messages,
                allocates=settings.allocate_message_queue_strategy is not None,
                compare_every_ms=settings.rebalance_interval_ms,
            ),
            ownership=ownership,
            now_ms=now_ms_of(clock),
            store=store,
            assigner=self._make_assigner(log, ownership),
            care=CarefulStart(
                max_deaths=settings.max_process_deaths, window=self._careful_window, now_ms=now_ms_of(clock)
            ),
            joining=Joining(settings.group, _consumer_config(settings, lambda *_: None, orderly=orderly), question),
        )
        make_producer = None if self._broadcasts else lambda: self.clients.producer(producer_config(settings))
        worker = None  # retries in order need none
        if not (orderly or self._broadcasts):
            config = settings.client_config({}, LastClientError().settings)
            worker = worker_watch(self.clients.admin, config, self.names, partial(_log_no_worker, settings.group))
        send_back = SendBack(make_producer, settings, lanes, self.clock, worker)
        pool, limits = self._make_pool(), _flow_limits(settings, orderly=orderly)
        if orderly:
            ordered = OrderlyDispatch(pool, send_back, settings, clock, reader)
            return PollLoop(OrderlyMode(reader, ordered, settings, limits, log), self.subscriptions, opened.close)
        dispatch = ConcurrentDispatch(pool, send_back, settings, clock, reader)
        return PollLoop(ConcurrentMode(reader, dispatch, settings, limits), self.subscriptions, opened.close)

    def _make_lookup_client(self) -> ConsumerClient:
        """Make a client that joins no group and fetches nothing."""
        settings = self.settings
        return self.clients.consumer(settings.client_config({**PROTECTED_CONSUMER, "group.id": settings.group}))

    def _make_assigner(self, log: GroupLogThread | None, ownership: Ownership) -> TopicAssigner | None:
        settings, topics, interval_ms = self.settings, self.subscriptions.topics, self.settings.rebalance_interval_ms
        if self._broadcasts:
            return TopicAssigner(topics, interval_ms)
        strategy = settings.allocate_message_queue_strategy
        if strategy is None or log is None:
            return None
        logical = {self.names.retry(settings.group): retry_topic(settings.group)}
        allocation = Allocation(strategy, settings.group, log.owner.client_id, logical)
        if self._orderly:  # its queues get their leases later
            return TopicAssigner(topics, interval_ms, allocation, lambda: log.members)
        return LeasedAssigner(topics, interval_ms, allocation, log, ownership)

    def _make_pool(self) -> Pool:
        settings, awaits = self.settings, bool(self.subscriptions.awaits)
        name = f"rocketshim-listener-{settings.group}"
        find = self.hooks.wrap(self.subscriptions.get, awaits=awaits)
        if awaits:
            return AsyncPool(
                ConcurrentRunner(settings, find, self.clock), settings.async_concurrency, name, self.event_loop
            )
        runner = OrderlyRunner if self._orderly else ConcurrentRunner
        pool: Pool = self.make_pool(runner(settings, find, self.clock).run, settings.consume_thread_min, name)
        return pool


def _consumer_config(settings: PushConsumerSettings, on_commit: OnCommit, *, orderly: bool) -> dict[str, Any]:
    required = {
        **PROTECTED_CONSUMER,
        "group.id": settings.group,
        "auto.offset.reset": "earliest",  # if retention deleted the position: repeat, never lose
        "on_commit": on_commit,
        **({} if brokers_assign(settings.client) else {"partition.assignment.strategy": "cooperative-sticky"}),
    }
    own: dict[str, Any] = {}
    if brokers_assign(settings.client):  # a member that misses a revocation makes others wait for this time
        own = {"max.poll.interval.ms": KAFKA_SESSION_MS + settings.revoke_drain_ms}
    elif orderly:  # the queues of a dead member are reassigned when its session ends: no later than its locks do
        session_ms = min(max(settings.lock_lease_ms, _SESSION_MIN_MS), KAFKA_SESSION_MS)
        own = {"session.timeout.ms": session_ms, "heartbeat.interval.ms": _HEARTBEAT_MS}
    config = settings.client_config(required, {**CONSUMER_DEFAULTS, **own})
    instance, number = config.get("group.instance.id"), os.environ.get(PROCESS_VARIABLE, "0")
    if instance and number != "0":  # each process of a run has its own
        config["group.instance.id"] = f"{instance}-{number}"
    return config


def producer_config(settings: PushConsumerSettings) -> dict[str, Any]:
    """Return the settings of the producer that sends messages back."""
    defaults = {"client.id": "rocketshim", "linger.ms": 1, "message.max.bytes": 100_000_000, **METADATA_REFRESH}
    return settings.client_config({**PROTECTED_PRODUCER, "delivery.timeout.ms": settings.hop_timeout_ms}, defaults)


def _log_no_worker(group: str, workers: str) -> None:
    _LOG.warning("consumer.no-worker", extra={"group": group, "workers": workers, "fix": RUN_WORKER})


def _flow_limits(settings: PushConsumerSettings, *, orderly: bool) -> FlowLimits:
    span: int | None = settings.consume_concurrently_max_span
    if orderly:
        span = settings.order_by_key_max_span if settings.order == "key" else None
    return FlowLimits(
        settings.pull_threshold_for_queue,
        settings.pull_threshold_size_for_queue_bytes,
        span,
        resume_span=span if orderly else None,
    )
