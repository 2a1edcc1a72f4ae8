"""Facts about `rocketshim.core.orderly_queue`: the table of answers, the limit, backlogs, and naive models of both."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.core.listener_answers import ConsumeOrderlyStatus
from rocketshim.core.orderly_queue import (
    CONTINUOUS_RUN_MAX_MS,
    BatchAnswer,
    OrderlyAction,
    OrderlyQueue,
    Suspended,
    ToDeadLetters,
)
from rocketshim.locks.lease import NO_TROUBLE, Trouble
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import TRACE_CHARS
from rocketshim_topics.hops import Failure

KEY = TopicPartitionKey("orders", 0)
SUCCESS = ConsumeOrderlyStatus.SUCCESS
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class Msg:
    """A message whose value is empty: false in a boolean context, like confluent_kafka's."""

    def __init__(self, offset: int, key: str = "", size_bytes: int = 0) -> None:
        self._offset = offset
        self.key = key
        self.size_bytes = size_bytes

    def offset(self) -> int | None:
        return self._offset

    def __len__(self) -> int:
        return self.size_bytes

    def __repr__(self) -> str:
        return f"Msg({self._offset})"


def messages(*offsets: int) -> list[Msg]:
    return [Msg(offset) for offset in offsets]


def queue(*offsets: int, **settings: Any) -> OrderlyQueue:
    made: OrderlyQueue = OrderlyQueue(KEY, **settings)
    made.put(messages(*offsets))
    return made


def run_of(made: OrderlyQueue, limit: int, now_ms: int) -> list[Any] | None:
    task = made.take(limit, now_ms)
    return None if task is None else task.messages


def taken(made: OrderlyQueue, limit: int = 64, now_ms: int = 0) -> list[int]:
    return [message.offset() for message in run_of(made, limit, now_ms) or ()]


def answer(made: OrderlyQueue, *answers: BatchAnswer, now_ms: int = 0, stored: bool = True) -> list[OrderlyAction]:
    """Report, and let every dead letter be stored, or leave them unfinished."""
    actions = list(made.report(answers, now_ms))
    for action in list(actions):
        if isinstance(action, ToDeadLetters) and stored:
            actions += made.dead_lettered(action.message.offset(), now_ms)
    return actions


def dead(actions: Iterable[OrderlyAction]) -> list[tuple[int, int]]:
    return [(a.message.offset(), a.reconsume_times) for a in actions if isinstance(a, ToDeadLetters)]


def suspended(actions: Iterable[OrderlyAction]) -> list[Suspended]:
    return [a for a in actions if isinstance(a, Suspended)]


# --- the table ----------------------------------------------------------------------------------------------------


def test_success_commits_the_batch_and_continues() -> None:
    made = queue(3, 7, 9)
    assert taken(made, 2) == [3, 7]
    assert answer(made, BatchAnswer(2)) == []
    assert made.next_offset == 8
    assert taken(made) == [9]


@pytest.mark.parametrize("status", [COMMIT, ROLLBACK])
def test_commit_and_rollback_under_auto_commit_are_success(status: ConsumeOrderlyStatus) -> None:
    made = queue(3, 7)
    taken(made, 1)
    assert answer(made, BatchAnswer(1, status)) == []
    assert made.next_offset == 4


def test_suspend_puts_the_batch_back_and_waits() -> None:
    made = queue(3, 7, 9)
    taken(made, 2)
    actions = answer(made, BatchAnswer(2, SUSPEND), now_ms=500)
    (suspension,) = suspended(actions)
    assert (suspension.until_ms, suspension.message.offset()) == (1_500, 3)
    assert (suspension.reconsume_times, suspension.forever) == (1, True)
    assert made.next_offset is None
    assert made.next_wakeup_ms == 1_500
    assert taken(made, now_ms=1_499) == []
    assert taken(made, now_ms=1_500) == [3, 7, 9]


def test_without_auto_commit_success_leaves_the_batch_open_until_commit() -> None:
    made = queue(3, 7, 9)
    for _ in range(2):
        taken(made, 1)
        answer(made, BatchAnswer(1, auto_commit=False))
    assert made.next_offset is None
    taken(made, 1)
    answer(made, BatchAnswer(1, COMMIT, auto_commit=False))
    assert made.next_offset == 10
    assert made.msg_count == 0


def test_rollback_puts_everything_since_the_last_commit_back_with_its_counts() -> None:
    made = queue(3, 7, 9, reconsume_counts=[(7, 2)])
    taken(made, 1)
    answer(made, BatchAnswer(1, COMMIT, auto_commit=False))
    taken(made, 1)
    answer(made, BatchAnswer(1, auto_commit=False))
    taken(made, 1)
    (suspension,) = suspended(answer(made, BatchAnswer(1, ROLLBACK, auto_commit=False)))
    assert suspension.message.offset() == 7
    assert made.reconsume_counts == ((7, 2),)
    assert taken(made, now_ms=1_000) == [7, 9]
    assert made.next_offset == 4


