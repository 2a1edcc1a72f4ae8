"""`rocketshim group`: when a release is done, and why a queue does not go on, on the in-memory Kafka."""

import json
from functools import partial
from typing import Any

import pytest

from rocketshim.admin.queue_commands import store_group_record
from rocketshim.cli import group
from rocketshim.cli.options import Connection
from rocketshim.errors import SendError
from rocketshim.kafka.clients import Clients
from rocketshim.settings import ConnectionSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.group_log import (
    ClaimedQueue,
    ClaimRecord,
    LeaseEntry,
    LeaveRecord,
    MemberRecord,
    RenewRecord,
    decode_group_record,
    encode_group_record,
)


def test_a_release_that_is_reported_without_an_offset_is_not_called_done() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("rmq.group.g")
    settings = ConnectionSettings.make(bootstrap="memory:1")
    clients, record = (
        Clients(kafka.consumer, kafka.producer),
        LeaveRecord(client_id="a", incarnation="b", seq=1, lease_ms=1),
    )
    kafka.fail_produce(None)
    with pytest.raises(SendError, match=r"without an offset.*run the command again"):
        store_group_record(settings, "rmq.group.g", record, clients)
    assert store_group_record(settings, "rmq.group.g", record, clients) == 0
    assert [decode_group_record(each.value()) for each in kafka.records("rmq.group.g")] == [record]


@pytest.fixture
def blocked() -> Connection:
    """A member with three queues: two are blocked by the same path of code, one is in a long call."""
    kafka = InMemoryKafka(VirtualClock(start_wall_ms=1_767_225_600_000))
    kafka.create_topic("rmq.group.g")
    base = kafka.clock.wall_ms()
    stamp: dict[str, Any] = {"client_id": "h@1@0", "incarnation": "i", "lease_ms": 60_000}
    claimed = [ClaimedQueue(topic="orders", queue_id=number) for number in (0, 1, 2)]
    failing = LeaseEntry(
        topic="orders", queue_id=0, token=base + 1, confirmed_offset=1, reconsume_counts=((7, 3), (9, 1)),
        failing_ms=2_000, cause="KeyError: 'x\x1b'", trace='  File "a.py", line 1, in \x1bship\n    price()\nKeyError',
    )  # fmt: skip
    again = failing.model_copy(update={"queue_id": 1, "cause": "KeyError: 'y'", "failing_ms": None})
    calling = LeaseEntry(topic="orders", queue_id=2, token=base + 1, confirmed_offset=1, call_offset=4, call_ms=60_000)
    for record in (
        MemberRecord(**stamp, seq=1),
        ClaimRecord(**stamp, seq=2, base=base, queues=tuple(claimed)),
        RenewRecord(**stamp, seq=3, base=base, queues=(failing, again, calling)),
    ):
        kafka.append("rmq.group.g", encode_group_record(record))
    return Connection(bootstrap="memory:1", client={}, clients=kafka.clients())


def test_locks_show_why_messages_fail_each_stack_trace_once_and_what_takes_long(
    blocked: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    show = partial(group.locks, group="g", at=blocked)
    show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[4:-1] == [
        "orders/0/7 fails since 2025-12-31 23:59:58 (UTC): KeyError: 'x\\x1b'",
        "  stack trace:",
        '    File "a.py", line 1, in \\x1bship',
        "      price()",
        "  KeyError",
        "orders/1/7 fails: KeyError: 'y'",
        "  stack trace: that of orders/0/7",
    ]
    assert ["orders/2/4 2025-12-31 23:59:00" in line for line in lines[1:4]] == [False, False, True]
    show(as_json=True)
    rows = json.loads(capsys.readouterr().out)["locks"]
    facts = [(row["failing_since_ms"], row["cause"], (row["stack_trace"] or "")[-8:], row["call"]) for row in rows]
    since_ms = 1_767_225_600_000
    call = {"topic": "orders", "partition": 2, "offset": 4, "since_ms": since_ms - 60_000}
    assert facts == [
        (since_ms - 2_000, "KeyError: 'x\x1b'", "KeyError", None),
        (None, "KeyError: 'y'", "KeyError", None),
        (None, None, "", call),
    ]


def test_members_show_the_calls_that_take_long(blocked: Connection, capsys: pytest.CaptureFixture[str]) -> None:
    show = partial(group.members, group="g", at=blocked)
    show()
    assert "orders/2/4 2025-12-31 23:59:00" in capsys.readouterr().out
    show(as_json=True)
    (member,) = json.loads(capsys.readouterr().out)["members"]
    assert [(call["offset"], call["since_ms"]) for call in member["calls"]] == [(4, 1_767_225_540_000)]
