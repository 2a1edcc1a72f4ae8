"""A real Kafka cluster of one or more nodes on this machine: start, stop, and the faults that tests need.

Theory of operation
-------------------
*Folders.* One home folder a cluster: `cluster.json` (id, number of nodes), and per node `node-<i>/data` (records),
`node-<i>/log` (what the broker says) and `node-<i>/server.properties`. With `data_dir` the home is the caller's and its
data stay. Without, it lies in the cache folder; `stop` removes the data and keeps the logs, and each start removes what
crashed processes left and all but the newest `KEPT_LOGS` log folders. An `flock` on the home says that a cluster is
alive: two processes never share one.

*Formatting* is done here: `meta.properties` is written, and `bootstrap.checkpoint`, which holds the feature levels of
this Kafka version and nothing of the cluster, is copied from the start-up kit (`rocketshim.local.startup_kit`). That
saves one JVM start per node.

*Ports* are drawn at random below the range the kernel gives to outgoing connections, and checked. Whoever takes one in
between makes the node exit with "Address already in use": the whole start is then repeated on other ports.

*Ready* means: every node accepts connections and the metadata of the cluster names all of them. The deadline is
`start_timeout_s`; on the way a node that exits ends the start at once with the last lines of its log.

*Faults.* `kill` (SIGKILL), `pause` and `resume` (SIGSTOP, SIGCONT), `restart`. Ports and data of a node stay the same
for the life of the cluster, so that clients find it again.

*No orphans.* Each node runs under `rocketshim.local.watchdog`: it dies with this process, however that ends.

Not handled: nodes on other machines, TLS, changing the number of nodes of a folder that holds data.
"""

import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from rocketshim.errors import ConfigError, LocalBrokerError
from rocketshim.local.cache import cache_dir
from rocketshim.local.java import find_java
from rocketshim.local.probe import accepts_connections, free_ports, known_brokers
from rocketshim.local.server_properties import (
    ADMIN_USER,
    HOST,
    NodeAddress,
    cluster_id_from,
    meta_properties,
    render_properties,
    server_properties,
)
from rocketshim.local.startup_kit import StartupKit, startup_kit

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["LocalCluster"]

KEPT_LOGS = 8
MAXIMUM_BROKERS = 9
_PORT_TRIES = 6
_POLL_S = 0.05
_log = logging.getLogger("rocketshim.local")


@dataclass(slots=True)
class _Node:
    """One node of a cluster; `process` is None before its first start and after it was seen to have ended."""

    address: NodeAddress
    home: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class _PortTakenError(Exception):
    """A node found one of its ports in use; the start is repeated on others."""


