"""Golden files: the names, the level table and each hop's record, byte for byte, as every version must write them.

A difference here is a change of the public protocol. `python topics/tests/test_golden.py` writes the files again.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocketshim_topics import DelayLevels, Failure, Message, OutgoingRecord, TopicNames, decode, murmur2, partition_for
from rocketshim_topics.hops import (
    check,
    clock_probe,
    dead_letter,
    dead_letter_by_reference,
    delayed_record,
    delivered,
    due_ms,
    fire,
    hopped,
    parked,
    redriven,
    retried_target,
    retry,
    scheduled_timer,
    sent_on,
    source_record,
    timer_command,
    timer_digest,
    timer_state,
)
from rocketshim_topics.partitioner import timer_partition
from rocketshim_topics.wire import HEADER_ORDER, Header

GOLDEN = Path(__file__).parent / "golden"
NAMES = TopicNames()
LEVELS = DelayLevels.default()
T0_MS = 1_767_225_600_000
FAILURE = Failure("ConnectionError", "Verbindung abgelehnt: Zahlstelle »A«", T0_MS + 60_000)
STACK = b'  File "/srv/shop/bank.py", line 41, in charge\n    raise ConnectionError("A")\nConnectionError\n'
TABLES = [
    DelayLevels.DEFAULT,
    "1s 2s 3s",
    "30s 5s 0s 5s",
    "+5s 007m 1d  ",
    " ",
    " ".join(f"{second}s" for second in range(1, 28)),
]
GROUPS = ["payments", "a_b", "a-b", "a.b", "a b", "%", "支付", "é", "x" * 150, "x" * 151, "a-0123456789abcdef"]
GROUPS += ["a-0123456789ABCDEF", "a-0123456789abcde", "-", "GID/pay:1"]


class Stored:
    def __init__(self, record: OutgoingRecord, offset: int, timestamp_ms: int, partition: int | None = None) -> None:
        self.record = record
        self.at = (record.partition or 0) if partition is None else partition, offset
        self.timestamp_ms = timestamp_ms

    def topic(self) -> str:
        return self.record.topic

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> list[Header] | None:
        return self.record.headers or None

    def timestamp(self) -> tuple[int, int]:
        return (2, self.timestamp_ms)


def levels_golden() -> Any:
    return [
        {
            "table": text,
            "delays_ms": list(DelayLevels.parse(text).delays_ms),
            "queue_delay_ms_by_partition": [DelayLevels.parse(text).queue_delay_ms(number) for number in range(32)],
            "queue_for_remaining_ms": {
                str(rest): DelayLevels.parse(text).queue_for(rest)
                for rest in (-1, 0, 31, 32, 480, 967, 968, 1_000, 4_968, 45_000, 1_800_000, 86_400_000)
            },
        }
        for text in TABLES
    ]


def names_golden() -> Any:
    return {
        "header_order": list(HEADER_ORDER),
        "timers": {
            name: [timer_partition("orders", name), timer_digest("orders", name).hex()]
            for name in ("o-7", "支付", "a/b")
        },
        "groups": {group: [NAMES.retry(group), NAMES.dead_letter(group), NAMES.group_log(group)] for group in GROUPS},
        "namespaces": {
            namespace: [
                TopicNames(namespace).schedule,
                TopicNames(namespace).parked,
                TopicNames(namespace).worker_group,
                TopicNames(namespace).timers,
                TopicNames(namespace).timer_state,
                TopicNames(namespace).check("payments"),
                TopicNames(namespace).check("a.b"),
                TopicNames(namespace).physical("%RETRY%payments"),
                TopicNames(namespace).physical("%DLQ%a.b"),
                TopicNames(namespace).physical("orders"),
            ]
            for namespace in ("", "pay", "team_a", "EU-1")
        },
        "partition_of_key_among_12": {
            key: [murmur2(key.encode()), partition_for(key.encode(), 12)] for key in ("", "a", "o-7", "支付", "foobar")
        },
    }


def records_golden() -> Any:
    return {name: shown(record) for name, record in journey().items()}


def journey() -> dict[str, OutgoingRecord]:
    """One record of every hop."""
    user: list[tuple[str, str | bytes | None]] = [("trace", "é"), ("flag", None), ("raw", b"\xff"), ("flag", b"")]
    message = Message("orders", b'{"id": 7}', key="o-7", tag="created", keys=("o-7", "c-1"), properties=user)
    by_level = Message("orders", b"", key=b"\x00", delay_level=99, max_reconsume_times=3)
    by_delay = Message("orders", None, delay="45s", properties={"p": "1"})
    by_time = Message("orders", b"x", deliver_at=T0_MS + 90_000)
    records = {"source": source_record(message, NAMES, uniq_key="u-1", born_ms=T0_MS)}
    for name, delayed in (("level", by_level), ("delay", by_delay), ("deliver_at", by_time)):
        records[f"schedule by {name}"] = delayed_record(
            delayed, NAMES, LEVELS, uniq_key=f"u-{name}", born_ms=T0_MS, now_ms=T0_MS, lane=1, real_qid=4
        )
    records["schedule with a timestamp for the target"] = delayed_record(
        by_delay, NAMES, LEVELS, uniq_key="u-stamp", born_ms=T0_MS, now_ms=T0_MS, lane=0, timestamp_ms=T0_MS - 3_600_000
    )
    waiting = Stored(records["schedule by delay"], 10, T0_MS)
    envelope = decode(waiting.headers(), trusted=True)
    records["schedule hopped on"] = hopped(
        waiting, envelope, NAMES, deliver_at_ms=due_ms(envelope, T0_MS, 30_000), partition=34
    )
    records["schedule after a target's refusal"] = retried_target(
        waiting, envelope, NAMES, due_ms=due_ms(envelope, T0_MS, 0), partition=32
    )
    records["target delivered"] = delivered(waiting, envelope, NAMES)
    records["clock probe"] = clock_probe(NAMES, partition=0)
    records |= timers() | transactions()
    records |= failures(Stored(records["source"], 19, T0_MS + 1, partition=2))
    foreign: list[Header] = [("DELAY", b"mine"), ("a\x01b", b"1"), ("TAGS", b"\xff"), ("TAGS", None), ("x", b"")]
    bare = Stored(OutgoingRecord("plain.topic", None, None, b"v", foreign), 3, T0_MS)
    records["schedule after a foreign record's failure"] = sent_back(bare, 1, trusted=False)
    records["parked"] = parked(
        Stored(OutgoingRecord("SCHEDULE_TOPIC_XXXX", 2, b"k", None, [("SHIM", b"2"), ("DELAY_MS", None)]), 5, T0_MS),
        NAMES,
        "unknown-version",
    )
    return records


def timers() -> dict[str, OutgoingRecord]:
    by_name = Message("orders", b"o-7", key="o-7", tag="created", delay="30m", timer="cancel o-7", at_most="2h")
    unique = Message("orders", b"", deliver_at=T0_MS + 90_000, timer="支付", if_absent=True)
    first, second = (
        delayed_record(each, NAMES, LEVELS, uniq_key="u-timer", born_ms=T0_MS, now_ms=T0_MS, lane=0)
        for each in (by_name, unique)
    )
    command = Stored(first, 70, T0_MS + 1)
    envelope = decode(first.headers, trusted=True)
    waiting = scheduled_timer(command, envelope, NAMES, due_ms=T0_MS + 1_800_001, partition=15)
    fired = fire(Stored(waiting, 3, T0_MS + 1_800_002), decode(waiting.headers, trusted=True), NAMES)
    arrived = Stored(fired, 91, T0_MS + 1_800_003)
    return {
        "timer set": first,
        "timer set if absent": second,
        "timer cancelled": timer_command(
            NAMES, "orders", "cancel o-7", "CANCEL", uniq_key="u-cancel", born_ms=T0_MS + 9
        ),
        "timer set to recur": delayed_record(
            Message("reports", b"daily", timer="daily", cron="0 9 * * 1-5", tz="Europe/Berlin", late="skip"),
            NAMES,
            LEVELS,
            uniq_key="u-cron",
            born_ms=T0_MS,
            now_ms=T0_MS,
            lane=0,
        ),
        "timer waiting in a delay queue": waiting,
        "timer fired": fired,
        "timer delivered": delivered(arrived, decode(fired.headers, trusted=True), NAMES),
        "timer state, pending": timer_state(
            NAMES,
            3,
            envelope,
            applied=70,
            append_ms=T0_MS + 1,
            era=0,
            generation=70,
            due_ms=T0_MS + 1_800_001,
            since_ms=T0_MS,
        ),
        "timer state, ended": timer_state(NAMES, 3, envelope, applied=91, append_ms=T0_MS + 9, era=2, generation=None),
    }


def transactions() -> dict[str, OutgoingRecord]:
    half = delayed_record(
        Message("orders", b"paid", key="o-7", tag="paid", delay="6s", timer="u-half"),
        NAMES,
        LEVELS,
        uniq_key="u-half",
        born_ms=T0_MS,
        now_ms=T0_MS,
        lane=0,
        asks="shop",
    )
    envelope = decode(half.headers, trusted=True)
    waiting = scheduled_timer(Stored(half, 5, T0_MS + 1), envelope, NAMES, due_ms=T0_MS + 6_001, partition=15)
    fired = fire(Stored(waiting, 3, T0_MS + 6_002), decode(waiting.headers, trusted=True), NAMES)
    asking, asks = Stored(fired, 9, T0_MS + 6_003), decode(fired.headers, trusted=True)
    again = scheduled_timer(asking, asks, NAMES, due_ms=T0_MS + 36_003, partition=18)
    state = timer_state(NAMES, 3, asks, applied=9, append_ms=T0_MS + 6_003, era=0, generation=9, due_ms=T0_MS + 36_003)
    return {
        "half message": half,
        "half message, waiting": waiting,
        "half message, fired": fired,
        "half message, waiting again": again,
        "half message, state": state,
        "check": check(asking, asks, NAMES),
        "half message, committed": delivered(Stored(half, 5, T0_MS + 1), envelope, NAMES),
        "half message, unanswered": parked(asking, NAMES, "transaction-unanswered"),
    }


def failures(first: Stored) -> dict[str, OutgoingRecord]:
    waiting = sent_back(first, 1, trusted=False)
    arrived = delivered(Stored(waiting, 4, T0_MS + 2), decode(waiting.headers, trusted=True), NAMES)
    retried = Stored(arrived, 6, T0_MS + 3)
    letter = dead_letter(retried, NAMES, group="payments", trusted=True, failure=FAILURE, reconsume_times=17)
    dead = Stored(letter, 8, T0_MS + 4)
    return {
        "schedule after failure 1": waiting,
        "retry topic": arrived,
        "schedule after failure 2": sent_back(retried, 2, trusted=True),
        "schedule after a member that cannot handle it": sent_on(
            retried, decode(arrived.headers, trusted=True), NAMES, LEVELS, group="payments", delay_ms=10_000, lane=0
        ),
        "dead letter": letter,
        "dead letter by reference": dead_letter_by_reference(
            retried, NAMES, group="payments", trusted=True, failure=FAILURE, reconsume_times=2
        ),
        "dead letter with a stack trace": dead_letter(
            retried,
            NAMES,
            group="payments",
            trusted=True,
            failure=replace(FAILURE, stack_bytes=STACK),
            reconsume_times=17,
        ),
        "redriven to the group": redriven(dead, NAMES, replay_id="r-1"),
        "redriven to the source": redriven(dead, NAMES, replay_id="r-1", to_source=True),
    }


def sent_back(record: Stored, times: int, *, trusted: bool) -> OutgoingRecord:
    return retry(
        record,
        NAMES,
        LEVELS,
        group="payments",
        trusted=trusted,
        failure=FAILURE,
        reconsume_times=times,
        level=None,
        delay_ms=None,
        lane=0,
    )


def shown(record: OutgoingRecord) -> Any:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "key": shown_bytes(record.key),
        "value": shown_bytes(record.value),
        "headers": [[name, shown_bytes(value)] for name, value in record.headers],
    }


def shown_bytes(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
    return text if text.isprintable() else {"base64": base64.b64encode(content).decode()}


FILES: dict[str, Callable[[], Any]] = {
    "levels.json": levels_golden,
    "names.json": names_golden,
    "records.json": records_golden,
}


@pytest.mark.parametrize("name", FILES)
def test_golden_file(name: str) -> None:
    assert json.loads((GOLDEN / name).read_text(encoding="utf-8")) == FILES[name]()


def test_every_header_is_in_a_golden_record() -> None:
    records = json.loads((GOLDEN / "records.json").read_text(encoding="utf-8"))
    seen = {name for record in records.values() for name, _ in record["headers"]}
    assert set(HEADER_ORDER) <= seen


if __name__ == "__main__":
    for file_name, make in FILES.items():
        text = json.dumps(make(), indent=1, ensure_ascii=False)
        (GOLDEN / file_name).write_text(text + "\n", encoding="utf-8")
