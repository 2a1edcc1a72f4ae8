"""Makes the group-log thread of one member from its connection: client settings, owner, topic, token floor."""

import itertools
import os
import socket
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

from rocketshim.core.clock import Clock
from rocketshim.core.lease_rules import Owner
from rocketshim.core.queue_lock_settings import QueueLockSettings
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.group.token_floor import token_floor
from rocketshim.kafka.client_config import CONSUMER_ONLY, PROTECTED_CONSUMER, PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_id import TopicId
from rocketshim.settings import ConnectionSettings
from rocketshim_topics.names import TopicNames

__all__ = ["connect_group_log", "log_reader_config", "new_client_id"]

_NUMBERS: Final = itertools.count()
_OURS_TO_SAY: Final = frozenset({"linger.ms", "queue.buffering.max.ms", "delivery.timeout.ms", "message.timeout.ms"})


def new_client_id() -> str:
    """A client id as RocketMQ's: `host@pid@n`, n counting the clients of this process. Any thread."""
    return f"{socket.gethostname()}@{os.getpid()}@{next(_NUMBERS)}"


def log_reader_config(settings: ConnectionSettings, group: str) -> dict[str, Any]:
    """Settings of a consumer that reads the group's log: it joins nothing, and says so when a position is not there.

    `read_uncommitted`: nobody writes transactions there, and nobody's open one may hold the log up.
    """
    return merge(
        {key: value for key, value in settings.client.items() if not CONSUMER_ONLY.fullmatch(key)},
        defaults={
            "client.id": "rocketshim",
            "fetch.queue.backoff.ms": 10,
            "fetch.error.backoff.ms": 100,
            "fetch.wait.max.ms": 100,
        },
        required={
            **PROTECTED_CONSUMER,
            "bootstrap.servers": settings.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
        },
        allow_code_settings=settings.allow_code_settings,
    )


def connect_group_log(
    settings: ConnectionSettings,
    group: str,
    *,
    client_id: str,
    lock_settings: QueueLockSettings,
    topics: Callable[[], Iterable[str]],
    clients: Clients,
    clock: Clock,
    admin: Any = None,
    strategy: str | None = None,
) -> GroupLogThread:
    """The thread, made and not started. The log's topic must be there (`Layout.for_group(group, with_log=True)`).

    Args:
        settings: how to reach the cluster.
        group: the consumer group.
        client_id: of this member; its incarnation is made here.
        lock_settings: times of locks; the same in the whole group.
        topics: asked for the physical names of the topics the group commits for, its retry topic among them.
        clients: where Kafka clients come from.
        clock: the clock that leases are asked by.
        admin: an admin client, by which the log is recognised when it was created again; None: by its records alone.
        strategy: name of the allocation strategy; None: Kafka's group protocol.
    """
    topic = TopicNames(settings.namespace).group_log(group)
    producer_config = merge(
        {key: value for key, value in settings.client.items() if key not in _OURS_TO_SAY},
        defaults={"client.id": "rocketshim"},
        required={
            **PROTECTED_PRODUCER,
            "bootstrap.servers": settings.bootstrap,
            "linger.ms": 0,
            "delivery.timeout.ms": max(1_000, lock_settings.lock_hold_ms),
        },
        allow_code_settings=settings.allow_code_settings,
    )
    return GroupLogThread(
        topic=topic,
        owner=Owner(client_id, uuid.uuid4().hex),
        settings=lock_settings,
        make_consumer=lambda: clients.consumer(log_reader_config(settings, group)),
        make_producer=lambda: clients.producer(producer_config),
        clock=clock,
        strategy=strategy,
        token_floor=lambda consumer: token_floor(consumer, tuple(topics())),
        topic_id=None if admin is None else TopicId(admin, topic),
    )
