"""The report of a job: a verdict, charts and tables, for the terminal and as one HTML page.

Pure: the functions return text and write nothing. All pages have one template (`as_html`). A page has no script and
loads nothing; charts are inline SVG. It follows the reader's light or dark mode; on a phone, wide tables and charts
scroll inside themselves. Everything that comes from records is escaped, because failure texts are untrusted.
"""

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final
from urllib.parse import quote

__all__ = [
    "EVERYTHING",
    "MOST_ROWS",
    "Chart",
    "Link",
    "Report",
    "Table",
    "as_html",
    "as_text",
    "bytes_text",
    "json_value",
    "printable",
    "report_json",
    "utc",
]

_WIDTH: Final = 720
_BAR_HEIGHT: Final = 18
_MAX_CELL_CHARS: Final = 60
_MAX_CONSOLE_ROWS: Final = 50
_MAX_PAGE_ROWS: Final = 1_000
EVERYTHING: Final = "report"
"""The job that answers all questions; its page is `index.html`."""
MOST_ROWS: Final = 10_000
"""Maximum number of rows of a table that a report lists; the Delta table of the result has all of them."""

_CHART_HEIGHT: Final = 180
_MAX_LABELS: Final = 6
_STYLE: Final = (
    ":root{color-scheme:light dark;--ink:#222;--paper:#fff;--line:#ddd;--link:#0b5394;--fine:#176b2c;--finding:#a4161a;"
    "--c0:#3b6ea5;--c1:#b3541e;--c2:#3f7d4f;--c3:#8a4f9e;--c4:#8a6d00;--c5:#6b6b6b}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#16181c;--line:#3a3f47;--link:#8ab8f0;--fine:#7bd88f;"
    "--finding:#ff8a8e;--c0:#7aa7d9;--c1:#e59866;--c2:#82c995;--c3:#c79ad6;--c4:#d6b94a;--c5:#a6a6a6}}"
    "body{font:14px/1.45 system-ui,sans-serif;margin:1.5em auto;max-width:76em;padding:0 1em;color:var(--ink);"
    "background:var(--paper);overflow-wrap:anywhere}"
    "a{color:var(--link)}nav ul{display:flex;flex-wrap:wrap;gap:.2em 1.2em;list-style:none;padding:0}"
    "[aria-current]{font-weight:bold;color:inherit}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;margin:.5em 0 2em}"
    "th,td{padding:.2em .7em;text-align:left;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}"
    "td.t{white-space:normal;min-width:12em;max-width:40em}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".fine{color:var(--fine)}.finding{color:var(--finding)}"
    "svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg path{stroke:var(--line)}"
    "polyline{fill:none;stroke-width:2}.key{display:flex;flex-wrap:wrap;gap:.2em 1.2em;list-style:none;padding:0}"
    ".key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}"
    + "".join(f".c{n}{{fill:var(--c{n})}}.l{n}{{stroke:var(--c{n})}}i.c{n}{{background:var(--c{n})}}" for n in range(6))
)
_HEADINGS: Final = {"grp": "group", "fail_class": "exception", "fingerprint": "text", "is_new": "new", "msg_id": "id"}
_TEXTS: Final = frozenset({"fingerprint", "fail_class", "answer", "reason"})
_PLACES: Final = frozenset({"coordinates", "sample", "oldest", "origin", "found_at"})
_PLACE: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}/[0-9]{1,10}/[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to another page; as text, its words."""

    text: str
    href: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Chart:
    """Numbers over time.

    Attributes:
        title: what it shows.
        labels: the times, one for each number of a series.
        series: name and numbers of each series, at most six; None: no number.
        stacked: whether they are bars on top of each other, else lines.
    """

    title: str
    labels: Sequence[str]
    series: Sequence[tuple[str, Sequence[float | None]]]
    stacked: bool = False


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
        charts: numbers over time.
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
    charts: Sequence[Chart] = ()

    @property
    def title(self) -> str:
        """The job, and its subject."""
        return f"{self.job} {self.subject}".rstrip()

    @property
    def page(self) -> str:
        """The name of its HTML page."""
        return "index.html" if self.job == EVERYTHING else f"{self.title.replace(' ', '-')}.html"


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


def as_html(report: Report, *, about: str, pages: Sequence[Link] = (), console: str | None = None) -> str:
    """Format the report as one HTML page.

    Args:
        report: the report.
        about: one line about the data it was made from.
        pages: the pages of the navigation.
        console: address of a console to which groups, ids and records are linked; None: no links.
    """
    colour = "fine" if report.fine else "finding"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(report.title)}: {escape(report.verdict)}</title><style>{_STYLE}</style></head><body>",
        _navigation(report, pages),
        f'<main><h1>{escape(report.title)}: <span class="{colour}">{escape(report.verdict)}</span></h1>',
        f"<p>{escape(about)}</p>",
    ]
    charts, tables = [], []
    if report.bars:
        charts += [f"<h2>{escape(report.bars_title)}</h2>", _scrolling(report.bars_title, _bars(report))]
    for chart in report.charts:
        charts += [f"<h2>{escape(chart.title)}</h2>", _scrolling(chart.title, _chart(chart)), _key(chart)]
    for table in report.tables:
        rows = table.rows[:_MAX_PAGE_ROWS]
        title = table.title_of(len(rows))
        tables += [f"<h2>{escape(title)}</h2>", _scrolling(title, _table(table.columns, rows, console))]
    parts += tables + charts if report.job == EVERYTHING else charts + tables
    parts += [f"<p>{escape(note)}.</p>" for note in report.notes]
    return "\n".join([*parts, "</main></body></html>", ""])


def _navigation(report: Report, pages: Sequence[Link]) -> str:
    if not pages:
        return ""
    here = ' aria-current="page"'
    links = [
        f'<li><a href="{escape(each.href)}"{here if each.href == report.page else ""}>{escape(each.text)}</a></li>'
        for each in pages
    ]
    return f'<nav aria-label="Reports"><ul>{"".join(links)}</ul></nav>'


def _scrolling(title: str, content: str) -> str:
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(printable(title))}">{content}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], console: str | None) -> str:
    is_number = [any(map(_is_number, cells)) for cells in zip(*rows, strict=True)] or [False] * len(columns)
    heads = [
        f'<th scope="col"{" class=n" if number else ""}>{escape(_HEADINGS.get(name, name.replace("_", " ")))}</th>'
        for name, number in zip(columns, is_number, strict=True)
    ]
    lines = [
        "<tr>" + "".join(_cell(name, cell, console) for name, cell in zip(columns, row, strict=True)) + "</tr>"
        for row in rows
    ]
    return "\n".join(["<table><tr>", *heads, "</tr>", *lines, "</table>"])


def _bars(report: Report) -> str:
    highest = max([value for _, value in report.bars if value > 0], default=1)
    parts = []
    for index, (name, value) in enumerate(report.bars):
        top = index * (_BAR_HEIGHT + 6)
        length = max(0.0, value) / highest * (_WIDTH - 320)
        parts.append(
            f'<text x="0" y="{top + 13}">{escape(printable(name[:40]))}</text>'
            f'<rect class="c0" x="240" y="{top}" width="{length:.1f}" height="{_BAR_HEIGHT}"/>'
            f'<text x="{246 + length:.1f}" y="{top + 13}">{escape(_format_cell(value))}</text>'
        )
    return _svg(report.bars_title, len(report.bars) * (_BAR_HEIGHT + 6), "".join(parts))


def _chart(chart: Chart) -> str:
    """Draw a chart; the highest number and some of the times are written at it, each number is a tooltip."""
    count = max(len(chart.labels), 1)
    sums = [sum(numbers[at] or 0 for _, numbers in chart.series) for at in range(len(chart.labels))]
    singles = [number for _, numbers in chart.series for number in numbers if number is not None]
    highest = max([each for each in (sums if chart.stacked else singles) if each > 0], default=1)
    left, step = 60, (_WIDTH - 80) / count
    parts = [f'<path d="M{left} 14V{_CHART_HEIGHT}H{_WIDTH - 20}" fill="none"/>']
    parts.append(f'<text x="{left - 6}" y="18" text-anchor="end">{escape(_format_cell(float(highest)))}</text>')
    parts.append(f'<text x="{left - 6}" y="{_CHART_HEIGHT}" text-anchor="end">0</text>')
    every = -(-count // _MAX_LABELS)
    parts += [
        f'<text x="{left + at * step:.1f}" y="{_CHART_HEIGHT + 16}">{escape(label)}</text>'
        for at, label in enumerate(chart.labels)
        if at % every == 0
    ]
    scale = (_CHART_HEIGHT - 20) / highest
    below = [0.0] * len(chart.labels)
    for number, (name, values) in enumerate(chart.series):
        points = []
        for at, value in enumerate(values):
            if value is None or (chart.stacked and value <= 0):
                continue
            tip = f"<title>{escape(printable(f'{chart.labels[at]} {name}: {_format_cell(value)}'))}</title>"
            height = max(0.0, value) * scale
            if chart.stacked:
                below[at] += height
                parts.append(
                    f'<rect class="c{number}" x="{left + at * step:.1f}" y="{_CHART_HEIGHT - below[at]:.1f}" '
                    f'width="{max(step - 1, 0.5):.1f}" height="{height:.1f}">{tip}</rect>'
                )
            else:
                x, y = left + (at + 0.5) * step, _CHART_HEIGHT - height
                points.append(f"{x:.1f},{y:.1f}")
                parts.append(f'<circle class="c{number}" cx="{x:.1f}" cy="{y:.1f}" r="3">{tip}</circle>')
        if points:
            parts.append(f'<polyline class="l{number}" points="{" ".join(points)}"/>')
    return _svg(chart.title, _CHART_HEIGHT + 24, "".join(parts))


def _key(chart: Chart) -> str:
    names = "".join(
        f'<li><i class="c{number}"></i>{escape(printable(name))}</li>' for number, (name, _) in enumerate(chart.series)
    )
    return f'<ul class="key">{names}</ul>'


def _svg(title: str, height: int, content: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(printable(title))}" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}">{content}</svg>'
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(column: str, value: Any, console: str | None) -> str:
    kind = ' class="n"' if _is_number(value) else ' class="t"' if column in _TEXTS else ""
    text = ("yes" if value else "no") if isinstance(value, bool) else _format_cell(value)
    href = value.href if isinstance(value, Link) else _console_page(column, value, console)
    link, end = ("", "") if href is None else (f'<a href="{escape(href)}">', "</a>")
    return f"<td{kind}>{link}{escape(text)}{end}</td>"


def _console_page(column: str, value: Any, console: str | None) -> str | None:
    """Return the console's page of a group, a message or a record."""
    if console is None or not isinstance(value, str) or not value:
        return None
    base = console.rstrip("/")
    if column in {"grp", "group"}:
        return f"{base}/groups/{quote(value, safe='')}"
    if column == "msg_id":
        return f"{base}/message?id={quote(value, safe='')}"
    return f"{base}/message/{value}" if column in _PLACES and _PLACE.fullmatch(value) else None


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
