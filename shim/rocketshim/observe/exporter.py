"""Serve what a cluster says about an installation as metrics, for Prometheus.

The exporter's own thread waits for snapshots of the sampler, and publishes every 0.5 s the newest one as the state that
the HTTP threads read. With many groups a round may take minutes, so the sampler tells whether it goes on.
The doctor runs in a thread of its own, because a run takes seconds. A doctor that fails keeps its last findings for
three runs, then none: what is not known any more is not shown.
"""

import threading
from collections.abc import Callable
from typing import Final

from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.errors import RocketshimError
from rocketshim.logs import safe_logger
from rocketshim.observe.finding import Finding
from rocketshim.observe.metrics import ExporterState
from rocketshim.observe.sampler import Sampler
from rocketshim.observe.snapshot import Snapshot

__all__ = ["DoctorRounds", "Exporter"]

_LOG = safe_logger("rocketshim.observe")
_WAIT_S: Final = 0.5
_KEPT_FAILURES: Final = 3


class DoctorRounds:
    """Runs the doctor again and again, in a thread.

    Args:
        examine: runs the doctor once; may raise `RocketshimError`.
        every_s: time from one run to the next, in seconds.

    Attributes:
        findings: of the newest run; None: there is none, or the last three runs failed.

    Thread-safety: any thread may read `findings`; one thread starts and stops it.
    """

    def __init__(self, examine: Callable[[], list[Finding]], every_s: float) -> None:
        self.findings: tuple[Finding, ...] | None = None
        self._examine = examine
        self._every_s = every_s
        self._failures = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="rocketshim-doctor", daemon=True).start()

    def stop(self) -> None:
        """Make no further run; a run in progress is abandoned."""
        self._stopped.set()

    def run_once(self) -> None:
        """Run the doctor and keep what it found."""
        try:
            self.findings = tuple(self._examine())
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - the top of the thread; the next run tries again
            self._failures += 1
            if self._failures >= _KEPT_FAILURES:
                self.findings = None
            unexpected = not isinstance(error, RocketshimError)
            _LOG.warning("observe.doctor-failed", exc_info=unexpected, extra={"error": str(error)})

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.run_once()
            self._stopped.wait(self._every_s)


class Exporter:
    """Publishes the state that `HealthServer` serves.

    Args:
        sampler: takes the snapshots.
        every_s: time from one round of it to the next, in seconds.
        doctor: its rounds; None: the doctor does not run.
        clock: tells the age of the state.

    Attributes:
        state: the newest state; None before `run`.

    Thread-safety: `run` belongs to one thread; any thread may read `state`.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        every_s: float,
        doctor: DoctorRounds | None = None,
        namespace: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.state: ExporterState | None = None
        self._sampler = sampler
        self._every_s = every_s
        self._doctor = doctor
        self._namespace = namespace
        self._clock = clock or SystemClock()

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Publish states until the caller stops it; `is_stopped` is asked every 0.5 s."""
        newest, nothing = None, Snapshot(self._clock.wall_ms(), error="the first look at the cluster has not ended")
        every_ns = round(self._every_s * 1e9)
        with self._sampler.watch() as watch:
            while not is_stopped():
                findings = None if self._doctor is None else self._doctor.findings
                self.state = ExporterState(
                    self._sampler.moved_ns, every_ns, newest or nothing, findings, namespace=self._namespace
                )
                newest = watch.wait_newer(newest, _WAIT_S) or newest
