"""The lane of a record."""

import itertools

from rocketshim.core.lane_selector import lane_of
from rocketshim_topics import lane_for


def test_keyed_records_keep_their_lane_and_keyless_ones_rotate() -> None:
    turns = itertools.count()
    assert {lane_of(b"o-7", 3, turns) for _ in range(3)} == {lane_for(b"o-7", 3)}
    assert [lane_of(None, 3, turns) for _ in range(4)] == [0, 1, 2, 0]
    assert lane_of(b"o-7", 1, turns) == 0
