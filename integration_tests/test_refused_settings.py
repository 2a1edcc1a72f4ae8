"""A cluster that refuses `segment.ms`, as some managed ones do, is as good as any: the group log does without it."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from rocketshim import Producer, PushConsumer
from rocketshim.cli import main
from rocketshim_local import LocalCluster
from rocketshim_topics import TopicNames
from rocketshim_topics.provision import read_topics

from .java_classes import options_with
from .waiting import wait_until

POLICIES = ("create.topic.policy.class.name", "alter.config.policy.class.name")


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = options_with("RefuseSegmentMs", tmp_path_factory.mktemp("policy"))
    with LocalCluster(properties=dict.fromkeys(POLICIES, "RefuseSegmentMs"), jvm_options=options) as cluster:
        yield cluster


def test_init_and_doctor_note_it_and_the_topics_are_there(
    refusing: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--bootstrap", refusing.bootstrap, "--namespace", "shop"]
    log = TopicNames("shop").group_log("payments")
    assert main(["init", *at, "--group", "payments", "--with-log"]) == 0
    assert f"note  {log}: segment.ms is 604800000" in capsys.readouterr().out
    (state,) = read_topics(AdminClient(refusing.client_config()), [log]).values()
    assert state.config is not None
    assert state.config["message.timestamp.type"] == "LogAppendTime"
    for words in ([], ["--fix"]):
        assert main(["init", *at, "--group", "payments", "--with-log", *words]) == 0
    capsys.readouterr()
    main(["doctor", *at, "--group", "payments", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [each["severity"] for each in found if each["check"] == "segment"] == ["note", "note"]
    main(["doctor", *at, "--group", "payments", "--probe"])
    assert "settings of topics: works, segment.ms is refused (" in capsys.readouterr().out


def test_an_orderly_consumer_makes_its_log_itself(refusing: LocalCluster) -> None:
    handled: list[bytes] = []
    admin, names = AdminClient(refusing.client_config()), TopicNames("")
    assert main(["init", "--bootstrap", refusing.bootstrap, "--topic", "orders"]) == 0
    consumer = PushConsumer(bootstrap=refusing.bootstrap, group="payments")
    consumer.listener("orders", orderly=True)(lambda message: handled.append(message.body))
    with Producer(bootstrap=refusing.bootstrap) as producer, consumer:
        producer.send("orders", b"1")
        wait_until(lambda: handled == [b"1"], "it is handled", within_s=60.0)
    assert read_topics(admin, [names.group_log("payments")])
