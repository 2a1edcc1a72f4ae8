"""The worker on real brokers that are slow: by a quota, behind a link on which a request takes 3 s, or frozen."""

import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim import DelayWorker, Producer
from rocketshim.errors import TopicMissingError
from rocketshim.settings.worker import WorkerSettings
from rocketshim_local import Broker, LocalCluster
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message
from rocketshim_topics.names import TopicNames
from test_support.quota import producer_quota
from test_support.slow_link import SlowLink, slow_link

from .running import running
from .waiting import wait_until
from .worker_stage import LEVELS, STAMPED, WorkerStage

MODES = pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])


def make_stage(bootstrap: str, admin: AdminClient, namespace: str, path: Path) -> WorkerStage:
    names = TopicNames(namespace)
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
    target = NewTopic(f"{namespace}.orders", 4, config=STAMPED)
    admin.create_topics([target])[target.topic].result(60)
    return WorkerStage(bootstrap, names, path, admin)


def deliver(
    stage: WorkerStage,
    count: int,
    size: int,
    *,
    exactly_once: bool,
    within_s: float,
    link: SlowLink | None = None,
    transaction_ms: int = 15_000,
) -> None:
    """Have a worker deliver a backlog, over a slow link if one is given; each message must arrive once."""
    target = f"{stage.names.namespace}.orders"
    with stage.sender() as sender:
        sent = [sender.send_async(target, b"%06d" % number + bytes(size - 6), delay_level=1) for number in range(count)]
        for result in sent:
            result.result(60)
    time.sleep(1.5)  # all of them are due when the worker starts
    worker = DelayWorker(
        WorkerSettings.make(
            bootstrap=stage.bootstrap, namespace=stage.names.namespace, delay_levels=LEVELS,
            allow=(target,), exactly_once=exactly_once, client={"client.id": client_id(stage)},
            transaction_timeout_ms=transaction_ms,
        )
    )  # fmt: skip
    if link is not None:
        link.delay_s = 3.0
    with running(worker):
        wait_until(
            lambda: worker.counts.delivered >= count,
            lambda: f"{worker.counts.delivered} of {count} are delivered: {worker.counts}",
            within_s=within_s,
        )
        if link is not None:
            link.delay_s = 0
    found = Counter((record.value() or b"")[:6] for record in stage.read(target))
    assert found == Counter(b"%06d" % number for number in range(count)), worker.counts
    assert worker.counts.parked == {}
    assert worker.counts.re_appended == worker.counts.resent == 0
    assert worker.counts.aborted <= 2, "it starts below the quota, and never grows as fast again"
    assert "worker.target-avoided" not in worker.counts.alarms


def client_id(stage: WorkerStage) -> str:
    return f"worker-{stage.names.namespace}"


@pytest.fixture
def stage(broker: Broker, admin: AdminClient, namespace: str, tmp_path: Path) -> WorkerStage:
    return make_stage(broker.bootstrap, admin, namespace, tmp_path)


@MODES
@pytest.mark.parametrize(
    ("rate", "count", "size"),
    [
        (200_000, 200, 20_000),
        pytest.param(1_000_000, 4_000, 20_000, marks=pytest.mark.long),
        pytest.param(20_000, 1_000, 2_000, marks=pytest.mark.long),
    ],
)
def test_a_backlog_arrives_once_at_the_rate_of_a_quota(
    stage: WorkerStage, exactly_once: bool, rate: int, count: int, size: int
) -> None:
    with producer_quota(stage.bootstrap, client_id(stage), rate):
        deliver(stage, count, size, exactly_once=exactly_once, within_s=120 + 2 * count * size / rate)


@pytest.mark.long
@MODES
def test_a_link_on_which_a_request_takes_three_seconds_repeats_and_parks_nothing(
    namespace: str, tmp_path: Path, exactly_once: bool
) -> None:
    with slow_link(0) as link, LocalCluster(advertised_ports={1: link.port}) as cluster:
        link.broker_port = int(cluster.bootstrap.rpartition(":")[2])
        bootstrap = f"127.0.0.1:{link.port}"
        stage = make_stage(bootstrap, AdminClient({"bootstrap.servers": bootstrap}), namespace, tmp_path)
        deliver(stage, 200, 200, exactly_once=exactly_once, within_s=300, link=link, transaction_ms=120_000)


def is_sent(sender: Producer, topic: str) -> bool:
    try:
        sender.send(Message(topic, b"first", delay_level=1), timeout_s=60)
    except TopicMissingError:
        return False
    return True


@pytest.mark.long
def test_other_targets_are_served_exactly_once_while_the_leader_of_one_is_frozen(
    namespace: str, tmp_path: Path
) -> None:
    """Kafka ends no transaction with a partition of it; its `transactional.id` stays taken until it answers."""
    one_copy = {
        **dict.fromkeys(("offsets.topic.replication.factor", "transaction.state.log.replication.factor"), "1"),
        **dict.fromkeys(("offsets.topic.num.partitions", "transaction.state.log.num.partitions"), "1"),
        "transaction.state.log.min.isr": "1",
    }
    frozen_topic, served_topic = f"{namespace}.frozen", f"{namespace}.served"
    with LocalCluster(3, properties=one_copy, heap_mb=256) as cluster:
        cluster.touch_internal_topics()
        coordinators = {cluster.leader("__consumer_offsets"), cluster.leader("__transaction_state")}
        frozen = next(node for node in cluster.nodes if node not in coordinators)
        answering = next(node for node in cluster.nodes if node != frozen)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        names = TopicNames(namespace)
        shared = [
            (each.name, each.partitions, answering, dict(each.config))
            for each in Layout(names, DelayLevels.parse(LEVELS)).shared()
        ]
        mine = [(frozen_topic, 1, frozen, STAMPED), (served_topic, 1, answering, STAMPED)]
        topics = [
            NewTopic(name, count, replica_assignment=[[node]] * count, config=config)
            for name, count, node, config in (*shared, *mine)
        ]
        for made in admin.create_topics(topics).values():
            made.result(60)
        stage = WorkerStage(cluster.bootstrap, names, tmp_path, admin)
        worker = DelayWorker(
            WorkerSettings.make(
                bootstrap=stage.bootstrap, namespace=namespace, delay_levels=LEVELS, allow=(f"{namespace}.*",),
                exactly_once=True, target_tries=100,
            )
        )  # fmt: skip
        with stage.sender() as sender, running(worker):
            for topic in (frozen_topic, served_topic):
                wait_until(partial(is_sent, sender, topic), "every broker knows the new topics", within_s=60)
            wait_until(lambda: worker.counts.delivered >= 2, "both targets take messages", within_s=60)
            cluster.pause(frozen)
            try:
                for number in range(40):  # ten are due each second
                    for topic in (frozen_topic, served_topic):
                        sender.send_async(Message(topic, b"%d" % number, delay=f"{500 + 100 * number}ms"))
                wait_until(lambda: stage.end(served_topic) > 40, "the other target is served", within_s=30)
            finally:
                cluster.resume(frozen)
            found = stage.read_until(frozen_topic, 41)
            ids: Any = worker._delivery
            wait_until(lambda: ids._producer._number == 0, "the first transactional.id is used again", within_s=180)
            sender.send(Message(frozen_topic, b"last", delay_level=1))
            found = stage.read_until(frozen_topic, 42)
        assert len({record.value() for record in found}) == len(found), "none twice"
        served = Counter(record.value() for record in stage.read(served_topic))
        assert len(served) == 41
        assert served.total() == 41
        assert worker.counts.parked == {}
