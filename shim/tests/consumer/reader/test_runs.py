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
