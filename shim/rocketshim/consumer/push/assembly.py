"""Builds what a push consumer runs: checks the topics, opens the offset store, and makes the poll loop and its pool.

Nothing is kept here: what `build` returns belongs to the consumer. After an error everything that was opened is closed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from rocketshim.consumer.dispatch import ChunkDispatch
from rocketshim.consumer.listener import ChunkRunner
from rocketshim.consumer.loop_parts import LoopParts
from rocketshim.consumer.orderly.mode import OrderlyMode
from rocketshim.consumer.orderly.queues import OrderlyCounts, OrderlyDispatch, OrderlyQueues
from rocketshim.consumer.orderly.runner import OrderlyRunner
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.pool import ListenerPool
from rocketshim.consumer.push.async_listener import AsyncPool, AsyncRunner
from rocketshim.consumer.push.concurrent import ConcurrentMode
from rocketshim.consumer.push.config import connection, consumer_config, flow_limits, producer_config
from rocketshim.consumer.push.group_topics import GroupTopics
from rocketshim.consumer.push.hooks import Hooks
from rocketshim.consumer.queues import AssignedQueues
from rocketshim.consumer.reader.local_offsets import LocalOffsetStore, offset_folder, stable_client_id
from rocketshim.consumer.reader.partition_assigner import LeasedAssigner, PartitionAssigner, TopicAssigner
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.allocate import Allocation
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.core.message_model import MessageModel
from rocketshim.core.orderly_partition import OrderlyPartition
from rocketshim.core.ownership import Ownership
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.core.start_position import StartRules
from rocketshim.core.subscriptions import Subscriptions
from rocketshim.group.connect import connect_group_log, new_client_id
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.client_config import PROTECTED_CONSUMER
from rocketshim.kafka.clients import Clients, ConsumerClient, LastClientError, explained
from rocketshim.kafka.membership import MemberCheck
from rocketshim.kafka.queue_lookup import cluster_errors
from rocketshim.kafka.topic_id import TopicId
from rocketshim.settings import PushConsumerSettings
from rocketshim_topics import TopicNames
from rocketshim_topics.names import retry_topic

__all__ = ["PushAssembly", "PushParts", "concurrent_loop", "orderly_loop"]

_CLUSTER_ID_S: Final = 10.0
_ORDERLY_COMMIT_MS: Final = 500


@dataclass(frozen=True, slots=True)
class PushParts:
    """What a push consumer runs; the loop is not open."""

    loop: PollLoop[Any]
    pool: ListenerPool[Any, Any] | AsyncPool
    orderly_counts: OrderlyCounts
    store: LocalOffsetStore | None  # None: offsets are in Kafka
    topics: GroupTopics | None  # None: there is no admin client

    def close(self) -> None:
        """Release what the loop does not own: the local offset file, and the admin client, which has a thread."""
        if self.store is not None:
            self.store.close()
        if self.topics is not None:
            self.topics.close()


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
    def _retry_topic(self) -> str:
        return self.names.retry(self.settings.group)

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

    def build(self) -> PushParts:
        """Check and create the group's topics, and make the parts.

        Raises:
            TopicMissingError, TopicMismatchError, NotAuthorizedError, BrokerUnavailableError, ConsumerError,
            OffsetStoreError: the cluster or the offset store does not meet the requirements; nothing is open.
        """
        admin, topics, lanes = self._prepare()
        store = self._open_store(admin) if self._broadcasts else None
        try:
            return self._make(admin, topics, lanes, store)
        except BaseException:
            if store is not None:
                store.close()
            raise

    def _prepare(self) -> tuple[Any, GroupTopics | None, int]:
        """Create and check the topics that the consumer needs; return admin client, topics and the number of lanes."""
        if self.clients.admin is None:
            return None, None, 1
        settings, named = self.settings, self.subscriptions.named()
        last_error = LastClientError()
        admin = self.clients.admin(connection(settings, defaults=last_error.settings))
        topics = GroupTopics(admin, self.names, settings.group, create=settings.create_topics)
        with explained(last_error, admin):
            if self._broadcasts:
                topics.look_up(named)
                return admin, topics, 1
            topics.ensure(settings.delay_levels, with_log=self._needs_log)
            return admin, topics, topics.look_up_with_lanes(named)

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

    def _make(self, admin: Any, topics: GroupTopics | None, lanes: int, store: LocalOffsetStore | None) -> PushParts:
        settings, clock = self.settings, self.clock
        ownership = Ownership(now_ms_of(clock), needs_lease=self._needs_log, is_fenced=self._orderly)
        log = self._connect_log(admin) if self._needs_log else None
        pool = self._make_pool()
        reader = PartitionReader(
            make_consumer=lambda on_commit: self.clients.consumer(
                consumer_config(settings, orderly=self._orderly, on_commit=on_commit)
            ),
            make_lookup_client=self._make_lookup_client,
            rules=StartRules(
                self._retry_topic,
                settings.consume_from_where,
                self.timestamp_ms,
                self.subscriptions.digest(),
                self.subscriptions.text(),
                young_max=0 if self._broadcasts else settings.young_queue_max_messages,
            ),
            ownership=ownership,
            now_ms=now_ms_of(clock),
            store=store,
            assigner=self._make_assigner(log, ownership),
        )
        parts = LoopParts(
            reader=reader,
            source=self.subscriptions,
            pool=pool,
            send_back=self._make_send_back(lanes),
            settings=settings,
            limits=flow_limits(settings, orderly=self._orderly),
            clock=clock,
            log=log,
            membership=self._make_membership(admin),
        )
        if not self._orderly:
            return PushParts(concurrent_loop(parts), pool, OrderlyCounts(), store, topics)
        loop, counts = orderly_loop(parts)
        return PushParts(loop, pool, counts, store, topics)

    def _make_membership(self, admin: Any) -> MemberCheck | None:
        """Return what detects an empty assignment in KIP-848, where Kafka's client calls no callback for it."""
        is_new_protocol = str(self.settings.client.get("group.protocol", "classic")).lower() == "consumer"
        return MemberCheck(admin, self.settings.group) if is_new_protocol and admin is not None else None

    def _make_lookup_client(self) -> ConsumerClient:
        """Make a client that joins no group and fetches nothing."""
        settings = self.settings
        return self.clients.consumer(connection(settings, {**PROTECTED_CONSUMER, "group.id": settings.group}))

    def _connect_log(self, admin: Any) -> GroupLogThread:
        settings = self.settings
        strategy = settings.allocate_message_queue_strategy
        return connect_group_log(
            settings,
            settings.group,
            client_id=settings.client_id or new_client_id(),
            lock_settings=settings.lock_settings,
            topics=self.subscriptions.topics,
            clients=self.clients,
            clock=self.clock,
            admin=admin,
            strategy=None if strategy is None else strategy.name,
        )

    def _make_assigner(self, log: GroupLogThread | None, ownership: Ownership) -> PartitionAssigner | None:
        settings, topics = self.settings, self.subscriptions.topics
        if self._broadcasts:
            return TopicAssigner(topics, settings.rebalance_interval_ms)
        strategy = settings.allocate_message_queue_strategy
        if strategy is None or log is None:
            return None
        logical = {self._retry_topic: retry_topic(settings.group)}
        allocation = Allocation(strategy, settings.group, log.owner.client_id, logical)
        assigner = TopicAssigner(topics, settings.rebalance_interval_ms, allocation, lambda: log.members)
        return assigner if self._orderly else LeasedAssigner(assigner, log, ownership)  # orderly queues lease later

    def _make_send_back(self, lanes: int) -> SendBack:
        settings = self.settings
        return SendBack(
            None if self._broadcasts else lambda: self.clients.producer(producer_config(settings)), settings, lanes
        )

    def _make_pool(self) -> ListenerPool[Any, Any] | AsyncPool:
        settings, name = self.settings, f"rocketshim-listener-{self.settings.group}"
        if not self.subscriptions.awaits:
            pool: ListenerPool[Any, Any] = self.make_pool(self._make_runner(), settings.consume_thread_min, name)
            return pool
        batch_count = settings.consume_message_batch_max_size
        find = self.hooks.wrap(self.subscriptions.get, awaits=True)
        runner = AsyncRunner(
            settings.group, find, self._retry_topic, batch_count, self.clock, fail_stack=settings.fail_stack
        )
        lists = batch_count > 1
        return AsyncPool(runner, settings.async_concurrency, name, lists=lists, loop=self.event_loop)

    def _make_runner(self) -> Callable[[Any], Any]:
        settings, find = self.settings, self.hooks.wrap(self.subscriptions.get, awaits=False)
        batch_count = settings.consume_message_batch_max_size
        if not self._orderly:
            return ChunkRunner(
                settings.group, find, self._retry_topic, batch_count, self.clock, fail_stack=settings.fail_stack
            ).run
        return OrderlyRunner(
            settings.group,
            find,
            self._retry_topic,
            batch_count=batch_count,
            clock=self.clock,
            levels=settings.delay_levels,
            fail_stack=settings.fail_stack,
        ).run


