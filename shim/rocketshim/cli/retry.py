"""`rocketshim retry ls`: show the messages that a group receives as retries."""

import typer

from rocketshim.admin.decoder import Decoder
from rocketshim.cli.options import Connected, Json
from rocketshim.cli.records import (
    Choice,
    Follow,
    Group,
    Limit,
    groups_topic,
    select,
    show_list,
)

app = typer.Typer(
    help="Show the messages that a group receives as retries.",
    epilog="Example: rocketshim retry ls --bootstrap localhost:9092 --group payments --since 1h",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Show the messages that a group receives as retries."""


@app.command(epilog="Example: rocketshim retry ls --group payments --since 1h")
def ls(
    *,
    at: Connected,
    group: Group,
    choice: Choice,
    limit: Limit = 50,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """List the records of a group's retry topic: attempts that were due. `delayed ls` shows those that still wait."""
    with at.reader() as reader:
        decoder = Decoder(at.names, groups_topic(reader, at.names.retry(group), group))
        entries = select(reader, decoder, choice, follow=follow)
        show_list(entries, limit=limit, as_json=as_json, follow=follow)
