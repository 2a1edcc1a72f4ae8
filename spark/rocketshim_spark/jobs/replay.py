"""Replay: send dead letters again by `plan`, `run` and `verify`. Each step can be repeated, or killed at any time.

1. `plan` writes a table for review: one row per dead letter, with its target, its `REPLAY_ID`, its digest and the
   action (`send`, or `skip` with the reason). It writes nothing to Kafka. Ids are made from the plan's name and the
   dead letter's coordinates, so a second plan of the same name has the same ids.
2. `run` records the end offsets of the target topics for `verify`, once per plan and before its first record. Then it
   sends with `rocketshim.admin.redrive.Redriver`, as `dlq apply` does: dead letters and their mark in the
   redrive log in one Kafka transaction. Both commands share the log, so neither sends again what the other one has sent
   or discarded. A run after a killed run continues it, a run after a complete run sends nothing, and a run that starts
   during another run stops that one.
3. `verify` reads the targets from the recorded ends and lists which dead letters are missing, duplicated or altered.

Dead letters are read from the lake, so they can be sent even if retention has deleted them since the landing. Records
are made by `rocketshim_topics.hops.redriven`, as everywhere in rocketshim: they keep their identity, and attempts count
from 0. They go to the retry topic of the group that failed, so only that group sees them. The driver sends, not the
executors: the rate is limited on purpose, and one transactional producer keeps the order of each partition.

Why a dead letter is skipped is decided by the planner of `dlq plan` (`rocketshim_topics.redrive_plan`, with the list of
reasons). Without a connection, a plan does not know which topics exist and which are compacted, so `run` finds the dead
letters that their targets do not take. `beyond-max` means that `max_messages` are planned already.

A replay does not empty the dead-letter topic. `dlq-trend` counts a dead letter as replayed if it has a replay or a
mark.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache, partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.core.user_values import count_text
from rocketshim_spark.errors import LakeError
from rocketshim_spark.redrive_marks import empty_settled, join_settled
from rocketshim_spark.report import MOST_ROWS, Report, Table
from rocketshim_spark.small_frames import small_frame
from rocketshim_topics import TopicNames
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.redrive_plan import DEFAULT_MAX_REPLAYS, Planner, RedriveRules
from rocketshim_topics.wire import MadeRecord, Record, mark_unreadable

__all__ = [
    "PlanParams",
    "as_columns",
    "check",
    "landed_letters",
    "landed_record",
    "plan",
    "plan_report",
    "verify_report",
]

_POSITION: Final = ("topic", "partition", "offset")


class PlanParams(BaseModel):
    """Which dead letters to send, and where.

    Attributes:
        plan_id: name of the plan, part of every replay id; 1 to 100 letters, digits, `.`, `_`, `-`.
        namespace: namespace of the shim's topics.
        group: only dead letters of this consumer group; None: all groups.
        to_source: True: send to the topic of the first delivery, where every group sees it; False: to the group's retry
            topic.
        max_replays: a dead letter that was redriven this often, by any command, is skipped; 1 or more, default 3.
        max_messages: maximum number of dead letters to send; None: no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan_id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    namespace: str = ""
    group: str | None = None
    to_source: bool = False
    max_replays: int = Field(default=DEFAULT_MAX_REPLAYS, ge=1)
    max_messages: int | None = Field(default=None, ge=1)


class _Decision(NamedTuple):
    topic: str
    partition: int
    offset: int
    reason: str | None
    target: str | None


def as_columns(records: DataFrame) -> DataFrame:
    """Select what `landed_record` reads. Two arrays cost less than one of headers (78, not 130 µs a dead letter)."""
    stored_ms = F.unix_millis("timestamp").alias("stored_ms")
    headers = (F.col("headers.key").alias("header_names"), F.col("headers.value").alias("header_values"))
    return records.select(*_POSITION, "key", "value", "timestampType", stored_ms, *headers)


