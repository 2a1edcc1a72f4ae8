"""A histogram counts each value in the first bucket whose bound is not below it."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.histogram import Histogram


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
