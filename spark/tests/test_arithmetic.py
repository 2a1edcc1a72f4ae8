"""The numbers of each job on a few rows, so few that a reader can count them."""

import datetime as dt
import random
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rocketshim.admin.redrive import redriven_parked
from rocketshim_spark.jobs import audit, delays, dlq_trend, failures, keys, lineage, replay
from rocketshim_spark.small_frames import small_frame
from rocketshim_topics import Message, decode, hops
from rocketshim_topics.coordinates import TopicPartitionKey

from .histories import GAPS, LEVELS, NAMES, NOW_MS, START_MS, Log, Stored, World, events_of, frame, ms

HOUR_MS = 3_600_000


def test_lateness_is_grouped_by_level_and_by_the_hour_of_the_due_time(spark: SparkSession) -> None:
    rows: list[tuple[object, ...]] = [
        (3, ms(START_MS + number), "delivered", False, False, 0, number, False) for number in range(1, 101)
    ]
    rows += [
        (3, ms(START_MS + HOUR_MS), "delivered", True, False, 2, -7, False),
        (None, ms(START_MS), "stuck", False, False, 0, None, True),
    ]
    schema = (
        "delay_level int, due_at timestamp, outcome string, early boolean, overtaken boolean, repeats int, "
        "late_ms bigint, redriven boolean"
    )
    waited = small_frame(spark, rows, schema)
    summed = delays.transform(waited)
    found = {(row.delay_level, row.hour.hour): row for row in summed.collect()}
    assert set(found) == {(3, 12), (3, 13), (None, 12)}
    first, second = found[3, 12], found[3, 13]
    assert (first.delivered, first.late_p50_ms, first.late_p99_ms, first.late_max_ms) == (100, 50, 99, 100)
    assert (second.early, second.repeats, second.late_max_ms) == (1, 2, -7)
    assert (found[None, 12].stuck, found[None, 12].late_max_ms) == (1, None)
    assert [row.redriven for row in (first, second, found[None, 12])] == [0, 0, 1]


@pytest.mark.parametrize(
    "bad", [{"early": True}, {"overtaken": True}, {"outcome": "never"}, {"outcome": "stuck"}, {"outcome": "parked"}]
)
def test_each_kind_of_delay_fault_is_a_finding(spark: SparkSession, bad: dict[str, object]) -> None:
    names = ("coordinates", "msg_id", "grp", "real_topic", "delay_level", "due_at", "outcome", "early", "overtaken")
    row = dict.fromkeys(names, None) | {"outcome": "delivered", "early": False, "overtaken": False, "due_at": ms(0)}
    schema = (
        "coordinates string, msg_id string, grp string, real_topic string, delay_level int, due_at timestamp, "
        "outcome string, early boolean, overtaken boolean, repeats int, late_ms bigint, redriven boolean"
    )
    for wrong, fine in (({}, True), (bad, False)):
        found = small_frame(spark, [(*(row | wrong).values(), 0, 1, False)], schema)
        assert delays.report(found, delays.transform(found)).fine is fine


@pytest.mark.parametrize("by_earlier_version", [False, True])
def test_a_parked_message_that_was_sent_again_is_not_parked_and_not_late(
    spark: SparkSession, *, by_earlier_version: bool
) -> None:
    """Earlier versions sent it with the due time 0, which was a lateness of 56 years."""
    log = Log(random.Random(0))  # noqa: S311 nothing secret
    message = Message("orders", b"", key="k", delay_level=1)
    out = hops.delayed_record(message, NAMES, LEVELS, uniq_key="m", born_ms=START_MS, now_ms=START_MS, lane=0)
    waited = log.add(out, START_MS)
    parked = log.add(hops.parked(waited, NAMES, "target-missing"), START_MS + 10_000)
    again = redriven_parked(parked, NAMES, "plan.0.0")
    if by_earlier_version:
        kept = [(name, value) for name, value in again.headers if name not in {"PARK_FROM", "REPLAY_ID"}]
        again = replace(again, headers=[*((n, b"0" if n == "DELIVER_AT_MS" else v) for n, v in kept)])
    a_day_later = START_MS + 86_400_000
    second = log.add(again, a_day_later)
    delivered = log.add(hops.delivered(second, decode(second.headers(), trusted=True), NAMES), a_day_later + 20)
    event_frame = events_of(spark, log.stored)
    found = delays.outcomes(event_frame, delays.DelayParams(now=ms(a_day_later + 1_000))).orderBy("stored_at").collect()
    assert [(row.outcome, row.redriven, row.late_ms, row.early) for row in found] == [
        ("hopped", False, None, False),
        ("delivered", True, 20, False),
    ]
    committed = {"g": {TopicPartitionKey("orders", 0): delivered.offset() + 1}}
    (lifecycle,) = lineage.transform(event_frame, lineage.LineageParams(committed=committed)).collect()
    assert (lifecycle.state, lifecycle.copies) == ("acknowledged", 0)


