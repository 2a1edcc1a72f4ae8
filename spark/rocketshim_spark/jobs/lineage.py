"""The life of every message, for each group that it concerns: attempts, state, and how long it took.

One row per group and message. What is known for sure comes from records; that a message was *consumed* leaves no
record in Kafka and is inferred from the group's committed positions, which were taken **before** the ends of what is
read (else a message looks lost that was only moved in between):

=============  =====================================================================================================
state          what it rests on
=============  =====================================================================================================
`dead`         its newest record is a dead letter
`parked`       its newest record was parked by the worker
`lost`         it waited in the schedule, the worker's position is beyond it, and nothing followed
`retrying`     it failed, and waits for its next attempt
`scheduled`    it never failed, and waits in the schedule for its first delivery
`acknowledged` its newest record was delivered and lies before the group's committed position. **Inferred**
`pending`      it was delivered, lies at or beyond that position, and never failed. **Inferred**
`open`         it was delivered; nothing is known of any position of the group, so nobody can say
=============  =====================================================================================================

"Newest" is by the flow of a message, not by clocks: replay after replay, attempt after attempt, and within an attempt
waiting before parked before delivered before dead. Of several records of one step (a relay that repeated itself, hops
from queue to queue) the one that is least far decides: as long as one waits, the message waits.

A message that never failed belongs to every group that has committed a position on its topic; to none (`grp` null)
if there is no such group. Two records of one `msg_id` are one message, and counted (`copies`).

A life is *rooted* if its first delivery, or the wait before that, is among the records; its trail is *broken* if an
attempt is there without the one before. A listener that is retried in place (orderly) leaves no record of its attempts;
its dead letters are no broken trails. A life is *revived* if an attempt was retried or delivered whose failure, or an
earlier one's, had made a dead letter, and no redrive lies between: two members with different limits, for example.

Malformed records are no part of a life and are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim_spark.report import Report, Table, printable
from rocketshim_spark.small_frames import small_frame
from rocketshim_topics import TopicNames

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
    "report",
    "transform",
]

STATES: Final = ("acknowledged", "pending", "scheduled", "retrying", "dead", "parked", "lost", "open")
HIGH_CARDINALITY: Final = (
    *("msg_id", "origin", "first_sent", "last_at"),
    *("history.list.element.at", "history.list.element.coordinates"),
)
_POSITIONS: Final = "owner string, of_topic string, of_partition int, committed bigint"
WAIT, PARKED, DELIVERED, DEAD = 0, 1, 2, 3  # steps of an attempt, in the order of the flow
_RUNS: Final = 2**32  # more than there are attempts


class LineageParams(BaseModel):
    """What is known beside the records.

    Attributes:
        namespace: of the shim's topics.
        committed: for each group, the worker's included, its committed positions: (topic, partition) to the next
            offset; taken before the ends of the events.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = ""
    committed: Mapping[str, Mapping[tuple[str, int], int]] = {}


def transform(events: DataFrame, params: LineageParams | None = None) -> DataFrame:
    """One row per group and message.

    Args:
        events: as `rocketshim_spark.events.transform` makes them.
        params: what is known beside; None: nothing, so that delivered messages are `open`.

    Returns:
        grp, msg_id, state, inferred (whether the state rests on committed positions), topic (of the first delivery,
        where it is known), tag, key, origin (coordinates of the first delivery), first_sent, attempts (of the newest
        replay: failures so far), deliveries, copies (records beyond the first of one step other than waiting), rooted,
        broken, revived, history (array of replay, attempt, step, at, coordinates, kind, reason, reached; in the order
        of the flow), last_reason, last_at, took_ms (from first_sent to the newest record; null while it is under way).

    Thread-safety: a pure function of the frame; nothing is read.
    """
    params = LineageParams() if params is None else params
    worker = TopicNames(params.namespace).worker_group
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
    ).withColumns(
        {
            "source_topic": F.coalesce(
                "origin_topic",
                F.when(F.col("grp").isNull() & F.col("queue").isNull(), _current_source_topic()),
                "real_topic",
            ),
            "step": F.when(F.col("kind") == "dlq", DEAD)
            .when(F.col("kind") == "parked", PARKED)
            .when(F.col("kind") == "schedule", WAIT)
            .otherwise(DELIVERED),
        }
    )
    # One that never failed is told once to each group of its topic; a join and not a union, which would read all twice.
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
    return _lifecycles(steps, sorted({group for group, _ in consuming}))


