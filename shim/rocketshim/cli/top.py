"""`rocketshim top`: delay queues, groups, dead letters and workers in a terminal, live or once."""

import json
import sys
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from rocketshim.cli.completion import WatchedGroups
from rocketshim.cli.findings import show_findings
from rocketshim.cli.options import ConnectedWithLevels, Json, WorkerUrls, seconds
from rocketshim.errors import BrokerUnavailableError, ConfigError
from rocketshim.extras import missing_extra
from rocketshim.observe.finding import Installation
from rocketshim.observe.snapshot import Snapshot

app = typer.Typer()
_LOOK_S = 0.5


@app.command(epilog="Example: rocketshim top --bootstrap localhost:9092")
def top(
    *,
    at: ConnectedWithLevels,
    group: WatchedGroups = None,
    worker_url: WorkerUrls = None,
    every: Annotated[
        float,
        typer.Option(parser=seconds(1), metavar="DURATION", help="Time from one look to the next."),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the tables once; so does a pipe.")] = False,
    as_json: Json = False,
) -> None:
    """Watch delay queues, groups, dead letters and workers in the terminal. Changes nothing on the cluster.

    Keys: 1 to 4 choose a table, s sorts, space holds, q quits. Needs the extra `top`; --once does without.
    """
    from rocketshim.observe.look_up import OffsetLookup  # noqa: PLC0415 - `--help` does without
    from rocketshim.observe.sampler import Sampler  # noqa: PLC0415
    from rocketshim.observe.worker_state import ask_workers, checked_urls  # noqa: PLC0415

    urls = checked_urls(worker_url or ())
    groups = tuple(group or ())
    lookup = partial(OffsetLookup, at.bootstrap, at.names, groups=groups, client=at.client, left_out={})
    sampler = Sampler(
        lookup, at.names, at.levels, every_s=every, workers=partial(ask_workers, urls), logs_failures=False
    )
    with sampler, sampler.watch() as watch:
        if not once and not as_json and sys.stdout.isatty():
            try:
                from rocketshim.cli.top_screen import TopScreen  # noqa: PLC0415 - an optional package
            except ModuleNotFoundError as error:
                raise ConfigError(f"{missing_extra('top', error, 'top')}, or use --once") from error
            TopScreen(watch, at.installation).run()
            return
        while (snapshot := watch.wait_newer(None, _LOOK_S)) is None:
            pass  # each request has a time limit, but with many groups there are many
    if snapshot.error is not None:
        raise BrokerUnavailableError(snapshot.error)
    _print(at.installation, snapshot, as_json=as_json)


def _print(here: Installation, snapshot: Snapshot, *, as_json: bool) -> None:
    from rocketshim.core.user_values import one_line  # noqa: PLC0415
    from rocketshim.observe.tables import summary, tables  # noqa: PLC0415
    from rocketshim.observe.verdict import verdict  # noqa: PLC0415

    shown, wrong = tables(snapshot), verdict(here, snapshot)
    if as_json:
        found = {each.title.lower(): [dict(zip(each.columns, row, strict=True)) for row in each.rows] for each in shown}
        now = {"at_ms": snapshot.at_ms, "unknown": [*map(str, snapshot.unknown)], "findings": [*map(asdict, wrong)]}
        typer.echo(json.dumps(now | found))
        return
    show_findings(wrong)
    typer.echo(one_line(summary(snapshot)))
    for table in shown:
        typer.echo("\n" + "\t".join((table.title, *table.columns)))
        for row in table.rows:
            typer.echo("\t".join(["", *("-" if cell is None else one_line(str(cell)) for cell in row)]))
