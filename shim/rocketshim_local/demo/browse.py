"""Show what the demo kept in `rocketshim console`."""

import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final

__all__ = ["browse"]

_PORT: Final = 8085


def browse(bootstrap: str, namespace: str, levels: str) -> None:
    """Run the console in a process of its own, which prints its address, until Ctrl-C."""
    command = [sys.executable, "-m", "rocketshim", "console", "--operate", "--listen", str(_free_port())]
    scope = ["--bootstrap", bootstrap, "--namespace", namespace, "--delay-levels", levels]
    with subprocess.Popen([*command, *scope]) as process:  # noqa: S603 - our own command
        try:
            process.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the console, too
            process.wait()


def _free_port() -> int:
    """Return the console's usual port, or any free one if that is in use."""
    for port in (_PORT, 0):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    return _PORT
