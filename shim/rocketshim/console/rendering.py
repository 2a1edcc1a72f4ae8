"""Templates: everything is escaped, and no control or invisible character reaches a page.

`finalize` sees every value before it is escaped. Text from records may contain characters that reverse the direction of
writing or that show nothing; they are spelled out as on a terminal, and as numbers in the fields of forms.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rocketshim.admin.record_view import time_text
from rocketshim.console.biography import Biography
from rocketshim.console.links import link
from rocketshim.core.user_values import printable_lines
from rocketshim_topics.durations import duration_text

__all__ = ["Templates", "age_text"]


class Templates:
    """The templates of the console.

    Args:
        base_path: prefix of every path.
    """

    def __init__(self, base_path: str, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._environment = Environment(
            loader=PackageLoader("rocketshim.console"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalized,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals["link"] = lambda *parts, **query: base_path + link(*parts, **query)
        self._environment.filters.update(
            time=self._time, number=_number, size=_size, counted=_counted, duration=duration_text, field=_field
        )

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the page of a template."""
        return self._environment.get_template(template).render(values)

    def picture(self, life: Biography) -> str:
        """Return the picture of a message's history, and the list below it."""
        return str(self._environment.get_template("macros.html").module.picture(life))  # type: ignore[attr-defined]

    def histogram(self, bars: Sequence[object], most: int) -> str:
        """Return a histogram and the table below it; `most`: the count of the highest bar."""
        return str(self._environment.get_template("macros.html").module.histogram(bars, most))  # type: ignore[attr-defined]

    def _time(self, at_ms: int | None) -> Markup:
        """Return a time as UTC, and how long ago it is or how long it will take."""
        if at_ms is None:
            return Markup("–")
        iso, text = _iso(at_ms), time_text(at_ms)
        return Markup('<time datetime="{0}">{1}</time> <small>{2}</small>').format(
            iso, text[:-4] if iso else text, age_text(self._now_ms() - at_ms)
        )


def age_text(age_ms: int) -> str:
    """Return a distance in time for a person: `4 min 20 s ago`, `in 2 h`."""
    text = duration_text(abs(age_ms) // 1_000 * 1_000)
    return f"{text} ago" if age_ms >= 0 else f"in {text}"


def _finalized(value: object) -> object:
    if value is None:
        return ""
    return value if isinstance(value, Markup) or hasattr(value, "__html__") else escape(printable_lines(str(value)))


def _field(value: str | None) -> Markup:
    """Return the value of a form's field: the browser sends exactly this text, but a page shows nothing invisible."""
    text = "".join(each if each.isprintable() else f"&#{ord(each)};" for each in escape(value or ""))
    return Markup(text)  # noqa: S704 - it is escaped


def _iso(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _counted(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def _size(size_bytes: int) -> str:
    for unit, length in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return f"{size_bytes} bytes"