def test_a_delivery_is_early_only_beyond_the_skew(spark: SparkSession) -> None:
    log = Log(random.Random(0))  # noqa: S311 nothing secret
    places = []
    for late in (-5, -4, 0):
        message = Message("orders", b"", key="k", delay_level=1)
        out = hops.delayed_record(
            message, NAMES, LEVELS, uniq_key=f"m{late}", born_ms=START_MS, now_ms=START_MS, lane=0
        )
        waited = log.add(out, START_MS)
        places.append(waited)
        log.add(hops.delivered(waited, decode(waited.headers(), trusted=True), NAMES), START_MS + 1_000 + late)
    event_frame = events_of(spark, log.stored)
    params = delays.DelayParams(now=ms(NOW_MS), skew_ms=4)
    assert [row.early for row in delays.outcomes(event_frame, params).orderBy("late_ms").collect()] == [
        True,
        False,
        False,
    ]
    for offset, outcome in ((places[-1].at, "waiting"), (places[-1].at + 1, "never")):
        worker = {TopicPartitionKey(NAMES.schedule, places[-1].number): offset}
        undelivered = event_frame.filter("kind = 'schedule'").orderBy("offset")
        params = delays.DelayParams(now=ms(START_MS), worker=worker)
        last = delays.outcomes(undelivered, params).orderBy("coordinates").collect()[-1]
        assert last.outcome == outcome
    for now, outcome in ((61_000, "waiting"), (61_001, "stuck")):  # due a second later, grace 60 s
        found = delays.outcomes(event_frame.filter("kind = 'schedule'"), delays.DelayParams(now=ms(START_MS + now)))
        assert {row.outcome for row in found.collect()} == {outcome}


def lifecycles(spark: SparkSession, *rows: tuple[str, str, int, int, int, int, int]) -> DataFrame:
    """Lifecycles of (key, state, attempts, offset, began, last, partition), with the columns that `keys` reads."""
    table = small_frame(
        spark,
        [("g", "orders", key, state, attempts, ms(last), f"orders/{partition}/{offset}", ms(began))
         for key, state, attempts, offset, began, last, partition in rows],
        "grp string, topic string, key string, state string, attempts int, last_at timestamp, origin string, "
        "first_sent timestamp",
    )  # fmt: skip
    each = "transform(sequence(0, attempts), n -> named_struct('attempt', n, 'step', 2, 'at', first_sent))"
    return table.withColumns({"key": F.col("key").cast("binary"), "history": F.expr(each)})


def test_a_key_is_poison_if_enough_and_at_least_half_of_its_messages_failed(spark: SparkSession) -> None:
    def of(key: str, failed: int, fine: int) -> list[tuple[str, str, int, int, int, int, int]]:
        return [
            (key, "acknowledged", int(number < failed), number, number, number, 0) for number in range(failed + fine)
        ]

    found = keys.transform(lifecycles(spark, *of("a", 3, 3), *of("b", 3, 4), *of("c", 2, 0), *of("d", 0, 9))).collect()
    assert {bytes(row.key): row.poison for row in found} == {b"a": True, b"b": False, b"c": False, b"d": False}
    assert {bytes(row.key): row.share_of_all for row in found} == {b"a": 0.375, b"b": 0.375, b"c": 0.25, b"d": 0.0}
    assert {bytes(row.key): round(row.failed_share, 2) for row in found} == {b"a": 0.5, b"b": 0.43, b"c": 1, b"d": 0}


def test_blocked_time_and_consecutive_failures_count_failed_messages_per_partition(spark: SparkSession) -> None:
    rows = lifecycles(
        spark,
        ("a", "acknowledged", 1, 0, 0, 30, 0),
        ("a", "dead", 4, 1, 10, 50, 0),
        ("a", "acknowledged", 0, 2, 20, 25, 0),
        ("a", "retrying", 2, 3, 25, 26, 0),
        ("a", "acknowledged", 1, 0, 0, 5, 1),
        ("a", "acknowledged", 0, 1, 5, 5, 1),
    )
    (row,) = keys.transform(rows).collect()
    assert (row.messages, row.failed, row.dead, row.most_attempts, row.consecutive) == (6, 4, 1, 4, 2)
    assert row.blocked_ms == 30 + 40 + 1 + 5
    # The two before the handled message; not those after it, nor the one that ended when the next one was delivered.
    assert row.overtaken == 2
    assert keys.report(keys.transform(rows, keys.KeyParams(min_failures=5))).fine
    assert not keys.report(keys.transform(rows, keys.KeyParams(min_failures=4))).fine


