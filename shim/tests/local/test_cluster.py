from collections.abc import Callable

import pytest

from rocketshim.errors import ConfigError, LocalBrokerError
from rocketshim_local import LocalCluster


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: LocalCluster(0), "brokers=0"),
        (lambda: LocalCluster(10), "brokers=10"),
        (lambda: LocalCluster(port=0), "port=0"),
        (lambda: LocalCluster(3, port=65_533), "port=65533"),
        (lambda: LocalCluster(heap_mb=64), "heap_mb=64"),
        (lambda: LocalCluster(properties={"node.id": "7"}), "node.id"),
        (lambda: LocalCluster(users={"worker": "w"}), "admin"),
    ],
)
def test_the_constructor_rejects_an_invalid_argument(make: Callable[[], LocalCluster], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        make()


def test_a_cluster_that_was_never_started_raises_and_can_be_stopped() -> None:
    cluster = LocalCluster()
    for ask in (
        lambda: cluster.bootstrap,
        lambda: cluster.nodes,
        lambda: cluster.pid(1),
        lambda: cluster.kill(1),
        lambda: cluster.restart(1),
        cluster.touch_internal_topics,
    ):
        with pytest.raises(LocalBrokerError, match="not running"):
            ask()
    with pytest.raises(LocalBrokerError, match="never started"):
        _ = cluster.logs_dir
    cluster.stop()
    cluster.stop()
