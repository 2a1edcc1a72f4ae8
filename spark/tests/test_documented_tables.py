"""The columns that docs/spark-tables.md lists are those of the tables."""

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketshim_spark import events, lake, redrive_marks
from rocketshim_spark.jobs import audit, delays, dlq_trend, failures, keys, lineage, replay
from rocketshim_spark.small_frames import small_frame

from .histories import GAPS, NAMES, NOW_MS, SCHEMA, ms
from .test_plans import COMMITTED, records

PAGE = Path(__file__).parents[2] / "docs" / "spark-tables.md"


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, DataFrame]:
    """The tables that the commands write, by name."""
    read = records(spark)
    event_frame, settled = events.transform(read), redrive_marks.settled(read)
    lifecycles = lineage.transform(event_frame, lineage.LineageParams(committed=COMMITTED))
    outcomes = delays.outcomes(event_frame, delays.DelayParams(now=ms(NOW_MS), worker=COMMITTED[NAMES.worker_group]))
    residuals = audit.residuals(lifecycles, small_frame(spark, [], GAPS))
    letters, trend = dlq_trend.letters(event_frame, settled), dlq_trend.TrendParams(now=ms(NOW_MS))
    topics = small_frame(spark, [("rmq.dlq.g", "id")], "topic string, topic_id string")
    params = replay.PlanParams(plan_id="p", max_messages=5)
    planned = replay.plan(read, event_frame, topics, params, settled=settled)
    return {
        "failures": failures.transform(event_frame, failures.FailureParams(since=ms(0))),
        "lineage": lifecycles,
        "delay_outcomes": outcomes,
        "delays": delays.transform(outcomes),
        "audit": audit.transform(lifecycles, residuals),
        "residuals": residuals,
        "keys": keys.transform(lifecycles),
        "dlq_trend": dlq_trend.transform(letters),
        "dlq_open": dlq_trend.open_letters(letters, trend),
        "replay-NAME": planned,
        "replay-NAME-verified": replay.check(planned, read, settled),
    }


def test_each_table_has_a_section_with_all_of_its_columns(tables: dict[str, DataFrame]) -> None:
    sections = dict(re.findall(r"^## [^\n]*: `([^`]+)`\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    assert set(sections) == set(tables)
    for name, frame in tables.items():
        missing = set(frame.columns) - set(re.findall(r"`([^`]+)`", sections[name]))
        assert missing == set(), name


def test_the_rows_of_a_section_have_names_and_types_of_columns(tables: dict[str, DataFrame]) -> None:
    for name, frame in tables.items():
        types = {field.name: field.dataType.simpleString().split("<struct")[0] for field in frame.schema}
        section = PAGE.read_text().partition(f": `{name}`\n")[2].partition("\n## ")[0]
        for columns, kinds in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", section, re.MULTILINE):
            named = re.findall(r"`([^`]+)`", columns)
            written = kinds.replace("&lt;struct&gt;", "").replace("&lt;", "<").replace("&gt;", ">").split(", ")
            expected = [types[each] for each in named]
            assert expected in (written, written * len(named)), (name, columns)


def test_the_tables_of_the_lake_are_listed() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text().partition("## failures")[0], re.MULTILINE))
    schemas = {
        "records": SCHEMA,
        "gaps": lake.GAPS_SCHEMA,
        "topics": lake.TOPICS_SCHEMA,
        "positions": lake.POSITIONS_SCHEMA,
    }
    assert set(rows) == set(schemas)
    for name, schema in schemas.items():
        columns = {each.split()[0] for each in re.sub(r"<[^>]*>*", "", schema).split(",")}
        assert columns - set(re.findall(r"`(\w+)`", rows[name])) == set(), name
