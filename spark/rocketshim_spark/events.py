"""Kafka records as events: one row for each record of a source, schedule, retry, dead-letter, parked or timer topic.

All jobs read events. `transform` decodes the headers of wire format 1 (docs/wire-format.md) by the rules of
`rocketshim_topics.decode`. It uses Spark's own expressions only, so no Python code runs in the executors. It never
fails on a record: `decode_error` says why a record is malformed, with the text of `MalformedRecordError.reason`, and
the counters beside it give more.

The topic decides which headers are trusted, as everywhere in rocketshim. On the shim's own topics every header of the
table counts, and a record that breaks its rules is malformed. On any other topic only the first `UNIQ_KEY`, `TAGS`,
`KEYS` and `BORN_TIMESTAMP` count, and the headers that the worker or a redrive adds (a well-formed `HOP_ID`, and with
it `REPLAY_*`).

==================  ==================================================================================================
column              meaning (null: absent)
==================  ==================================================================================================
kind                `source`, `schedule`, `timer`, `retry`, `dlq`, `parked`; `replay` for a redriven dead letter
topic … stored_at   coordinates of the record, and its Kafka timestamp (at the latest 9999-12-30)
msg_id              `UNIQ_KEY`; without it, the record's own coordinates, which its first hop would use
origin_id           coordinates of the first delivery (`ORIGIN_MESSAGE_ID`)
grp                 consumer group that sent the message back
real_topic          schedule, timer, parked: the destination, `%RETRY%g` for retries. Else that of the first delivery
origin_topic        topic of the first delivery (`RETRY_TOPIC`)
tag, keys, key      tag, business keys, Kafka key
attempt             number of failed attempts (`RECONSUME_TIMES`)
queue, delay_level  schedule: the queue within its lane, 0 to 31; the delay level, 1 to 27 (null: a fine queue)
due_at              schedule: when the message is due
fail_class …        the last failure: class, text, time, and the text with numbers and ids as `#` (`fingerprint`)
unhandled_since     when a member first sent the message on after its last failure, since it could not handle it
target_timestamp    schedule: the timestamp that the sender gave the record for its target
hop_id              coordinates of the record that this one was made from
replay_id, …_count  id of the last redrive, and the number of redrives
born_at             when the message was first sent; without the header, the record's own timestamp
park_reason         parked: why the worker could not deliver the message
was_parked          whether a schedule record was parked before, and was sent again
timer               name of a named timer
timer_do            timer: the command
timer_generation    offset of the command that set the message (`TIMER_SET_AT`)
asks                producer group that is asked about a half message (`TIMER_ASKS`)
recurs              `once` or `skip`, if the message recurs: what is done with an occurrence that was missed
coordinates         `topic/partition/offset` of the record
dup_headers         number of repeated headers of the table
unknown_headers     number of headers that are not in the table: the user's own
decode_error        why the record is malformed
undecodable         whether a text header is not UTF-8 (decoded with U+FFFD), or a header's name may not be
value_bytes, …      size and SHA-256 of the value; the value itself is not part of an event
digest              dlq: the digest by which marks of the redrive log identify the record
digest_unread       dlq, if a header's name may not be UTF-8: the digest in the case that it is not
==================  ==================================================================================================

Spark replaces bytes of a header's name that are not UTF-8 by U+FFFD. A name with U+FFFD is therefore treated as one
that the runtime cannot read; docs/spark.md says why.

The worker's clock probes, the group logs, the pending names and the redrive log hold no messages and give no rows.
`redrive_marks` reads the redrive log.
"""

import functools
import operator
from typing import Final

from pydantic import BaseModel, ConfigDict
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim_spark.session import require
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.causes import FINGERPRINT_PATTERN, MAX_FINGERPRINT_CHARS
from rocketshim_topics.hops import MAX_FAIL_TEXT_BYTES
from rocketshim_topics.limits import CONTROL_CHARACTERS, INT_MAX, LONG_MAX
from rocketshim_topics.names import SHIM_TOPIC
from rocketshim_topics.wire import BAD_HEADER_KEY, HEADER_ORDER, LARGEST, UNREADABLE

__all__ = [
    "EventParams",
    "event_topics",
    "fingerprint",
    "kind_of",
    "transform",
]

_NUMBERS: Final = {name: largest for name, largest in LARGEST.items() if largest is not None}
_COORDINATES: Final = r"\A[a-zA-Z0-9._-]{1,249}/[0-9]{1,10}/[0-9]{1,19}\z"
_DIGITS: Final = r"\A[0-9]{1,19}\z"
_LATEST_MS: Final = 253_402_214_399_999  # 9999-12-30: Python has no later time in all time zones


