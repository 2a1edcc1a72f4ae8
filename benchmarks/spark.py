"""Landing and message lifecycles against plain Parquet and one Python process. `python -m benchmarks.spark --help`.

Records of 200 B (half of which a compressor can take away) with the six headers that a sender writes, eight partitions.

* `parquet`: `land` against a plain batch read of the same rows written as Parquet with zstd.
* `lineage`: `land` and one row per message as a Delta table, against one confluent-kafka process, `consume(1000)`, that
  writes the same table as Parquet: every column, every row (`--check` compares them, and ends). It knows sent records
  only and lands nothing; it runs as Python comes, and once more without cyclic garbage collection. Printed is the
  *marginal* rate, (large - small) records over the difference of the times: what is paid once counts on neither side.
  Needs `pip install pyarrow`.
* `again`: 100,000 new records into the large lake against 100,000 into an empty one.
* `skew`: all records in one of the eight partitions against even ones.

Each side is a process of its own, rounds are interleaved; the start of a session is not in the times. Spark is
`local[2]` with a heap of `--heap`; memory is the peak of the process and its JVM together, looked at four times a
second. CPU seconds are those of the same processes: they tell more than times where others use the cores, too.
`--data` keeps broker and topics, so that a later run need not produce them again.
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from rocketshim_local import LocalCluster, any_broker
from rocketshim_topics import Message, TopicNames, hops

PARTITIONS = 8
MORE = 100_000
DELIVERED = 2  # as `rocketshim_spark.jobs.lineage` counts the steps
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
    """Return a topic with a number of records; an existing one is used as it is."""
    topic = f"bench-{name}-{count}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if topic not in admin.list_topics(timeout=60).topics:
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(60)
        fill(bootstrap, topic, count, skewed=name == "skewed")
    return topic


def cpu_s() -> float:
    """The CPU time so far of this process and its children, in seconds."""
    me = psutil.Process()
    used = [each.cpu_times() for each in [me, *me.children(recursive=True)]]
    return float(sum(each.user + each.system for each in used))


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
    from rocketshim_spark.running import open_lake, publish_lifecycles  # noqa: PLC0415
    from rocketshim_spark.session import SessionSettings, create  # noqa: PLC0415
    from rocketshim_spark.sources import Cluster, read_batch  # noqa: PLC0415

    with peak_mib() as peak:
        spark = create(SessionSettings(master="local[2]", driver_memory=heap))
        spark.sparkContext.setLogLevel("ERROR")
        began, used_s, lifecycles = time.monotonic(), cpu_s(), 0
        if what == "parquet":
            frame = read_batch(spark, bootstrap, Cluster(bootstrap).bounds([topic]))
            frame.write.option("compression", "zstd").parquet(folder)
        else:
            land(spark, bootstrap, [topic], folder, groups=())
        landed_s = time.monotonic() - began
        if what == "lineage":
            opened = open_lake(spark, folder)
            lifecycles = publish_lifecycles(opened).count()
        seconds, used_s = time.monotonic() - began, cpu_s() - used_s
        spark.stop()
    return {"lifecycles": lifecycles, "landed_s": landed_s, "seconds": seconds, "cpu_s": used_s, "mib": peak[0]}


def by_python(bootstrap: str, topic: str, folder: str, *, collects: bool) -> Side:
    if not collects:
        gc.disable()
    with peak_mib() as peak:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False,
             "isolation.level": "read_committed", "fetch.queue.backoff.ms": 1, "queued.min.messages": 100_000}
        )  # fmt: skip
        began, used_s = time.monotonic(), cpu_s()
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, part))[1] for part in range(PARTITIONS)]
        consumer.assign([TopicPartition(topic, part, 0) for part in range(PARTITIONS)])
        left, found = sum(ends), defaultdict[str, list[Any]](list)
        while left > 0:
            for message in consumer.consume(1_000, 0.2):
                headers: dict[str, Any] = dict(message.headers() or ())
                place, at = f"{topic}/{message.partition()}/{message.offset()}", message.timestamp()[1]
                entry = (0, 0, DELIVERED, at, place, "source", None, False)
                born, tag, uid = headers.get("BORN_TIMESTAMP"), headers.get("TAGS"), headers.get("UNIQ_KEY")
                record = (entry, int(born) if born else at, tag and tag.decode(errors="replace"), message.key())
                found[uid.decode(errors="replace") if uid else place].append(record)
                left -= 1
        read_s = time.monotonic() - began
        lifecycles = (lifecycle(uid, topic, records) for uid, records in found.items())
        write(lifecycles, Path(folder))
        seconds, used_s = time.monotonic() - began, cpu_s() - used_s
        consumer.close()
    return {"lifecycles": len(found), "landed_s": read_s, "seconds": seconds, "cpu_s": used_s, "mib": peak[0]}


def lifecycle(uid: str, topic: str, records: list[Any]) -> tuple[Any, ...]:
    """A row of the table, in the order of its columns: no group has committed anything, and so each is open."""
    if len(records) > 1:
        records.sort()
    first, _, tag, key = records[0]
    history = [record[0] for record in records]
    newest, born = history[-1], min(record[1] for record in records)
    return (
        None, uid, "open", False, topic, tag, key, first[4], born, newest[1], len(history), len(history) - 1, True,
        False, False, history, newest[6], newest[3], None,
    )  # fmt: skip


def write(lifecycles: Iterator[tuple[Any, ...]], folder: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 the other side does without
    import pyarrow.parquet as pq  # noqa: PLC0415

    text, number, at = pa.string(), pa.int32(), pa.timestamp("ms", "UTC")
    entry = [("replay", number), ("attempt", number), ("step", number), ("at", at), ("coordinates", text),
             ("kind", text), ("reason", text), ("reached", pa.bool_())]  # fmt: skip
    schema = pa.schema(
        [("grp", text), ("msg_id", text), ("state", text), ("inferred", pa.bool_()), ("topic", text), ("tag", text),
         ("key", pa.binary()), ("origin", text), ("first_sent", at), ("attempts", number), ("deliveries", number),
         ("copies", number), ("rooted", pa.bool_()), ("broken", pa.bool_()), ("revived", pa.bool_()),
         ("history", pa.list_(pa.struct(entry))), ("last_reason", text), ("last_at", at), ("took_ms", pa.int64())]
    )  # fmt: skip
    folder.mkdir()
    with pq.ParquetWriter(folder / "lineage.parquet", schema, compression="snappy") as file:
        while rows := list(islice(lifecycles, 100_000)):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            file.write_table(pa.table(arrays, schema=schema))


def differing(ours: str, theirs: str) -> Side:
    from rocketshim_spark.session import SessionSettings, create  # noqa: PLC0415

    spark = create(SessionSettings(master="local[2]"))
    first, second = spark.read.format("delta").load(ours), spark.read.parquet(theirs)
    assert first.columns == second.columns
    count = first.exceptAll(second).count() + second.exceptAll(first).count()
    spark.stop()
    return {"differing": count}


def side(*words: str) -> Side:
    command = [sys.executable, "-m", "benchmarks.spark", "--side", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found: Side = json.loads(done.stdout.splitlines()[-1])
    return found


def cost(found: Side) -> str:
    return f"{found['seconds']:.1f} s ({found['cpu_s']:.1f} CPU s, {found['mib']:,.0f} MiB)"


def compare(what: str, pairs: list[tuple[Side, Side]]) -> None:
    for name, unit in (("time", "seconds"), ("CPU", "cpu_s")):
        print(f"{what}, {name}: {table.spread([one[unit] / other[unit] for one, other in pairs])}", flush=True)


class Bench:
    """The rows, each with what it needs."""

    def __init__(self, bootstrap: str, folder: Path, given: argparse.Namespace) -> None:
        self.bootstrap, self.folder, self.given = bootstrap, folder, given

    def run(self, what: str, topic: str, *, into: str = "") -> Side:
        """One run of a side; into a folder that is kept, or into one that is removed."""
        folder = self.folder / (into or uuid.uuid4().hex)
        found = side(what, self.bootstrap, topic, str(folder), self.given.heap)
        if not into:
            shutil.rmtree(folder)
        return found

    def parquet(self) -> None:
        topic, pairs = filled(self.bootstrap, "even", self.given.large), []
        for _ in range(self.given.rounds):
            plain, landed = self.run("parquet", topic), self.run("land", topic)
            pairs.append((landed, plain))
            print(f"plain Parquet {cost(plain)}, land {cost(landed)}", flush=True)
        compare(f"land of {self.given.large:,} against plain Parquet", pairs)

    def lineage(self) -> None:
        sizes = (self.given.small, self.given.large)
        topics = [filled(self.bootstrap, "even", count) for count in sizes]
        rates: dict[str, list[float]] = {"spark": [], "python": [], "python-without-gc": []}
        for _ in range(self.given.rounds):
            for name, found in rates.items():
                runs = [self.told(name, topic) for topic in topics]
                assert [each["lifecycles"] for each in runs] == [*sizes]
                more = sizes[1] - sizes[0]
                found.append(more / (runs[1]["seconds"] - runs[0]["seconds"]))
                of_cpu = more / (runs[1]["cpu_s"] - runs[0]["cpu_s"])
                print(f"{name}: marginal {found[-1]:,.0f}/s, {of_cpu:,.0f} per CPU second", flush=True)
        for rival in ("python", "python-without-gc"):
            ratios = [own / theirs for own, theirs in zip(rates["spark"], rates[rival], strict=True)]
            print(f"marginal rate of land + lineage against {rival}: {table.spread(ratios)}", flush=True)

    def told(self, name: str, topic: str) -> Side:
        found = self.run("lineage" if name == "spark" else name, topic)
        print(
            f"{name}: {found['lifecycles']:,} lifecycles in {cost(found)}, all read after {found['landed_s']:.1f} s",
            flush=True,
        )
        return found

    def check(self) -> None:
        topic = filled(self.bootstrap, "even", self.given.small)
        self.run("lineage", topic, into="ours")
        self.run("python", topic, into="theirs")
        found = side("differing", str(self.folder / "ours/reports/lineage"), str(self.folder / "theirs"))
        print(f"{self.given.small:,} messages: {found['differing']:,.0f} rows differ", flush=True)

    def again(self) -> None:
        more, grown = filled(self.bootstrap, "more", MORE), filled(self.bootstrap, "grown", self.given.large)
        self.run("land", grown, into="grown")
        pairs = []
        for number in range(self.given.rounds):
            alone = self.run("land", more)
            fill(self.bootstrap, grown, MORE, start=self.given.large + number * MORE)
            again = self.run("land", grown, into="grown")
            pairs.append((again, alone))
            print(f"alone {cost(alone)}, into the large lake {cost(again)}", flush=True)
        compare(f"{MORE:,} more into a lake of {self.given.large:,}, against alone", pairs)

    def skew(self) -> None:
        even, skewed = (filled(self.bootstrap, name, self.given.large) for name in ("even", "skewed"))
        for what in ("land", "lineage"):
            pairs = []
            for _ in range(self.given.rounds):
                first, second = self.run(what, even), self.run(what, skewed)
                pairs.append((second, first))
                print(f"{what}: even {cost(first)}, skewed {cost(second)}", flush=True)
            compare(f"{what} of {self.given.large:,} in one partition, against even", pairs)


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
    parser.add_argument("--check", action="store_true", help="compare the tables of both sides of `lineage`, and end")
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
        for row in ["check"] if given.check else given.rows or ROWS:
            getattr(bench, row)()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        what, *words = sys.argv[2:]
        sides = {
            "python": lambda: by_python(*words[:3], collects=True),
            "python-without-gc": lambda: by_python(*words[:3], collects=False),
            "differing": lambda: differing(*words),
        }
        print(json.dumps(sides.get(what, lambda: by_spark(what, *words))()))
    else:
        main()
