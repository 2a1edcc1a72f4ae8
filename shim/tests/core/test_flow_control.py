"""A partition is paused above a threshold and resumes at half of it, and does not flap in between."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core import partition
from rocketshim.core.partition import FlowLimits, per_queue_limits
from rocketshim.core.process_queue import ProcessQueue
from rocketshim_topics.coordinates import TopicPartitionKey

must_pause: Any = partition.must_pause  # of the counts alone
should_resume: Any = partition.should_resume


@dataclass
class Counts:
    """The counts of a queue."""

    msg_count: int = 0
    msg_bytes: int = 0
    span: int = 0
    waits: bool = False

    def is_waiting(self, _: int) -> bool:
        return self.waits


class Record:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def __len__(self) -> int:
        return 0


LIMITS = st.builds(
    FlowLimits,
    count=st.integers(1, 100),
    size_bytes=st.integers(1, 100),
    span=st.none() | st.integers(1, 100),
)
COUNTS = st.builds(Counts, msg_count=st.integers(0, 250), msg_bytes=st.integers(0, 250), span=st.integers(0, 250))


def test_default_limits_equal_rocketmqs() -> None:
    assert FlowLimits() == FlowLimits(count=1_000, size_bytes=104_857_600, span=2_000)


@pytest.mark.parametrize(
    ("at", "above"),
    [
        (Counts(msg_count=1_000), Counts(msg_count=1_001)),
        (Counts(msg_bytes=104_857_600), Counts(msg_bytes=104_857_601)),
        (Counts(span=2_000), Counts(span=2_001)),
    ],
    ids=["count", "size", "span"],
)
def test_queue_is_paused_above_a_threshold_and_not_at_it(at: Counts, above: Counts) -> None:
    assert not must_pause(at, FlowLimits())
    assert must_pause(above, FlowLimits())


@pytest.mark.parametrize("open_one", ["msg_count", "msg_bytes", "span"])
def test_queue_resumes_when_every_count_is_down_to_half(open_one: str) -> None:
    limits = FlowLimits(count=10, size_bytes=10, span=10)
    assert should_resume(Counts(5, 5, 5), limits)
    counts = Counts(5, 5, 5)
    setattr(counts, open_one, 6)
    assert not should_resume(counts, limits)


def test_a_queue_that_waits_resumes_at_its_thresholds() -> None:
    limits = FlowLimits(count=10, size_bytes=10, span=10)
    assert should_resume(Counts(10, 10, 10, waits=True), limits)
    assert not should_resume(Counts(11, 10, 10, waits=True), limits)


@given(counts=COUNTS, limits=LIMITS)
def test_no_queue_must_pause_and_resume_at_the_same_time(counts: Counts, limits: FlowLimits) -> None:
    assert not (must_pause(counts, limits) and should_resume(counts, limits))


@given(limits=LIMITS, walk=st.lists(st.sampled_from([-1, 1]), max_size=300))
def test_pause_and_resume_differ_by_more_than_one_message(limits: FlowLimits, walk: list[int]) -> None:
    """One message more or less never changes a pause to a resume or back, unless the limit itself is 1."""
    counts, paused = Counts(), False
    turned_at: int | None = None
    for step in walk:
        counts.msg_count = max(0, counts.msg_count + step)
        turned = must_pause(counts, limits) if not paused else should_resume(counts, limits)
        if turned:
            if turned_at is not None:
                assert abs(counts.msg_count - turned_at) > limits.count / 2
            paused, turned_at = not paused, counts.msg_count


@given(limits=LIMITS)
def test_an_empty_queue_always_resumes(limits: FlowLimits) -> None:
    assert should_resume(Counts(), limits)


def test_queue_without_a_span_limit_is_not_paused_by_its_span() -> None:
    assert not must_pause(Counts(span=10**9), FlowLimits(span=None))
    assert should_resume(Counts(span=10**9), FlowLimits(span=None))


def test_one_stuck_message_pauses_its_queue_by_span_until_it_is_done() -> None:
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 0))
    queue.put([Record(0)])
    stuck = queue.take(1)
    assert stuck is not None
    stuck.take_back()
    limits = FlowLimits()
    offset = 1
    while not must_pause(queue, limits):
        queue.put([Record(offset)])
        chunk = queue.take(1)
        assert chunk is not None
        chunk.take_back()
        queue.report(chunk)
        offset += 1
    assert offset == 2_002
    assert queue.msg_count == 1
    assert not should_resume(queue, limits)
    queue.report(stuck)
    assert should_resume(queue, limits)


@pytest.mark.parametrize("bad", [{"count": 0}, {"size_bytes": 0}, {"span": 0}, {"count": -1}])
def test_threshold_below_1_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        FlowLimits(**bad)


@pytest.mark.parametrize(
    ("topic_count", "topic_size", "assigned", "expected"),
    [
        (-1, -1, 4, FlowLimits(10, 20, 30)),
        (100, -1, 4, FlowLimits(25, 20, 30)),
        (-1, 100, 3, FlowLimits(10, 33, 30)),
        (3, 3, 4, FlowLimits(1, 1, 30)),
        (100, 100, 0, FlowLimits(10, 20, 30)),
    ],
    ids=["none", "count", "size", "less than one each", "no queue assigned"],
)
def test_topic_limit_is_divided_among_all_assigned_queues_and_replaces_their_own(
    topic_count: int, topic_size: int, assigned: int, expected: FlowLimits
) -> None:
    assert per_queue_limits(FlowLimits(10, 20, 30), topic_count, topic_size, assigned) == expected


def test_a_queue_may_be_configured_to_resume_at_a_wider_span() -> None:
    limits = FlowLimits(span=10, resume_span=10)
    assert should_resume(Counts(span=10), limits)
    assert not should_resume(Counts(span=11), limits)
    assert not should_resume(Counts(span=10), FlowLimits(span=10))
    assert per_queue_limits(limits, 100, -1, 4).resume_span == 10
