"""Plans in a folder, and those that are being applied: one thread for each run. What is done is in Kafka.

A run that ends with its process leaves nothing behind: the marks in the redrive log tell what was sent, and the next
run of the same plan sends the rest. So nothing resumes by itself.
"""

import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rocketshim.admin.plan_from_topic import read_plan
from rocketshim.admin.redrive import planned_redriver
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim.errors import ConfigError, RocketshimError
from rocketshim.kafka.clients import Clients
from rocketshim.logs import safe_logger
from rocketshim_topics.redrive_plan import RedrivePlan

__all__ = ["PlanFiles", "PlanRun", "PlanRuns"]


_MOST_FILE_BYTES: Final = 256 << 20  # two million dead letters


class PlanFiles:
    """The plans in a folder, each named by its id: the same files that `rocketshim dlq plan --out` writes.

    The folder is created when the first plan is stored; only its owner may read it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, plan: RedrivePlan) -> None:
        """Store a plan. The file appears complete or not at all."""
        part: Path | None = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._folder, suffix=".part")
            part = Path(name)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(plan.to_json())
            part.replace(self._folder / f"{plan.id}.json")
        except OSError as error:
            if part is not None:
                part.unlink(missing_ok=True)
            raise ConfigError(f"the plan cannot be stored in {self._folder} ({error.strerror})") from error

    def load(self, plan_id: str) -> RedrivePlan | None:
        """Return a plan; None: there is none with this id. A file that was changed or swapped is an error."""
        path = self._folder / f"{plan_id}.json"
        try:
            if re.fullmatch(r"[0-9a-f]{20}", plan_id) is None or not path.is_file():
                return None
            if path.stat().st_size > _MOST_FILE_BYTES:
                raise ConfigError(f"{path} is too large for the console: apply it with rocketshim dlq apply")
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the plan ({type(error).__name__})") from error
        plan = read_plan(path)
        if plan.id != plan_id:
            raise ConfigError(f"{path} has another plan, {plan.id}: what was reviewed is not what it would do")
        return plan

    def listed(self, most: int = 100) -> Iterator[RedrivePlan]:
        """Yield the plans, the newest first, one in memory at a time; leave out a file that is not a plan."""
        ages_ns = {}
        for path in self._folder.glob("*.json"):
            with suppress(OSError):  # removed meanwhile
                ages_ns[path] = -path.stat().st_mtime_ns
        for path in sorted(ages_ns, key=ages_ns.__getitem__)[:most]:
            try:
                plan = self.load(path.stem)
            except ConfigError:
                continue
            if plan is not None:
                yield plan


_LOG = safe_logger("rocketshim.console")
_STOP_S: Final = 30.0
_KEPT: Final = 20  # of the runs that have ended; each has all dead letters of its plan


@dataclass(slots=True)
class PlanRun:
    """One application of a plan."""

    plan: RedrivePlan
    by: str  # who applies it
    progress: RedriveProgress  # its counts; any thread may read them
    error: str | None = None  # why it failed; None: it did not
    is_over: threading.Event = field(default_factory=threading.Event)  # whether it has ended

    @property
    def is_running(self) -> bool:
        """Return whether it still sends."""
        return not self.is_over.is_set()


class PlanRuns:
    """The runs of this process, at most one at a time for each topic of dead letters.

    Thread-safety: any thread may call the methods.
    """

    def __init__(self, bootstrap: str, *, client: Mapping[str, Any], clients: Clients | None) -> None:
        self._bootstrap = bootstrap
        self._client = client
        self._clients = clients
        self._runs: dict[str, PlanRun] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def of(self, plan_id: str) -> PlanRun | None:
        """Return the last run of a plan in this process; None: there was none, or it ended many runs ago."""
        return self._runs.get(plan_id)

    def start(
        self, plan: RedrivePlan, *, by: str, most: int | None, rate_per_s: float | None, stop_ratio: float
    ) -> PlanRun:
        """Begin to apply a plan in a thread of its own.

        Decides: Who wins if two redrives of one topic run? In one console the first; else the later one, which fences
            the other (`admin.redrive.Journal.refuse_if_taken_over`).
        """
        progress = RedriveProgress(plan.letters, rate_per_s=rate_per_s, most=most, stop_ratio=stop_ratio)
        run = PlanRun(plan, by, progress)
        with self._lock:
            running = [each for each in self._runs.values() if each.is_running and each.plan.source == plan.source]
            if running:
                raise ConfigError(
                    f"{running[0].by} applies the plan {running[0].plan.id} to {plan.source} now: stop that run first"
                )
            for old in [each.plan.id for each in self._runs.values() if not each.is_running][:-_KEPT]:
                del self._runs[old]
            thread = threading.Thread(target=self._apply, args=(run,), name=f"apply-{plan.id}", daemon=True)
            thread.start()
            self._runs.pop(plan.id, None)  # the new run is the newest one, also of a plan that was applied before
            self._runs[plan.id] = run
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        return run

    def close(self) -> None:
        """Stop every run, and wait until their open transactions have ended."""
        with self._lock:
            runs, threads = list(self._runs.values()), self._threads
        for run in runs:
            run.progress.stop()
        for thread in threads:
            thread.join(_STOP_S)

    def _apply(self, run: PlanRun) -> None:
        try:
            self._send(run)
        except RocketshimError as error:
            run.error = str(error)
        except Exception as error:  # noqa: BLE001 - the top of this thread: it is logged, and the page shows it
            run.error = f"a bug in rocketshim: {type(error).__name__}; the console's log has the details"
            _LOG.exception("console.run-failed", extra={"plan": run.plan.id})
        finally:
            run.is_over.set()

    def _send(self, run: PlanRun) -> None:
        with planned_redriver(
            self._bootstrap, run.plan, run.progress, by=run.by, client=self._client, clients=self._clients
        ) as redriver:
            redriver.run()
