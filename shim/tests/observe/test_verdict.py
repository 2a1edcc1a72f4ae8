"""The verdict on hand-made looks. integration_tests/test_verdict.py breaks a real cluster."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.observe.finding import Finding, Installation, Severity
from rocketshim.observe.snapshot import (
    DelayQueue,
    Earlier,
    FailingMessage,
    GroupStanding,
    MissingTarget,
    PartitionStanding,
    Snapshot,
    TopicSnapshot,
    WorkerSnapshot,
)
from rocketshim.observe.verdict import verdict, worst_first
from rocketshim_topics import DelayLevels, Layout, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

NOW_MS = 1_800_000_000_000
HERE = Installation("b:9092", Layout(TopicNames(), DelayLevels.default()))
ORDERS = TopicPartitionKey("orders", 0)


def queue(waiting: int, age_ms: int | None = None, topic: str = "SCHEDULE_TOPIC_XXXX", low: int = 0) -> DelayQueue:
    """Return a queue of 10 s whose first record was appended that long ago."""
    first_ms = None if age_ms is None else NOW_MS - age_ms
    return DelayQueue(0, 10_000, PartitionStanding(topic, 0, 0, low, waiting, first_unread_ms=first_ms))


def reading(behind: int, age_ms: int | None, members: tuple[str, ...] = ("c@h",), low: int = 0) -> GroupStanding:
    first_ms = None if age_ms is None else NOW_MS - age_ms
    return GroupStanding(
        "pay", "STABLE", members, (PartitionStanding("orders", 0, 0, low, behind, first_unread_ms=first_ms),)
    )


def sound(**changes: Any) -> Snapshot:
    values: dict[str, Any] = {
        "worker": GroupStanding("rmq.sched", "STABLE", ("w@h",)),
        "queues": (queue(5, 3_000),),
        "groups": (reading(5, 3_000),),
        "dead": (TopicSnapshot("rmq.dlq.pay", "pay", 7, 9, 2),),
        "parked": TopicSnapshot("rmq.parked", None, 1, 1),
        "workers": (WorkerSnapshot("http://w:1", is_ready=True),),
    }
    return Snapshot(at_ms=NOW_MS, **(values | changes))


NOBODY = GroupStanding("rmq.sched", "EMPTY", ())
POISON = FailingMessage("pay", "orders", 0, 3, 80, NOW_MS - 78_000, "ConnectionError: no route")
GROWING = Earlier(NOW_MS - 10_000, {"pay": 3})

BROKEN: list[tuple[str, Severity, str, dict[str, Any]]] = [
    ("worker-missing", Severity.ERROR, "5 offsets wait", {"worker": NOBODY}),
    ("worker-missing", Severity.ERROR, "5 offsets", {"worker": NOBODY, "queues": (queue(5, 60_000),)}),
    ("worker-missing", Severity.ERROR, "1 offset waits", {"worker": NOBODY, "queues": (queue(1, 60_000),)}),
    ("worker-missing", Severity.NOTE, "nothing waits", {"worker": NOBODY, "queues": (queue(5),)}),  # only probes
    ("worker-missing", Severity.ERROR, "2 offsets wait",
     {"worker": NOBODY, "queues": (), "timers": (queue(2, 0, "rmq.timers"),)}),
    ("worker-late", Severity.WARNING, "6 s ago", {"queues": (queue(5, 16_000),)}),
    ("worker-late", Severity.ERROR, "1 min 1 s ago", {"queues": (queue(5, 71_000),)}),
    ("timers-late", Severity.ERROR, "named timer",
     {"timers": (replace(queue(5, 61_000, "rmq.timers"), delay_ms=0),)}),
    ("worker-not-ready", Severity.WARNING, "refused", {"workers": (WorkerSnapshot("http://w:1", "refused"),)}),
    ("target-avoided", Severity.ERROR, "NOT_LEADER",
     {"workers": (WorkerSnapshot("http://w:1", is_ready=True, avoided={"orders": "NOT_LEADER"}),)}),
    ("target-missing", Severity.WARNING, "first due in 12 min",
     {"missing": (MissingTarget("invoices", 10, NOW_MS + 720_000),)}),
    ("queue-blocked", Severity.ERROR, "orders/0/3 has failed 80 times for 1 min 18 s: ConnectionError: no route",
     {"failing": (POISON,)}),
    ("queue-blocked", Severity.ERROR, "the consumer's log has the cause",
     {"failing": (replace(POISON, cause=None, since_ms=None),)}),
    ("dead-letters-rising", Severity.WARNING, "15 minutes (3 within 24 h), lately most by E: f",
     {"dead": (TopicSnapshot("rmq.dlq.pay", "pay", 7, 9, 3, 2, "E: f"),)}),
    ("group-behind", Severity.WARNING, "5 unread offsets of orders, the oldest for 8 s, and growing",
     {"groups": (reading(5, 8_000),), "earlier": GROWING}),
    ("group-behind", Severity.WARNING, "the oldest for 1 min, and shrinking",
     {"groups": (reading(5, 60_000),), "earlier": Earlier(NOW_MS - 9_000, {"pay": 9})}),
    ("group-behind", Severity.WARNING, "no consumer of the group is running", {"groups": (reading(5, 9_000, ()),)}),
    ("retention-overtook", Severity.ERROR, "retention deleted 2", {"queues": (queue(5, 3_000, low=2),)}),
    ("retention-overtook", Severity.ERROR, "retention deleted 2", {"groups": (reading(5, 3_000, low=2),)}),
    ("not-looked-at", Severity.NOTE, "do not answer", {"unknown": (ORDERS,)}),
    ("not-looked-at", Severity.NOTE, "group pay: denied", {"unread": ("group pay: denied",)}),
    ("clock-skew", Severity.WARNING, "2 min or more behind", {"clock_behind_ms": 120_000}),
]  # fmt: skip


@pytest.mark.parametrize(("late_ms", "is_clock_sure"), [(86_410_000, False), (86_410_000, True), (60_000, False)])
def test_messages_that_are_very_late_may_only_seem_so_by_a_clock_that_is_ahead(
    late_ms: int, is_clock_sure: bool
) -> None:
    look = sound(worker=NOBODY, queues=(queue(5, late_ms),), is_clock_sure=is_clock_sure)
    [finding] = verdict(HERE, look)
    has_doubt = late_ms > 60_000 and not is_clock_sure
    assert ("or this machine's clock is ahead" in finding.cost) is has_doubt


def test_a_sound_installation_has_no_findings() -> None:
    assert verdict(HERE, sound()) == []


@pytest.mark.parametrize(("check", "severity", "text", "broken"), BROKEN)
def test_one_fault_is_one_finding_with_cost_and_way_out(
    check: str, severity: Severity, text: str, broken: dict[str, Any]
) -> None:
    [finding] = verdict(HERE, sound(**broken))
    assert (finding.check, finding.severity) == (check, severity)
    assert text in finding.what
    assert finding.cost
    assert finding.fix


@pytest.mark.parametrize(
    "calm",
    [
        {"queues": (queue(5, 15_000),)},  # late by less than a hand-over between workers takes
        {"failing": (replace(POISON, attempts=2),)},
        {"groups": (reading(5, 30_000),), "earlier": Earlier(NOW_MS - 9_000, {"pay": 5})},
        {"groups": (reading(5, 30_000),)},  # whether it grows is not known yet
        {"groups": (reading(5, 5_900),), "earlier": GROWING},  # not committed yet
        {"groups": (reading(5, None, ()),)},  # only marks of transactions
        {"groups": (reading(5, 9_000, ()),), "log_members": {"pay": 2}},  # Kafka does not know these members
        {"clock_behind_ms": 120_000, "is_clock_sure": True},  # `at_ms` is the brokers' time
        {"worker": NOBODY, "queues": ()},  # there are no delay queues
        {"worker": None},  # the principal may not see it
    ],
)
def test_what_is_normal_is_no_finding(calm: dict[str, Any]) -> None:
    assert verdict(HERE, sound(**calm)) == []


@given(st.lists(st.sampled_from(range(len(BROKEN))), unique=True))
def test_faults_together_are_all_found_and_the_worst_is_first(chosen: list[int]) -> None:
    changes: dict[str, Any] = {}
    wanted = set()
    for number in chosen:
        check, severity, _, broken = BROKEN[number]
        if broken.keys().isdisjoint(changes.keys()) and "timers" not in broken:
            changes |= broken
            wanted.add((check, severity))
    if "queues" in changes and "worker" in changes:  # what is late needs a worker, and a missing one needs what waits
        return
    if "failing" in changes and all(each.members for each in changes.get("groups", ())):
        wanted.discard(("group-behind", Severity.WARNING))  # the blocked queue is why
    found = verdict(HERE, sound(**changes))
    assert {(each.check, each.severity) for each in found} == wanted
    order = [list(Severity).index(each.severity) for each in found]
    assert order == sorted(order)


def test_since_when_is_known_where_it_can_be() -> None:
    found = verdict(HERE, sound(worker=NOBODY, queues=(queue(5, 60_000),), failing=(POISON,)))
    assert [each.since_ms for each in found] == [NOW_MS - 50_000, NOW_MS - 78_000]


def test_findings_of_one_severity_keep_their_order() -> None:
    pairs = (("a", Severity.NOTE), ("b", Severity.ERROR), ("c", Severity.NOTE))
    found = worst_first(Finding(name, severity, "", "", "", "") for name, severity in pairs)
    assert [each.check for each in found] == ["b", "a", "c"]


def test_a_late_worker_is_not_blamed_before_the_clocks_are_compared() -> None:
    late = sound(queues=(queue(5, 86_400_000),))
    (guess,) = verdict(HERE, late)
    assert "this machine's clock is ahead" in guess.cost
    assert guess.fix.startswith("compare the clocks: rocketshim doctor --probe --bootstrap b:9092; ")
    (known,) = verdict(HERE, replace(late, is_clock_sure=True))
    assert "clock" not in known.cost + known.fix


def test_a_blocked_queue_has_the_stack_trace_beside_its_sentence() -> None:
    (finding,) = verdict(HERE, sound(failing=(replace(POISON, trace="in ship"),)))
    assert finding.stack_trace == "in ship"
    assert "in ship" not in finding.what


def test_the_page_lists_every_finding() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = page.partition("| finding | is there |\n")[2].partition("\n\n")[0].splitlines()
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert listed == {check for check, *_ in BROKEN}


@pytest.mark.parametrize(("partition", "checks"), [(0, ["queue-blocked"]), (1, ["queue-blocked", "group-behind"])])
def test_a_group_that_only_its_blocked_queue_keeps_behind_is_named_once(partition: int, checks: list[str]) -> None:
    standing = PartitionStanding("orders", partition, 3, 0, 9, first_unread_ms=NOW_MS - 90_000)
    group = GroupStanding("pay", "STABLE", ("c@h",), (standing,))
    assert [each.check for each in verdict(HERE, sound(groups=(group,), failing=(POISON,), dead=()))] == checks


def test_one_thing_is_not_counted_as_several() -> None:
    look = sound(groups=(reading(1, 90_000),), dead=(TopicSnapshot("rmq.dlq.pay", "pay", 7, 9, 2, new=1),))
    assert [each.what.split(",")[0].split(" within")[0] for each in verdict(HERE, look)] == [
        "1 new dead letter", "1 unread offset of orders",
    ]  # fmt: skip
