"""Spark's query plans of the jobs: no Python code runs in the executors."""

import random

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rocketshim.filters import SqlFilter
from rocketshim_spark import events, redrive_marks
from rocketshim_spark.filters import header_property, selects
from rocketshim_spark.jobs import audit, delays, dlq_trend, failures, keys, lineage, replay
from rocketshim_spark.small_frames import small_frame
from rocketshim_topics.coordinates import TopicPartitionKey

from .histories import GAPS, NAMES, NOW_MS, World, frame, ms

COMMITTED = {"g": {TopicPartitionKey("orders", 0): 1}, NAMES.worker_group: {TopicPartitionKey(NAMES.schedule, 0): 1}}


def records(spark: SparkSession) -> DataFrame:
    return spark.range(10).selectExpr(
        "CAST(NULL AS BINARY) AS key", "CAST(CAST(id AS STRING) AS BINARY) AS value",
        "element_at(array('orders', 'SCHEDULE_TOPIC_XXXX', 'rmq.dlq.g', 'rmq.redrive'), INT(id % 4) + 1) AS topic",
        "0 AS partition", "id AS offset", "timestamp_millis(id) AS timestamp", "1 AS timestampType",
        "array(named_struct('key', 'CONSUMER_GROUP', 'value', CAST('g' AS BINARY))) AS headers",
    )  # fmt: skip


def plans(spark: SparkSession) -> dict[str, DataFrame]:
    """Return the last frame of each job; its query plan contains the frames that it is made from."""
    read = records(spark)
    event_frame, settled = events.transform(read), redrive_marks.settled(read)
    lifecycles = lineage.transform(event_frame, lineage.LineageParams(committed=COMMITTED))
    waited = delays.outcomes(event_frame, delays.DelayParams(now=ms(NOW_MS), worker=COMMITTED[NAMES.worker_group]))
    missing = audit.residuals(lifecycles, small_frame(spark, [], GAPS))
    letters, trend = dlq_trend.letters(event_frame, settled), dlq_trend.TrendParams(now=ms(NOW_MS))
    topics = small_frame(spark, [("rmq.dlq.g", "id")], "topic string, topic_id string")
    params = replay.PlanParams(plan_id="p", max_messages=5)
    planned = replay.plan(read, event_frame, topics, params, settled=settled)
    return {
        "failures": failures.transform(event_frame, failures.FailureParams(since=ms(0))),
        "delays": delays.transform(waited),
        "audit": audit.transform(lifecycles, missing),
        "malformed": audit.malformed(event_frame),
        "keys": keys.transform(lifecycles),
        "trend": dlq_trend.transform(letters),
        "open letters": dlq_trend.open_letters(letters, trend),
        "check of a plan": replay.check(planned, read, settled),
        "chosen": read.filter(selects(SqlFilter("a > 1"), lambda name: header_property(F.col("headers"), name))),
    }


def runs_python(frame: DataFrame) -> bool:
    plan = frame._jdf.queryExecution().toString()
    assert "== Physical Plan ==" in plan
    return "Python" in plan or "Pandas" in plan


def test_no_job_runs_python_in_the_executors(spark: SparkSession) -> None:
    shout = F.udf(lambda text: text.upper(), useArrow=False)  # without PyArrow, Spark 4.2 would warn
    assert runs_python(records(spark).select(shout("topic")))  # checks that `runs_python` recognises Python
    assert [name for name, frame in plans(spark).items() if runs_python(frame)] == []


def test_lineage_reads_once_shuffles_once_and_aggregates_once(spark: SparkSession) -> None:
    world = World(random.Random(0))  # noqa: S311 nothing secret
    world.history("h", ["retried"])
    world.commit()
    event_frame = events.transform(frame(spark, world.log.stored))
    landed = frozenset({"orders-h", NAMES.schedule})  # the log of timers is read by itself
    lifecycles = lineage.transform(event_frame, lineage.LineageParams(committed=world.committed, landed=landed))
    plan = lifecycles._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Scan ExistingRDD") == 1
    assert plan.count("Exchange hashpartitioning") == 1
    assert plan.count("Aggregate(") == plan.count("SortAggregate(") == 1
