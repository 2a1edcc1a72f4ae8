"""Spark's jobs on a link on which each answer of the broker takes 3 s longer: everything is landed, and sent once."""

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from rocketshim_local import LocalCluster
from rocketshim_spark.cli import main
from test_support.slow_link import slow_link

from .test_slow_tools import make_dead_letters, retries

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("interpreted")]


def test_a_replay_sends_each_dead_letter_once_and_says_so(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del spark  # the one that the commands find
    with slow_link(0) as link, LocalCluster(advertised_ports={1: link.port}) as cluster:
        link.broker_port = int(cluster.bootstrap.rpartition(":")[2])
        cluster.touch_internal_topics()
        bootstrap = f"127.0.0.1:{link.port}"
        names = make_dead_letters(bootstrap, "slow", 100, 100)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(60)
        at = ["--bootstrap", bootstrap]

        def ask(*words: str) -> str:
            capsys.readouterr()
            code = main([*words, "--lake", tmp_path.as_uri(), "--namespace", "slow"])
            out, err = capsys.readouterr()
            assert code == 0, err
            return out

        link.delay_s = 3.0
        ask("land", "orders", *at)
        assert "100 to send" in ask("replay", "plan", "--plan", "monday")
        done = json.loads(ask("replay", "run", *at, "--plan", "monday", "--json"))
        assert (done["sent"], done["failed"], done["left"], done["settled_before"]) == (100, 0, 0, 0)
        link.delay_s = 0.0
        again = json.loads(ask("replay", "run", *at, "--plan", "monday", "--json"))
        assert (again["sent"], again["settled_before"]) == (0, 100)
        assert ask("replay", "verify", *at, "--plan", "monday").startswith(
            "replay-verify monday: 100 planned: 100 there"
        )
        sent = retries(bootstrap, names)
    assert len(sent) == sent.total() == 100
