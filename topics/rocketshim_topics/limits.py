"""Limits of numbers and texts that several modules check."""

import re
from typing import Final

__all__ = ["CONTROL_CHARACTERS", "FIRST_RETRY_LEVEL", "INT_MAX", "LONG_MAX"]

INT_MAX: Final = 2**31 - 1
"""Largest `int` of Java."""

LONG_MAX: Final = 2**63 - 1
"""Largest `long` of Java."""

CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""One control character of ASCII or Latin-1."""

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry. Source: `AbstractSendMessageProcessor#sendBack` of RocketMQ."""
