"""The reports of the jobs for one history of each kind, and the replay plans of its dead letters.

`test_invariants` checks the results themselves, on generated histories.
"""

import datetime as dt
import random
from collections import Counter

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rocketshim_spark import events
from rocketshim_spark.jobs import audit, delays, dlq_trend, failures, keys, lineage, replay
from rocketshim_topics import Message, decode, hops
from rocketshim_topics.coordinates import TopicPartitionKey

from .histories import FATES, FAULTS, LEVELS, NAMES, NOW_MS, START_MS, Log, World, frame, gaps_of, ms


@pytest.fixture(scope="module")
def world() -> World:
    made = World(random.Random(7))  # noqa: S311 nothing secret
    made.history("clean", FATES * 4)
    for name in ("a", "b"):
        made.history(name, [*FATES * 2, *FAULTS])
    made.levelled("level", ["kept", "overtaken", "kept"])
    made.commit()
    return made


@pytest.fixture(scope="module")
def event_frame(spark: SparkSession, world: World) -> DataFrame:
    return events.transform(frame(spark, world.log.stored)).cache()


@pytest.fixture(scope="module")
def lifecycles(event_frame: DataFrame, world: World) -> DataFrame:
    return lineage.transform(event_frame, lineage.LineageParams(committed=world.committed)).cache()


@pytest.fixture(scope="module")
def gaps(spark: SparkSession, world: World) -> DataFrame:
    return gaps_of(spark, world)


def test_the_verdict_of_a_report_counts_what_is_wrong(
    event_frame: DataFrame, lifecycles: DataFrame, gaps: DataFrame, world: World
) -> None:
    missing = audit.residuals(lifecycles, gaps)
    report = audit.report(audit.transform(lifecycles, missing), missing, gaps, audit.malformed(event_frame))
    unexplained = sum(not explained for *_, explained in world.truth.residual)
    assert report.verdict.startswith(f"residual {unexplained};")
    assert not report.fine
    found = lineage.report(lifecycles)
    assert not found.fine
    assert found.verdict.endswith(f"{len(world.truth.revived)} revived")
    assert not lineage.report(lifecycles.filter("revived AND NOT broken AND state != 'lost'")).fine
    clean = lifecycles.filter("topic = 'orders-clean'")
    assert lineage.report(clean).fine
    lifecycle = lineage.find_lifecycles(clean, "clean-0")[0]
    assert lineage.format_lifecycle(lifecycle).startswith(f"clean-0 in group {lifecycle.grp}: {lifecycle.state}")


def test_each_kind_of_fault_is_a_finding_of_its_job(
    event_frame: DataFrame, lifecycles: DataFrame, world: World
) -> None:
    params = delays.DelayParams(now=ms(NOW_MS), worker=world.committed[NAMES.worker_group])
    found = delays.outcomes(event_frame, params).cache()
    report = delays.report(found, delays.transform(found))
    assert not report.fine
    assert f"{len(world.truth.early)} early, {len(world.truth.never)} never delivered" in report.verdict
    assert f"{len(world.truth.stuck)} stuck" in report.verdict
    skewed = delays.outcomes(
        event_frame, params.model_copy(update={"skew_ms": 500})
    )  # as if the two clocks differed by 500 ms
    assert skewed.filter("early").isEmpty()
    overtaken = {row.coordinates for row in found.filter("overtaken").collect()}
    assert world.truth.passed <= overtaken
    assert f"{len(overtaken)} overtaken" in report.verdict
    assert world.truth.passed <= {row[0] for row in report.tables[1].rows}
    kept = found.filter("real_topic = 'orders-level' AND NOT overtaken")
    assert delays.report(kept, delays.transform(kept)).fine
    causes = failures.transform(event_frame).cache()
    assert {row.fingerprint for row in causes.collect()} == {"no #"}
    assert failures.report(causes).verdict.startswith(f"{world.truth.failures.total():,} failures of")
    strict = keys.transform(lifecycles, keys.KeyParams(orderly=("pay-a",)))
    assert not keys.report(strict).fine
    assert {row.grp for row in strict.filter("violation").collect()} == {"pay-a"}


