"""Reserve ports of this machine, and ask which brokers a cluster has."""

import logging
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rocketshim.errors import LocalBrokerError
from rocketshim_local.server_properties import HOST

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["admin_client", "known_brokers", "reserve_port"]

_client_log = logging.getLogger("rocketshim.local.client")


def reserve_port(port: int = 0) -> socket.socket:
    """Return a socket that keeps a port of the loopback for a process that we start, until the socket is closed.

    The socket is bound and does not listen, with SO_REUSEADDR as Java sets it. On Linux, Java can listen on the port
    meanwhile, and the kernel gives it to nobody who asks for any free port, as `port=0` does here.

    Raises:
        LocalBrokerError: another process listens there.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserved.bind((HOST, port))
    except OSError as error:
        reserved.close()
        raise LocalBrokerError(
            f"port {port} is in use: stop the process that listens there, or choose another port"
        ) from error
    return reserved


def admin_client(config: Mapping[str, str]) -> "AdminClient":
    """Return a client that reconnects fast and logs nothing about brokers that are down."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 downloads and `--help` need no Kafka client

    fast = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50}
    return AdminClient({**config, **fast, "log_level": 0}, logger=_client_log)


def known_brokers(admin: "AdminClient", *, cluster_id: str | None = None, timeout_s: float = 2.0) -> set[int]:
    """Return the ids of the brokers in a cluster's metadata; empty if no broker of that cluster answers in time."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 likewise

    try:
        metadata = admin.list_topics(timeout=timeout_s)
    except KafkaException:
        return set()
    return set(metadata.brokers) if cluster_id in {None, metadata.cluster_id} else set()
