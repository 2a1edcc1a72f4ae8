"""The deployment kit is checked without a container engine: lint, schemas, our own command line, promtool.

promtool is Debian's package `prometheus`. Where it is not installed, its tests are skipped; the others read the rules
and the dashboards themselves.
"""

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]

from rocketshim.cli.app import build
from rocketshim_topics import TopicNames
from tools.reference.metrics import vocabulary

KIT = Path(__file__).parents[3] / "deploy"
ROOT = KIT.parent
KEDA = KIT / "k8s" / "components" / "keda"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
MANIFESTS = sorted(path for path in (KIT / "k8s" / "base").glob("*.yaml") if path.name != "kustomization.yaml")
EVERYWHERE = {"instance", "job", "namespace", "le"}  # given by Prometheus, by a namespace, and by histograms


def run(*command: str | Path) -> str:
    """Run a tool of this environment; it must succeed."""
    name, *arguments = map(str, command)
    tool = Path(sys.executable).parent / name
    done = subprocess.run(  # noqa: S603
        [str(tool if tool.exists() else name), *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = documents(KIT / "compose.yaml")[0]["services"]
    return loaded


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the containers of the manifests with the kind of what they belong to."""
    for path in MANIFESTS:
        for document in documents(path):
            for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
                yield document["kind"], container


def ours() -> list[list[str]]:
    """Return the words of every rocketshim command in the kit."""
    in_compose = [service["command"] for service in compose().values() if service.get("image") == "rocketshim"]
    return [*in_compose, *(container["args"] for _, container in containers())]


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the options of a command as our own command line reads them, without running it."""
    root: Any = typer.main.get_command(build(words))
    context = root.make_context("rocketshim", list(words), resilient_parsing=True)
    name, command, rest = root.resolve_command(context, list(words))
    options: dict[str, Any] = command.make_context(name, rest).params
    return options


# --- image -------------------------------------------------------------------------------------------------------


def test_the_dockerfile_is_clean_to_its_linter() -> None:
    run("hadolint", KIT / "Dockerfile")


def test_everything_that_the_image_copies_exists_and_is_in_its_context() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (KIT / "Dockerfile").read_text(), re.MULTILINE)
    paths = [path for line in copied for path in line.split()]
    allowed = [line[1:] for line in (KIT / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert len(paths) > 5
    for path in paths:
        assert (ROOT / path).exists()
        assert any(path.startswith(each) or each.startswith(f"{path}/") for each in allowed), path
    assert all((ROOT / path).exists() for path in allowed)


# --- compose and Kubernetes --------------------------------------------------------------------------------------


def test_the_compose_file_has_the_form_of_its_schema() -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", KIT / "compose.yaml")


def test_the_broker_of_the_compose_file_stores_its_records_in_its_volume() -> None:
    kafka = compose()["kafka"]
    assert kafka["volumes"] == [f"kafka-data:{kafka['environment']['KAFKA_LOG_DIRS']}"]


@pytest.mark.parametrize("version", ["1.28", "1.33", "1.37"])
def test_the_manifests_have_the_form_of_kubernetes_strict_schemas(version: str) -> None:
    run("kubernetes-validate", "-k", version, "--strict", *MANIFESTS)


def test_the_kustomization_names_every_manifest() -> None:
    (kustomization,) = documents(KIT / "k8s" / "base" / "kustomization.yaml")
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]


@pytest.mark.parametrize("words", ours(), ids=" ".join)
def test_every_command_is_one_that_our_command_line_accepts(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "kafka:9092")  # as the files set it
    parsed(words)


def test_probes_ask_the_port_that_the_process_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "kafka:9092")
    probed = [container for _, container in containers() if "livenessProbe" in container]
    assert len(probed) == 3
    for container in probed:
        options = parsed(container["args"])
        assert (options.get("health") or options.get("listen")) == "0.0.0.0:8080"
        assert container["ports"] == [{"name": "health", "containerPort": 8080}]
        for probe, path in (("startupProbe", "/live"), ("livenessProbe", "/live"), ("readinessProbe", "/ready")):
            assert container[probe]["httpGet"] == {"path": path, "port": "health"}
    image = (KIT / "Dockerfile").read_text()
    assert '"rocketshim", "healthcheck", "http://127.0.0.1:8080/live"' in image
    served = [service for service in compose().values() if "0.0.0.0:8080" in service.get("command", ())]
    assert len(served) == 3


def test_a_pod_has_more_time_to_stop_than_its_process_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "kafka:9092")
    from rocketshim.cli.run import _GRACE_S as CONSUMER_S
    from rocketshim.cli.worker import _GRACE_S as CLOSING_S

    grace = {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for path in MANIFESTS
        for document in documents(path)
        if document["kind"] in {"Deployment", "StatefulSet"}
    }
    (worker,) = (container["args"] for _, container in containers() if container["name"] == "worker")
    assert grace["worker"] > parsed(worker)["stop_timeout"] + CLOSING_S
    assert grace["consumer"] > CONSUMER_S
    assert compose()["worker"]["stop_grace_period"] == f"{grace['worker']}s"


