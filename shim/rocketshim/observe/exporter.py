"""Serve what a cluster says about an installation as metrics, for Prometheus.

The exporter's own thread waits for snapshots of the sampler, and publishes every 0.5 s the newest one as the state that
the HTTP threads read. It evaluates a snapshot once, and again when the doctor has found something else. With many
groups a round may take minutes, so the sampler tells whether it goes on.
The doctor runs in a thread of its own, because a run takes seconds. A doctor that fails keeps its last findings for
three runs, then none: what is not known any more is not shown.

The metrics are there also when the process that would count is gone: dead letters, age and lag of groups, late
delivery. A group, topic or finding that no longer exists has no series. A topic of dead letters or parked records has
none while a leader of it does not answer.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.errors import RocketshimError
from rocketshim.logs import safe_logger
from rocketshim.metrics import Metric
from rocketshim.observe.finding import Finding, Installation
from rocketshim.observe.sampler import Sampler
from rocketshim.observe.snapshot import Snapshot
from rocketshim.observe.verdict import verdict

__all__ = ["DoctorRounds", "Exporter", "ExporterState"]

_LIVE_NS: Final = 60_000_000_000
_Samples = list[tuple[dict[str, str], float]]


@dataclass(frozen=True, slots=True)
class ExporterState:
    """What the exporter shows."""

    at_ns: int  # monotonic instant at which a request to the cluster or a round last ended
    every_ns: int  # time from one round to the next
    snapshot: Snapshot  # the newest snapshot
    findings: tuple[Finding, ...] = ()  # what is wrong by this snapshot, and in the set-up as far as it is known
    namespace: str = ""  # the namespace; `""`: none
    is_examined: bool = False  # whether the doctor's findings are among them

    def is_live(self, now_ns: int) -> bool:
        """Return whether rounds are made, successful or not."""
        return now_ns - self.at_ns <= self.every_ns + _LIVE_NS

    def is_ready(self, now_ns: int) -> bool:
        """Return whether the cluster answered the newest round."""
        return self.is_live(now_ns) and self.snapshot.error is None

    @property
    def report(self) -> str:
        """Return the findings, a line each."""
        return "".join(f"{each.line}\n" for each in self.findings)

    def shown(self, now_ns: int) -> dict[str, Any]:
        """Return the state as JSON."""
        findings = [asdict(finding) for finding in self.findings]
        health = {"live": self.is_live(now_ns), "ready": self.is_ready(now_ns)}
        return asdict(self.snapshot) | {"findings": findings, "examined": self.is_examined} | health

    def metrics(self) -> Iterable[Metric]:
        """Yield the metrics. A round that failed shows no values: old ones would look like new.

        Decides: What does the exporter say while the cluster does not answer? No value of the cluster, and exporter_up
            0; live, not ready.
        """
        mine = {"namespace": self.namespace} if self.namespace else {}
        snapshot = self.snapshot
        families = [_up(snapshot), _doctor_up(is_examined=self.is_examined)]
        if snapshot.error is None:
            families += [
                _began(snapshot),
                _behind(snapshot),
                *_schedule(snapshot),
                *_timers(snapshot),
                *_dead(snapshot),
                *_groups(snapshot),
                _findings(self.findings),
            ]
        if self.is_examined:
            families.append(_doctor(self.findings))
        for name, kind, about, samples in families:
            yield Metric(
                f"rocketshim_{name}", kind, about, tuple(("", mine | label, value) for label, value in samples)
            )


_Family = tuple[str, str, str, _Samples]
"""Name without its prefix, kind, help text, labels and values."""


def _up(snapshot: Snapshot) -> _Family:
    return "exporter_up", "gauge", "1: the cluster answered the newest round", [({}, int(snapshot.error is None))]


def _began(snapshot: Snapshot) -> _Family:
    about = "when the newest round began: the age of the values, for a slow cluster, a stopped round or a wrong clock"
    return "exporter_round_timestamp_seconds", "gauge", about, [({}, snapshot.at_ms / 1e3)]


def _behind(snapshot: Snapshot) -> _Family:
    about = "how far this machine's clock is surely behind the brokers'; 0: a minute or less. No ages while it is"
    return "exporter_clock_behind_seconds", "gauge", about, [({}, snapshot.clock_behind_ms / 1e3)]


def _doctor_up(*, is_examined: bool) -> _Family:
    about = "1: the doctor's findings are known; 0: it does not run, has not finished, or failed three times"
    return "doctor_up", "gauge", about, [({}, int(is_examined))]


def _findings(findings: Iterable[Finding]) -> _Family:
    """Return a series for each finding; a set-up with very many has the worst of them."""
    keys = list(dict.fromkeys((each.check, each.severity.value, each.subject) for each in findings))[:_MOST_FINDINGS]
    samples: _Samples = [({"check": check, "severity": how, "subject": what}, 1) for check, how, what in keys]
    return "finding", "gauge", "1: this is wrong now; `rocketshim status` shows its cause and what helps", samples


def _schedule(snapshot: Snapshot) -> Iterable[_Family]:
    queues = [({"partition": str(queue.partition)}, queue) for queue in snapshot.queues]
    waiting: _Samples = [(label, queue.waiting) for label, queue in queues]
    is_known = not snapshot.clock_behind_ms  # otherwise everything would seem to be in time
    late: _Samples = [(label, queue.late_ms(snapshot.at_ms) / 1e3) for label, queue in queues if is_known]
    lost: _Samples = [(label, queue.standing.lost) for label, queue in queues]
    yield "schedule_waiting_offsets", "gauge", "offsets that wait in a delay queue, probes included", waiting
    yield "schedule_head_late_seconds", "gauge", "for how long the head of a delay queue has been due", late
    yield "schedule_lost_offsets", "gauge", "offsets that retention deleted before the worker read them", lost


def _timers(snapshot: Snapshot) -> Iterable[_Family]:
    queues = [({"partition": str(queue.partition)}, queue) for queue in snapshot.timers]
    is_known = not snapshot.clock_behind_ms
    late: _Samples = [(label, queue.late_ms(snapshot.at_ms) / 1e3) for label, queue in queues if is_known]
    waiting: _Samples = [(label, queue.waiting) for label, queue in queues]
    lost: _Samples = [(label, queue.standing.lost) for label, queue in queues]
    yield "timer_log_waiting_offsets", "gauge", "offsets of the timer log that no worker has read", waiting
    yield "timer_log_late_seconds", "gauge", "for how long the first of them has waited", late
    yield "timer_log_lost_offsets", "gauge", "offsets that retention deleted before the worker read them", lost


def _dead(snapshot: Snapshot) -> Iterable[_Family]:
    unknown = {key.topic for key in snapshot.unknown}  # without one of its partitions a counter would go back
    known = [each for each in (*snapshot.dead, snapshot.parked) if each is not None and each.topic not in unknown]
    dead = [({"group": topic.group}, topic) for topic in known if topic.group is not None]
    none: dict[str, str] = {}
    parked = [(none, topic) for topic in known if topic.group is None]
    kept = "gauge", "offsets that the topic still has"
    ever = "counter", "offsets ever appended: an upper bound of the number of records"
    yield "dead_letters_appended_total", *ever, [(label, topic.appended) for label, topic in dead]
    yield "dead_letters_kept_offsets", *kept, [(label, topic.kept) for label, topic in dead]
    yield "parked_appended_total", *ever, [(label, topic.appended) for label, topic in parked]
    yield "parked_kept_offsets", *kept, [(label, topic.kept) for label, topic in parked]


def _groups(snapshot: Snapshot) -> Iterable[_Family]:
    now_ms, unknown = snapshot.at_ms, {key.topic for key in snapshot.unknown}
    by_topic = [
        ({"group": group.group, "topic": topic}, standing)
        for group in snapshot.groups
        for topic, standing in group.topics().items()
    ]
    ages: _Samples = [
        (labels, max(0, now_ms - standing.first_unread_ms) / 1e3 if standing.first_unread_ms is not None else 0.0)
        for labels, standing in by_topic
        if (standing.first_unread_ms is not None and not snapshot.clock_behind_ms)
        or not (standing.behind or labels["topic"] in unknown)
    ]
    behind: _Samples = [(labels, standing.behind) for labels, standing in by_topic]
    lost: _Samples = [(labels, standing.lost) for labels, standing in by_topic]
    yield "group_behind_offsets", "gauge", "offsets between a group's position and the end of a topic", behind
    yield "group_oldest_unread_seconds", "gauge", "age of the oldest record that a group has not read", ages
    yield "group_lost_offsets", "gauge", "offsets that retention deleted before a group read them", lost


def _doctor(findings: Iterable[Finding]) -> _Family:
    counts: Mapping[tuple[str, str], int] = Counter((each.check, each.severity.value) for each in findings)
    samples: _Samples = [
        ({"check": check, "severity": severity}, count) for (check, severity), count in sorted(counts.items())
    ]
    return "doctor_findings", "gauge", "findings of the newest run of the doctor", samples


_LOG = safe_logger("rocketshim.observe")
_WAIT_S: Final = 0.5
_KEPT_FAILURES: Final = 3
_MOST_FINDINGS: Final = 200


class DoctorRounds:
    """Runs the doctor again and again, in a thread.

    Thread-safety: any thread may read `findings`; one thread starts and stops it.
    """

    def __init__(self, examine: Callable[[], list[Finding]], every_s: float) -> None:
        self.findings: tuple[Finding, ...] | None = None  # None: no run yet, or the last three failed
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

    Thread-safety: `run` belongs to one thread; any thread may read `state`.
    """

    def __init__(
        self,
        sampler: Sampler,
        here: Installation,
        *,
        every_s: float,
        doctor: DoctorRounds | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.state: ExporterState | None = None
        self._sampler = sampler
        self._here = here
        self._every_s = every_s
        self._doctor = doctor
        self._clock = clock or SystemClock()

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Publish states until the caller stops it; `is_stopped` is asked every 0.5 s."""
        newest: Snapshot | None = None
        look = Snapshot(self._clock.wall_ms(), error="the first look at the cluster has not ended")
        examined: tuple[Finding, ...] | None = None
        found: tuple[Finding, ...] = ()
        every_ns = round(self._every_s * 1e9)
        with self._sampler.watch() as watch:
            while not is_stopped():
                self.state = ExporterState(
                    self._sampler.moved_ns,
                    every_ns,
                    look,
                    found,
                    namespace=self._here.names.namespace,
                    is_examined=examined is not None,
                )
                newer, known = watch.wait_newer(newest, _WAIT_S), examined
                examined = None if self._doctor is None else self._doctor.findings
                if newer is not None:
                    look = newest = newer
                if newer is not None or examined is not known:
                    found = () if look.error is not None else tuple(verdict(self._here, look, examined or ()))