def test_without_auto_commit_suspend_puts_only_the_current_batch_back() -> None:
    made = queue(3, 7, 9)
    taken(made, 1)
    answer(made, BatchAnswer(1, auto_commit=False))
    taken(made, 1)
    answer(made, BatchAnswer(1, SUSPEND, auto_commit=False))
    assert taken(made, now_ms=1_000) == [7, 9]
    answer(made, BatchAnswer(2, COMMIT, auto_commit=False))
    assert made.next_offset == 10


def test_a_switch_to_auto_commit_commits_open_messages() -> None:
    made = queue(3, 7)
    taken(made, 1)
    answer(made, BatchAnswer(1, auto_commit=False))
    taken(made, 1)
    answer(made, BatchAnswer(1))
    assert made.next_offset == 8


# --- the limit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "deliveries"), [(0, 1), (1, 2), (16, 17), (-2, 1)])
def test_a_message_is_dead_lettered_after_limit_plus_one_deliveries(limit: int, deliveries: int) -> None:
    made = queue(3, 7, max_reconsume_times=limit)
    now_ms = 0
    for attempt in range(deliveries):
        assert taken(made, 1, now_ms) == [3]
        actions = answer(made, BatchAnswer(1, SUSPEND), now_ms=now_ms)
        assert dead(actions) == ([(3, deliveries - 1)] if attempt == deliveries - 1 else [])
        now_ms += 1_000
    assert made.next_offset == 4
    assert taken(made, 1, now_ms) == [7]


def test_without_a_limit_a_message_blocks_forever_and_is_reported() -> None:
    made = queue(3, max_reconsume_times=-1)
    for attempt in range(1, 40):
        taken(made, now_ms=attempt * 1_000)
        (suspension,) = suspended(answer(made, BatchAnswer(1, SUSPEND), now_ms=attempt * 1_000))
        assert (suspension.reconsume_times, suspension.forever) == (attempt, True)


def test_the_lower_of_the_queues_and_the_messages_limit_counts() -> None:
    limits = {3: 0, 7: 99, 9: None}
    made = queue(3, 7, 9, max_reconsume_times=1, message_limit=lambda m: limits[m.offset()])
    assert [made._attempts.limit_of(m) for m in messages(3, 7, 9)] == [0, 1, 1]
    unlimited = queue(max_reconsume_times=-1, message_limit=lambda m: limits[m.offset()])
    assert [unlimited._attempts.limit_of(m) for m in messages(3, 7, 9)] == [0, 99, 2**31 - 1]


def test_counts_continue_from_the_messages_own_count_and_from_the_last_owner() -> None:
    made = queue(3, 7, reconsume_counts=[(2, 9), (3, 4)], stored_count=lambda _: 2)
    assert [made._attempts.of(m) for m in messages(3, 7)] == [4, 2]
    assert taken(made, 2) == [3, 7]
    assert made._attempts.counts == {3: 4}
    answer(made, BatchAnswer(2, SUSPEND))
    assert made.reconsume_counts == ((3, 5), (7, 3))


def test_counts_survive_a_hand_over_until_their_message_is_finished() -> None:
    made = queue(3, 7, 9)
    taken(made)
    answer(made, BatchAnswer(1), BatchAnswer(1, SUSPEND))
    assert (made.next_offset, made.reconsume_counts) == (4, ((7, 1),))
    after = queue(7, 9, reconsume_counts=made.reconsume_counts)
    taken(after)
    answer(after, BatchAnswer(1))
    assert (after.next_offset, after.reconsume_counts) == (8, ())


def test_the_oldest_failing_message_is_reported_until_it_is_finished() -> None:
    made = queue(0, 1, 2)
    assert made.failing(0) == (0, 0)
    taken(made)
    answer(made, BatchAnswer(1), BatchAnswer(2, SUSPEND), now_ms=100)
    assert made.failing(150) == (1, 50)
    taken(made, now_ms=2_000)
    answer(made, BatchAnswer(1), BatchAnswer(1, SUSPEND), now_ms=2_000)
    assert made.failing(2_000) == (2, 1_900)
    taken(made, now_ms=4_000)
    answer(made, BatchAnswer(1))
    assert made.failing(5_000) == (0, 0)


def test_a_failure_under_the_last_owner_is_reported_immediately_with_its_count() -> None:
    made = queue(7, reconsume_counts=[(7, 20)])
    assert made.failing(1_000) == (20, 0)
    taken(made)
    answer(made, BatchAnswer(1, SUSPEND), now_ms=1_000)
    assert made.failing(4_000) == (21, 3_000)


def test_a_failure_under_the_last_owner_is_not_reported_after_its_message_is_gone() -> None:
    made = queue(3, 7, reconsume_counts=[(5, 20)])
    taken(made)
    answer(made, BatchAnswer(2))
    assert made.failing(1_000) == (0, 0)


