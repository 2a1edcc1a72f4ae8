"""The worker on a real broker that is slow: by a producer quota, or behind a link on which a request takes 3 s."""

import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim import DelayWorker
from rocketshim.settings import WorkerSettings
from rocketshim_local import Broker, LocalCluster
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
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
