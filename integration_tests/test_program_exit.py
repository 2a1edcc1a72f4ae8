"""Programs that end without `close` and `stop`: what they have sent is stored, and they have left their groups."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import TopicNames
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

GUARD_S = 90.0
COUNT = 100


@pytest.fixture
def names(admin: AdminClient, namespace: str) -> TopicNames:
    """A namespace with the topics that all programs share."""
    made = TopicNames(namespace)
    provision.ensure_topics(admin, Layout(made, DelayLevels.default()).shared(), create=True)
    return made


@pytest.fixture
def made(topic: Callable[..., str], group: Callable[..., str]) -> tuple[str, str]:
    """A topic, and the name of a group."""
    return topic(), group()


SENDING = {
    "async": "producer = Producer(B); kept = [producer.send_async(T, b'x') for _ in range(N)]",
    "oneway": "producer = Producer(B)\nfor _ in range(N): producer.send_oneway(T, b'x')",
    "collected": "def send(producer):\n    for _ in range(N): producer.send_oneway(T, b'x')\nsend(Producer(B))",
    "error": "producer = Producer(B)\nfor _ in range(N): producer.send_oneway(T, b'x')\nraise SystemExit(0)",
    "signal": (
        "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nproducer = Producer(B)\n"
        "for _ in range(N): producer.send_oneway(T, b'x')\nos.kill(os.getpid(), signal.SIGTERM)"
    ),
    "many": "kept = [Producer(B) for _ in range(N // 10)]\nfor _ in range(10):\n"
    "    for producer in kept: producer.send_oneway(T, b'x')",
    "child": (
        "import multiprocessing\ndef send():\n    producer = Producer(B)\n"
        "    for _ in range(N): producer.send_oneway(T, b'x')\n"
        "child = multiprocessing.get_context('fork').Process(target=send); child.start(); child.join()"
    ),
    "compat": (
        "from rocketshim.compat.rocketmq import client as peer\nproducer = peer.Producer('g')\n"
        "producer.set_name_server_address(B); producer.start()\n"
        "for _ in range(N): m = peer.Message(T); m.set_body(b'x'); producer.send_oneway(m)"
    ),
    "dropin": (
        "from rocketshim import dropin\nproducer = dropin.Producer({'bootstrap.servers': B})\n"
        "for _ in range(N): producer.produce(T, b'x')"
    ),
}
"""Programs that end without a word to their producer."""


@pytest.mark.parametrize("how", SENDING)
def test_all_that_was_sent_is_stored(how: str, broker: Broker, topic: Callable[..., str]) -> None:
    name = topic()
    program = f"import sys\nfrom rocketshim import Producer\nB, T, N = {broker.bootstrap!r}, {name!r}, {COUNT}\n"
    ran = _run(program + SENDING[how])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert _end(broker, name) == COUNT


CELERY = """
import sys
from celery import Celery
from rocketshim import Producer
app = Celery(broker="filesystem://", broker_connection_retry_on_startup=True, broker_transport_options={
    "data_folder_in": FOLDER, "data_folder_out": FOLDER, "control_folder": FOLDER})
producer = None

@app.task(name="send")
def send():
    global producer
    producer = producer or Producer(B, linger_ms=2_000)
    for _ in range(N): producer.send_oneway(T, b'x')
    app.control.shutdown()

if __name__ == "__main__":
    send.delay()
    app.worker_main(["worker", "--pool=prefork", "--concurrency=2", "--without-gossip", "--without-mingle", "-lERROR"])
"""


def test_a_task_of_celery_ends_without_close(broker: Broker, topic: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("celery")
    name = topic()
    ran = _run(f"FOLDER, B, T, N = {str(tmp_path)!r}, {broker.bootstrap!r}, {name!r}, {COUNT}" + CELERY)
    assert _end(broker, name) == COUNT, ran.stderr


def test_a_program_without_a_broker_ends_in_time_and_says_what_is_not_stored() -> None:
    ran = _run(
        "from rocketshim import Producer\nkept = [Producer('127.0.0.1:1', exit_timeout_ms=300) for _ in range(20)]\n"
        "for producer in kept: producer.send_oneway('t', b'x')"
    )
    assert "producer.not-stored-at-exit: messages=20" in ran.stderr
    assert ran.returncode == 0


STARTED = """
import asyncio, sys, threading, time
from rocketshim import ConsumeFromWhere, LitePullConsumer, MessageModel, PushConsumer
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.worker import DelayWorker
B, T, G, NS, kind = {bootstrap!r}, {topic!r}, {group!r}, {namespace!r}, {kind!r}
if kind == "lite":
    consumer = LitePullConsumer(B, group=G)
    consumer.subscribe(T)
    consumer.start()
    while not consumer.assignment():
        consumer.poll(100)
