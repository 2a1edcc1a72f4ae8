"""Thousands of corrupted records: no crash, no stuck level, no delivery outside the allow-list."""

import random
from typing import Any

import pytest

# fmt: off
NAMES = [
    "SHIM", "REAL_TOPIC", "REAL_QID", "DELAY", "DELAY_MS", "DELIVER_AT_MS", "UNIQ_KEY", "TAGS", "KEYS",
    "BORN_TIMESTAMP",
    "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIMES", "CONSUMER_GROUP", "FAIL_CLASS", "FAIL_TEXT", "FAIL_AT_MS",
    "HOP_ID", "MAX_RECONSUME_TIMES", "TARGET_TRIES", "PARK_REASON", "PARK_FROM", "CLOCK", "REPLAY_ID", "REPLAY_COUNT",
    "mine", "USER.TAGS", "USER.%0A", "ü", "x\ny", "a" * 200,
]
VALUES: list[bytes | None] = [
    None, b"", b"0", b"1", b"2", b"-1", b"007", b"1e3", b"orders", b"audit", b"payments",
    b"__consumer_offsets", b"%RETRY%g",
    b"%RETRY%", b"%DLQ%g", b"g", b"SCHEDULE_TOPIC_XXXX", b"rmq.parked", b"rmq.retry.g", b"\xff\xfe", b"a/../b",
    b"x" * 400,
    b"900", b"1500", b"1700000001000", b"9223372036854775807", b"9223372036854775808", "١٢".encode(), b"\x00", b"t/0/1",
]
# fmt: on


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_delivered_or_parked_whatever_it_contains(sim: Any, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - the same records in each run
    for name in ("payments", "rmq.retry.g", "rmq.dlq.g", "audit"):
        sim.kafka.create_topic(name, 1)
    worker = sim.worker()
    sent: set[bytes] = set()
    for number in range(600):
        headers: list[tuple[str, bytes | None]] = [("REAL_TOPIC", b"orders"), ("DELAY_MS", b"1000"), ("UNIQ_KEY", b"u")]
        for _ in range(draw.randrange(4)):
            match draw.randrange(4):
                case 0 if headers:
                    del headers[draw.randrange(len(headers))]
                case 1 if headers:
                    at = draw.randrange(len(headers))
                    headers[at] = headers[at][0], draw.choice(VALUES)
                case 2 if headers:
                    headers.append(draw.choice(headers))
                case _:
                    headers.insert(draw.randrange(len(headers) + 1), (draw.choice(NAMES), draw.choice(VALUES)))
        value = b"%d" % number
        sent.add(value)
        sim.kafka.append(
            "SCHEDULE_TOPIC_XXXX", value, key=draw.choice([None, b"", b"k"]), partition=draw.choice([0, 1, 2, 26, 31]),
            headers=headers,
        )  # fmt: skip

    topics = ("orders", "audit", "rmq.retry.g", "rmq.parked")

    def ended() -> list[bytes]:
        return [record.value() for topic in topics for record in sim.kafka.records(topic)]

    def may_have_ended() -> bool:
        """Look at the ends only, which count markers of transactions, too: reading all records 12,000 times is slow."""
        return sum(sum(sim.kafka.end_offsets(topic).values()) for topic in topics) >= len(sent)

    sim.until(worker, lambda: may_have_ended() and len(ended()) >= len(sent), 60_000)
    sim.run(worker, 3_000)
    assert sorted(ended()) == sorted(sent)
    assert sim.kafka.records("payments") == []
    assert sim.kafka.records("rmq.dlq.g") == []
    assert all(held.queue.waiting_count == 0 for held in worker._assignment.held.values())