class EventParams(BaseModel):
    """How records are decoded.

    Attributes:
        namespace: namespace of the shim's topics; `""`: none.
        delay_levels: the worker's delay levels; None: RocketMQ's. They give the due time of a record without one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = ""
    delay_levels: str | None = None


def kind_of(topic: str, namespace: str = "") -> str | None:
    """Return the kind of the records on a physical topic; None if they are no messages, or of another namespace."""
    names = TopicNames(namespace)
    if topic == names.schedule:
        return "schedule"
    if topic == names.parked:
        return "parked"
    if topic == names.timers:
        return "timer"
    if topic.startswith(names.retry_prefix):
        return "retry"
    if topic.startswith(names.dead_letter_prefix):
        return "dlq"
    return None if names.is_ours(topic) else "source"


def event_topics(existing: list[str], sources: list[str], namespace: str = "") -> list[str]:
    """Return the topics to land for these sources: the sources, and all shim topics of the namespace.

    They are in the order in which messages travel: source, timers, schedule, retry, dead-letter, parked; then the
    redrive log.
    """
    order = ("source", "timer", "schedule", "retry", "dlq", "parked", "log")
    log = TopicNames(namespace).redrive_log
    kinds = {topic: "log" if topic == log else kind_of(topic, namespace) for topic in {*existing, *sources}}
    chosen = [topic for topic, kind in kinds.items() if topic in sources or kind not in {None, "source"}]
    return sorted(chosen, key=lambda topic: (order.index(kinds[topic] or "source"), topic))


def transform(records: DataFrame, params: EventParams | None = None) -> DataFrame:
    """Decode records into events.

    Args:
        records: the columns of Spark's Kafka source with headers, or of a landed table.
        params: how records are decoded; None: the defaults.

    Returns:
        the columns that the module's docstring lists.

    Raises:
        SessionError: the frame's session lacks a setting that the result depends on.

    Thread-safety: a pure function of the frame; nothing is read.
    """
    require(records.sparkSession)
    params = EventParams() if params is None else params
    names = TopicNames(params.namespace)
    kind = F.col("kind")
    trusted = kind != "source"
    unreadable = _is_true(F.array_join("headers.key", "").contains("\ufffd"))
    read = (
        records.withColumn("kind", _kind(params.namespace))
        .filter(kind.isNotNull())
        .withColumn("names", _names(_shim_headers()))
        # Null for most records. Spark interprets the functions that check these headers, which is slow.
        .withColumn("checked", F.when(trusted & (kind != "parked"), _shim_headers()))
        .withColumn("checked_names", _names(F.col("checked")))
        .withColumn("at", F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string")))
    )
    probe = kind.isin("schedule", "timer") & (F.size("headers") == 1) & _value("CLOCK").isNotNull()
    read = read.filter(~_is_true(probe))
    hop = _text("HOP_ID")
    has_hop_id = _is_true(hop.rlike(_COORDINATES))
    replayed = _text("REPLAY_ID").isNotNull() & (kind.isin("source", "retry")) & has_hop_id
    levels = DelayLevels.default() if params.delay_levels is None else DelayLevels.parse(params.delay_levels)
    has_target = kind.isin("schedule", "timer", "parked")
    queue = F.when(kind == "schedule", F.col("partition") % DelayLevels.STRIDE)
    # A producer that writes microseconds as its timestamps is in year 50,000 and later.
    stored_at = F.least("timestamp", F.timestamp_millis(F.lit(_LATEST_MS)))
    stored_ms = F.unix_millis("timestamp")
    due_ms = F.coalesce(
        _number("DELIVER_AT_MS"),
        F.try_add(stored_ms, F.coalesce(_number("DELAY_MS"), _queue_delay_ms(queue, levels))),
    )
    texts = [_value(name).cast("string") for name in HEADER_ORDER if name not in _NUMBERS]
    undecodable = functools.reduce(operator.or_, [_is_true(~F.is_valid_utf8(text)) for text in texts])
    return read.select(
        F.when(replayed, "replay").otherwise(kind).alias("kind"),
        "topic",
        "partition",
        "offset",
        stored_at.alias("stored_at"),
        F.coalesce(F.when(~unreadable & (_text("UNIQ_KEY") != ""), _text("UNIQ_KEY")), F.col("at")).alias("msg_id"),
        F.when(trusted, _text("ORIGIN_MESSAGE_ID")).alias("origin_id"),
        F.when(trusted, _text("CONSUMER_GROUP")).alias("grp"),
        F.when(trusted, F.coalesce(F.when(has_target, _text("REAL_TOPIC")), _text("RETRY_TOPIC"))).alias("real_topic"),
        F.when(trusted, _text("RETRY_TOPIC")).alias("origin_topic"),
        _text("TAGS").alias("tag"),
        _text("KEYS").alias("keys"),
        "key",
        F.when(trusted, _number("RECONSUME_TIMES")).cast("int").alias("attempt"),
        queue.cast("int").alias("queue"),
        F.when(queue < DelayLevels.MAX_LEVELS, queue + 1).cast("int").alias("delay_level"),
        F.when(kind == "schedule", _time(due_ms)).alias("due_at"),
        F.when(trusted, _text("FAIL_CLASS")).alias("fail_class"),
        F.when(trusted, _text("FAIL_TEXT")).alias("fail_text"),
        F.when(trusted, fingerprint(_text("FAIL_TEXT"))).alias("fingerprint"),
        F.when(trusted, _time(_number("FAIL_AT_MS"))).alias("failed_at"),
        F.when(trusted, _time(_number("UNHANDLED_SINCE_MS"))).alias("unhandled_since"),
        F.when(trusted, _time(_number("TARGET_TIMESTAMP_MS"))).alias("target_timestamp"),
        F.when(trusted | has_hop_id, hop).alias("hop_id"),
        F.when(trusted | has_hop_id, F.coalesce(_text("REPLAY_ID"), F.when(trusted, _text("USER.REPLAY_ID")))).alias(
            "replay_id"
        ),
        F.when(trusted | has_hop_id, _replay_count(trusted)).cast("int").alias("replay_count"),
        F.coalesce(_time(_number("BORN_TIMESTAMP")), stored_at).alias("born_at"),
        F.when(kind == "parked", _text("PARK_REASON")).alias("park_reason"),
        ((kind == "schedule") & (_text("PARK_FROM").isNotNull() | _is_true(hop.startswith(f"{names.parked}/")))).alias(
            "was_parked"
        ),
        F.when(trusted, _text("TIMER")).alias("timer"),
        F.when(kind == "timer", _text("TIMER_DO")).alias("timer_do"),
        F.when(trusted, _number("TIMER_SET_AT")).alias("timer_generation"),
        F.when(trusted, _text("TIMER_ASKS")).alias("asks"),
        F.when(trusted & _value("TIMER_REPEAT").isNotNull(), F.coalesce(_text("TIMER_LATE"), F.lit("once"))).alias(
            "recurs"
        ),
        F.col("at").alias("coordinates"),
        F.coalesce(F.array_size("names") - F.array_size(F.array_distinct("names")), F.lit(0)).alias("dup_headers"),
        F.coalesce(F.array_size("headers") - F.array_size("names"), F.lit(0)).alias("unknown_headers"),
        F.when(trusted & (kind != "parked"), F.when(unreadable, BAD_HEADER_KEY).otherwise(_decode_error())).alias(
            "decode_error"
        ),
        (undecodable | unreadable).alias("undecodable"),
        F.coalesce(F.octet_length("value"), F.lit(0)).alias("value_bytes"),
        F.sha2("value", 256).alias("value_sha256"),
        F.when(kind == "dlq", _digest(_digest_input_of_headers())).alias("digest"),
        F.when((kind == "dlq") & unreadable, _digest(_digest_input_if_unreadable())).alias("digest_unread"),
    )


def _digest(headers: Column) -> Column:
    """Compute a record's digest as `rocketshim_topics.redrive_log.record_digest` does, from key, value, headers."""
    whole = F.concat(_length_prefixed(F.col("key")), _length_prefixed(F.col("value")), headers)
    return F.substring(F.sha2(whole, 256), 1, 16)