def test_a_listener_may_ask_for_the_dead_letter_topic() -> None:
    made = queue(3, 7)
    taken(made)
    actions = answer(made, BatchAnswer(1, SUSPEND, dead_letter=True))
    assert actions == [ToDeadLetters(actions[0].message, 0)]
    assert made.next_offset == 4
    assert taken(made) == [7]


def test_no_message_is_handed_out_before_a_dead_letter_is_stored() -> None:
    made = queue(3, 7, max_reconsume_times=0)
    taken(made, 1)
    answer(made, BatchAnswer(1, SUSPEND), stored=False)
    assert not made.is_drained
    assert (taken(made), made.next_offset, made.next_wakeup_ms) == ([], None, None)
    assert made.dead_lettered(3, 0) == []
    assert made.is_drained
    assert made.next_offset == 4


def test_a_message_of_a_mixed_batch_is_dead_lettered_once() -> None:
    made = queue(3, 7, max_reconsume_times=2, reconsume_counts=[(3, 2)])
    taken(made)
    assert dead(answer(made, BatchAnswer(2, SUSPEND))) == [(3, 2)]
    assert made.next_offset == 4  # it is finished, whatever happens to its neighbour
    assert taken(made, now_ms=1_000) == [7]


def test_without_auto_commit_a_dead_letter_waits_for_the_commit_and_is_not_rolled_back() -> None:
    made = queue(3, 7, max_reconsume_times=0)
    taken(made, 1)
    assert dead(answer(made, BatchAnswer(1, SUSPEND, auto_commit=False))) == [(3, 0)]
    assert made.next_offset is None
    taken(made, 1)
    answer(made, BatchAnswer(1, ROLLBACK, auto_commit=False))
    assert taken(made, now_ms=1_000) == [7]
    answer(made, BatchAnswer(1, COMMIT, auto_commit=False))
    assert made.next_offset == 8


def test_counts_of_messages_that_are_gone_are_dropped() -> None:
    made = queue(4, 6, reconsume_counts=[(5, 2), (6, 1)])  # compaction has removed 5 meanwhile
    taken(made)
    answer(made, BatchAnswer(2))
    assert (made.next_offset, made.reconsume_counts) == (7, ())


# --- waiting, yielding, flow control ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked_ms", "wait_ms"), [(-1, 1_000), (0, 10), (9, 10), (250, 250), (30_001, 30_000), (10**9, 30_000)]
)
def test_the_listeners_or_the_consumers_wait_is_clamped(asked_ms: int, wait_ms: int) -> None:
    made = queue(3)
    taken(made)
    (suspension,) = suspended(answer(made, BatchAnswer(1, SUSPEND, suspend_ms=asked_ms)))
    assert suspension.until_ms == wait_ms


def test_the_consumers_wait_is_clamped_too() -> None:
    made = queue(3, suspend_ms=1)
    taken(made)
    (suspension,) = suspended(answer(made, BatchAnswer(1, SUSPEND)))
    assert suspension.until_ms == 10


def test_after_a_minute_of_runs_the_queue_yields_briefly() -> None:
    made = queue(*range(10))
    assert taken(made, 1, 0) == [0]
    answer(made, BatchAnswer(1))
    assert taken(made, 1, CONTINUOUS_RUN_MAX_MS) == [1]
    answer(made, BatchAnswer(1))
    assert taken(made, 1, CONTINUOUS_RUN_MAX_MS + 1) == []
    assert made.next_wakeup_ms == CONTINUOUS_RUN_MAX_MS + 11
    assert taken(made, 1, CONTINUOUS_RUN_MAX_MS + 10) == []
    assert taken(made, 1, CONTINUOUS_RUN_MAX_MS + 11) == [2]


@pytest.mark.parametrize("pause", ["empty", "suspended"])
def test_a_pause_restarts_the_minute(pause: str) -> None:
    made = queue(0, 1) if pause == "suspended" else queue(0)
    taken(made, 1, 0)
    answer(made, BatchAnswer(1, SUSPEND if pause == "suspended" else SUCCESS))
    assert taken(made, 1, 30_000) == ([0] if pause == "suspended" else [])
    if pause == "suspended":
        answer(made, BatchAnswer(1), now_ms=30_000)
    made.put(messages(*range(2, 9)))
    begun = 30_000 if pause == "suspended" else 31_000
    assert len(taken(made, 1, 31_000)) == 1
    answer(made, BatchAnswer(1))
    assert len(taken(made, 1, begun + CONTINUOUS_RUN_MAX_MS)) == 1
    answer(made, BatchAnswer(1))
    assert taken(made, 1, begun + CONTINUOUS_RUN_MAX_MS + 1) == []


