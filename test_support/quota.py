"""Setting a producer quota on a broker. The Kafka client has no call for it, so this writes the request itself."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

__all__ = ["producer_quota"]

_ALTER_CLIENT_QUOTAS: Final = 49
_TIMEOUT_S: Final = 30.0


@contextmanager
def producer_quota(bootstrap: str, client_id: str, bytes_per_s: int) -> Iterator[None]:
    """Limit what all producers with this client id write to one broker, for the time of the block."""
    _alter(bootstrap, client_id, bytes_per_s, remove=False)
    with ExitStack() as after:
        after.callback(_alter, bootstrap, client_id, bytes_per_s, remove=True)
        yield


def _alter(bootstrap: str, client_id: str, bytes_per_s: int, *, remove: bool) -> None:
    entity = struct.pack(">i", 1) + _text("client-id") + _text(client_id)
    change = struct.pack(">i", 1) + _text("producer_byte_rate") + struct.pack(">d?", bytes_per_s, remove)
    header = struct.pack(">hhi", _ALTER_CLIENT_QUOTAS, 0, 1) + _text("quota")
    request = header + struct.pack(">i", 1) + entity + change + b"\0"  # not only validated
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    _, _, count, error = struct.unpack_from(">iiih", answer)
    if (count, error) != (1, 0):
        raise RuntimeError(f"the broker answered error {error}")


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