def landed_record(row: Row) -> Record:
    """Return a row of `as_columns` as a record of the runtime."""
    record = MadeRecord(
        str(row.topic),
        int(row.partition),
        int(row.offset),
        key=_bytes(row.key),
        value=_bytes(row.value),
        headers=list(zip(row.header_names or (), map(_bytes, row.header_values or ()), strict=True)),
        # librdkafka's types begin with "not available" = 0, Spark's with "create time" = 0.
        timestamp=(row.timestampType + 1, row.stored_ms),
    )
    if any("\ufffd" in name for name, _ in record.headers()):  # the runtime cannot read such headers
        mark_unreadable(record)
    return record


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def plan(
    records: DataFrame,
    events: DataFrame,
    topics: DataFrame,
    params: PlanParams,
    *,
    chosen: DataFrame | None = None,
    settled: DataFrame | None = None,
    gaps: DataFrame | None = None,
    existing: Container[str] | None = None,
    is_compacted: Callable[[str], bool] = lambda _: False,
) -> DataFrame:
    """Return one row per chosen dead letter, with the action and its reason.

    Spark finds the dead letters and what is known of each; `Planner` decides in the driver, topic by topic.

    Args:
        records: the landed records.
        events: as `rocketshim_spark.events.transform` returns them for these records.
        topics: as `lake.read_topics` returns them; their ids are part of the replay ids.
        params: which dead letters to send, and where.
        chosen: a frame with the `coordinates` of the chosen dead letters; None: all.
        settled: as `rocketshim_spark.redrive_marks.settled` returns it; None: no redrive log was landed.
        gaps: as `lake.read_gaps` returns them; None: nothing was deleted before it was landed.
        existing: the topics that exist; None: not known, so every target may exist.
        is_compacted: as for `Planner`; called once for a topic.

    Returns:
        redrive (id of the plan in the redrive log, a different one for each topic), replay_id, action (`send`, `skip`),
        reason (of a skip), topic, partition, offset, digest, grp, origin_topic, msg_id, key, tag, fail_class,
        fingerprint, replay_count (including this one), value_bytes, value_sha256, stored_at, to_source, target (null:
        skipped), log_end (the end of the redrive log that the plan knows).
    """
    letters = events.filter(F.col("kind") == "dlq")
    if params.group is not None:
        letters = letters.filter(F.col("grp") == params.group)
    letters = letters.withColumn("is_chosen", F.lit(chosen is None))
    if chosen is not None:
        wanted = chosen.select(F.col("coordinates").alias("wanted")).distinct()
        letters = letters.join(wanted, F.col("coordinates") == F.col("wanted"), "left")
        letters = letters.withColumn("is_chosen", F.col("wanted").isNotNull())
    log = _landed_log(records, gaps, params.namespace)
    rows = _candidates(records, events, letters, settled).toLocalIterator()
    decided: list[_Decision] = []
    new_planner = partial(
        Planner,
        rules=RedriveRules(namespace=params.namespace, to_source=params.to_source, max_replays=params.max_replays),
        log=log,
        topics=existing,
        is_compacted=cache(is_compacted),
    )
    for source, of_source in groupby(rows, lambda row: str(row.topic)):
        decided += _decide(new_planner(source), Decoder(TopicNames(params.namespace), source), of_source)
    if params.max_messages is not None:
        decided = list(_limit(decided, params.max_messages))
    schema = "topic string, partition int, offset bigint, reason string, target string"
    decisions = small_frame(events.sparkSession, decided, schema)
    # With the topic's id, because a recreated topic has other dead letters at the same offsets.
    redrive = F.substring(F.sha2(F.concat_ws("|", F.lit(params.plan_id), "topic_id", "topic"), 256), 1, 20)
    ids = F.broadcast(topics.select("topic", "topic_id"))
    return (
        letters.filter("is_chosen")
        .join(decisions, [*_POSITION])
        .join(ids, "topic", "left")
        .select(
            redrive.alias("redrive"),
            F.concat_ws(".", redrive, "partition", "offset").alias("replay_id"),
            F.when(F.col("reason").isNull(), "send").otherwise("skip").alias("action"),
            "reason",
            *(*_POSITION, "digest", "grp", "origin_topic", "msg_id", "key", "tag", "fail_class", "fingerprint"),
            F.try_add(F.coalesce("replay_count", F.lit(0)), F.lit(1)).alias("replay_count"),
            *("value_bytes", "value_sha256", "stored_at"),
            F.lit(params.to_source).alias("to_source"),
            "target",
            F.lit(log.end).cast("bigint").alias("log_end"),
        )
    )


