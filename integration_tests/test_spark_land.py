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
from pyspark.sql import functions as F  # noqa: N812

from rocketshim_local import Broker
from rocketshim_spark import land as landing
from rocketshim_spark import sources
from rocketshim_spark.cli import main
from rocketshim_spark.errors import LakeError, LandingFailedError, TopicRecreatedError
from rocketshim_spark.jobs.lineage import HIGH_CARDINALITY
from rocketshim_spark.lake import Gap, read_gaps, read_landed, read_records
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
    assert read_landed(spark, lake).ends == {(name, 0): 11, (name, 1): 11, (name, 2): 1, (second, 0): 5}
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
    add = landing.add_records

    def overtaken(*arguments: object) -> int:
        delete_before(admin, name, 0, 20)
        rows = add(*arguments)  # type: ignore[arg-type]
        # What a later task of the same partition would have missed, had retention been faster than it.
        spark.sql(f"DELETE FROM delta.`{lake}/records` WHERE offset BETWEEN 25 AND 26")  # noqa: S608 - our own path
        delete_before(admin, name, 0, 30)
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landing, "add_records", overtaken)
        found = land(spark, broker.bootstrap, [name], lake).gaps
    assert [(gap.gap_from, gap.gap_to, gap.reason) for gap in found] == [
        (10, 15, "expired"),
        (15, 20, "expired-while-landing"),
        (25, 27, "expired-while-landing"),
    ]
    assert land(spark, broker.bootstrap, [name], lake).gaps == ()
    assert read_gaps(spark, lake).count() == 3


