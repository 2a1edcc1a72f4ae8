"""The configuration of one KRaft node as text. Pure.

Every node is both broker and controller, and listens on 127.0.0.1 only. The defaults differ from a server's defaults
where a development machine and tests need something else: small internal topics, no delay before the first rebalance,
no automatic creation of topics, a dead broker fenced after 6 s instead of 9. The caller's properties take precedence
over the defaults, but must not change the nodes, ports and folders of the cluster.

With TLS, one PEM file has the key and the certificate of every node; clients trust this certificate.

With SASL (PLAIN), clients and brokers authenticate, the standard authorizer checks the ACLs, and `admin` is the super
user. The controller listener stays plaintext on the loopback, and therefore `ANONYMOUS` is a super user too. Use this
only for tests of ACLs on one machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from rocketshim.errors import ConfigError

__all__ = ["ADMIN_USER", "HOST", "NodeAddress", "render_properties", "security_protocol", "server_properties"]

HOST = "127.0.0.1"
ADMIN_USER = "admin"

_OTHER_NAMES_OF_STRUCTURE = {"broker.id", "controller.quorum.bootstrap.servers", "log.dir", "metadata.log.dir"}


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The ports of one node: `port` for clients and brokers, `controller_port` for the quorum."""

    node_id: int
    port: int
    controller_port: int


def server_properties(
    node_id: int,
    nodes: tuple[NodeAddress, ...],
    *,
    data_folder: str,
    overrides: Mapping[str, str],
    users: Mapping[str, str] | None = None,
    tls_pem: str | None = None,
    listen_host: str = HOST,
    advertised_port: int | None = None,
) -> dict[str, str]:
    """Return the whole configuration of node `node_id` of the cluster `nodes`; other arguments as in `LocalCluster`.

    Paths are absolute. `listen_host` is not the loopback only inside a container.

    Raises:
        ConfigError: an override would change the structure, or a user name or password is not valid in a JAAS line.
    """
    own = next(node for node in nodes if node.node_id == node_id)
    client_protocol = security_protocol(users=users is not None, tls=tls_pem is not None)
    copies = min(len(nodes), 3)
    in_sync = max(1, copies - 1)
    structure = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node.node_id}@{HOST}:{node.controller_port}" for node in nodes),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{client_protocol}://{listen_host}:{own.port},CONTROLLER://{HOST}:{own.controller_port}",
        "advertised.listeners": f"{client_protocol}://{HOST}:{advertised_port or own.port}",
        "inter.broker.listener.name": client_protocol,
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{client_protocol}:{client_protocol}",
        "log.dirs": data_folder,
    }
    if taken := overrides.keys() & (structure.keys() | _OTHER_NAMES_OF_STRUCTURE):
        raise ConfigError(f"{', '.join(sorted(taken))}: the local cluster sets this itself; remove it from properties")
    defaults = {
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
        # times: shorter, so that a person or a test waits less
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # sizes: smaller, because several nodes share one small machine
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
        "log.index.size.max.bytes": str(256 * 1024),  # the kernel may read a file of 10 MiB ahead at its first use
    }
    if users is not None:
        defaults |= _sasl(users, client_protocol.lower())
    if tls_pem is not None:
        for store in ("keystore", "truststore"):
            defaults |= {f"ssl.{store}.type": "PEM", f"ssl.{store}.location": tls_pem}
    return defaults | dict(overrides) | structure


def security_protocol(*, users: bool, tls: bool) -> str:
    """Return Kafka's name of the security protocol between clients and brokers."""
    encrypted = "SSL" if tls else "PLAINTEXT"
    return f"SASL_{encrypted}" if users else encrypted


def _sasl(users: Mapping[str, str], listener: str) -> dict[str, str]:
    if ADMIN_USER not in users:
        raise ConfigError(f"the users of a local cluster must include {ADMIN_USER!r}: the brokers log in as this user")
    for text in (*users, *users.values()):
        if not text or not text.isascii() or not text.isprintable() or any(c in text for c in '"\\;= '):
            raise ConfigError(
                f"{text!r} is not valid as a user name or password here: use ASCII without space, quotes, \\ ; ="
            )
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


def render_properties(properties: Mapping[str, str]) -> str:
    """Return the text of a Java `.properties` file, ASCII only; JSON's escapes of a string are Java's, too."""
    return "".join(f"{key}={json.dumps(value)[1:-1]}\n" for key, value in properties.items())
