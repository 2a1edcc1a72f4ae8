"""The local broker itself: what it promises to those who build on it."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from rocketshim.errors import BrokerUnavailableError, LocalBrokerError
from rocketshim_local import Broker, LocalCluster, any_broker, cache_dir, prepare
from rocketshim_local.cache import CACHE_VARIABLE
from rocketshim_local.server_properties import NodeAddress, render_properties, server_properties
from rocketshim_local.startup_kit import BOOTSTRAP_CHECKPOINT, startup_kit
from test_support.ports import free_ports

DEADLINE_S = 60.0


def send(config: dict[str, str], topic: str, count: int) -> list[int | None]:
    """Send `count` numbered records and return the error code of each; None: it is stored.

    Not the errors themselves: `KafkaError == None` leaves an exception behind, which the next call into C reports as a
    `SystemError` (confluent_kafka 2.16.1).
    """
    outcomes: list[int | None] = []
    producer = Producer(config | {"acks": "all", "enable.idempotence": "true", "log_level": "0"})
    for number in range(count):
        producer.produce(
            topic,
            str(number).encode(),
            on_delivery=lambda error, _: outcomes.append(None if error is None else error.code()),
        )
    producer.flush(DEADLINE_S)
    return outcomes


def receive(config: dict[str, str], topic: str, count: int) -> list[int]:
    """Read `count` records of a topic from its beginning."""
    settings = config | {"group.id": "reader", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    consumer = Consumer(settings | {"log_level": "0"})
    consumer.subscribe([topic])
    try:
        return [int(value(message)) for message in polled(consumer, count)]
    finally:
        consumer.close()


def polled(consumer: Consumer, count: int) -> Iterator[Message]:
    for _ in range(count):
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "no record before the deadline"
        yield message


def value(message: Message) -> bytes:
    assert message.error() is None, message.error()
    content = message.value()
    assert isinstance(content, bytes)
    return content


def create(config: dict[str, str], topic: str, partitions: int = 1) -> None:
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, num_partitions=partitions)])[topic].result(DEADLINE_S)
    await_known(admin, topic)


def await_known(admin: AdminClient, topic: str) -> int:
    """Wait until every partition of a topic that was confirmed has a leader; return how many there are."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        if found.error is None and found.partitions and all(part.leader >= 0 for part in found.partitions.values()):
            return len(found.partitions)
    raise TimeoutError(f"{topic} is not known after {DEADLINE_S} s")


CLI = ("-c", "import sys; from rocketshim.cli import main; sys.exit(main())")


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run this Python; killed at the end of the block if it has not ended, so that a test can fail."""
    command = [sys.executable, *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ends(pid: int, deadline_s: float) -> bool:
    """Tell whether a process ends before the deadline."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], deadline_s)[0])
    finally:
        os.close(handle)


def test_the_broker_of_the_session_takes_records_and_gives_them_back(broker: Broker, topic: Callable[..., str]) -> None:
    name = topic(partitions=1)
    config = {"bootstrap.servers": broker.bootstrap}
    assert send(config, name, 100) == [None] * 100
    assert receive(config, name, 100) == list(range(100))


def test_topics_are_not_made_by_asking_for_them(broker: Broker) -> None:
    if broker.kind == "named":
        pytest.xfail("a named broker has its own settings")
    with pytest.raises(AssertionError, match="UNKNOWN_TOPIC_OR_PART"):
        receive({"bootstrap.servers": broker.bootstrap}, "nobody-made-this", 1)
    assert "nobody-made-this" not in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics().topics


def test_a_named_broker_is_used_and_left_running(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", broker.bootstrap)
    lines: list[str] = []
    with any_broker(report=lines.append) as named:
        assert (named.kind, named.bootstrap, named.cluster) == ("named", broker.bootstrap, None)
    assert lines == [f"broker: {broker.bootstrap} (ROCKETSHIM_BOOTSTRAP names it)"]
    assert AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).brokers


def test_a_named_broker_that_does_not_answer_is_an_error_and_no_reason_to_start_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", nowhere)
    with pytest.raises(BrokerUnavailableError, match=nowhere), any_broker():
        pass


def test_preparing_a_second_time_does_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    monkeypatch.setenv("ROCKETSHIM_MAVEN_REPOSITORY", "http://127.0.0.1:1")  # nobody listens there
    lines: list[str] = []
    kit = prepare(report=lines.append)
    assert lines == []
    assert kit.jars.damaged() == []


