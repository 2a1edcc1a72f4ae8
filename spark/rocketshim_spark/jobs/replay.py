"""Send dead letters again: plan, run, verify. Safe to run twice, safe to kill.

1. `plan` freezes what would be sent into a table that a person can look at: one row per dead letter, with its target,
   its `REPLAY_ID`, the SHA-256 of its value, and what is to be done (`send`, or `skip` with the reason). It writes
   nothing to Kafka. The id is made from the plan's own id and the letter's coordinates: to plan again under the same id
   gives the same ids.
2. `run` notes where the target topics end, once per plan and before its first record; then it sends what is planned and
   does not carry its id beyond those ends already. So a run that was killed goes on, and a second one sends nothing.
   Records are made by `rocketshim_topics.hops.redriven`, as `rocketshim` makes them everywhere: identity kept, attempts
   counted from 0, to the retry topic of the group that failed, so that only that group sees it.
3. `verify` reads the targets from those ends and says, letter by letter, what is missing, there twice, or altered.

Order: one producer sends, letter after letter as they lie in their partition of the dead-letter topic, keyed to the
target's partition by murmur2; so letters of one key keep their order. A rate can be set. Sending is the driver's work
and not the executors': redrives are held back on purpose, and one idempotent producer repeats nothing by itself.

Guards: a letter that was redriven `max_replays` times is skipped (a poison message would go round for ever), so is one
that was redriven already and has not died again, one that holds only a reference to its value, and one that does not
say where it belongs. A dead-letter topic is not emptied by this: replayed is what has a replay, `dlq-trend` counts so.

One run per plan at a time: a second one would not see what the first has in flight.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim.client_config import PROTECTED_PRODUCER
from rocketshim_spark.errors import LakeError
from rocketshim_spark.frames import small_frame
from rocketshim_spark.report import Report, Table
from rocketshim_topics import TopicNames, hops
from rocketshim_topics.errors import BrokerUnavailableError, ConfigError, MalformedRecordError

__all__ = ["PlanParams", "Sent", "check", "plan", "plan_report", "send", "verify_report", "with_targets"]

_FLUSH_S: Final = 120.0
_MOST_BYTES: Final = 1_000_000_000  # the broker's limit decides, not the client's
_LISTED: Final = 50


class PlanParams(BaseModel):
    """What is to be sent again.

    Attributes:
        plan_id: name of the plan, part of every replay id; 1 to 100 letters, digits, `.`, `_`, `-`.
        namespace: of the shim's topics.
        group: dead letters of one consumer group only; None: of all.
        to_source: to the topic of the first delivery, and so to every group; False: to the group's retry topic.
        max_replays: a letter that was redriven so often already is skipped; 1 or more, 2.
        max_messages: most letters that are sent; None: no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan_id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    namespace: str = ""
    group: str | None = None
    to_source: bool = False
    max_replays: int = Field(default=2, ge=1)
    max_messages: int | None = Field(default=None, ge=1)