elif kind == "worker":
    worker = DelayWorker(WorkerSettings.make(bootstrap=B, namespace=NS, allow=("*",)))
    threading.Thread(target=worker.run, daemon=True).start()
    while not (worker.state and worker.state.queues):
        time.sleep(0.1)
elif kind == "compat":
    from rocketshim.compat.rocketmq.client import ConsumeStatus, PushConsumer as Peer
    peer = Peer(G)
    peer.set_name_server_address(B)
    peer.set_namespace(NS)
    peer.subscribe(T, lambda message: ConsumeStatus.CONSUME_SUCCESS)
    peer.start()
    peer._consumer.wait_assigned()
else:
    consumer = PushConsumer(B, group=G, namespace=NS)
    def plain(message): pass
    async def awaited(message): await asyncio.sleep(0)
    consumer.register_message_listener(T, awaited if kind == "async" else plain, orderly=kind == "orderly")
    consumer.start()
    assert consumer.wait_assigned()
print("ready", flush=True)
while True:
    time.sleep(3600)
"""


@pytest.mark.parametrize("kind", ["concurrent", "async", "orderly", "lite", "compat", "worker"])
def test_ctrl_c_at_a_sleeping_program_leaves_the_group(
    kind: str, broker: Broker, admin: AdminClient, names: TopicNames, made: tuple[str, str]
) -> None:
    topic, group = made
    name = names.worker_group if kind == "worker" else group
    program = STARTED.format(bootstrap=broker.bootstrap, topic=topic, group=name, namespace=names.namespace, kind=kind)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
        process.communicate()
    assert "KeyboardInterrupt" in errors
    assert not [line for line in errors.splitlines() if line.startswith(("consumer.", "worker.", "client."))]
    assert not admin.describe_consumer_groups([name])[name].result().members


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_listener_in_progress_finishes_with_the_executors_that_it_uses(
    kind: str, broker: Broker, names: TopicNames, made: tuple[str, str]
) -> None:
    """Python ends its executors with the main thread; what they refuse would be a failure, here a dead letter."""
    name, members = made
    ran = _run(
        f"""
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
from rocketshim import ConsumeFromWhere, Producer, PushConsumer
Producer({broker.bootstrap!r}).send({name!r}, b"x")
consumer = PushConsumer({broker.bootstrap!r}, group={members!r}, namespace={names.namespace!r}, max_reconsume_times=0,
                        consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
begun, executor = threading.Event(), ThreadPoolExecutor(2)
def work():
    begun.set()
    threading.Event().wait(0.1)
def plain(message):
    for _ in range(10): executor.submit(work).result()
async def awaited(message):
    for _ in range(10): await asyncio.to_thread(work)
consumer.register_message_listener({name!r}, awaited if {kind!r} == "async" else plain)
consumer.start()
begun.wait()
"""
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert _end(broker, names.dead_letter(members)) == 0
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": members})
    (committed,) = client.committed([TopicPartition(name, 0)], timeout=GUARD_S)
    client.close()
    assert committed.offset == 1


def test_a_listener_that_never_returns_keeps_no_program_alive(
    broker: Broker, admin: AdminClient, names: TopicNames, made: tuple[str, str]
) -> None:
    name, members = made
    began_s = time.monotonic()
    ran = _run(
        f"""
import threading
from rocketshim import ConsumeFromWhere, Producer, PushConsumer
Producer({broker.bootstrap!r}).send({name!r}, b"x")
consumer = PushConsumer({broker.bootstrap!r}, group={members!r}, namespace={names.namespace!r}, exit_timeout_ms=1_000,
                        consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
begun = threading.Event()
def listen(message):
    begun.set()
    threading.Event().wait()
consumer.register_message_listener({name!r}, listen)
consumer.start()
begun.wait()
"""
    )
    assert ran.returncode == 0
    assert time.monotonic() - began_s < GUARD_S
    assert not admin.describe_consumer_groups([members])[members].result().members


def _run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=GUARD_S, check=False)


def _end(broker: Broker, topic: str) -> int:
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bounds"})
    try:
        return int(client.get_watermark_offsets(TopicPartition(topic, 0), timeout=GUARD_S)[1])
    finally:
        client.close()
