"""Setting a producer quota on brokers. The Kafka client has no call for it, so this writes the requests itself."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["client_quota", "producer_quota"]

_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_ALTER_CLIENT_QUOTAS: Final = 49
_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.5


@contextmanager
def producer_quota(
    bootstrap: str, client_id: str, bytes_per_s: int, login: tuple[str, str] | None = None
) -> Iterator[None]:
    """Limit what all producers with this client id write to each broker, for the time of the block.

    Args:
        bootstrap: addresses of brokers; the first one that answers is asked.
        client_id: of the producers.
        bytes_per_s: the quota.
        login: user and password, for SASL/PLAIN; None: the brokers ask for none.
    """
    with _quota(["producer_byte_rate"], bootstrap, client_id, bytes_per_s, login):
        yield


@contextmanager
def client_quota(bootstrap: str, client_id: str, bytes_per_s: int) -> Iterator[None]:
    """Limit what all clients with this client id read and write, as `producer_quota`."""
    with _quota(["producer_byte_rate", "consumer_byte_rate"], bootstrap, client_id, bytes_per_s, None):
        yield


@contextmanager
def _quota(
    kinds: list[str], bootstrap: str, client_id: str, bytes_per_s: int, login: tuple[str, str] | None
) -> Iterator[None]:
    def alter(*, remove: bool) -> None:
        changes = b"".join(_text(kind) + struct.pack(">d?", bytes_per_s, remove) for kind in kinds)
        _alter(bootstrap, client_id, struct.pack(">i", len(kinds)) + changes, login)

    alter(remove=False)
    try:
        yield
    finally:
        alter(remove=True)


def _alter(bootstrap: str, client_id: str, change: bytes, login: tuple[str, str] | None) -> None:
    entity = struct.pack(">i", 1) + _text("client-id") + _text(client_id)
    request = struct.pack(">i", 1) + entity + change + b"\0"  # not only validated
    end = time.monotonic() + _TIMEOUT_S
    while True:
        for address in bootstrap.split(","):
            try:
                _ask(address, request, login)
            except (OSError, struct.error, _RefusedError):  # this broker is away, or has no controller just now
                if time.monotonic() > end:
                    raise
            else:
                return
        time.sleep(_PAUSE_S)


class _RefusedError(Exception):
    """The broker answers with an error."""


def _ask(address: str, request: bytes, login: tuple[str, str] | None) -> None:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        if login is not None:
            _call(connection, _SASL_HANDSHAKE, 1, _text("PLAIN"), ">h")
            proof = "\0".join(("", *login)).encode()
            _call(connection, _SASL_AUTHENTICATE, 0, struct.pack(">i", len(proof)) + proof, ">h")
        _call(connection, _ALTER_CLIENT_QUOTAS, 0, request, ">8xh")  # throttle time, number of entries, error


def _call(connection: socket.socket, api: int, version: int, body: bytes, error_at: str) -> None:
    request = struct.pack(">hhi", api, version, 1) + _text("quota") + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    with connection.makefile("rb") as answers:
        (size,) = struct.unpack(">i", answers.read(4))
        answer = answers.read(size)
    (error,) = struct.unpack_from(error_at, answer, 4)  # behind the correlation id
    if error != 0:
        raise _RefusedError(f"the broker answered error {error} to request {api}")


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
