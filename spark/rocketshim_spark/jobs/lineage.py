"""Lineage: the lifecycle of every message in each of its groups: its attempts, its state, and how long it took.

A *lifecycle* is one row per group and message, made from all records of the message. Kafka has no record that a message
was *consumed*, so that is inferred from the group's committed positions. They were read **before** the end offsets of
the records; otherwise a message that moved in between would look lost.

============== ====================================================================================================
state          meaning
============== ====================================================================================================
`dead`         its newest record is a dead letter
`parked`       its newest record was parked by the worker
`voided`       it has a name, and the log of timers has cancelled, replaced or dropped it (`last_reason`)
`lost`         it waited in the schedule, the worker's position is beyond it, and no record follows
`retrying`     it failed and waits for its next attempt
`scheduled`    it never failed and waits in the schedule for its first delivery
`acknowledged` its newest record was delivered and lies before the group's committed position. **Inferred**
`pending`      it was delivered, lies at or after that position, and never failed. **Inferred**
`open`         its state is unknown: it was delivered, but no position of the group is known; or it waited in the
               schedule, and the worker's position is beyond it, but its topic was not landed
============== ====================================================================================================

"Newest" follows the flow of a message, not clocks: by replay, then by attempt, and within an attempt by step: waiting,
parked, delivered, dead. Several records may have the same step (the worker repeated a delivery, or the message moved
from queue to queue). Then the one that is least advanced decides: while one of them waits, the message waits. Where a
member sent the message on, since it could not handle it, the attempt continues in the order in which the records were
stored.

A message that never failed belongs to every group that has committed a position on its topic. If there is no such
group, it has one lifecycle with `grp` null. Two records with one `msg_id` are one message; `copies` counts the repeats.

A lifecycle is

* *rooted* if the records contain its first delivery, or the wait before it; also if that cannot be known, because its
  topic was not landed, or the group has no known position on that topic, or the first record of the message is newer
  than the positions. Brokers do not answer for the ends of all partitions at the same moment, so a message that is sent
  and fails during a landing may be landed without its first delivery;
* *broken* if they contain an attempt, but not the attempt before, unless that is a delivery on the source topic which
  cannot be known, as above (a redrive may have made it). A listener that retries in place (orderly) leaves no records
  of its attempts, so its dead letters are not broken;
* *revived* if an attempt was retried or delivered although it, or an earlier one, had already made a dead letter,
  without a redrive in between. For example, two members of the group have different retry limits.

Malformed records belong to no lifecycle and are left out. The log of timers is part of the wait of a message with a
name, and `rocketshim_spark.timers` says what each command did. The message itself waits for as long as it recurs; each
of its occurrences is a message of its own.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim.core.user_values import count_text
from rocketshim_spark.report import Report, Table, json_value, printable, utc
from rocketshim_spark.small_frames import small_frame
from rocketshim_spark.timers import VOIDED, fates
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = [
    "DEAD",
    "DELIVERED",
    "HIGH_CARDINALITY",
    "PARKED",
    "STATES",
    "WAIT",
    "LineageParams",
    "find_lifecycles",
    "format_lifecycle",
    "is_fine",
    "is_landed",
    "report",
    "transform",
]

STATES: Final = ("acknowledged", "pending", "scheduled", "retrying", "dead", "parked", "voided", "lost", "open")
HIGH_CARDINALITY: Final = (
    *("msg_id", "origin", "first_sent", "last_at"),
    *("history.list.element.at", "history.list.element.coordinates"),
)
"""Parquet paths of the columns with few repeated values."""
_POSITIONS: Final = "owner string, of_topic string, of_partition int, committed bigint"
WAIT, PARKED, DELIVERED, DEAD = 0, 1, 2, 3  # steps of an attempt, in the order of the flow
_RUNS: Final = 2**32  # larger than any number of attempts


class LineageParams(BaseModel):
    """Facts beside the records.

    Attributes:
        namespace: namespace of the shim's topics.
        committed: the committed positions of each group, including the worker's: (topic, partition) to the next offset;
            read before the end offsets of the events.
        landed: the landed topics; None: all. First deliveries on other topics are not missed.
        taken_at: when the positions were read. First deliveries of messages whose records are all newer are not missed,
            because a later landing may bring them. None: every first delivery is missed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = ""
    committed: Mapping[str, Mapping[TopicPartitionKey, int]] = {}
    landed: frozenset[str] | None = None
    taken_at: AwareDatetime | None = None


