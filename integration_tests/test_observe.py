"""What operators see of a real cluster: look-ups of offsets, and listings within limits."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient

from rocketshim.cli import main
from rocketshim.console.reading import BoundedReading, Ending, ReadLimits
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.snapshot import snapshot_of
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout
from test_support.ports import free_ports

from .waiting import wait_until

DEADLINE_S = 60.0
KIB = 1_024


def write(broker: Broker, topic: str, count: int, *, partition: int = 0, size: int = 10) -> None:
    producer = KafkaProducer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    for number in range(count):
        value = (b"%d" % number).ljust(size)
        producer.produce(topic, value, partition=partition, headers=[("REAL_TOPIC", b"orders")])
        producer.poll(0)
    assert producer.flush(60) == 0


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_a_snapshot_shows_what_waits_is_dead_and_is_behind(
    broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str], topic: Callable[..., str]
) -> None:
    names, levels, mine, source = TopicNames(namespace), DelayLevels.default(), group(), topic(1)
    layout = Layout(names, levels)
    provision.ensure_topics(admin, [*layout.shared(), *layout.for_group(mine, with_log=False)])
    write(broker, names.schedule, 3)
    write(broker, names.dead_letter(mine), 2)
    write(broker, source, 5)
    commit(broker, mine, source, 2)
    lookup = OffsetLookup(broker.bootstrap, names)
    settings = {"client.id": "shop", "enable.auto.commit": False}
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": mine, **settings})
    member.subscribe([source])
    try:
        wait_until(lambda: member.poll(0.1) is None and bool(member.assignment()), "an assignment", within_s=60.0)
        member.pause(member.assignment())
        _, last = (snapshot_of(time.time_ns() // 1_000_000, names, levels, lookup.look_up()) for _ in range(2))
    finally:
        lookup.close()
        member.close()
    assert (last.waiting, last.unknown, last.error) == (3, (), None)
    assert last.queues[0].due_ms is not None
    assert abs(last.queues[0].due_ms - last.at_ms) < 60_000
    assert [(each.group, each.kept, each.appended) for each in last.dead] == [(mine, 2, 2)]
    (behind,) = (each for each in last.groups if each.group == mine)
    assert (behind.behind, behind.lost) == (3, 0)
    assert behind.first_unread_ms is not None
    assert (behind.state, behind.members) == ("STABLE", ("shop@127.0.0.1",))
    assert [each.member for each in behind.partitions] == ["shop@127.0.0.1"]
    assert last.worker is not None
    assert last.worker.members == (), "no worker runs"


def test_the_newest_records_of_a_large_topic_come_first_within_few_bytes(
    broker: Broker, topic: Callable[..., str]
) -> None:
    name = topic(1)
    write(broker, name, 20_000, size=KIB)
    with TopicReader(broker.bootstrap) as reader:
        limits = ReadLimits(results=2_000, size_bytes=8 * KIB * KIB, time_s=30.0)
        reading = BoundedReading(reader, reader.spans([name]), limits=limits)
        numbers = [int(record.value()) for record in reading]
        assert numbers == list(range(19_999, 17_999, -1))
        assert reading.ending is Ending.RESULTS
        assert reading.size_bytes < 5 * KIB * KIB
        rest = BoundedReading(reader, reading.rest, limits=ReadLimits(results=1))
        assert [int(record.value()) for record in rest] == [17_999]


def test_the_exporter_serves_metrics_and_findings_until_sigterm(
    broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str]
) -> None:
    names, mine = TopicNames(namespace), group()
    layout = Layout(names, DelayLevels.default())
    provision.ensure_topics(admin, [*layout.shared(), *layout.for_group(mine, with_log=False)])
    write(broker, names.dead_letter(mine), 2)
    (port,) = free_ports(1)
    command = ["exporter", "--bootstrap", broker.bootstrap, "--namespace", namespace, "--listen", str(port)]
    command += ["--group", f"{mine}-without-topics"]  # the doctor finds that they are missing
    process = subprocess.Popen([sys.executable, "-m", "rocketshim", *command, "--every", "1"])
    here = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: main(["healthcheck", f"{here}/ready"]) == 0, "ready", within_s=DEADLINE_S)
        letters = f'rocketshim_dead_letters_appended_total{{group="{mine}",namespace="{namespace}"}} 2.0'
        found = ""

        def complete() -> bool:  # after a look that failed there are no values
            nonlocal found
            found = text(f"{here}/metrics")
            return letters in found and "rocketshim_doctor_findings{" in found

        wait_until(complete, "letters and findings", within_s=DEADLINE_S)
        assert "rocketshim_exporter_up" in found
        assert "rocketshim_build_info{" in found
        assert len(re.findall("rocketshim_schedule_head_late_seconds{", found)) == 32
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - of this machine
        return str(answer.read().decode())
