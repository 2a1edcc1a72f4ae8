"""Landing from a real broker with a real Spark: once each, only what is new, and nothing missed in silence."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from rocketshim_local import Broker
from rocketshim_spark import land as landing
from rocketshim_spark import sources
from rocketshim_spark.errors import LakeError, TopicRecreatedError
from rocketshim_spark.jobs.lineage import HIGH_CARDINALITY
from rocketshim_spark.lake import Gap, batch_positions, read_gaps, read_records
from rocketshim_spark.land import land
from rocketshim_spark.running import open_lake, publish_lifecycles
from rocketshim_spark.session import connector_jars
from rocketshim_topics.errors import TopicMissingError

from .waiting import add_partitions, wait_until

pytestmark = pytest.mark.usefixtures("interpreted")

Header = tuple[str, bytes | None]


@pytest.fixture(autouse=True)
def _connector() -> None:
    assert connector_jars() is not None, "run `rocketshim spark fetch` before these tests"


@pytest.fixture
def produce(broker: Broker) -> Callable[..., None]:
    def send(topic: str, count: int, *, partitions: int = 1, headers: list[Header] | None = None) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for number in range(count):
            producer.produce(topic, value=b"%d" % number, partition=number % partitions, headers=headers)
        assert producer.flush(120) == 0

    return send


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def uri_lake(tmp_path: Path) -> str:
    return (tmp_path / "lake").as_uri()


@pytest.fixture
def hadoop_lake(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A lake in a file system that Spark reaches through Hadoop alone, as it reaches HDFS and object stores."""
    table = f"t{uuid.uuid4().hex}"  # Hadoop keeps what it has opened
    mount = f"fs.viewfs.mounttable.{table}.link./shim"
    spark.conf.set(mount, tmp_path.as_uri())
    yield f"viewfs://{table}/shim/lake"
    spark.conf.unset(mount)


def coordinates(frame: DataFrame) -> list[tuple[str, int, int]]:
    return sorted((row.topic, row.partition, row.offset) for row in frame.collect())


def delete_before(admin: AdminClient, topic: str, partition: int, offset: int) -> None:
    """What retention does, at a moment of our choice."""
    wait(admin.delete_records([TopicPartition(topic, partition, offset)]).values(), 120)


def with_dictionary(spark: SparkSession, table: str) -> set[str]:
    """The columns of a table's first file of which Parquet made a dictionary."""
    hadoop, jvm = spark._jsc.hadoopConfiguration(), spark._jvm  # type: ignore[attr-defined]
    name = next(Path(table).glob("*.parquet")).as_uri()
    parquet = jvm.org.apache.parquet.hadoop
    file = parquet.util.HadoopInputFile.fromPath(jvm.org.apache.hadoop.fs.Path(name), hadoop)
    reader = parquet.ParquetFileReader.open(file)
    found = {
        column.getPath().toDotString()
        for column in reader.getFooter().getBlocks().get(0).getColumns()
        if column.hasDictionaryPage()
    }
    reader.close()
    return found