def test_failures_are_counted_by_attempt_and_replay_in_the_hour_of_the_failure(
    spark: SparkSession,
) -> None:
    world = World(random.Random(5))  # noqa: S311 nothing secret
    world.history("a", ["redriven-dead", "redriven", "dead"])
    world.commit()
    event_frame = events_of(spark, world.log.stored)
    found = failures.transform(event_frame).collect()
    assert sum(row.failures for row in found) == world.truth.failures.total()
    assert sum(row.dead for row in found) == world.truth.letters.total() == 4
    one = failures.attempts(event_frame)
    assert one.select("grp", "msg_id", "attempt", "replay_id").distinct().count() == one.count()
    seen_at = {row.failed_at for row in one.collect()}
    assert {row.hour for row in found} == {at.replace(minute=0, second=0, microsecond=0) for at in seen_at}
    by_cause = {(row.grp, row.fail_class, row.hour): row.messages for row in found}
    counted: dict[tuple[str, str, dt.datetime], set[str]] = {}
    for row in one.collect():
        place = (row.grp, row.fail_class, row.failed_at.replace(minute=0, second=0, microsecond=0))
        counted.setdefault(place, set()).add(row.msg_id)
    assert by_cause == {place: len(messages) for place, messages in counted.items()}
    first = min(seen_at).replace(tzinfo=dt.UTC)
    assert any(row.is_new for row in failures.transform(event_frame, failures.FailureParams(new_since=first)).collect())
    new = failures.transform(event_frame, failures.FailureParams(new_since=first)).filter("dead = 0")
    assert new.isEmpty() or not failures.report(new).fine


def test_redriven_dead_letters_are_not_open_unless_they_became_dead_again(spark: SparkSession) -> None:
    world = World(random.Random(6))  # noqa: S311 nothing secret
    world.history("a", ["redriven-dead", "redriven", "dead"])
    world.history("b", ["redriven-dead"])
    world.commit()
    stored = world.log.stored
    stored += [world.log.repeat(each) for each in list(stored) if each.topic() == NAMES.dead_letter("pay-a")][:1]
    letters = dlq_trend.letters(events_of(spark, stored)).cache()
    assert letters.count() == world.truth.letters.total() == 6
    params = dlq_trend.TrendParams(now=ms(NOW_MS))
    left = {row.grp: row for row in dlq_trend.open_letters(letters, params).collect()}
    assert {group: row.depth for group, row in left.items()} == {"pay-a": 2, "pay-b": 1}
    of_a = [row.arrived_at for row in letters.filter("grp = 'pay-a' AND replayed_at IS NULL").collect()]
    assert left["pay-a"].oldest_at == min(of_a)
    age = (ms(NOW_MS).replace(tzinfo=None) - min(of_a)).total_seconds() / 3_600
    assert left["pay-a"].oldest_age_hours == pytest.approx(age)
    assert left["pay-a"].hours_left == pytest.approx(30 * 24 - age)
    days = dlq_trend.transform(letters).orderBy("grp", "day").collect()
    assert {row.grp: row.depth for row in days} == {"pay-a": 2, "pay-b": 1}  # the last day of each
    assert sum(row.replayed for row in days) == world.truth.replayed == 3
    letters.unpersist()


def test_a_message_that_dies_again_after_a_redrive_to_its_source_topic_is_open_and_failed_twice(
    spark: SparkSession,
) -> None:
    log = Log(random.Random(0))  # noqa: S311 nothing secret

    def die(record: Stored) -> Stored:
        failure = hops.Failure("Timeout", "no 1", record.at_ms + 5)
        out = hops.dead_letter(record, NAMES, group="g", trusted=False, failure=failure, reconsume_times=1)
        return log.add(out, record.at_ms + 6)

    message = Message("orders", b"", key="k")
    dead = die(log.add(hops.source_record(message, NAMES, uniq_key="m", born_ms=START_MS), START_MS))
    die(log.add(hops.redriven(dead, NAMES, replay_id="p.0.0", to_source=True), dead.at_ms + 1_000))
    event_frame = events_of(spark, log.stored)
    (left,) = dlq_trend.open_letters(dlq_trend.letters(event_frame), dlq_trend.TrendParams(now=ms(NOW_MS))).collect()
    assert left.depth == 1
    assert failures.report(failures.transform(event_frame)).verdict.startswith("2 failures of 1 cause: 2 ended dead")


