"""The order of tries among waiting things, by the rules of `core.start_position`."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.start_position import LookupRotation


def test_new_things_are_tried_together() -> None:
    turns: LookupRotation[str] = LookupRotation()
    assert turns.pick(["a", "b"], 0) == (["a", "b"], 10.0)
    turns.tried(["a", "b"], failed=False, began_ms=0, now_ms=0)
    assert turns.pick(["c"], 0) == (["c"], 10.0)
    assert turns.pick([], 0) == ([], 0.0)


def test_things_that_failed_together_are_tried_one_by_one_immediately() -> None:
    turns: LookupRotation[str] = LookupRotation()
    turns.pick(["a", "b", "c"], 0)
    turns.tried(["a", "b", "c"], failed=True, began_ms=0, now_ms=10_000)
    assert turns.pick(["a", "b", "c"], 10_000) == (["a"], 1.0)
    turns.tried(["a"], failed=True, began_ms=10_000, now_ms=11_000)
    assert turns.pick(["a", "b", "c"], 11_000) == (["b"], 1.0)
    turns.tried(["b"], failed=False, began_ms=11_000, now_ms=11_000)
    assert turns.pick(["a", "c"], 11_000) == (["c"], 1.0)
    turns.tried(["c"], failed=True, began_ms=11_000, now_ms=12_000)
    assert turns.pick(["a", "c"], 21_999) == ([], 0.0), "ten times as long as the try took"
    assert turns.pick(["a", "c"], 22_000) == (["a"], 2.0), "with more time for an answer"


def test_a_fast_failure_is_retried_soon_and_less_often_later() -> None:
    turns: LookupRotation[str] = LookupRotation()
    turns.pick(["a"], 0)
    turns.tried(["a"], failed=True, began_ms=0, now_ms=0)
    now_ms, instants = 0, []
    for _ in range(7):
        while not turns.pick(["a"], now_ms)[0]:
            now_ms += 1
        instants.append(now_ms)
        turns.tried(["a"], failed=True, began_ms=now_ms, now_ms=now_ms)
    assert instants == [0, 100, 300, 700, 1_500, 2_500, 3_500]


def test_a_thing_that_stopped_waiting_is_new_when_it_returns() -> None:
    turns: LookupRotation[str] = LookupRotation()
    turns.pick(["a"], 0)
    turns.tried(["a"], failed=True, began_ms=0, now_ms=0)
    turns.pick([], 0)
    assert turns.pick(["a"], 0) == (["a"], 10.0)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 10_000))
def test_possible_things_are_done_soon_and_failed_tries_take_a_tenth_of_the_time(
    sick: list[bool], took_ms: int
) -> None:
    turns: LookupRotation[int] = LookupRotation()
    waiting, now_ms, vain_ms, last_ms = set(range(len(sick))), 0, 0, 0
    for turn in range(200):
        picked, timeout_s = turns.pick(sorted(waiting), now_ms)
        began_ms = now_ms
        failed = any(sick[each] for each in picked)
        if failed:
            now_ms += min(took_ms, round(timeout_s * 1_000))
            last_ms = (now_ms - began_ms) * (turn > len(sick))  # not the first round
            vain_ms += last_ms
        elif picked:
            waiting.difference_update(picked)
        turns.tried(picked, failed=failed, began_ms=began_ms, now_ms=now_ms)
        if turn >= len(sick):
            assert all(sick[each] for each in waiting)
        now_ms += 50
    assert (vain_ms - last_ms) * 10 <= now_ms