def test_counts_bytes_and_span_cover_unfinished_messages() -> None:
    made: OrderlyQueue = OrderlyQueue(KEY)
    made.put([Msg(3, size_bytes=10), Msg(9, size_bytes=5)])
    assert (made.msg_count, made.msg_bytes, made.span) == (2, 15, 6)
    taken(made, 1)
    answer(made, BatchAnswer(1, auto_commit=False))
    assert (made.msg_count, made.msg_bytes, made.span) == (2, 15, 6)
    taken(made, 1)
    answer(made, BatchAnswer(1, COMMIT, auto_commit=False))
    assert (made.msg_count, made.msg_bytes, made.span) == (0, 0, 0)


def test_messages_that_were_not_begun_are_put_back_in_order() -> None:
    made = queue(1, 2, 3, 4)
    assert taken(made, 3) == [1, 2, 3]
    answer(made, BatchAnswer(1))
    assert taken(made) == [2, 3, 4]
    answer(made)
    assert taken(made) == [2, 3, 4]
    answer(made, BatchAnswer(1), BatchAnswer(1, SUSPEND))
    assert taken(made, now_ms=1_000) == [3, 4]


# --- illegal calls ------------------------------------------------------------------------------------------------


def snapshot(made: OrderlyQueue) -> tuple[object, ...]:
    return (
        made.msg_count,
        made.next_offset,
        made.reconsume_counts,
        made.is_drained,
        list(made._order.pending),
        made.out and list(made.out.messages),
        made.span,
    )


ILLEGAL: list[Callable[[OrderlyQueue], object]] = [
    lambda q: q.take(0, 0),
    lambda q: q.put(messages(9)),
    lambda q: q.put([*messages(10), *messages(10)]),
    lambda q: q.dead_lettered(1, 0),
    lambda q: q.report([BatchAnswer(3)], 0),
    lambda q: q.report([BatchAnswer(0)], 0),
    lambda q: q.report([BatchAnswer(1, SUSPEND), BatchAnswer(1)], 0),
]


@pytest.mark.parametrize("call", ILLEGAL)
def test_an_illegal_call_is_an_error_and_changes_nothing(call: Callable[[OrderlyQueue], object]) -> None:
    made = queue(1, 2, 9)
    taken(made, 2)
    before = snapshot(made)
    with pytest.raises(ValueError):  # noqa: PT011 - each names its own rule
        call(made)
    assert snapshot(made) == before


def test_a_report_without_a_run_is_an_error() -> None:
    with pytest.raises(ValueError, match="no run"):
        queue(1).report([BatchAnswer(1)], 0)


def test_a_dropped_queue_returns_nothing() -> None:
    made = queue(1, 2, max_reconsume_times=0)
    taken(made, 1)
    made.report([BatchAnswer(1, SUSPEND)], 0)
    made.drop()
    made.drop()
    assert made.dead_lettered(1, 0) == []
    assert made.report([BatchAnswer(1)], 0) == []
    assert (taken(made), made.next_offset, made.reconsume_counts, made.next_wakeup_ms) == ([], None, (), None)
    assert (made.msg_count, made.msg_bytes, made.is_drained) == (0, 0, True)
    with pytest.raises(ValueError, match="dropped"):
        made.put(messages(3))


# --- backlogs -----------------------------------------------------------------------------------------------------


def keyed(keys: str, **settings: Any) -> OrderlyQueue:
    made: OrderlyQueue = OrderlyQueue(KEY, key_of=lambda m: m.key, **settings)
    made.put([Msg(offset, key) for offset, key in enumerate(keys)])
    return made


def test_a_failing_key_waits_and_the_others_continue() -> None:
    made = keyed("abaca")
    assert taken(made) == [0, 1, 2, 3, 4]
    answer(made, BatchAnswer(1, SUSPEND))
    assert taken(made) == [1, 3]
    answer(made, BatchAnswer(2))
    assert (made.next_offset, made.msg_count, made.span) == (None, 3, 4)
    assert made.next_wakeup_ms == 1_000
    assert taken(made, now_ms=999) == []
    assert taken(made, now_ms=1_000) == [0]  # only the head: it has failed before
    answer(made, BatchAnswer(1), now_ms=1_000)
    assert made.next_offset == 2
    assert taken(made, now_ms=1_000) == [2, 4]
    answer(made, BatchAnswer(2))
    assert made.next_offset == 5


def test_messages_of_a_key_that_were_not_begun_stay_behind_the_failed_ones() -> None:
    made = keyed("aaaab")
    taken(made)
    answer(made, BatchAnswer(1, SUSPEND))
    assert taken(made) == [4]
    answer(made, BatchAnswer(1))
    assert taken(made, now_ms=1_000) == [0]
    answer(made, BatchAnswer(1), now_ms=1_000)
    assert taken(made, 2, now_ms=1_000) == [1, 2]
    answer(made, BatchAnswer(1, SUSPEND), now_ms=1_000)
    assert taken(made, now_ms=2_000) == [1]
    answer(made, BatchAnswer(1), now_ms=2_000)
    assert taken(made, now_ms=2_000) == [2, 3]