def _landed_log(records: DataFrame, gaps: DataFrame | None, namespace: str) -> RedriveLog:
    """Return where the landed redrive log ends, and what it has lost; marks are matched in `_candidates`."""
    name = TopicNames(namespace).redrive_log
    lost = None
    if gaps is not None:
        lost = gaps.filter(F.col("topic") == name).agg(F.max("gap_to")).collect()[0][0]
    kept = records.filter(F.col("topic") == name)
    left = F.min(F.when(F.col("offset") >= (lost or 0), F.unix_millis("timestamp")))
    last, first_ms = kept.agg(F.max("offset"), left).collect()[0]
    log = RedriveLog(name)
    log.end = 0 if last is None else last + 1
    if lost is not None:
        log.lost_before(first_ms)
        log.end = max(log.end, lost)
    return log


def _candidates(records: DataFrame, events: DataFrame, letters: DataFrame, settled: DataFrame | None) -> DataFrame:
    """Return the records of the dead letters that are chosen, or known to be redriven or discarded, in their order.

    A repeat of the latter is not sent, so they are needed even if they are not chosen. `known` is the reason.
    """
    # With the id, because a topic that was deleted and created again has other dead letters at the same coordinates.
    replayed = (
        events.filter(F.col("kind") == "replay")
        .select(F.col("hop_id").alias("of"), F.col("msg_id").alias("of_id"))
        .distinct()
    )
    known = F.when(F.col("state").isNotNull(), F.concat("state", F.lit("-by:"), "settled_by"))
    facts = (
        join_settled(letters, empty_settled(events.sparkSession) if settled is None else settled)
        .join(replayed, (F.col("coordinates") == F.col("of")) & (F.col("msg_id") == F.col("of_id")), "left")
        .select(*_POSITION, "is_chosen", known.when(F.col("of").isNotNull(), "replayed-already").alias("known"))
        .filter("is_chosen OR known IS NOT NULL")
    )
    return as_columns(records).join(facts, [*_POSITION]).orderBy(*_POSITION)


def _decide(planner: Planner, decoder: Decoder, rows: Iterable[Row]) -> Iterator[_Decision]:
    """Decide about the chosen dead letters of one topic."""
    for row in rows:
        letter = decoder.open(landed_record(row))
        if row.is_chosen:
            planner.add(letter.message, letter.envelope, malformed=letter.malformed, known=row.known)
        else:
            planner.pass_over(letter.message, letter.envelope, known=row.known)
    made = planner.plan(cluster_id="", created_ms=0, choice={})
    source = made.source
    yield from (_Decision(source, each.partition, each.offset, None, each.target) for each in made.letters)
    yield from (_Decision(source, each.partition, each.offset, each.reason, None) for each in made.held_back)


def _limit(decisions: Iterable[_Decision], most: int) -> Iterator[_Decision]:
    """Skip what is beyond the first dead letters to send, in the order of topics and positions."""
    sent = 0
    for each in sorted(decisions, key=lambda each: each[:3]):
        sent += each.reason is None
        is_beyond = each.reason is None and sent > most
        yield each._replace(reason="beyond-max", target=None) if is_beyond else each


def plan_report(planned: DataFrame, name: str) -> Report:
    """Make the report of a plan: dead letters by action, reason, target and cause.

    Repeats are one reason, not one for each dead letter that they repeat.
    """
    fields = ("action", "reason", "target", "fail_class", "fingerprint")
    planned = planned.withColumn("reason", F.regexp_replace("reason", "^repeat-of:.*", "repeat-of"))
    counted = planned.groupBy(*fields).agg(F.count("*").alias("letters")).orderBy(F.desc("letters"), *fields)
    rows = counted.limit(MOST_ROWS).collect()
    kinds = len(rows) if len(rows) < MOST_ROWS else counted.count()
    total, sent = planned.agg(F.count("*"), F.count_if(F.col("action") == "send")).collect()[0]
    return Report(
        job="replay-plan",
        subject=name,
        verdict=f"{count_text(total, 'dead letter')}: {sent:,} to send, {total - sent:,} skipped",
        fine=True,
        tables=(Table.of("what would be done", (*fields, "letters"), rows, kinds),),
        bars=tuple((f"{row.fail_class}: {row.fingerprint}"[:40], row.letters) for row in rows[:20]),
        bars_title="dead letters by cause",
    )


def _redriven(records: DataFrame) -> DataFrame:
    """Return the records with a replay id: replay_id, hop_id, found_at (coordinates), found_sha256."""

    def text(name: str) -> Column:
        named = F.filter("headers", lambda header: header["key"] == name)
        return F.get(named, F.lit(0))["value"].cast("string")

    return records.select(
        text("REPLAY_ID").alias("replay_id"),
        text("HOP_ID").alias("hop_id"),
        F.concat_ws("/", "topic", "partition", "offset").alias("found_at"),
        F.sha2("value", 256).alias("found_sha256"),
    ).filter(F.col("replay_id").isNotNull())


