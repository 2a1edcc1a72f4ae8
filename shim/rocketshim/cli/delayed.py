"""`rocketshim delayed ls | show | stats`: show the messages in the delay queues and when they are due."""

import json
import time
from dataclasses import asdict
from typing import Any

import typer

from rocketshim.admin.record_view import time_text
from rocketshim.cli.app import FINDING
from rocketshim.cli.kinds import DELAYED, with_listing
from rocketshim.cli.options import ConnectedWithLevels, Json
from rocketshim.cli.records import counting
from rocketshim.cli.table import show_table
from rocketshim.observe.delay_queues import DelayedReader
from rocketshim.observe.snapshot import clock_behind_ms
from rocketshim_topics import DelayLevels
from rocketshim_topics.durations import duration_text
from rocketshim_topics.levels import time_in_queue_ms

app = with_listing(
    typer.Typer(
        help="Show waiting delayed and retried messages, without affecting the worker.",
        epilog="Example: rocketshim delayed stats --bootstrap localhost:9092",
        no_args_is_help=True,
    ),
    DELAYED,
)


@app.command(epilog="Example: rocketshim delayed stats --json")
def stats(
    *,
    at: ConnectedWithLevels,
    as_json: Json = False,
) -> None:
    """Count the waiting messages of each queue and show which leaves next. The command reads all of them.

    Exit code 2 if a message should have left over a minute ago.
    """
    levels = at.levels
    now_ms, late_ms = time.time_ns() // 1_000_000, 0  # what becomes due while all are read is not late
    with at.reader() as reader:
        queues = DelayedReader(reader, at.names, levels)
        timers = queues.timer_log()
        counted = queues.counted(counting)
    read_ms = time.time_ns() // 1_000_000
    shown: list[list[str]] = []
    rows: list[dict[str, Any]] = []
    for number, (waiting, head) in counted.items():
        delay_ms = levels.queue_delay_ms(number)
        rows.append({"partition": number, "delay_ms": delay_ms, "waiting": waiting, "head": asdict(head)})
        leaves_ms = head.appended_ms + time_in_queue_ms(levels, number)
        late_ms = max(late_ms, now_ms - leaves_ms)
        next_due = "" if head.due_ms is None else time_text(head.due_ms)
        queue = _queue(number, delay_ms, levels)
        shown.append([str(number), queue, str(waiting), time_text(leaves_ms), next_due, head.target or ""])
    for each in timers:  # commands for named timers leave the log immediately
        head = each.head[0]
        facts = {"partition": each.partition, "topic": at.names.timers, "delay_ms": 0, "waiting": each.waiting}
        rows.append(facts | {"head": asdict(head)})
        late_ms = max(late_ms, now_ms - head.appended_ms)
        leaves = time_text(head.appended_ms)
        shown.append([str(each.partition), "timer log", str(each.waiting), leaves, "", head.target or ""])
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        columns = ("partition", "queue", "waiting", "next leaves (UTC)", "next is due (UTC)", "next goes to")
        show_table(columns, shown)
    behind_ms = clock_behind_ms(max((each.appended_ms for _, each in counted.values()), default=0), read_ms)
    if behind_ms:
        typer.echo(
            f"this machine's clock is {behind_ms // 1_000} s or more behind the brokers': are some late?", err=True
        )
        raise typer.Exit(FINDING)
    if late_ms > 60_000:
        why = "is a worker running, and the clock of this machine right?"
        typer.echo(f"the oldest should have left {late_ms / 1_000:.0f} s ago: {why}", err=True)
        raise typer.Exit(FINDING)


def _queue(partition: int, delay_ms: int | None, levels: DelayLevels) -> str:
    if delay_ms is None:
        return "unknown level"
    kind = f"level {partition % levels.STRIDE + 1}" if levels.is_level(partition) else "fine"
    return f"{kind}, {duration_text(delay_ms)}"
