"""`rocketshim demo`: one day of real flights through delay, retry and dead letters on a real Kafka."""

from pathlib import Path
from typing import Annotated

import typer

from rocketshim.cli.app import ERROR

app = typer.Typer()


@app.command(epilog="Example: rocketshim demo   (ROCKETSHIM_BOOTSTRAP=host:9092 plays it on that cluster)")
def demo(
    *,
    data: Annotated[Path | None, typer.Option(help="Another day, in the columns of the shipped file.")] = None,
    seconds: Annotated[int, typer.Option(min=5, max=3_600, help="How long the day takes, in seconds.")] = 45,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the topics, and show them in the console until Ctrl-C.")
    ] = False,
) -> None:
    """Delay, retry and bury one day of real flights on a real Kafka, in about 90 s. Exit code 1 if the sums differ."""
    from rocketshim_local.demo.scenario import play  # noqa: PLC0415 - `--help` does without

    if keep:
        from rocketshim.cli.console import require_console  # noqa: PLC0415

        require_console()  # not only after the day

    if not play(data=data, day_ms=seconds * 1_000, keep=keep):
        raise typer.Exit(ERROR)
