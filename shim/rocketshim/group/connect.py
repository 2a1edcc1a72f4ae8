"""Make the group-log thread of one member: client settings, owner, topic, token floor."""

import itertools
import os
import socket
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

from rocketshim.core.clock import Clock
from rocketshim.core.lease_rules import Owner
from rocketshim.group.log_clients import LogReader, LogWriter, token_floor
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.client_config import CONSUMER_ONLY, PROTECTED_CONSUMER, PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_id import TopicId
from rocketshim.settings import ConnectionSettings, PushConsumerSettings
from rocketshim_topics.names import TopicNames

__all__ = ["connect_group_log", "log_reader_config", "new_client_id"]

_NUMBERS: Final = itertools.count()
_SET_HERE: Final = frozenset({"linger.ms", "queue.buffering.max.ms", "delivery.timeout.ms", "message.timeout.ms"})


def new_client_id() -> str:
    """Return a client id in RocketMQ's form: `host@pid@n`, where n counts the clients of this process. Any thread."""
    return f"{socket.gethostname()}@{os.getpid()}@{next(_NUMBERS)}"


def log_reader_config(settings: ConnectionSettings, group: str) -> dict[str, Any]:
    """Return the settings of a consumer that reads the group log.

    The consumer joins no group, and reports an error when an offset does not exist. It reads `read_uncommitted`: no
    member writes transactions there, and an open transaction of another program must not block the log.
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
    settings: PushConsumerSettings,
    *,
    topics: Callable[[], Iterable[str]],
    clients: Clients,
    clock: Clock,
    admin: Any = None,
) -> GroupLogThread:
    """Make the group-log thread of a consumer with these settings; do not start it.

    The log's topic must exist (`Layout.for_group(group, with_log=True)`).

    Args:
        settings: of the consumer. Without a client id it gets a new one; its incarnation is made here.
        topics: returns the physical names of the topics that the group commits for, its retry topic included.
        clients: makes Kafka clients.
        clock: the clock that leases are checked with.
        admin: admin client that detects when the log's topic was created again; None: only the log's records tell.
    """
    group, lock_settings = settings.group, settings.lock_settings
    strategy = settings.allocate_message_queue_strategy
    topic = TopicNames(settings.namespace).group_log(group)
    producer_config = merge(
        {key: value for key, value in settings.client.items() if key not in _SET_HERE},
        defaults={"client.id": "rocketshim"},
        required={
            **PROTECTED_PRODUCER,
            "bootstrap.servers": settings.bootstrap,
            "linger.ms": 0,
            "delivery.timeout.ms": max(1_000, lock_settings.lock_hold_ms),
        },
        allow_code_settings=settings.allow_code_settings,
    )
    reader = LogReader(
        topic,
        lambda: clients.consumer(log_reader_config(settings, group)),
        lambda consumer: token_floor(consumer, tuple(topics())),
        None if admin is None else TopicId(admin, topic),
    )
    return GroupLogThread(
        reader,
        LogWriter(topic, lambda: clients.producer(producer_config)),
        owner=Owner(settings.client_id or new_client_id(), uuid.uuid4().hex),
        settings=lock_settings,
        clock=clock,
        strategy=None if strategy is None else strategy.name,
    )