def test_a_new_cluster_has_the_feature_levels_of_kafka_s_own_formatter(tmp_path: Path) -> None:
    kit = startup_kit()
    address = NodeAddress(1, 1, 2)
    settings = tmp_path / "server.properties"
    settings.write_text(render_properties(server_properties(1, (address,), data_folder=str(tmp_path), overrides={})))
    command = [*kit.java_command(256, tmp_path), "kafka.tools.StorageTool", "format"]
    subprocess.run([*command, "--cluster-id", "A" * 22, "--config", settings], check=True)

    def levels(checkpoint: Path) -> bytes:
        content = checkpoint.read_bytes()
        return content[content.index(b"metadata.version") : content.index(b"transaction.version") + 22]

    assert levels(BOOTSTRAP_CHECKPOINT) == levels(tmp_path / "bootstrap.checkpoint")


def test_data_in_a_folder_of_the_caller_survive_the_cluster(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path / "kafka") as cluster:
        create(cluster.client_config(), "kept")
        assert send(cluster.client_config(), "kept", 10) == [None] * 10
    assert (tmp_path / "kafka" / "node-1" / "data" / "kept-0").is_dir()
    with LocalCluster(data_dir=tmp_path / "kafka") as again:
        assert receive(again.client_config(), "kept", 10) == list(range(10))
        with pytest.raises(LocalBrokerError, match="in use by another local cluster"):
            LocalCluster(data_dir=tmp_path / "kafka").start()
        assert AdminClient(again.client_config()).list_topics(timeout=10).brokers, "the refusal must not touch it"


def test_data_in_the_cache_go_at_the_end_and_logs_stay() -> None:
    cluster = LocalCluster()
    with cluster:
        pid = cluster.pid(1)
        data = cluster.logs_dir / "node-1" / "data"
        assert data.is_dir()
    assert ends(pid, 0)
    assert not data.exists()
    assert "Kafka Server started" in (cluster.logs_dir / "node-1" / "log" / "server.log").read_text()
    cluster.stop()


def test_one_cluster_object_can_be_started_again() -> None:
    cluster = LocalCluster()
    for _ in range(2):
        with cluster:
            with pytest.raises(LocalBrokerError, match="already running"):
                cluster.start()
            assert cluster.nodes == (1,)


def test_two_clusters_live_side_by_side_and_share_nothing() -> None:
    with LocalCluster() as one, LocalCluster() as other:
        assert one.bootstrap != other.bootstrap
        create(one.client_config(), "mine")
        assert "mine" not in AdminClient(other.client_config()).list_topics(timeout=10).topics


def test_a_broker_that_refuses_its_configuration_is_reported_with_its_own_words() -> None:
    cluster = LocalCluster(properties={"log.retention.ms": "soon"})
    with pytest.raises(LocalBrokerError) as raised:
        cluster.start()
    text = str(raised.value)
    assert "node 1 of the local cluster ended with exit code 1" in text
    assert "Invalid value soon for configuration log.retention.ms" in text
    assert str(cluster.logs_dir) in text
    cluster.stop()


def test_a_port_that_is_taken_is_named_at_once() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(LocalBrokerError, match=f"port {port} is in use"):
            LocalCluster(port=port).start()


def test_a_frozen_broker_keeps_its_connections_and_goes_on() -> None:
    with LocalCluster() as cluster:
        create(cluster.client_config(), "t")
        assert send(cluster.client_config(), "t", 1) == [None]
        cluster.pause(1)
        asking = AdminClient(cluster.client_config() | {"log_level": "0"})
        with pytest.raises(KafkaException):
            _ = [asking.list_topics(timeout=1.0) for _ in range(100)]  # a busy broker runs on for a moment
        assert cluster.ended == ()
        cluster.resume(1)
        assert send(cluster.client_config(), "t", 1) == [None]
        cluster.pause(1)  # and stops in order although it is frozen


