"""The watchdog distinguishes a blocked loop from one that is slow, frozen or shutting down."""

from rocketshim.worker.watchdog import TURN_S, Heartbeat


def looks(heart: Heartbeat, count: int) -> list[bool]:
    return [heart.has_stopped() for _ in range(count)]


def test_a_loop_without_a_beat_counts_as_blocked_after_its_time() -> None:
    heart = Heartbeat()
    heart.beat(3)
    assert looks(heart, 5) == [False, False, False, False, True]


def test_a_loop_that_beats_never_counts_as_blocked() -> None:
    heart = Heartbeat()
    for _ in range(5 * TURN_S):
        heart.beat()
        assert not heart.has_stopped()


def test_time_without_a_check_does_not_count() -> None:
    heart = Heartbeat()
    heart.beat(2)
    assert looks(heart, 3) == [False, False, False]
    heart.beat(2)  # frozen and awake again: the loop continues before the watchdog checks
    assert looks(heart, 3) == [False, False, False]


def test_the_loop_is_not_supervised_before_its_start_and_after_its_end() -> None:
    heart = Heartbeat()
    assert not any(looks(heart, 2 * TURN_S))
    heart.beat(1)
    heart.rest()
    assert not any(looks(heart, 2 * TURN_S))