def test_a_group_without_a_position_on_the_topic_misses_no_first_delivery(spark: SparkSession) -> None:
    world = World(random.Random(7))  # noqa: S311 nothing secret
    world.history("a", ["retried", "dead", "retrying", "redriven", "missing-attempt"] * 3)
    world.commit()
    del world.committed["pay-a"]  # its positions have expired, or the landing recorded those of another group only
    event_frame = events_of(spark, world.log.stored)
    found = lineage.transform(event_frame, lineage.LineageParams(committed=world.committed))
    missing = audit.residuals(found, small_frame(spark, [], GAPS)).collect()
    planted = {(uid, reason) for _, uid, reason, _ in world.truth.residual}
    assert {(row.msg_id, row.reason) for row in missing} == planted
    assert len(planted) == 3


def test_a_message_that_was_sent_and_failed_during_the_landing_misses_no_first_delivery(spark: SparkSession) -> None:
    log = Log(random.Random(0))  # noqa: S311 nothing secret
    for at, uid in ((START_MS, "lost"), (NOW_MS, "during")):
        message = Message("orders", b"", key="k")
        first = log.add(hops.source_record(message, NAMES, uniq_key=uid, born_ms=at), at, landed=False)
        failure = hops.Failure("Timeout", "no 1", at + 1)
        out = hops.retry(
            first, NAMES, LEVELS, group="g", trusted=False, failure=failure, reconsume_times=1,
            level=None, delay_ms=None, lane=0,
        )  # fmt: skip
        log.add(out, at + 1)
    committed = {"g": {TopicPartitionKey("orders", 0): 0}}
    event_frame = events_of(spark, log.stored)

    def missing(taken_at_ms: int) -> list[str]:
        params = lineage.LineageParams(committed=committed, taken_at=ms(taken_at_ms))
        found = audit.residuals(lineage.transform(event_frame, params), small_frame(spark, [], GAPS))
        return sorted(row.msg_id for row in found.collect())

    assert missing(NOW_MS) == ["lost"]
    assert missing(NOW_MS + 2) == ["during", "lost"]  # a later landing would have brought it


def test_a_redrive_to_a_topic_that_was_not_landed_misses_no_attempt(spark: SparkSession) -> None:
    log = Log(random.Random(0))  # noqa: S311 nothing secret
    failure = hops.Failure("Timeout", "no 1", START_MS)
    out = hops.source_record(Message("orders", b"", key="k"), NAMES, uniq_key="m", born_ms=START_MS)
    first = log.add(out, START_MS, landed=False)
    dead = log.add(
        hops.dead_letter(first, NAMES, group="g", trusted=False, failure=failure, reconsume_times=1), START_MS
    )
    again = log.add(hops.redriven(dead, NAMES, replay_id="p.0.0", to_source=True), START_MS, landed=False)
    out = hops.retry(
        again, NAMES, LEVELS, group="g", trusted=False, failure=failure, reconsume_times=1,
        level=None, delay_ms=None, lane=0,
    )  # fmt: skip
    log.add(out, START_MS)
    event_frame = events_of(spark, log.stored)
    params = lineage.LineageParams(landed=frozenset({NAMES.schedule, dead.topic()}))
    (found,) = lineage.transform(event_frame, params).collect()
    assert (found.state, found.rooted, found.broken) == ("retrying", True, False)


def test_a_message_that_another_group_sent_again_to_all_is_pending_and_not_retrying(spark: SparkSession) -> None:
    log = Log(random.Random(0))  # noqa: S311 nothing secret
    first = log.add(
        hops.source_record(Message("orders", b"", key="k"), NAMES, uniq_key="m", born_ms=START_MS), START_MS
    )
    failure = hops.Failure("Timeout", "no 1", START_MS)
    out = hops.dead_letter(first, NAMES, group="pay", trusted=False, failure=failure, reconsume_times=1)
    dead = log.add(out, START_MS + 1)
    log.add(hops.redriven(dead, NAMES, replay_id="p.0.0", to_source=True), START_MS + 2)
    committed = {group: {TopicPartitionKey("orders", 0): first.at + 1} for group in ("pay", "mail")}
    found = lineage.transform(events_of(spark, log.stored), lineage.LineageParams(committed=committed)).collect()
    assert {row.grp: row.state for row in found} == {"pay": "retrying", "mail": "pending"}