class LocalCluster:
    """A Kafka cluster on this machine, as a context manager.

    Constructing does nothing; `start` fetches what is missing in the cache (jars, not Java), and returns when every
    broker is registered. Nodes are numbered from 1.

    Args:
        brokers: number of nodes, 1 to 9; each is broker and controller.
        properties: Kafka broker properties that replace the defaults of `rocketshim.local.server_properties`.
        data_dir: folder of the cluster, made if absent, kept at `stop`; None: a folder in the cache, data removed at
            `stop`, logs kept.
        port: client port of node 1; the others get the ones after it. None: free ports.
        heap_mb: JVM heap of each node in MiB; None: 512 for one node, 384 each for several.
        jvm_options: further options of the JVM; they come last and win.
        users: user name to password: SASL/PLAIN with ACLs, super user `admin`; None: no authentication.
        start_timeout_s: deadline of `start` and `restart` in seconds, fetching apart.
        report: gets one line a step of what takes long (fetching); None: the logger `rocketshim.local` at INFO.

    Raises:
        ConfigError: an argument breaks its rule.

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
        start_timeout_s: float = 150.0,
        report: Callable[[str], None] | None = None,
    ) -> None:
        if not 1 <= brokers <= MAXIMUM_BROKERS:
            raise ConfigError(f"brokers={brokers}: a local cluster has 1 to {MAXIMUM_BROKERS}")
        if port is not None and not 1 <= port <= 65_535 - brokers:
            raise ConfigError(f"port={port}: give a port of 1 to {65_535 - brokers}")
        if heap_mb is not None and heap_mb < 128:
            raise ConfigError(f"heap_mb={heap_mb}: a broker does not start with less than 128")
        self._brokers = brokers
        self._properties = dict(properties or {})
        self._data_dir = data_dir
        self._port = port
        self._heap_mb = heap_mb if heap_mb is not None else (512 if brokers == 1 else 384)
        self._jvm_options = tuple(jvm_options)
        self._users = dict(users) if users is not None else None
        self._start_timeout_s = start_timeout_s
        self._report = _log.info if report is None else report
        self._home: Path | None = None
        self._home_lock: IO[str] | None = None
        self._nodes: dict[int, _Node] = {}
        self._java = ""
        self._kit: StartupKit | None = None
        # Checked now, not at start: properties and users are the caller's.
        server_properties(1, (NodeAddress(1, 1, 2),), data_folder="", overrides=self._properties, users=self._users)

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`host:port` of every node, comma separated, for `bootstrap.servers`.

        Raises:
            LocalBrokerError: the cluster is not running.
        """
        return ",".join(f"{HOST}:{node.address.port}" for node in self._running().values())

    @property
    def logs_dir(self) -> Path:
        """The folder that holds `node-<i>/log/`; it stays readable after `stop`.

        Raises:
            LocalBrokerError: the cluster was never started.
        """
        if self._home is None:
            raise LocalBrokerError("the cluster was never started: it has no logs")
        return self._home

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ids of all nodes of the running cluster, dead and paused ones included."""
        return tuple(self._running())

    @property
    def ended(self) -> tuple[int, ...]:
        """The ids of the nodes of the running cluster whose process has ended, by `kill` or by itself."""
        return tuple(node_id for node_id, node in self._running().items() if not node.alive)

    def pid(self, node: int) -> int:
        """Return the process id of a living node.

        Raises:
            LocalBrokerError: no such node, or it is not alive.
        """
        return self._alive(node).pid

    def client_config(self, user: str = ADMIN_USER) -> dict[str, str]:
        """Return the librdkafka settings with which a client reaches the cluster, as `user` if it has users.

        Raises:
            LocalBrokerError: the cluster is not running.
            ConfigError: the cluster has users, but not this one.
        """
        config = {"bootstrap.servers": self.bootstrap}
        if self._users is None:
            return config
        if user not in self._users:
            raise ConfigError(f"{user!r} is no user of this cluster; it has {', '.join(sorted(self._users))}")
        return config | {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self._users[user],
        }

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start every node and wait until all are registered.

        Returns:
            the cluster itself.

        Raises:
            LocalBrokerError: it runs already, there is no Java, the jars cannot be had, the folder is in use or belongs
                to another number of nodes, a node exited, or the deadline passed. No process is left running; the
                message holds the last lines of the log.
        """
        if self._nodes:
            raise LocalBrokerError("the cluster runs already")
        java = find_java()
        self._kit = startup_kit(java, report=self._report)
        self._java = str(java.executable)
        try:
            self._home, cluster_id = self._take_home()
            for attempt in range(_PORT_TRIES):
                try:
                    self._start_on(self._choose_ports(), cluster_id)
                except _PortTakenError as error:
                    self._kill_all()
                    if self._port is not None or attempt + 1 == _PORT_TRIES:
                        raise LocalBrokerError(f"{error}: stop what listens there, or choose another port") from error
                else:
                    return self
        except BaseException:
            self._kill_all()
            self._leave_home()
            raise
        raise LocalBrokerError("no port could be had")  # pragma: no cover  (the loop returns or raises)

    def stop(self, timeout_s: float = 20.0) -> None:
        """Stop every node in order (SIGTERM); what has not ended after `timeout_s` seconds is killed.

        Complete when it returns; safe twice, and before `start`. Paused nodes are resumed first.
        """
        living = [node.process for node in self._nodes.values() if node.alive and node.process is not None]
        for process in living:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        deadline = time.monotonic() + timeout_s
        for process in living:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.warning("a local broker (pid %d) did not stop within %.0f s and is killed", process.pid, timeout_s)
        self._kill_all()
        self._leave_home()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- faults --------------------------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """End a node with SIGKILL, as a crash does; returns when the process has ended. Its data stay.

        Raises:
            LocalBrokerError: no such node, or it is not alive.
        """
        process = self._alive(node)
        process.kill()
        process.wait()

    def pause(self, node: int) -> None:
        """Freeze a node (SIGSTOP): it keeps its connections and does nothing until `resume`.

        Raises:
            LocalBrokerError: no such node, or it is not alive.
        """
        self._alive(node).send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Let a paused node go on (SIGCONT); no effect on one that is not paused.

        Raises:
            LocalBrokerError: no such node, or it is not alive.
        """
        self._alive(node).send_signal(signal.SIGCONT)

    def restart(self, node: int) -> None:
        """Start a node again on its ports and data, after stopping it in order if it is alive; waits until registered.

        Raises:
            LocalBrokerError: no such node, it exited, or the deadline passed; the other nodes are not touched.
        """
        target = self._node(node)
        if target.alive and target.process is not None:
            target.process.send_signal(signal.SIGCONT)
            target.process.terminate()
            try:
                target.process.wait(20.0)
            except subprocess.TimeoutExpired:
                target.process.kill()
                target.process.wait()
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            self._launch(target)
            try:
                self._await_registered([each for each in self._nodes.values() if each.alive], deadline)
            except _PortTakenError as error:
                # The ports are the node's for life: wait for whoever has one just now.
                if time.monotonic() > deadline:
                    raise LocalBrokerError(f"node {node} cannot be restarted: {error}") from error
            else:
                return

    # --- state of the cluster ------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the node that leads a partition now.

        Raises:
            LocalBrokerError: the cluster is not running, or the partition is not there or has no leader.
        """
        described = self._admin().list_topics(topic, timeout=10.0).topics[topic].partitions.get(partition)
        if described is None or described.leader < 1:
            raise LocalBrokerError(f"partition {partition} of {topic!r} is not there or has no leader")
        return int(described.leader)

    def touch_internal_topics(self, timeout_s: float = 60.0) -> None:
        """Create `__consumer_offsets` and `__transaction_state` now.

        Kafka creates them at their first use, and cannot while a broker of their copies is down: call this before a
        fault is injected.

        Raises:
            LocalBrokerError: the cluster is not running, or they were not ready within `timeout_s` seconds.
        """
        import confluent_kafka as kafka  # noqa: PLC0415 `broker fetch` and `info` do without

        deadline = time.monotonic() + timeout_s
        quiet = self.client_config() | {"log_level": "0"}
        consumer = kafka.Consumer(quiet | {"group.id": f"rocketshim-touch-{uuid.uuid4().hex[:8]}"})
        producer = kafka.Producer(quiet | {"transactional.id": f"rocketshim-touch-{uuid.uuid4().hex[:8]}"})
        pending: list[Callable[[], object]] = [
            lambda: consumer.committed([kafka.TopicPartition("rocketshim-touch", 0)], timeout=timeout_s),
            lambda: producer.init_transactions(timeout_s),
        ]
        try:
            while pending:
                try:
                    pending[0]()
                    pending.pop(0)
                except kafka.KafkaException as error:
                    # A topic that is just being made answers with NOT_COORDINATOR and its like.
                    if time.monotonic() > deadline:
                        raise LocalBrokerError(
                            f"the internal topics were not ready within {timeout_s:.0f} s: {error}"
                        ) from error
                    time.sleep(_POLL_S)
        finally:
            consumer.close()
        self.await_in_sync(timeout_s)

    def await_in_sync(self, timeout_s: float = 60.0) -> None:
        """Wait until every partition of every topic has a leader and all its copies are in sync.

        Raises:
            LocalBrokerError: they were not after `timeout_s` seconds; the message names them.
        """
        deadline = time.monotonic() + timeout_s
        admin = self._admin()
        while True:
            lagging = [
                f"{topic.topic}-{partition.id}"
                for topic in admin.list_topics(timeout=10.0).topics.values()
                for partition in topic.partitions.values()
                if partition.leader < 1 or len(partition.isrs) < len(partition.replicas)
            ]
            if not lagging:
                return
            if time.monotonic() > deadline:
                raise LocalBrokerError(f"not in sync after {timeout_s:.0f} s: {', '.join(sorted(lagging)[:10])}")
            time.sleep(_POLL_S)

    # --- starting ------------------------------------------------------------------------------------------------

    def _start_on(self, addresses: tuple[NodeAddress, ...], cluster_id: str) -> None:
        home = self.logs_dir
        nodes = {each.node_id: _Node(each, home / f"node-{each.node_id}") for each in addresses}
        for node in nodes.values():
            self._format(node, addresses, cluster_id)
        self._nodes = nodes
        for node in nodes.values():
            self._launch(node)
        self._await_registered(list(nodes.values()), time.monotonic() + self._start_timeout_s)

    def _format(self, node: _Node, addresses: tuple[NodeAddress, ...], cluster_id: str) -> None:
        data, log = node.home / "data", node.home / "log"
        data.mkdir(parents=True, exist_ok=True)
        log.mkdir(exist_ok=True)
        kit = self._require_kit()
        if not (data / "meta.properties").exists():
            shutil.copyfile(kit.bootstrap_checkpoint, data / "bootstrap.checkpoint")
            meta = meta_properties(node.address.node_id, cluster_id, uuid.uuid4())
            (data / "meta.properties").write_text(render_properties(meta), encoding="ascii")
        properties = server_properties(
            node.address.node_id,
            addresses,
            data_folder=str(data),
            overrides=self._properties,
            users=self._users,
        )
        (node.home / "server.properties").write_text(render_properties(properties), encoding="ascii")
        (node.home / "server.properties").chmod(0o600)  # passwords stand in it

    def _launch(self, node: _Node) -> None:
        kit = self._require_kit()
        watchdog = Path(__file__).with_name("watchdog.py")
        command = [sys.executable, "-I", "-S", str(watchdog), str(os.getpid()), self._java]
        command += [*kit.jvm_options(self._heap_mb, node.home / "log"), *self._jvm_options]
        command += ["kafka.Kafka", str(node.home / "server.properties")]
        with (node.home / "log" / "console.log").open("wb") as console:
            node.process = subprocess.Popen(  # noqa: S603 our own interpreter and the user's Java
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=node.home,
                start_new_session=True,  # Ctrl-C at the terminal is for this process; it stops the nodes in order
            )

    def _await_registered(self, nodes: list[_Node], deadline: float) -> None:
        waiting = list(nodes)
        while waiting:
            self._fail_if_ended(nodes)
            if time.monotonic() > deadline:
                raise self._failure(waiting[0], f"does not listen after {self._start_timeout_s:.0f} s")
            if accepts_connections(waiting[0].address.port):
                waiting.pop(0)
            else:
                time.sleep(_POLL_S)
        wanted = {node.address.node_id for node in nodes}
        while True:
            self._fail_if_ended(nodes)
            known = known_brokers(self.bootstrap, settings=self.client_config())
            if wanted <= known:
                return
            if time.monotonic() > deadline:
                missing = next(node for node in nodes if node.address.node_id not in known)
                raise self._failure(missing, f"is not registered after {self._start_timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def _fail_if_ended(self, nodes: list[_Node]) -> None:
        for node in nodes:
            if not node.alive:
                if "Address already in use" in _tail(node.home / "log", 200):
                    raise _PortTakenError(
                        f"port {node.address.port} or {node.address.controller_port} of node {node.address.node_id} "
                        "is in use"
                    )
                code = node.process.returncode if node.process is not None else None
                raise self._failure(node, f"ended with exit code {code}")

    def _failure(self, node: _Node, what: str) -> LocalBrokerError:
        logs = node.home / "log"
        return LocalBrokerError(
            f"node {node.address.node_id} of the local cluster {what}; its logs are in {logs}, the last lines:\n"
            f"{_tail(logs, 15)}"
        )

    def _choose_ports(self) -> tuple[NodeAddress, ...]:
        fixed = [] if self._port is None else [self._port + i for i in range(self._brokers)]
        free = free_ports(2 * self._brokers - len(fixed), besides=fixed)
        ports = [*fixed, *free]
        return tuple(NodeAddress(i + 1, ports[i], ports[self._brokers + i]) for i in range(self._brokers))

    # --- the home folder -----------------------------------------------------------------------------------------

    def _take_home(self) -> tuple[Path, str]:
        fresh_id = cluster_id_from(uuid.uuid4())
        if self._data_dir is None:
            root = cache_dir() / "clusters"
            _sweep(root)
            home = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{fresh_id[:8]}"
        else:
            home = self._data_dir.expanduser().absolute()
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = (home / "in-use").open("w")
        except OSError as error:
            raise LocalBrokerError(f"the folder {home} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise LocalBrokerError(
                f"{home} is in use by another local cluster: stop it, or name another folder"
            ) from error
        self._home_lock = lock
        about = home / "cluster.json"
        if about.exists():
            known = json.loads(about.read_text(encoding="utf-8"))
            if known["brokers"] != self._brokers:
                raise LocalBrokerError(
                    f"{home} holds a cluster of {known['brokers']} brokers, not {self._brokers}: "
                    "start it with that number, or name another folder"
                )
            return home, known["cluster_id"]
        about.write_text(json.dumps({"cluster_id": fresh_id, "brokers": self._brokers}), encoding="utf-8")
        return home, fresh_id

    def _leave_home(self) -> None:
        if self._home_lock is None or self._home is None:
            return
        if self._data_dir is None:
            _remove_data(self._home)
        self._home_lock.close()
        self._home_lock = None

    def _kill_all(self) -> None:
        for node in self._nodes.values():
            if node.process is not None:
                node.process.kill()
                node.process.wait()
        self._nodes = {}

    # --- small things --------------------------------------------------------------------------------------------

    def _running(self) -> dict[int, _Node]:
        if not self._nodes:
            raise LocalBrokerError("the local cluster is not running: start it first")
        return self._nodes

    def _node(self, node: int) -> _Node:
        nodes = self._running()
        if node not in nodes:
            raise LocalBrokerError(f"the local cluster has no node {node}; it has {', '.join(map(str, nodes))}")
        return nodes[node]

    def _alive(self, node: int) -> "subprocess.Popen[bytes]":
        target = self._node(node)
        if target.process is None or target.process.poll() is not None:
            raise LocalBrokerError(f"node {node} is not alive: restart it first")
        return target.process

    def _require_kit(self) -> StartupKit:
        if self._kit is None:
            raise LocalBrokerError("the cluster was never started")
        return self._kit

    def _admin(self) -> "AdminClient":
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 `broker fetch` and `info` do without

        settings: dict[str, Any] = self.client_config() | {"log_level": 0, "reconnect.backoff.max.ms": 250}
        return AdminClient(settings, logger=logging.getLogger("rocketshim.local.client"))


def _tail(logs: Path, lines: int) -> str:
    """Return the last lines of the newest two files of a log folder; empty where there are none."""
    text: list[str] = []
    for file in (logs / "server.log", logs / "console.log"):
        if file.exists():
            text += file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return "\n".join(text[-lines:])


def _remove_data(home: Path) -> None:
    for data in home.glob("node-*/data"):
        shutil.rmtree(data, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove the data of clusters whose process is gone, and all but the newest log folders."""
    if not root.is_dir():
        return
    abandoned = []
    for home in sorted(root.iterdir(), reverse=True):
        lock_file = home / "in-use"
        if not lock_file.exists():
            continue  # being made just now
        with lock_file.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _remove_data(home)
            abandoned.append(home)
    for home in abandoned[KEPT_LOGS:]:
        shutil.rmtree(home, ignore_errors=True)
