"""Build the Grafana dashboards: `python deploy/grafana/build.py`. A test compares them with the committed files.

A dashboard is a list of rows, a row has a title and panels, a panel has a title, a unit, queries and a description. The
rest of Grafana's JSON follows from these.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "Query", "Row", "as_json"]

_FOLDER: Final = Path(__file__).parent / "dashboards"
_WIDTH: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """A query in Prometheus' language, and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram. `stat`: show the newest value only."""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    stat: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard; `variables` are labels to choose from, each with the metric that has them."""

    uid: str
    title: str
    rows: tuple[Row, ...]
    variables: tuple[tuple[str, str], ...] = ()


def _rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))"


def _quantile(buckets: str) -> str:
    return f"histogram_quantile(0.99, {_rate(buckets, 'group, le', _GROUP)})"


def _top(query: str) -> str:
    """Return a query for the 20 largest series: a browser cannot draw those of a thousand groups."""
    return f"topk(20, {query})"


_OF_GROUP: Final = "{{group}} {{topic}}"
_GROUP: Final = '{group=~"$group"}'

OVERVIEW: Final = Dashboard(
    uid="rocketshim-overview",
    title="rocketshim: overview",
    rows=(
        Row(
            "Is anything wrong?",
            (
                Panel(
                    "Workers ready", "Workers that are in their group and commit.", "short",
                    (Query("sum(rocketshim_worker_ready)"),), stat=True,
                ),
                Panel(
                    "Latest head", "For how long the head of a delay queue has been due.", "s",
                    (Query("max(rocketshim_schedule_head_late_seconds)"),), stat=True,
                ),
                Panel(
                    "New dead letters, 24 h", "Appended to the dead-letter topics.", "short",
                    (Query("sum(increase(rocketshim_dead_letters_appended_total[24h]))"),), stat=True,
                ),
                Panel(
                    "Parked, 24 h", "Messages that the worker can never deliver as they are.", "short",
                    (Query("sum(increase(rocketshim_parked_appended_total[24h]))"),), stat=True,
                ),
                Panel(
                    "Findings of the doctor", "By severity; `rocketshim doctor` prints them.", "short",
                    (Query("sum by (severity) (rocketshim_doctor_findings)", "{{severity}}"),), stat=True,
                ),
            ),
        ),
        Row(
            "Groups",
            (
                Panel(
                    "Age of the oldest unread message", "By group and topic, the 20 oldest.", "s",
                    (Query(_top("max by (group, topic) (rocketshim_group_oldest_unread_seconds)"), _OF_GROUP),),
                ),
                Panel(
                    "Behind", "Offsets between position and end, an upper bound; the 20 most.", "short",
                    (Query(_top("sum by (group, topic) (rocketshim_group_behind_offsets)"), _OF_GROUP),),
                ),
                Panel(
                    "Dead letters kept", "What the dead-letter topics still have, the 20 most.", "short",
                    (Query(_top("sum by (group) (rocketshim_dead_letters_kept_offsets)"), "{{group}}"),),
                ),
            ),
        ),
        Row(
            "Delay queues",
            (
                Panel(
                    "Waiting", "Offsets in all delay queues, probes included.", "short",
                    (Query("sum(rocketshim_schedule_waiting_offsets)", "waiting"),),
                ),
                Panel(
                    "Late", "For how long the head of each queue has been due.", "s",
                    (Query("rocketshim_schedule_head_late_seconds > 0", "queue {{partition}}"),),
                ),
            ),
        ),
    ),
)  # fmt: skip

