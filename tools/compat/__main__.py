"""Try other versions, and write docs/compatibility.md.

python -m tools.compat brokers 3.9.2 4.0.1     one whole round on each Kafka
python -m tools.compat pythons python3.12      the unit tests on other Pythons, with the newest of every package
python -m tools.compat lowest                  `--help` of every command, and the unit tests, with the lowest versions

Environments and logs are kept in `.compat/`. Exit code 1: something failed.
"""

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from rocketshim.errors import RocketshimError
from tools.compat import environments, page
from tools.compat import round as one_round
from tools.compat.brokers import is_kraft, old_broker, parse

_FOLDER: Final = Path(__file__).parents[2] / ".compat"
app = typer.Typer(add_completion=False, help=__doc__, rich_markup_mode=None)


@app.command()
def brokers(versions: Annotated[list[str], typer.Argument(help="Versions of Kafka, such as 3.9.2.")]) -> None:
    """Run one whole round on a broker of each version."""
    for version in versions:
        try:
            parse(version)
        except ValueError:
            raise typer.BadParameter(
                f"{version!r} is not a version of Kafka: write three numbers, such as 3.9.2"
            ) from None
    failed = False
    for version in versions:
        folder = _emptied(f"kafka-{version}")
        try:
            with old_broker(version, folder / "broker") as bootstrap:
                features = one_round.play(bootstrap, folder)
        except (RocketshimError, TimeoutError, FileNotFoundError) as error:  # the last: pytest left no report
            typer.echo(f"Kafka {version}: not tried: {error}", err=True)
            failed = True
            continue
        mode = "KRaft" if is_kraft(version) else "ZooKeeper"
        page.record("brokers", version, {"mode": mode, "features": features, "date": _today()})
        worse = {feature: outcome for feature, outcome in features.items() if outcome != "passed"}
        typer.echo(f"Kafka {version}: {worse or 'all passed'}; {folder / 'round.txt'}")
        failed = failed or bool(worse)
    raise typer.Exit(failed)


@app.command()
def pythons(interpreters: Annotated[list[str], typer.Argument(help="Interpreters, such as python3.13.")]) -> None:
    """Run the unit tests on other Pythons, with the newest version of every package."""
    failed = False
    for interpreter in interpreters:
        python = environments.newest(interpreter, _FOLDER / Path(interpreter).name)
        versions = environments.versions(python)
        name = versions.pop("python")
        unit = environments.unit_tests(python, _FOLDER / f"unit-{name}")
        page.record("pythons", name, {"unit": unit, "date": _today()})
        typer.echo(f"Python {name}: {unit}")
        failed = failed or "failed" in unit
    raise typer.Exit(failed)


@app.command()
def lowest(
    *,
    interpreter: Annotated[str, typer.Option("--python", help="Interpreter.")] = sys.executable,
    unit: Annotated[bool, typer.Option(help="Run the unit tests, too, and write the page.")] = True,
) -> None:
    """Call `--help` of every command, and run the unit tests, with the lowest version of every package."""
    python = environments.lowest(interpreter, _FOLDER / "lowest")
    failing = environments.failing_help(python)
    for line in failing:
        typer.echo(line, err=True)
    if not unit:
        raise typer.Exit(bool(failing))
    versions = environments.versions(python)
    result = {"python": versions.pop("python"), "versions": versions, "failing_help": failing}
    tests = environments.unit_tests(python, _FOLDER / "unit-lowest")
    page.record("packages", "the lowest that are allowed", result | {"unit": tests, "date": _today()})
    typer.echo(f"lowest versions: {tests}")
    raise typer.Exit(bool(failing) or "failed" in tests)


def _emptied(name: str) -> Path:
    folder = _FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _today() -> str:
    return time.strftime("%-d %B %Y")


if __name__ == "__main__":
    app()