def started(name: str, lake: str, broker: Broker, *words: str) -> "subprocess.Popen[str]":
    """`land` in the folder of the lake, as a process that leads a group of its own, to which Java belongs too."""
    command = ["land", name, "--lake", Path(lake).name, "--bootstrap", broker.bootstrap, "--master", "local[2]", *words]
    return subprocess.Popen(
        [sys.executable, "-m", "rocketshim", "spark", *command],
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        cwd=Path(lake).parent, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


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
    begun = Path(lake, "topics", "_delta_log", f"{0:020}.json")  # the last step before the records
    with started(name, lake, broker) as process:
        deadline = time.monotonic() + 300.0
        while not begun.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(process.pid, sent)
        errors = process.communicate()[1]
    own_words = "Picked up JAVA_TOOL_OPTIONS"  # of the variable of this test alone
    errors = "".join(line for line in errors.splitlines() if not line.startswith(own_words))
    if sent == signal.SIGINT:  # 0: it was done before
        interrupted = "interrupted: run the same command again; it continues, and does nothing twice"
        assert (process.returncode, errors) in {(0, ""), (130, interrupted)}
    assert begun.exists()  # it was on its way; how far it came is chance, and every point must do
    produce(name, 30, partitions=3)
    land(spark, broker.bootstrap, [name], lake)
    expected = [(name, number % 3, number // 3) for number in range(3_030)]
    assert coordinates(read_records(spark, lake)) == sorted(expected)
    assert read_gaps(spark, lake).count() == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_followed_landing_lands_what_comes_until_a_signal_to_it_and_to_java(
    spark: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    produce: Callable[..., None],
    lake: str,
    *,
    sent: signal.Signals,
) -> None:
    """A service manager signals all processes of a service, and a terminal all of its group."""
    name, landed = topic(partitions=3), []
    produce(name, 30, partitions=3)
    with started(name, lake, broker, "--follow", "--every", "1s") as process:
        assert process.stdout is not None
        for expected in (30, 42):
            while sum(landed) < expected and (line := process.stdout.readline()):
                landed.append(int(line.split()[1]))
            if expected == 30:
                produce(name, 12, partitions=3)
        os.killpg(process.pid, sent)
        errors = process.communicate()[1].splitlines()
    assert sum(landed) == 42
    assert process.returncode == 0
    assert [each for each in errors if not each.startswith(("Picked up", "note: found no shim topic"))] == [
        "stopped: run the same command again; it continues, and does nothing twice"
    ]
    assert len(errors) <= 3  # no note twice
    beside = {each.name for each in Path(lake).parent.iterdir()} - {"artifacts"}  # Spark 4.0 makes that one
    assert beside == {Path(lake).name}
    assert len(coordinates(read_records(spark, lake))) == 42


def without_landings(spark: SparkSession, lake: str) -> None:
    """Write the rows as another program would, so that no commit says what was landed."""
    records = spark.read.format("delta").load(f"{lake}/records")
    records.write.format("delta").mode("overwrite").save(f"{lake}/records")


def test_a_lake_that_an_earlier_version_landed_or_without_its_checkpoint_goes_on_from_its_rows(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], produce: Callable[..., None], lake: str
) -> None:
    """Earlier versions believed the checkpoint: without it all was landed again, and with a broken one nothing was."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = topic(partitions=2)
    produce(name, 20, partitions=2)
    first = land(spark, broker.bootstrap, [name], lake)
    assert not Path(lake, "checkpoint").exists()
    without_landings(spark, lake)
    for file in ("offsets/0", "commits/0"):
        broken = Path(lake, "checkpoint", file)
        broken.parent.mkdir(parents=True)
        broken.write_text("v1\n{")
    delete_before(admin, name, 0, 10)  # they were landed, so this is not a gap
    again = land(spark, broker.bootstrap, [name], lake)
    assert (first.rows, again.rows, again.gaps) == (20, 0, ())
    produce(name, 4, partitions=2)
    third = land(spark, broker.bootstrap, [name], lake)
    assert (third.rows, third.gaps) == (4, ())
    assert coordinates(read_records(spark, lake)) == [(name, part, at) for part in range(2) for at in range(12)]


def test_a_lake_with_each_record_twice_and_a_gap_of_landed_ones_is_repaired_by_one_command(
    spark: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    produce: Callable[..., None],
    lake: str,
    *,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What earlier versions have done to a lake whose checkpoint was gone."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = topic(partitions=2)
    produce(name, 20, partitions=2)
    delete_before(admin, name, 0, 3)  # a gap that is true
    assert land(spark, broker.bootstrap, [name], lake).rows == 17
    records = spark.read.format("delta").load(f"{lake}/records")
    records.write.format("delta").mode("append").save(f"{lake}/records")
    gaps = spark.read.format("delta").load(f"{lake}/gaps")
    for gap_from, gap_to in ((0, 6), (4, 8)):
        wrong = gaps.withColumns({"gap_from": F.lit(gap_from).cast("long"), "gap_to": F.lit(gap_to).cast("long")})
        wrong.write.format("delta").mode("append").save(f"{lake}/gaps")

    def repair(*words: str) -> tuple[int, str]:
        code = main(["repair", "--lake", lake, *words])
        return code, capsys.readouterr().out

    code, out = repair("--dry-run")
    assert (code, out.partition(" from ")[0]) == (
        2, "would remove 17 records too many, and 2 gaps of landed records",
    )  # fmt: skip
    code, out = repair()
    assert (code, out.split()[0]) == (0, "removed")
    assert repair()[1].startswith("nothing to repair")
    assert coordinates(read_records(spark, lake)) == [
        *((name, 0, at) for at in range(3, 10)),
        *((name, 1, at) for at in range(10)),
    ]
    assert {(row.gap_from, row.gap_to) for row in read_gaps(spark, lake).collect()} == {(0, 3)}
    produce(name, 2, partitions=2)
    done = land(spark, broker.bootstrap, [name], lake)
    assert (done.rows, done.gaps) == (2, ())


def test_a_table_that_was_restored_or_compacted_is_landed_from_where_it_ends(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], produce: Callable[..., None], lake: str
) -> None:
    name = topic()
    produce(name, 5)
    version = land(spark, broker.bootstrap, [name], lake).version
    produce(name, 5)
    assert land(spark, broker.bootstrap, [name], lake).rows == 5
    spark.sql(f"RESTORE delta.`{lake}/records` TO VERSION AS OF {version}")
    assert land(spark, broker.bootstrap, [name], lake).rows == 5
    spark.sql(f"OPTIMIZE delta.`{lake}/records`")
    spark.sql(f"DELETE FROM delta.`{lake}/records` WHERE offset >= 7")  # noqa: S608 our own path
    assert land(spark, broker.bootstrap, [name], lake).rows == 0  # who deletes records does not want them again
    produce(name, 1)
    assert land(spark, broker.bootstrap, [name], lake).rows == 1
    assert [offset for _, _, offset in coordinates(read_records(spark, lake))] == [0, 1, 2, 3, 4, 5, 6, 10]


def test_of_two_landings_at_the_same_time_one_fails_and_no_record_is_landed_twice(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], produce: Callable[..., None], lake: str
) -> None:
    name = topic()
    produce(name, 5)
    add = landing.add_records

    def overtaken(*arguments: object) -> int:
        patch.undo()
        assert land(spark, broker.bootstrap, [name], lake).rows == 5
        return add(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landing, "add_records", overtaken)
        with pytest.raises(LandingFailedError, match=r"another landing .* was faster\. Nothing of this landing"):
            land(spark, broker.bootstrap, [name], lake)
    assert land(spark, broker.bootstrap, [name], lake).rows == 0
    assert len(coordinates(read_records(spark, lake))) == 5


def test_brackets_in_the_path_make_no_gap(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], produce: Callable[..., None], tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    lake, name = str(tmp_path / "lk[1] {a,b}*?`x"), topic()
    produce(name, 4)
    assert land(spark, broker.bootstrap, [name], lake).rows == 4
    produce(name, 4)
    delete_before(admin, name, 0, 2)
    again = land(spark, broker.bootstrap, [name], lake)
    assert (again.rows, again.gaps) == (4, ())
    assert open_lake(spark, lake).caveats == ()


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