def test_three_brokers_lose_a_leader_and_no_record() -> None:
    with LocalCluster(3) as cluster:
        assert cluster.nodes == (1, 2, 3)
        cluster.touch_internal_topics()
        topics = AdminClient(cluster.client_config()).list_topics(timeout=10).topics
        assert {len(p.replicas) for p in topics["__consumer_offsets"].partitions.values()} == {3}
        assert "__transaction_state" in topics
        create(cluster.client_config(), "t")
        assert send(cluster.client_config(), "t", 10) == [None] * 10
        victim = cluster.leader("t")
        cluster.kill(victim)
        assert cluster.ended == (victim,)
        with pytest.raises(LocalBrokerError, match=f"node {victim} is not running"):
            cluster.kill(victim)
        assert send(cluster.client_config(), "t", 10) == [None] * 10, "a new leader takes over"
        assert cluster.leader("t") != victim
        cluster.restart(victim)
        cluster.await_in_sync()
        assert cluster.ended == ()
        assert receive(cluster.client_config(), "t", 20) == [*range(10), *range(10)]


def test_users_have_the_rights_that_acls_give_them() -> None:
    with LocalCluster(users={"admin": "admin-secret", "worker": "worker-secret"}) as cluster:
        create(cluster.client_config(), "t")
        worker = cluster.client_config("worker")
        [refused] = send(worker, "t", 1)
        assert refused == KafkaError.TOPIC_AUTHORIZATION_FAILED
        grant = AclBinding(
            ResourceType.TOPIC,
            "t",
            ResourcePatternType.LITERAL,
            "User:worker",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        admin = AdminClient(cluster.client_config())  # kept: a client that is gone takes its answers with it
        admin.create_acls([grant])[grant].result(DEADLINE_S)
        # Rights take effect a moment later: a client that is refused meanwhile asks again.
        outcomes: list[int | None] = [refused]
        for _ in range(100):
            outcomes = send(worker, "t", 1)
            if outcomes == [None]:
                break
        assert outcomes == [None]
        stranger = AdminClient(worker | {"sasl.password": "wrong", "log_level": "0"})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=2.0)


OWNER = """
import sys
from rocketshim_local import LocalCluster
cluster = LocalCluster().start()
print(cluster.pid(1), cluster.logs_dir, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache in which nobody else starts a cluster, which would tidy up; what was fetched is shared."""
    for each in cache_dir().iterdir():
        if each.name != "clusters":
            (tmp_path / each.name).symlink_to(each)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))


@pytest.mark.usefixtures("own_clusters")
def test_a_parent_that_is_killed_leaves_neither_process_nor_data() -> None:
    with running("-c", OWNER) as owner:
        assert owner.stdout is not None
        pid, home = owner.stdout.readline().split()
        assert not ends(int(pid), 0)
        owner.kill()
        assert ends(int(pid), DEADLINE_S)
    data = Path(home) / "node-1" / "data"
    assert data.is_dir()
    with LocalCluster():
        assert not data.exists(), "the next start tidies up"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_broker_run_prints_its_address_and_stops_in_order(number: signal.Signals, tmp_path: Path) -> None:
    words = ["broker", "run", "--port", "0", "--data", str(tmp_path), "--property", "num.partitions=7"]
    with running(*CLI, *words) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        config = {"bootstrap.servers": run.stdout.readline().strip()}
        admin = AdminClient(config)
        admin.create_topics([NewTopic("t")])["t"].result(DEADLINE_S)
        assert await_known(admin, "t") == 7
        run.send_signal(number)
        assert run.wait(DEADLINE_S) == 0
        assert run.stderr.read().endswith("stopped\n")
    log = (tmp_path / "node-1" / "log" / "server.log").read_text()
    assert "kafka-shutdown-hook" in log, "it was asked to stop, not killed (log4j ends before the broker's last words)"
    assert json.loads((tmp_path / "cluster.json").read_text())["brokers"] == 1


def test_broker_run_says_when_its_broker_has_died() -> None:
    with running(*CLI, "broker", "run", "--port", "0") as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline().startswith("127.0.0.1:")
        home = run.stderr.readline().removeprefix("logs: ").partition(";")[0]
        assert Path(home).is_relative_to(cache_dir())
        [broker_pid] = [
            int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_broker_in(entry, home)
        ]
        os.kill(broker_pid, signal.SIGKILL)
        assert run.wait(DEADLINE_S) == 1
        assert "error: node 1 ended by itself" in run.stderr.read()


def is_broker_in(process: Path, home: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"kafka.Kafka" in words and f"{home}/node-1/server.properties".encode() in words and b"-I" not in words