def concurrent_loop(parts: LoopParts) -> PollLoop[ProcessQueue[Any]]:
    """Make the loop of a concurrent consumer."""
    batch_count = parts.settings.consume_message_batch_max_size
    dispatch = ChunkDispatch(parts.pool, batch_count, parts.send_back, parts.reader.now_ms, parts.clock.wall_ms)
    queues: AssignedQueues[ProcessQueue[Any]] = AssignedQueues(
        lambda key, epoch: ProcessQueue(*key, epoch), dispatch, parts
    )
    return PollLoop(parts, dispatch, queues, ConcurrentMode(parts, queues, dispatch))


def orderly_loop(parts: LoopParts) -> tuple[PollLoop[OrderlyPartition], OrderlyCounts]:
    """Make the loop of an orderly consumer, and its counts. It commits often, since a crash repeats what it did not."""
    if parts.log is not None:
        often_ms = min(parts.settings.persist_consumer_offset_interval_ms, _ORDERLY_COMMIT_MS)
        often = parts.settings.model_copy(update={"persist_consumer_offset_interval_ms": often_ms})
        parts = replace(parts, settings=often)
    batch_count = parts.settings.consume_message_batch_max_size
    dispatch = OrderlyDispatch(parts.pool, batch_count, parts.send_back, parts.reader.now_ms, parts.clock.wall_ms)
    made = OrderlyQueues(parts)
    queues = AssignedQueues(made.make, dispatch, parts)
    return PollLoop(parts, dispatch, queues, OrderlyMode(parts, queues, dispatch, made)), made.counts
