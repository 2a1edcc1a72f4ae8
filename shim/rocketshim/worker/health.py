"""What the worker shows of itself: `/live`, `/ready`, `/state` and `/metrics` over HTTP.

The loop's thread makes a `WorkerState` once a second and hands it over by one assignment; the HTTP threads only read
it. So no request ever waits for the loop or holds it up, and a loop that stands still is seen by the age of its state.

* `/live`: 200 while the loop has turned within the last 30 s (a call to a broker that is away may take 15), else 503.
* `/ready`: 200 while it is live, in the group, and no positions have failed to be committed for 60 s, else 503.
* `/state`: the state as JSON.
* `/metrics`: Prometheus' text format; written here, so that no package is needed.

Listens where it is told, by default on this machine only: the state names topics.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from rocketshim.core.clock import Clock
from rocketshim.worker.delivery import LATENESS_BOUNDS_MS, WorkerCounts

__all__ = ["HealthServer", "QueueState", "WorkerState", "metrics_text"]

_LIVE_NS: Final = 30_000_000_000
_STUCK_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class QueueState:
    """One partition of the schedule topic that the worker holds.

    Attributes:
        partition: its number.
        delay_ms: the queue's delay.
        position: next offset to deliver from, as far as it is confirmed; None: nothing since it was assigned.
        committed: position that is committed; -1: not known.
        backlog: records that lie there and are not done (probes among them); None: not known yet.
        held: records in memory.
        next_due_in_ms: until the head leaves; 0 or less: it is due; None: nothing is held.
    """

    partition: int
    delay_ms: int
    position: int | None
    committed: int
    backlog: int | None
    held: int
    next_due_in_ms: int | None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What the worker was doing at one instant.

    Attributes:
        at_ns: monotonic instant.
        mode: `at-least-once` or `exactly-once`.
        group: consumer group.
        topic: schedule topic.
        is_member: whether the group has given it its share (which may be none).
        commits_fail_since_ns: since when positions could not be committed; None: they can.
        avoided: targets that are not tried now, with the reason.
        queues: what it holds.
        counts: what was done.
    """

    at_ns: int
    mode: str
    group: str
    topic: str
    is_member: bool
    commits_fail_since_ns: int | None
    avoided: dict[str, str]
    queues: tuple[QueueState, ...]
    counts: WorkerCounts = field(default_factory=WorkerCounts)

    @property
    def oldest_due_ms(self) -> int:
        """How long the record that has been due longest has been so, in ms; 0 when none is."""
        return max(0, *(-queue.next_due_in_ms for queue in self.queues if queue.next_due_in_ms is not None), 0)

    def is_live(self, now_ns: int) -> bool:
        """Whether the loop turns."""
        return now_ns - self.at_ns <= _LIVE_NS

    def is_ready(self, now_ns: int) -> bool:
        """Whether it does its work."""
        since_ns = self.commits_fail_since_ns
        return self.is_live(now_ns) and self.is_member and (since_ns is None or now_ns - since_ns <= _STUCK_NS)


def metrics_text(state: WorkerState) -> str:
    """The state in Prometheus' text exposition format."""
    counts = state.counts
    lines: list[str] = []

    def metric(name: str, kind: str, about: str, *samples: tuple[str, float]) -> None:
        lines.append(f"# HELP rocketshim_worker_{name} {about}")
        lines.append(f"# TYPE rocketshim_worker_{name} {kind}")
        lines.extend(f"rocketshim_worker_{name}{labels} {value}" for labels, value in samples)

    metric("delivered_total", "counter", "records stored at their targets", ("", counts.delivered))
    metric("hopped_total", "counter", "records written to another queue", ("", counts.hopped))
    metric("re_appended_total", "counter", "records whose target did not take them", ("", counts.re_appended))
    metric("resent_total", "counter", "hops made again", ("", counts.resent))
    alarms = [(f'{{event="{_label(event)}"}}', float(count)) for event, count in sorted(counts.alarms.items())]
    metric("alarms_total", "counter", "alarms", *alarms)
    metric("transactions_aborted_total", "counter", "transactions aborted", ("", counts.aborted))
    metric("producers_recycled_total", "counter", "producers thrown away", ("", counts.recycled))
    parked = [(f'{{reason="{_label(reason)}"}}', float(count)) for reason, count in sorted(counts.parked.items())]
    metric("parked_total", "counter", "records parked", *parked)
    metric(
        "oldest_due_seconds", "gauge", "how long the record due longest has been so", ("", state.oldest_due_ms / 1e3)
    )
    metric("avoided_targets", "gauge", "targets that are not tried now", ("", len(state.avoided)))
    places = [(f'{{partition="{queue.partition}"}}', queue) for queue in state.queues]
    metric(
        "backlog_records",
        "gauge",
        "records that wait in a queue",
        *((labels, queue.backlog) for labels, queue in places if queue.backlog is not None),
    )
    metric(
        "next_due_seconds",
        "gauge",
        "until the head of a queue leaves",
        *((labels, queue.next_due_in_ms / 1e3) for labels, queue in places if queue.next_due_in_ms is not None),
    )
    below, buckets = 0, []
    for bound, count in zip(LATENESS_BOUNDS_MS, counts.lateness, strict=False):
        below += count
        buckets.append((f'_bucket{{le="{bound / 1e3:g}"}}', float(below)))
    total = below + counts.lateness[-1]
    metric(
        "lateness_seconds",
        "histogram",
        "from due to stored at the target",
        *buckets,
        ('_bucket{le="+Inf"}', total),
        ("_sum", counts.lateness_sum_ms / 1e3),
        ("_count", total),
    )
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class HealthServer:
    """Serves a worker's state.

    Args:
        host: address to listen on.
        port: 0: any free one, see `port` after `start`.
        state: gives the newest state; None before the first.
        clock: to judge its age by.

    Thread-safety: `start` and `stop` from one thread; requests come in threads of their own.
    """

    def __init__(self, host: str, port: int, state: Callable[[], WorkerState | None], clock: Clock) -> None:
        self._address = (host, port)
        self._state = state
        self._clock = clock
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._address[1] if self._server is None else int(self._server.server_address[1])

    def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be listened on.
        """
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0

            def do_GET(self) -> None:
                code, kind, body = answer(self.path)
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - likewise
                """Requests are not worth a line."""

        self._server = ThreadingHTTPServer(self._address, Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="rocketshim-health", daemon=True).start()

    def stop(self) -> None:
        """Listen no longer. Complete when it returns; safe twice."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        state, now_ns = self._state(), self._clock.monotonic_ns()
        match path.split("?", 1)[0]:
            case "/live":
                return _verdict(state is not None and state.is_live(now_ns))
            case "/ready":
                return _verdict(state is not None and state.is_ready(now_ns))
            case "/state" if state is not None:
                shown = asdict(state) | {
                    "age_ms": (now_ns - state.at_ns) // 1_000_000, "oldest_due_ms": state.oldest_due_ms,
                    "live": state.is_live(now_ns), "ready": state.is_ready(now_ns),
                }  # fmt: skip
                del shown["at_ns"], shown["commits_fail_since_ns"]
                return 200, "application/json", json.dumps(shown, indent=1).encode()
            case "/metrics" if state is not None:
                return 200, "text/plain; version=0.0.4", metrics_text(state).encode()
            case "/state" | "/metrics":
                return _verdict(good=False)
            case _:
                return 404, "text/plain", b"there are /live, /ready, /state and /metrics\n"


def _verdict(good: bool) -> tuple[int, str, bytes]:
    return (200, "text/plain", b"yes\n") if good else (503, "text/plain", b"no\n")
