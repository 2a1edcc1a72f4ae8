"""The page of message attributes: what a sender gives and what a listener sees, from the docstrings of both classes."""

import inspect

import griffe

from rocketshim import Message, MessageView
from tools.reference.tables import table

__all__ = ["page"]

_INTRODUCTION = """\
# Message attributes

A sender makes a `Message`; a listener gets a `MessageView`. Both are read-only. [Sending](../sending.md) and
[consuming](../consumer.md) show how they are used, [the wire format](../wire-format.md) shows the headers.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([
        _INTRODUCTION,
        "## What you send: `Message`\n",
        table(("argument", "meaning"), _arguments()),
        "## What a listener sees: `MessageView`\n",
        table(("attribute", "meaning"), _attributes()),
        "User properties are in `properties` (as text) and in `headers` (as bytes, with repeats).\n",
    ])  # fmt: skip


def _arguments() -> list[tuple[str, str]]:
    docstring = griffe.Docstring(inspect.getdoc(Message) or "", parser="google")
    sections = docstring.parse(warnings=False)
    return [
        (f"`{each.name}`", each.description)
        for section in sections
        if isinstance(section, griffe.DocstringSectionParameters)
        for each in section.value
    ]


def _attributes() -> list[tuple[str, str]]:
    found = inspect.getmembers(MessageView, lambda member: isinstance(member, property))
    return [(f"`{name}`", inspect.getdoc(member) or "") for name, member in found if not name.startswith("_")]
