"""A real Kafka cluster of one or more nodes on this machine: start, stop, and the faults that tests need.

Theory of operation
-------------------
*Ports* are free ones unless the caller names them, and reserved as long as the cluster runs (`probe.reserve_port`), so
that a killed node finds them free again.

*Ready* means that the metadata of *this* cluster (the cluster id is compared) names every node. The deadline is
`start_timeout_s`. If a node exits earlier, the start fails within 2 s, with the last lines of the node's log.

*Stop* sends SIGTERM to all nodes at the same time. Nodes have 20 s to stop, or 1 s if their data are deleted anyway.
The last ones of several nodes cannot stop cleanly: they wait 5 s each for a quorum that no longer exists.

Not supported: nodes on other machines, changing the number of nodes of a folder that has data.
"""

import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from rocketshim.errors import ConfigError, LocalBrokerError
from rocketshim_local.home import ClusterHome
from rocketshim_local.node import Node
from rocketshim_local.probe import admin_client, known_brokers, reserve_port
from rocketshim_local.server_properties import ADMIN_USER, HOST, NodeAddress, security_protocol, server_properties
from rocketshim_local.startup_kit import startup_kit

__all__ = ["LocalCluster"]

MAXIMUM_BROKERS = 9
_MINIMUM_HEAP_MB = 128
_POLL_S = 0.05
_GRACE_S = 20.0
_GRACE_OF_LOST_DATA_S = 1.0
_log = logging.getLogger("rocketshim.local")


