"""Asks for workers with the connection of the program's client, and the credentials that the program has set in it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka.admin import AdminClient

from rocketshim.kafka.clients import with_log
from rocketshim.kafka.membership import GroupQuestion, WorkerWatch
from rocketshim.logs import safe_logger
from rocketshim_topics.names import TopicNames

__all__ = ["watched_workers", "with_credentials"]

_LOG = safe_logger("rocketshim.dropin")
_CALLBACKS: Final = frozenset({"error_cb", "stats_cb", "throttle_cb"})  # the program wants them of its own client only
_Client = TypeVar("_Client")


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
        lambda: _LOG.warning("dropin.no-worker", extra={**facts, "workers": group}),
    )
