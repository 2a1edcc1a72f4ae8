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

Why a dead letter is skipped (`reason`; cases that `rocketshim_topics.redrive_plan` has too have the same names):

========================================  ============================================================================
`redriven-by:<id>`, `discarded-by:<id>`   the landed redrive log has a mark of it
`replayed-already`                        a record with its id was made from it, but the log has no mark of it
`malformed:<reason>`                      it breaks the wire format
`replayed-too-often`                      it was redriven `max_replays` times already
`by-reference`                            it has no value, only a reference to one
`missing-header:<name>`, `bad-name:…`     its headers do not name its target
`repeat-of:<partition>/<offset>`          another dead letter of the same attempt of the same delivery: only one is
                                          sent. If one of them was sent or discarded before, chosen or not, it is the
                                          one that counts
`beyond-max`                              `max_messages` are planned already
========================================  ============================================================================

A replay does not empty the dead-letter topic. `dlq-trend` counts a dead letter as replayed if it has a replay or a
mark.
"""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim_spark.errors import LakeError
from rocketshim_spark.redrive_marks import empty_settled, join_settled
from rocketshim_spark.report import Report, Table
from rocketshim_spark.small_frames import small_frame
from rocketshim_topics import TopicNames, hops
from rocketshim_topics.errors import ConfigError
from rocketshim_topics.redrive_plan import DEFAULT_MAX_REPLAYS

__all__ = [
    "PlanParams",
    "check",
    "landed_letters",
    "named_targets",
    "plan",
    "plan_report",
    "verify_report",
]

_LISTED: Final = 50
_LISTED_CAUSES: Final = 1_000


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


def named_targets(events: DataFrame, params: PlanParams) -> DataFrame:
    """Return the target topic for each group or topic name in the dead letters; `TopicNames` computes it on the driver.

    Args:
        events: as `rocketshim_spark.events.transform` returns them; this function runs a Spark job on them.
        params: which dead letters to send, and where.

    Returns:
        named, target (null: not a legal name).
    """
    names = TopicNames(params.namespace)
    found = (
        _dead_letters(events, params).select(_named_by(params)).distinct().filter(F.col(_named_by(params)).isNotNull())
    )
    rows: list[tuple[str, str | None]] = []
    for (value,) in found.collect():
        try:
            rows.append((value, names.physical(value) if params.to_source else names.retry(value)))
        except ConfigError:
            rows.append((value, None))
    return small_frame(events.sparkSession, rows, "named string, target string")


def plan(
    events: DataFrame,
    topics: DataFrame,
    named: DataFrame,
    params: PlanParams,
    *,
    chosen: DataFrame | None = None,
    settled: DataFrame | None = None,
) -> DataFrame:
    """Return one row per chosen dead letter, with the action and its reason.

    Args:
        events: as `rocketshim_spark.events.transform` returns them.
        topics: as `lake.read_topics` returns them; their ids are part of the replay ids.
        named: as `named_targets` returns it for these events.
        params: which dead letters to send, and where.
        chosen: a frame with the `coordinates` of the chosen dead letters; None: all.
        settled: as `rocketshim_spark.redrive_marks.settled` returns it; None: no redrive log was landed.

    Returns:
        redrive (id of the plan in the redrive log, a different one for each topic), replay_id, action (`send`, `skip`),
        reason (of a skip), topic, partition, offset, digest, grp, origin_topic, msg_id, key, tag, fail_class,
        fingerprint, replay_count (including this one), value_bytes, value_sha256, stored_at, to_source, target (null:
        skipped).

    Thread-safety: a pure function of the frames.
    """
    letters = _dead_letters(events, params).withColumn("chosen", F.lit(chosen is None))
    if chosen is not None:  # a chosen one may be the repeat of one that is not chosen
        wanted = chosen.select(F.col("coordinates").alias("wanted")).distinct()
        letters = letters.join(wanted, F.col("coordinates") == F.col("wanted"), "left")
        letters = letters.withColumn("chosen", F.col("wanted").isNotNull())
    # With the id, because a topic that was deleted and created again has other dead letters at the same coordinates.
    replayed = (
        events.filter(F.col("kind") == "replay")
        .select(F.col("hop_id").alias("of"), F.col("msg_id").alias("of_id"))
        .distinct()
    )
    ids = F.broadcast(topics.select("topic", "topic_id"))
    if settled is None:
        settled = empty_settled(events.sparkSession)
    name = _named_by(params)
    joined = (
        join_settled(letters, settled)
        .join(replayed, (F.col("coordinates") == F.col("of")) & (F.col("msg_id") == F.col("of_id")), "left")
        .join(ids, "topic", "left")
        .join(F.broadcast(named), F.col(name) == F.col("named"), "left")
    )
    count = F.coalesce("replay_count", F.lit(0))
    header = "RETRY_TOPIC" if params.to_source else "CONSUMER_GROUP"
    # A name that is not UTF-8 may look legal here, but sending its dead letter would fail.
    no_text = F.col("undecodable") & F.col(name).contains("\ufffd")
    reason = (
        F.when(F.col("state").isNotNull(), F.concat("state", F.lit("-by:"), "settled_by"))
        .when(F.col("decode_error").isNotNull(), F.concat(F.lit("malformed:"), F.col("decode_error")))
        .when(F.col("of").isNotNull(), "replayed-already")
        .when(count >= params.max_replays, "replayed-too-often")
        .when(F.col("value_sha256").isNull() & F.col("fail_text").rlike(rf"\A(?:{hops.BY_REFERENCE})"), "by-reference")
        .when(F.col(name).isNull(), f"missing-header:{header}")
        .when(F.col("target").isNull() | no_text, f"bad-name:{header}")
    )
    position = F.concat_ws("/", "partition", "offset")
    joined = joined.withColumns({"reason": reason, "position": position})
    # Of several dead letters of one attempt, a settled one counts, or else the first that can be sent.
    rank = F.when(F.col("state").isNotNull() | F.col("of").isNotNull(), 0)
    rank = rank.when(F.col("chosen") & F.col("reason").isNull(), 1).otherwise(2)
    once = ("topic", "grp", "msg_id", F.coalesce("origin_id", "coordinates"), "attempt", "replay_id")
    same = Window.partitionBy(*once, F.col("decode_error").isNull()).orderBy(rank, "partition", "offset")
    joined = joined.withColumn("first", F.first("position").over(same)).filter("chosen")
    repeats = F.col("reason").isNull() & (F.col("first") != F.col("position"))
    joined = joined.withColumn(
        "reason", F.when(repeats, F.concat(F.lit("repeat-of:"), "first")).otherwise(F.col("reason"))
    )
    if params.max_messages is not None:
        so_far = Window.partitionBy(F.col("reason").isNull()).orderBy("topic", "partition", "offset")
        beyond = F.col("reason").isNull() & (F.row_number().over(so_far) > params.max_messages)
        joined = joined.withColumn("reason", F.when(beyond, "beyond-max").otherwise(F.col("reason")))
    # With the topic's id, because a recreated topic has other dead letters at the same offsets.
    redrive = F.substring(F.sha2(F.concat_ws("|", F.lit(params.plan_id), "topic_id", "topic"), 256), 1, 20)
    return joined.select(
        redrive.alias("redrive"),
        F.concat_ws(".", redrive, "partition", "offset").alias("replay_id"),
        F.when(F.col("reason").isNull(), "send").otherwise("skip").alias("action"),
        "reason",
        *("topic", "partition", "offset", "digest", "grp", "origin_topic", "msg_id"),
        *("key", "tag", "fail_class", "fingerprint"),
        F.try_add(count, F.lit(1)).alias("replay_count"),
        *("value_bytes", "value_sha256", "stored_at"),
        F.lit(params.to_source).alias("to_source"),
        F.when(F.col("reason").isNull(), F.col("target")).alias("target"),
    )


def _dead_letters(events: DataFrame, params: PlanParams) -> DataFrame:
    letters = events.filter(F.col("kind") == "dlq")
    return letters if params.group is None else letters.filter(F.col("grp") == params.group)


def _named_by(params: PlanParams) -> str:
    """Return the column with the logical name of the target: the source topic or the group."""
    return "origin_topic" if params.to_source else "grp"


def plan_report(planned: DataFrame) -> Report:
    """Make the report of a plan: dead letters by action, reason, target and cause.

    Repeats are one reason, not one for each dead letter that they repeat.
    """
    fields = ("action", "reason", "target", "fail_class", "fingerprint")
    planned = planned.withColumn("reason", F.regexp_replace("reason", "^repeat-of:.*", "repeat-of"))
    counted = planned.groupBy(*fields).agg(F.count("*").alias("letters")).orderBy(F.desc("letters"), *fields)
    rows = counted.limit(_LISTED_CAUSES).collect()
    total, sent = planned.agg(F.count("*"), F.count_if(F.col("action") == "send")).collect()[0]
    return Report(
        job="replay-plan",
        verdict=f"{total} dead letters: {sent} to send, {total - sent} skipped",
        fine=True,
        tables=(Table.of(f"what would be done (at most {_LISTED_CAUSES} rows)", (*fields, "letters"), rows),),
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


def verify_report(checked: DataFrame) -> Report:
    """Make the report. Findings: missing and altered records. Duplicates, and records of other plans, are listed."""
    sums = {row.outcome: row.letters for row in checked.groupBy("outcome").agg(F.count("*").alias("letters")).collect()}
    bad = checked.filter("outcome <> 'there'").orderBy("outcome", "coordinates").limit(_LISTED).collect()
    fields = ("coordinates", "target", "outcome", "times", "found_at", "settled_by")
    return Report(
        job="replay-verify",
        verdict=(
            f"{sum(sums.values())} planned: {sums.get('there', 0)} there, {sums.get('missing', 0)} missing, "
            f"{sums.get('twice', 0)} twice, {sums.get('altered', 0)} altered, {sums.get('elsewhere', 0)} by others"
        ),
        fine=not sums.get("missing") and not sums.get("altered"),
        tables=(Table.of("what is not as planned", fields, bad),),
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
    position = ["topic", "partition", "offset"]
    todo = planned.filter("action = 'send'").select(*position)
    missing = todo.join(records, position, "left_anti").count()
    if missing:
        raise LakeError(
            f"{missing} planned dead letters are not in the lake. Nothing was sent. If the lake was landed again from "
            "scratch since the plan was made, make the plan again"
        )
    found = todo.join(records, position)
    return found.select(*found.columns, F.unix_millis("timestamp").alias("stored_ms")).orderBy(*position)
