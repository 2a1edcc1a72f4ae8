"""A drop-in program is killed with SIGKILL again and again: nothing that it acknowledged is lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from rocketshim import DelayLevels, DelayWorker, TopicNames, WorkerSettings
from rocketshim_local import Broker
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout

from .waiting import wait_until

LEVELS = "0s"
GUARD_S = 120.0
COUNT = 100
KILLS = (20, 50)
"""The program is killed after this number of charges."""

PROGRAM = """
import os, sys
from rocketshim.dropin import Consumer

bootstrap, topic, group, namespace, commits, path = sys.argv[1:]
charged = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
consumer = Consumer({
    "bootstrap.servers": bootstrap, "group.id": group, "group.instance.id": "one", "auto.offset.reset": "earliest",
    "enable.auto.commit": commits == "automatic", "auto.commit.interval.ms": 20,
    "rocketshim.retry.enable": True, "rocketshim.namespace": namespace, "rocketshim.delay.levels": "0s",
})
consumer.subscribe([topic])
while True:
    message = consumer.poll(1.0)
    if message is None or message.error() is not None:
        continue
    order = int(message.value())
    if consumer.reconsume_times(message) < order % 3:
        consumer.reconsume_later(message, "the bank is busy")
    elif order % 10 == 9:
        consumer.dead_letter(message, "no such customer")
    else:
        os.write(charged, b"%d\\n" % order)
    if commits == "each":
        consumer.commit(message=message)
"""


def charged(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.timeout(400)
@pytest.mark.parametrize("commits", ["automatic", "each"])
def test_what_was_acknowledged_is_charged_or_dead(  # noqa: PLR0917 - fixtures
    broker: Broker,
    admin: AdminClient,
    namespace: str,
    topic: Callable[..., str],
    group: Callable[..., str],
    tmp_path: Path,
    commits: str,
) -> None:
    names, orders, payments = TopicNames(namespace), topic(partitions=2), group()
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
    worker = DelayWorker(
        WorkerSettings.make(bootstrap=broker.bootstrap, namespace=namespace, allow=("*",), delay_levels=LEVELS)
    )
    moving = threading.Thread(target=worker.run)
    moving.start()
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for order in range(COUNT):
        producer.produce(orders, b"%d" % order)
    assert producer.flush(GUARD_S) == 0

    out = tmp_path / "charged"
    command = [sys.executable, "-c", PROGRAM, broker.bootstrap, orders, payments, namespace, commits, str(out)]
    expected = {order for order in range(COUNT) if order % 10 != 9}
    dead: set[int] = set()
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    program = subprocess.Popen(command)
    try:
        for kill_at in KILLS:
            wait_until(
                lambda running=program, number=kill_at: len(charged(out)) >= number or running.poll() is not None,  # type: ignore[misc]
                within_s=GUARD_S,
            )
            assert program.poll() is None
            os.kill(program.pid, signal.SIGKILL)
            program.wait()
            program = subprocess.Popen(command)
        deadline = time.monotonic() + GUARD_S
        reader.subscribe([names.dead_letter(payments)])
        while set(charged(out)) != expected or dead != set(range(COUNT)) - expected:
            assert time.monotonic() < deadline, (expected - set(charged(out)), dead)
            message = reader.poll(0.2)
            if message is not None and message.error() is None:
                dead.add(int(message.value() or b""))
    finally:
        program.kill()
        program.wait()
        reader.close()
        worker.stop()
        moving.join(GUARD_S)