def test_a_failing_key_is_dead_lettered_at_the_limit_and_its_backlog_continues() -> None:
    made = keyed("aba", max_reconsume_times=1)
    taken(made)
    answer(made, BatchAnswer(1, SUSPEND))
    taken(made)
    answer(made, BatchAnswer(1))
    taken(made, now_ms=1_000)
    assert dead(answer(made, BatchAnswer(1, SUSPEND), now_ms=1_000)) == [(0, 1)]
    assert made.next_offset == 2
    assert taken(made, now_ms=1_000) == [2]


def test_several_keys_may_fail_independently_in_one_run() -> None:
    made = keyed("abcabd")
    run = run_of(made, 64, 0)
    assert run is not None
    run[:] = [run[at] for at in (0, 1, 2, 5, 3, 4)]  # a listener thread leaves 3 and 4 unanswered
    actions = answer(made, BatchAnswer(1, SUSPEND), BatchAnswer(1, SUSPEND, suspend_ms=2_000), BatchAnswer(2))
    assert [(each.message.offset(), each.until_ms) for each in suspended(actions)] == [(0, 1_000), (1, 2_000)]
    assert (made.next_offset, made.msg_count) == (None, 4)
    assert taken(made, now_ms=999) == []
    assert taken(made, now_ms=1_000) == [0]
    answer(made, BatchAnswer(1), now_ms=1_000)
    assert taken(made, now_ms=2_000) == [3, 1], "messages that waited longer come first"
    answer(made, BatchAnswer(2), now_ms=2_000)
    assert taken(made, now_ms=2_000) == [4]
    answer(made, BatchAnswer(1), now_ms=2_000)
    assert (made.next_offset, made.msg_count) == (6, 0)


def test_several_dead_letters_of_one_run_are_stored_in_any_order() -> None:
    made = keyed("abc", max_reconsume_times=0)
    taken(made)
    actions = answer(made, BatchAnswer(1, SUSPEND), BatchAnswer(1), BatchAnswer(1, SUSPEND), stored=False)
    assert dead(actions) == [(0, 0), (2, 0)]
    assert made.dead_lettered(2, 0) == []
    assert (made.is_drained, made.next_offset) == (False, None)
    assert made.dead_lettered(0, 0) == []
    assert (made.is_drained, made.next_offset) == (True, 3)


def test_without_auto_commit_nothing_follows_a_failure_in_its_run() -> None:
    made = keyed("ab")
    taken(made)
    with pytest.raises(ValueError, match="ends its run"):
        made.report([BatchAnswer(1, SUSPEND, auto_commit=False), BatchAnswer(1)], 0)


def test_failing_and_other_keys_take_turns() -> None:
    made = keyed("abcd")
    taken(made)
    answer(made, *[BatchAnswer(1, SUSPEND)] * 4)
    made.put([Msg(offset, f"new-{offset}") for offset in range(4, 8)])
    assert taken(made, now_ms=1_000) == [0, 4, 1, 5, 2, 6, 3, 7]


def test_failing_and_other_keys_take_turns_also_if_each_run_ends_after_its_first_call() -> None:
    made = keyed("abcd")
    taken(made)
    answer(made, *[BatchAnswer(1, SUSPEND)] * 4)
    made.put([Msg(offset, f"new-{offset}") for offset in range(4, 8)])
    first: list[int] = []
    for now_ms in range(1_000, 5_000, 500):  # a call takes half a second, so that a failed message is always due
        offset = taken(made, now_ms=now_ms)[0]
        first.append(offset)
        answer(made, BatchAnswer(1, SUSPEND) if offset < 4 else BatchAnswer(1), now_ms=now_ms)
    assert [offset for offset in first if offset >= 4] == [4, 5, 6, 7]
    assert [offset for offset in first if offset < 4] == [0, 1, 2, 3]
    assert made.is_waiting(0)