def test_a_dead_letter_of_a_recreated_topic_is_open_although_one_was_sent_again_from_its_coordinates(
    spark: SparkSession,
) -> None:
    log = Log(random.Random(0))  # noqa: S311 nothing secret
    failure = hops.Failure("Timeout", "no 1", START_MS)
    for uid in ("old", "new"):
        first = log.add(
            hops.source_record(Message("orders", b"", key="k"), NAMES, uniq_key=uid, born_ms=START_MS), START_MS
        )
        out = hops.dead_letter(first, NAMES, group="g", trusted=False, failure=failure, reconsume_times=1)
        letter = Stored(out, 0, 0, START_MS + 1)
        if uid == "old":
            log.add(hops.redriven(letter, NAMES, replay_id="p.0.0"), START_MS + 2)
    log.stored.append(letter)  # the topic of the old one was deleted
    event_frame = events_of(spark, log.stored)
    (left,) = dlq_trend.open_letters(dlq_trend.letters(event_frame), dlq_trend.TrendParams(now=ms(NOW_MS))).collect()
    assert (left.depth, left.oldest) == (1, letter.where)
    topics = small_frame(spark, [(letter.topic(), "id")], "topic string, topic_id string")
    params = replay.PlanParams(plan_id="p")
    (row,) = replay.plan(frame(spark, log.stored), event_frame, topics, params).collect()
    assert (row.action, row.msg_id) == ("send", "new")


def test_only_lost_retries_are_missed_of_a_topic_that_was_not_landed(spark: SparkSession) -> None:
    world = World(random.Random(7))  # noqa: S311 nothing secret
    world.history("a", ["acknowledged", "retried", "dead", "retrying", "lost-delayed", "lost-retry"] * 4)
    world.commit()
    landed = frozenset(record.topic() for record in world.log.stored) - {"orders-a"}
    committed = {
        group: {key: offset for key, offset in offsets.items() if key.topic in landed}
        for group, offsets in world.committed.items()
    }
    event_frame = events_of(spark, [each for each in world.log.stored if each.topic() in landed])
    params = lineage.LineageParams(committed=committed, landed=landed)
    found = lineage.transform(event_frame, params).cache()
    lost = {uid for _, uid, reason, _ in world.truth.residual if reason == "lost" and int(uid[2:]) % 6 == 5}
    missing = audit.residuals(found, small_frame(spark, [], GAPS)).collect()
    assert {(row.msg_id, row.reason) for row in missing} == {(uid, "lost") for uid in lost}
    assert f"{len(lost)} lost, 0 broken" in lineage.report(found).verdict
    waited = delays.DelayParams(now=ms(NOW_MS), worker=committed[NAMES.worker_group], landed=landed)
    outcomes = delays.outcomes(event_frame, waited)
    assert {row.msg_id for row in outcomes.filter("outcome = 'never'").collect()} == lost
    found.unpersist()


def test_a_dead_letter_that_was_replayed_and_discarded_is_counted_once(spark: SparkSession) -> None:
    row = ("g", "rmq.dlq.g", ms(0), ms(1), ms(2), "rmq.dlq.g/0/0")
    schema = (
        "grp string, topic string, arrived_at timestamp, replayed_at timestamp, discarded_at timestamp, "
        "coordinates string"
    )
    (day,) = dlq_trend.transform(small_frame(spark, [row, (*row[:3], None, None, "x")], schema)).collect()
    assert (day.arrived, day.replayed, day.discarded, day.depth) == (2, 1, 0, 1)


