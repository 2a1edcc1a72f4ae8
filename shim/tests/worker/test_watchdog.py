"""A loop that hangs is told from one that is slow, frozen, or ending."""

from rocketshim.worker.watchdog import TURN_S, Heartbeat, Watchdog


def looks(watchdog: Watchdog, count: int) -> list[bool]:
    return [watchdog.look() for _ in range(count)]


def test_a_loop_that_does_not_go_on_hangs_after_the_time_it_asked_for() -> None:
    heart = Heartbeat()
    watchdog = Watchdog(heart)
    heart.beat(3)
    assert looks(watchdog, 5) == [False, False, False, False, True]


def test_a_loop_that_goes_on_never_hangs() -> None:
    heart = Heartbeat()
    watchdog = Watchdog(heart)
    for _ in range(5 * TURN_S):
        heart.beat()
        assert not watchdog.look()


def test_time_in_which_nobody_looks_does_not_count() -> None:
    heart = Heartbeat()
    watchdog = Watchdog(heart)
    heart.beat(2)
    assert looks(watchdog, 3) == [False, False, False]
    heart.beat(2)  # frozen and awake again: the loop goes on before the watchdog has looked
    assert looks(watchdog, 3) == [False, False, False]


def test_before_the_loop_and_after_it_nothing_is_expected() -> None:
    heart = Heartbeat()
    watchdog = Watchdog(heart)
    assert not any(looks(watchdog, 2 * TURN_S))
    heart.beat(1)
    heart.rest()
    assert not any(looks(watchdog, 2 * TURN_S))
