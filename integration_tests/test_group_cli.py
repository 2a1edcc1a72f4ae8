"""`group lag` and `group subscriptions` on a real broker."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import ConsumeFromWhere, PushConsumer
from rocketshim.cli import main
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.groups import GroupReader
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout

from .running import killed_at_last
from .waiting import add_partitions, await_ends_of_transactions

LOADING = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE}
Topic = Callable[..., str]
Group = Callable[..., str]


def fill(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(60) == 0


def commit(bootstrap: str, group: str, *places: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    until = time.monotonic() + 60
    while True:
        try:
            consumer.commit(offsets=list(places), asynchronous=False)
        except KafkaException as error:  # a broker that has just started may still be loading the group's positions
            if error.args[0].code() not in LOADING or time.monotonic() > until:
                raise
        else:
            return consumer.close()


def consume(
    bootstrap: str, namespace: str, group: str, topic: str, *, tags: str | None = None, count: int | None
) -> None:
    """Consume a number of messages (None: none, only be assigned), commit, leave."""
    consumer = PushConsumer(
        bootstrap, group=group, namespace=namespace, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    left = threading.Semaphore(0)

    @consumer.listener(topic, tags=tags)
    def handle(message: object, context: object) -> None:
        del message, context
        left.release()

    with consumer:
        assert consumer.wait_assigned(60)
        for _ in range(count or 0):
            assert left.acquire(timeout=60)


def test_lag_is_shown_by_partition_with_what_retention_took(
    broker: Broker, admin: AdminClient, topic: Topic, group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    name, members = topic(3), group()
    for partition, count in enumerate((4, 3, 5)):
        fill(broker.bootstrap, name, count, partition)
    commit(broker.bootstrap, members, TopicPartition(name, 0, 1), TopicPartition(name, 1, 3))
    there = ["--bootstrap", broker.bootstrap]
    assert main(["group", "lag", members, *there, "--json", "--count"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"] == "EMPTY"
    rows = shown["lag"]
    assert [(row["partition"], row["position"], row["end"], row["behind"], row["records"]) for row in rows] == [
        (0, 1, 4, 3, 3),
        (1, 3, 3, 0, 0),
    ]
    assert rows[0]["oldest_ms"] > 1_600_000_000_000
    assert rows[1]["oldest_ms"] is None
    assert main(["group", "lag", members, *there]) == 0
    assert name in capsys.readouterr().out

    for future in admin.delete_records([TopicPartition(name, 0, 2)]).values():
        future.result(30)
    assert main(["group", "lag", members, *there, "--json"]) == 2
    shown, error = capsys.readouterr()
    assert (json.loads(shown)["lag"][0]["lost"], json.loads(shown)["lag"][0]["behind"]) == (1, 2)
    assert "retention deleted 1 offset before" in error


def test_counting_reads_records_and_not_offsets(
    broker: Broker, admin: AdminClient, topic: Topic, group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    name, members = topic(1), group()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": members})
    producer.init_transactions(60)
    for commits in (True, False, True):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(name, b"x")
        producer.flush(60)
        producer.commit_transaction(60) if commits else producer.abort_transaction(60)
    commit(broker.bootstrap, members, TopicPartition(name, 0, 0))
    await_ends_of_transactions(admin)
    assert main(["group", "lag", members, "--bootstrap", broker.bootstrap, "--json", "--count"]) == 0
    [row] = json.loads(capsys.readouterr().out)["lag"]
    assert (row["behind"], row["records"]) == (12, 6), "three markers and three aborted records are no messages"


def test_lag_is_followed_until_ctrl_c_and_the_group_stays_as_it_was(
    broker: Broker, admin: AdminClient, topic: Topic, group: Group
) -> None:
    name, members = topic(1), group()
    fill(broker.bootstrap, name, 3)
    commit(broker.bootstrap, members, TopicPartition(name, 0, 1))
    words = ["group", "lag", members, "--bootstrap", broker.bootstrap, "--follow", "--every", "50ms", "--count"]
    with subprocess.Popen(
        [sys.executable, "-m", "rocketshim", *words, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child, killed_at_last(child):  # fmt: skip
        assert child.stdout is not None

        def first_with(position: int, records: int) -> None:
            for line in child.stdout or ():
                [row] = json.loads(line)["lag"]
                if (row["position"], row["records"]) == (position, records):
                    return
            raise AssertionError("it ended")

        first_with(1, 2)
        fill(broker.bootstrap, name, 4)
        first_with(1, 6)
        commit(broker.bootstrap, members, TopicPartition(name, 0, 7))
        first_with(7, 0)
        child.send_signal(signal.SIGINT)
        rest, told = child.communicate(timeout=60)
        assert (child.returncode, told) == (130, "")
        assert all(json.loads(line) for line in rest.splitlines()), "whole lines only"
    asked = [ConsumerGroupTopicPartitions(members)]
    [found] = admin.list_consumer_group_offsets(asked)[members].result(60).topic_partitions
    assert (found.topic, found.offset) == (name, 7)


def test_a_reader_knows_the_end_of_a_partition_that_was_added_later(
    broker: Broker, admin: AdminClient, topic: Topic, group: Group
) -> None:
    name, members = topic(1), group()
    fill(broker.bootstrap, name, 3)
    commit(broker.bootstrap, members, TopicPartition(name, 0, 1))
    with TopicReader(broker.bootstrap) as topics:
        reader = GroupReader(topics)
        assert [each.end for each in reader.read(members).partitions] == [3]
        add_partitions(admin, name, 2)
        fill(broker.bootstrap, name, 5, partition=1)
        commit(broker.bootstrap, members, TopicPartition(name, 1, 2))
        assert [(each.end, each.behind) for each in reader.read(members).partitions] == [(3, 2), (5, 3)]


def test_a_group_that_nobody_knows_is_a_finding(
    broker: Broker, group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("lag", "subscriptions"):
        assert main(["group", command, group(), "--bootstrap", broker.bootstrap]) == 2
        assert "has committed no offset" in capsys.readouterr().err


def test_members_that_subscribe_differently_are_found(  # noqa: PLR0917 - fixtures
    broker: Broker,
    admin: AdminClient,
    namespace: str,
    topic: Topic,
    group: Group,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, members = topic(2), group()
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared())
    fill(broker.bootstrap, name, 2, 0)
    command = ["group", "subscriptions", members, "--bootstrap", broker.bootstrap, "--namespace", namespace]
    consume(broker.bootstrap, namespace, members, name, count=2)
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["subscription"] for row in shown["subscriptions"] if row["topic"] == name} == {f"{name}=*"}
    assert shown["conflicts"] == []

    commit(broker.bootstrap, members, TopicPartition(name, 0, 2, metadata=f"rs1;0000000000000000;2;{name}=paid"))
    assert main([*command, "--json"]) == 2
    shown, error = capsys.readouterr()
    [conflict] = json.loads(shown)["conflicts"]
    assert conflict["topic"] == name
    assert set(conflict["subscriptions"]) == {f"{name}=*", f"{name}=paid"}
    assert f"{name}: 2 subscriptions in one group" in error