def _digest_input_of_headers() -> Column:
    named = F.transform(
        F.coalesce("headers", F.array()),
        lambda each: F.concat(
            _length_prefixed(_until_nul(each["key"]).cast("binary")), _length_prefixed(each["value"])
        ),
    )
    return F.aggregate(named, F.lit(b""), lambda so_far, part: F.concat(so_far, part))  # noqa: PLW0108 Spark reads the parameter names


def _digest_input_if_unreadable() -> Column:
    parts = [part for name, value in UNREADABLE for part in (name.encode(), value or b"")]
    return F.lit(b"".join(b"%d:%b" % (len(part), part) for part in parts))


def _until_nul(name: Column) -> Column:
    return F.substring_index(name, "\0", 1)


def _length_prefixed(part: Column) -> Column:
    length = F.concat(F.octet_length(part).cast("string"), F.lit(":")).cast("binary")
    return F.coalesce(F.concat(length, part), F.lit(b"-"))


def _replay_count(trusted: Column) -> Column:
    """Return the number of redrives, by the rules of `rocketshim_topics.hops.redrive_count`."""
    carried = F.array_position(F.reverse(F.col("headers.key")), "USER.REPLAY_COUNT").cast("int") - 1
    text = F.get(F.reverse(F.col("headers.value")), carried).cast("string")
    user = F.when(trusted & text.rlike(r"\A[0-9]{1,10}\z"), F.least(text.try_cast("bigint"), F.lit(INT_MAX)))
    return F.greatest(_number("REPLAY_COUNT"), user)


