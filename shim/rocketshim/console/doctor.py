"""What the doctor finds: problems of the set-up, their impact, and the command that fixes each."""

import threading
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rocketshim.admin.doctor import Finding, examine
from rocketshim.console.context import Console
from rocketshim.errors import ConfigError

__all__ = ["DoctorVisits", "show"]

_EVERY_MS: Final = 300_000


@dataclass
class DoctorVisits:
    """Examines the cluster at most every five minutes, however many ask.

    Thread-safety: any thread; while one examines, the others wait for its result.
    """

    console: Console
    found: list[Finding] = field(default_factory=list)
    at_ms: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def findings(self) -> tuple[list[Finding], int]:
        """Return the findings, and when they were found, epoch ms."""
        from rocketshim.admin.doctor.gather import gather  # noqa: PLC0415 - it loads much

        with self.lock:
            now_ms, settings = self.console.now_ms(), self.console.settings
            if self.at_ms is None or now_ms - self.at_ms >= _EVERY_MS:
                if self.console.clients is not None and self.console.clients.admin is None:
                    raise ConfigError("a Kafka in memory cannot be examined")
                facts = gather(settings.bootstrap, self.console.names, settings.levels, client=settings.client)
                self.found, self.at_ms = examine(facts), now_ms
            return self.found, self.at_ms


def show(request: Request) -> Response:
    """Show the findings."""
    console = Console.of(request)
    visits: DoctorVisits = request.app.state.doctor
    findings, at_ms = visits.findings()
    return console.page(
        request,
        "doctor.html",
        findings=findings,
        at_ms=at_ms,
        command=console.command("doctor", delay_levels=console.delay_levels),
    )
