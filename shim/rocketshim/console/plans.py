"""Plans: make one, review it, send some, look at the verdict, send the rest.

A button acts on a plan: on partitions, offsets and digests. It never acts on a filter, which could select other
records a minute later.
"""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.redrive import whoami
from rocketshim.admin.redrive_planning import make_plan
from rocketshim.console.context import Console
from rocketshim.console.forms import Form, decimal, given, whole
from rocketshim.console.selection import Selection
from rocketshim.console.verdict import Verdict, left_of, verdict
from rocketshim.core.redrive_progress import DEFAULT_STOP_RATIO
from rocketshim.errors import ConfigError
from rocketshim_topics.redrive_plan import DEFAULT_MAX_REPLAYS, RedrivePlan, RedriveRules

__all__ = ["apply", "file", "listed", "make", "progress", "show", "stop"]

_ON_A_PAGE: Final = 100
_FIRST: Final = 10


def listed(request: Request) -> Response:
    """List the stored plans, the newest first."""
    console = Console.of(request)
    return console.page(request, "plans.html", plans=console.plans.listed(), folder=console.settings.state_dir)


def show(request: Request) -> Response:
    """Show a plan for review: what it sends, what it holds back and why, and how far it is applied."""
    console = Console.of(request)
    plan = _plan(console, request)
    start = max(0, whole(request.query_params, "from") or 0)
    return console.page(
        request,
        "plan.html",
        plan=plan,
        summary=plan.summary(),
        parked_topic=console.names.parked,
        start=start,
        letters=plan.letters[start : start + _ON_A_PAGE],
        rest=max(0, len(plan.letters) - start - _ON_A_PAGE),
        next_start=start + _ON_A_PAGE,
        first=min(_FIRST, len(plan.letters)),
        stop_ratio=DEFAULT_STOP_RATIO,
        command=console.command("dlq apply", str(console.settings.state_dir / f"{plan.id}.json"), namespace=None),
        **_state(console, plan),
    )


def progress(request: Request) -> Response:
    """Show only the state of a plan, for a page that is open already."""
    console = Console.of(request)
    plan = _plan(console, request)
    return console.page(
        request,
        "plan_state.html",
        plan=plan,
        first=min(_FIRST, len(plan.letters)),
        stop_ratio=DEFAULT_STOP_RATIO,
        **_state(console, plan),
    )


def file(request: Request) -> Response:
    """Return a plan's file, for `rocketshim dlq apply`."""
    plan = _plan(Console.of(request), request)
    return Response(
        plan.to_json(),
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="plan-{plan.id}.json"'},
    )


def make(request: Request, form: Form) -> Response:
    """Read the topic, and store a plan for the selected dead letters."""
    console, topic = Console.of(request), request.path_params["topic"]
    selection = Selection.of(form, console.settings)
    is_discard = form.get("action") == "discard"
    to_source = bool(given(form, "to_source"))
    rules = RedriveRules(
        action="discard" if is_discard else "redrive",
        namespace=console.settings.namespace,
        group=None if to_source or is_discard else given(form, "group"),
        to_source=to_source and not is_discard,
        max_replays=min(whole(form, "max_replays") or DEFAULT_MAX_REPLAYS, 2**31 - 1),
        again=bool(given(form, "again")),
    )
    with console.reader() as reader, console.reader() as sources:
        plan = make_plan(reader, sources, topic, rules, selection.record_filter())
    console.plans.save(plan)
    return RedirectResponse(console.url("plans", plan.id), 303)


def apply(request: Request, form: Form) -> Response:
    """Send dead letters of a plan: the first ones (`most`), or all that are left, if that number was typed.

    A page that shows another number of dead letters that are left (`left`) is old, and its button sends nothing.
    """
    console = Console.of(request)
    plan = _plan(console, request)
    most, left = whole(form, "most"), left_of(console, plan)
    if most is None and whole(form, "count_typed") != left:
        raise ConfigError(f"to send all that are left, go back and type how many these are: {left}")
    if whole(form, "left") not in {None, left}:
        raise ConfigError(f"some were sent since this page was made: {left} are left. Look at the plan again")
    ratio = decimal(form, "stop_ratio")
    console.runs.start(
        plan,
        by=f"{request.state.person.name} (console of {whoami()})"[:300],
        most=most,
        rate_per_s=decimal(form, "rate"),
        stop_ratio=DEFAULT_STOP_RATIO if ratio is None else ratio,
    )
    return RedirectResponse(console.url("plans", plan.id) + "#state", 303)


def stop(request: Request, form: Form) -> Response:
    """Stop sending; the transaction that is open is finished."""
    del form
    console = Console.of(request)
    plan = _plan(console, request)
    run = console.runs.of(plan.id)
    if run is not None:
        run.progress.stop()
    return RedirectResponse(console.url("plans", plan.id) + "#state", 303)


def _plan(console: Console, request: Request) -> RedrivePlan:
    run = console.runs.of(request.path_params["plan"])
    plan = console.plans.load(request.path_params["plan"]) if run is None else run.plan
    if plan is None:
        raise HTTPException(404, "There is no plan with this id here.")
    return plan


def _state(console: Console, plan: RedrivePlan) -> dict[str, Any]:
    """Return the run of this process, and, when it is over, the verdict by what is in Kafka.

    Whether it is over is asked once: it may end while the page is made.
    """
    run = console.runs.of(plan.id)
    is_running = run is not None and run.is_running
    found: Verdict | None = None if is_running else verdict(console, plan)
    return {"run": run, "is_running": is_running, "verdict": found}