def transform(events: DataFrame, params: LineageParams | None = None) -> DataFrame:
    """Return one lifecycle per group and message.

    Args:
        events: as `rocketshim_spark.events.transform` returns them.
        params: facts beside the records; None: no positions, so that delivered messages are `open`.

    Returns:
        grp, msg_id, state, inferred (whether the state follows from committed positions), topic (of the first delivery,
        if known), tag, key, origin (coordinates of the first delivery), first_sent, attempts (failed attempts of the
        newest replay), deliveries, copies (records after the first one of a step, except waiting), rooted, broken,
        revived, history (array of replay, attempt, sent_on, step, at, coordinates, kind, reason, reached; in the order
        of the flow), last_reason, last_at, took_ms (from first_sent to the newest record; null unless acknowledged or
        dead).

    Thread-safety: a pure function of the frame; nothing is read.
    """
    params = LineageParams() if params is None else params
    names = TopicNames(params.namespace)
    worker = names.worker_group
    rows = [
        (group, topic, partition, offset)
        for group, offsets in params.committed.items()
        for (topic, partition), offset in offsets.items()
    ]
    spark = events.sparkSession
    positions = small_frame(spark, rows, _POSITIONS)
    consuming = sorted({(group, topic) for group, topic, _, _ in rows if group != worker})
    groups_of = small_frame(spark, consuming, "of_grp string, their_topic string")
    steps = events.filter(
        F.col("kind").isin("source", "schedule", "retry", "replay", "dlq", "parked") & F.col("decode_error").isNull()
    ).withColumn("fate", F.lit(None).cast("string"))
    if params.landed is None or names.timers in params.landed:
        # The topics are named, so that Delta skips the files of others.
        of_names = fates(events.filter(F.col("topic").isin(names.timers, names.parked)))
        steps = steps.unionByName(of_names.drop("counts"))
    steps = steps.withColumns(
        {
            "source_topic": F.coalesce(
                "origin_topic",
                F.when(F.col("grp").isNull() & F.col("queue").isNull(), _current_source_topic()),
                "real_topic",
            ),
            "step": F.when(F.col("kind") == "dlq", DEAD)
            .when(F.col("kind") == "parked", PARKED)
            .when(F.col("kind").isin("schedule", "timer"), WAIT)
            .otherwise(DELIVERED),
        }
    )
    # A message that never failed gets a row for each group of its topic. A union instead of the join would read twice.
    steps = steps.join(
        F.broadcast(groups_of), F.col("grp").isNull() & (F.col("source_topic") == F.col("their_topic")), "left"
    )
    steps = steps.withColumn("grp", F.coalesce("grp", "of_grp"))
    steps = steps.withColumn("asked", F.when(F.col("step") == WAIT, worker).otherwise(F.col("grp")))
    steps = steps.join(
        F.broadcast(positions),
        (F.col("asked") == F.col("owner"))
        & (F.col("topic") == F.col("of_topic"))
        & (F.col("partition") == F.col("of_partition")),
        "left",
    )
    return _lifecycles(steps, consuming, params)