def test_a_worker_has_64_mib_more_than_it_is_told_to_use() -> None:
    (worker,) = (container for _, container in containers() if container["name"] == "worker")
    (memory,) = (int(word.removeprefix("--memory=")) for word in worker["args"] if word.startswith("--memory="))
    assert worker["resources"]["limits"]["memory"] == f"{memory + 64}Mi"
    unit = (ROOT / "docs" / "worker.md").read_text()
    found = re.search(r"--memory (\d+) .*?MemoryMax=(\d+)M", unit, re.DOTALL)
    assert found is not None
    assert int(found[2]) == int(found[1]) + 64


def test_every_pod_runs_without_rights() -> None:
    for kind, container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, kind


# --- scaling -----------------------------------------------------------------------------------------------------


def scaled() -> list[dict[str, Any]]:
    return [documents(path)[0] for path in sorted(KEDA.glob("*.yaml")) if path.name != "kustomization.yaml"]


def triggers() -> list[dict[str, Any]]:
    return [trigger for each in scaled() for trigger in each["spec"]["triggers"]]


def test_what_is_scaled_is_in_the_base_and_keeps_its_replicas() -> None:
    base = {(each["kind"], each["metadata"]["name"]): each for path in MANIFESTS for each in documents(path)}
    for each in scaled():
        target = each["spec"]["scaleTargetRef"]
        replicas = base[target["kind"], target["name"]]["spec"]["replicas"]
        assert each["spec"]["minReplicaCount"] == replicas < each["spec"]["maxReplicaCount"]


def test_the_component_names_every_file() -> None:
    assert sorted(documents(KEDA / "kustomization.yaml")[0]["resources"]) == [
        path.name for path in sorted(KEDA.glob("*.yaml")) if path.name != "kustomization.yaml"
    ]


def test_consumers_are_scaled_by_the_lag_of_source_and_retry_topic_and_workers_never_by_lag() -> None:
    names = TopicNames()
    lags = [trigger["metadata"] for trigger in triggers() if trigger["type"] == "kafka"]
    assert [each["topic"] for each in lags] == ["orders", names.retry(lags[0]["consumerGroup"])]
    assert names.worker_group not in {each["consumerGroup"] for each in lags}
    assert all(set(each) == {"bootstrapServers", "consumerGroup", "topic", "lagThreshold", "offsetResetPolicy"}
               and all(isinstance(value, str) for value in each.values()) for each in lags)  # fmt: skip
    assert [trigger["type"] for trigger in triggers()] == ["kafka", "kafka", "prometheus"]


# --- rules and dashboards ----------------------------------------------------------------------------------------


def rules() -> list[dict[str, Any]]:
    return [rule for group in documents(KIT / "prometheus" / "rules.yaml")[0]["groups"] for rule in group["rules"]]


def dashboards() -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted((KIT / "grafana" / "dashboards").glob("*.json"))]


def queries() -> list[str]:
    """Return every query of the rules and the dashboards, with Grafana's variables replaced."""
    shown = [target["expr"] for each in dashboards() for panel in each["panels"] for target in panel.get("targets", ())]
    filled = [expr.replace("$__rate_interval", "5m").replace("$group", ".*") for expr in shown]
    scaled = [trigger["metadata"]["query"] for trigger in triggers() if trigger["type"] == "prometheus"]
    return [*(rule["expr"] for rule in rules()), *filled, *scaled]


def test_every_query_uses_metrics_and_labels_that_the_processes_export() -> None:
    labels: dict[str, set[str]] = {}
    for family in (metric for metrics in vocabulary().values() for metric in metrics):
        for suffix, given, _ in family.samples:
            labels.setdefault(family.name + suffix, set()).update(given)
    assert len(queries()) > 40
    for query in queries():
        names = re.findall(r"rocketshim_[a-z_]+", query)
        assert names
        assert set(names) <= labels.keys(), query
        known = EVERYWHERE.union(*(labels[name] for name in names))
        asked = {label for found in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r", *", found)}
        asked |= set(re.findall(r"[{,] *([a-z_]+)=", query))
        assert asked <= known, query


def test_every_alert_has_a_runbook_and_a_test_that_it_fires_and_one_that_it_is_quiet() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    alerts = [rule["alert"] for rule in rules()]
    assert [f"Rocketshim{heading}" for heading in headings] == alerts
    for rule in rules():
        anchor = rule["alert"].removeprefix("Rocketshim").lower()
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{anchor}"
        assert rule["labels"]["severity"] in {"critical", "warning"}
    tested = [
        (each["alertname"], bool(each.get("exp_alerts")))
        for test in documents(KIT / "prometheus" / "rules_test.yaml")[0]["tests"]
        for each in test["alert_rule_test"]
    ]
    assert set(tested) == {(alert, fires) for alert in alerts for fires in (True, False)}


def test_the_dashboards_are_what_their_program_builds() -> None:
    built = runpy.run_path(str(KIT / "grafana" / "build.py"))
    committed = {path.stem: path.read_text() for path in (KIT / "grafana" / "dashboards").glob("*.json")}
    assert committed == {each.uid: built["as_json"](each) for each in built["DASHBOARDS"]}


@needs_promtool
def test_the_rules_pass_their_own_tests() -> None:
    run("promtool", "check", "rules", KIT / "prometheus" / "rules.yaml")
    run("promtool", "check", "config", KIT / "prometheus" / "prometheus.yml")
    run("promtool", "test", "rules", KIT / "prometheus" / "rules_test.yaml")


@needs_promtool
def test_every_query_is_one_that_prometheus_accepts(tmp_path: Path) -> None:
    recorded = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    run("promtool", "check", "rules", file)
