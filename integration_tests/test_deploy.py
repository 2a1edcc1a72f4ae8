"""The Compose file's commands run as processes against a real broker; health checks and a real Prometheus ask them.

Prometheus is `$ROCKETSHIM_PROMETHEUS`, otherwise Debian's `prometheus`. If the variable is set and it does not start,
the test fails; if there is none, it is skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]

from rocketshim import Producer
from rocketshim.cli import main
from rocketshim_local import Broker
from test_support.ports import free_ports

from .waiting import wait_until

KIT = Path(__file__).parent.parent / "deploy"
DEADLINE_S = 90.0
NAMES = ("worker", "consumer", "exporter")
QUIET = ("rocketshim_doctor_findings", "rocketshim_consumer_failing_seconds")  # no finding here, no orderly consumer
PROMETHEUS = os.environ.get("ROCKETSHIM_PROMETHEUS") or shutil.which("prometheus")


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


@pytest.fixture
def healthy(broker: Broker, namespace: str, topic: Callable[..., str]) -> Iterator[dict[str, int]]:
    """The services of the Compose file as processes; their ports on this machine once all are healthy."""
    services: dict[str, Any] = yaml.safe_load((KIT / "compose.yaml").read_text())["services"]
    orders = topic(4)
    environment = {"ROCKETSHIM_BOOTSTRAP": broker.bootstrap, "ROCKETSHIM_NAMESPACE": namespace}
    environment["PAYMENTS_TOPIC"] = orders
    with started(services["init"]["command"], environment) as init:
        assert init.wait(DEADLINE_S) == 0
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    with ExitStack() as running:
        processes = []
        for name, port in ports.items():
            given = {"0.0.0.0:8080": f"127.0.0.1:{port}", "orders": orders}
            words = [given.get(word, word) for word in services[name]["command"]]
            processes.append(running.enter_context(started(words, environment)))
            wait_until(partial(_is_well, f"http://127.0.0.1:{port}/ready"), name, within_s=DEADLINE_S)
        with Producer(broker.bootstrap, namespace=namespace) as producer:
            for body, delay in ((b"1", None), (b"2", "1s"), (b"3", "1h")):
                producer.send(orders, body, delay=delay, timeout_s=DEADLINE_S)
        yield ports
        assert [process.poll() for process in processes] == [None] * len(NAMES)


def test_every_service_of_the_compose_file_runs_and_becomes_healthy(healthy: dict[str, int]) -> None:
    for port in healthy.values():
        wait_until(partial(_is_well, f"http://127.0.0.1:{port}/live"), "live", within_s=DEADLINE_S)


@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus: install it or set ROCKETSHIM_PROMETHEUS")
def test_every_panel_of_the_dashboards_has_data_from_a_real_prometheus(healthy: dict[str, int], tmp_path: Path) -> None:
    config = yaml.safe_load((KIT / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s"}
    config["rule_files"] = [str(KIT / "prometheus" / "rules.yaml")]
    for job in config["scrape_configs"]:
        name = job["job_name"].removeprefix("rocketshim-")
        job["static_configs"] = [{"targets": [f"127.0.0.1:{healthy[name]}"]}]
    file, (port,) = tmp_path / "prometheus.yml", free_ports(1)
    file.write_text(yaml.safe_dump(config))
    here = f"127.0.0.1:{port}"
    words = [str(PROMETHEUS), "--config.file", str(file), "--storage.tsdb.path", str(tmp_path / "data")]
    words += ["--web.listen-address", here]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        wait_until(partial(_is_well, f"http://{here}/-/ready"), "Prometheus", within_s=DEADLINE_S)
        queries = [each for each in _panel_queries() if not any(metric in each for metric in QUIET)]
        assert len(queries) > 30
        for query in queries:
            wait_until(partial(_has_data, here, query), query, within_s=DEADLINE_S)
    finally:
        process.terminate()
        process.wait()


def _panel_queries() -> Iterator[str]:
    """Yield each dashboard's queries, with Grafana's variables replaced; without a condition, which is often false."""
    for path in (KIT / "grafana" / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$__rate_interval", "1m").replace("$group", ".*")
                yield query.removesuffix(" > 0")


def _has_data(here: str, query: str) -> bool:
    with urlopen(f"http://{here}/api/v1/query?{urlencode({'query': query})}", timeout=DEADLINE_S) as answer:
        return bool(json.load(answer)["data"]["result"])