def report(lifecycles: DataFrame) -> Report:
    """How many messages are in which state, by topic and group. A finding: lost, broken trails, revived."""
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
        .orderBy("topic", "grp")
        .collect()
    )
    lost, broken, revived = (sum(row[name] for row in counted) for name in ("lost", "broken", "revived"))
    columns = ("topic", "group", "messages", *STATES, "copies", "revived", "most attempts", "p50 ms", "p99 ms")
    table = Table(
        "messages by state",
        columns,
        [
            (row.topic, row.grp, row.messages, *(row[state] for state in STATES), row.copies, row.revived, row.attempts)
            + (tuple(row.took) if row.took else (None, None))
            for row in counted
        ],
    )
    return Report(
        job="lineage",
        verdict=f"{sum(row.messages for row in counted)} lives: {lost} lost, {broken} with a broken trail, "
        f"{revived} revived",
        fine=not lost and not broken and not revived,
        tables=(table,),
        bars=tuple((state, sum(row[state] for row in counted)) for state in STATES),
        notes=("acknowledged and pending are inferred from committed positions; times of acknowledged messages too",),
    )


def find_lifecycles(lifecycles: DataFrame, msg_id: str) -> Sequence[Any]:
    """The rows of one message, one for each group that it concerns; empty if nothing is known of it."""
    return lifecycles.filter(F.col("msg_id") == msg_id).orderBy("grp").collect()


def format_lifecycle(lifecycle: Any) -> str:
    """One life for a person: a line for what it is, and one for each record."""
    state = f"{lifecycle.state} (inferred)" if lifecycle.inferred else lifecycle.state
    lines = [
        (
            f"{lifecycle.msg_id} in group {lifecycle.grp or '(none)'}: {state}, topic {lifecycle.topic}, "
            f"{lifecycle.attempts} failed attempts, first sent {lifecycle.first_sent} UTC"
        )
    ]
    for each in lifecycle.history:
        run = f" of replay {each.replay}" if each.replay else ""
        why = f": {each.reason}" if each.reason else ""
        lines.append(f"  {each['at']}  {each.kind:8}  attempt {each.attempt}{run}  {each.coordinates}{why}")
    return "\n".join(map(printable, lines))


def _current_source_topic() -> Column:
    """On a source topic a message is where it was sent; a parked one says where it was to go."""
    return F.when(F.col("kind") != "parked", F.col("topic"))


