"""Transactions on a real broker: a short run of `python -m proof transactions`, with producers that are killed."""

from pathlib import Path

import pytest

from proof.transactions.run import Course, transactions
from proof.transactions.service import Point


@pytest.mark.parametrize("times", [2, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("exactly_once", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_message_comes_if_and_only_if_its_order_is_paid(tmp_path: Path, times: int, *, exactly_once: bool) -> None:
    said: list[str] = []
    found = transactions(tmp_path / "run", Course(times, kills=1, exactly_once=exactly_once), said.append)
    assert found.wrong == (), said
    assert set(found.by_point) == set(Point)
