"""Positions are read from the records of `__consumer_offsets` as Kafka writes them."""

import struct

import pytest

from proof.chaos.dump import parse_commit
from proof.lines import Commit


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def compact(value: str) -> bytes:
    length = len(value) + 1
    varint = bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])
    return varint + value.encode()


KEY = struct.pack(">h", 1) + text("pay") + text("orders") + struct.pack(">i", 2)
LONG = "m" * 300


@pytest.mark.parametrize(
    ("value", "metadata"),
    [
        (struct.pack(">hq", 1, 17) + text("note") + struct.pack(">qq", 99, 100), "note"),
        (struct.pack(">hqi", 3, 17, 5) + text("note") + struct.pack(">q", 99), "note"),
        (struct.pack(">hqi", 4, 17, 5) + compact("note") + struct.pack(">q", 99) + b"\0", "note"),
        (struct.pack(">hqi", 4, 17, 5) + compact(LONG) + struct.pack(">q", 99) + b"\0", LONG),
        (struct.pack(">hqi", 4, 17, 5) + compact("") + struct.pack(">q", 99) + b"\0", ""),
    ],
)
def test_a_position_of_each_version_is_read(value: bytes, metadata: str) -> None:
    assert parse_commit(KEY, value) == Commit(group="pay", queue="orders/2", position=17, ms=99, metadata=metadata)


def test_what_is_no_position_is_none() -> None:
    assert parse_commit(KEY, None) is None
    assert parse_commit(struct.pack(">h", 2) + text("pay"), b"\0\3") is None
    assert parse_commit(None, b"\0\3") is None