def plan(events: DataFrame, topics: DataFrame, params: PlanParams, *, chosen: DataFrame | None = None) -> DataFrame:
    """One row per dead letter that was asked for.

    Args:
        events: as `rocketshim_spark.events.transform` makes them.
        topics: as `land.read_topics` gives them: their ids are part of the replay ids.
        params: what is asked for.
        chosen: a frame with the `coordinates` of those that are wanted; None: all.

    Returns:
        replay_id, action (`send`, `skip`), reason (of a skip), topic, partition, offset, grp, origin_topic, msg_id,
        key, tag, fail_class, fingerprint, replay_count (with this one), value_bytes, value_sha256, stored_at,
        to_source.

    Thread-safety: a pure function of the frames.
    """
    letters = events.filter(F.col("kind") == "dlq")
    if params.group is not None:
        letters = letters.filter(F.col("grp") == params.group)
    if chosen is not None:
        letters = letters.join(chosen.select("coordinates"), "coordinates", "left_semi")
    replayed = events.filter(F.col("kind") == "replay").select(F.col("hop_id").alias("of")).distinct()
    ids = F.broadcast(topics.select(F.col("topic").alias("of_topic"), "topic_id"))
    count = F.coalesce("replay_count", F.lit(0))
    reason = (
        F.when(F.col("decode_error").isNotNull(), F.concat(F.lit("malformed:"), F.col("decode_error")))
        .when(F.col("of").isNotNull(), "replayed-already")
        .when(count >= params.max_replays, "too-many-replays")
        .when(F.col("value_sha256").isNull() & F.col("fail_text").startswith("[by reference: "), "by-reference")
        .when(F.col("origin_topic" if params.to_source else "grp").isNull(), "no-target")
    )
    identity = F.concat_ws("|", F.lit(params.plan_id), "topic_id", "topic", "partition", "offset")
    joined = (
        letters.join(replayed, F.col("coordinates") == F.col("of"), "left")
        .join(ids, F.col("topic") == F.col("of_topic"), "left")
        .withColumn("reason", reason)
    )
    if params.max_messages is not None:
        place = Window.partitionBy(F.col("reason").isNull()).orderBy("topic", "partition", "offset")
        beyond = F.row_number().over(place) > params.max_messages
        joined = joined.withColumn(
            "reason", F.when(F.col("reason").isNull() & beyond, "beyond-max").otherwise(F.col("reason"))
        )
    return joined.select(
        F.sha2(identity, 256).alias("replay_id"),
        F.when(F.col("reason").isNull(), "send").otherwise("skip").alias("action"),
        "reason",
        *("topic", "partition", "offset", "grp", "origin_topic", "msg_id", "key", "tag", "fail_class", "fingerprint"),
        F.try_add(count, F.lit(1)).alias("replay_count"),
        *("value_bytes", "value_sha256", "stored_at"),
        F.lit(params.to_source).alias("to_source"),
    )


def with_targets(planned: DataFrame, params: PlanParams) -> DataFrame:
    """The plan with the physical topic of each letter's `target`; names are made by the one codec, on the driver."""
    names = TopicNames(params.namespace)
    field = "origin_topic" if params.to_source else "grp"
    sent = planned.filter("action = 'send'").select(field).distinct().collect()
    rows: list[tuple[str, str | None]] = []
    for (value,) in sent:
        try:
            rows.append((value, names.physical(value) if params.to_source else names.retry(value)))
        except ConfigError:
            rows.append((value, None))
    named = F.broadcast(small_frame(planned.sparkSession, rows, "named string, target string"))
    joined = planned.join(named, F.col(field) == F.col("named"), "left").drop("named")
    nowhere = (F.col("action") == "send") & F.col("target").isNull()
    return joined.withColumns(
        {
            "reason": F.when(nowhere, "bad-target-name").otherwise(F.col("reason")),
            "action": F.when(nowhere, "skip").otherwise(F.col("action")),
            "target": F.when(F.col("action") == "send", F.col("target")),
        }
    )


def plan_report(planned: DataFrame) -> Report:
    """What a plan would do, by target, reason and cause, for a person."""
    fields = ("action", "reason", "target", "fail_class", "fingerprint")
    rows = planned.groupBy(*fields).agg(F.count("*").alias("letters")).orderBy(F.desc("letters"), *fields).collect()
    sums = Counter[str]()
    for row in rows:
        sums[row.action] += row.letters
    return Report(
        job="replay-plan",
        verdict=f"{sums.total()} dead letters: {sums['send']} to send, {sums['skip']} skipped",
        fine=True,
        tables=(Table("what would be done", (*fields, "letters"), [(*row[:5], row.letters) for row in rows]),),
        bars=tuple((f"{row.fail_class}: {row.fingerprint}"[:40], row.letters) for row in rows[:20]),
        bars_title="dead letters by cause",
    )


