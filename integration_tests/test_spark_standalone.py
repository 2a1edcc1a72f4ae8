"""On a cluster manager: `land` and `failures` through `spark-submit` to a master with two workers.

What comes out equals what the same commands give in one process. The executors have no Python at all, and a Spark
without the jars is refused with that reason.
"""

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

import rocketshim_spark
from rocketshim_local import Broker
from rocketshim_spark.cli import main
from rocketshim_spark.lake import read_records
from rocketshim_spark.session import connector_jars
from rocketshim_topics import Message, TopicNames, hops

ROOT = Path(__file__).parents[1]
BIN = Path(pyspark.__file__).parent / "bin"
GUARD_S = 900.0
FAST_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

pytestmark = [pytest.mark.long, pytest.mark.timeout(2_400)]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master and two workers of one core each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    host = ("--host", "127.0.0.1", "--webui-port", "0")
    commands: list[tuple[str, ...]] = [(f"{package}.master.Master", "--port", str(port), *host)]
    for number in range(2):
        folder = ("--work-dir", str(tmp_path / f"worker-{number}"))
        commands.append((f"{package}.worker.Worker", address, "--cores", "1", "--memory", "640m", *folder, *host))
    environment = {
        **os.environ,
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_HOST": "127.0.0.1",
    }
    logs = [(tmp_path / f"{number}.log").open("w") for number in range(3)]
    running = [
        subprocess.Popen([str(BIN / "spark-class"), *command], env=environment, stdout=log, stderr=subprocess.STDOUT)
        for command, log in zip(commands, logs, strict=True)
    ]
    try:
        deadline = time.monotonic() + GUARD_S
        while (tmp_path / "0.log").read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, (tmp_path / "0.log").read_text()
            assert all(each.poll() is None for each in running), (tmp_path / "0.log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait(GUARD_S)
        for log in logs:
            log.close()


def submit(master: str, wheel: Path, *words: str, with_jars: bool = True) -> subprocess.CompletedProcess[str]:
    jars = connector_jars() if with_jars else []
    assert jars is not None
    command = [
        str(BIN / "spark-submit"), "--master", master, "--driver-memory", "640m", "--executor-memory", "512m",
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
        "--conf", "spark.sql.shuffle.partitions=4", "--conf", "spark.ui.enabled=false",
        "--driver-java-options", FAST_START, "--conf", f"spark.executor.extraJavaOptions={FAST_START}",
        *(("--jars", ",".join(map(str, jars))) if jars else ()), "--py-files", str(wheel),
        str(Path(rocketshim_spark.__file__).parent / "submit.py"), *words,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": "/no/python/in/the/executors",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GUARD_S, check=False)


def test_jobs_on_two_workers_find_what_one_process_finds(
    spark: SparkSession, broker: Broker, admin: AdminClient, master: str, tmp_path: Path
) -> None:
    unique = uuid.uuid4().hex[:10]
    names, group, source = TopicNames(f"ns{unique}"), f"g-{unique}", f"orders-{unique}"
    topics = [source, names.dead_letter(group)]
    for future in admin.create_topics([NewTopic(name, num_partitions=3) for name in topics]).values():
        future.result(GUARD_S)
    fill(broker.bootstrap, names, group, source)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    there, here = str(tmp_path / "there"), str(tmp_path / "here")
    options = ("--namespace", names.namespace)
    landing = ("land", source, "--bootstrap", broker.bootstrap, *options)

    bare = submit("local[1]", wheel, *landing, "--lake", there, with_jars=False)
    assert bare.returncode == 1, bare.stdout + bare.stderr
    # spark-submit gives a program's errors out with its output.
    assert "error: Spark's class path lacks spark-sql-kafka-0-10, kafka-clients, delta-spark" in bare.stdout
    landed = submit(master, wheel, *landing, "--lake", there)
    assert landed.returncode == 0, landed.stdout + landed.stderr
    assert landed.stdout.startswith("landed 360 new records of 2 topics")
    found = submit(master, wheel, "failures", "--lake", there, *options)
    assert found.returncode == 2, found.stdout + found.stderr
    assert found.stdout.startswith("failures: 60 failures of 3 causes: 60 ended dead")

    assert main([*landing, "--lake", here]) == 0
    assert main(["failures", "--lake", here, *options]) == 2
    place = ["topic", "partition", "offset"]
    assert read_records(spark, there).orderBy(*place).collect() == read_records(spark, here).orderBy(*place).collect()
    rows = [
        sorted(spark.read.format("delta").load(f"{lake}/reports/failures").collect(), key=str) for lake in (there, here)
    ]
    assert rows[0] == rows[1]
    for future in admin.delete_topics(topics).values():
        future.result(GUARD_S)


def fill(bootstrap: str, names: TopicNames, group: str, source: str) -> None:
    """300 messages, every fifth a dead letter of one of three causes."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random"})
    for number in range(300):
        message = Message(source, b"%d" % number, key=f"k{number % 7}")
        out = hops.source_record(message, names, uniq_key=f"m-{number}", born_ms=1_767_268_800_000)
        producer.produce(out.topic, out.value, out.key, headers=out.headers)
        if number % 5 == 0:
            failure = hops.Failure(("Timeout", "KeyError", "OSError")[number % 3], f"order {number}", 1_767_268_800_000)
            dead = hops.dead_letter(
                Fetched(out, number), names, group=group, trusted=False, failure=failure, reconsume_times=1
            )
            producer.produce(dead.topic, dead.value, dead.key, headers=dead.headers)
    assert producer.flush(GUARD_S) == 0


class Fetched:
    """A record as a consumer would have fetched it."""

    def __init__(self, out: hops.OutgoingRecord, at: int) -> None:
        self._out = out
        self._at = at

    def topic(self) -> str:
        return self._out.topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._at

    def key(self) -> bytes | None:
        return self._out.key

    def value(self) -> bytes | None:
        return self._out.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._out.headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_767_268_800_000
