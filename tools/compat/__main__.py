"""Try other versions, and write docs/compatibility.md.

python -m tools.compat brokers 3.9.2 4.0.1     one whole round on each Kafka
python -m tools.compat pythons python3.12      the unit tests on other Pythons, with the newest of every package
python -m tools.compat lowest                  `--help` of every command, and the unit tests, with the lowest versions
python -m tools.compat spark 4.0.0 4.2.0       the tests of the Spark jobs on each PySpark, one after the other

With `--short` each of them takes about a minute and leaves the page as it is, for CI. Environments and logs are
kept in `.compat/`. Exit code 1: something failed; 75: nothing failed, but a registry did not answer, so not everything
was tried.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import typer

from rocketshim.errors import LocalBrokerError, RocketshimError
from tools.compat import environments, page
from tools.compat import round as one_round
from tools.compat.brokers import fetch, is_kraft, old_broker, parse

_FOLDER: Final = Path(__file__).parents[2] / ".compat"
Short = Annotated[bool, typer.Option("--short", help="About a minute; do not write the page.")]
app = typer.Typer(add_completion=False, help=__doc__, rich_markup_mode=None)


@app.command()
def brokers(
    versions: Annotated[list[str], typer.Argument(help="Versions of Kafka, such as 3.9.2.")], *, short: Short = False
) -> None:
    """Run one whole round on a broker of each version."""
    for version in versions:
        try:
            parse(version)
        except ValueError:
            raise typer.BadParameter(
                f"{version!r} is not a version of Kafka: write three numbers, such as 3.9.2"
            ) from None
    # The rounds mostly wait, so that short ones may run side by side, each with a broker of its own.
    with ThreadPoolExecutor(len(versions) if short else 1) as threads:
        codes = set(threads.map(lambda version: _try_kafka(version, short=short), versions))
    raise typer.Exit(1 if 1 in codes else max(codes))


def _try_kafka(version: str, *, short: bool) -> int:
    """Run one round; return the exit code."""
    try:
        fetch(version)
    except LocalBrokerError as error:
        typer.echo(f"Kafka {version}: NOT TRIED: {error}", err=True)
        return os.EX_TEMPFAIL
    folder = _emptied(f"kafka-{version}")
    try:
        with old_broker(version, folder / "broker") as bootstrap:
            features = one_round.play(parse(version), bootstrap, folder, short=short)
    except (RocketshimError, TimeoutError, FileNotFoundError) as error:  # the last: pytest left no report
        typer.echo(f"Kafka {version}: no round: {error}", err=True)
        return 1
    if not short:
        mode = "KRaft" if is_kraft(version) else "ZooKeeper"
        page.record("brokers", version, {"mode": mode, "features": features, "date": _today()})
    worse = {feature: outcome for feature, outcome in features.items() if outcome != "passed"}
    typer.echo(f"Kafka {version}: {worse or 'all passed'}; {folder / 'round.txt'}")
    return int(bool(worse))


@app.command()
def pythons(
    interpreters: Annotated[
        list[str] | None, typer.Argument(help="Interpreters, such as python3.13; default: the newest that is here.")
    ] = None,
    *,
    short: Short = False,
) -> None:
    """Run the unit tests on other Pythons, with the newest version of every package.

    Short: `--help` of every command, and the unit tests of what is pure.
    """
    newest = environments.newest_python()
    if not interpreters and newest is None:
        typer.echo("no Python after 3.11 is here: NOT TRIED", err=True)
        raise typer.Exit(os.EX_TEMPFAIL)
    failed = False
    for interpreter in interpreters or [str(newest)]:
        made = _made(environments.newest, interpreter, Path(interpreter).name, short=short)
        versions = environments.versions(made)
        name = versions.pop("python")
        failing = _failing_help(made) if short else []
        tests = environments.PURE_TESTS if short else environments.UNIT_TESTS
        unit = environments.unit_tests(made, _FOLDER / f"unit-{name}", tests)
        if not short:
            page.record("pythons", name, {"unit": unit, "date": _today()})
        typer.echo(f"Python {name}: {unit}")
        failed = failed or bool(failing) or "failed" in unit
    raise typer.Exit(failed)


@app.command()
def lowest(
    *,
    interpreter: Annotated[str, typer.Option("--python", help="Interpreter.")] = sys.executable,
    short: Short = False,
) -> None:
    """Call `--help` of every command, and run the unit tests, with the lowest version of every package.

    Short: only `--help`.
    """
    made = _made(environments.lowest, interpreter, "lowest", short=short)
    failing = _failing_help(made)
    if short:
        raise typer.Exit(bool(failing))
    versions = environments.versions(made)
    result = {"python": versions.pop("python"), "versions": versions, "failing_help": failing}
    # Packages that they need themselves are newer, and have deprecated what the lowest versions call.
    tests = environments.unit_tests(
        made, _FOLDER / "unit-lowest", ("-W", "default::DeprecationWarning", *environments.UNIT_TESTS)
    )
    page.record("packages", "the lowest that are allowed", result | {"unit": tests, "date": _today()})
    typer.echo(f"lowest versions: {tests}")
    raise typer.Exit(bool(failing) or "failed" in tests)


@app.command()
def spark(
    versions: Annotated[list[str], typer.Argument(help="Versions of PySpark, such as 4.2.0.")], *, short: Short = False
) -> None:
    """Run the tests of the Spark jobs on other versions of PySpark, with the Delta that rocketshim chooses for each."""
    codes = {_try_spark(version, short=short) for version in versions}
    raise typer.Exit(1 if 1 in codes else max(codes))


def _try_spark(version: str, *, short: bool) -> int:
    """Run the tests; return the exit code."""
    try:
        made = environments.with_spark(version, _FOLDER / f"spark-{version}")
    except environments.AwayError as error:
        typer.echo(f"PySpark {version}: NOT TRIED: {error}", err=True)
        return os.EX_TEMPFAIL
    tests = environments.SHORT_SPARK_TESTS if short else environments.SPARK_TESTS
    outcome = environments.unit_tests(made, _FOLDER / f"unit-spark-{version}", tests)
    if not short:
        delta = environments.delta_of(made)
        page.record("spark", version, {"delta": delta, "unit": outcome, "date": _today()})
    typer.echo(f"PySpark {version}: {outcome}")
    return int("failed" in outcome)


def _made(make: Callable[[str, Path, Sequence[str]], Path], interpreter: str, name: str, *, short: bool) -> Path:
    if shutil.which(interpreter) is None:
        raise typer.BadParameter(f"{interpreter!r} is not here: name a Python of this machine, or its path")
    try:
        return make(interpreter, _FOLDER / name, environments.PURE if short else environments.ALL)
    except environments.AwayError as error:
        typer.echo(f"{name}: NOT TRIED: {error}", err=True)
        raise typer.Exit(os.EX_TEMPFAIL) from None


def _failing_help(python: Path) -> list[str]:
    failing = environments.failing_help(python)
    for line in failing:
        typer.echo(line, err=True)
    return failing


def _emptied(name: str) -> Path:
    folder = _FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _today() -> str:
    return time.strftime("%-d %B %Y")


if __name__ == "__main__":
    app()
