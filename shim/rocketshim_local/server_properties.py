"""The configuration of one KRaft node, as text; pure.

Every node is broker and controller at once and listens on 127.0.0.1 only. The defaults differ from a server's where a
development machine and tests want something else: small internal topics, no delay before the first rebalance, topics
only when they are created, a dead broker fenced after 6 s instead of 9. The caller's properties win over the defaults,
but not over those that hold the cluster together (`STRUCTURAL`).

With TLS: one PEM file holds key and certificate of every node, and is what clients trust.

With SASL (PLAIN, `kafka-facts` 5.9): clients and brokers authenticate, the standard authorizer decides, `admin` is the
super user. The controller listener stays plaintext on the loopback, and so `ANONYMOUS` is a super user too: fit for
tests of rights on one machine and for nothing else.
"""

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from rocketshim.errors import ConfigError

__all__ = [
    "ADMIN_USER",
    "STRUCTURAL",
    "NodeAddress",
    "cluster_id_from",
    "meta_properties",
    "render_properties",
    "security_protocol",
    "server_properties",
]

HOST = "127.0.0.1"
ADMIN_USER = "admin"

STRUCTURAL = frozenset(
    {
        "process.roles",
        "node.id",
        "broker.id",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "controller.listener.names",
        "listeners",
        "advertised.listeners",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
    }
)
"""Keys that a caller may not set: the cluster finds its own nodes, ports and folders by them."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where one node listens: `port` for clients and brokers, `controller_port` for the quorum."""

    node_id: int
    port: int
    controller_port: int


def cluster_id_from(random: uuid.UUID) -> str:
    """Return a KRaft cluster id (22 characters of URL-safe base64) made from a random UUID.

    An id that begins with `-` would be read as an option by Kafka's tools, so that the first character is replaced.
    """
    text = base64.urlsafe_b64encode(random.bytes).rstrip(b"=").decode()
    return "A" + text[1:] if text.startswith("-") else text


def server_properties(
    node_id: int,
    nodes: tuple[NodeAddress, ...],
    *,
    data_folder: str,
    overrides: Mapping[str, str],
    users: Mapping[str, str] | None = None,
    tls_pem: str | None = None,
    listen_host: str = HOST,
) -> dict[str, str]:
    """Return the whole configuration of node `node_id` of the cluster `nodes`.

    Args:
        node_id: one of the ids in `nodes`.
        nodes: every node of the cluster; all of them vote.
        data_folder: where this node keeps its logs of records, an absolute path.
        overrides: the caller's properties.
        users: user name to password for SASL/PLAIN with ACLs, `ADMIN_USER` among them; None: no authentication.
        tls_pem: absolute path of a PEM file with an unencrypted PKCS #8 key and its certificate; None: no TLS.
        listen_host: the address to listen on; another than the loopback only inside a container.

    Raises:
        ConfigError: an override is structural, or a user name or password cannot stand in a JAAS line.
    """
    own = next(node for node in nodes if node.node_id == node_id)
    client_protocol = security_protocol(users=users is not None, tls=tls_pem is not None)
    copies = min(len(nodes), 3)
    in_sync = max(1, copies - 1)
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node.node_id}@{HOST}:{node.controller_port}" for node in nodes),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{client_protocol}://{listen_host}:{own.port},CONTROLLER://{HOST}:{own.controller_port}",
        "advertised.listeners": f"{client_protocol}://{HOST}:{own.port}",
        "inter.broker.listener.name": client_protocol,
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{client_protocol}:{client_protocol}",
        "log.dirs": data_folder,
        # topics
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        # time: what a person or a test would otherwise wait for
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # size: several nodes share one small machine
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    }
    if users is not None:
        properties |= _sasl(users, client_protocol.lower())
    if tls_pem is not None:
        for store in ("keystore", "truststore"):
            properties |= {f"ssl.{store}.type": "PEM", f"ssl.{store}.location": tls_pem}
    if taken := STRUCTURAL & overrides.keys():
        raise ConfigError(f"{', '.join(sorted(taken))}: set by the local cluster itself, take it out of properties")
    return properties | dict(overrides)


def security_protocol(*, users: bool, tls: bool) -> str:
    """Kafka's name of how clients reach the brokers."""
    encrypted = "SSL" if tls else "PLAINTEXT"
    return f"SASL_{encrypted}" if users else encrypted


def _sasl(users: Mapping[str, str], listener: str) -> dict[str, str]:
    if ADMIN_USER not in users:
        raise ConfigError(f"the users of a local cluster need {ADMIN_USER!r} among them: the brokers log in as it")
    for text in (*users, *users.values()):
        if not text or not text.isascii() or not text.isprintable() or any(c in text for c in '"\\;= '):
            raise ConfigError(f"{text!r} cannot be a user name or password here: ASCII without space, quotes, \\ ; =")
    logins = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"listener.name.{listener}.plain.sasl.jaas.config": (
            f'{module} required username="{ADMIN_USER}" password="{users[ADMIN_USER]}" {logins};'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN_USER};User:ANONYMOUS",
    }


def meta_properties(node_id: int, cluster_id: str, directory: uuid.UUID) -> dict[str, str]:
    """Return the content of `meta.properties`, which makes a folder a formatted one (what `kafka-storage` writes)."""
    return {
        "version": "1",
        "cluster.id": cluster_id,
        "node.id": str(node_id),
        "directory.id": cluster_id_from(directory),
    }


def render_properties(properties: Mapping[str, str]) -> str:
    """Return the text of a Java `.properties` file, ASCII only.

    Raises:
        ConfigError: a value has a line break, which no Kafka property needs.
    """
    lines = []
    for key, value in properties.items():
        if "\n" in value or "\r" in value:
            raise ConfigError(f"property {key}: its value has a line break: {value!r}")
        lines.append(f"{key}={''.join(_escaped(character) for character in value)}")
    return "\n".join(lines) + "\n"


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isascii():
        return character
    units = character.encode("utf-16-be")  # Java's escapes are UTF-16 code units
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