@pytest.mark.parametrize(
    ("parked", "lost", "gap", "unread", "fine"),
    [
        (0, False, False, False, True),
        (1, False, False, False, False),
        (0, True, False, False, False),
        (0, False, True, False, False),
        (0, False, False, True, False),
    ],
)
def test_an_audit_is_fine_only_without_findings(
    spark: SparkSession, *, parked: int, lost: bool, gap: bool, unread: bool, fine: bool
) -> None:
    states = ", ".join(f"{name} bigint" for name in lineage.STATES)
    row = ("orders", "g", 3, *(parked if name == "parked" else 0 for name in lineage.STATES), 0, int(lost), 0)
    account = small_frame(
        spark, [row], f"topic string, grp string, sent bigint, {states}, copies bigint, residual bigint, expired bigint"
    )
    missing = small_frame(
        spark, [("orders", "g", "m", "lost", False, "lost", "orders/0/1", ms(0))] if lost else [],
        "topic string, grp string, msg_id string, reason string, explained boolean, state string, origin string, "
        "last_at timestamp",
    )  # fmt: skip
    gaps = small_frame(spark, [(ms(0), "orders", "id", 0, 5, 8, "expired")] if gap else [], GAPS)
    broken = small_frame(
        spark, [(f"rmq.dlq.g{number}", "bad-header-key", 2, ms(0), "rmq.dlq.g/0/1") for number in range(60 * unread)],
        "topic string, reason string, records bigint, first_at timestamp, sample string",
    )  # fmt: skip
    report = audit.report(account, missing, gaps, broken)
    assert report.fine is fine
    assert report.verdict == (
        f"residual {int(lost)}; {parked} parked; {120 * unread} malformed; "
        f"at most {3 * gap} deleted before they were landed"
    )


def test_a_missing_record_is_explained_only_by_a_gap_that_may_have_held_it(spark: SparkSession) -> None:
    schema = (
        "grp string, msg_id string, topic string, state string, origin string, attempts int, rooted boolean, "
        "broken boolean, copies int, first_sent timestamp, last_at timestamp"
    )
    rows = [
        ("g", "before", "orders", "dead", "orders/0/4", 1, False, False, 0, ms(1), ms(2)),
        ("g", "first", "orders", "dead", "orders/0/5", 1, False, False, 0, ms(1), ms(2)),
        ("g", "last", "orders", "dead", "orders/0/7", 1, False, False, 0, ms(1), ms(2)),
        ("g", "behind", "orders", "dead", "orders/0/8", 1, False, False, 0, ms(1), ms(2)),
        ("g", "partition", "orders", "dead", "orders/1/5", 1, False, False, 0, ms(1), ms(2)),
        ("g", "broken", "orders", "dead", "orders/0/1", 2, True, True, 0, ms(1), ms(2)),
        ("g", "lost-first", "orders", "lost", None, 0, True, False, 0, ms(1), ms(2)),
        ("g", "lost-retry", "orders", "lost", "orders/0/2", 1, False, False, 0, ms(1), ms(2)),
        (None, "other", "mails", "lost", None, 0, True, False, 0, ms(1), ms(2)),
        ("g", "fine", "orders", "acknowledged", "orders/0/3", 0, True, False, 3, ms(1), ms(2)),
    ]
    named = "lost-first"
    kind = F.when(F.col("msg_id") == named, "timer").otherwise("source")
    lived = small_frame(spark, rows, schema).withColumn("history", F.array(F.struct(kind.alias("kind"))))

    def explained(*gaps: tuple[str, int, int], found_at: int = 2) -> set[str]:
        noted = [(ms(found_at), topic, "id", 0, low, high, "expired") for topic, low, high in gaps]
        found = audit.residuals(lived, small_frame(spark, noted, GAPS)).cache()
        assert sorted(row.msg_id for row in found.collect()) == sorted(row[1] for row in rows[:-1])
        assert {row.reason for row in found.filter("state = 'lost'").collect()} == {"lost"}
        return {row.msg_id for row in found.filter("explained").collect()}

    assert explained() == set()
    twice = ("orders", 5, 8), ("orders", 5, 8)  # two landings at the same time may both have recorded it
    assert explained(*twice) == {"first", "last", "lost-first"}
    assert explained(("rmq.retry.g", 0, 1)) == {"broken", "lost-retry"}
    assert explained(("SCHEDULE_TOPIC_XXXX", 0, 1)) == {"broken"}
    # A gap that was found before a message waited for its delivery, or was sent, does not contain what is missing.
    assert explained(*twice, found_at=1) == {"first", "last"}
    assert explained(("rmq.retry.g", 0, 1), found_at=1) == {"broken"}
    assert explained(("rmq.retry.g", 0, 1), found_at=0) == set()
    assert explained(("rmq.timers", 0, 1)) == {named}
    listed = audit.residuals(lived, small_frame(spark, [], GAPS))
    rows_with_history = lived.withColumn("history", lived.msg_id)
    account = {row.topic: row for row in audit.transform(rows_with_history, listed).collect()}
    assert (account["orders"].sent, account["orders"].residual, account["orders"].copies) == (9, 8, 3)
    assert (account["mails"].sent, account["mails"].lost, account["mails"].residual) == (1, 1, 1)
