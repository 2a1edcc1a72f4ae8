"""Named timers: what the log of timers did with each message, by its own order.

`rocketshim.core.named_timers` has the rules. Here they are window functions over the commands of each name, sorted by
their offsets, because a name may have very many. A *generation* begins with a SET, with a SET-IF-ABSENT that found no
message, or with the FIRE of a message that waits again: it recurs, or is the half message of a transaction, whose
producers are asked. It ends with the first of these commands behind it: a SET, a CANCEL,
a NOW (unless the message recurs), or its own FIRE.

===============  ===================================================================================================
fate             meaning for a SET or FIRE
===============  ===================================================================================================
`fired`          its FIRE counts, so the message is delivered
`delivered-now`  a NOW came before its FIRE, so the message is delivered
`recurs`         its FIRE counts, and has set the next occurrence
`asked`          its FIRE counts, and the producers of the half message are asked; or it is parked, without an answer
`cancelled`      a CANCEL came before its FIRE
`replaced`       a SET came before its FIRE
`dropped`        a SET-IF-ABSENT that found a message with this name
`voided`         a FIRE that came too late
null             none of these yet: the message waits
===============  ===================================================================================================

A record that the worker has parked, or forwarded to the partition of its name, is no command. What retention deleted
before it was landed is not known: a message then looks as if it waited, or had fired.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

__all__ = ["VOIDED", "fates"]

VOIDED: Final = ("cancelled", "replaced", "dropped", "voided")
"""Fates of messages that are never delivered."""
_SETS: Final = ("SET", "SET-IF-ABSENT")
# Why a command is parked that does nothing. A command whose message is parked, since its hop was refused, counts.
_REFUSED: Final = "^(forbidden-target|missing-header|malformed|bad-|timer-without-body|no-append-time)"


def fates(events: DataFrame) -> DataFrame:
    """Return the events of the SETs and FIREs in the log of timers, each with `fate` and `counts`.

    `counts` is false for a FIRE that came too late or again. The fate of a FIRE that counts is that of the occurrence
    which it has set.

    Args:
        events: as `rocketshim_spark.events.transform` returns them; at least the log of timers and the parked records.

    Decides: What became of a named timer, in a report? The first command behind it that ends its name.
    """
    is_command = (F.col("kind") == "timer") & F.col("decode_error").isNull() & F.col("timer").isNotNull()
    log = events.filter(is_command & F.col("timer_do").isin(*_SETS, "CANCEL", "NOW", "FIRE"))
    is_refused = (F.col("kind") == "parked") & F.col("park_reason").rlike(_REFUSED)
    is_forwarded = is_command & (F.col("timer_do") != "FIRE") & F.col("hop_id").isNotNull()
    not_commands = events.filter(is_refused | is_forwarded).select(F.col("hop_id").alias("made_from"))
    log = log.join(not_commands, F.col("coordinates") == F.col("made_from"), "left_anti")
    command, offset, recurs = F.col("timer_do"), F.col("offset"), F.col("recurs").isNotNull()
    fires = (
        log.filter(command == "FIRE")
        .groupBy(F.col("partition").alias("of_part"), F.col("timer_generation").alias("of_generation"))
        .agg(F.min("offset").alias("fired_by"))
    )
    of_name = Window.partitionBy("partition", "real_topic", "timer")
    before = of_name.orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    # From the newest to the oldest: a window that looks forward takes quadratic time.
    after = of_name.orderBy(F.desc("offset")).rowsBetween(Window.unboundedPreceding, -1)
    ends, now = F.when(command.isin("SET", "CANCEL"), F.struct("offset", "timer_do")), F.when(command == "NOW", offset)
    log = _with_first_fire(log, fires, F.col("timer_generation"), "is_fired_by")
    log = log.withColumns(
        {
            "ended_before": F.max(ends).over(before),
            "now_before": F.max(now).over(before),
            # Whether the message recurs that a NOW finds.
            "recurred": F.max(F.when(command.isin(*_SETS, "FIRE"), F.struct(offset, recurs.alias("it")))).over(before),
            "ended_after": F.min(ends).over(after),
            "now_after": F.min(now).over(after),
        }
    )
    counts = (
        (offset == F.col("is_fired_by"))
        & (F.coalesce("ended_before.offset", F.lit(-1)) <= F.col("timer_generation"))
        & (recurs | (F.coalesce("now_before", F.lit(-1)) <= F.col("timer_generation")))
    )
    log = log.withColumn("counts", (command != "FIRE") | F.coalesce(counts, F.lit(col=False)))
    is_pending = (
        F.when(command.isin(*_SETS), F.lit(col=True))
        .when(command == "CANCEL", F.lit(col=False))
        .when(command == "NOW", F.coalesce("recurred.it", F.lit(col=False)))
        .when(F.col("counts"), recurs | F.col("asks").isNotNull())
    )
    pending = F.max(F.when(is_pending.isNotNull(), F.struct(offset, is_pending.alias("it")))).over(before)
    its_fire = F.when((command == "FIRE") & F.col("counts"), F.struct("offset", "timer_generation"))
    log = log.withColumns({"pending": pending, "fire_after": F.min(its_fire).over(after)})
    log = log.filter(command.isin(*_SETS, "FIRE"))
    log = _with_first_fire(log, fires, offset, "fires_at")
    # If its SET was not landed, a later FIRE of an older message shows that this one was pending.
    was_pending = F.coalesce("pending.it", F.lit(col=False)) | F.coalesce(
        (F.col("fire_after.timer_generation") < offset)
        & ~F.coalesce(F.col("ended_after.offset") < F.col("fire_after.offset"), F.lit(col=False)),
        F.lit(col=False),
    )
    fate = (
        F.when((command == "SET-IF-ABSENT") & F.col("fires_at").isNull() & was_pending, "dropped")
        .when((command == "FIRE") & ~F.col("counts"), _of_late_fire())
        .when((command == "FIRE") & ~recurs & F.col("asks").isNull(), "fired")
        .otherwise(_of_generation(recurs))
    )
    return log.select(*events.columns, "counts", fate.alias("fate"))


def _with_first_fire(log: DataFrame, fires: DataFrame, generation: Column, name: str) -> DataFrame:
    joined = log.join(fires, (F.col("partition") == F.col("of_part")) & (generation == F.col("of_generation")), "left")
    return joined.withColumnRenamed("fired_by", name).drop("of_part", "of_generation")


def _of_generation(recurs: Column) -> Column:
    """Return what the first command behind a message did to it."""
    never = F.lit(2**63 - 1)
    ended, fired = F.coalesce("ended_after.offset", never), F.coalesce("fires_at", never)
    now = F.when(recurs, never).otherwise(F.coalesce("now_after", never))
    return (
        F.when((ended < never) & (ended < fired) & (ended < now), _word(F.col("ended_after.timer_do")))
        .when(now < fired, "delivered-now")
        .when(fired < never, _fired())
    )


def _of_late_fire() -> Column:
    """Return why a FIRE does not count."""
    is_repeat = F.col("is_fired_by") < F.col("offset")
    return (
        F.when(is_repeat, _fired())
        .when(F.col("ended_before.offset") > F.col("timer_generation"), "voided")
        .otherwise("delivered-now")
    )


def _fired() -> Column:
    return F.when(F.col("recurs").isNotNull(), "recurs").when(F.col("asks").isNotNull(), "asked").otherwise("fired")


def _word(command: Column) -> Column:
    return F.when(command == "SET", "replaced").otherwise("cancelled")
