"""The page of errors: the tree of `rocketshim.errors`, each error with its docstring."""

import inspect

from rocketshim import errors

__all__ = ["page"]

_INTRODUCTION = """\
# Errors

Every error that rocketshim raises is a `RocketshimError`; import it from `rocketshim.errors`. The text of an error
names what happened, to what, and what to do. A normal outcome, such as a failed message, is not an error: a listener
raises or returns it ([consuming](../consumer.md)).
"""


def page() -> str:
    """Return the page."""
    root = errors.RocketshimError
    return "\n".join([_INTRODUCTION, "```text", *_tree(root), "```", "", *_sections(root)])


def _children(error: type[errors.RocketshimError]) -> list[type[errors.RocketshimError]]:
    found: list[type[errors.RocketshimError]] = [
        each for each in error.__subclasses__() if each.__name__ in errors.__all__
    ]
    return sorted(found, key=lambda each: each.__name__)


def _tree(error: type[errors.RocketshimError], indent: str = "") -> list[str]:
    lines = [f"{indent}{error.__name__}"]
    for child in _children(error):
        lines += _tree(child, indent + "    ")
    return lines


def _sections(error: type[errors.RocketshimError]) -> list[str]:
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    first, _, rest = (inspect.getdoc(error) or "").partition("Attributes:")
    lines = [f"## {error.__name__}", "", first.strip(), "", f"Bases: {bases}.", ""]
    for attribute in filter(None, inspect.cleandoc(rest).splitlines()):
        name, _, meaning = attribute.strip().partition(": ")
        lines.append(f"- `{name}`: {meaning}")
    if rest:
        lines.append("")
    for child in _children(error):
        lines += _sections(child)
    return lines
