"""Plans of new positions for a group."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.admin.group_log_snapshot import GroupLogStanding
from rocketshim.admin.group_reset import ResetPlan, ResetTarget, plan_reset
from rocketshim.core.start_position import CommitMetadata, decode_metadata, encode_metadata
from rocketshim.errors import ConfigError, TopicMissingError
from rocketshim.locks.fold import GroupLog
from rocketshim.observe.snapshot import GroupStanding, PartitionStanding
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import MemberRecord

NOW_MS = 1_000_000_000
KEY = TopicPartitionKey("t", 0)


def facts(low: int = 0, end: int = 9, **changes: Any) -> dict[str, Any]:
    before = PartitionStanding("t", 0, position=5, low=low, end=end, member=None, metadata="kept")
    values: dict[str, Any] = {
        "standing": GroupStanding("g", "EMPTY", changes.pop("members", ()), (before,)),
        "bounds": {KEY: (low, end)},
        "at_time": {},
        "log": None,
        "now_ms": NOW_MS,
    }
    return values | changes


def planned(known: dict[str, Any], **target: Any) -> ResetPlan:
    return plan_reset(
        known["standing"],
        [KEY],
        ResetTarget(**target),
        **{name: each for name, each in known.items() if name != "standing"},
    )


@given(low=st.integers(0, 50), count=st.integers(0, 50), found=st.none() | st.integers(0, 120))
def test_every_target_lies_between_the_first_record_and_the_end(low: int, count: int, found: int | None) -> None:
    known = facts(low, low + count, at_time={} if found is None else {KEY: found})
    for target in ({}, {"latest": True}, {"at_ms": 5}):
        [reset] = planned(known, **target).resets
        assert low <= reset.target <= low + count
        assert (reset.position, reset.metadata) == (5, "kept")
    assert planned(known).resets[0].target == low
    assert planned(known, latest=True).resets[0].target == low + count
    if found is not None and low <= found <= low + count:
        assert planned(known, at_ms=5).resets[0].target == found


def test_a_topic_that_is_deleted_while_the_plan_is_made_is_an_error_that_names_it() -> None:
    with pytest.raises(TopicMissingError, match="t/0 was deleted meanwhile; nothing was changed"):
        planned(facts(bounds={}))


def test_a_time_after_the_last_record_is_the_end() -> None:
    assert planned(facts(at_time={}), at_ms=5).resets[0].target == 9


@pytest.mark.parametrize("offset", [1, 10])
def test_an_offset_outside_of_a_partition_is_refused(offset: int) -> None:
    with pytest.raises(ConfigError, match=r"t/0 has the offsets 2 to 9; nothing was changed"):
        planned(facts(low=2), offset=offset)


def test_a_plan_for_a_group_with_members_names_a_few_of_them() -> None:
    plan = planned(facts(members=tuple(f"m{number}@host" for number in range(5))))
    assert plan.refused is not None
    assert "5 running members (m0@host, m1@host, m2@host …)" in plan.refused
    assert planned(facts()).refused is None


@pytest.mark.parametrize(("silent_ms", "is_running"), [(0, True), (25_000, True), (100_000, False)])
def test_members_that_allocate_queues_themselves_are_seen_in_the_log(silent_ms: int, is_running: bool) -> None:
    log = GroupLog(0)
    heartbeat = MemberRecord(client_id="alone", incarnation="i", seq=1, lease_ms=30_000, strategy="AVG")
    log.fold(0, NOW_MS, heartbeat)
    assert log.members, "the heartbeat counts"
    standing = GroupLogStanding(log, last_append_ms=NOW_MS)
    plan = planned(facts(log=standing, now_ms=NOW_MS + silent_ms), latest=True)
    assert (plan.refused is not None) is is_running
    assert plan.members == (("alone",) if is_running else ())


def test_a_member_that_kafka_and_the_log_know_counts_once_under_the_name_with_its_process() -> None:
    log = GroupLog(0)
    log.fold(0, NOW_MS, MemberRecord(client_id="vm@4711@0", incarnation="i", seq=1, lease_ms=30_000, strategy=None))
    there = facts(log=GroupLogStanding(log, last_append_ms=NOW_MS), now_ms=NOW_MS, members=("rocketshim@127.0.0.1",))
    assert planned(there, latest=True).members == ("vm@4711@0",)


def test_the_position_of_an_orderly_group_is_set_without_its_owner_s_token_so_that_it_counts_in_any_direction() -> None:
    owned = encode_metadata(CommitMetadata("digest", 3, "t=*", 77))
    before = PartitionStanding("t", 0, position=5, low=0, end=9, member=None, metadata=owned)
    known = facts(standing=GroupStanding("g", "EMPTY", (), (before,)))
    [reset] = planned(known, offset=2).resets
    assert decode_metadata(reset.metadata) == CommitMetadata("digest", 3, "t=*")
