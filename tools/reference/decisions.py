"""The page "Where it is decided": the questions that a function or class answers alone, from its docstring.

A docstring names such a question in a paragraph that begins with `Decides:`. The answer may follow it, and names in
backticks those that take part.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tools.reference.files import ROOT, modules
from tools.reference.tables import table

__all__ = ["Decision", "decisions", "page"]

_INTRODUCTION = """\
# Where it is decided

Each of these decides alone. Names are those in `rocketshim`, if they do not begin with another package.
"""
_ENTRY = re.compile(r"^[ ]*Decides: (.+(?:\n[ ]+(?!Decides: )\S.*)*)", re.MULTILINE)
_Node = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Decision(NamedTuple):
    """A question, who decides, and what else is written about it."""

    folder: str
    question: str
    name: str
    answer: str


def decisions() -> Iterator[Decision]:
    """Yield every decision, in the order of the files."""
    for path, tree in modules():
        parts = path.relative_to(ROOT).with_suffix("").parts[1:]
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts).removeprefix("rocketshim.")
        for name, node in _documented(tree, module):
            for entry in _ENTRY.finditer(ast.get_docstring(node) or ""):
                question, mark, answer = " ".join(entry[1].split()).partition("?")
                yield Decision(path.parent.relative_to(ROOT).as_posix(), question + mark, name, answer.strip())


def page() -> str:
    """Return the page."""
    folders: dict[str, list[Decision]] = {}
    for each in decisions():
        folders.setdefault(each.folder, []).append(each)
    parts = [_INTRODUCTION]
    for folder, found in folders.items():
        rows = [(each.question, f"`{each.name}`", each.answer) for each in found]
        parts += [f"## {folder}", table(("question", "decided by", "answer"), rows)]
    return "\n\n".join(parts) + "\n"


def _documented(node: _Node, name: str) -> Iterator[tuple[str, _Node]]:
    yield name, node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(child, f"{name}.{child.name}")