class Instant(int):
    """A time that counts its comparisons."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Instant.compared += 1
        return int(self) < other

    def __le__(self, other: int) -> bool:
        Instant.compared += 1
        return int(self) <= other

    def __gt__(self, other: int) -> bool:
        Instant.compared += 1
        return int(self) > other

    def __ge__(self, other: int) -> bool:
        Instant.compared += 1
        return int(self) >= other


def test_waiting_keys_are_not_scanned() -> None:
    count = 2_000
    made: OrderlyQueue = OrderlyQueue(KEY, key_of=lambda m: m.key)
    made.put([Msg(offset, str(offset)) for offset in range(count)])
    taken(made, count)
    answer(made, *[BatchAnswer(1, SUSPEND)] * count)
    made.put([Msg(count, "another")])
    Instant.compared = 0
    assert taken(made, now_ms=Instant(999)) == [count]
    answer(made, BatchAnswer(1), now_ms=Instant(999))
    assert Instant.compared <= 10
    assert taken(made, count, now_ms=Instant(1_000)) == list(range(count))
    assert Instant.compared <= count + 20, "each backlog is compared when its wait is over"


def test_a_failed_batch_of_several_keys_blocks_all_of_them() -> None:
    made = keyed("abcab")
    taken(made, 2)
    answer(made, BatchAnswer(2, SUSPEND))
    assert taken(made) == [2]


def test_a_rollback_blocks_every_key_since_the_last_commit() -> None:
    made = keyed("abcab")
    taken(made, 1)
    answer(made, BatchAnswer(1, auto_commit=False))
    taken(made, 1)
    answer(made, BatchAnswer(1, ROLLBACK, auto_commit=False))
    assert taken(made) == [2]
    answer(made, BatchAnswer(1))
    assert taken(made, now_ms=1_000) == [0, 3, 1, 4]


# --- against naive models -----------------------------------------------------------------------------------------


@dataclass
class Model:
    """RocketMQ's two maps, literally, for one queue as a whole; dead letters are not handed out again."""

    limit: int
    offsets: list[int] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    consuming: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    dead_letters: list[tuple[int, int]] = field(default_factory=list)
    not_before_ms: int = 0

    def put(self, offsets: Iterable[int]) -> None:
        self.offsets += offsets
        self.waiting.update(offsets)

    def deliver(self, count: int) -> list[int]:
        batch = sorted(self.waiting)[:count]
        self.waiting.difference_update(batch)
        self.consuming.update(batch)
        return batch

    def commit(self) -> None:
        self.done |= self.consuming
        self.consuming.clear()

    def stop(self, back: set[int], given: BatchAnswer, now_ms: int) -> None:
        self.consuming -= back
        self.waiting |= back
        self.not_before_ms = now_ms + max(10, min(30_000, 1_000 if given.suspend_ms < 0 else given.suspend_ms))

    def fail(self, batch: list[int], given: BatchAnswer) -> set[int]:
        """Return the messages that are retried."""
        again: set[int] = set()
        for offset in batch:
            count = self.counts.get(offset, 0)
            if given.dead_letter or count >= self.limit:
                self.dead_letters.append((offset, count))
                self.dead.add(offset)
            else:
                self.counts[offset] = count + 1
                again.add(offset)
        return again

    def apply(self, batch: list[int], given: BatchAnswer, now_ms: int) -> None:
        if given.status is SUSPEND:
            again = self.fail(batch, given)
            if again:
                self.stop(again, given, now_ms)
                if given.auto_commit:  # dead-lettered messages are done
                    self.done |= set(batch) - again
                    self.consuming -= set(batch)
            elif given.auto_commit:
                self.commit()
        elif given.status is ROLLBACK and not given.auto_commit:
            self.stop(self.consuming - self.dead, given, now_ms)
        elif given.auto_commit or given.status is COMMIT:
            self.commit()

    @property
    def next_offset(self) -> int | None:
        prefix = None
        for offset in self.offsets:
            if offset not in self.done:
                break
            prefix = offset + 1
        return prefix

    @property
    def open_counts(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((o, c) for o, c in self.counts.items() if c and o not in self.done))


statuses = st.sampled_from([SUCCESS, SUCCESS, COMMIT, ROLLBACK, SUSPEND, SUSPEND])
answers_drawn = st.builds(
    BatchAnswer,
    msg_count=st.just(1),
    status=statuses,
    auto_commit=st.booleans(),
    suspend_ms=st.sampled_from([-1, 0, 50, 40_000]),
)
scripts = st.lists(st.tuples(answers_drawn, st.booleans()), max_size=60)


