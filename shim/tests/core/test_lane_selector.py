"""The lane of a record."""

from rocketshim.core.lane_selector import LaneSelector
from rocketshim_topics import lane_for


def test_keyed_records_keep_their_lane_and_keyless_ones_rotate() -> None:
    turns = LaneSelector()
    assert {turns.choose(b"o-7", 3) for _ in range(3)} == {lane_for(b"o-7", 3)}
    assert [turns.choose(None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert turns.choose(b"o-7", 1) == 0