def report(lifecycles: DataFrame) -> Report:
    """Make the report: messages by state, topic and group. Findings: lost, broken and revived lifecycles.

    Topics and groups with findings come first.
    """
    counted = (
        lifecycles.groupBy("topic", "grp")
        .agg(
            F.count("*").alias("messages"),
            *(F.count_if(F.col("state") == state).alias(state) for state in STATES),
            F.sum("copies").alias("copies"),
            F.count_if("broken").alias("broken"),
            F.count_if("revived").alias("revived"),
            F.max("attempts").alias("attempts"),
            F.percentile_approx("took_ms", [0.5, 0.99]).alias("took"),
        )
        .orderBy(F.desc(F.col("lost") + F.col("broken") + F.col("revived")), "topic", "grp")
        .collect()
    )
    lost, broken, revived = (sum(row[name] for row in counted) for name in ("lost", "broken", "revived"))
    counts = ("copies", "broken", "revived", "attempts")
    columns = ("topic", "group", "messages", *STATES, *counts[:-1], "most attempts", "p50 ms", "p99 ms")
    table = Table(
        "messages by state",
        columns,
        [
            (row.topic, row.grp, row.messages, *(row[name] for name in (*STATES, *counts)), *(row.took or (None, None)))
            for row in counted
        ],
    )
    return Report(
        job="lineage",
        verdict=(
            f"{count_text(sum(row.messages for row in counted), 'lifecycle')}: {lost:,} lost, {broken:,} broken, "
            f"{revived:,} revived"
        ),
        fine=not lost and not broken and not revived,
        tables=(table,),
        bars=tuple((state, sum(row[state] for row in counted)) for state in STATES),
        notes=("acknowledged, its times, and pending are inferred from committed positions",),
    )


def find_lifecycles(lifecycles: DataFrame, msg_id: str) -> Sequence[Any]:
    """Return the lifecycles of one message, one for each of its groups; empty if no record of it is known."""
    return lifecycles.filter(F.col("msg_id") == msg_id).orderBy("grp").collect()


def is_fine(lifecycle: Any) -> bool:
    """Return whether a lifecycle is not a finding: not lost, broken or revived."""
    return lifecycle.state != "lost" and not lifecycle.broken and not lifecycle.revived


def format_lifecycle(lifecycle: Any) -> str:
    """Format a lifecycle as text: one line for the state, then one line for each record."""
    state = f"{lifecycle.state} (inferred)" if lifecycle.inferred else lifecycle.state
    lines = [
        (
            f"{lifecycle.msg_id} in group {lifecycle.grp or '(none)'}: {state}, topic {lifecycle.topic}, "
            f"{lifecycle.attempts} failed attempts, first sent {utc(lifecycle.first_sent)} UTC"
        )
    ]
    for each in lifecycle.history:
        run = f" of replay {each.replay}" if each.replay else ""
        why = f": {each.reason}" if each.reason else ""
        lines.append(f"  {utc(each['at'])}  {each.kind:8}  attempt {each.attempt}{run}  {each.coordinates}{why}")
    return "\n".join(map(printable, lines))


def lifecycle_json(lifecycle: Any) -> str:
    """Format a lifecycle as one line of JSON, with its columns; times are UTC."""
    return json.dumps(lifecycle.asDict(recursive=True), default=json_value)


def _current_source_topic() -> Column:
    """Return the topic that a record lies on; null for a parked one or a timer, for which `real_topic` counts."""
    return F.when(~F.col("kind").isin("parked", "timer"), F.col("topic"))


def is_landed(topic: Column, landed: Collection[str] | None) -> Column:
    """Return whether deliveries to a logical topic are among the records; the shim's own topics always are."""
    if landed is None:
        return F.lit(col=True)
    return F.coalesce(topic.startswith("%") | topic.isin(*sorted(landed)), F.lit(col=True))


