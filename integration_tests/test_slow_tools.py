"""The operator's tools on a real broker that is slow: `dlq plan` and `apply`, doctor, listings, and the exporter.

Either each answer of the broker takes 3 s longer, or a quota lets 200 kB pass in a second.
"""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim.cli import main
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import Broker, LocalCluster
from rocketshim_topics import DelayLevels, Envelope, Layout, TopicNames, encode, provision
from test_support.ports import free_ports
from test_support.quota import client_quota, producer_quota
from test_support.slow_link import SlowLink, slow_link

from .console_stage import await_port
from .waiting import wait_until

GROUP = "payments"
Run = Callable[..., Any]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command and return what it printed as JSON; the code is 0, or 2 for a finding."""

    def call(*words: str) -> Any:
        capsys.readouterr()
        code = main([*words, "--json"])
        out, err = capsys.readouterr()
        assert code in {0, 2}, err
        try:
            return json.loads(out)
        except json.JSONDecodeError:  # a listing has a line for each record
            return [json.loads(line) for line in out.splitlines()]

    return call


def make_dead_letters(bootstrap: str, namespace: str, count: int, size: int) -> TopicNames:
    names = TopicNames(namespace)
    layout = Layout(names, DelayLevels.default())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    provision.ensure_topics(admin, [*layout.shared(), *layout.for_group(GROUP, with_log=False), layout.redrive_log()])
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        headers = encode(
            Envelope(
                shim=1, uniq_key=f"m{number}", retry_topic="orders", origin_message_id=f"orders/0/{number}",
                reconsume_times=17, consumer_group=GROUP, fail_class="Timeout", fail_text="late", fail_at_ms=1,
            )
        )  # fmt: skip
        producer.produce(names.dead_letter(GROUP), b"%06d" % number + bytes(size), headers=headers)
    assert producer.flush(60) == 0
    return names


def retries(bootstrap: str, names: TopicNames) -> Counter[bytes]:
    with TopicReader(bootstrap) as reader:
        return Counter((record.value() or b"")[:6] for record in reader.read([names.retry(GROUP)]))


@pytest.fixture(scope="module")
def link() -> Iterator[tuple[SlowLink, str]]:
    """A broker behind a link that is fast until a test makes it slow."""
    with slow_link(0) as link, LocalCluster(advertised_ports={1: link.port}) as cluster:
        link.broker_port = int(cluster.bootstrap.rpartition(":")[2])
        cluster.touch_internal_topics()
        yield link, f"127.0.0.1:{link.port}"


@pytest.mark.long
def test_dead_letters_are_sent_once_over_a_link_on_which_a_request_takes_three_seconds(
    link: tuple[SlowLink, str], namespace: str, run: Run, tmp_path: Path
) -> None:
    slow, bootstrap = link
    names = make_dead_letters(bootstrap, namespace, 300, 100)
    where, plan = ["--bootstrap", bootstrap], tmp_path / "plan.json"
    slow.delay_s = 3.0
    try:
        made = run("dlq", "plan", *where, "--namespace", namespace, "--group", GROUP, "--out", str(plan))
        assert made["letters"] == 300
        done = run("dlq", "apply", str(plan), *where)
        assert (done["sent"], done["failed"], done["left"]) == (300, 0, 0)
        again = run("dlq", "apply", str(plan), *where)
        assert (again["sent"], again["settled_before"]) == (0, 300)
    finally:
        slow.delay_s = 0.0
    assert retries(bootstrap, names) == Counter(b"%06d" % number for number in range(300))


@pytest.mark.long
def test_the_doctor_examines_everything_over_a_link_on_which_a_request_takes_three_seconds(
    link: tuple[SlowLink, str], namespace: str, run: Run
) -> None:
    slow, bootstrap = link
    make_dead_letters(bootstrap, namespace, 3, 100)
    words = ["doctor", "--bootstrap", bootstrap, "--namespace", namespace]
    fast = run(*words)
    slow.delay_s = 3.0
    try:
        assert run(*words) == fast
        assert run(*words, "--probe") == fast
    finally:
        slow.delay_s = 0.0


@pytest.mark.long
def test_the_exporter_answers_over_such_a_link_and_shows_no_value_that_it_does_not_know(
    link: tuple[SlowLink, str], namespace: str
) -> None:
    slow, bootstrap = link
    make_dead_letters(bootstrap, namespace, 3, 100)
    (port,) = free_ports(1)
    where = ["--bootstrap", bootstrap, "--namespace", namespace, "--listen", str(port), "--every", "1"]
    slow.delay_s = 3.0
    process = subprocess.Popen([sys.executable, "-m", "rocketshim", "exporter", *where])
    label = f'{{group="{GROUP}",namespace="{namespace}"}}'
    letters = re.compile(rf"^rocketshim_dead_letters_kept_offsets{re.escape(label)} (.*)$", re.MULTILINE)
    shown: set[str] = set()
    began_s = time.time()

    def has_findings() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found = answer.read().decode()
        shown.update(letters.findall(found))
        round_s = re.search(r"^rocketshim_exporter_round_timestamp_seconds\S* (.*)$", found, re.MULTILINE)
        assert (round_s is not None) == bool(letters.search(found))
        assert round_s is None or began_s - 1 < float(round_s[1]) < time.time()
        return re.search(r"^rocketshim_doctor_up\S* 1", found, re.MULTILINE) is not None

    try:
        await_port(port)
        wait_until(has_findings, "letters and findings", within_s=600)
    finally:
        slow.delay_s = 0.0
        process.kill()
        process.wait()
    assert shown == {"3.0"}


@pytest.mark.parametrize(
    ("rate", "count", "size"),
    [(150_000, 12, 20_000), pytest.param(200_000, 12, 300_000, marks=pytest.mark.long)],
)
def test_the_doctor_and_the_listings_find_behind_a_quota_what_they_find_without(  # noqa: PLR0917 - called by pytest
    broker: Broker, namespace: str, run: Run, rate: int, count: int, size: int
) -> None:
    names = make_dead_letters(broker.bootstrap, namespace, count, size)
    write_everywhere(broker.bootstrap, names, count, size)
    where = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
    commands = [
        ["doctor"], ["group", "lag", GROUP], ["group", "lag", GROUP, "--count"],
        ["delayed", "ls"], ["delayed", "stats"], ["dlq", "ls", "--group", GROUP], ["parked", "ls"], ["top"],
    ]  # fmt: skip

    def found(client: str) -> dict[str, Any]:
        return {
            " ".join(words): facts(run(*words, *where, "--client", f"client.id={client}-{namespace}"))
            for words in commands
        }

    fast = found("fast")
    assert {each["check"] for each in fast["doctor"]} >= {"worker-missing", "parked-not-allowed", "group-behind"}
    with client_quota(broker.bootstrap, f"slow-{namespace}", rate):
        assert found("slow") == fast
        probing = run("doctor", "--probe", *where, "--client", f"client.id=slow-{namespace}")
        assert facts(probing) == fast["doctor"]


def facts(shown: Any) -> Any:
    """What a command printed, without what changes with the time: ages and lateness."""
    if isinstance(shown, dict):
        return {
            name: facts(each) for name, each in shown.items() if name not in {"at_ms", "since_ms", "late s", "oldest s"}
        }
    if isinstance(shown, list):
        return [facts(each) for each in shown]
    return re.sub(r"(\d+ (ms|s|min|h|d) ?)+", "N ", shown) if isinstance(shown, str) else shown


def write_everywhere(bootstrap: str, names: TopicNames, count: int, size: int) -> None:
    """Let messages be parked, wait in three delay queues, and wait for a group that is gone since two hours."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    long_ago_ms = time.time_ns() // 1_000_000 - 7_200_000
    for number in range(count):
        body = b"%06d" % number + bytes(size)
        target = [("REAL_TOPIC", b"orders"), ("SHIM", b"1")]
        parked = [*target, ("PARK_REASON", b"forbidden-target:not-allowed")]
        producer.produce(names.parked, body, headers=parked)
        producer.produce(names.schedule, body, partition=14 + number % 3, headers=target)
        producer.produce(names.retry(GROUP), body, partition=0, timestamp=long_ago_ms)
    assert producer.flush(60) == 0
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    group.commit(offsets=[TopicPartition(names.retry(GROUP), 0, 0)], asynchronous=False)
    group.close()


@pytest.mark.parametrize(
    ("rate", "count", "size"), [(400_000, 60, 200_000), pytest.param(200_000, 100, 200_000, marks=pytest.mark.long)]
)
def test_dead_letters_are_sent_once_behind_a_quota(  # noqa: PLR0917 - called by pytest
    broker: Broker, namespace: str, run: Run, tmp_path: Path, rate: int, count: int, size: int
) -> None:
    """The letters of one transaction take longer than its time limit."""
    names = make_dead_letters(broker.bootstrap, namespace, count, size)
    client, plan = f"redrive-{namespace}", tmp_path / "plan.json"
    where = ["--bootstrap", broker.bootstrap]
    made = run("dlq", "plan", *where, "--namespace", namespace, "--group", GROUP, "--out", str(plan))
    assert made["letters"] == count
    with producer_quota(broker.bootstrap, client, rate):
        done = run("dlq", "apply", str(plan), *where, "--client", f"client.id={client}")
    assert (done["sent"], done["failed"], done["left"]) == (count, 0, 0)
    assert retries(broker.bootstrap, names) == Counter(b"%06d" % number for number in range(count))
