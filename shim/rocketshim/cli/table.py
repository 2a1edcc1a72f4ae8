"""Print tables on a terminal.

Ids, addresses, names, times and numbers are copied and compared: they are never cut or broken. If a row is too wide for
the terminal, it continues in an indented line. Texts (`_TEXTS`) give way: they are shortened, or wrapped. In a pipe,
each row is one line, and nothing is cut.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import typer
from rich.cells import cell_len, set_cell_size

from rocketshim.core.user_values import one_line

_TEXTS: Final = frozenset({"body", "cause", "effect", "park reason", "subscription", "text", "trouble", "what"})
_LEAST_TEXT: Final = 30


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, wraps: bool = False) -> None:
    """Print a table, or `none` if it has no row."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal or "COLUMNS" in os.environ else None
    head, lines = table_lines(columns, list(rows), width, wraps=wraps)
    titles = [typer.style(line, bold=True) if is_terminal else line for line in head if lines]
    sys.stdout.writelines(f"{line}\n" for line in [*titles, *(lines or ["none"])])  # it escapes what it cannot encode


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, *, wraps: bool = False
) -> tuple[list[str], list[str]]:
    """Return the lines of the heading, and those of the rows; a width of None has no limit.

    On a terminal, columns in which nothing stands are left out.
    """
    shown = [each for each in range(len(columns)) if width is None or any(row[each] for row in rows)]
    titles = [columns[each] for each in shown]
    cells = [[one_line(row[each]) for each in shown] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(titles, *cells, strict=True)]
    numbers = {each for each in range(len(titles)) if _is_numeric([row[each] for row in cells])}
    lines = [list(range(len(titles)))] if width is None else _fit(titles, widths, width)

    def printed(row: Sequence[str], *, wraps: bool = False) -> Iterator[str]:
        for line in lines:
            text = "" if line is lines[0] else "  "
            for each in line[:-1]:
                text += _filled(row[each], widths[each], is_number=each in numbers) + "  "
            last = line[-1]
            if wraps and titles[last] in _TEXTS:
                parts = textwrap.wrap(row[last], widths[last], break_long_words=False, break_on_hyphens=False) or [""]
                yield (text + parts[0]).rstrip()
                yield from (" " * len(text) + part for part in parts[1:])
                continue
            text = (text + _filled(row[last], widths[last], is_number=last in numbers)).rstrip()
            if text or line is lines[0]:
                yield text

    return [*printed(titles)], [line for row in cells for line in printed(row, wraps=wraps)]


def _fit(titles: Sequence[str], widths: list[int], width: int) -> list[list[int]]:
    """Distribute the columns over lines, and reduce the widths of texts to what is left for them."""
    lines: list[list[int]] = []
    rooms: list[int] = []
    for each, title in enumerate(titles):
        least = 2 + (min(widths[each], _LEAST_TEXT) if title in _TEXTS else widths[each])
        if not lines or least > rooms[-1]:
            rooms.append(width if lines else width + 2)  # further lines are indented
            lines.append([])
        lines[-1].append(each)
        rooms[-1] -= least
    for line, room in zip(lines, rooms, strict=True):
        left = room + sum(min(widths[each], _LEAST_TEXT) for each in line if titles[each] in _TEXTS)
        texts = sorted((each for each in line if titles[each] in _TEXTS), key=widths.__getitem__)
        for others, each in zip(reversed(range(len(texts))), texts, strict=True):
            widths[each] = max(1, min(widths[each], left // (others + 1)))
            left -= widths[each]
    return lines


def _filled(cell: str, width: int, *, is_number: bool) -> str:
    if cell_len(cell) > width:
        cell = set_cell_size(cell, width - 1).rstrip() + "…"
    padding = " " * (width - cell_len(cell))
    return padding + cell if is_number else cell + padding


def _is_numeric(column: Sequence[str]) -> bool:
    """Return whether a column holds numbers, and words such as `gone` where there is none."""
    with_digits = [cell for cell in column if re.search("[0-9]", cell)]
    return bool(with_digits) and all(re.fullmatch("[+-]?[0-9]+", cell) for cell in with_digits)
