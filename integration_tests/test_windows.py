"""What rocketshim does without the modules, functions and signals that Windows lacks (see `windows_gaps`)."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from rocketshim import TopicNames
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

GUARD_S = 120.0
GAPS = Path(__file__).with_name("windows_gaps.py")
LEVELS = "1s 2s"

IMPORTS = """
import importlib, pkgutil, rocketshim
for root in ("rocketshim", "rocketshim_topics", "rocketshim_local", "rocketshim_spark"):
    for module in pkgutil.walk_packages(importlib.import_module(root).__path__, root + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print(len([getattr(rocketshim, name) for name in rocketshim.__all__]))
"""
HARNESS = """
from rocketshim import PushConsumer
from rocketshim.harness import Harness
consumer, seen = PushConsumer("localhost:9092", group="g"), []
@consumer.listener("orders")
def handle(message):
    seen.append(message.reconsume_times)
    if message.reconsume_times < 2: raise ValueError("not yet")
with Harness() as harness:
    harness.run(consumer)
    harness.send("orders", b"1")
    harness.pass_time("1h")
print(seen)
"""
ROUND = """
import sys, threading
from rocketshim import DelayWorker, LitePullConsumer, MessageModel, Producer, PushConsumer, WorkerSettings, dropin
B, N, T, FOLDER = sys.argv[1:]
given = dict(namespace=N, consume_from_where="CONSUME_FROM_FIRST_OFFSET", delay_levels="1s 2s")
worker = DelayWorker(WorkerSettings.make(bootstrap=B, namespace=N, allow=("*",), delay_levels="1s 2s"))
working = threading.Thread(target=worker.run, daemon=True); working.start()
with Producer(B, namespace=N, delay_levels="1s 2s") as producer:
    for number in range(10): producer.send(T, b"%d" % number, delay_level=1 if number == 9 else None)
results = {"push": [], "orderly": [], "all": [], "pull": [], "dropin": []}
handled = threading.Semaphore(0)
def once(name):
    def handle(message):
        results[name].append(message.reconsume_times); handled.release()
        if name != "all" and message.body == b"3" and message.reconsume_times < 1: raise ValueError("once")
    return handle
push = PushConsumer(B, group="push", **given)
push.register_message_listener(T, once("push"))
orderly = PushConsumer(B, group="orderly", suspend_current_queue_time_ms=100, **given)
orderly.register_message_listener(T, once("orderly"), orderly=True)
every = PushConsumer(B, group="all", message_model=MessageModel.BROADCASTING, offset_store_dir=FOLDER, **given)
every.register_message_listener(T, once("all"))
consumers = [push, orderly, every]
for consumer in consumers: consumer.start()
with LitePullConsumer(B, group="pull", **given) as pull:
    pull.subscribe(T)
    while len(results["pull"]) < 10: results["pull"] += [0 for _ in pull.poll()]
    pull.commit_sync()
plain = dropin.Consumer({"bootstrap.servers": B, "group.id": "dropin", "auto.offset.reset": "earliest",
    "rocketshim.retry.enable": True, "rocketshim.namespace": N, "rocketshim.delay_levels": "1s 2s"})
plain.subscribe([T])
while len(results["dropin"]) < 11:
    message = plain.poll(0.1)
    if message is None or message.error(): continue
    results["dropin"].append(plain.reconsume_times(message))
    if message.value() == b"3" and plain.reconsume_times(message) < 1: plain.reconsume_later(message)
plain.close()
for _ in range(11 + 11 + 10): handled.acquire()
for consumer in consumers: consumer.stop()
worker.stop(); working.join()
print({name: (len(found), sum(found)) for name, found in results.items()})
"""
RUN = """
import sys
from rocketshim import Producer, PushConsumer
B, N, T = sys.argv[1:]
given = dict(namespace=N, delay_levels="1s 2s")
consumer = PushConsumer(B, group="g", consume_from_where="CONSUME_FROM_FIRST_OFFSET", **given)
consumer.register_message_listener(T, lambda message: print("running", flush=True))
with Producer(B, **given) as producer: producer.send(T, b"x")
consumer.run()
print("stopped", flush=True)
"""


def start(program: str, folder: Path, *words: str) -> "subprocess.Popen[str]":
    file = folder / "program.py"
    file.write_text(textwrap.dedent(program))
    return subprocess.Popen(
        [sys.executable, str(GAPS), str(file), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(program: str, folder: Path, *words: str) -> str:
    """Run a program in a Python with the gaps of Windows, and return the last line of its output."""
    with start(program, folder, *words) as child:
        try:
            output, errors = child.communicate(timeout=GUARD_S)
        finally:
            child.kill()
    assert child.returncode == 0, errors
    return output.splitlines()[-1]


@pytest.fixture
def namespace(admin: AdminClient, group: Callable[..., str]) -> str:
    """A namespace with its shared topics, for short delays."""
    made = group()
    provision.ensure_topics(admin, Layout(TopicNames(made), DelayLevels.parse(LEVELS)).shared(), create=True)
    return made


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    assert int(run(IMPORTS, tmp_path)) > 40


def test_the_harness_runs(tmp_path: Path) -> None:
    assert run(HARNESS, tmp_path) == "[0, 1, 2]"


def test_a_round_on_a_real_broker_passes(
    broker: Broker, namespace: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    found = run(ROUND, tmp_path, broker.bootstrap, namespace, topic(), str(tmp_path / "offsets"))
    assert found == "{'push': (11, 1), 'orderly': (11, 1), 'all': (10, 0), 'pull': (10, 0), 'dropin': (11, 1)}"


@pytest.mark.parametrize("name", ["SIGINT", "SIGBREAK"])
def test_a_consumer_stops_by_the_signals_of_windows(
    broker: Broker, namespace: str, topic: Callable[..., str], tmp_path: Path, *, name: str
) -> None:
    with start(RUN, tmp_path, broker.bootstrap, namespace, topic()) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "running\n"
            os.kill(child.pid, signal.SIGINT if name == "SIGINT" else signal.SIGUSR2)
            output, errors = child.communicate(timeout=GUARD_S)
        finally:
            child.kill()
    assert (child.returncode, output) == (0, "stopped\n"), errors


def test_a_local_kafka_says_what_it_needs(tmp_path: Path) -> None:
    said = run(
        "from rocketshim.errors import LocalBrokerError\nfrom rocketshim.local import LocalCluster\n"
        "try: LocalCluster().start()\nexcept LocalBrokerError as error: print(error)",
        tmp_path,
    )
    assert "Linux, macOS or WSL" in said
