"""`rocketshim init` on a cluster that does not take every setting."""

import json
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import rocketshim.kafka.clients
from rocketshim.cli import main
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout, TopicSpec

LAYOUT = Layout(TopicNames(), DelayLevels.default())
OURS = [*LAYOUT.shared(), *LAYOUT.timers(), LAYOUT.redrive_log(), *LAYOUT.for_group("g", with_log=True)]
SPECS = {spec.name: spec for spec in OURS}


class Cluster:
    """An admin client of a cluster that has all topics, with another `segment.ms`, and refuses to change that."""

    def __init__(self) -> None:
        self.configs = {name: dict(spec.config) | {"segment.ms": "604800000"} for name, spec in SPECS.items()}

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return _answered(None)

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        return {name: _answered(_described(SPECS[name])) for name in topics.topic_names}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        def values(name: str) -> dict[str, Any]:
            return {setting: SimpleNamespace(value=value) for setting, value in self.configs[name].items()}

        return {resource: _answered(values(resource.name)) for resource in resources}

    def incremental_alter_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        return {resource: _answered(KafkaException(KafkaError(KafkaError.POLICY_VIOLATION))) for resource in resources}


def _described(spec: TopicSpec) -> Any:
    node = SimpleNamespace(id=1)
    return SimpleNamespace(partitions=[SimpleNamespace(leader=node, replicas=[node])] * spec.partitions)


def _answered(answer: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


def test_a_change_that_the_cluster_refuses_is_not_reported_as_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rocketshim.kafka.clients, "confluent_admin", lambda _: Cluster())
    monkeypatch.setattr(provision, "_GRACE_S", 0.0)
    command = ["init", "--group", "g", "--with-log", "--bootstrap", "127.0.0.1:1"]
    assert main([*command, "--fix"]) == 0
    out = capsys.readouterr().out
    log = TopicNames().group_log("g")
    assert f"change  {log}: segment.ms is 604800000" in out
    assert f"note  {log}: segment.ms is 604800000" in out.split("change", 1)[1]
    assert main([*command, "--fix", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["applied"]
    refused = {each["topic"]: (each["setting"], each["found"]) for each in facts["refused"]}
    assert refused[log] == ("segment.ms", "604800000")
    assert main([*command, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refused"] == []