def check(planned: DataFrame, found: DataFrame, settled: DataFrame | None = None) -> DataFrame:
    """Compare the dead letters that a plan sends with the records on their targets.

    Args:
        planned: as `plan` returns it.
        found: the records of the targets after the recorded ends, in Spark's Kafka columns.
        settled: as `rocketshim_spark.redrive_marks.settled` returns it; None: no redrive log was landed.

    Returns:
        replay_id, coordinates, target, outcome (`there`, `missing`, `twice`, `altered`; `elsewhere`: another plan has
        sent or discarded it), times (number of records found), found_at, settled_by.

    Thread-safety: a pure function of the frames.
    """
    # A message that was sent again and failed again lies on its retry topic once more, with its replay id but made from
    # another record.
    seen = (
        _redriven(found)
        .groupBy(F.col("replay_id").alias("seen_id"), F.col("hop_id").alias("made_from"))
        .agg(
            F.count("*").alias("times"),
            F.sort_array(F.collect_list("found_at")).alias("found_at"),
            F.collect_set(F.coalesce("found_sha256", F.lit("-"))).alias("values"),
        )
    )
    if settled is None:
        settled = empty_settled(planned.sparkSession)
    marks = settled.select("topic", "partition", "offset", "digest", "settled_by")
    coordinates = F.concat_ws("/", "topic", "partition", "offset")
    joined = (
        planned.filter("action = 'send'")
        .join(seen, (F.col("replay_id") == F.col("seen_id")) & (F.col("made_from") == coordinates), "left")
        .join(marks, ["topic", "partition", "offset", "digest"], "left")
    )
    same = F.col("values") == F.array(F.coalesce("value_sha256", F.lit("-")))
    outcome = (
        F.when(F.col("times").isNull() & (F.col("settled_by") != F.col("redrive")), "elsewhere")
        .when(F.col("times").isNull(), "missing")
        .when(~same, "altered")
        .when(F.col("times") > 1, "twice")
        .otherwise("there")
    )
    return joined.select(
        "replay_id",
        coordinates.alias("coordinates"),
        "target",
        outcome.alias("outcome"),
        F.coalesce("times", F.lit(0)).alias("times"),
        "found_at",
        "settled_by",
    )


def verify_report(checked: DataFrame, name: str) -> Report:
    """Make the report. Findings, which come first: missing and altered records.

    Duplicates, and records of other plans, are listed too.
    """
    sums = {row.outcome: row.letters for row in checked.groupBy("outcome").agg(F.count("*").alias("letters")).collect()}
    is_finding = F.col("outcome").isin("missing", "altered")
    listed = checked.filter("outcome <> 'there'").orderBy(F.desc(is_finding), "outcome", "coordinates")
    bad = listed.limit(MOST_ROWS).collect()
    total = sum(count for outcome, count in sums.items() if outcome != "there")
    fields = ("coordinates", "target", "outcome", "times", "found_at", "settled_by")
    return Report(
        job="replay-verify",
        subject=name,
        verdict=(
            f"{sum(sums.values()):,} planned: {sums.get('there', 0):,} there, {sums.get('missing', 0):,} missing, "
            f"{sums.get('twice', 0):,} twice, {sums.get('altered', 0):,} altered, "
            f"{sums.get('elsewhere', 0):,} by others"
        ),
        fine=not sums.get("missing") and not sums.get("altered"),
        tables=(Table.of("what is not as planned", fields, bad, total),),
        bars=tuple(sums.items()),
    )


def landed_letters(planned: DataFrame, records: DataFrame) -> DataFrame:
    """Return the landed records of the dead letters to send, in the order of their partitions.

    Args:
        planned: as `plan` returns it.
        records: the landed records.

    Raises:
        LakeError: a planned dead letter is not among the landed records.
    """
    position = [*_POSITION]
    todo = planned.filter("action = 'send'").select(*position)
    missing = todo.join(records, position, "left_anti").count()
    if missing:
        raise LakeError(
            f"{missing} planned dead letters are not in the lake. Nothing was sent. If the lake was landed again from "
            "scratch since the plan was made, make the plan again"
        )
    return as_columns(todo.join(records, position)).orderBy(*position)