def test_each_dead_letter_is_planned_once_and_planning_is_repeatable(
    spark: SparkSession, event_frame: DataFrame, world: World
) -> None:
    topics = spark.range(1).selectExpr("'rmq.dlq.pay-a' AS topic", "'topic-id' AS topic_id")
    params = replay.PlanParams(plan_id="monday")
    read = frame(spark, world.log.stored)
    planned = replay.plan(read, event_frame, topics, params).cache()
    rows = planned.collect()
    dead = {pair for pair, state in world.truth.states.items() if state == "dead"} | world.truth.revived
    assert sorted((row.grp, row.msg_id) for row in rows) == sorted(dead)
    assert Counter(row.grp for row in rows) == world.truth.letters
    assert {(row.action, row.target == NAMES.retry(row.grp)) for row in rows} == {("send", True)}
    assert len({row.replay_id for row in rows}) == len(rows)
    again = {row.replay_id for row in replay.plan(read, event_frame, topics, params).collect()}
    assert again == {row.replay_id for row in rows}
    few = replay.PlanParams(plan_id="tuesday", group="pay-a", max_messages=2)
    some = replay.plan(read, event_frame, topics, few).collect()
    assert {row.grp for row in some} == {"pay-a"}
    assert sum(row.action == "send" for row in some) == 2
    assert {row.reason for row in some if row.action == "skip"} <= {"beyond-max"}
    assert not again & {row.replay_id for row in some}
    marked = planned.orderBy("replay_id").limit(2).selectExpr(
        "topic", "partition", "offset", "digest", "'discarded' AS state", "'p' AS settled_by", "stored_at AS settled_at"
    )  # fmt: skip
    rest = replay.plan(read, event_frame, topics, params, settled=marked).collect()
    assert Counter((row.action, row.reason) for row in rest) == {
        ("send", None): len(rows) - 2,
        ("skip", "discarded-by:p"): 2,
    }
    by_others = (
        planned.orderBy("replay_id")
        .limit(1)
        .selectExpr("topic", "partition", "offset", "digest", "'redriven' AS state", "'other' AS settled_by")
    )
    checked = replay.check(planned, frame(spark, []), by_others).cache()
    assert Counter(row.outcome for row in checked.collect()) == {"elsewhere": 1, "missing": len(rows) - 1}
    assert f"{len(rows) - 1} missing" in replay.verify_report(checked, "p").verdict
    assert not replay.verify_report(checked, "p").fine
    other = marked.withColumn("digest", F.lit("0" * 16))  # a recreated topic has other dead letters at the same offsets
    assert {row.action for row in replay.plan(read, event_frame, topics, params, settled=other).collect()} == {"send"}


def test_a_redriven_message_that_failed_again_is_not_reported_as_sent_twice(spark: SparkSession) -> None:
    log = Log(random.Random(0))  # noqa: S311 nothing secret
    failure = hops.Failure("Timeout", "no 1", START_MS)
    first = log.add(hops.source_record(Message("orders", b"x"), NAMES, uniq_key="m", born_ms=START_MS), START_MS)
    out = hops.dead_letter(first, NAMES, group="g", trusted=False, failure=failure, reconsume_times=1)
    letter = log.add(out, START_MS)
    event_frame = events.transform(frame(spark, log.stored))
    topics = spark.range(1).selectExpr("'rmq.dlq.g' AS topic", "'topic-id' AS topic_id")
    params = replay.PlanParams(plan_id="monday")
    planned = replay.plan(frame(spark, log.stored), event_frame, topics, params).cache()
    (row,) = planned.collect()
    again = log.add(hops.redriven(letter, NAMES, replay_id=row.replay_id), START_MS)
    out = hops.retry(
        again, NAMES, LEVELS, group="g", trusted=True, failure=failure, reconsume_times=1,
        level=None, delay_ms=None, lane=0,
    )  # fmt: skip
    waited = log.add(out, START_MS)
    log.add(hops.delivered(waited, decode(waited.headers(), trusted=True), NAMES), START_MS)
    target = [record for record in log.stored if record.topic() == NAMES.retry("g")]
    assert len(target) == 2
    (checked,) = replay.check(planned, frame(spark, target)).collect()
    assert (checked.outcome, checked.times, checked.found_at) == ("there", 1, [again.where])
    planned.unpersist()


