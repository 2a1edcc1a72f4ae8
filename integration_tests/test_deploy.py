"""The Compose file's commands run as processes against a real broker, and its health checks ask them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from rocketshim.cli import main
from rocketshim_local import Broker
from rocketshim_local.probe import free_ports

from .waiting import wait_until

KIT = Path(__file__).parent.parent / "deploy"
DEADLINE_S = 90.0


@contextmanager
def started(words: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rocketshim", *words],
        env=os.environ | environment,
        cwd=KIT / "compose",
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _is_well(url: str) -> bool:
    return main(["healthcheck", url]) == 0


def test_every_service_of_the_compose_file_runs_and_becomes_healthy(
    broker: Broker, namespace: str, topic: Callable[..., str]
) -> None:
    services: dict[str, Any] = yaml.safe_load((KIT / "compose.yaml").read_text())["services"]
    orders = topic(4)
    environment = {"ROCKETSHIM_BOOTSTRAP": broker.bootstrap, "ROCKETSHIM_NAMESPACE": namespace}
    environment["PAYMENTS_TOPIC"] = orders
    with started(services["init"]["command"], environment) as init:
        assert init.wait(DEADLINE_S) == 0
    names = ("worker", "consumer", "exporter")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with ExitStack() as running:
        for name in names:
            given = {"0.0.0.0:8080": f"127.0.0.1:{ports[name]}", "orders": orders}
            words = [given.get(word, word) for word in services[name]["command"]]
            process = running.enter_context(started(words, environment))
            here = f"http://127.0.0.1:{ports[name]}"
            wait_until(partial(_is_well, f"{here}/ready"), name, within_s=DEADLINE_S)
            assert _is_well(f"{here}/live")
            assert process.poll() is None
