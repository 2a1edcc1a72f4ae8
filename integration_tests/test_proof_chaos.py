"""A short run under faults on three real brokers, judged by the checker: the cut of `make chaos` for CI."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from proof.chaos.plan import LANES
from proof.chaos.run import Course, chaos
from proof.check import run
from proof.reader import read_folder
from rocketshim_local import LocalCluster
from test_support.quota import producer_quota

from .waiting import wait_until

COURSE = Course(seed=24, minutes=0.3, rate=100, clocks=False)


@pytest.mark.timeout(1_800)
def test_a_run_under_faults_breaks_no_promise(tmp_path: Path) -> None:
    said: list[str] = []
    assert chaos(tmp_path / "run", COURSE, said.append) == []
    faults = 0
    for lane in LANES:
        history = read_folder(tmp_path / "run" / lane.name)
        assert run(history) == [], said
        assert sum(send.outcome == "ok" for send in history.sends) > 200
        assert {send.command for send in history.sends if send.timer} >= {"SET", "CANCEL"}
        assert any(delivery.outcome == "fail" for delivery in history.deliveries)
        assert {delivery.group for delivery in history.deliveries} == {group.name for group in lane.groups}
        assert history.commits
        assert bool(history.folds) == any(group.mode == "orderly" for group in lane.groups)
        faults += len(history.faults)
    assert faults >= 4


def test_a_quota_throttles_the_process_that_it_names_behind_a_login() -> None:
    throttled: list[str] = []

    def send(config: dict[str, str], name: str) -> Producer:
        producer = Producer({**config, "client.id": name, "throttle_cb": lambda _: throttled.append(name)})
        producer.produce("orders", bytes(50_000))
        assert producer.flush(60) == 0
        return producer

    with LocalCluster(users={"admin": "admin-secret", "app": "app-secret"}) as cluster:
        config = cluster.client_config()
        admin = AdminClient({**config})
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(60)
        addresses = f"127.0.0.1:1,{cluster.bootstrap}"  # nobody listens at the first one
        with producer_quota(addresses, "worker-1", 2_000, (config["sasl.username"], config["sasl.password"])):
            other, limited = send(config, "worker-2"), send(config, "worker-1")
            wait_until(lambda: limited.poll(0.01) == 0 and throttled != [], "a throttled producer", within_s=60)
            other.poll(0)
    assert set(throttled) == {"worker-1"}
