"""Causes of failures: the exception class, and the text without what differs from message to message. Pure.

Two failures have the same *fingerprint* if their texts differ only in numbers and ids: each run of 8 or more hex
digits, and each run of decimal digits, is replaced by `#`.
"""

import hashlib
import re
from typing import Final

from rocketshim_topics.hops import MAX_FAIL_TEXT_BYTES

__all__ = ["FINGERPRINT_PATTERN", "MAX_FINGERPRINT_CHARS", "cause_id", "fingerprint"]

FINGERPRINT_PATTERN: Final = r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+"
"""The texts that a fingerprint replaces by `#`."""

MAX_FINGERPRINT_CHARS: Final = 120

_ID: Final = re.compile(FINGERPRINT_PATTERN)


def fingerprint(text: str | None) -> str:
    """Return a failure's text with numbers and ids replaced by `#`, cut to 120 characters.

    Only the first 1,024 characters, the longest text that rocketshim writes, are examined: a long foreign text could
    take hours.
    """
    return _ID.sub("#", (text or "")[:MAX_FAIL_TEXT_BYTES])[:MAX_FINGERPRINT_CHARS]


def cause_id(cause: str, text: str) -> str:
    """Return the id of a cause, given by its class and the fingerprint of its text: 12 hex digits of a SHA-256.

    It can be typed, copied and put into a URL, whatever characters the texts have; nobody can make another cause that
    has the same.
    """
    return hashlib.sha256(f"{len(cause)}:{cause}{text}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
