"""A histogram counts each value in the first bucket whose bound is not below it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.metrics import Histogram


def test_samples_are_cumulative_and_end_with_everything() -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.add(0.1)
    histogram.add(0.5, times=3)
    histogram.add(7)
    assert histogram.samples() == [
        ("_bucket", {"le": "0.1"}, 1),
        ("_bucket", {"le": "1"}, 4),
        ("_bucket", {"le": "+Inf"}, 5),
        ("_sum", {}, 0.1 + 1.5 + 7),
        ("_count", {}, 5),
    ]


def test_a_copy_does_not_change_with_its_original() -> None:
    histogram = Histogram((1.0,))
    copy = histogram.copy()
    histogram.add(0.5)
    assert (copy.counts, histogram.counts) == ([0, 0], [1, 0])


@given(st.lists(st.floats(0, 100)))
def test_each_bucket_has_the_values_up_to_its_bound(values: list[float]) -> None:
    bounds = (0.5, 3.0, 20.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    expected = [sum(value <= bound for value in values) for bound in bounds]
    assert [value for suffix, _, value in histogram.samples() if suffix == "_bucket"] == [*expected, len(values)]


@given(st.lists(st.sampled_from([0.0, 0.5, 0.7, 1.0, 2.0, 3.0])))
def test_values_that_are_added_together_count_as_one_by_one(values: list[float]) -> None:
    one_by_one, together = Histogram((0.5, 1.0, 2.0)), Histogram((0.5, 1.0, 2.0))
    for value in values:
        one_by_one.add(value)
    together.add_all([*values])
    assert together.counts == one_by_one.counts
    assert together.total == pytest.approx(one_by_one.total)
