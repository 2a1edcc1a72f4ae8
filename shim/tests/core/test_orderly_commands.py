"""What a person may have done with a failing message of an orderly queue: try it now, give it up."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.core.listener_answers import ConsumeOrderlyStatus
from rocketshim.core.orderly_queue import BatchAnswer, OrderlyQueue
from rocketshim_topics.hops import Failure

from .test_orderly_queue import KEY, ROLLBACK, SUSPEND, Msg, answer, keyed, queue, run_of, taken

BY = "ann@ops1"


def given_up(made: OrderlyQueue) -> list[tuple[int, int]]:
    """Take what was given up; return offsets, and attempts before the last one."""
    return [(letter.message.offset(), letter.reconsume_times) for _, letter, _ in made.take_given_up()]


def failed(made: OrderlyQueue, now_ms: int = 0) -> None:
    """Hand out the first message, and have it fail."""
    taken(made, 1, now_ms)
    answer(made, BatchAnswer(1, SUSPEND, suspend_ms=30_000), now_ms=now_ms)


def test_a_message_that_is_given_up_is_passed_when_its_dead_letter_is_stored_and_not_before() -> None:
    made = queue(3, 7, 9)
    failed(made)
    assert made.give_up(3, BY)
    ((task, dead_letter, by),) = made.take_given_up()
    assert (by, dead_letter.message.offset(), dead_letter.reconsume_times) == (BY, 3, 0)
    assert [each.offset() for each in task.messages] == [3]
    assert taken(made, now_ms=60_000) == []
    assert made.next_offset is None
    assert not made.is_drained
    assert made.dead_lettered(3, 1) == []
    assert made.next_offset == 4
    assert taken(made, now_ms=1) == [7, 9], "nothing waits for the attempt that does not come"
    assert made.reconsume_counts == ()


def test_its_last_failure_is_that_of_its_dead_letter_and_not_of_another_message() -> None:
    made = queue(3, 7)
    failed(made)
    failure = Failure("KeyError", "'price'", 5)
    made.note_failure(Msg(3), failure)
    made.give_up(3, BY)
    ((task, dead_letter, _),) = made.take_given_up()
    assert task.why(dead_letter.message) == (failure, None)


def test_only_a_message_that_has_failed_can_be_given_up_or_tried_now() -> None:
    made = queue(3, 7)
    failed(made)
    for offset in (2, 4, 7, 9):
        assert not made.give_up(offset, BY)
        assert not made.try_now(offset)
    assert given_up(made) == []
    assert made.next_wakeup_ms == 30_000


def test_a_repeated_command_is_harmless() -> None:
    made = queue(3, 7)
    failed(made)
    assert made.give_up(3, BY)
    assert made.give_up(3, BY)
    assert given_up(made) == [(3, 0)]
    assert not made.give_up(3, BY), "its dead letter is on its way"
    assert given_up(made) == []
    made.dead_lettered(3, 0)
    assert not made.give_up(3, BY)
    assert not made.try_now(3)
    assert given_up(made) == []
    assert taken(made) == [7]


def test_a_message_that_a_listener_has_is_given_up_when_it_has_failed() -> None:
    made = queue(3, 7)
    failed(made)
    assert taken(made, 1, 30_000) == [3]
    assert made.give_up(3, BY)
    assert not made.try_now(3), "it is being tried"
    assert given_up(made) == []
    answer(made, BatchAnswer(1, SUSPEND), now_ms=30_000)
    assert given_up(made) == [(3, 1)]


def test_a_message_that_has_succeeded_meanwhile_is_not_given_up() -> None:
    made = queue(3, 7)
    failed(made)
    taken(made, 1, 30_000)
    made.give_up(3, BY)
    answer(made, BatchAnswer(1), now_ms=30_000)
    assert given_up(made) == []
    assert not made._given_up, "nothing is remembered of it"
    assert taken(made) == [7]
    answer(made, BatchAnswer(1, SUSPEND))
    assert given_up(made) == [], "the command is for one message"


def test_a_message_that_failed_under_the_last_owner_is_given_up_when_it_is_fetched() -> None:
    made = queue(reconsume_counts=[(3, 80)])
    assert made.give_up(3, BY)
    assert given_up(made) == []
    made.put([Msg(3), Msg(7)])
    assert given_up(made) == [(3, 79)]
    made.dead_lettered(3, 0)
    assert made.next_offset == 4


def test_messages_that_are_open_stay_open() -> None:
    """The listener commits by itself: what it has not committed is not passed for the one that was given up."""
    made = queue(3, 7, 9)
    taken(made, 2)
    answer(made, BatchAnswer(1, auto_commit=False), BatchAnswer(1, SUSPEND, auto_commit=False))
    made.give_up(7, BY)
    assert given_up(made) == [(7, 0)]
    made.dead_lettered(7, 0)
    assert made.next_offset is None
    assert taken(made) == [9]
    answer(made, BatchAnswer(1, ROLLBACK, auto_commit=False))
    assert taken(made, now_ms=60_000) == [3, 9]


def test_an_open_message_is_given_up_only_if_it_comes_back() -> None:
    made = queue(3, 7, reconsume_counts=[(3, 1)])
    taken(made, 1)
    answer(made, BatchAnswer(1, auto_commit=False))
    assert made.give_up(3, BY)
    assert given_up(made) == []
    taken(made, 1)
    answer(made, BatchAnswer(1, ROLLBACK, auto_commit=False))
    assert given_up(made) == [(3, 0)]


@pytest.mark.parametrize("end", ["withhold", "drop"])
def test_a_queue_that_ends_obeys_no_command(end: str) -> None:
    made = queue(3, 7)
    failed(made)
    made.give_up(3, BY)
    getattr(made, end)()
    assert given_up(made) == []
    assert not made.give_up(3, BY)
    assert not made.try_now(3)


def test_a_message_is_tried_now_and_counts_as_before() -> None:
    made = queue(3, 7)
    failed(made)
    assert taken(made, now_ms=1) == []
    assert made.try_now(3)
    assert made.next_wakeup_ms in (None, 0) or made.next_wakeup_ms <= 1  # type: ignore[operator]
    assert taken(made, now_ms=1) == [3, 7]
    assert made.reconsume_counts == ((3, 1),)


def test_by_key_only_the_key_of_the_message_is_tried_now() -> None:
    made = keyed("abab")
    run_of(made, 2, 0)
    answer(made, BatchAnswer(1, SUSPEND, suspend_ms=30_000), BatchAnswer(1, SUSPEND, suspend_ms=30_000))
    assert taken(made, 9, 1) == []
    assert made.try_now(1)
    assert made.next_wakeup_ms == 0
    assert taken(made, 9, 1) == [1]


def test_by_key_what_is_behind_a_message_that_is_given_up_goes_on_and_other_keys_wait_as_before() -> None:
    made = keyed("abab")
    run_of(made, 2, 0)
    answer(made, BatchAnswer(1, SUSPEND, suspend_ms=30_000), BatchAnswer(1, SUSPEND, suspend_ms=30_000))
    assert taken(made, 9, 1) == []
    made.give_up(0, BY)
    assert given_up(made) == [(0, 0)]
    assert taken(made, 9, 2) == []
    made.dead_lettered(0, 2)
    assert taken(made, 9, 2) == [2]
    answer(made, BatchAnswer(1), now_ms=2)
    assert made.next_offset == 1
    made.give_up(1, BY)
    assert given_up(made) == [(1, 0)]
    made.dead_lettered(1, 3)
    assert taken(made, 9, 3) == [3]


def test_by_key_a_message_is_given_up_when_the_run_of_other_keys_has_ended() -> None:
    made = keyed("abb")
    failed(made)
    assert taken(made, 1, 1) == [1]
    made.give_up(0, BY)
    assert given_up(made) == []
    answer(made, BatchAnswer(1), now_ms=1)
    assert given_up(made) == [(0, 0)]


def test_by_key_the_last_message_of_a_key_leaves_nothing_behind() -> None:
    made = keyed("a")
    failed(made)
    made.give_up(0, BY)
    assert given_up(made) == [(0, 0)]
    made.dead_lettered(0, 0)
    assert (made.next_offset, made.msg_count, made.next_wakeup_ms) == (1, 0, None)
    made.put([Msg(1, "a")])
    assert taken(made) == [1]


@settings(max_examples=400)
@given(
    source=st.randoms(use_true_random=False),
    keys=st.text("abc", min_size=1, max_size=20),
    by_key=st.booleans(),
    limit=st.sampled_from([-1, 2]),
)
def test_whatever_is_commanded_each_message_is_finished_once_and_only_a_failed_one_unhandled(  # noqa: C901, PLR0912, PLR0915 - a model
    *, source: Any, keys: str, by_key: bool, limit: int
) -> None:
    """Of an orderly queue with commands for any offset at any time. The position never passes what is not finished."""
    made = OrderlyQueue(KEY, key_of=(lambda m: m.key) if by_key else None, max_reconsume_times=limit)
    done: set[int] = set()
    dead: set[int] = set()
    failures: set[int] = set()
    storing: list[int] = []
    now_ms = put = 0
    for turn in range(2_000):
        assert made.next_offset == (next((o for o in range(put) if o not in done | dead), put) or None)
        assert not done & dead
        if len(done | dead) == len(keys):
            break
        now_ms += source.choice([0, 500, 31_000])
        new = min(put + source.randint(0, 3), len(keys)) if turn < 100 else len(keys)
        made.put([Msg(o, keys[o]) for o in range(put, new)])
        put = new
        if turn < 100:
            for _ in range(source.randint(0, 2)):
                offset = source.randint(0, len(keys))
                if source.random() < 0.5:
                    made.try_now(offset)
                else:
                    assert not made.give_up(offset, BY) or offset in failures
        for _, dead_letter, _ in made.take_given_up():
            storing.append(dead_letter.message.offset())
            assert storing[-1] in failures - done - dead
        if storing:
            assert made.take(9, now_ms) is None, "the queue waits for its dead letter"
            if source.random() < 0.7:
                dead.add(storing[0])
                made.dead_lettered(storing.pop(0), now_ms)
            continue
        task = made.take(source.randint(1, 6), now_ms)
        if task is None:
            continue
        answers: list[BatchAnswer] = []
        for message in task.messages:
            offset = message.offset()
            before = {o for o in range(offset) if not by_key or keys[o] == keys[offset]}
            assert before <= done | dead, "an earlier message is not finished"
            assert offset not in done | dead
            if turn < 100 and source.random() < 0.5:
                failures.add(offset)
                answers.append(BatchAnswer(1, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT))
                break
            done.add(offset)
            answers.append(BatchAnswer(1))
        if turn < 100 and source.random() < 0.2 and answers[-1].stops:
            made.give_up(task.messages[len(answers) - 1].offset(), BY)  # while a listener has it
        for action in made.report(answers, now_ms):
            if hasattr(action, "until_ms"):
                continue
            storing.append(action.message.offset())  # type: ignore[union-attr]
    assert done | dead == set(range(len(keys)))
    assert dead <= failures
    assert made.msg_count == 0
