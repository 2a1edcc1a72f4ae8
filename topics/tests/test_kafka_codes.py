"""No code means two things."""

from itertools import combinations

from rocketshim_topics.kafka_codes import AWAY, DENIED, MISSING, NO_LOGIN, TOO_LARGE


def test_no_code_is_of_two_kinds() -> None:
    assert not [both for both in combinations((MISSING, DENIED, NO_LOGIN, AWAY, TOO_LARGE), 2) if both[0] & both[1]]
