"""The judge of runs with transactions finds what is lost, what nobody has paid, and what comes twice."""

from collections import Counter

import pytest

from proof.transactions.run import judged
from proof.transactions.service import Point

ORDERS = dict(enumerate(Point))
PAID = {number for number, point in ORDERS.items() if point >= Point.PAID}


def test_a_run_in_which_exactly_the_paid_orders_come_is_right() -> None:
    found = judged(ORDERS, PAID, Counter(PAID), 1.0, [], exactly_once=True)
    assert found.wrong == ()
    assert found.by_point[Point.COMMITTED] == (1, 1, 1)
    assert found.by_point[Point.HALF] == (1, 0, 0)


@pytest.mark.parametrize(
    ("paid", "delivered", "said"),
    [
        (PAID, Counter(PAID - {max(PAID)}), "lost: order 6, killed at COMMITTED"),
        (PAID, Counter(PAID | {0}), "phantom: order 0, killed at BEFORE"),
        (PAID, Counter(PAID) + Counter(PAID), "3 repeats"),
        (PAID | {1}, Counter(PAID | {1}), "SENDING_HALF: 1 of 1 are paid: not killed there"),
    ],
)
def test_what_is_wrong_is_named(paid: set[int], delivered: "Counter[int]", said: str) -> None:
    found = judged(ORDERS, paid, delivered, 1.0, [], exactly_once=True)
    assert found.wrong == (said,)
    assert found.lines()[-1].endswith("1 promises broken")


def test_at_least_once_a_message_may_come_twice() -> None:
    assert judged(ORDERS, PAID, Counter(PAID) + Counter(PAID), 1.0, [], exactly_once=False).wrong == ()