WORKER: Final = Dashboard(
    uid="rocketshim-worker",
    title="rocketshim: worker",
    rows=(
        Row(
            "Deliveries",
            (
                Panel(
                    "Rate", "Delivered to targets, and moved on to another delay queue.", "ops",
                    (
                        Query(_rate("rocketshim_worker_delivered_total", "instance"), "{{instance}} delivered"),
                        Query(_rate("rocketshim_worker_hopped_total", "instance"), "{{instance}} hopped"),
                    ),
                ),
                Panel(
                    "Lateness", "From due to stored at the target.", "s",
                    tuple(
                        Query(
                            f"histogram_quantile({share}, {_rate('rocketshim_worker_lateness_seconds_bucket', 'le')})",
                            f"{share:.0%}",
                        )
                        for share in (0.5, 0.99)
                    ),
                ),
                Panel(
                    "Due longest", "How long the record due longest has been so.", "s",
                    (Query("rocketshim_worker_oldest_due_seconds", "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "Trouble",
            (
                Panel(
                    "Alarms", "By event; the log has the facts.", "ops",
                    (Query(_rate("rocketshim_worker_alarms_total", "event") + " > 0", "{{event}}"),),
                ),
                Panel(
                    "Avoided targets", "Topics that are not tried now.", "short",
                    (Query("rocketshim_worker_avoided_targets", "{{instance}}"),),
                ),
                Panel(
                    "Parked", "By reason.", "ops",
                    (Query(_rate("rocketshim_worker_parked_total", "reason") + " > 0", "{{reason}}"),),
                ),
                Panel(
                    "Transactions aborted", "Of exactly-once workers.", "ops",
                    (Query(_rate("rocketshim_worker_transactions_aborted_total", "instance"), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "Named timers and transactions",
            (
                Panel(
                    "Commands", "Those that changed something: fired, cancelled, delivered now, set.", "ops",
                    (
                        Query(
                            _rate("rocketshim_worker_timer_commands_total", "command", '{effective="true"}'),
                            "{{command}}",
                        ),
                    ),
                ),
                Panel("Pending names", "", "short", (Query("rocketshim_worker_pending_timers", "{{instance}}"),)),
                Panel(
                    "Checks", "Questions to the producers of half messages.", "ops",
                    (Query(_rate("rocketshim_worker_transaction_checks_total", "instance"), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "Queues",
            (
                Panel(
                    "Backlog", "Records that wait, by queue.", "short",
                    (Query("sum by (partition) (rocketshim_worker_backlog_records)", "queue {{partition}}"),),
                ),
                Panel(
                    "Next due", "Until the head of a queue leaves.", "s",
                    (Query("min by (partition) (rocketshim_worker_next_due_seconds)", "queue {{partition}}"),),
                ),
            ),
        ),
    ),
)  # fmt: skip

CONSUMER: Final = Dashboard(
    uid="rocketshim-consumer",
    title="rocketshim: consumers",
    variables=(("group", "rocketshim_consumer_workers"),),
    rows=(
        Row(
            "Messages",
            (
                Panel(
                    "Rate by result", "How listener calls ended.", "ops",
                    (
                        Query(
                            _rate("rocketshim_consumer_messages_total", "group, result", _GROUP),
                            "{{group}} {{result}}",
                        ),
                    ),
                ),
                Panel(
                    "Sent back", "Failed messages by where they went.", "ops",
                    (Query(_rate("rocketshim_consumer_sent_back_total", "group, hop", _GROUP), "{{group}} {{hop}}"),),
                ),
                Panel(
                    "Lag", "Messages to the end of the queues.", "short",
                    (
                        Query(
                            f"sum by (group, topic) (rocketshim_consumer_lag_messages{_GROUP})",
                            "{{group}} {{topic}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Listeners",
            (
                Panel(
                    "Busy", "Share of the listener threads (or async calls) that are in use.", "percentunit",
                    (
                        Query(
                            _rate("rocketshim_consumer_listener_seconds_total", "group", _GROUP)
                            + f" / sum by (group) (rocketshim_consumer_workers{_GROUP})",
                            "{{group}}",
                        ),
                    ),
                ),
                Panel(
                    "Oldest call", "Age of the oldest listener call.", "s",
                    (Query(f"max by (group) (rocketshim_consumer_oldest_in_work_seconds{_GROUP})", "{{group}}"),),
                ),
                Panel(
                    "In flight and buffered", "Messages handed out, and messages that wait in memory.", "short",
                    (
                        Query(
                            f"sum by (group) (rocketshim_consumer_in_flight_messages{_GROUP})",
                            "{{group}} handed out",
                        ),
                        Query(f"sum by (group) (rocketshim_consumer_held_messages{_GROUP})", "{{group}} buffered"),
                    ),
                ),
            ),
        ),
        Row(
            "Times",
            (
                Panel(
                    "Listener, 99 %", "Time a listener takes for a message.", "s",
                    (Query(_quantile("rocketshim_consumer_listener_duration_seconds_bucket"), "{{group}}"),),
                ),
                Panel(
                    "From append to handled, 99 %", "The age of messages when their call ends.", "s",
                    (Query(_quantile("rocketshim_consumer_latency_seconds_bucket"), "{{group}}"),),
                ),
                Panel(
                    "Retries by attempt", "Failed attempts of the messages that are retried.", "ops",
                    (Query(_rate("rocketshim_consumer_retries_total", "attempt", _GROUP) + " > 0", "{{attempt}}"),),
                ),
                Panel(
                    "Dead letters by cause", "Class of the failure.", "ops",
                    (Query(_rate("rocketshim_consumer_dead_letters_total", "cause", _GROUP) + " > 0", "{{cause}}"),),
                ),
            ),
        ),
        Row(
            "Trouble",
            (
                Panel(
                    "Commits refused", "They are tried again.", "ops",
                    (Query(_rate("rocketshim_consumer_commits_failed_total", "group", _GROUP), "{{group}}"),),
                ),
                Panel(
                    "Orderly queues that fail", "For how long one message has blocked a queue.", "s",
                    (
                        Query(
                            f"max by (group, topic, queue_id) (rocketshim_consumer_failing_seconds{_GROUP}) > 0",
                            "{{group}} {{topic}}/{{queue_id}}",
                        ),
                    ),
                ),
                Panel(
                    "Paused queues", "Queues that are not read now.", "short",
                    (Query(f"sum by (group) (rocketshim_consumer_paused{_GROUP})", "{{group}}"),),
                ),
            ),
        ),
    ),
)  # fmt: skip

DASHBOARDS: Final = (OVERVIEW, WORKER, CONSUMER)


def as_json(dashboard: Dashboard) -> str:
    """Return a dashboard as the text of its file."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        panels.append({"type": "row", "title": row.title, "collapsed": False, "gridPos": _at(0, top, _WIDTH, 1)})
        width = _WIDTH // len(row.panels)
        height = _HEIGHT // 2 if all(panel.stat for panel in row.panels) else _HEIGHT
        for column, panel in enumerate(row.panels):
            panels.append(_panel(panel) | {"gridPos": _at(column * width, top + 1, width, height)})
        top += 1 + height
    for number, shown in enumerate(panels, start=1):
        shown["id"] = number
    whole = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["rocketshim"],
        "timezone": "utc",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source(), *(_variable(*each) for each in dashboard.variables)]},
        "panels": panels,
    }
    return json.dumps(whole, indent=1) + "\n"


def _at(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
        for number, query in enumerate(panel.queries)
    ]
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def _data_source() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}


def _variable(label: str, metric: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": label,
        "datasource": _SOURCE,
        "query": f"label_values({metric}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",  # without it a query names each of a thousand groups
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> None:
    """Write the files."""
    _FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        (_FOLDER / f"{dashboard.uid}.json").write_text(as_json(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
