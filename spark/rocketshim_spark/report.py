"""The report of a job: a verdict, tables and a bar chart, for the console and as one HTML page.

Pure: the functions return text and write nothing. The page has no script and loads nothing; the chart is inline SVG.
Everything that comes from records is escaped, because failure texts are untrusted.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

__all__ = ["MOST_ROWS", "Report", "Table", "as_html", "as_text", "json_value", "printable", "report_json", "utc"]

_WIDTH: Final = 720
_BAR_HEIGHT: Final = 18
_MAX_CELL_CHARS: Final = 60
_MAX_CONSOLE_ROWS: Final = 50
_MAX_PAGE_ROWS: Final = 1_000
MOST_ROWS: Final = 10_000
"""Maximum number of rows of a table that a report lists; the Delta table of the result has all of them."""

_STYLE: Final = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:76em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:.5em 0 2em}"
    "th,td{padding:.2em .7em;text-align:left;border-bottom:1px solid #ddd}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}.fine{color:#176b2c}.finding{color:#a4161a}"
    "rect{fill:#3b6ea5}text{font:12px system-ui,sans-serif}"
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table: title, column names, rows; and the number of rows that there are (None: these)."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    total: int | None = None

    @classmethod
    def of(cls, title: str, columns: Sequence[str], rows: Sequence[Any], total: int | None = None) -> "Table":
        """Make a table of these columns of collected rows."""
        return cls(title, columns, [tuple(row[name] for name in columns) for row in rows], total)

    @property
    def count(self) -> int:
        """The number of rows that there are."""
        return len(self.rows) if self.total is None else self.total

    def title_of(self, shown: int) -> str:
        """Return the title over the first rows."""
        return self.title if shown == self.count else f"{self.title}: the first {shown:,} of {self.count:,}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a job, for a person.

    Attributes:
        job: name of the job.
        subject: what it was asked about, if it has pages of several (a plan); else empty.
        verdict: the result in one line.
        fine: whether there is no finding.
        tables: the tables, most important first.
        bars: names and numbers of the bar chart; empty: no chart.
        bars_title: what the bars count.
        notes: what the reader must know about these numbers.
    """

    job: str
    verdict: str
    fine: bool
    tables: Sequence[Table] = ()
    bars: Sequence[tuple[str, float]] = ()
    bars_title: str = "messages"
    notes: Sequence[str] = ()
    subject: str = ""

    @property
    def title(self) -> str:
        """The job, and its subject."""
        return f"{self.job} {self.subject}".rstrip()

    @property
    def page(self) -> str:
        """The name of its HTML page."""
        return f"{self.title.replace(' ', '-')}.html"


def as_text(report: Report) -> str:
    """Format the report for a console; the first line is the verdict. A table shows its first 50 rows."""
    lines = [f"{report.title}: {report.verdict}"]
    for table in report.tables:
        cells = [[_shortened(_format_cell(cell)) for cell in row] for row in table.rows[:_MAX_CONSOLE_ROWS]]
        widths = [max([len(name), *(len(row[index]) for row in cells)]) for index, name in enumerate(table.columns)]
        lines += ["", table.title_of(len(cells))]
        for row in [list(table.columns), *cells]:
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if len(table.rows) > len(cells):
            lines.append(f"… and {table.count - len(cells):,} more rows: see the page, or use --json")
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CELL_CHARS else f"{text[: _MAX_CELL_CHARS - 1]}…"


def report_json(report: Report) -> dict[str, Any]:
    """Return the report for programs: each row as an object with the names of the columns."""
    return {
        "job": report.job,
        **({"subject": report.subject} if report.subject else {}),
        "verdict": report.verdict,
        "fine": report.fine,
        "tables": [
            {
                "title": table.title,
                "total": table.count,
                "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
            }
            for table in report.tables
        ],
        "notes": list(report.notes),
    }


def utc(at: dt.datetime) -> dt.datetime:
    """Return the time in UTC of a timestamp that Spark collected: it is in this machine's time zone, without a zone."""
    return at.astimezone(dt.UTC).replace(tzinfo=None)


def json_value(value: Any) -> Any:
    """Return a value of a table that JSON does not have: a time as ISO 8601 in UTC, bytes and others as text."""
    if isinstance(value, dt.datetime):
        return f"{utc(value).isoformat(timespec='milliseconds')}Z"
    return bytes_text(value) if isinstance(value, bytes | bytearray) else str(value)


def bytes_text(value: bytes | bytearray) -> str:
    """Return a key as text, or in hexadecimal if it is no UTF-8, so that two keys never look alike."""
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return f"0x{bytes(value).hex()}"


def as_html(report: Report, *, about: str) -> str:
    """Format the report as one HTML page.

    Args:
        report: the report.
        about: one line about the data it was made from.
    """
    colour = "fine" if report.fine else "finding"
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f"<title>{escape(report.title)}: {escape(report.verdict)}</title><style>{_STYLE}</style>",
        f'<h1>{escape(report.title)}: <span class="{colour}">{escape(report.verdict)}</span></h1>',
        f"<p>{escape(about)}</p>",
    ]
    if report.bars:
        parts += [f"<h2>{escape(report.bars_title)}</h2>", _bars(report.bars)]
    for table in report.tables:
        rows = table.rows[:_MAX_PAGE_ROWS]
        parts.append(f"<h2>{escape(table.title_of(len(rows)))}</h2><table><tr>")
        parts += [f"<th>{escape(name)}</th>" for name in table.columns]
        parts.append("</tr>")
        for row in rows:
            parts.append("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>")
        parts.append("</table>")
    parts += [f"<p>{escape(note)}.</p>" for note in report.notes]
    return "\n".join([*parts, "</html>", ""])


def _bars(bars: Sequence[tuple[str, float]]) -> str:
    highest = max([value for _, value in bars if value > 0], default=1)
    parts = []
    for index, (name, value) in enumerate(bars):
        top = index * (_BAR_HEIGHT + 6)
        length = max(0.0, value) / highest * (_WIDTH - 320)
        parts.append(
            f'<text x="0" y="{top + 13}">{escape(printable(name[:40]))}</text>'
            f'<rect x="240" y="{top}" width="{length:.1f}" height="{_BAR_HEIGHT}"/>'
            f'<text x="{246 + length:.1f}" y="{top + 13}">{escape(_format_cell(value))}</text>'
        )
    height = len(bars) * (_BAR_HEIGHT + 6)
    return f'<svg role="img" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">{"".join(parts)}</svg>'


def _cell(value: Any) -> str:
    kind = ' class="n"' if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return f"<td{kind}>{escape(_format_cell(value))}</td>"


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dt.datetime):
        return utc(value).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(_format_cell(each) for each in value)
    return printable(bytes_text(value) if isinstance(value, bytes | bytearray) else str(value))


def printable(text: str) -> str:
    """Replace control and non-printable characters by spaces, so that untrusted text is safe to print on one line."""
    return "".join(char if char.isprintable() else " " for char in text)
