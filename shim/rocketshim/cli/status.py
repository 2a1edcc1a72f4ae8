"""`rocketshim status`: what is wrong now, worst first, on one screen."""

import json
from dataclasses import asdict
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console

from rocketshim.cli.app import FINDING
from rocketshim.cli.completion import WatchedGroups
from rocketshim.cli.findings import counts, show_findings
from rocketshim.cli.options import ConnectedWithLevels, Json, Quiet, WorkerUrls, output, seconds
from rocketshim.core.user_values import one_line
from rocketshim.errors import BrokerUnavailableError
from rocketshim.observe.finding import Finding, has_problem
from rocketshim.observe.snapshot import Snapshot
from rocketshim.observe.tables import summary
from rocketshim.observe.verdict import verdict

app = typer.Typer()
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 1.0


@app.command(epilog="Example: rocketshim status --bootstrap localhost:9092")
def status(
    *,
    at: ConnectedWithLevels,
    group: WatchedGroups = None,
    worker_url: WorkerUrls = None,
    watch: Annotated[bool, output("--watch", "-w", help="Look again and again until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(parser=seconds(1), metavar="DURATION", help="Time from one look to the next.")
    ] = 2.0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what is wrong now, worst first: its cause, since when, its cost, and the command that fixes it.

    Exit code 2 if there are errors or warnings; notes alone give 0. Takes one look at the cluster, and a second one if
    a group has something to read, to see whether it falls behind. What `doctor` finds in the set-up, without its notes,
    is included; --watch examines it once. Changes nothing.
    """
    from rocketshim.admin.doctor import Severity, set_up  # noqa: PLC0415 - `--help` does without
    from rocketshim.admin.doctor.gather import gather  # noqa: PLC0415
    from rocketshim.observe.look_up import OffsetLookup  # noqa: PLC0415 - `--help` does without
    from rocketshim.observe.sampler import Sampler  # noqa: PLC0415
    from rocketshim.observe.worker_state import ask_workers, checked_urls  # noqa: PLC0415

    urls, here, every_s = checked_urls(worker_url or ()), at.installation, every if watch else _AGAIN_S
    lookup = partial(OffsetLookup, at.bootstrap, at.names, groups=tuple(group or ()), client=at.client, left_out={})
    with (
        Sampler(
            lookup, at.names, at.levels, every_s=every_s, workers=partial(ask_workers, urls), logs_failures=False
        ) as sampler,
        sampler.watch() as looks,
    ):
        look: Snapshot | None = None
        examined: list[Finding] | None = None
        while True:
            while (newer := looks.wait_newer(look, _LOOK_S)) is None:
                pass  # each request has a time limit, but with many groups there are many
            look = newer
            if look.error is not None and (examined is None or not watch):
                raise BrokerUnavailableError(look.error)
            if examined is None:
                facts = gather(at.bootstrap, at.names, at.levels, groups=group or (), client=at.client, look=look)
                examined = [each for each in set_up(facts) if each.severity is not Severity.NOTE]
            if watch or look.earlier is not None or not any(each.first_unread_ms for each in look.groups):
                found = verdict(here, look, examined)
                _show(found, look, quiet=quiet, as_json=as_json, clear=watch)
                if not watch:
                    break
    if has_problem(found):
        raise typer.Exit(FINDING)


def _show(found: list[Finding], look: Snapshot, *, quiet: bool, as_json: bool, clear: bool) -> None:
    if quiet and not has_problem(found):
        return
    if as_json:
        typer.echo(json.dumps({"at_ms": look.at_ms, "error": look.error, "findings": [asdict(each) for each in found]}))
        return
    if clear:
        Console().clear()
    show_findings(found)
    typer.echo(one_line(f"{counts(found)}: {summary(look)}"))
