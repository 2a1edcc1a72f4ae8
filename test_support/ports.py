"""Free ports of this machine, for programs that tests start."""

import random
import socket
from itertools import islice

__all__ = ["free_ports", "is_free"]

_PORT_RANGE = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return random ports of the loopback on which nothing listens now.

    They are below the range from which Linux takes the ports of outgoing connections (32768 and up), so that only
    another listener can take one before it is used.
    """
    return list(islice(filter(is_free, random.sample(_PORT_RANGE, k=len(_PORT_RANGE))), count))


def is_free(port: int) -> bool:
    """Return whether a process could listen on this port of the loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: ignore closing connections
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
