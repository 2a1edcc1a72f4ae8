"""Refuse an option that does not exist, and say what to write instead. Pure.

Every part that takes options by name asks `advice`: settings, listeners, messages, profiles of the command line. A typo
gets the option that it resembles. A name that belongs elsewhere (to another class, or to Kafka) gets its place.
"""

import re
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from typing import Final

from rocketshim.errors import ConfigError

__all__ = ["advice", "check_options"]

_TYPO: Final = 0.85
"""From this similarity on, a name is a typo, and not the name of something else."""

_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])[A-Z]")


def advice(
    name: str,
    known: Collection[str],
    elsewhere: Callable[[str], str] | None = None,
    shown: Callable[[str], str] = str,
) -> str:
    """Return what to write instead of a name that does not exist; `""` if nothing is like it.

    A name in camel case is read as snake case. `elsewhere` returns where a name belongs, or `""`; it is asked unless
    the name is a typo of a known one. `shown` returns the form in which users write a known name.

    Decides: What does the error for an option that does not exist propose? Where a name belongs: `settings.place_of`,
        and for Kafka's own `kafka.client_config.kafka_hint`.
    """
    snake = _CAPITAL.sub(lambda upper: f"_{upper[0].lower()}", name)
    typo = get_close_matches(snake, known, 1, _TYPO)
    place = elsewhere(snake) if elsewhere is not None and not typo else ""
    near = typo or get_close_matches(snake, known, 1)
    return place or (f"did you mean {shown(near[0])}?" if near else "")


def check_options(
    owner: str, given: Iterable[str], known: Collection[str], elsewhere: Callable[[str], str] | None = None
) -> None:
    """Raise a `ConfigError`, with `owner` as its subject, if one of the given options does not exist."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        hint = advice(unknown, known, elsewhere) or f"the options are {', '.join(sorted(known))}"
        raise ConfigError(f"{owner} has no option {unknown}: {hint}")
