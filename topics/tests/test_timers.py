"""Commands for named timers, and the records that are made of them."""

from collections.abc import Callable
from typing import Any

import pytest

from rocketshim_topics import DelayLevels, Message, MessageError, OutgoingRecord, TopicNames, decode
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import (
    command_problem,
    delayed_record,
    fire,
    forwarded,
    is_misplaced,
    scheduled_timer,
    timer_command,
    timer_digest,
)
from rocketshim_topics.partitioner import TIMER_PARTITIONS, timer_partition
from rocketshim_topics.wire import Header

NAMES = TopicNames("pay")
LEVELS = DelayLevels.default()
Stored = Callable[..., Any]


def sent(message: Message) -> OutgoingRecord:
    return delayed_record(message, NAMES, LEVELS, uniq_key="u", born_ms=5, now_ms=5, lane=0)


def test_a_named_message_goes_to_the_partition_of_its_name() -> None:
    out = sent(Message("orders", b"x", delay="30m", timer="o-7"))
    assert (out.topic, out.partition) == ("pay.rmq.timers", timer_partition("orders", "o-7"))
    envelope = decode(out.headers, trusted=True)
    assert (envelope.real_topic, envelope.delay_ms, envelope.timer_do) == ("orders", 1_800_000, "SET")


def test_names_of_different_targets_are_different_timers() -> None:
    assert timer_digest("orders", "a") != timer_digest("payments", "a")
    assert timer_digest("a", "bc") != timer_digest("ab", "c")
    assert len({timer_partition("orders", f"o-{number}") for number in range(100)}) == TIMER_PARTITIONS


def test_a_cancel_has_a_key_of_the_same_partition_for_java_s_partitioner() -> None:
    out = timer_command(NAMES, "orders", "o-7", "CANCEL", uniq_key="u", born_ms=5)
    assert (out.key, out.value, out.partition) == (b"orders/o-7", None, timer_partition("orders", "o-7"))


def test_a_timer_waits_with_its_generation_and_fires_with_it(store: Stored) -> None:
    command = store(sent(Message("orders", b"x", key="k", delay="1s", timer="o-7", at_most="1m")), offset=70)
    envelope = decode(command.headers(), trusted=True)
    waiting = scheduled_timer(command, envelope, NAMES, due_ms=1_005, partition=0)
    assert (waiting.topic, waiting.key, waiting.value) == (NAMES.schedule, b"k", b"x")
    of_waiting = decode(waiting.headers, trusted=True)
    assert (of_waiting.timer, of_waiting.timer_set_at, of_waiting.timer_do) == ("o-7", 70, None)
    assert (of_waiting.deliver_at_ms, of_waiting.delay_ms, of_waiting.timer_at_most_ms) == (1_005, None, None)
    fired = fire(store(waiting, offset=3), of_waiting, NAMES)
    assert (fired.topic, fired.partition, fired.value) == (NAMES.timers, timer_partition("orders", "o-7"), b"x")
    of_fired = decode(fired.headers, trusted=True)
    assert (of_fired.timer_do, of_fired.timer_set_at, of_fired.deliver_at_ms) == ("FIRE", 70, 1_005)


def test_a_named_schedule_record_without_a_generation_is_malformed(store: Stored) -> None:
    out = OutgoingRecord(NAMES.schedule, 0, None, b"", [("REAL_TOPIC", b"orders"), ("TIMER", b"o-7")])
    with pytest.raises(MalformedRecordError, match="no generation"):
        fire(store(out), decode(out.headers, trusted=True), NAMES)


def test_a_command_in_another_partition_is_forwarded_and_its_delay_goes_on(store: Stored) -> None:
    out = sent(Message("orders", b"x", delay="10s", timer="o-7"))
    wrong = (timer_partition("orders", "o-7") + 1) % TIMER_PARTITIONS
    out.partition = wrong
    command = store(out, offset=4, timestamp_ms=1_000)
    envelope = decode(command.headers(), trusted=True)
    assert is_misplaced(command, envelope)
    again = forwarded(command, envelope, NAMES, due_ms=11_000)
    assert again.partition == timer_partition("orders", "o-7")
    following = decode(again.headers, trusted=True)
    assert (following.delay_ms, following.deliver_at_ms, following.timer_do) == (None, 11_000, "SET")
    assert not is_misplaced(store(again), following)


