"""What waits and what was parked, seen and sent again from the command line."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim.producer.producer import Producer
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, Message, provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.names import TopicNames
from test_support.ports import free_ports, is_free

from .waiting import wait_until

DEADLINE_S = 120.0


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rocketshim", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_waiting_and_parked_records_are_listed_shown_and_sent_again(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    names, levels = TopicNames(namespace), "1s 2s 1h"
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(levels)).shared())
    target = topic(1)
    there = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
    tables = [*there, "--delay-levels", levels]
    with Producer(broker.bootstrap, namespace=namespace, delay_levels=levels) as producer:
        producer.send(Message(target, b"soon", delay_level=1), timeout_s=DEADLINE_S)
        producer.send(Message(target, b"late", delay_level=3), timeout_s=DEADLINE_S)
        producer.send(Message("elsewhere", b"other", delay_level=3), timeout_s=DEADLINE_S)

    stats = cli("delayed", "stats", *tables, "--json")
    assert stats.returncode == 0, stats.stderr
    found = {queue["partition"]: queue for queue in json.loads(stats.stdout)}
    assert (found[0]["waiting"], found[2]["waiting"]) == (1, 2)
    assert found[2]["head"]["target"] == target
    listed = [
        json.loads(line) for line in cli("delayed", "ls", *tables, "--topic", target, "--json").stdout.splitlines()
    ]
    assert [(entry["partition"], entry["offset"]) for entry in listed] == [(0, 0), (2, 0)]
    assert listed[1]["due_ms"] - listed[1]["stored_ms"] == 3_600_000
    assert "late" in cli("delayed", "show", "2/0", *tables).stdout
    assert cli("delayed", "show", "2/99", *tables).returncode == 2

    def worker(allow: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rocketshim",
                "worker",
                *tables,
                "--allow",
                allow,
                "--stop-timeout",
                "60",
            ],
            stderr=subprocess.DEVNULL,
        )

    def parked(*words: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in cli("parked", "ls", *there, "--json", *words).stdout.splitlines()]

    narrow = worker("nothing-but-this")
    wait_until(lambda: bool(parked()), within_s=DEADLINE_S)
    entries = parked()
    narrow.terminate()
    assert narrow.wait(DEADLINE_S) == 0
    assert [(entry["park_reason"], entry["target"]) for entry in entries] == [("forbidden-target:not-allowed", target)]
    parked_at = "{partition}/{offset}".format(**entries[0])
    assert "soon" in cli("parked", "show", parked_at, *there).stdout
    assert ": send 1 of 1 parked record\n" in cli("parked", "plan", *there, "--topic", target).stdout
    assert cli("parked", "plan", *there).returncode == 1
    assert cli("parked", "plan", parked_at, *there, "--out", str(tmp_path / "plan")).returncode == 0
    for done in ("sent: 1, before this run: 0,", "sent: 0, before this run: 1,"):
        assert cli("dlq", "apply", str(tmp_path / "plan"), "--bootstrap", broker.bootstrap).stdout.startswith(done)
    assert ": send 0 of 0 parked records\n" in cli("parked", "plan", "--reason", "", *there).stdout
    assert (len(parked()), len(parked("--all"))) == (0, 1)

    wide = worker(target)
    end = time.monotonic() + DEADLINE_S
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{namespace}-read"})
    consumer.assign([TopicPartition(target, 0, 0)])
    message = None
    while message is None or message.error() is not None:
        message = consumer.poll(1.0)
        assert time.monotonic() < end
    consumer.close()
    assert message.value() == b"soon"
    headers = dict(message.headers())
    assert headers["HOP_ID"].startswith(names.schedule.encode())
    assert "PARK_REASON" not in headers
    wide.terminate()
    assert wide.wait(DEADLINE_S) == 0


def _state(port: int) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=5) as answer:
        return dict(json.load(answer))


def test_several_worker_processes_share_the_queues_and_stop_together(
    broker: Broker, namespace: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    target, port, log = topic(1), _two_free_ports(), tmp_path / "log"
    command = [
        sys.executable, "-m", "rocketshim", "worker", "--bootstrap", broker.bootstrap, "--namespace", namespace,
        "--delay-levels", "1s 2s", "--allow", target, "--exactly-once", "--instance", "here", "--processes", "2",
        "--health", str(port),
    ]  # fmt: skip
    with log.open("wb") as lines:
        process = subprocess.Popen(command, stderr=lines)
    end = time.monotonic() + DEADLINE_S

    def queues() -> list[int]:
        try:
            return [len(_state(each)["queues"]) for each in (port, port + 1)]  # type: ignore[arg-type]
        except OSError:
            return []

    def are_shared() -> bool:
        assert process.poll() is None, log.read_text()
        counts = queues()
        return sum(counts) == 32 and all(counts)

    try:
        wait_until(are_shared, "both workers have queues", within_s=DEADLINE_S)
        with Producer(broker.bootstrap, namespace=namespace, delay_levels="1s 2s") as producer:
            for level in (1, 2):
                producer.send(Message(target, b"%d" % level, delay_level=level), timeout_s=DEADLINE_S)
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{namespace}-reader"})
        reader.assign([TopicPartition(target, 0, 0)])
        got: set[bytes] = set()
        while len(got) < 2:
            assert time.monotonic() < end
            message = reader.poll(1)
            if message is not None and message.error() is None:
                got.add(message.value())
        reader.close()
    finally:
        process.terminate()
        code = process.wait(DEADLINE_S)
    assert code == 0, log.read_text()
    assert queues() == [], "no member is left"


def _two_free_ports() -> int:
    while True:
        port = free_ports(1)[0]
        if is_free(port + 1):
            return port