class LocalCluster:
    """A Kafka cluster on this machine, as a context manager.

    The constructor starts nothing. `start` downloads the jars that are missing in the cache (not Java) and returns when
    every broker is registered. Nodes are numbered from 1.

    While the cluster is not running, every method and attribute but `start`, `stop` and `logs_dir` raises
    `LocalBrokerError`. So do methods for one node if there is no such node, and all but `restart` if its process has
    ended.

    Args:
        brokers: number of nodes, 1 to 9; each is broker and controller.
        properties: Kafka broker properties that replace the defaults of `rocketshim_local.server_properties`.
        data_dir: folder of the cluster, created if it does not exist and kept at `stop`; None: a folder in the cache,
            whose data are removed at `stop` and whose logs are kept.
        port: client port of node 1; the other nodes get the next ports. None: free ports.
        heap_mb: JVM heap of each node in MiB; None: 512 for one node, 384 each for several nodes.
        jvm_options: additional options of the JVM; they come last and take precedence.
        users: user name to password, for SASL/PLAIN with ACLs and the super user `admin`; None: no authentication.
        tls_pem: a PEM file with an unencrypted PKCS #8 key and its certificate for 127.0.0.1, which brokers use and
            clients trust; None: no TLS.
        advertised_ports: by node id, the port that clients and brokers connect to, for a proxy in front of the
            node; None, and for nodes that are not in it: the node's own port.
        start_timeout_s: deadline of `start` and `restart` in seconds, without the time for downloads.
        report: is called with one line of text per slow step (downloads); None: the logger `rocketshim.local` at INFO.

    Raises:
        ConfigError: an argument is invalid.

    Thread-safety: one thread at a time. `bootstrap`, `logs_dir` and `client_config` may be read from any thread while
    the cluster runs.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        port: int | None = None,
        heap_mb: int | None = None,
        jvm_options: Sequence[str] = (),
        users: Mapping[str, str] | None = None,
        tls_pem: Path | None = None,
        advertised_ports: Mapping[int, int] | None = None,
        start_timeout_s: float = 150.0,
        report: Callable[[str], None] | None = None,
    ) -> None:
        if not 1 <= brokers <= MAXIMUM_BROKERS:
            raise ConfigError(f"brokers={brokers}: a local cluster has 1 to {MAXIMUM_BROKERS} brokers")
        if port is not None and not 1 <= port <= 65_535 - brokers:
            raise ConfigError(f"port={port}: give a port from 1 to {65_535 - brokers}")
        if heap_mb is not None and heap_mb < _MINIMUM_HEAP_MB:
            raise ConfigError(f"heap_mb={heap_mb}: a broker does not start with less than {_MINIMUM_HEAP_MB} MiB")
        self._brokers = brokers
        self._properties = dict(properties or {})
        self._data_dir = data_dir
        self._port = port
        self._heap_mb = heap_mb if heap_mb is not None else (512 if brokers == 1 else 384)
        self._jvm_options = tuple(jvm_options)
        self._users = dict(users) if users is not None else None
        self._tls_pem = None if tls_pem is None else str(tls_pem.absolute())
        self._advertised_ports = dict(advertised_ports or {})
        self._start_timeout_s = start_timeout_s
        self._report = report
        self._home: ClusterHome | None = None
        self._nodes: dict[int, Node] = {}
        self._reserved_ports = ExitStack()
        # Call it only for its checks, so that invalid properties and users raise here and not in `start`.
        server_properties(1, (NodeAddress(1, 1, 2),), data_folder="", overrides=self._properties, users=self._users)

    # --- facts about the cluster ---------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`host:port` of every node, comma separated, for `bootstrap.servers`."""
        return ",".join(f"{HOST}:{node.address.port}" for node in self._running().values())

    @property
    def logs_dir(self) -> Path:
        """The folder that contains `node-<i>/log/`; it stays readable after `stop`.

        Raises:
            LocalBrokerError: the cluster was never started.
        """
        if self._home is None:
            raise LocalBrokerError("the cluster was never started: it has no folder")
        return self._home.path

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ids of all nodes of the running cluster, including killed and paused nodes."""
        return tuple(self._running())

    @property
    def ended(self) -> tuple[int, ...]:
        """The ids of the nodes of the running cluster whose process has ended, by `kill` or on its own."""
        return tuple(node_id for node_id, node in self._running().items() if not node.alive)

    def pid(self, node: int) -> int:
        """Return the process id of a node."""
        return self._node(node).process.pid

    def client_config(self, user: str = ADMIN_USER) -> dict[str, str]:
        """Return the librdkafka settings to connect to the cluster, as `user` if the cluster has users.

        Raises:
            ConfigError: the cluster has users, but not this one.
        """
        config = {"bootstrap.servers": self.bootstrap}
        if self._tls_pem is not None:
            config |= {"security.protocol": "SSL", "ssl.ca.location": self._tls_pem}
        if self._users is None:
            return config
        if user not in self._users:
            raise ConfigError(f"this cluster has no user {user!r}; it has {', '.join(sorted(self._users))}")
        return config | {
            "security.protocol": security_protocol(users=True, tls=self._tls_pem is not None),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self._users[user],
        }

    # --- start and stop ------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start every node and wait until all are registered.

        Raises:
            LocalBrokerError: the cluster is already running, there is no Java, the jars cannot be downloaded, the
                folder is in use or belongs to a cluster with another number of nodes, a node exited, or the deadline
                passed. A failed start leaves no process. If a node failed, the message has the last lines of its log.
        """
        if self._nodes:
            raise LocalBrokerError("the cluster is already running")
        if not hasattr(os, "fork"):
            raise LocalBrokerError(
                "a local Kafka needs Linux, macOS or WSL; on Windows start one with Docker, and name it with "
                "ROCKETSHIM_BOOTSTRAP"
            )
        kit = startup_kit(report=self._report)
        home = self._home = ClusterHome(self._data_dir, self._brokers)
        try:
            addresses = self._reserve_ports()
            for address in addresses:
                node = self._nodes[address.node_id] = Node(address, home.path)
                properties = server_properties(
                    address.node_id, addresses, data_folder=str(node.data), overrides=self._properties,
                    users=self._users, tls_pem=self._tls_pem,
                    advertised_port=self._advertised_ports.get(address.node_id),
                )  # fmt: skip
                java_command = [*kit.java_command(self._heap_mb, node.logs), *self._jvm_options]
                node.configure(home.cluster_id, properties, java_command)
            for node in self._nodes.values():
                node.launch()
            self._await_registered(list(self._nodes.values()))
        except BaseException:
            self.stop(timeout_s=0.0)
            raise
        return self

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop every node cleanly (SIGTERM); kill the nodes that have not ended in time.

        All processes have ended when it returns. It may be called twice, and before `start`. Paused nodes are resumed
        first.

        Args:
            timeout_s: seconds until a node is killed; None: 20 if the data are kept, 1 if they are deleted.
        """
        if timeout_s is None:
            timeout_s = _GRACE_OF_LOST_DATA_S if self._data_dir is None else _GRACE_S
        deadline = time.monotonic() + timeout_s
        for node in self._nodes.values():
            node.request_stop()
        for node_id, node in self._nodes.items():
            ended = node.await_end(max(0.0, deadline - time.monotonic()))
            if not ended and timeout_s and self._data_dir is not None:
                _log.warning("node %d did not stop within %.0f s and was killed", node_id, timeout_s)
        self._nodes = {}
        self._reserved_ports.close()
        if self._home is not None:
            self._home.leave()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- faults --------------------------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL, like a crash, and wait until its process has ended. Its data are kept."""
        target = self._node(node)
        target.process.kill()
        target.await_end()

    def pause(self, node: int) -> None:
        """Pause a node (SIGSTOP): it keeps its connections and does nothing until `resume`."""
        self._node(node).process.send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Resume a paused node (SIGCONT); do nothing if it is not paused."""
        self._node(node).process.send_signal(signal.SIGCONT)

    def restart(self, node: int) -> None:
        """Start a node again with its ports and data, and wait until it is registered.

        A node that is running is stopped cleanly first; if it has not ended after 20 s, it is killed.

        Raises:
            LocalBrokerError: it exited, or the deadline passed. The other nodes are not touched.
        """
        target = self._node(node)
        target.request_stop()
        target.await_end(_GRACE_S)
        target.launch()
        self._await_registered([each for each in self._nodes.values() if each.alive or each is target])

    # --- state of the cluster ------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of the node that is the current leader of a partition.

        Raises:
            LocalBrokerError: the partition does not exist or has no leader.
        """
        described = (
            admin_client(self.client_config()).list_topics(topic, timeout=10.0).topics[topic].partitions.get(partition)
        )
        if described is None or described.leader < 1:
            raise LocalBrokerError(f"partition {partition} of {topic!r} does not exist or has no leader")
        return int(described.leader)

    def touch_internal_topics(self, timeout_s: float = 60.0) -> None:
        """Create `__consumer_offsets` and `__transaction_state` now, and wait until they are in sync.

        Kafka creates them at their first use. It cannot create them while too few brokers for their replicas are up, so
        call this before you inject a fault.

        Raises:
            LocalBrokerError: the topics were not ready within `timeout_s` seconds.
        """
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition  # noqa: PLC0415 as in probe

        name = f"rocketshim-touch-{uuid.uuid4().hex[:8]}"
        config = {**self.client_config(), "log_level": "0"}
        consumer = Consumer({**config, "group.id": name})
        producer = Producer({**config, "transactional.id": name, "transaction.timeout.ms": 10_000})

        def obstacle() -> str:
            try:
                consumer.committed([TopicPartition("rocketshim-touch", 0)], timeout=timeout_s)
                producer.init_transactions(timeout_s)
            except KafkaException as error:  # NOT_COORDINATOR and similar, while a topic is being created
                return f"the internal topics were not ready: {error}"
            return ""

        try:
            _wait_until_none(obstacle, timeout_s)
        finally:
            consumer.close()
        self.await_in_sync(timeout_s)

    def await_in_sync(self, timeout_s: float = 60.0) -> None:
        """Wait until every partition of every topic has a leader and all its replicas are in sync.

        Raises:
            LocalBrokerError: some partitions were not ready after `timeout_s` seconds; the message names up to ten.
        """
        admin = admin_client(self.client_config())

        def obstacle() -> str:
            lagging = [
                f"{topic.topic}-{partition.id}"
                for topic in admin.list_topics(timeout=10.0).topics.values()
                for partition in topic.partitions.values()
                if partition.leader < 1 or len(partition.isrs) < len(partition.replicas)
            ]
            return f"partitions not in sync: {', '.join(sorted(lagging)[:10])}" if lagging else ""

        _wait_until_none(obstacle, timeout_s)

    # --- nodes ---------------------------------------------------------------------------------------------------

    def _reserve_ports(self) -> tuple[NodeAddress, ...]:
        wanted = [0 if self._port is None else self._port + i for i in range(self._brokers)] + [0] * self._brokers
        ports = [self._reserved_ports.enter_context(reserve_port(port)).getsockname()[1] for port in wanted]
        if sys.platform != "linux":
            self._reserved_ports.close()  # elsewhere nobody can listen on a reserved port
        return tuple(NodeAddress(i + 1, ports[i], ports[self._brokers + i]) for i in range(self._brokers))

    def _await_registered(self, nodes: Sequence[Node]) -> None:
        admin, cluster_id = admin_client(self.client_config()), self._home.cluster_id if self._home else None
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            known = known_brokers(admin, cluster_id=cluster_id)
            for node in nodes:
                if not node.alive:
                    raise node.failure("ended")
            missing = [node for node in nodes if node.address.node_id not in known]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise missing[0].failure(f"is not registered after {self._start_timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def _running(self) -> dict[int, Node]:
        if not self._nodes:
            raise LocalBrokerError("the local cluster is not running: start it first")
        return self._nodes

    def _node(self, node: int) -> Node:
        nodes = self._running()
        if node not in nodes:
            raise LocalBrokerError(f"the local cluster has no node {node}; it has {', '.join(map(str, nodes))}")
        return nodes[node]


def _wait_until_none(obstacle: Callable[[], str], timeout_s: float) -> None:
    """Wait until `obstacle` returns an empty text; raise its text as an error after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while text := obstacle():
        if time.monotonic() > deadline:
            raise LocalBrokerError(f"{text} (after {timeout_s:.0f} s)")
        time.sleep(_POLL_S)
