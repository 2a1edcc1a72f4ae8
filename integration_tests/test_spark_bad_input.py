"""What nobody should have written, on a real broker: landed byte for byte, read without failing, and said."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from rocketshim.cli import main as rocketshim
from rocketshim_local import Broker
from rocketshim_spark import events
from rocketshim_spark.cli import main
from rocketshim_spark.jobs import audit, delays, lineage, replay
from rocketshim_spark.lake import read_records
from rocketshim_spark.land import land
from rocketshim_spark.running import OpenLake, find_published, open_lake
from rocketshim_topics import TopicNames, decode
from rocketshim_topics.errors import MalformedRecordError

from .test_redrive import alter
from .test_unreadable_headers import write
from .waiting import await_ends_of_transactions

pytestmark = pytest.mark.usefixtures("interpreted")

GUARD_S = 120.0
BIG = 10 * 1024 * 1024
FUTURE_MS = 32_503_680_000_000  # the year 3000
ODD_NAMES = (b"ab\xff\xfe", "ab\ufffd".encode(), b"a\x00b", b"a\x00\xff")
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
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "message.max.bytes": BIG + 65_536, "enable.idempotence": True}
    )
    odd: list[Header] = [("TAGS", b"\xff\xfe"), ("TAGS", b"b"), ("KEYS", None), ("", b""), ("n", None), ("n", b"\x00")]
    for value, headers, at_ms in (
        (b"x" * BIG, odd, 1),
        (None, None, FUTURE_MS),
        (b"", [("BORN_TIMESTAMP", b"9" * 19), ("UNIQ_KEY", b"")], 0),
        (b"\xff", [("RECONSUME_TIMES", b"-1"), ("CONSUMER_GROUP", b"\xc3")], 1_767_268_800_000),
        *[(b"twice", [("UNIQ_KEY", b"one")], FUTURE_MS)] * 2,
    ):
        producer.produce(name, value, headers=headers, timestamp=at_ms, on_delivery=confirmed)
    assert producer.flush(GUARD_S) == 0
    write(broker.bootstrap, name, [(b"UNIQ_KEY", b"unreadable"), (b"ab\xff\xfe", b"1")], b"bad")
    lake = str(tmp_path)
    assert land(spark, broker.bootstrap, [name], lake).rows == 7
    records = read_records(spark, lake)
    stored = records.selectExpr("offset", "octet_length(value) AS bytes", "headers").orderBy("offset").collect()
    assert [row.bytes for row in stored] == [BIG, None, 0, 1, 5, 5, 3]
    assert [(each.key, None if each.value is None else bytes(each.value)) for each in stored[0].headers] == odd
    assert stored[6].headers[1].key == "ab\ufffd\ufffd"  # what Java makes of it; the runtime cannot read it at all
    told = events.transform(records).cache()
    rows = told.orderBy("offset").collect()
    assert [row.kind for row in rows] == ["source"] * 7
    assert [row.undecodable for row in rows] == [True, False, False, True, False, False, True]
    assert (rows[0].tag, rows[0].dup_headers, rows[0].unknown_headers) == ("\ufffd\ufffd", 1, 3)
    assert [row.value_bytes for row in rows] == [BIG, 0, 0, 1, 5, 5, 3]
    assert [row.msg_id for row in rows] == ["one" if at in {4, 5} else f"{name}/0/{at}" for at in range(7)]
    assert {row.decode_error for row in rows} == {None}
    lifecycles = lineage.transform(told).collect()
    assert {lifecycle.msg_id: (lifecycle.state, lifecycle.copies) for lifecycle in lifecycles} == {
        row.msg_id: ("open", int(row.msg_id == "one")) for row in rows
    }
    told.unpersist()


def confirmed(error: KafkaError | None, _: object) -> None:
    assert error is None, error


def test_malformed_records_on_the_shims_own_topics_are_counted_and_stop_no_job(
    spark: SparkSession, broker: Broker, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed() -> str:
        return capsys.readouterr().out

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names = TopicNames(namespace)
    ours = [names.schedule, names.retry("pay"), names.dead_letter("pay")]
    for future in admin.create_topics([NewTopic(name, num_partitions=1) for name in ours]).values():
        future.result(GUARD_S)
    failed: list[Header] = [("CONSUMER_GROUP", b"pay"), ("FAIL_CLASS", b"E"), ("RECONSUME_TIMES", b"1")]
    lists: list[list[Header] | None] = [
        None,
        [("RECONSUME_TIMES", b"many"), ("CONSUMER_GROUP", b"pay"), ("FAIL_CLASS", b"E")],
        [*failed, ("CONSUMER_GROUP", b"pay")],
        [*failed, ("UNIQ_KEY", None)],
        [*failed, ("a\x01b", b"")],
        [*failed, ("SHIM", b"2")],
        [*failed, ("DELAY_MS", b"1"), ("DELIVER_AT_MS", b"1")],
        [*failed, ("FAIL_TEXT", b"<script>\x1b[2J\xff"), ("ORIGIN_MESSAGE_ID", b"nowhere"), ("DELAY_MS", b"9" * 18)],
        [*failed, ("RECONSUME_TIMES", b"2147483648")],
        [("CONSUMER_GROUP", b"%RETRY%"), ("RECONSUME_TIMES", b"2147483647"), ("REPLAY_COUNT", b"2147483647")],
        [("REPLAY_ID", b"r"), ("HOP_ID", f"{ours[-1]}/0/0".encode()), ("RETRY_TOPIC", b"%DLQ%/..")],
    ]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for name in ours:
        for headers in lists:
            producer.produce(name, b"v", headers=headers, on_delivery=confirmed)
    assert producer.flush(GUARD_S) == 0
    for name in ours:
        for odd in ODD_NAMES:
            write(broker.bootstrap, name, [(b"CONSUMER_GROUP", b"pay"), (odd, b"1")], b"bad")
    lake, at = str(tmp_path), ("--lake", str(tmp_path), "--namespace", namespace)
    assert land(spark, broker.bootstrap, ours, lake).rows == 3 * (len(lists) + len(ODD_NAMES))
    view = open_lake(spark, lake, namespace=namespace)
    told = view.events.cache()
    rows = told.collect()
    expected = [*map(fault, lists), *["bad-header-key"] * len(ODD_NAMES)]
    found = {(row.topic, row.offset): row.decode_error for row in rows}
    for offset, reason in enumerate(expected):
        assert found[ours[0], offset] == (reason or "missing-header:REAL_TOPIC")
        assert [found[name, offset] for name in ours[1:]] == [reason, reason]

    assert main(["failures", *at]) == 2
    assert "2 failures of 1 cause: 1 ended dead" in printed()
    page = (tmp_path / "reports" / "failures.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "\x1b" not in page
    unread = audit.malformed(told).collect()
    assert sum(row.records for row in unread) == sum(error is not None for error in found.values())
    lifecycles = lineage.transform(told, lineage.LineageParams(namespace=namespace))
    missing = audit.residuals(lifecycles, view.gaps)
    assert sum(row.sent for row in audit.transform(lifecycles, missing).collect()) == lifecycles.count()
    assert delays.outcomes(told, delays.DelayParams(now=view.now)).collect() == []  # none says where it was to go
    told.unpersist()

    alter(admin, ours[1], "cleanup.policy", "compact")  # from now on, it takes no record without a key
    assert main(["replay", "plan", "--plan", "p", "--bootstrap", broker.bootstrap, *at]) == 0
    reasons = reasons_of_plan(view)
    malformed = {offset: f"malformed:{reason}" for offset, reason in enumerate(expected) if reason is not None}
    assert {offset: reasons[offset] for offset in malformed} == malformed
    assert (len(reasons), f"no-key:{ours[1]}" in reasons.values()) == (len(expected), True)

    # However the runtime reads a letter, what it has done with it is known here.
    written, cluster = str(tmp_path / "plan.json"), ("--bootstrap", broker.bootstrap)
    assert rocketshim(["dlq", "discard", "--group", "pay", "--namespace", namespace, *cluster, "--out", written]) == 0
    assert rocketshim(["dlq", "apply", written, *cluster]) == 0
    await_ends_of_transactions(admin)
    assert f"discarded: {len(expected)}" in printed()
    assert land(spark, broker.bootstrap, [*ours, names.redrive_log], lake).rows > 0
    view, params = open_lake(spark, lake, namespace=namespace), replay.PlanParams(plan_id="p", namespace=namespace)
    again = replay.plan(view.records, view.events, view.topics(), params, settled=view.settled, gaps=view.gaps)
    assert {row.reason.partition(":")[0] for row in again.collect()} == {"discarded-by"}
    assert main(["dlq-trend", *at]) == 0
    assert printed().startswith("dlq-trend: 0 dead letters are left")


def reasons_of_plan(view: OpenLake) -> dict[int, str | None]:
    planned = find_published(view, "replay-p")
    assert planned is not None
    return {row.offset: row.reason for row in planned.collect()}


def fault(headers: list[Header] | None) -> str | None:
    try:
        decode(headers, trusted=True)
    except MalformedRecordError as error:
        return error.reason
    return None
