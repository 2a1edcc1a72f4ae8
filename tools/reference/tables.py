"""Markdown tables."""

from collections.abc import Iterable, Sequence

__all__ = ["cell", "table"]


def cell(text: str) -> str:
    """Return a text that stands in one cell of a table: on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or an empty text where there are no rows."""
    lines = ["| " + " | ".join(cell(each) for each in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *lines, ""])
