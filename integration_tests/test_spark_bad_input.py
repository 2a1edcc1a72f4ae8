"""What nobody should have written, on a real broker: landed byte for byte, read without failing, and said."""

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaError, Producer
from pyspark.sql import SparkSession

from rocketshim.local import Broker
from rocketshim_spark import events
from rocketshim_spark.cli import main
from rocketshim_spark.land import land, read_records

GUARD_S = 120.0
BIG = 10 * 1024 * 1024
FUTURE_MS = 32_503_680_000_000  # the year 3000
Header = tuple[str, bytes | None]


def test_values_of_10_mb_odd_headers_and_odd_clocks_are_landed_and_read(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(
        config={
            "max.message.bytes": str(BIG + 65_536),
            "message.timestamp.after.max.ms": str(2**63 - 1),
            "retention.ms": "-1",
        }
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": BIG + 65_536})
    odd: list[Header] = [("TAGS", b"\xff\xfe"), ("TAGS", b"b"), ("KEYS", None), ("", b""), ("n", None), ("n", b"\x00")]
    for value, headers, at_ms in (
        (b"x" * BIG, odd, 1),
        (None, None, FUTURE_MS),
        (b"", [("BORN_TIMESTAMP", b"9" * 19), ("UNIQ_KEY", b"")], 0),
        (b"\xff", [("RECONSUME_TIMES", b"-1"), ("CONSUMER_GROUP", b"\xc3")], 1_767_268_800_000),
    ):
        producer.produce(name, value, headers=headers, timestamp=at_ms, on_delivery=confirmed)
    assert producer.flush(GUARD_S) == 0
    lake = str(tmp_path)
    assert land(spark, broker.bootstrap, [name], lake).rows == 4
    records = read_records(spark, lake)
    stored = records.selectExpr("offset", "octet_length(value) AS bytes", "headers").orderBy("offset").collect()
    assert [row.bytes for row in stored] == [BIG, None, 0, 1]
    assert [(each.key, None if each.value is None else bytes(each.value)) for each in stored[0].headers] == odd
    rows = events.transform(records).orderBy("offset").collect()
    assert [row.kind for row in rows] == ["source"] * 4
    assert [row.undecodable for row in rows] == [True, False, False, True]
    assert (rows[0].tag, rows[0].dup_headers, rows[0].unknown_headers) == ("\ufffd\ufffd", 1, 3)
    assert [row.value_bytes for row in rows] == [BIG, 0, 0, 1]
    assert [row.msg_id for row in rows] == [f"{name}/0/{offset}" for offset in range(4)]
    assert {row.decode_error for row in rows} == {None}
    for job in ("failures", "audit"):
        assert main([job, "--lake", lake]) == 0, job


def confirmed(error: KafkaError | None, _: object) -> None:
    assert error is None, error