def test_the_trend_counts_arrived_and_settled_dead_letters_and_the_hours_left(
    event_frame: DataFrame, world: World
) -> None:
    params = dlq_trend.TrendParams(now=ms(NOW_MS), retention_ms=30 * 86_400_000)
    letters = dlq_trend.letters(event_frame)
    left = dlq_trend.open_letters(letters, params).collect()
    dead = world.truth.letters
    assert {row.grp: row.depth for row in left} == dead
    assert all(29 * 24 - 1 < row.hours_left < 29 * 24 + 4 for row in left)
    days = dlq_trend.transform(letters)
    assert sum(row.arrived for row in days.collect()) == dead.total()
    assert dlq_trend.report(days, dlq_trend.open_letters(letters, params), params).fine
    gone = event_frame.filter("kind = 'dlq'").orderBy("coordinates").limit(3)
    marked = gone.selectExpr(
        "topic", "partition", "offset", "digest", "IF(offset = 0, 'redriven', 'discarded') AS state",
        "'p' AS settled_by", "stored_at AS settled_at",
    )  # fmt: skip
    known = dlq_trend.letters(event_frame, marked)
    assert sum(row.depth for row in dlq_trend.open_letters(known, params).collect()) == dead.total() - 3
    assert sum(row.replayed + row.discarded for row in dlq_trend.transform(known).collect()) == 3
    hours = {NAMES.dead_letter("pay-a"): 25 * 3_600_000, NAMES.dead_letter("pay-b"): -1}
    asked = dlq_trend.TrendParams(now=ms(NOW_MS), retention_of=hours)
    of_group = {row.grp: row for row in dlq_trend.open_letters(letters, asked).collect()}
    assert of_group["pay-a"].hours_left < 5
    assert of_group["pay-b"].hours_left is None
    assert of_group["pay-clean"].hours_left > 29 * 24 - 1  # its retention was not read from the brokers
    report = dlq_trend.report(days, dlq_trend.open_letters(letters, asked), asked)
    assert "1 group loses some" in report.verdict
    assert report.notes == ("the retention of 1 topic is assumed, not read from the brokers",)
    soon = dlq_trend.TrendParams(now=ms(NOW_MS), retention_ms=86_400_000)
    assert not dlq_trend.report(days, dlq_trend.open_letters(letters, soon), soon).fine


def test_fifty_thousand_copies_of_a_message_are_one_lifecycle_computed_in_time(spark: SparkSession) -> None:
    headers = "array(named_struct('key', 'UNIQ_KEY', 'value', CAST('m' AS BINARY)))"
    records = spark.range(50_000).selectExpr(
        "CAST(NULL AS BINARY) AS key", "CAST(NULL AS BINARY) AS value", "'orders' AS topic", "0 AS partition",
        "id AS offset", "timestamp_millis(id) AS timestamp", "1 AS timestampType", f"{headers} AS headers",
    )  # fmt: skip
    (lifecycle,) = lineage.transform(events.transform(records)).select("state", "copies").collect()
    assert (lifecycle.state, lifecycle.copies) == ("open", 49_999)


def test_a_message_without_its_first_delivery_keeps_its_position_in_the_order(spark: SparkSession) -> None:
    made = World(random.Random(0))  # noqa: S311 nothing secret
    made.ordered("o", ["handled", "handled"])  # three messages, at offsets 0 to 2 or slightly higher
    message, at = Message("orders-o", b"4", key="k", delay_level=2), START_MS + 1_000
    waiting = hops.delayed_record(message, NAMES, LEVELS, uniq_key="late", born_ms=at, now_ms=at, lane=0)
    first = made.deliver(made.log.add(waiting, at), straight=True, landed=False)
    failed = hops.retry(
        first, NAMES, LEVELS, group="pay-o", trusted=False, failure=hops.Failure("Timeout", "no", at),
        reconsume_times=1, level=None, delay_ms=None, lane=0,
    )  # fmt: skip
    again = made.deliver(made.log.add(failed, first.at_ms + 1), straight=True)
    assert again.where == f"{NAMES.retry('pay-o')}/0/0"  # would be before the others if it were compared with them
    made.commit()
    event_frame = events.transform(frame(spark, made.log.stored))
    found = lineage.transform(event_frame, lineage.LineageParams(committed=made.committed)).cache()
    assert lineage.find_lifecycles(found.filter("grp = 'pay-o'"), "late")[0].origin == first.where
    (results,) = keys.transform(found, keys.KeyParams(orderly=("pay-o",))).filter("grp = 'pay-o'").collect()
    assert (results.messages, results.failed, results.overtaken, results.violation) == (4, 1, 0, False)
    found.unpersist()


