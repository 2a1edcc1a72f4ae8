"""Options that were renamed: the old spelling still works, and a warning names the new one. Pure.

`RENAMED` is the whole list. Remove an entry only in a release that may break scripts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

__all__ = ["RENAMED", "current_words"]

RENAMED: Final[dict[str, dict[str, str]]] = {
    "rocketshim init": {"--mend": "--fix"},
    "rocketshim parked redrive": {"--again NAME": "--again --plan NAME"},
    "rocketshim spark land": {"--client-property": "--client", "--kafka-property": "--java-client"},
    "rocketshim spark dlq-trend": {"--client-property": "--client"},
    "rocketshim spark replay run": {"--client-property": "--client", "--max-per-second": "--rate"},
    "rocketshim spark replay verify": {"--client-property": "--client", "--kafka-property": "--java-client"},
}
"""Command to its old options and what to write now. `NAME` stands for the option's value."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def current_words(
    words: Sequence[str], renames: Mapping[str, str], takes_value: Callable[[str], bool]
) -> tuple[list[str], dict[str, str]]:
    """Return a command line in today's spelling, and each old spelling in it with the new one.

    Values of options, and everything behind `--`, stay as they are, whatever they look like.

    Args:
        words: the words behind the command.
        renames: the command's entry in `RENAMED`.
        takes_value: whether an option, in today's spelling, is followed by a value.
    """
    found: list[str] = []
    used: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*found, word, *left], used
        option, equals, value = word.partition("=")
        old = f"{option} NAME"
        if old in renames and (equals or (left and _NAME.fullmatch(left[0]) and not left[0].startswith("-"))):
            used[old] = renames[old]
            found += renames[old].replace("NAME", value if equals else left.pop(0)).split(" ")
            continue
        if option in renames:
            used[option] = option = renames[option]
        found.append(f"{option}{equals}{value}")
        if not equals and left and takes_value(option):
            found.append(left.pop(0))
    return found, used
