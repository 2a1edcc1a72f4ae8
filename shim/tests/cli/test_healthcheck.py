"""`rocketshim healthcheck` asks a process for its health."""

from collections.abc import Iterator

import pytest

from rocketshim.cli import main
from rocketshim.clock import SystemClock
from rocketshim.health import HealthServer
from rocketshim.observe.metrics import ExporterState
from rocketshim.observe.snapshot import Snapshot


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
    assert main(["healthcheck", f"{here}/live"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["healthcheck", f"{here}/ready"]) == 2
    assert capsys.readouterr().err == f"{here}/ready: 503\n"
    assert main(["healthcheck", f"{here}/nothing"]) == 2
    assert main(["healthcheck", "127.0.0.1:80/live"]) == 1
    server.stop()
    assert main(["healthcheck", f"{here}/live", "--timeout", "1"]) == 2
