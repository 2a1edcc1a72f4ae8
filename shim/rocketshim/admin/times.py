"""Times as people type them: how long ago (`2h`), or at which time (`2026-11-20T18:00:00Z`). Pure."""

from datetime import UTC, datetime

from rocketshim.errors import ConfigError
from rocketshim_topics import parse_duration_ms

__all__ = ["past_ms", "time_ms"]

_EXAMPLE = "2026-11-20T18:00:00Z"


def past_ms(text: str, now_ms: int, option: str) -> int:
    """Return the time that a text names, epoch ms: a duration before now, or a time as for `time_ms`."""
    try:
        return max(0, now_ms - parse_duration_ms(text))
    except ConfigError:
        pass
    return time_ms(text, option, otherwise="a duration before now (30m, 2h, 3d), or ")


def time_ms(text: str, option: str, *, otherwise: str = "") -> int:
    """Return the time of an ISO 8601 text, epoch ms; without a time zone it is UTC.

    Anything else, or a time before 1970, is a ConfigError that says what to write: `otherwise`, and an example.
    """
    try:
        at = datetime.fromisoformat(text)
        at_ms = int((at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp() * 1_000)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option} {text!r}: write {otherwise}a time such as {_EXAMPLE}") from error
    if at_ms < 0:
        raise ConfigError(f"{option} {text!r} is before 1970: write {otherwise}a time such as {_EXAMPLE}")
    return at_ms