def _lifecycles(steps: DataFrame, groups: Sequence[str]) -> DataFrame:
    entry = F.struct(
        F.coalesce("replay_count", F.lit(0)).alias("replay"),
        F.coalesce("attempt", F.lit(0)).alias("attempt"),
        "step",
        F.col("stored_at").alias("at"),
        "coordinates",
        "kind",
        F.col("fail_class").alias("reason"),
        F.coalesce(F.col("committed") > F.col("offset"), F.lit(col=False)).alias("reached"),
    )
    record = F.struct(entry.alias("entry"), "source_topic", "tag", "key", "origin_id", "born_at")
    # Records of a message come to lie beside each other, so that no aggregate has to keep many (sessions of ours then
    # take it in one pass). By a number first: ids begin alike, and sorting by them alone compares texts.
    lifecycles = (
        steps.select(F.xxhash64("msg_id", "grp").alias("number"), "msg_id", "grp", record.alias("record"))
        .repartition("number")
        .sortWithinPartitions("number", "msg_id", "grp")
        .groupBy("number", "msg_id", "grp")
        .agg(F.sort_array(F.collect_list("record")).alias("records"))
        .withColumns({"alone": F.size("records") == 1, "first": F.get("records", F.lit(0))})
        .withColumn("newest", F.element_at("records", -1)["entry"])
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
    failed = (attempt > 0) | (F.col("newest.replay") > 0)
    of_newest = F.filter("history", lambda each: _step_of(each) == _step_of(F.col("newest")))
    # As texts and numbers, which are told apart by hashing: a message that is there 100,000 times must hold up nobody.
    moved = F.transform(F.filter("history", lambda each: each["step"] > WAIT), _step_text)
    runs = F.array_distinct(F.transform("history", _run_number))
    # A dead letter without any retry before it is one of a listener that is retried in place.
    left_records = F.exists("history", lambda each: (each["attempt"] > 0) & (each["step"] < DEAD))
    hole = F.exists(runs, lambda run: (run % _RUNS > 0) & ~F.array_contains(runs, run - 1))
    delivered = F.filter("history", lambda each: each["step"] == DELIVERED)
    following = F.slice("history", 2, F.size("history"))  # the flow is in order: what belongs together lies together
    revived = F.zip_with("history", following, _is_revival)
    lifecycles = lifecycles.withColumns(
        {
            "under_way": _unless_single(~F.col("newest.reached"), F.exists(of_newest, lambda each: ~each["reached"])),
            "deliveries": _unless_single((step == DELIVERED).cast("int"), F.size(delivered)),
            "copies": _unless_single(F.lit(0), F.size(moved) - F.size(F.array_distinct(moved))),
            "rooted": _unless_single(
                (attempt == 0) & (F.col("newest.replay") == 0), F.array_contains(runs, F.lit(0).cast("bigint"))
            ),
            "revived": _unless_single(
                F.lit(col=False), F.exists(revived, lambda each: F.coalesce(each, F.lit(col=False)))
            ),
            "broken": _unless_single((attempt > 0) & (step < DEAD), left_records & hole),
            "delivered_at": _unless_single(
                F.when(step == DELIVERED, F.col("newest.coordinates")), F.get(delivered, F.lit(0))["coordinates"]
            ),
        }
    )
    under_way = F.col("under_way")
    state = (
        F.when(step == DEAD, "dead")
        .when(step == PARKED, "parked")
        .when((step == WAIT) & ~under_way, "lost")
        .when((step == WAIT) & failed, "retrying")
        .when(step == WAIT, "scheduled")
        .when(F.col("grp").isNull() | ~F.col("grp").isin(*groups), "open")
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
        # A delayed message whose first delivery was not landed: its later records say where that was.
        F.coalesce("first.origin_id", F.element_at("records", -1)["origin_id"], "delivered_at").alias("origin"),
        "first_sent",
        attempt.alias("attempts"),
        "deliveries",
        "copies",
        "rooted",
        "broken",
        "revived",
        "history",
        F.col("newest.reason").alias("last_reason"),
        F.col("newest.at").alias("last_at"),
        F.when(is_final, F.unix_millis("newest.at") - F.unix_millis("first_sent")).alias("took_ms"),
    )


def _unless_single(single: Column, general: Column) -> Column:
    """Most messages are one record: theirs is said without walking through arrays, which Spark interprets slowly."""
    return F.when(F.col("alone"), single).otherwise(general)


def _step_of(entry: Column) -> Column:
    return F.struct(entry["replay"].alias("replay"), entry["attempt"].alias("attempt"), entry["step"].alias("step"))


def _step_text(entry: Column) -> Column:
    return F.concat_ws("/", entry["replay"], entry["attempt"], entry["step"])


def _is_revival(entry: Column, following: Column) -> Column:
    """Whether of two steps one made a dead letter of an attempt, and the other one went on with it."""
    is_dead, dies = entry["step"] == DEAD, following["step"] == DEAD
    is_one_replay = entry["replay"] == following["replay"]
    return is_one_replay & ((is_dead & ~dies) | (~is_dead & dies & (entry["attempt"] == following["attempt"])))


def _run_number(entry: Column) -> Column:
    """Replay and attempt as one number."""
    return entry["replay"].cast("bigint") * _RUNS + entry["attempt"]