def test_messages_with_unreadable_header_names_are_never_reported_as_lost(spark: SparkSession) -> None:
    """Names with U+FFFD: the shim's records of such messages are malformed here, and counted as malformed."""
    made = World(random.Random(3))  # noqa: S311 nothing secret
    made.history("odd", FATES * 3)
    made.commit()
    for record in made.log.stored:
        record.out.headers.append(("ab\ufffd", b"1"))
    seen = events.transform(frame(spark, made.log.stored)).cache()
    found = lineage.transform(seen, lineage.LineageParams(committed=made.committed))
    missing = audit.residuals(found, gaps_of(spark, made)).cache()
    assert missing.collect() == []
    unread = audit.malformed(seen).cache()
    rows = unread.collect()
    assert {row.reason for row in rows} == {"bad-header-key"}
    assert sum(row.records for row in rows) == sum(record.topic() != "orders-odd" for record in made.log.stored)
    assert not audit.report(audit.transform(found, missing), missing, gaps_of(spark, made), unread).fine
    seen.unpersist()


def test_failures_have_first_and_last_times_samples_and_new_causes(event_frame: DataFrame, world: World) -> None:
    def found(**params: object) -> list[Row]:
        return failures.transform(event_frame, failures.FailureParams.model_validate(params)).collect()

    everything = found(group="pay-a")
    count = sum(count for (group, _), count in world.truth.failures.items() if group == "pay-a")
    assert {row.grp for row in everything} == {"pay-a"}
    assert sum(row.failures for row in everything) == count
    assert not any(row.is_new for row in everything)
    places = {record.where for record in world.log.stored}
    for row in everything:
        assert row.topic == "orders-a"
        assert row.hour <= row.first_seen <= row.last_seen
        assert 1 <= len(row.samples) <= 3
        assert set(row.samples) <= places
    seen = sorted({row.first_seen for row in everything})
    middle = seen[len(seen) // 2].replace(tzinfo=dt.UTC)
    before, after = found(group="pay-a", until=middle), found(group="pay-a", since=middle)
    assert sum(row.failures for row in [*before, *after]) == count
    assert all(row.last_seen.replace(tzinfo=dt.UTC) < middle for row in before)
    known = {(row.fail_class, row.fingerprint) for row in before}
    assert all(row.is_new == ((row.fail_class, row.fingerprint) not in known) for row in after)
    assert all(row.is_new for row in found(group="pay-a", new_since=ms(0)))


@pytest.mark.parametrize(("arrived", "state"), [(False, "retrying"), (True, "acknowledged")])
def test_a_message_that_was_sent_on_waits_until_it_arrives_again(
    spark: SparkSession, arrived: bool, state: str
) -> None:
    """A member that had no listener for it has committed past its retry record."""
    log, group = Log(random.Random(7)), "pay"  # noqa: S311 nothing secret
    first = log.add(hops.source_record(Message("orders", b"x"), NAMES, uniq_key="u", born_ms=START_MS), START_MS)
    out = hops.retry(
        first, NAMES, LEVELS, group=group, trusted=False, failure=hops.Failure("OSError", "down", START_MS),
        reconsume_times=1, level=None, delay_ms=None, lane=0,
    )  # fmt: skip
    waited = [log.add(out, START_MS + 1)]
    came = log.add(hops.delivered(waited[0], decode(out.headers, trusted=True), NAMES), START_MS + 10_000)
    out = hops.sent_on(
        came, decode(came.headers(), trusted=True), NAMES, LEVELS, group=group, delay_ms=10_000, lane=0
    )  # fmt: skip
    waited.append(log.add(out, START_MS + 10_001))
    ends = {TopicPartitionKey(each.topic(), each.partition()): each.offset() + 1 for each in (first, came)}
    relayed = waited if arrived else waited[:1]
    if arrived:
        again = log.add(hops.delivered(waited[1], decode(out.headers, trusted=True), NAMES), START_MS + 20_000)
        ends[TopicPartitionKey(again.topic(), again.partition())] = again.offset() + 1
    committed = {
        group: ends,
        NAMES.worker_group: {TopicPartitionKey(e.topic(), e.partition()): e.offset() + 1 for e in relayed},
    }
    found = lineage.transform(
        events.transform(frame(spark, log.stored)), lineage.LineageParams(committed=committed)
    ).collect()
    assert [(row.grp, row.state, row.attempts, row.copies, row.broken) for row in found] == [
        (group, state, 1, 0, False)
    ]
