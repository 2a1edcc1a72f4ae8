"""Virtual time moves only when a test moves it."""

import threading

import pytest

from rocketshim.testing import VirtualClock


def test_both_clocks_stand_still_until_advanced() -> None:
    clock = VirtualClock(start_wall_ms=1_000)
    assert (clock.monotonic_ns(), clock.wall_ms()) == (0, 1_000)
    clock.advance(1.5)
    assert (clock.monotonic_ns(), clock.wall_ms()) == (1_500_000, 1_001)


def test_a_wall_step_leaves_the_monotonic_clock_alone() -> None:
    clock = VirtualClock(start_wall_ms=10_000)
    clock.step_wall(-4_000)
    assert (clock.monotonic_ns(), clock.wall_ms()) == (0, 6_000)


def test_time_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance(5)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)
    clock.advance_to(1)
    assert clock.monotonic_ns() == 5_000_000
    clock.advance_to(7_000_000)
    assert clock.monotonic_ns() == 7_000_000


def test_the_shortest_wait_moves_the_clock_and_none_does_not() -> None:
    clock = VirtualClock(auto_advance=True)
    clock.sleep(1e-12)
    clock.advance(1e-9)
    assert clock.monotonic_ns() == 2
    clock.sleep(0)
    clock.advance(0)
    assert clock.monotonic_ns() == 2


def test_a_sleeper_wakes_when_another_thread_has_advanced_far_enough() -> None:
    clock = VirtualClock()
    woken_ns: list[int] = []

    def sleep() -> None:
        clock.sleep(2.0)
        woken_ns.append(clock.monotonic_ns())

    thread = threading.Thread(target=sleep)
    thread.start()
    clock.wait_for_sleepers(1)
    assert clock.next_wake_ns() == 2_000_000_000
    clock.advance(1_999)
    clock.wait_for_sleepers(1)
    assert woken_ns == []
    clock.advance(1)
    thread.join()
    assert woken_ns == [2_000_000_000]
    assert clock.next_wake_ns() is None


def test_waiting_for_sleepers_that_never_come_is_an_error() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        VirtualClock().wait_for_sleepers(1, guard_s=0)


def test_an_auto_advancing_clock_sleeps_at_once() -> None:
    clock = VirtualClock(auto_advance=True)
    clock.sleep(1.5)
    clock.sleep(0)
    clock.sleep(-1)
    assert clock.monotonic_ns() == 1_500_000_000


def test_listeners_hear_of_every_move_without_a_lock() -> None:
    clock = VirtualClock()
    heard: list[int] = []
    clock.on_change(lambda: heard.append(clock.wall_ms() - 1_700_000_000_000))
    clock.advance(3)
    clock.step_wall(10)
    assert heard == [3, 13]
