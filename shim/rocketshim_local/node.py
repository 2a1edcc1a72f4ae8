"""One node of a local cluster: its files, its process and its log.

The process is a JVM that was started through `rocketshim_local.watchdog`, so it ends when our process ends. It leads
its own session: Ctrl-C at a terminal reaches only the process that owns the cluster, which stops the nodes cleanly.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocketshim.errors import LocalBrokerError
from rocketshim_local.home import random_id
from rocketshim_local.server_properties import NodeAddress, render_properties
from rocketshim_local.startup_kit import BOOTSTRAP_CHECKPOINT

__all__ = ["Node"]

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_PORT_TAKEN = "Address already in use"  # java.net.BindException, errno 98


class Node:
    """A node, with or without a running process.

    Args:
        address: id and ports of the node.
        home: folder of the node.

    Attributes:
        data: folder of Kafka's data (records and metadata).
        logs: folder of `server.log` (Kafka's log) and `console.log` (output of the JVM).

    Thread-safety: one thread at a time.
    """

    def __init__(self, address: NodeAddress, home: Path) -> None:
        self.address = address
        self.data, self.logs = home / "data", home / "log"
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._java_command: tuple[str, ...] = ()
        self._log_start_bytes = 0

    @property
    def alive(self) -> bool:
        """Whether the process exists, running or paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last process, negative for a signal; None while it runs and before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process.

        Raises:
            LocalBrokerError: it has ended or was never started.
        """
        if self._process is None or self._process.poll() is not None:
            raise LocalBrokerError(f"node {self.address.node_id} is not running: restart it first")
        return self._process

    def configure(self, cluster_id: str, properties: Mapping[str, str], java_command: Sequence[str]) -> None:
        """Write the node's configuration, and format its data folder for this cluster if it is new.

        Args:
            cluster_id: id of the cluster that the data folder belongs to.
            properties: the whole configuration of the broker.
            java_command: absolute path of `java` and the options of the JVM, for every `launch`.
        """
        self._java_command = tuple(java_command)
        self.data.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        meta = self.data / "meta.properties"
        if not meta.exists():
            shutil.copyfile(BOOTSTRAP_CHECKPOINT, self.data / "bootstrap.checkpoint")
            identity = {"version": "1", "cluster.id": cluster_id, "node.id": str(self.address.node_id)}
            meta.write_text(render_properties(identity | {"directory.id": random_id()}), encoding="ascii")
        configuration = self._home / "server.properties"
        configuration.touch(mode=0o600)  # it may contain passwords
        configuration.write_text(render_properties(properties), encoding="ascii")

    def launch(self) -> None:
        """Start the process; do not wait until the broker is ready. The previous process must have ended."""
        server_log = self.logs / "server.log"
        self._log_start_bytes = server_log.stat().st_size if server_log.exists() else 0
        command = [sys.executable, "-I", "-S", str(_WATCHDOG), str(os.getpid()), *self._java_command]
        command += ["kafka.Kafka", str(self._home / "server.properties")]
        with (self.logs / "console.log").open("wb") as console:
            self._process = subprocess.Popen(  # noqa: S603 our own interpreter and the user's Java
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                start_new_session=True,
            )

    def request_stop(self) -> None:
        """Send SIGTERM for a clean stop, and resume a paused process; do nothing if the process has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)

    def await_end(self, timeout_s: float = 0.0) -> bool:
        """Wait until the process has ended, and kill it after `timeout_s` seconds; return whether it ended by then."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines that the node logged or printed since its last launch."""
        text: list[str] = []
        for file, start_bytes in ((self.logs / "server.log", self._log_start_bytes), (self.logs / "console.log", 0)):
            if file.exists():
                with file.open("rb") as handle:
                    # A log that is shorter than at launch was rolled over since: read it from its beginning.
                    handle.seek(start_bytes if file.stat().st_size >= start_bytes else 0)
                    text += handle.read().decode("utf-8", errors="replace").splitlines()[-lines:]
        return "\n".join(text[-lines:])

    def found_port_taken(self) -> bool:
        """Return whether the last process ended because another process listens on one of its ports."""
        return not self.alive and _PORT_TAKEN in self.log_tail(400)