@dataclass(frozen=True, slots=True)
class Sent:
    """What a run did.

    Attributes:
        sent: records that the brokers have confirmed.
        refused: reasons and counts of letters that could not be made into a record; the plan's own skips are not here.
    """

    sent: int
    refused: Mapping[str, int]


class _Letter:
    """A landed record with the accessors of the contract."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def topic(self) -> str:
        return str(self._row.topic)

    def partition(self) -> int:
        return int(self._row.partition)

    def offset(self) -> int:
        return int(self._row.offset)

    def key(self) -> bytes | None:
        return _bytes(self._row.key)

    def value(self) -> bytes | None:
        return _bytes(self._row.value)

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [(each.key, _bytes(each.value)) for each in self._row.headers or []]

    def timestamp(self) -> tuple[int, int]:
        return (
            self._row.timestampType + 1,
            self._row.stored_ms,
        )  # the client counts from "not available", Spark does not


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def send(
    bootstrap: str,
    letters: Iterator[Row],
    *,
    namespace: str = "",
    config: Mapping[str, Any] | None = None,
    max_per_second: float | None = None,
    report: Callable[[int], None] | None = None,
) -> Sent:
    """Send letters, in the order in which they come.

    Args:
        bootstrap: addresses of the brokers.
        letters: rows of Spark's Kafka columns with `replay_id`, `to_source` and `stored_ms` (epoch ms).
        namespace: of the shim's topics.
        config: further librdkafka settings; None: none.
        max_per_second: most records a second, above 0; None: no limit.
        report: gets the number of records handed over so far, every thousand; None: nobody.

    Raises:
        BrokerUnavailableError: a record was not confirmed. Those before it may be there: run again, only what is
            missing is sent.

    Thread-safety: one at a time per plan.
    """
    names = TopicNames(namespace)
    failed: list[KafkaError] = []
    confirmed = 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal confirmed
        if error is None:
            confirmed += 1
        else:
            failed.append(error)

    own = {**PROTECTED_PRODUCER, "bootstrap.servers": bootstrap, "message.max.bytes": _MOST_BYTES}
    refused: Counter[str] = Counter()
    with _producing(Producer({"log_level": 0, "compression.type": "lz4", **(config or {}), **own})) as producer:
        started, count = time.monotonic(), 0
        for row in letters:
            try:
                out = hops.redriven(_Letter(row), names, replay_id=row.replay_id, to_source=row.to_source)
            except MalformedRecordError as error:
                refused[error.reason] += 1
                continue
            _hand_over(producer, out, delivered)
            count += 1
            if report is not None and count % 1_000 == 0:
                report(count)
            if failed:
                break
            if max_per_second is not None:
                ahead_s = started + count / max_per_second - time.monotonic()
                producer.poll(max(0.0, ahead_s))
    if failed or confirmed != count:
        cause = failed[0].str() if failed else f"{count - confirmed} records were not confirmed in {_FLUSH_S:.0f} s"
        raise BrokerUnavailableError(
            f"{confirmed} letters were sent, then: {cause}. Run the plan again: it goes on there"
        )
    return Sent(confirmed, dict(refused))


@contextmanager
def _producing(producer: Producer) -> Iterator[Producer]:
    try:
        yield producer
    finally:
        try:
            producer.flush(_FLUSH_S)
        except KafkaException as error:  # a fatal error of the client comes out here once
            raise BrokerUnavailableError(
                f"the producer failed: {error}. Run the plan again: it goes on there"
            ) from error


def _hand_over(
    producer: Producer, out: hops.OutgoingRecord, delivered: Callable[[KafkaError | None, Message], None]
) -> None:
    where: dict[str, Any] = {} if out.partition is None else {"partition": out.partition}
    while True:
        try:
            producer.produce(
                out.topic, value=out.value, key=out.key, headers=list(out.headers), on_delivery=delivered, **where
            )
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            raise BrokerUnavailableError(f"{out.topic}: {error}. Run the plan again: it goes on there") from error
        else:
            producer.poll(0)
            return


def replay_ids(records: DataFrame) -> DataFrame:
    """The records of a target that carry a replay id: replay_id, coordinates, value_sha256."""
    marks = F.filter("headers", lambda header: header["key"] == "REPLAY_ID")
    return records.select(
        F.get(marks, F.lit(0))["value"].cast("string").alias("replay_id"),
        F.concat_ws("/", "topic", "partition", "offset").alias("found_at"),
        F.sha2("value", 256).alias("found_sha256"),
    ).filter(F.col("replay_id").isNotNull())


def check(planned: DataFrame, found: DataFrame) -> DataFrame:
    """The plan's letters that were to be sent, against what lies on the targets.

    Args:
        planned: as `with_targets` makes it.
        found: the records of the targets from the noted ends on, in Spark's Kafka columns.

    Returns:
        replay_id, coordinates, target, outcome (`there`, `missing`, `twice`, `altered`), times, found_at.

    Thread-safety: a pure function of the frames.
    """
    seen = (
        replay_ids(found)
        .groupBy(F.col("replay_id").alias("seen_id"))
        .agg(
            F.count("*").alias("times"),
            F.sort_array(F.collect_list("found_at")).alias("found_at"),
            F.collect_set(F.coalesce("found_sha256", F.lit("-"))).alias("values"),
        )
    )
    joined = planned.filter("action = 'send'").join(seen, F.col("replay_id") == F.col("seen_id"), "left")
    same = F.col("values") == F.array(F.coalesce("value_sha256", F.lit("-")))
    outcome = (
        F.when(F.col("times").isNull(), "missing")
        .when(~same, "altered")
        .when(F.col("times") > 1, "twice")
        .otherwise("there")
    )
    return joined.select(
        "replay_id",
        F.concat_ws("/", "topic", "partition", "offset").alias("coordinates"),
        "target",
        outcome.alias("outcome"),
        F.coalesce("times", F.lit(0)).alias("times"),
        "found_at",
    )


def verify_report(checked: DataFrame) -> Report:
    """The verdict: nothing missing, nothing altered is fine; a letter that is there twice is said."""
    sums = {row.outcome: row.letters for row in checked.groupBy("outcome").agg(F.count("*").alias("letters")).collect()}
    bad = checked.filter("outcome <> 'there'").orderBy("outcome", "coordinates").limit(_LISTED).collect()
    fields = ("coordinates", "target", "outcome", "times", "found_at")
    return Report(
        job="replay-verify",
        verdict=(
            f"{sum(sums.values())} planned: {sums.get('there', 0)} there, {sums.get('missing', 0)} missing, "
            f"{sums.get('twice', 0)} twice, {sums.get('altered', 0)} altered"
        ),
        fine=not sums.get("missing") and not sums.get("altered"),
        tables=(Table("what is not as planned", fields, [tuple(row[name] for name in fields) for row in bad]),),
        bars=tuple(sums.items()),
    )


def letters_to_send(planned: DataFrame, records: DataFrame, present: DataFrame) -> DataFrame:
    """The landed records that are still to be sent, in the order of their partitions.

    Args:
        planned: as `with_targets` makes it.
        records: the landed records.
        present: a column `replay_id` of what is on the targets already.

    Raises:
        LakeError: a planned letter is not among the landed records.
    """
    todo = planned.filter("action = 'send'").join(present.select("replay_id").distinct(), "replay_id", "left_anti")
    place = ["topic", "partition", "offset"]
    found = todo.select(*place, "replay_id", "to_source").join(records, place)
    missing = todo.count() - found.count()
    if missing:
        raise LakeError(f"{missing} planned letters are not in the lake: was it landed anew since the plan was made?")
    stored_ms = F.unix_millis("timestamp").alias("stored_ms")
    return found.select(*found.columns, stored_ms).orderBy(*place)


def ends_frame(spark: SparkSession, ends: Sequence[tuple[str, int, int]]) -> DataFrame:
    """Where the targets ended before a plan's first record: topic, partition, end."""
    return small_frame(spark, ends, "topic string, partition int, end bigint")
