"""The client id of a broadcasting consumer that was given none: the same after a restart, another for each process."""

import os
import socket
from typing import Final

__all__ = ["PROCESS_VARIABLE", "stable_client_id"]

PROCESS_VARIABLE: Final = "ROCKETSHIM_PROCESS"
"""Environment variable by which `rocketshim run --processes` tells its processes apart: `0`, `1` …"""


def stable_client_id() -> str:
    """`host@DEFAULT`, as RocketMQ's in broadcasting; `host@DEFAULT-1` … of further processes of a `rocketshim run`."""
    number = os.environ.get(PROCESS_VARIABLE, "0")
    return f"{socket.gethostname()}@DEFAULT{'' if number == '0' else f'-{number}'}"
