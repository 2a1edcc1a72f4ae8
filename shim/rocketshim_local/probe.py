"""Check ports and brokers of this machine without changing anything."""

import logging
import random
import socket
from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from rocketshim.errors import LocalBrokerError
from rocketshim_local.server_properties import HOST, NodeAddress

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["accepts_connections", "admin_client", "choose_ports", "free_ports", "is_free", "known_brokers"]

_PORT_RANGE = range(20_000, 32_000)
_client_log = logging.getLogger("rocketshim.local.client")


def free_ports(count: int, *, besides: Collection[int] = ()) -> list[int]:
    """Return `count` random ports of the loopback on which nothing listens now and which are not in `besides`.

    The ports are below the range from which Linux takes the ports of outgoing connections (32768 and up), so that only
    another listener can take one before it is used. The caller must handle that case.

    Raises:
        LocalBrokerError: fewer than `count` ports are free.
    """
    candidates = random.sample(_PORT_RANGE, k=len(_PORT_RANGE))
    free = list(islice((port for port in candidates if port not in besides and is_free(port)), count))
    if len(free) < count:
        raise LocalBrokerError(
            f"found only {len(free)} of {count} free ports from {_PORT_RANGE.start} to {_PORT_RANGE.stop - 1}"
        )
    return free


def choose_ports(brokers: int, first: int | None) -> tuple[NodeAddress, ...]:
    """Return the addresses of a cluster's nodes: client ports from `first` on, all other ports free ones.

    Raises:
        LocalBrokerError: a port from `first` on is in use, or there are not enough free ports.
    """
    fixed = [] if first is None else [first + i for i in range(brokers)]
    if taken := [port for port in fixed if not is_free(port)]:
        raise LocalBrokerError(
            f"port {taken[0]} is in use: stop the process that listens there, or choose another port"
        )
    ports = [*fixed, *free_ports(2 * brokers - len(fixed), besides=fixed)]
    return tuple(NodeAddress(i + 1, ports[i], ports[brokers + i]) for i in range(brokers))


def is_free(port: int) -> bool:
    """Return whether a process could listen on this port of the loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: ignore closing connections
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def accepts_connections(port: int) -> bool:
    """Return whether something listens on this port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def admin_client(config: Mapping[str, str]) -> "AdminClient":
    """Return a client that reconnects fast and logs nothing about brokers that are down."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 downloads and `--help` need no Kafka client

    settings: dict[str, str | int | float | bool] = {**config, "log_level": 0, "reconnect.backoff.max.ms": 250}
    return AdminClient(settings, logger=_client_log)


def known_brokers(config: Mapping[str, str], *, cluster_id: str | None = None, timeout_s: float = 2.0) -> set[int]:
    """Return the ids of the brokers in a cluster's metadata; empty if no broker answers within `timeout_s`.

    Args:
        config: librdkafka settings to connect to the cluster.
        cluster_id: id of the expected cluster; an answer of another cluster is ignored. None: any cluster.
        timeout_s: how long to wait for an answer, in seconds.
    """
    from confluent_kafka import KafkaException  # noqa: PLC0415 likewise

    try:
        metadata = admin_client(config).list_topics(timeout=timeout_s)
    except KafkaException:
        return set()
    return set(metadata.brokers) if cluster_id in {None, metadata.cluster_id} else set()