@settings(max_examples=300)
@given(
    script=scripts,
    gaps=st.lists(st.integers(1, 3), min_size=1, max_size=25),
    limit=st.sampled_from([0, 1, 2, -1]),
    run_limit=st.integers(1, 9),
    batch_limit=st.integers(1, 4),
    by_key=st.booleans(),
)
def test_any_sequence_of_answers_has_the_effect_of_rocketmqs_maps(
    *,
    script: list[tuple[BatchAnswer, bool]],
    gaps: list[int],
    limit: int,
    run_limit: int,
    batch_limit: int,
    by_key: bool,
) -> None:
    """The same is true by key, if all keys are equal and each batch has one message."""
    batch_limit = 1 if by_key else batch_limit
    model = Model(2**31 - 1 if limit == -1 else limit)
    made: OrderlyQueue = OrderlyQueue(KEY, max_reconsume_times=limit, key_of=(lambda _: "same") if by_key else None)
    offsets = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    now_ms = 0
    put = 0
    dead_letters: list[tuple[int, int]] = []
    while script:
        fresh = offsets[put : put + 3]
        put += len(fresh)
        made.put(messages(*fresh))
        model.put(fresh)
        run = run_of(made, run_limit, now_ms)
        if run is None:
            wakeup_ms = made.next_wakeup_ms
            if wakeup_ms is None and put == len(offsets):
                break
            assert wakeup_ms is None or not model.waiting or wakeup_ms == model.not_before_ms
            now_ms = wakeup_ms or now_ms
            continue
        assert now_ms >= model.not_before_ms
        reported: list[BatchAnswer] = []
        judged: list[tuple[list[int], BatchAnswer]] = []
        begin = 0
        while begin < len(run) and script:
            drawn, dead_letter = script.pop()
            batch = [m.offset() for m in run[begin : begin + batch_limit]]
            begin += len(batch)
            given = BatchAnswer(
                len(batch), drawn.status, drawn.auto_commit, drawn.suspend_ms, dead_letter and drawn.status is SUSPEND
            )
            reported.append(given)
            judged.append((batch, given))
            if given.stops:
                break
        actions = list(made.report(reported, now_ms))
        asked = dead(actions)
        dead_letters += asked
        for offset, _ in reversed(asked):  # reports arrive in any order
            actions += made.dead_lettered(offset, now_ms)
        for batch, given in judged:
            assert model.deliver(len(batch)) == batch
            model.apply(batch, given, now_ms)
        assert dead_letters == model.dead_letters
        assert made.next_offset == model.next_offset
        assert made.reconsume_counts == model.open_counts
        assert made.msg_count == len(model.offsets) - len(model.done)
        assert made._attempts.counts.keys() <= set(model.offsets) - model.done, (
            "counts of finished messages are forgotten"
        )
        assert [s.until_ms for s in suspended(actions)] in ([], [model.not_before_ms])


@settings(max_examples=300)
@given(
    keys=st.text("abc", min_size=1, max_size=25),
    failures=st.dictionaries(st.integers(0, 24), st.integers(1, 4)),
    limit=st.sampled_from([-1, 1, 3]),
    run_limit=st.integers(1, 9),
    waits=st.lists(st.sampled_from([0, 20, 1_000]), min_size=1, max_size=8),
    ends_after=st.integers(1, 3),
)
def test_by_key_every_message_finishes_once_in_the_order_of_its_key(
    *, keys: str, failures: dict[int, int], limit: int, run_limit: int, waits: list[int], ends_after: int
) -> None:
    """Runs end at the first failure, or continue with other keys (as the listener thread's time allows)."""
    made: OrderlyQueue = OrderlyQueue(KEY, key_of=lambda m: m.key, max_reconsume_times=limit)
    finished: list[int] = []
    dead_letters: list[int] = []
    failed: dict[int, int] = {}
    now_ms = put = turn = 0
    while len(finished) + len(dead_letters) < len(keys):
        made.put([Msg(o, keys[o]) for o in range(put, min(put + 4, len(keys)))])
        put = min(put + 4, len(keys))
        turn += 1
        now_ms += waits[turn % len(waits)]
        run = run_of(made, run_limit, now_ms)
        if run is None:
            now_ms = made.next_wakeup_ms or now_ms
            continue
        answers: list[BatchAnswer] = []
        called: list[Msg] = []
        left: list[Msg] = []
        for message in run:
            offset = message.offset()
            if any(each.key == message.key for each, given in zip(called, answers, strict=True) if given.stops):
                left.append(message)
                continue
            earlier = {o for o in range(offset) if keys[o] == keys[offset]}
            assert earlier <= {*finished, *dead_letters}, "an earlier message of the key is not finished"
            assert offset not in {*finished, *dead_letters}, "it was finished before"
            called.append(message)
            if failed.get(offset, 0) < failures.get(offset, 0):
                failed[offset] = failed.get(offset, 0) + 1
                answers.append(BatchAnswer(1, SUSPEND))
                if len(answers) % ends_after == 0:
                    break
                continue
            answers.append(BatchAnswer(1))
            finished.append(offset)
        run[:] = [*called, *left, *run[len(called) + len(left) :]]
        dead_letters += [offset for offset, _ in dead(answer(made, *answers, now_ms=now_ms))]
        prefix = next((o for o in range(put) if o not in {*finished, *dead_letters}), put)
        assert made.next_offset == (prefix or None)
    assert made.msg_count == 0
    assert sorted(dead_letters) == sorted(o for o, count in failures.items() if o < len(keys) and 0 <= limit < count)


@given(st.text("abcd", min_size=1, max_size=40), st.integers(1, 9))
def test_a_key_that_never_succeeds_blocks_no_other(keys: str, run_limit: int) -> None:
    made = keyed(keys)
    finished: list[int] = []
    now_ms = 0
    for _ in range(3 * len(keys)):
        run = run_of(made, run_limit, now_ms)
        if run is None:
            break
        answers: list[BatchAnswer] = []
        for message in run:
            if message.key == "a":
                answers.append(BatchAnswer(1, SUSPEND, suspend_ms=30_000))
                break
            answers.append(BatchAnswer(1))
            finished.append(message.offset())
        answer(made, *answers, now_ms=now_ms)
    assert finished == [o for o, key in enumerate(keys) if key != "a"]
    assert (made.next_offset or 0) == (keys.index("a") if "a" in keys else len(keys))


