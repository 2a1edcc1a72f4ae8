"""What every page needs: the settings, readers of the cluster, plans, runs and the templates.

In templates everything is escaped, and no control or invisible character reaches a page: `finalize` sees every value
before it is escaped. Text from records may contain characters that reverse the direction of writing or that show
nothing; they are spelled out as on a terminal, and as numbers in the fields of forms.
"""

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from rocketshim.admin.record_view import time_text
from rocketshim.admin.redrive import whoami
from rocketshim.console.people import Person
from rocketshim.console.reading import ReadLimits
from rocketshim.console.runs import PlanFiles, PlanRuns
from rocketshim.console.settings import ConsoleSettings
from rocketshim.core.user_values import count_text, printable_lines
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_reader import LITTLE_AHEAD, TopicReader
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.sampler import Sampler
from rocketshim.observe.snapshot import Snapshot
from rocketshim.observe.worker_state import ask_workers
from rocketshim_topics import DelayLevels, Message, TopicNames
from rocketshim_topics.durations import duration_text
from rocketshim_topics.group_log import BY_CHARS

__all__ = ["Console", "SendMessage", "Templates", "age_text", "link", "signature"]

SendMessage = Callable[[Message], tuple[str, str]]
"""Send a message and wait until it is stored; return its id and the coordinates of its first record."""


_LONGEST_NAME: Final = 80


def link(*parts: object, **query: object) -> str:
    """Return a path of these parts, each of them quoted, and a query of the values that are not empty.

    Texts of records may have bytes that are not UTF-8. These are escaped, and such a link finds nothing.
    """
    path = "/" + "/".join(quote(str(part), safe="", errors="backslashreplace") for part in parts)
    given = {name: value for name, value in query.items() if value not in {None, "", False}}
    return f"{path}?{urlencode(given, errors='backslashreplace')}" if given else path


def signature(request: Request) -> str:
    """Return who does something on a page: the user, and the console's process, as the topics name them."""
    return f"{request.state.person.name} (console of {whoami()})"[:BY_CHARS]


class Templates:
    """The templates of the console."""

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
            time=self._time,
            number=_number,
            size=_size,
            counted=count_text,
            duration=duration_text,
            field=_field,
            fit=_fit,
        )

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the page of a template."""
        return self._environment.get_template(template).render(values)

    def drawn(self, macro: str, *values: object) -> str:
        """Return what a macro makes: a picture, and the list or table below it."""
        return str(getattr(self._environment.get_template("macros.html").module, macro)(*values))

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


def _fit(text: str | None) -> str:
    """Return the class of a cell: a name or an id stays in one line, to be copied, unless it is absurdly long."""
    return "text" if len(text or "") > _LONGEST_NAME else "id"


def _iso(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _size(size_bytes: int) -> str:
    for unit, length in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return f"{size_bytes} bytes"


_PAGE_S: Final = 5.0
_SNAPSHOT_S: Final = 15.0
_SOON_S: Final = 5.0


@dataclass
class Console:
    """One console."""

    settings: ConsoleSettings
    clients: Clients | None = None  # creates Kafka clients; None: confluent_kafka
    send: SendMessage | None = None  # None: no page sends messages
    now_ms: Callable[[], int] = field(default=lambda: time.time_ns() // 1_000_000)  # the time, epoch ms

    @classmethod
    def of(cls, request: Request) -> "Console":
        """Return the console that a request is for."""
        console = request.app.state.console
        if not isinstance(console, cls):
            raise TypeError("the application has no console")
        return console

    @cached_property
    def names(self) -> TopicNames:
        """Topic and group names of the namespace."""
        return TopicNames(self.settings.namespace)

    @cached_property
    def plans(self) -> PlanFiles:
        """The stored plans."""
        return PlanFiles(self.settings.state_dir)

    @cached_property
    def runs(self) -> PlanRuns:
        """The plans that are being applied."""
        return PlanRuns(self.settings.bootstrap, client=self.settings.client, clients=self.clients)

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler of offsets, which runs while pages ask for it."""
        settings = self.settings
        return Sampler(
            partial(
                OffsetLookup,
                settings.bootstrap,
                self.names,
                client=settings.client,
                clients=self.clients,
                left_out={},
            ),
            self.names,
            settings.levels,
            workers=lambda: ask_workers(settings.worker_urls),
        )

    def snapshot(self, *, soon: bool = False) -> Snapshot | None:
        """Return the newest snapshot of the cluster; None: there was none in time, or soon for a page that asks again.

        With 1,000 groups the first one takes 45 s (our measurement).
        """
        with self.sampler.watch() as watch:
            return watch.newest() or watch.wait_newer(None, _SOON_S if soon else _SNAPSHOT_S)

    def close(self) -> None:
        """Stop runs and sampler."""
        self.runs.close()
        self.sampler.close()

    @cached_property
    def templates(self) -> Templates:
        """The templates."""
        return Templates(self.settings.base_path, self.now_ms)

    def reader(self) -> TopicReader:
        """Return a new reader, which the caller closes."""
        settings = self.settings
        return TopicReader(settings.bootstrap, client={**LITTLE_AHEAD, **settings.client}, clients=self.clients)

    def limits(self, results: int | None = None) -> ReadLimits:
        """Return how much one page may read."""
        return ReadLimits(results=results, size_bytes=self.settings.read_limit_bytes, time_s=_PAGE_S)

    def command(self, words: str, *arguments: str, **options: str | bool | None) -> str:
        """Return the command line that shows or does the same as a page. True: an option without a value."""
        given = {"bootstrap": self.settings.bootstrap, "namespace": self.settings.namespace, **options}
        line = [*arguments]
        for name, value in given.items():
            if value:
                line += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
        return f"rocketshim {words} {shlex.join(line)}"

    @property
    def delay_levels(self) -> str | None:
        """Return the level table as an option of commands; None: it is the default one."""
        levels = self.settings.levels
        return None if levels == DelayLevels.default() else str(levels)

    def page(self, request: Request, template: str, *, status: int = 200, **values: object) -> Response:
        """Return a page."""
        person = getattr(request.state, "person", None)
        may_write = self.settings.operate and isinstance(person, Person) and person.role == "operator"
        shown = {"person": person, "may_write": may_write, "settings": self.settings, "path": request.url.path}
        return HTMLResponse(self.templates.render(template, {**shown, **values}), status)

    def url(self, *parts: object, **query: object) -> str:
        """Return the URL of a page of this console."""
        return self.settings.base_path + link(*parts, **query)
