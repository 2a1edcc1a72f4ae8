"""`rocketshim parked ls | show | stats | plan`: show what the worker could not deliver, and send it again."""

from typing import Annotated

import typer

from rocketshim.admin.plan_from_topic import make_plan
from rocketshim.admin.record_filter import RecordFilter
from rocketshim.cli.app import FINDING
from rocketshim.cli.kinds import PARKED, parked_selection, position_of, with_listing
from rocketshim.cli.options import Connected, Json
from rocketshim.cli.records import counting, echo_safe
from rocketshim.cli.redrive import Again, Out, check_out, write_plan
from rocketshim.errors import ConfigError
from rocketshim_topics.redrive_plan import RedriveRules

app = with_listing(
    typer.Typer(
        help="Show parked records (malformed, forbidden, or refused by their target), and send them again (plan; then: "
        "rocketshim dlq apply).",
        epilog="Example: rocketshim parked ls --bootstrap localhost:9092",
        no_args_is_help=True,
    ),
    PARKED,
)


@app.command(
    epilog="Example: rocketshim parked plan --topic orders --reason target-refused --out plan.json; "
    "then: rocketshim dlq apply plan.json"
)
def plan(
    *,
    coordinates: Annotated[
        list[str] | None,
        typer.Argument(metavar="PARTITION/OFFSET", help="The records to send; or select them by an option."),
    ] = None,
    at: Connected,
    choice: Annotated[RecordFilter, parked_selection],
    again: Again = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Plan which parked records to send to the worker again, due when they were due before. Sends nothing.

    Exit code 2 if a record does not exist, or names no target.
    """
    if not coordinates and not choice.written:
        raise ConfigError("select records by PARTITION/OFFSET, or by an option (--reason '' means all)")
    check_out(out)
    wanted = {position_of(text, "parked ls") for text in coordinates or ()}
    choice.also(
        "records", " ".join(coordinates or ()) or None, lambda entry, _: (entry.partition, entry.offset) in wanted
    )
    rules = RedriveRules(namespace=at.namespace, again=again)
    with at.reader() as reader, at.reader() as sources:
        made = make_plan(reader, sources, at.names.parked, rules, choice, watch=counting)
    write_plan(made, out, as_json=as_json)
    missing = wanted - {each[:2] for each in made.letters} - {each[:2] for each in made.held_back}
    for partition, offset in sorted(missing):
        echo_safe(f"{partition}/{offset} does not exist (any more), or the other options exclude it", err=True)
    if missing or any(each.reason in {"no-target", "no-message"} for each in made.held_back):
        raise typer.Exit(FINDING)
