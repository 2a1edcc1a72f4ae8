"""The page of files: every module, with the first line of its docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.reference.tables import table

__all__ = ["modules", "page"]

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (
    "topics/rocketshim_topics",
    "shim/rocketshim",
    "shim/rocketshim_local",
    "spark/rocketshim_spark",
)
_INTRODUCTION = """\
# Files

What each module is for, by its own first line. [Design](../design.md) explains how they work together, and
[where it is decided](decisions.md) finds the function that answers a question.
"""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Yield every module of the four packages, sorted, with its tree."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def page() -> str:
    """Return the page."""
    folders: dict[str, list[tuple[str, str]]] = {}
    for path, tree in modules():
        line = (ast.get_docstring(tree) or "").partition("\n")[0]
        if path.name != "__init__.py":
            folders.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append((f"`{path.stem}`", line))
    parts = [_INTRODUCTION]
    for folder, rows in sorted(folders.items(), key=lambda each: _rank(each[0])):
        parts += [f"## {folder}", table(("module", "what it is for"), rows)]
    return "\n\n".join(parts) + "\n"


def _rank(folder: str) -> tuple[int, str]:
    return next(at for at, package in enumerate(PACKAGES) if folder.startswith(package)), folder
