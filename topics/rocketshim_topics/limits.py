"""Limits of numbers and texts that several modules check."""

import re
from typing import Final

__all__ = ["CONTROL_CHARACTERS", "EPOCH_SECONDS", "FIRST_RETRY_LEVEL", "INT_MAX", "LONG_MAX"]

INT_MAX: Final = 2**31 - 1
"""Largest `int` of Java."""

LONG_MAX: Final = 2**63 - 1
"""Largest `long` of Java."""

CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""One control character of ASCII or Latin-1."""

EPOCH_SECONDS: Final = range(1_000_000_000, 100_000_000_000)
"""Times in seconds from 2001 on; as milliseconds they would be in 1970 to 1973."""

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry. Source: `AbstractSendMessageProcessor#sendBack` of RocketMQ."""
