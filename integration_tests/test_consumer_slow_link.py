"""Consumers behind a link on which each request takes 3 s: nothing is lost, repeated, stuck, or reported as a fault."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim import LitePullConsumer, PushConsumer, TopicNames
from rocketshim_local import LocalCluster
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout
from test_support.slow_link import SlowLink, slow_link

from . import waiting

GUARD_S = 300.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
FAULTS = {
    "consumer.client-error", "consumer.log-cut", "consumer.lost", "consumer.start-unknown", "consumer.timed-out",
    "group.client-error", "group.log-lost", "group.log-unreachable",
}  # fmt: skip
pytestmark = pytest.mark.long


class Link:
    """A cluster behind the link, with the topic `orders` of two queues."""

    def __init__(self, link: SlowLink, cluster: LocalCluster) -> None:
        link.broker_port = int(cluster.bootstrap.rpartition(":")[2])
        self.bootstrap = f"127.0.0.1:{link.port}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        provision.ensure_topics(admin, Layout(TopicNames(), DelayLevels.default()).shared(), create=True)
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(GUARD_S)
        self._producer = Producer({"bootstrap.servers": self.bootstrap})
        self._sent = 0
        self.send(100)
        link.delay_s = 3.0

    def send(self, count: int) -> int:
        """Send as many more; return how many were sent in all."""
        for number in range(self._sent, self._sent + count):
            self._producer.produce("orders", b"%d" % number, partition=number % 2)
        self._producer.flush(GUARD_S)
        self._sent += count
        return self._sent


@pytest.fixture
def link() -> Iterator[Link]:
    with slow_link(0) as slow, LocalCluster(advertised_ports={1: slow.port}) as cluster:
        yield Link(slow, cluster)
        slow.delay_s = 0


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if vars(record).get("event") in FAULTS]


def test_a_slow_link_repeats_and_loses_nothing_of_an_orderly_queue(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    seen: defaultdict[int, list[int]] = defaultdict(list)
    failed: list[int] = []

    def handle(message: Any) -> None:
        number = int(message.body)
        if number == 8 and len(failed) < 2:
            failed.append(number)
            raise ValueError("not yet")
        seen[number % 2].append(number)

    def member() -> PushConsumer:
        consumer = PushConsumer(link.bootstrap, group="g", exit_timeout_ms=0)
        consumer.register_message_listener("orders", handle, orderly=True)
        return consumer

    def handled(count: int) -> None:
        wait_until(lambda: sum(map(len, seen.values())) >= count, lambda: f"{seen}")

    first, second = member(), member()
    first.start()
    handled(100)
    second.start(wait_s=GUARD_S)
    handled(link.send(40))
    first.stop(60)
    handled(link.send(40))
    second.stop(60)
    assert seen == {0: list(range(0, 180, 2)), 1: list(range(1, 180, 2))}
    assert first.orderly_counts.lost == second.orderly_counts.lost == 0
    assert not faults(caplog)


def test_a_slow_link_repeats_and_loses_nothing_of_a_lite_pull_consumer(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    got: Counter[int] = Counter()
    first, second = (LitePullConsumer(link.bootstrap, group="g", exit_timeout_ms=0) for _ in range(2))

    def read(*consumers: LitePullConsumer) -> int:
        for consumer in consumers:
            got.update(int(message.body or b"") for message in consumer.poll(300))
        return len(got)

    first.subscribe("orders")
    first.start()
    wait_until(lambda: read(first) == 100, lambda: f"{len(got)} of 100")
    second.subscribe("orders")
    second.start()
    sent = link.send(40)
    wait_until(lambda: read(first, second) == sent, lambda: f"{len(got)} of {sent}")
    wait_until(lambda: read(first, second) > 0 and bool(second.assignment()), lambda: "the second gets no queue")
    read(first)
    first.commit_sync()
    first.stop()
    sent = link.send(40)
    wait_until(lambda: read(second) == sent, lambda: f"{len(got)} of {sent}")
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        read(second)  # what would come twice
    second.commit_sync()
    second.stop()
    assert got == Counter(range(180))
    assert not faults(caplog)