def test_no_dictionary_is_begun_of_what_hardly_repeats_itself(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], lake: str
) -> None:
    name = topic(partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(1_000):  # values and times alike: Parquet itself would make dictionaries of them
        headers = {"TAGS": b"a", "UNIQ_KEY": b"%d" % number}
        producer.produce(name, value=b"alike", headers=headers, timestamp=1_000)
    assert producer.flush(120) == 0
    land(spark, broker.bootstrap, [name], lake)
    publish_lifecycles(open_lake(spark, lake))
    columns = with_dictionary(spark, f"{lake}/records")
    assert {"topic", "headers.list.element.key"} <= columns
    assert columns.isdisjoint({"offset", "timestamp", "value"})
    columns = with_dictionary(spark, f"{lake}/reports/lineage")
    assert {"topic", "state"} <= columns
    assert columns.isdisjoint(HIGH_CARDINALITY)


def test_two_actions_on_one_frame_see_the_same_rows(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic(partitions=3)
    produce(name, 30, partitions=2)  # the third partition stays empty
    bounds = sources.Cluster(broker.bootstrap).bounds([name])
    frame = sources.read_batch(spark, broker.bootstrap, bounds, min_tasks=5, max_records_per_task=10)
    first = coordinates(frame)
    produce(name, 30, partitions=3)
    assert len(first) == 30
    assert coordinates(frame) == first
    assert frame.rdd.getNumPartitions() >= 4  # 15 records each in two partitions, 10 a task at most
    assert [(each.start, each.end) for each in bounds] == [(0, 15), (0, 15), (0, 0)]


def test_an_open_transaction_is_for_a_later_read_and_an_aborted_one_for_none(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], hadoop_lake: str
) -> None:
    lake, name = hadoop_lake, topic()
    there = {"bootstrap.servers": broker.bootstrap, "transactional.id": f"t-{uuid.uuid4().hex}"}
    producer = Producer({**there, "transaction.timeout.ms": 600_000})  # it is open while Spark reads, however slowly
    producer.init_transactions(120)

    def transaction(value: bytes) -> None:
        producer.begin_transaction()
        producer.produce(name, value=value)
        assert producer.flush(120) == 0

    transaction(b"committed")
    producer.commit_transaction(120)
    transaction(b"aborted")
    producer.abort_transaction(120)
    transaction(b"open")
    cluster = sources.Cluster(broker.bootstrap)

    def await_end(end: int) -> None:  # a commit returns before its marker is written
        wait_until(lambda: [each.end for each in cluster.bounds([name])] == [end], f"the end {end}", within_s=120)

    await_end(4)
    frame = sources.read_batch(spark, broker.bootstrap, cluster.bounds([name]))
    assert [bytes(row.value) for row in frame.collect()] == [b"committed"]
    first = land(spark, broker.bootstrap, [name], lake)
    (stable,) = (each.end for each in cluster.bounds([name]))
    assert (first.rows, first.held) == (1, {(name, 0): stable})
    (caveat,) = open_lake(spark, lake).caveats
    assert caveat.startswith(f"{name}/0 ended in an open transaction at {stable}: deliveries after it")
    producer.commit_transaction(120)
    await_end(6)
    second = land(spark, broker.bootstrap, [name], lake)
    assert (second.rows, second.held) == (1, {})
    assert open_lake(spark, lake).caveats == ()
    assert [bytes(row.value) for row in read_records(spark, lake).orderBy("offset").collect()] == [
        b"committed",
        b"open",
    ]
    assert read_gaps(spark, lake).count() == 0


def test_a_second_landing_lands_nothing_and_a_third_only_what_is_new(
    spark: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    produce: Callable[..., None],
    lake: str,
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = topic(partitions=2)
    with pytest.raises(LakeError, match="nothing was landed"):
        read_records(spark, lake)
    headers: list[Header] = [("TAGS", b"a"), ("TAGS", b"\xff"), ("none", None)]
    produce(name, 20, partitions=2, headers=headers)
    first = land(spark, broker.bootstrap, [name], lake)
    assert (first.rows, first.gaps) == (20, ())
    assert first.version is not None
    row = read_records(spark, lake).first()
    assert row is not None
    assert [(each.key, each.value and bytes(each.value)) for each in row.headers] == headers
    again = land(spark, broker.bootstrap, [name], lake)
    assert (again.rows, again.version) == (0, first.version)

    second = topic(name="later")  # a topic and a partition that come later are read from their beginning
    add_partitions(admin, name, 3)
    produce(second, 5)
    produce(name, 3, partitions=3)
    third = land(spark, broker.bootstrap, [second], lake)
    assert (third.rows, third.gaps) == (8, ())
    landed = coordinates(read_records(spark, lake))
    assert len(landed) == len(set(landed)) == 28
    assert batch_positions(spark, lake)[0] == {(name, 0): 11, (name, 1): 11, (name, 2): 1, (second, 0): 5}
    assert read_records(spark, lake, first.version).count() == 20  # the snapshot of an earlier report


def test_what_retention_took_is_a_gap_told_once(
    spark: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    produce: Callable[..., None],
    uri_lake: str,
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    lake, name = uri_lake, topic()
    produce(name, 10)
    delete_before(admin, name, 0, 4)
    topic_id = sources.Cluster(broker.bootstrap).bounds([name])[0].topic_id
    first = land(spark, broker.bootstrap, [name], lake)
    assert (first.rows, first.gaps) == (6, (Gap(name, topic_id, 0, 0, 4, "expired-before-first-landing"),))
    produce(name, 10)
    delete_before(admin, name, 0, 15)
    second = land(spark, broker.bootstrap, [name], lake)
    assert (second.rows, second.gaps) == (5, (Gap(name, topic_id, 0, 10, 15, "expired"),))
    found = read_gaps(spark, lake).orderBy("gap_from").collect()
    assert [(row.gap_from, row.gap_to, row.reason) for row in found] == [
        (0, 4, "expired-before-first-landing"),
        (10, 15, "expired"),
    ]
    offsets = [offset for _, _, offset in coordinates(read_records(spark, lake))]
    assert offsets == [*range(4, 10), *range(15, 20)]
    assert [row.gap_to for row in read_gaps(spark, lake, first.version).collect()] == [4]  # an earlier report's
    assert read_gaps(spark, lake, second.version).count() == 2
    assert open_lake(spark, lake).caveats[0].startswith("retention deleted records before they were landed")


def test_what_retention_takes_in_the_midst_of_a_landing_is_a_gap_too(
    spark: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    produce: Callable[..., None],
    lake: str,
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = topic()
    produce(name, 10)
    assert land(spark, broker.bootstrap, [name], lake).rows == 10
    produce(name, 30)
    delete_before(admin, name, 0, 15)  # so Spark is configured to pass over gaps
    stream = landing._stream

    def overtaken(*arguments: object) -> int:
        delete_before(admin, name, 0, 20)
        rows = stream(*arguments)  # type: ignore[arg-type]
        # What a later task of the same partition would have missed, had retention been faster than it.
        spark.sql(f"DELETE FROM delta.`{lake}/records` WHERE offset BETWEEN 25 AND 26")  # noqa: S608 - our own path
        delete_before(admin, name, 0, 30)
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landing, "_stream", overtaken)
        found = land(spark, broker.bootstrap, [name], lake).gaps
    assert [(gap.gap_from, gap.gap_to, gap.reason) for gap in found] == [
        (10, 15, "expired"),
        (15, 20, "expired-while-landing"),
        (25, 27, "expired-while-landing"),
    ]
    assert land(spark, broker.bootstrap, [name], lake).gaps == ()
    assert read_gaps(spark, lake).count() == 3


@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_landing_that_is_killed_with_its_jvm_goes_on_and_lands_each_record_once(
    spark: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    produce: Callable[..., None],
    lake: str,
    *,
    sent: signal.Signals,
) -> None:
    name = topic(partitions=3)
    produce(name, 3_000, partitions=3)
    planned = Path(lake, "checkpoint", "offsets", "0")
    command = ["land", name, "--lake", lake, "--bootstrap", broker.bootstrap, "--master", "local[2]"]
    with subprocess.Popen(
        [sys.executable, "-m", "rocketshim", "spark", *command],
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 300.0
        while not planned.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(process.pid, sent)
    assert sent == signal.SIGKILL or process.returncode in {0, 130}  # 0: it was done before
    assert planned.exists()  # it was on its way; how far it came is chance, and every point must do
    produce(name, 30, partitions=3)
    land(spark, broker.bootstrap, [name], lake)
    expected = [(name, number % 3, number // 3) for number in range(3_030)]
    assert coordinates(read_records(spark, lake)) == sorted(expected)
    assert read_gaps(spark, lake).count() == 0


def test_rows_whose_batch_was_never_noted_are_neither_landed_again_nor_called_a_gap(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], produce: Callable[..., None], lake: str
) -> None:
    """The one point at which rows are there and the checkpoint does not know: a crash in between, made by hand."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = topic()
    produce(name, 10)
    assert land(spark, broker.bootstrap, [name], lake).rows == 10
    commits = Path(lake, "checkpoint", "commits")

    def forget(batch: int) -> None:
        for file in (commits / f"{batch}", commits / f".{batch}.crc"):
            file.unlink()

    forget(0)
    assert batch_positions(spark, lake)[0] == {}
    delete_before(admin, name, 0, 7)
    produce(name, 5)
    assert land(spark, broker.bootstrap, [name], lake).gaps == ()
    assert coordinates(read_records(spark, lake)) == [(name, 0, offset) for offset in range(15)]
    assert read_gaps(spark, lake).count() == 0
    forget(0)
    forget(1)
    produce(name, 5)
    delete_before(admin, name, 0, 18)  # three that were never landed, told once, however often it is killed there
    assert [(gap.gap_from, gap.gap_to) for gap in land(spark, broker.bootstrap, [name], lake).gaps] == [(15, 18)]


def test_a_landing_that_was_stopped_continues_when_topics_and_partitions_were_added_since(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], produce: Callable[..., None], lake: str
) -> None:
    """Spark 4.0 itself fails on such a batch again and again (SPARK-53560)."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name, other = topic(), topic()
    produce(name, 10)
    assert land(spark, broker.bootstrap, [name], lake).rows == 10
    produce(name, 5)
    assert land(spark, broker.bootstrap, [name], lake).rows == 5
    for file in ("1", ".1.crc"):  # as if it had been killed before this
        Path(lake, "checkpoint", "commits", file).unlink()
    add_partitions(admin, name, 2)
    produce(name, 6, partitions=2)
    produce(other, 4)
    land(spark, broker.bootstrap, [name, other], lake)
    expected = [(name, 0, at) for at in range(18)] + [(name, 1, at) for at in range(3)]
    expected += [(other, 0, at) for at in range(4)]
    assert coordinates(read_records(spark, lake)) == sorted(expected)
    assert read_gaps(spark, lake).count() == 0


def test_a_topic_that_was_made_anew_is_refused_with_the_way_out(
    spark: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    produce: Callable[..., None],
    lake: str,
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = topic()
    produce(name, 3)
    assert land(spark, broker.bootstrap, [name], lake).rows == 3
    known = spark.read.format("delta").load(f"{lake}/topics")
    topic_id = known.first().topic_id  # type: ignore[union-attr]
    assert topic_id == sources.Cluster(broker.bootstrap).bounds([name])[0].topic_id
    admin.delete_topics([name])[name].result(120)
    wait_until(lambda: name not in admin.list_topics(timeout=120).topics, "it is gone", within_s=120)
    with pytest.raises(TopicRecreatedError, match=r"does not exist any more.*new folder"):
        land(spark, broker.bootstrap, [name], lake)
    recreate(admin, name)
    produce(name, 5)
    with pytest.raises(TopicRecreatedError, match=r"created again.*new folder"):
        land(spark, broker.bootstrap, [name], lake)
    assert read_records(spark, lake).count() == 3
    assert land(spark, broker.bootstrap, [name], f"{lake}-2").rows == 5


def test_a_topic_that_never_was_is_said_and_leaves_nothing(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(TopicMissingError, match="no-such-topic"):
        land(spark, broker.bootstrap, ["no-such-topic"], str(tmp_path / "lake"))
    assert not (tmp_path / "lake").exists()


def recreate(admin: AdminClient, name: str) -> None:
    """Make a topic that was just deleted; its name is free once the brokers have heard of it."""
    deadline = time.monotonic() + 120.0
    while True:
        try:
            admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(120)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                raise
        else:
            return
