"""librdkafka's own lines do not reach a terminal bare, and errors name what is wrong with a connection."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketshim_local import Broker, LocalCluster

from .test_security import certificate

GUARD_S = 120.0
FIRST_START = """
import sys, threading
from rocketshim import ConsumeFromWhere, DelayWorker, Message, Producer, PushConsumer, WorkerSettings
from rocketshim_topics import DelayLevels, Layout, TopicNames, provision
from rocketshim_topics.layout import TopicSpec
from rocketshim.kafka.clients import confluent_admin

bootstrap = sys.argv[1]
topics = [*Layout(TopicNames(), DelayLevels.default()).shared(), TopicSpec("orders", 2, purpose="mine")]
provision.ensure_topics(confluent_admin({"bootstrap.servers": bootstrap}), topics)
got = threading.Event()
for exactly_once in (False, True):
    got.clear()
    worker = DelayWorker(WorkerSettings.make(bootstrap=bootstrap, allow=["orders"], exactly_once=exactly_once))
    working = threading.Thread(target=worker.run, daemon=True)
    working.start()
    consumer = PushConsumer(bootstrap, group="g", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.register_message_listener("orders", lambda message: got.set(), orderly=True)
    consumer.start()
    with Producer(bootstrap) as producer:
        producer.send(Message("orders", b"x", delay="50ms"), timeout_s=30)
    assert got.wait(150)
    consumer.stop()
    worker.stop()
    working.join()
print("done")
"""
STARTS = {
    # less than the delivery time-out: the report of a record that was not stored in time names no cause
    "producer": "Producer(bootstrap, client=client).send(Message('orders', b'x'), timeout_s=20)",
    "push": "PushConsumer(bootstrap, group='g', client=client)",
    "lite": "LitePullConsumer(bootstrap, group='g', client=client)",
    "pull": "PullConsumer(bootstrap, group='g', client=client)",
    "worker": "DelayWorker(WorkerSettings.make(bootstrap=bootstrap, allow=['orders'], client=client)).start()",
}
START = """
import json, os, sys
from rocketshim import DelayWorker, LitePullConsumer, Message, Producer, PullConsumer, PushConsumer, WorkerSettings
from rocketshim.errors import RocketshimError
bootstrap, client = sys.argv[1], json.loads(sys.argv[2])
try:
    made = {0}
    if isinstance(made, PushConsumer):
        made.register_message_listener("orders", print)
    elif isinstance(made, LitePullConsumer):
        made.subscribe("orders")
    made.start()
    made.fetch_message_queues("orders")
except RocketshimError as error:
    print(error)
sys.stdout.flush()
os._exit(0)  # what was sent would be waited for
"""


def run(program: str, *words: str) -> tuple[str, list[str]]:
    """What a program of a user's prints, and the lines on its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words], check=False, capture_output=True, text=True, timeout=GUARD_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls(pem: Path) -> Iterator[str]:
    """Address of a broker that speaks TLS."""
    with LocalCluster(users={"admin": "s3cret"}, tls_pem=pem) as cluster:
        yield cluster.bootstrap


def test_the_first_start_on_a_new_broker_leaves_no_line_of_the_clients_on_the_terminal() -> None:
    with LocalCluster() as cluster:
        out, err = run(FIRST_START, cluster.bootstrap)
    assert out == "done\n"
    assert [line for line in err if line.startswith("%")] == []


def test_no_command_leaves_a_line_of_the_clients_on_the_terminal(broker: Broker, namespace: str) -> None:
    topic = f"{namespace}.orders"
    commands = (
        ("init", "--topic", topic, "--group", "payments"), ("doctor", "--group", "payments"),
        ("send", topic, "x", "--delay", "1h"), ("delayed", "ls"), ("delayed", "stats"), ("parked", "ls"),
        ("dlq", "stats", "--group", "payments"), ("retry", "ls", "--group", "payments"),
        ("trace", "no-such-id"), ("group", "lag", "payments"), ("group", "locks", "payments"),
    )  # fmt: skip
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "rocketshim", *command, "--bootstrap", broker.bootstrap, "--namespace", namespace],
            check=False, capture_output=True, text=True, timeout=GUARD_S,
        )  # fmt: skip
        assert "No such" not in done.stderr, done.stderr
        assert "Usage" not in done.stderr, done.stderr
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        assert [line for line in lines if line.startswith("%")] == [], command


def start_each(bootstrap: str, client: dict[str, str]) -> Iterator[tuple[str, str, list[str]]]:
    """Start each kind of client, all at the same time, since they mostly wait; its name, and what `run` returns."""
    with ThreadPoolExecutor(len(STARTS)) as several:
        ran = several.map(
            lambda start: run(START.replace("{0}", start), bootstrap, json.dumps(client)), STARTS.values()
        )
        yield from ((name, *each) for name, each in zip(STARTS, ran, strict=True))


def test_a_client_with_tls_is_told_that_a_broker_has_none(broker: Broker, pem: Path) -> None:
    client = {"security.protocol": "SSL", "ssl.ca.location": str(pem)}
    for start, out, err in start_each(broker.bootstrap, client):
        assert f"TLS handshake failed: does {broker.bootstrap} speak TLS? security.protocol=SSL" in out, start
        assert err == [], start


def test_a_client_without_tls_is_told_that_a_broker_may_expect_it(tls: str) -> None:
    for start, out, err in start_each(tls, {}):
        assert f"{tls} closed the connection before it was used: does it expect TLS or SASL?" in out, start
        assert "security.protocol=PLAINTEXT" in out, start
        assert err == [], start
