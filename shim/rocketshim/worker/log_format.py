"""The worker's log lines: an event from a fixed vocabulary, and facts. Each record is one line, as text or as JSON.

The library never configures logging. Only the process `rocketshim worker` does, with `configure`. A program that embeds
a `DelayWorker` gets the same records from the logger `rocketshim.worker`: the event and the facts are
attributes of the record.

Facts may contain text of Kafka records that anybody wrote. Control characters are escaped, so nobody can forge a line.
"""

import json
import logging
import sys
from typing import Final, Literal, TextIO

from rocketshim.core.user_values import one_line

__all__ = ["ALARM_EVENTS", "EVENTS", "JsonLines", "LogFormat", "LogLevel", "TextLines", "configure"]

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

EVENTS: Final[dict[str, str]] = {
    "worker.started": "began to run, and joins the group now",
    "worker.stopped": "left the group",
    "worker.not-left": "stopped, but the group may count it as a member until its session ends",
    "worker.assigned": "owns these partitions from now on",
    "worker.revoked": "gives these partitions up, positions committed",
    "worker.partitions-lost": "alarm: the group took partitions away; what was in flight may be delivered again",
    "worker.position-out-of-range": "alarm: retention has deleted a position; reading continues at the earliest record",
    "worker.positions-missing": "no positions are committed, so all records are delivered, also those delivered before",
    "worker.positions-unknown": "alarm: committed positions cannot be read, so nothing is delivered; repeated",
    "worker.log-restarted": "alarm: a partition's log started again below what was read (topic recreated or truncated)",
    "worker.parked": "alarm: a record was parked",
    "worker.parked-without-body": "alarm: the record was too large to be parked whole",
    "worker.re-appended": "alarm: a target did not accept a record; the record waits in a queue again",
    "worker.not-allowed": "alarm: a record's target is not on this worker's allow-list; it waits for a worker that may",
    "worker.target-avoided": "alarm: a target is not tried for a while",
    "worker.target-careful": "alarm: a target refused a batch; for a while each of its records is a separate batch",
    "worker.timestamp-refused": "alarm: a target refused a sender's timestamp; for an hour, records with such a one "
    "have the time of their delivery",
    "worker.hop-not-stored": "alarm: a hop was not stored and is made again; it blocks its partition's commit",
    "worker.timers-unknown": "alarm: the state of named timers cannot be read, so none fires; repeated",
    "worker.timers-begin-again": "alarm: the log of timers was created again; the names that are pending stay so",
    "worker.timers-state-lost": "alarm: the state of named timers is gone: those that were set before this offset of "
    "the log never fire",
    "worker.timer-not-now": "alarm: a named message was to come now, and the timer log has lost it; it fires as usual",
    "worker.check-not-stored": "alarm: producers could not be asked about a transaction; the next check follows",
    "worker.probe-failed": "alarm: a leader's clock could not be probed",
    "worker.clock-differs": "alarm: this machine's clock differs from the brokers' by more than a minute: set it",
    "worker.metadata-failed": "alarm: the cluster did not answer a request about a topic",
    "worker.commit-failed": "alarm: positions were not committed; the next commit includes them again",
    "worker.client-error": "alarm: an error of a Kafka client; one that repeats is logged with its count, once an hour "
    "in the end",
    "worker.producer-recycled": "alarm: the producer was replaced by a new one; records in flight are produced again",
    "worker.transaction-aborted": "alarm: a transaction was aborted; its records are relayed again",
    "worker.fenced": "alarm: another owner of the transactional id, or a transaction that took too long",
    "worker.settings-differ": "a topic's settings differ from the layout",
    "worker.cannot-go-on": "the process ends because the worker cannot continue",
    "worker.stuck": "the process ends: its loop is blocked in a call that does not return",
    "worker.stop-deadline": "the process ends without waiting any longer",
    "health.listening": "health and metrics are served here",
}
"""Every event the worker logs, with its meaning. `docs/worker.md` lists it."""

ALARM_EVENTS: Final = tuple(event for event, about in EVENTS.items() if about.startswith("alarm: "))
"""The events that count as alarms (`rocketshim_worker_alarms_total`)."""

_PLAIN: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    *("message", "asctime", "taskName"),
    *("event", "traceback"),  # the line begins with the first and ends with the second
}


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def _event(record: logging.LogRecord) -> str:
    """Return the event of a record; without one, its message."""
    return str(getattr(record, "event", None) or record.getMessage())


class TextLines(logging.Formatter):
    """`2026-01-01 10:00:00,000 WARNING worker.parked reason=... record=...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        facts = "".join(f" {name}={one_line(str(value))}" for name, value in _facts(record).items())
        line = f"{self.formatTime(record)} {record.levelname} {one_line(_event(record))}{facts}"
        trace = self.formatException(record.exc_info) if record.exc_info else getattr(record, "traceback", "")
        if not trace:
            return line
        # An exception's text may contain text of a record. Indented, no line of it looks like a log line.
        return "\n".join([line, *(f"  {one_line(each)}" for each in str(trace).rstrip().split("\n"))])


class JsonLines(logging.Formatter):
    """One JSON object a line: `at` (with milliseconds), `level`, `logger`, `pid`, `event`, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line: dict[str, object] = {
            "at": self.formatTime(record, f"%Y-%m-%dT%H:%M:%S.{int(record.msecs):03d}%z"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "event": _event(record),
            **_facts(record),
        }
        trace = self.formatException(record.exc_info) if record.exc_info else getattr(record, "traceback", "")
        if trace:
            line["traceback"] = trace
        return json.dumps(line, default=str)


def configure(log_format: LogFormat, *, level: LogLevel = "info", stream: TextIO | None = None) -> None:
    """Send every log line of this process to a stream (default: standard error). For the worker's own process only."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