def _lifecycles(steps: DataFrame, consuming: Collection[tuple[str, str]], params: LineageParams) -> DataFrame:
    """Return one row for each message and group, with its outcome.

    Decides: When does a report call a message lost? It waits in the schedule, the worker has committed beyond it, and
        nothing follows. It is not lost if the log of timers has voided it.
    """
    entry = F.struct(
        F.coalesce("replay_count", F.lit(0)).alias("replay"),
        F.coalesce("attempt", F.lit(0)).alias("attempt"),
        F.when(F.col("unhandled_since").isNotNull(), F.col("stored_at")).alias("sent_on"),
        "step",
        F.col("stored_at").alias("at"),
        "coordinates",
        "kind",
        F.coalesce("fate", "fail_class").alias("reason"),
        F.coalesce(F.col("committed") > F.col("offset"), F.lit(col=False)).alias("reached"),
    )
    record = F.struct(entry.alias("entry"), "source_topic", "tag", "key", "origin_id", "born_at")
    # The first delivery is among the records of those groups only that are known to consume the topic.
    consumes = F.concat_ws("/", "first.source_topic", "grp").isin([f"{topic}/{group}" for group, topic in consuming])
    is_older = F.lit(col=True) if params.taken_at is None else F.col("first.entry.at") < F.lit(params.taken_at)
    # Sort the records of each message together, so that no aggregation buffers many messages (sessions of `create` then
    # need one pass). Sort by a hash first: ids have long common prefixes, so comparing them is slow.
    lifecycles = (
        steps.select(F.xxhash64("msg_id", "grp").alias("number"), "msg_id", "grp", record.alias("record"))
        .repartition("number")
        .sortWithinPartitions("number", "msg_id", "grp")
        .groupBy("number", "msg_id", "grp")
        .agg(F.sort_array(F.collect_list("record")).alias("records"))
        .withColumn("first", F.get("records", F.lit(0)))
        .withColumn("newest", F.element_at("records", -1)["entry"])
        .withColumn("is_landed", is_landed(F.col("first.source_topic"), params.landed))
        .withColumn("has_root", F.col("is_landed") & (F.col("grp").isNull() | consumes) & is_older)
        .withColumn("is_single", (F.size("records") == 1) & F.col("has_root"))
    )
    history = F.transform("records", lambda each: each["entry"])
    born = F.array_min(F.transform("records", lambda each: each["born_at"]))
    lifecycles = lifecycles.withColumns(
        {
            "history": _unless_single(F.array("first.entry"), history),
            "first_sent": _unless_single(F.col("first.born_at"), born),
        }
    )
    attempt, step = F.col("newest.attempt"), F.col("newest.step")
    # A redriven message begins at attempt 0 again. Of the groups that get it from its source topic, one has failed.
    failed = (F.col("newest.reason").isNotNull() & (F.col("newest.kind") != "timer")) | _unless_single(
        attempt > 0, F.exists("history", lambda each: each["attempt"] > 0)
    )
    of_newest = F.filter("history", lambda each: _step_of(each) == _step_of(F.col("newest")))
    # Texts and numbers, because Spark hashes those to find distinct ones: a message may have 100,000 copies.
    moved = F.transform(F.filter("history", lambda each: each["step"] > WAIT), _step_text)
    runs = F.array_distinct(F.transform("history", _run_number))
    # A dead letter without a retry before it comes from a listener that retries in place.
    left_records = F.exists("history", lambda each: (each["attempt"] > 0) & (each["step"] < DEAD))
    # A redrive to the source topic begins with a delivery there, which need not be known either.
    least = F.when(F.col("has_root"), 0).otherwise(1)
    hole = F.exists(runs, lambda run: (run % _RUNS > least) & ~F.array_contains(runs, run - 1))
    delivered = F.filter("history", lambda each: each["step"] == DELIVERED)
    following = F.slice("history", 2, F.size("history"))  # the history is sorted by the flow
    revived = F.zip_with("history", following, _is_revival)
    of_timer = F.filter("history", lambda each: each["kind"] == "timer")
    void = F.filter(of_timer, lambda each: each["reason"].isin(*VOIDED))
    # A command that fired or waits has no such fate, and one of a message that recurs was delivered.
    is_void = F.forall(
        of_timer, lambda each: F.coalesce(each["reason"].isin(*VOIDED, "recurs", "asked"), F.lit(col=False))
    )
    lifecycles = lifecycles.withColumns(
        {
            "under_way": _unless_single(~F.col("newest.reached"), F.exists(of_newest, lambda each: ~each["reached"])),
            "deliveries": _unless_single((step == DELIVERED).cast("int"), F.size(delivered)),
            "copies": _unless_single(F.lit(0), F.size(moved) - F.size(F.array_distinct(moved))),
            "rooted": _unless_single(
                (attempt == 0) & (F.col("newest.replay") == 0),
                ~F.col("has_root") | F.array_contains(runs, F.lit(0).cast("bigint")),
            ),
            "revived": _unless_single(
                F.lit(col=False), F.exists(revived, lambda each: F.coalesce(each, F.lit(col=False)))
            ),
            "broken": _unless_single((attempt > 0) & (step < DEAD), left_records & hole),
            "void": F.when((step == WAIT) & is_void, _last_reason(void)),
            "delivered_at": _unless_single(
                F.when(step == DELIVERED, F.col("newest.coordinates")), F.get(delivered, F.lit(0))["coordinates"]
            ),
        }
    )
    under_way = F.col("under_way")
    state = (
        F.when(step == DEAD, "dead")
        .when(step == PARKED, "parked")
        .when(F.col("void").isNotNull(), "voided")
        .when((step == WAIT) & ~under_way & (failed | F.col("is_landed")), "lost")
        .when((step == WAIT) & ~under_way, "open")
        .when((step == WAIT) & failed, "retrying")
        .when(step == WAIT, "scheduled")
        .when(F.col("grp").isNull() | ~F.col("grp").isin(*{group for group, _ in consuming}), "open")
        .when(~under_way, "acknowledged")
        .when(failed, "retrying")
        .otherwise("pending")
    )
    is_final = state.isin("acknowledged", "dead")
    return lifecycles.select(
        "grp",
        "msg_id",
        state.alias("state"),
        state.isin("acknowledged", "pending").alias("inferred"),
        F.col("first.source_topic").alias("topic"),
        F.col("first.tag").alias("tag"),
        F.col("first.key").alias("key"),
        # The first delivery of a delayed message may not be landed; later records have its coordinates.
        F.coalesce("first.origin_id", F.element_at("records", -1)["origin_id"], "delivered_at").alias("origin"),
        "first_sent",
        attempt.alias("attempts"),
        "deliveries",
        "copies",
        "rooted",
        "broken",
        "revived",
        "history",
        F.coalesce("void", "newest.reason").alias("last_reason"),
        F.col("newest.at").alias("last_at"),
        F.when(is_final, F.unix_millis("newest.at") - F.unix_millis("first_sent")).alias("took_ms"),
    )


