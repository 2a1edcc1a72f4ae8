"""What a worker writes for those who look at it: the metadata of its commits, and a reason for parking. Pure."""

import re
from typing import Final

from rocketshim_topics.errors import ConfigError
from rocketshim_topics.levels import DelayLevels

__all__ = ["NOT_ALLOWED", "UNANSWERED", "clock_ahead_ms_of", "levels_metadata", "levels_of"]

NOT_ALLOWED: Final = "forbidden-target:not-allowed"
"""The only refusal of a target that depends on the worker: another worker may have a longer allow-list."""

UNANSWERED: Final = "transaction-unanswered"
"""Why a half message is parked: no producer has said what became of its transaction."""

_LEVELS_MARK: Final = "rs1-levels;"
_CLOCK_MARK: Final = ";clock-ahead-ms="


def levels_metadata(levels: DelayLevels, clock_ahead_ms: int = 0) -> str:
    """Return the metadata of a worker's commits, about 500 ASCII characters at most (Kafka: 4,096).

    `clock_ahead_ms`: how far its machine's clock is ahead of the brokers' (negative: behind); 0: it is right.
    """
    return f"{_LEVELS_MARK}{levels}" + (f"{_CLOCK_MARK}{clock_ahead_ms}" if clock_ahead_ms else "")


def levels_of(metadata: str | None) -> DelayLevels | None:
    """Return the level table in a commit's metadata; None: no worker wrote this commit."""
    if metadata is None or not metadata.startswith(_LEVELS_MARK):
        return None
    try:
        return DelayLevels.parse(metadata.removeprefix(_LEVELS_MARK).partition(_CLOCK_MARK)[0])
    except ConfigError:
        return None


def clock_ahead_ms_of(metadata: str | None) -> int:
    """Return how far a worker's clock was ahead of the brokers' when it wrote a commit with this metadata, in ms."""
    text = "" if levels_of(metadata) is None else (metadata or "").partition(_CLOCK_MARK)[2]
    return int(text) if re.fullmatch("-?[0-9]{1,15}", text) else 0
