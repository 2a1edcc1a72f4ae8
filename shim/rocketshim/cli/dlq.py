"""`rocketshim dlq`: show dead letters and why they failed, send them again, or mark them as discarded.

`ls`, `show` and `stats` are in `rocketshim.cli.kinds`; `plan`, `apply` and `discard` in `rocketshim.cli.redrive`.
"""

import json
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from rocketshim.admin.record_filter import RecordFilter
from rocketshim.cli import redrive
from rocketshim.cli.kinds import DEAD, Records, with_listing

app = with_listing(
    typer.Typer(
        help="Show dead letters and why they failed (stats, ls, show; then: rocketshim trace ID), and send them again "
        "(plan, apply).",
        epilog="Example: rocketshim dlq stats --bootstrap localhost:9092 --group payments",
        no_args_is_help=True,
    ),
    DEAD,
)
app.command(epilog=redrive.PLAN_EXAMPLE)(redrive.plan)
app.command(epilog="Example: rocketshim dlq apply plan.json --rate 50")(redrive.apply)
app.command(epilog=redrive.DISCARD_EXAMPLE)(redrive.discard)


@app.command(epilog="Example: rocketshim dlq export --group payments --since 1d > letters.jsonl")
def export(
    *,
    opened: Annotated[AbstractContextManager[Records], DEAD.opened],
    choice: Annotated[RecordFilter, DEAD.choice],
) -> None:
    """Write complete dead letters as JSON Lines, with headers and bodies (as base64 where they are not text)."""
    with opened as records:
        for entry in records.select(choice):
            typer.echo(json.dumps(entry.as_json()))
