"""What ends `land --follow`, and what does not."""

from collections.abc import Callable, Iterator

import pytest

from rocketshim_spark.errors import LakeError, LandingFailedError
from rocketshim_spark.follow import follow
from rocketshim_spark.lake import Gap
from rocketshim_spark.land import Landing
from rocketshim_topics.errors import BrokerUnavailableError

NOTHING = Landing(0, (), 1)
GAP = Landing(0, (Gap("orders", "id", 0, 0, 7, "expired"),), 1)


class Followed:
    """A run of `follow` whose landings have these outcomes and take 2 s each; a signal arrives in the last one.

    Args:
        outcomes: what each landing returns or raises.
        signal_in_a_pause: whether the signal arrives in the first pause.
    """

    def __init__(self, *outcomes: Landing | Exception, signal_in_a_pause: bool = False) -> None:
        self.begun_s: list[float] = []
        self.notes: list[str] = []
        self.asked = False
        self._signal_in_a_pause = signal_in_a_pause
        self._clock_s = 100.0
        self._outcomes: Iterator[Landing | Exception] = iter(outcomes)
        self._left = len(outcomes)

    def run(self) -> bool:
        return follow(
            self._land, every_s=60.0, note=self.notes.append, is_asked_to_stop=lambda: self.asked, sleep=self._sleep,
            now_s=lambda: self._clock_s,
        )  # fmt: skip

    def _land(self) -> Landing:
        self.begun_s.append(self._clock_s)
        self._clock_s += 2.0
        self._left -= 1
        if self._left == 0:
            self.asked = True
        outcome = next(self._outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _sleep(self, for_s: float) -> None:
        assert not self.asked
        assert for_s < 1.0  # a signal does not end a sleep
        self._clock_s += for_s
        self.asked |= self._signal_in_a_pause


def test_landings_begin_at_a_steady_pace_until_a_signal() -> None:
    followed = Followed(NOTHING, NOTHING, NOTHING)
    assert followed.run()
    assert followed.begun_s == pytest.approx([100.0, 160.0, 220.0], abs=0.5)
    assert followed.notes == []


def test_a_signal_while_it_waits_ends_it_without_another_landing() -> None:
    followed = Followed(NOTHING, NOTHING, signal_in_a_pause=True)
    assert followed.run()
    assert followed.begun_s == [100.0]


def test_a_gap_of_any_landing_is_a_finding() -> None:
    assert not Followed(GAP, NOTHING).run()
    assert not Followed(NOTHING, GAP).run()


@pytest.mark.parametrize("error", [BrokerUnavailableError("no answer"), LandingFailedError("full disk")])
def test_what_may_pass_is_noted_and_the_next_landing_goes_on(error: Exception) -> None:
    followed = Followed(NOTHING, *[error] * 9, NOTHING, *[error] * 9, NOTHING)
    assert followed.run()
    assert len(followed.begun_s) == 21
    assert followed.notes == [f"note: {error}. The next landing begins in 58 s"] * 18


@pytest.mark.parametrize(
    ("outcomes", "landings"),
    [
        (lambda error: [error, NOTHING], 1),  # most probably the command is wrong
        (lambda error: [NOTHING, *[error] * 10, NOTHING], 11),
    ],
)
def test_the_first_failure_or_ten_in_a_row_end_it(
    outcomes: Callable[[Exception], list[Landing | Exception]], landings: int
) -> None:
    followed = Followed(*outcomes(BrokerUnavailableError("no answer")))
    with pytest.raises(BrokerUnavailableError):
        followed.run()
    assert len(followed.begun_s) == landings


def test_what_will_not_pass_ends_it() -> None:
    with pytest.raises(LakeError):
        Followed(NOTHING, LakeError("not a lake"), NOTHING).run()


def test_a_landing_that_fails_because_the_signal_ended_java_is_no_error() -> None:
    followed = Followed(NOTHING, ConnectionRefusedError("Java"))
    assert followed.run()
    assert followed.notes == []
