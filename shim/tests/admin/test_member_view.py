"""The members of a group, as its log shows them."""

import json

import pytest

from rocketshim.admin.group_log_snapshot import GroupLogStanding, group_log
from rocketshim.admin.member_view import LongCall, MemberView, long_call, member_views
from rocketshim.settings import ConnectionSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.group_log import (
    ClaimedQueue,
    ClaimRecord,
    LeaseEntry,
    LeaveRecord,
    MemberRecord,
    RenewRecord,
    encode_group_record,
)
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.names import TopicNames

NAMES = TopicNames()


class Log:
    """A group's log that gets records by hand."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kafka = InMemoryKafka(self.clock)
        self.kafka.create_topics(Layout(NAMES, DelayLevels.default()).for_group("g", with_log=True))
        self.base = self.clock.wall_ms()

    def append(self, record: ClaimRecord | MemberRecord | LeaveRecord | RenewRecord) -> None:
        self.kafka.append(NAMES.group_log("g"), encode_group_record(record))

    def heartbeat(self, name: str, *, version: str | None = "0.2.0", lease_ms: int = 60_000) -> None:
        self.append(MemberRecord(client_id=name, incarnation="i", seq=1, lease_ms=lease_ms, version=version))

    def standing(self) -> GroupLogStanding:
        return group_log(ConnectionSettings.make(bootstrap="memory:1"), "g", self.kafka.clients())

    def views(self) -> dict[str, MemberView]:
        return {each.client_id: each for each in member_views(self.standing())}


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_member_has_its_version_its_first_heartbeat_and_what_differs_from_most(log: Log) -> None:
    for name in ("h@1@0", "h@2@0"):
        log.heartbeat(name)
    log.heartbeat("old@3@0", version=None, lease_ms=6_000)
    log.clock.advance(4_000)
    for name in ("h@1@0", "h@2@0"):
        log.heartbeat(name)
    found = log.views()
    assert [each.differs for each in found.values()] == [(), (), ("version", "lease")]
    first = found["h@1@0"]
    assert (first.version, first.since_ms - log.base, first.gone_in_ms) == ("0.2.0", 0, 60_000)
    assert found["old@3@0"].gone_in_ms == 2_000


def test_a_member_has_the_queues_that_it_holds_and_the_first_failing_record_of_each(log: Log) -> None:
    log.heartbeat("h@1@0")
    log.heartbeat("h@2@0")
    queues = tuple(ClaimedQueue(topic="orders", queue_id=number) for number in (0, 1))
    claim = ClaimRecord(client_id="h@1@0", incarnation="i", seq=2, lease_ms=60_000, base=log.base, queues=queues)
    log.append(claim)
    entry = LeaseEntry(
        topic="orders", queue_id=1, token=log.base + 2, confirmed_offset=2, next_offset=7,
        reconsume_counts=((7, 80), (9, 1)),
    )  # fmt: skip
    log.append(RenewRecord(**{**json.loads(claim.model_dump_json()), "kind": "renew", "seq": 3, "queues": (entry,)}))
    first, second = log.views().values()
    assert (first.queues, first.failing) == (("orders/0", "orders/1"), ("orders/1/7",))
    assert (second.queues, second.failing) == ((), ())


def test_a_member_has_the_calls_of_its_queues_that_take_long_until_its_lease_ends(log: Log) -> None:
    log.heartbeat("h@1@0")
    queues = tuple(ClaimedQueue(topic="orders", queue_id=number) for number in (0, 1, 2))
    claim = ClaimRecord(client_id="h@1@0", incarnation="i", seq=2, lease_ms=6_000, base=log.base, queues=queues)
    log.append(claim)

    def renew(number: int, call_ms: int | None, *, token: int = 1) -> None:
        entry = LeaseEntry(
            topic="orders", queue_id=number, token=log.base + token, confirmed_offset=1, call_offset=7, call_ms=call_ms
        )
        stamp = json.loads(claim.model_dump_json()) | {"kind": "renew", "seq": 3}
        log.append(RenewRecord(**{**stamp, "queues": (entry,)}))

    renew(0, None)
    renew(1, 5_000)
    renew(2, 9_000)
    now_ms = log.clock.wall_ms()
    calls = [LongCall("orders", 2, 7, now_ms - 9_000), LongCall("orders", 1, 7, now_ms - 5_000)]
    assert list(log.views()["h@1@0"].calls) == calls
    renew(0, 9_000, token=0)  # of a lease before this one
    renew(1, None)
    assert list(log.views()["h@1@0"].calls) == calls[:1]
    for _ in range(2):
        log.clock.advance(5_000)
        log.heartbeat("h@1@0")
    assert log.views()["h@1@0"].calls == ()
    assert long_call(log.standing(), MessageQueue("orders", queue_id=2)) is None
    log.heartbeat("h@2@0")
    log.append(claim.model_copy(update={"client_id": "h@2@0"}))
    assert (log.views()["h@2@0"].queues, log.views()["h@2@0"].calls) == (("orders/0", "orders/1", "orders/2"), ())


def test_a_member_that_has_left_or_is_silent_is_not_there(log: Log) -> None:
    log.heartbeat("h@1@0")
    log.heartbeat("h@2@0", lease_ms=4_000)
    log.heartbeat("h@3@0")
    log.append(LeaveRecord(client_id="h@1@0", incarnation="i", seq=2, lease_ms=60_000))
    log.clock.advance(4_000)
    log.heartbeat("h@3@0")
    assert list(log.views()) == ["h@3@0"]
