"""Parked records: those that the worker could not deliver, by reason."""

from collections import Counter
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.parked import parked_record
from rocketshim.admin.redrive import read_log
from rocketshim.admin.redrive_planning import plan_parked
from rocketshim.console.context import Console
from rocketshim.console.forms import Form
from rocketshim.console.reading import read_newest

__all__ = ["make_plan", "show"]

_ON_A_PAGE = 200


def show(request: Request) -> Response:
    """List parked records, newest first, and count them by reason; those that were sent again are left out."""
    console = Console.of(request)
    topic, everything = console.names.parked, bool(request.query_params.get("all"))
    with console.reader() as reader:
        log = read_log(reader, console.names.redrive_log, topic)

        def waits(record: Any) -> bool:
            return everything or log.settled_record(record) is None

        cursor = request.query_params.get("from")
        read = read_newest(reader, [topic], waits, console.limits(_ON_A_PAGE), cursor=cursor)
    found = [(record, parked_record(record)) for record in read.records]
    return console.page(
        request,
        "parked.html",
        topic=topic,
        everything=everything,
        found=[(record.partition(), record.offset(), entry) for record, entry in found],
        reasons=Counter(entry.reason for _, entry in found).most_common(),
        read=read,
        command=console.command("parked ls", all=everything),
    )


def make_plan(request: Request, form: Form) -> Response:
    """Store a plan for the parked records with one reason; it is reviewed and applied as for dead letters."""
    console = Console.of(request)
    with console.reader() as reader:
        reason = form.get("reason", "")
        plan = plan_parked(reader, console.names, lambda entry: entry.reason == reason, {"reason": reason})
    console.plans.save(plan)
    return RedirectResponse(console.url("plans", plan.id), 303)
