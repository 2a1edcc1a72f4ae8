"""The default client id of a broadcasting consumer: the same after a restart, and different in each process."""

import os
import socket
from typing import Final

__all__ = ["PROCESS_VARIABLE", "stable_client_id"]

PROCESS_VARIABLE: Final = "ROCKETSHIM_PROCESS"
"""Environment variable in which `rocketshim run --processes` gives each process its number: `0`, `1` …"""


def stable_client_id() -> str:
    """Return `host@DEFAULT`, as in RocketMQ's broadcasting; `host@DEFAULT-1` … in other processes of a run."""
    number = os.environ.get(PROCESS_VARIABLE, "0")
    return f"{socket.gethostname()}@DEFAULT{'' if number == '0' else f'-{number}'}"
