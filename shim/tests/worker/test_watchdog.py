"""The watchdog distinguishes a blocked loop from one that is slow, frozen or shutting down."""

from rocketshim.worker.watchdog import TURN_S, Heartbeat, Watchdog


def looks(watchdog: Watchdog, count: int) -> list[bool]:
    return [watchdog.look() for _ in range(count)]


def test_a_loop_without_a_beat_counts_as_blocked_after_its_time() -> None:
    heart = Heartbeat()
    watchdog = Watchdog(heart)
    heart.beat(3)
    assert looks(watchdog, 5) == [False, False, False, False, True]


def test_a_loop_that_beats_never_counts_as_blocked() -> None:
    heart = Heartbeat()
    watchdog = Watchdog(heart)
    for _ in range(5 * TURN_S):
        heart.beat()
        assert not watchdog.look()


def test_time_without_a_check_does_not_count() -> None:
    heart = Heartbeat()
    watchdog = Watchdog(heart)
    heart.beat(2)
    assert looks(watchdog, 3) == [False, False, False]
    heart.beat(2)  # frozen and awake again: the loop continues before the watchdog checks
    assert looks(watchdog, 3) == [False, False, False]


def test_the_loop_is_not_supervised_before_its_start_and_after_its_end() -> None:
    heart = Heartbeat()
    watchdog = Watchdog(heart)
    assert not any(looks(watchdog, 2 * TURN_S))
    heart.beat(1)
    heart.rest()
    assert not any(looks(watchdog, 2 * TURN_S))
