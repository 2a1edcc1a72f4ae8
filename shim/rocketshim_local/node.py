"""One node of a local cluster: its files, its process, and what its log says.

The process is a JVM that began as `rocketshim_local.watchdog` and so dies with this one. It leads a session of its own:
Ctrl-C at a terminal is for the process that owns the cluster, which stops the nodes in order.
"""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocketshim.errors import LocalBrokerError
from rocketshim_local.server_properties import NodeAddress, meta_properties, render_properties
from rocketshim_local.startup_kit import StartupKit

__all__ = ["Node"]

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_PORT_TAKEN = "Address already in use"  # java.net.BindException, errno 98


class Node:
    """A node, alive or not.

    Args:
        address: its id and ports.
        home: its folder.

    Thread-safety: one thread at a time.
    """

    def __init__(self, address: NodeAddress, home: Path) -> None:
        self.address = address
        self.home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._java_command: tuple[str, ...] = ()
        self._log_start_bytes = 0

    @property
    def data(self) -> Path:
        """The folder of its records."""
        return self.home / "data"

    @property
    def logs(self) -> Path:
        """The folder of `server.log` (Kafka's log) and `console.log` (what the JVM printed)."""
        return self.home / "log"

    @property
    def alive(self) -> bool:
        """Whether its process runs, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last process, negative for a signal; None while it runs and before its first start."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """Process id.

        Raises:
            LocalBrokerError: it is not alive.
        """
        return self._living().pid

    def format(self, kit: StartupKit, cluster_id: str, properties: Mapping[str, str]) -> None:
        """Write its configuration, and make its data folder one of this cluster unless it is already."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        meta = self.data / "meta.properties"
        if not meta.exists():
            shutil.copyfile(kit.bootstrap_checkpoint, self.data / "bootstrap.checkpoint")
            text = render_properties(meta_properties(self.address.node_id, cluster_id, uuid.uuid4()))
            meta.write_text(text, encoding="ascii")
        configuration = self.home / "server.properties"
        configuration.touch(mode=0o600)  # passwords may stand in it
        configuration.write_text(render_properties(properties), encoding="ascii")

    def launch(self, java_command: Sequence[str]) -> None:
        """Start its process; returns at once.

        Args:
            java_command: `java`, an absolute path, and the options of its JVM; kept for `relaunch`.
        """
        self._java_command = tuple(java_command)
        server_log = self.logs / "server.log"
        self._log_start_bytes = server_log.stat().st_size if server_log.exists() else 0
        command = [sys.executable, "-I", "-S", str(_WATCHDOG), str(os.getpid()), *java_command]
        command += ["kafka.Kafka", str(self.home / "server.properties")]
        with (self.logs / "console.log").open("wb") as console:
            self._process = subprocess.Popen(  # noqa: S603 our own interpreter and the user's Java
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                start_new_session=True,
            )

    def relaunch(self) -> None:
        """Start its process again as before; it has ended."""
        self.launch(self._java_command)

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal.

        Raises:
            LocalBrokerError: it is not alive.
        """
        self._living().send_signal(number)

    def request_stop(self) -> None:
        """Ask it to end in order, frozen or not; no effect when it is not alive."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until its process has ended, `timeout_s` seconds at most; tell whether it has."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End its process with SIGKILL and wait for its end; no effect when it is not alive."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of what it said since its last launch."""
        text: list[str] = []
        for file, start_bytes in ((self.logs / "server.log", self._log_start_bytes), (self.logs / "console.log", 0)):
            if file.exists():
                with file.open("rb") as handle:
                    # Shorter than at launch: the log was rolled over in between.
                    handle.seek(start_bytes if file.stat().st_size >= start_bytes else 0)
                    text += handle.read().decode("utf-8", errors="replace").splitlines()[-lines:]
        return "\n".join(text[-lines:])

    def found_port_taken(self) -> bool:
        """Tell whether its last process ended because somebody else listens on one of its ports."""
        return not self.alive and _PORT_TAKEN in self.log_tail(400)

    def _living(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            raise LocalBrokerError(f"node {self.address.node_id} is not alive: restart it first")
        return self._process
