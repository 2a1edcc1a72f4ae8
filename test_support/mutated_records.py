"""Headers that differ from those of a sound record in one to six places, for tests of what reads records of others."""

import random
from collections.abc import Iterator

from rocketshim_topics import wire

__all__ = ["Header", "mutated"]

Header = tuple[str, bytes | None]

NAMES = [*sorted(wire.RESERVED), "mine", "USER.TAGS", "USER.USER.TAGS", "USER.%0A", "ü", "x\ny", "", "\x00", "a" * 200]
NUMBERS = [
    b"0",
    b"1",
    b"-1",
    b"007",
    b"1e3",
    b"9223372036854775807",
    b"9223372036854775808",
    "١٢".encode(),
    b" 1",
    b"+1",
]
TEXTS = [
    b"",
    b"orders",
    b"%RETRY%g",
    b"%DLQ%",
    b"rmq.parked",
    b"\xff\xfe",
    b"a/../b",
    b"t/0/1",
    b"\x00",
    b"\xed\xa0\x80",
]
VALUES: list[bytes | None] = [None, *NUMBERS, *TEXTS, b"x" * 400]
SOUND: list[Header] = [
    ("SHIM", b"1"), ("REAL_TOPIC", b"orders"), ("REAL_QID", b"3"), ("DELAY", b"2"), ("UNIQ_KEY", b"u"), ("TAGS", b"t"),
    ("BORN_TIMESTAMP", b"1700000001000"), ("RECONSUME_TIMES", b"2"), ("CONSUMER_GROUP", b"g"), ("HOP_ID", b"t/0/1"),
    ("mine", b"\x00\xff"), ("mine", None),
]  # fmt: skip


def mutated(draw: random.Random) -> Iterator[list[Header]]:
    """Records with one to six changes of a sound one, without end."""
    while True:
        headers = list(SOUND)
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(headers)) if headers else 0
            match draw.randrange(6) if headers else 0:
                case 0:
                    headers.insert(at, (draw.choice(NAMES), draw.choice(VALUES)))
                case 1:
                    del headers[at]
                case 2:
                    headers[at] = headers[at][0], draw.choice(VALUES)
                case 3:
                    headers.append(headers[at])
                case 4:
                    value = bytearray(headers[at][1] or b"\x00")
                    if value:
                        value[draw.randrange(len(value))] ^= 1 << draw.randrange(8)
                    headers[at] = headers[at][0], bytes(value)
                case _:
                    headers[at] = headers[at][0], draw.randbytes(draw.randrange(30))
        yield headers
