"""One broker of any Kafka from 2.4 on, started from its jars, for the time of a run.

Versions before 3.3 need ZooKeeper, which their jars contain. A version of KRaft formats its data folder itself, because
the feature levels that `rocketshim_local` has at hand are those of one version.
"""

import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rocketshim_local.cache import FileSet
from rocketshim_local.home import random_id
from rocketshim_local.jars import fetch_jars
from rocketshim_local.java import ready_java
from rocketshim_local.probe import admin_client, known_brokers, reserve_port
from rocketshim_local.server_properties import HOST, NodeAddress, render_properties, server_properties
from rocketshim_local.startup_kit import StartupKit
from rocketshim_local.watchdog import guarded

__all__ = ["fetch", "is_kraft", "old_broker", "parse"]

_START_S: Final = 120.0
_LOGGING: Final = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
_ONLY_KRAFT: Final = {"process.roles", "node.id", "controller.quorum.voters", "controller.listener.names"}
_FIRST_OF_KRAFT: Final = (3, 3)


def parse(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as `3.9.2`; ValueError if it has another form."""
    return tuple(int(part) for part in version.split("."))


def is_kraft(version: str) -> bool:
    """Return whether a version is run without ZooKeeper here."""
    return parse(version) >= _FIRST_OF_KRAFT


def fetch(version: str) -> FileSet:
    """Return the jars of a version; LocalBrokerError: they cannot be downloaded."""
    return fetch_jars([f"org.apache.kafka:kafka_2.13:{version}", _LOGGING])


@contextmanager
def old_broker(version: str, folder: Path) -> Iterator[str]:
    """Run one broker of a version in an empty folder; yield its address.

    Raises:
        LocalBrokerError: the jars cannot be downloaded.
        TimeoutError: no broker answers within 120 s; the folder has the logs.
    """
    kit = StartupKit(ready_java(), fetch(version))
    java = [part for part in kit.java_command(512, folder) if "jsa" not in part]
    (folder / "data").mkdir(parents=True)
    configuration = folder / "server.properties"
    with ExitStack() as stack:
        ports = [stack.enter_context(reserve_port()).getsockname()[1] for _ in range(2)]
        address = NodeAddress(1, *ports)
        properties = server_properties(1, (address,), data_folder=str(folder / "data"), overrides={})
        if not is_kraft(version):
            properties = _for_zookeeper(properties, address)
            stack.enter_context(_running([*java, *_zookeeper(folder, address.controller_port)], folder))
        configuration.write_text(render_properties(properties), encoding="ascii")
        if is_kraft(version):
            words = ["kafka.tools.StorageTool", "format", "-t", random_id(), "-c", str(configuration)]
            subprocess.run([*java, *words], check=True, capture_output=True)
        stack.enter_context(_running([*java, "kafka.Kafka", str(configuration)], folder))
        bootstrap = f"{HOST}:{address.port}"
        _await(bootstrap, folder)
        yield bootstrap


def _for_zookeeper(properties: dict[str, str], address: NodeAddress) -> dict[str, str]:
    listener = f"PLAINTEXT://{HOST}:{address.port}"
    kept = {name: value for name, value in properties.items() if name not in _ONLY_KRAFT}
    return kept | {
        "broker.id": "1",
        "zookeeper.connect": f"{HOST}:{address.controller_port}",
        "listeners": listener,
        "advertised.listeners": listener,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _zookeeper(folder: Path, port: int) -> list[str]:
    settings = {"dataDir": str(folder / f"zookeeper-{uuid.uuid4().hex[:6]}"), "clientPort": str(port)}
    settings |= {"clientPortAddress": HOST, "admin.enableServer": "false", "maxClientCnxns": "0"}
    path = folder / "zookeeper.properties"
    path.write_text(render_properties(settings), encoding="ascii")
    return ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(path)]


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "console.log").open("ab") as console:
        process = subprocess.Popen(guarded(command), stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(bootstrap: str, folder: Path) -> None:
    admin = admin_client({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + _START_S
    while not known_brokers(admin):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no broker answers at {bootstrap} after {_START_S:.0f} s; its logs are in {folder}")