def test_messages_skipped_behind_a_finished_message_finish_with_it() -> None:
    made = queue(0, 1)
    run = run_of(made, 2, 0)
    assert run is not None
    run[:] = [run[1], run[0]]  # a listener thread moves skipped messages to the front
    made.report([BatchAnswer(1, skipped=True), BatchAnswer(1)], 0)
    assert made.next_offset == 2
    assert made.msg_count == 0


def test_a_failure_before_the_listener_leaves_open_messages_open() -> None:
    """The listener commits by itself and has not done so yet: a commit here and a crash would lose its message."""
    made = queue(0, 1, 2)
    assert taken(made) == [0, 1, 2]
    failed = BatchAnswer(1, SUSPEND, dead_letter=True, skipped=True)
    assert dead(answer(made, BatchAnswer(1, auto_commit=False), failed)) == [(1, 0)]
    assert made.next_offset is None
    assert taken(made) == [2]
    answer(made, BatchAnswer(1, ROLLBACK, auto_commit=False))
    assert taken(made, now_ms=60_000) == [0, 2], "the dead-lettered message is not delivered again"
    answer(made, BatchAnswer(2, COMMIT, auto_commit=False), now_ms=60_000)
    assert (made.next_offset, made.msg_count) == (3, 0)


@given(st.randoms(use_true_random=False))
def test_every_message_finishes_whatever_is_skipped_suspended_or_not_begun(source: Any) -> None:
    made, end, now_ms = queue(), 0, 0
    for _ in range(20):
        now_ms += 100_000
        count = source.randint(1, 6)
        made.put(messages(*range(end, end + count)))
        end += count
        run = run_of(made, source.randint(1, 8), now_ms)
        if run is None:
            continue
        skipped = [each for each in run if source.random() < 0.4]
        left = [each for each in run if each not in skipped]
        run[:] = skipped + left
        answers = [BatchAnswer(len(skipped), skipped=True)] if skipped else []
        while left:
            batch = source.randint(1, len(left))
            del left[:batch]
            chance = source.random()
            if chance < 0.1:
                answers.append(BatchAnswer(batch, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT))
            if chance < 0.2:
                break
            answers.append(BatchAnswer(batch))
        made.report(answers, now_ms)
    while made.msg_count:
        now_ms += 100_000
        run = run_of(made, 100, now_ms)
        if run is not None:
            made.report([BatchAnswer(len(run))], now_ms)
    assert made.next_offset == end
    assert made.msg_count == 0


def test_a_queue_reports_since_when_and_why_its_first_failing_message_fails() -> None:
    made = queue(3, 7)
    made.take(2, 100)
    made.report([BatchAnswer(1, SUSPEND)], 250)
    assert made.progress(300) == (None, ((3, 1),), NO_TROUBLE), "why is not known yet"
    frames = b'  File "ship.py", line 9, in ship\n    price("\x1b[2J")\nKeyError\n'
    made.note_failure(Msg(3), Failure("KeyError", "'x'\n", 5, stack_bytes=frames))
    trace = '  File "ship.py", line 9, in ship\n    price("\\x1b[2J")\nKeyError'
    assert made.progress(300) == (None, ((3, 1),), Trouble(250, "KeyError: 'x'\\n", trace))
    made.note_failure(Msg(3), Failure("KeyError", "'x'", 5))
    assert made.progress(300)[2] == Trouble(250, "KeyError: 'x'", None)
    made.note_failure(Msg(3), Failure("KeyError", "'x'", 5, stack_bytes=b"\x07" * 2_048 + b"end"))
    trace = made.progress(300)[2].trace or ""
    assert (len(trace), trace[-7:]) == (TRACE_CHARS, "\\x07end")


def test_a_queue_reports_a_call_when_it_has_run_for_five_seconds_and_until_it_returns() -> None:
    made = queue(3, 7)
    task = made.take(2, 100)
    assert task is not None
    assert made.progress(60_000)[2] is NO_TROUBLE, "it waits for a thread"
    task.began_ms = 1_000
    assert made.progress(60_000)[2] is NO_TROUBLE, "no listener was called"
    task.called = task.messages[1]
    assert made.progress(5_999)[2] is NO_TROUBLE
    for now_ms in (6_000, 60_000):
        assert made.progress(now_ms)[2] == Trouble(call=(7, 1_000))
    made.report([BatchAnswer(2)], 60_000)
    assert made.progress(60_000) == (8, (), NO_TROUBLE)
