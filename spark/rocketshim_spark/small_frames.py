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
        rows: strings, numbers, booleans, timezone-aware times or None, in the order of the schema; thousands, not
            millions.
        schema: `name type, name type`, each type one word.
    """
    fields = [field.split() for field in schema.split(",")]
    names = [name for name, _ in fields]
    text = json.dumps([dict(zip(names, map(_plain, row), strict=True)) for row in rows])
    struct = ",".join(f"{name}:{kind}" for name, kind in fields)
    parsed = F.from_json(F.lit(text), f"array<struct<{struct}>>")
    return spark.range(0, 1, 1, 1).select(F.inline(parsed))


def _plain(value: Any) -> Any:
    return value.astimezone(dt.UTC).isoformat() if isinstance(value, dt.datetime) else value