def fingerprint(text: Column) -> Column:
    """Replace numbers and ids in a failure text by `#` and cut it to 120 characters, as `rocketshim dlq stats` does."""
    return F.substring(
        F.regexp_replace(F.substring(text, 1, MAX_FAIL_TEXT_BYTES), FINGERPRINT_PATTERN, "#"), 1, MAX_FINGERPRINT_CHARS
    )


def _is_true(condition: Column) -> Column:
    """Turn an unknown (null) condition into False."""
    return F.coalesce(condition, F.lit(col=False))


def _kind(namespace: str) -> Column:
    names = TopicNames(namespace)
    topic = F.col("topic")
    is_candidate = topic.contains("rmq.") | topic.contains("SCHEDULE_TOPIC_XXXX")  # the regular expression is slow
    foreign = is_candidate & topic.rlike(rf"\A(?:{SHIM_TOPIC.pattern})\z")
    return (
        F.when(topic == names.schedule, "schedule")
        .when(topic == names.parked, "parked")
        .when(topic == names.timers, "timer")
        .when(topic.startswith(names.retry_prefix), "retry")
        .when(topic.startswith(names.dead_letter_prefix), "dlq")
        .when(~foreign, "source")
    )


def _shim_headers() -> Column:
    return F.filter("headers", lambda header: header["key"].isin(*HEADER_ORDER))


def _names(headers: Column) -> Column:
    return F.transform(headers, lambda header: header["key"])


def _value(name: str | Column) -> Column:
    """Return the value of the first header of this name. Spark compiles array look-ups; it interprets `filter`."""
    return F.get("headers.value", F.array_position("headers.key", name).cast("int") - 1)


def _text(name: str) -> Column:
    return F.make_valid_utf8(_value(name).cast("string"))


def _number(name: str) -> Column:
    """Return the number in a header; null if it is not 1 to 19 ASCII digits, or out of range."""
    text = _value(name).cast("string")
    number = text.try_cast("bigint")
    return F.when(text.rlike(_DIGITS) & (number <= _NUMBERS[name]), number)


def _is_bad_number(name: Column) -> Column:
    text = _value(name).cast("string")
    most = F.when(name.isin(*(each for each, limit in _NUMBERS.items() if limit == INT_MAX)), F.lit(INT_MAX))
    is_good = text.rlike(_DIGITS) & (text.try_cast("bigint") <= F.coalesce(most, F.lit(LONG_MAX)))
    return text.isNotNull() & ~_is_true(is_good)


def _time(epoch_ms: Column) -> Column:
    return F.when(epoch_ms <= _LATEST_MS, F.timestamp_millis(epoch_ms))


def _queue_delay_ms(queue: Column, levels: DelayLevels) -> Column:
    delays = [levels.queue_delay_ms(partition) for partition in range(levels.STRIDE)]
    return F.get(F.array(*[F.lit(each).cast("bigint") for each in delays]), queue)


def _decode_error() -> Column:
    """Return why a record on a shim topic is malformed (the first reason found), or null if it is not."""
    names = F.col("checked_names")
    # Distinct names: there are few, but one record may repeat a name 100,000 times.
    repeated = F.filter(F.array_distinct(names), lambda name: F.size(F.array_remove(names, name)) < F.size(names) - 1)
    valueless = F.filter("checked", lambda header: header["value"].isNull())
    fault = F.when(
        F.exists(
            "headers",
            lambda header: ~header["key"].isin(*HEADER_ORDER) & header["key"].rlike(CONTROL_CHARACTERS.pattern),
        ),
        BAD_HEADER_KEY,
    )
    fault = fault.when(F.size(repeated) > 0, F.concat(F.lit("duplicate-header:"), F.get(repeated, F.lit(0))))
    fault = fault.when(F.size(valueless) > 0, F.concat(F.lit("null-header:"), F.get(valueless, F.lit(0))["key"]))
    bad = F.filter(F.array(*map(F.lit, _NUMBERS)), _is_bad_number)
    fault = fault.when(F.size(bad) > 0, F.concat(F.lit("bad-number:"), F.get(bad, F.lit(0))))
    return (
        fault.when(_number("SHIM") != 1, "unknown-version")
        .when(_number("DELAY_MS").isNotNull() & _number("DELIVER_AT_MS").isNotNull(), "two-due-times")
        .when(
            F.col("kind").isin("schedule", "timer") & (F.coalesce(_text("REAL_TOPIC"), F.lit("")) == ""),
            "missing-header:REAL_TOPIC",
        )
    )
