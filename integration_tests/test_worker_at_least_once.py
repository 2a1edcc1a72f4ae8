"""The worker as a process of its own against a real broker, at least once."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer as PlainProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from rocketshim_topics import Message as Outgoing
from rocketshim_topics.levels import DelayLevels
from test_support.frozen import freeze

from .worker_stage import DEADLINE_S, LEVELS, STAMPED, WorkerStage, first_of, header

SPOILT_NAMES = [
    "SHIM", "REAL_TOPIC", "REAL_QID", "DELAY", "DELAY_MS", "DELIVER_AT_MS", "UNIQ_KEY", "TAGS", "KEYS", "HOP_ID",
    "BORN_TIMESTAMP", "RETRY_TOPIC", "RECONSUME_TIMES", "CONSUMER_GROUP", "FAIL_TEXT", "TARGET_TRIES", "PARK_REASON",
    "CLOCK", "REPLAY_COUNT", "mine", "USER.TAGS", "USER.%0A", "\u00fc", "x\ny", "a" * 200,
]  # fmt: skip
SPOILT_VALUES = [
    None, b"", b"0", b"1", b"2", b"-1", b"007", b"1e3", b"__consumer_offsets", b"%RETRY%g", b"%RETRY%", b"%DLQ%g", b"g",
    b"SCHEDULE_TOPIC_XXXX", b"\xff\xfe", b"a/../b", b"x" * 400, b"900", b"1500", b"1700000001000", b"\x00", b"t/0/1",
    b"9223372036854775807", b"9223372036854775808",
]  # fmt: skip


def test_every_level_any_delay_and_what_is_due_are_delivered_never_early(
    stage: WorkerStage, topic: Callable[..., str]
) -> None:
    target = topic(3, STAMPED)
    levels = DelayLevels.parse(LEVELS)
    process = stage.worker("--allow", target, "--stop-timeout", "60")
    asked: dict[bytes, int] = {}
    with stage.sender() as sender:
        for level in range(1, 19):
            body = b"level %d" % level
            result = sender.send(Outgoing(target, body, key=b"k%d" % level, delay_level=level), timeout_s=DEADLINE_S)
            assert result.offset_msg_id.split("/")[1] == str(level - 1)
            asked[body] = levels.delay_ms(level)
        sender.send(Outgoing(target, b"above", delay_level=99), timeout_s=DEADLINE_S)
        asked[b"above"] = levels.delay_ms(18)
        for delay_ms in (1, 40, 333, 1_500, 2_770, 4_100):
            body = b"delay %d" % delay_ms
            sender.send(Outgoing(target, body, delay=delay_ms / 1_000), timeout_s=DEADLINE_S)
            asked[body] = delay_ms
        at_ms = time.time_ns() // 1_000_000 + 2_345
        sender.send(Outgoing(target, b"at", deliver_at=at_ms), timeout_s=DEADLINE_S)
        sender.send(Outgoing(target, b"past", deliver_at=1_000_000), timeout_s=DEADLINE_S)
        sender.send(Outgoing(target, None, key=b"tombstone", delay=0.1), timeout_s=DEADLINE_S)
        sender.send(Outgoing(target, b"", key=b"empty", delay=0.1), timeout_s=DEADLINE_S)
    found = stage.read_until(target, len(asked) + 4)
    schedule = stage.schedule_records()
    assert len({(record.key(), record.value()) for record in found}) == len(asked) + 4
    for record in found:
        first, hops = first_of(record, schedule)
        waited_ms = record.timestamp()[1] - first.timestamp()[1]
        if record.key() in {b"tombstone", b"empty"}:
            assert record.value() == (None if record.key() == b"tombstone" else b"")
            assert waited_ms >= 100
        elif record.value() == b"at":
            assert record.timestamp()[1] >= at_ms
        elif record.value() == b"past":
            assert first.partition() == levels.queue_for(0)  # the finest queue
            assert hops == 1
        else:
            assert waited_ms >= asked[record.value()], record.value()
            if record.value().startswith(b"level"):
                assert hops == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_a_worker_killed_in_mid_stream_loses_nothing_and_repeats_are_recognisable(
    stage: WorkerStage, topic: Callable[..., str]
) -> None:
    target = topic(2, STAMPED)
    count = 3_000
    plain = PlainProducer({"bootstrap.servers": stage.bootstrap})
    process = stage.worker("--allow", target)
    with stage.sender() as sender:
        for number in range(count):
            if number % 2:
                sender.send_async(Outgoing(target, b"%d" % number, delay=0.3 + number % 7 / 10))
            else:  # a plain producer, with no header but the target: level 1
                plain.produce(
                    stage.names.schedule, b"%d" % number, partition=0, headers=[("REAL_TOPIC", target.encode())]
                )
            if number % 500 == 499:
                assert plain.flush(DEADLINE_S) == 0
                assert sender.flush(DEADLINE_S) == 0
                time.sleep(0.25)  # so that some are delivered before a kill and some are not; any share will do
            if number in {1_499, 2_499}:
                process.kill()
                process.wait(DEADLINE_S)
                process = stage.worker("--allow", target)
    end = time.monotonic() + DEADLINE_S
    while len(bodies := {record.value() for record in stage.read(target)}) < count:
        assert time.monotonic() < end, f"{len(bodies)} of {count}; logs in {stage.logs}"
        time.sleep(0.3)
    schedule = stage.schedule_records()
    first_of_body: dict[bytes, set[str]] = {}
    keys: dict[bytes, set[str | None]] = {}
    for record in stage.read(target):
        first, _ = first_of(record, schedule)
        first_of_body.setdefault(record.value(), set()).add(f"{first.partition()}/{first.offset()}")
        keys.setdefault(record.value(), set()).add(header(record, "UNIQ_KEY"))
        due_ms = first.timestamp()[1] + int(header(first, "DELAY_MS") or 1_000)
        assert record.timestamp()[1] >= due_ms
        origin = schedule[header(record, "HOP_ID") or ""]
        assert origin.value() == record.value()
    assert set(keys) == {b"%d" % number for number in range(count)}
    assert all(len(found) == 1 for found in keys.values())
    assert all(len(found) == 1 for found in first_of_body.values())


def test_bad_records_are_parked_and_hold_up_nobody(stage: WorkerStage, topic: Callable[..., str]) -> None:
    target, gone, small = topic(2, STAMPED), topic(1), topic(1, {"max.message.bytes": "20000"})
    compacted = topic(1, {"cleanup.policy": "compact"})
    allowed = [text for name in (target, gone, small, compacted, "nowhere*") for text in ("--allow", name)]
    plain = PlainProducer({"bootstrap.servers": stage.bootstrap})

    def schedule(
        topic: str | None, value: bytes, headers: list[tuple[str, Any]] | None = None, key: bytes | None = b"k"
    ) -> None:
        to = [] if topic is None else [("REAL_TOPIC", topic.encode())]
        plain.produce(stage.names.schedule, value, key, partition=0, headers=[*to, *(headers or [])])

    stage.admin.delete_topics([gone])[gone].result(DEADLINE_S)
    schedule(None, b"no target")
    schedule(target, b"twice", [("DELAY_MS", b"1"), ("DELAY_MS", b"1")])
    schedule(target, b"no number", [("DELAY_MS", "١٢".encode())])
    schedule("rmq.dlq.g", b"ours")
    schedule("__consumer_offsets", b"internal")
    schedule("payments", b"not allowed")
    schedule("nowhere-1", b"unknown")
    schedule(gone, b"deleted")
    schedule("%RETRY%g", b"other group", [("CONSUMER_GROUP", b"h")])
    schedule(target, b"beyond", [("REAL_QID", b"77")])
    schedule(compacted, b"keyless", key=None)
    for number in range(60):
        schedule(small, b"%04d" % number + b"x" * 1_000)
        schedule(compacted, b"%04d" % number)
    schedule(small, b"y" * 30_000)
    for number in range(50):
        schedule(target, b"%d" % number)
    assert plain.flush(DEADLINE_S) == 0
    stage.worker(*allowed)
    found = stage.read_until(target, 51)
    assert {record.value() for record in found} == {b"beyond"} | {b"%d" % number for number in range(50)}
    stage.read_until(small, 60)
    assert len({record.value() for record in stage.read_until(compacted, 60)}) == 60
    parked = {
        (record.value() or b"")[:20]: header(record, "PARK_REASON")
        for record in stage.read_until(stage.names.parked, 11)
    }
    assert parked == {
        b"no target": "missing-header:REAL_TOPIC",
        b"twice": "duplicate-header:DELAY_MS",
        b"no number": "bad-number:DELAY_MS",
        b"ours": "forbidden-target:shim-topic",
        b"internal": "forbidden-target:internal",
        b"not allowed": "forbidden-target:not-allowed",
        b"unknown": "unknown-topic:nowhere-1",
        b"deleted": f"unknown-topic:{gone}",
        b"other group": "forbidden-target:retry-of-another-group",
        b"keyless": "target-refused:INVALID_RECORD",
        b"y" * 20: "target-refused:MSG_SIZE_TOO_LARGE",
    }
    assert "nowhere-1" not in stage.admin.list_topics(timeout=DEADLINE_S).topics


def test_a_target_deleted_in_mid_stream_ends_parked_and_the_level_goes_on(
    stage: WorkerStage, topic: Callable[..., str]
) -> None:
    target, gone = topic(1, STAMPED), topic(1)
    process = stage.worker("--allow", target, "--allow", gone)
    with stage.sender() as sender:
        sender.send(Outgoing(gone, b"before", delay_level=1), timeout_s=DEADLINE_S)
        stage.read_until(gone, 1)
        freeze(process.pid)  # or it might deliver before the topic is deleted
        sent = [
            sender.send_async(Outgoing(gone if number % 2 else target, b"%d" % number, delay_level=1))
            for number in range(20)
        ]
        for future in sent:
            future.result(DEADLINE_S)
    stage.admin.delete_topics([gone])[gone].result(DEADLINE_S)
    process.send_signal(signal.SIGCONT)
    assert {record.value() for record in stage.read_until(target, 10)} == {b"%d" % number for number in range(0, 20, 2)}
    parked = {record.value() for record in stage.read_until(stage.names.parked, 10)}
    assert parked == {b"%d" % number for number in range(1, 20, 2)}


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])])
def test_thousands_of_spoilt_records_are_delivered_or_parked_and_nothing_else(
    stage: WorkerStage, topic: Callable[..., str], count: int
) -> None:
    target, other, forbidden = topic(2, STAMPED), topic(1), topic(1)
    shims = [stage.names.physical(name) for name in ("%RETRY%g", "%DLQ%g")]
    for future in stage.admin.create_topics([NewTopic(name, 1) for name in shims]).values():
        future.result(DEADLINE_S)
    retry, dead = shims
    draw = random.Random(count)  # noqa: S311 - the same records in each run
    values = [*SPOILT_VALUES, target.encode(), other.encode(), forbidden.encode(), dead.encode(), retry.encode()]
    plain = PlainProducer({"bootstrap.servers": stage.bootstrap})
    for number in range(count):
        headers: list[tuple[str, bytes | None]] = [
            ("REAL_TOPIC", target.encode()), ("DELAY_MS", b"1000"), ("UNIQ_KEY", b"u%d" % number),
        ]  # fmt: skip
        for _ in range(draw.randrange(4)):
            match draw.randrange(4):
                case 0 if headers:
                    del headers[draw.randrange(len(headers))]
                case 1 if headers:
                    at = draw.randrange(len(headers))
                    headers[at] = headers[at][0], draw.choice(values)
                case 2 if headers:
                    headers.append(draw.choice(headers))
                case _:
                    headers.insert(draw.randrange(len(headers) + 1), (draw.choice(SPOILT_NAMES), draw.choice(values)))
        written: Any = headers
        plain.produce(
            stage.names.schedule, b"%d" % number, draw.choice([None, b"", b"k"]), draw.choice([0, 1, 2, 26, 31]),
            headers=written,
        )  # fmt: skip
        if number % 1_000 == 999:
            assert plain.flush(DEADLINE_S) == 0
    process = stage.worker("--allow", target, "--allow", f"{other[:-1]}*", "--stop-timeout", "60")
    sent = {b"%d" % number for number in range(count)}
    end = time.monotonic() + DEADLINE_S + count / 200
    while True:
        ended = {record.value() for name in (target, other, retry, stage.names.parked) for record in stage.read(name)}
        if ended >= sent:
            break
        assert time.monotonic() < end, f"{len(ended)} of {count}; logs in {stage.logs}"
        time.sleep(0.5)
    assert ended == sent
    assert [len(stage.read(name)) for name in (forbidden, dead)] == [0, 0]
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_lanes_grow_under_a_running_worker(stage: WorkerStage, topic: Callable[..., str]) -> None:
    target = topic(1, STAMPED)
    stage.worker("--allow", target)
    with stage.sender() as sender:
        sender.send(Outgoing(target, b"before", delay_level=1), timeout_s=DEADLINE_S)
    stage.read_until(target, 1)
    grown = subprocess.run(
        [
            sys.executable, "-m", "rocketshim", "init", "--bootstrap", stage.bootstrap, "--namespace",
            stage.names.namespace, "--delay-levels", LEVELS, "--lanes", "2",
        ],
        capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert grown.returncode == 0, grown.stdout + grown.stderr
    with stage.sender() as sender:
        results = [
            sender.send(Outgoing(target, b"%d" % number, key=b"k%d" % number, delay_level=1), timeout_s=DEADLINE_S)
            for number in range(20)
        ]
        sender.send(Outgoing(target, b"hops", key=b"k", delay=2.7), timeout_s=DEADLINE_S)
    assert {result.offset_msg_id.split("/")[1] for result in results} == {"0", "32"}
    assert {record.value() for record in stage.read_until(target, 22)} >= {b"hops", b"before"}


def test_retention_that_overtakes_a_running_worker_is_said_and_the_rest_is_delivered(
    stage: WorkerStage, topic: Callable[..., str]
) -> None:
    target = topic(1, STAMPED)
    process = stage.worker("--allow", target)
    with stage.sender() as sender:
        sender.send(Outgoing(target, b"before", delay_level=1), timeout_s=DEADLINE_S)
        stage.read_until(target, 1)
        freeze(process.pid)
        # one request of it is on its way and is answered with the first of these; the others lie there
        for number in range(8):
            result = sender.send(Outgoing(target, b"%d" % number, delay_level=1), timeout_s=DEADLINE_S)
    last = int(result.offset_msg_id.split("/")[2])
    kept = TopicPartition(stage.names.schedule, 0, last - 2)
    for future in stage.admin.delete_records([kept]).values():
        future.result(DEADLINE_S)
    process.send_signal(signal.SIGCONT)
    assert {record.value() for record in stage.read_until(target, 4)} >= {b"before", b"5", b"6", b"7"}
    end = time.monotonic() + DEADLINE_S
    while "worker.position-out-of-range" not in (stage.logs / "worker-0.log").read_text():
        assert time.monotonic() < end, f"logs in {stage.logs}"
        time.sleep(0.1)


def test_a_worker_may_not_write_anywhere_by_default(stage: WorkerStage) -> None:
    process = stage.worker()
    assert process.wait(DEADLINE_S) == 1
    assert "--allow" in (stage.logs / "worker-0.log").read_text()


def test_another_group_must_be_meant(stage: WorkerStage) -> None:
    process = stage.worker("--allow", "x", "--group", "other")
    assert process.wait(DEADLINE_S) == 1
    assert "--replay-everything" in (stage.logs / "worker-0.log").read_text()


def test_no_broker_is_said_within_its_deadline(stage: WorkerStage) -> None:
    stage.bootstrap = "127.0.0.1:1"
    process = stage.worker("--allow", "x")
    assert process.wait(DEADLINE_S) == 1
    assert "worker.cannot-go-on" in (stage.logs / "worker-0.log").read_text()
