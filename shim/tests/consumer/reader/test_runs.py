"""What was fetched is cut into runs of one partition each, none lost, none reordered."""

from itertools import groupby

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.consumer.reader.partition_reader import runs_of

PLACES = st.tuples(st.sampled_from(["orders", "bills"]), st.integers(0, 2))


@given(st.lists(st.tuples(PLACES, st.integers(1, 200)), max_size=8))
def test_runs_are_those_of_groupby(lengths: list[tuple[tuple[str, int], int]]) -> None:
    places = [place for place, count in lengths for _ in range(count)]
    batch = [Message(topic, number, offset) for offset, (topic, number) in enumerate(places)]
    expected = [
        (place, [offset for offset, _ in run]) for place, run in groupby(enumerate(places), key=lambda each: each[1])
    ]
    assert [(place, [message.offset() for message in run]) for place, run in runs_of(batch)] == expected


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=6))
def test_where_a_log_was_cut_another_run_begins(parts: list[tuple[int, int]]) -> None:
    expected: list[list[int]] = []
    for back, count in parts:
        first = max(0, expected[-1][-1] - back) if expected else 0
        expected.append(list(range(first, first + count)))
    batch = [Message("orders", 0, offset) for run in expected for offset in run]
    assert [[message.offset() for message in run] for _, run in runs_of(batch)] == expected


def test_a_log_with_gaps_that_was_cut_is_two_runs() -> None:
    offsets = [98, 99, 50, 52, 54, 400]
    runs = runs_of([Message("orders", 0, offset) for offset in offsets])
    assert [[message.offset() for message in run] for _, run in runs] == [offsets[:2], offsets[2:]]
