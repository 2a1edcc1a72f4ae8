"""One node of a local cluster: its files, its process and its log.

The process is a JVM that was started through `rocketshim_local.watchdog`, so it ends when our process ends. It leads
its own session: Ctrl-C at a terminal reaches only the process that owns the cluster, which stops the nodes cleanly.
"""

import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocketshim.errors import LocalBrokerError
from rocketshim_local.home import random_id
from rocketshim_local.server_properties import NodeAddress, render_properties
from rocketshim_local.startup_kit import BOOTSTRAP_CHECKPOINT
from rocketshim_local.watchdog import guarded

__all__ = ["Node"]

_LAST_LINES = 15


class Node:
    """A node, with or without a running process; `logs` has `server.log` (Kafka's) and `console.log` (the JVM's)."""

    def __init__(self, address: NodeAddress, home: Path) -> None:
        self.address = address
        self._home = home / f"node-{address.node_id}"
        self.data, self.logs = self._home / "data", self._home / "log"
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process exists, running or paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The running process; a LocalBrokerError if there is none."""
        if self._process is None or self._process.poll() is not None:
            raise LocalBrokerError(f"node {self.address.node_id} is not running: restart it first")
        return self._process

    def configure(self, cluster_id: str, properties: Mapping[str, str], java_command: Sequence[str]) -> None:
        """Write the node's configuration, and format its data folder for this cluster if it is new."""
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
        self._command = [*java_command, "kafka.Kafka", str(configuration)]

    def launch(self) -> None:
        """Start the process; do not wait until the broker is ready. The previous process must have ended."""
        with (self.logs / "console.log").open("wb") as console:
            self._process = subprocess.Popen(  # noqa: S603 our own interpreter and the user's Java
                guarded(self._command),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                start_new_session=True,
            )

    def request_stop(self) -> None:
        """Send SIGTERM for a clean stop, and resume a paused process; do nothing if the process has ended."""
        if self._process is not None:
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

    def failure(self, what: str) -> LocalBrokerError:
        """Return the error for what the node did or did not do, with the last lines that it logged and printed."""
        lines: deque[str] = deque(maxlen=_LAST_LINES)
        for file in (self.logs / "server.log", self.logs / "console.log"):
            if file.exists():
                with file.open(encoding="utf-8", errors="replace") as text:
                    lines.extend(line.rstrip("\n") for line in text)
        if self._process is not None and self._process.poll() is not None:
            what = f"ended with exit code {self._process.returncode}"
        return LocalBrokerError(
            f"node {self.address.node_id} of the local cluster {what}; its logs are in {self.logs}; the last lines:\n"
            + "\n".join(lines)
        )