GOOD: list[Header] = [("REAL_TOPIC", b"orders"), ("DELAY_MS", b"5"), ("TIMER", b"o-7"), ("TIMER_DO", b"SET")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"REAL_TOPIC": None}, "missing-header:REAL_TOPIC"),
        ({"TIMER": None}, "missing-header:TIMER"),
        ({"TIMER": b""}, "bad-name:TIMER"),
        ({"TIMER": b" "}, "bad-name:TIMER"),
        ({"TIMER": b"a\x01"}, "bad-name:TIMER"),
        ({"TIMER": b"\xff"}, "bad-name:TIMER"),
        ({"TIMER": b"x" * 256}, "bad-name:TIMER"),
        ({"TIMER_DO": None}, "missing-header:TIMER_DO"),
        ({"TIMER_DO": b"set"}, "bad-command:TIMER_DO"),
        ({"DELAY_MS": None}, "missing-header:DELIVER_AT_MS"),
        ({"DELAY_MS": None, "TIMER_DO": b"CANCEL"}, ""),
        ({"DELAY_MS": None, "TIMER_DO": b"NOW"}, ""),
        ({"TIMER_DO": b"FIRE"}, "missing-header:TIMER_SET_AT"),
    ],
)
def test_what_is_no_command_has_a_reason(store: Stored, change: dict[str, bytes | None], reason: str) -> None:
    headers = [(name, change.get(name, value)) for name, value in GOOD if change.get(name, b"") is not None]
    record = store(OutgoingRecord(NAMES.timers, 0, None, b"", headers))
    assert command_problem(record, decode(headers, trusted=True)) == reason


def test_a_set_without_a_body_is_no_command(store: Stored) -> None:
    record = store(OutgoingRecord(NAMES.timers, 0, None, None, GOOD))
    assert command_problem(record, decode(GOOD, trusted=True)) == "timer-without-body"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "0 9 * * *"}, "without a timer"),
        ({"every": "1m"}, "without a timer"),
        ({"timer": "a", "delay": 1, "recallable": True}, "cancelled by its name"),
        ({"recallable": True}, "without a delay"),
        ({"timer": "a", "cron": "0 9 * * *", "every": "1m"}, "cron and every are given"),
        ({"timer": "a", "cron": "0 9 * * *", "delay": 3}, "delay and cron are given"),
        ({"timer": "a", "cron": "61 9 * * *"}, "Bad minute"),
        ({"timer": "a", "cron": "0 9 * *"}, "five fields"),
        ({"timer": "a", "cron": "0 9 30 2 *"}, "cron is '0 9 30 2"),
        ({"timer": "a", "cron": "0 9 * * *", "tz": "Mars/Olympus"}, "no such time zone"),
        ({"timer": "a", "cron": "0 9 * * *", "tz": 3}, "name of a time zone"),
        ({"timer": "a", "every": "10ms"}, "1 s or more"),
        ({"timer": "a", "every": "soon"}, "every"),
        ({"timer": "a", "every": "1m", "tz": "UTC"}, "no time zone"),
        ({"timer": "a", "every": "1m", "late": "never"}, "once or skip"),
        ({"timer": "a", "every": "1m", "at_most": "2m"}, "never put off"),
        ({"timer": "a", "delay": 1, "late": "skip"}, "of a recurring message"),
        ({"timer": "o-7"}, "without a delay"),
        ({"timer": "o-7", "delay": 0}, "the delay is 0"),
        ({"timer": "", "delay": 1}, "not blank"),
        ({"timer": "\ud800", "delay": 1}, "Unicode"),
        ({"timer": 7, "delay": 1}, "Unicode text"),
        ({"timer": "x" * 256, "delay": 1}, "256 bytes are more than 255"),
        ({"timer": "a\n", "delay": 1}, "control characters"),
        ({"if_absent": True, "delay": 1}, "without a timer"),
        ({"at_most": "1m", "delay": 1}, "without a timer"),
        ({"timer": "o-7", "delay": 1, "if_absent": "no"}, "True or False"),
        ({"timer": "o-7", "delay": 1, "if_absent": True, "at_most": 5}, "never put off"),
        ({"timer": "o-7", "delay": 1, "at_most": "soon"}, "at_most"),
    ],
)
def test_a_named_message_that_cannot_be_is_refused_with_the_way_out(options: dict[str, Any], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        sent(Message("orders", b"", **options))


def test_a_named_tombstone_is_refused() -> None:
    with pytest.raises(MessageError, match="tombstone"):
        Message("orders", None, delay=1, timer="o-7")
