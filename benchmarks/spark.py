"""Landing and the lives of messages, against plain Parquet and one Python process. `python -m benchmarks.spark --help`.

Records of 200 B (half of which a compressor can take away) with the six headers that a sender writes, eight partitions.

* `parquet`: `land` against a plain batch read of the same rows written as Parquet with zstd.
* `lineage`: `land` and one row per message as a Delta table, against one confluent-kafka consumer, `consume(1000)`,
  that builds the same rows in memory and writes nothing. Printed is the *marginal* rate, (large - small) records over
  the difference of the times: what is paid once counts on neither side.
* `again`: 100,000 new records into the large lake against 100,000 into an empty one.
* `skew`: all records in one of the eight partitions against even ones.

Each side is a process of its own, rounds are interleaved; the start of a session is not in the times. Spark is
`local[2]` with a heap of `--heap`; memory is the peak of the process and its JVM together, looked at four times a
second. `--data` keeps broker and topics, so that a later run need not produce them again.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim.local import LocalCluster, any_broker
from rocketshim_topics import Message, TopicNames, hops

PARTITIONS = 8
MORE = 100_000
ROWS = ("parquet", "lineage", "again", "skew")
Side = dict[str, float]


def fill(bootstrap: str, topic: str, count: int, *, skewed: bool = False, start: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    pool = os.urandom(16_000_000).hex()  # a body comes again after 160,000 others: too far away for a compressor
    message = Message(topic, b"", tag="t", keys=("a",), properties={"one": "1", "two": "2"})
    for number in range(start, start + count):
        at = number * 200 % len(pool)
        out = hops.source_record(message, TopicNames(), uniq_key=f"{number:032X}", born_ms=time.time_ns() // 1_000_000)
        headers: Any = out.headers
        producer.produce(topic, pool[at : at + 200], partition=0 if skewed else number % PARTITIONS, headers=headers)
        if number % 1_000 == 0:
            producer.poll(0)
            while len(producer) > 50_000:
                producer.poll(0.05)
    if producer.flush(600):
        sys.exit(f"{topic}: the broker did not take everything")


def filled(bootstrap: str, name: str, count: int) -> str:
    """A topic of so many records; one that is there already is taken as it is."""
    topic = f"bench-{name}-{count}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if topic not in admin.list_topics(timeout=60).topics:
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(60)
        fill(bootstrap, topic, count, skewed=name == "skewed")
    return topic


@contextmanager
def peak_mib() -> Iterator[list[float]]:
    """The peak of this process and its children together."""
    found, stop, me = [0.0], threading.Event(), psutil.Process()

    def look() -> None:
        while not stop.wait(0.25):
            try:
                rss = sum(each.memory_info().rss for each in [me, *me.children(recursive=True)])
            except psutil.NoSuchProcess:
                continue
            found[0] = max(found[0], rss / 2**20)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def by_spark(what: str, bootstrap: str, topic: str, folder: str, heap: str) -> Side:
    from rocketshim_spark.land import land  # noqa: PLC0415 the other side does without
    from rocketshim_spark.running import open_lake, publish  # noqa: PLC0415
    from rocketshim_spark.session import SessionSettings, create  # noqa: PLC0415
    from rocketshim_spark.sources import Cluster, read_batch  # noqa: PLC0415

    with peak_mib() as peak:
        spark = create(SessionSettings(master="local[2]", driver_memory=heap))
        spark.sparkContext.setLogLevel("ERROR")
        began, lives = time.monotonic(), 0
        if what == "parquet":
            frame = read_batch(spark, bootstrap, Cluster(bootstrap).bounds([topic]))
            frame.write.option("compression", "zstd").parquet(folder)
        else:
            land(spark, bootstrap, [topic], folder, groups=())
        landed_s = time.monotonic() - began
        if what == "lineage":
            opened = open_lake(spark, folder)
            lives = publish(opened, "lineage", opened.lives()).count()
        seconds = time.monotonic() - began
        spark.stop()
    return {"lives": lives, "landed_s": landed_s, "seconds": seconds, "mib": peak[0]}


def by_python(bootstrap: str, topic: str) -> Side:
    with peak_mib() as peak:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False,
             "isolation.level": "read_committed", "fetch.queue.backoff.ms": 1, "queued.min.messages": 100_000}
        )  # fmt: skip
        began = time.monotonic()
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, part))[1] for part in range(PARTITIONS)]
        consumer.assign([TopicPartition(topic, part, 0) for part in range(PARTITIONS)])
        left, found = sum(ends), defaultdict[str, list[Any]](list)
        while left > 0:
            for message in consumer.consume(1_000, 0.2):
                headers: dict[str, Any] = dict(message.headers() or ())
                place = f"{message.topic()}/{message.partition()}/{message.offset()}"
                attempt = int(headers.get("RECONSUME_TIMES", 0))
                entry = (attempt, message.timestamp()[1], place, headers.get("FAIL_CLASS"))
                found[headers["UNIQ_KEY"].decode()].append((entry, int(headers["BORN_TIMESTAMP"]), headers.get("TAGS")))
                left -= 1
        lives = [life(uid, topic, records) for uid, records in found.items()]
        seconds = time.monotonic() - began
        consumer.close()
    return {"lives": len(lives), "landed_s": 0, "seconds": seconds, "mib": peak[0]}


def life(uid: str, topic: str, records: list[Any]) -> tuple[Any, ...]:
    """A row of the table: state and counts from the history in order."""
    history = sorted(entry for entry, _, _ in records)
    newest, born = history[-1], min(born for _, born, _ in records)
    copies = len(history) - len({entry[0] for entry in history})
    state = "open" if newest[3] is None else "retrying"
    return uid, state, topic, records[0][2], history[0][2], born, newest[0], len(history), copies, history, newest[1]


def side(*words: str) -> Side:
    command = [sys.executable, "-m", "benchmarks.spark", "--side", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found: Side = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(values: list[float], form: str = ".2f") -> str:
    return f"{statistics.median(values):{form}} [{min(values):{form}} to {max(values):{form}}]"


class Bench:
    """The rows, each with what it needs."""

    def __init__(self, bootstrap: str, folder: Path, given: argparse.Namespace) -> None:
        self.bootstrap, self.folder, self.given = bootstrap, folder, given

    def spark(self, what: str, topic: str, *, into: str = "") -> Side:
        """One run of Spark; into a folder that is kept, or into one that is removed."""
        folder = self.folder / (into or uuid.uuid4().hex)
        found = side(what, self.bootstrap, topic, str(folder), self.given.heap)
        if not into:
            shutil.rmtree(folder)
        return found

    def parquet(self) -> None:
        topic, ratios = filled(self.bootstrap, "even", self.given.large), []
        for _ in range(self.given.rounds):
            plain, landed = self.spark("parquet", topic), self.spark("land", topic)
            ratios.append(landed["seconds"] / plain["seconds"])
            print(
                f"plain Parquet {plain['seconds']:.1f} s ({plain['mib']:,.0f} MiB), "
                f"land {landed['seconds']:.1f} s ({landed['mib']:,.0f} MiB)",
                flush=True,
            )
        print(f"land of {self.given.large:,} against plain Parquet: {shown(ratios)}", flush=True)

    def lineage(self) -> None:
        sizes = (self.given.small, self.given.large)
        topics = [filled(self.bootstrap, "even", count) for count in sizes]
        rates: dict[str, list[float]] = {"spark": [], "python": []}
        for _ in range(self.given.rounds):
            both = {
                "spark": [self.spark("lineage", topic) for topic in topics],
                "python": [side("python", self.bootstrap, topic) for topic in topics],
            }
            for name, (first, second) in both.items():
                assert [first["lives"], second["lives"]] == [*sizes]
                rates[name].append((sizes[1] - sizes[0]) / (second["seconds"] - first["seconds"]))
                print(
                    f"{name}: {first['seconds']:.1f} s, {second['seconds']:.1f} s (landed {second['landed_s']:.1f}), "
                    f"marginal {rates[name][-1]:,.0f}/s, peak {first['mib']:,.0f}, {second['mib']:,.0f} MiB",
                    flush=True,
                )
        ratios = [ours / theirs for ours, theirs in zip(rates["spark"], rates["python"], strict=True)]
        print(f"marginal rate of land + lineage against Python: {shown(ratios)}", flush=True)

    def again(self) -> None:
        more, grown = filled(self.bootstrap, "more", MORE), filled(self.bootstrap, "grown", self.given.large)
        self.spark("land", grown, into="grown")
        ratios = []
        for number in range(self.given.rounds):
            alone = self.spark("land", more)
            fill(self.bootstrap, grown, MORE, start=self.given.large + number * MORE)
            again = self.spark("land", grown, into="grown")
            ratios.append(again["seconds"] / alone["seconds"])
            print(f"alone {alone['seconds']:.1f} s, into the large lake {again['seconds']:.1f} s", flush=True)
        print(f"{MORE:,} more into a lake of {self.given.large:,}, against alone: {shown(ratios)}", flush=True)

    def skew(self) -> None:
        even, skewed = (filled(self.bootstrap, name, self.given.large) for name in ("even", "skewed"))
        for what in ("land", "lineage"):
            ratios = []
            for _ in range(self.given.rounds):
                first, second = self.spark(what, even), self.spark(what, skewed)
                ratios.append(second["seconds"] / first["seconds"])
                print(f"{what}: even {first['seconds']:.1f} s, skewed {second['seconds']:.1f} s", flush=True)
            print(f"{what} of {self.given.large:,} in one partition, against even: {shown(ratios)}", flush=True)


@contextmanager
def bootstrap_of(data: Path | None) -> Iterator[str]:
    if data is None:
        with any_broker(report=print) as broker:
            yield broker.bootstrap
    else:
        with LocalCluster(data_dir=data, report=print) as cluster:
            yield cluster.bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"of {', '.join(ROWS)}; without any, all")
    parser.add_argument("--small", type=int, default=500_000)
    parser.add_argument("--large", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default="1536m", help="of Spark's JVM")
    parser.add_argument("--data", type=Path, help="folder in which the broker and its topics are kept")
    parser.add_argument("--fill", action="store_true", help="produce the topics and end; for --data")
    given = parser.parse_args()
    if unknown := set(given.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    with bootstrap_of(given.data) as bootstrap, tempfile.TemporaryDirectory() as folder:
        if given.fill:
            sizes = {"even": given.large, "skewed": given.large, "grown": given.large, "more": MORE}
            for name, count in [("even", given.small), *sizes.items()]:
                print(f"{filled(bootstrap, name, count)} is there", flush=True)
            return
        bench = Bench(bootstrap, Path(folder), given)
        for row in given.rows or ROWS:
            getattr(bench, row)()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        what, *words = sys.argv[2:]
        print(json.dumps(by_python(*words) if what == "python" else by_spark(what, *words)))
    else:
        main()
