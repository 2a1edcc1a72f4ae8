"""`rocketshim healthcheck` asks a process for its health."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rocketshim.cli import main
from rocketshim.clock import SystemClock
from rocketshim.health import HealthServer
from rocketshim.observe.exporter import ExporterState
from rocketshim.observe.snapshot import Snapshot

PATIENT = ("--timeout", "60")


@pytest.fixture
def server() -> Iterator[HealthServer]:
    clock = SystemClock()
    state = ExporterState(clock.monotonic_ns(), 0, Snapshot(0, error="away"))
    made = HealthServer("127.0.0.1", 0, lambda: state, clock)
    made.start()
    yield made
    made.stop()


def test_the_exit_code_tells_health_from_trouble_and_wrong_usage(
    server: HealthServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy has nothing to do with the process's own health
    here = f"http://127.0.0.1:{server.port}"
    assert main(["healthcheck", f"{here}/live", *PATIENT]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["healthcheck", f"{here}/ready", *PATIENT]) == 2
    assert capsys.readouterr().err == f"{here}/ready: 503\n"
    assert main(["healthcheck", f"{here}/nothing", *PATIENT]) == 2
    assert main(["healthcheck", "127.0.0.1:80/live"]) == 1
    server.stop()
    assert main(["healthcheck", f"{here}/live", "--timeout", "1"]) == 2


@pytest.fixture
def other_protocol() -> Iterator[int]:
    """Return the port of a server that does not speak HTTP."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            connection.recv(1_000)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    listening.close()
    thread.join(5)


def test_an_answer_that_is_not_http_is_a_finding(other_protocol: int, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{other_protocol}/ready"
    assert main(["healthcheck", url, *PATIENT]) == 2
    assert capsys.readouterr().err.startswith(f"{url}: no answer (SSH-2.0-OpenSSH")


@pytest.mark.parametrize("url", ["http://localhost:http/ready", "http://local host/ready"])
def test_a_url_that_cannot_be_asked_is_a_finding(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["healthcheck", url]) == 2
    assert capsys.readouterr().err.startswith(f"{url}: no answer (")