def _unless_single(single: Column, general: Column) -> Column:
    """Choose the expression for messages with one record, which are most: Spark evaluates array functions slowly."""
    return F.when(F.col("is_single"), single).otherwise(general)


def _step_of(entry: Column) -> Column:
    names = ("replay", "attempt", "sent_on", "step")
    return F.struct(*(entry[name].alias(name) for name in names))


def _step_text(entry: Column) -> Column:
    return F.concat_ws("/", entry["replay"], entry["attempt"], entry["sent_on"].cast("string"), entry["step"])


def _last_reason(void: Column) -> Column:
    """Return how a message was voided; a FIRE that came too late shows only that it was."""
    known = F.filter(void, lambda each: each["reason"] != "voided")
    return F.coalesce(F.try_element_at(known, F.lit(-1))["reason"], F.try_element_at(void, F.lit(-1))["reason"])


def _is_revival(entry: Column, following: Column) -> Column:
    """Whether, of two adjacent steps, an attempt was retried although it or an earlier one had made a dead letter."""
    is_dead, dies = entry["step"] == DEAD, following["step"] == DEAD
    is_one_replay = entry["replay"] == following["replay"]
    return is_one_replay & ((is_dead & ~dies) | (~is_dead & dies & (entry["attempt"] == following["attempt"])))


def _run_number(entry: Column) -> Column:
    """Combine replay and attempt into one number."""
    return entry["replay"].cast("bigint") * _RUNS + entry["attempt"]
