"""What every page needs: the settings, readers of the cluster, plans, runs and the templates."""

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from rocketshim.console.links import link
from rocketshim.console.people import Person
from rocketshim.console.plan_files import PlanFiles
from rocketshim.console.reading import ReadLimits
from rocketshim.console.rendering import Templates
from rocketshim.console.runs import Runs
from rocketshim.console.settings import ConsoleSettings
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_reader import LITTLE_AHEAD, TopicReader
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.sampler import Sampler
from rocketshim.observe.snapshot import Snapshot
from rocketshim.observe.worker_state import ask_workers
from rocketshim_topics import DelayLevels, TopicNames

__all__ = ["Console"]

_PAGE_S: Final = 5.0
_SNAPSHOT_S: Final = 15.0


@dataclass
class Console:
    """One console."""

    settings: ConsoleSettings
    clients: Clients | None = None  # creates Kafka clients; None: confluent_kafka
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
    def runs(self) -> Runs:
        """The plans that are being applied."""
        return Runs(self.settings.bootstrap, client=self.settings.client, clients=self.clients)

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

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot of the cluster; None: there was none in time."""
        with self.sampler.watch() as watch:
            return watch.newest() or watch.wait_newer(None, _SNAPSHOT_S)

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
        """Return the command line that shows or does the same as a page.

        * `options`: its options, True for one without a value; those that are None, empty or False are left out.
        """
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
