"""How large chunks are."""

import pytest

from rocketshim.consumer.concurrent import ChunkSizes


def test_a_chunk_is_one_batch_until_listener_times_are_known() -> None:
    assert ChunkSizes(7, shared=False).count(10_000, 20) == 7


@pytest.mark.parametrize(
    ("per_message_ns", "batch_count", "backlog", "count"),
    [
        (1_000, 1, 5, 1_024),  # waking a thread costs more than the listener
        (1_000, 2_000, 5, 2_000),
        (100_000, 1, 5, 64),
        (1_000_000, 1, 100_000, 8),  # as many as take 8 ms
        (1_000_000, 1, 80, 1),  # never so large that a thread has no work
        (1_000_000, 3, 100_000, 6),  # whole batches
        (100_000_000, 1, 100_000, 1),
    ],
)
def test_the_size_of_a_chunk(per_message_ns: int, batch_count: int, backlog: int, count: int) -> None:
    sizes = ChunkSizes(batch_count, shared=False)
    for _ in range(32):
        sizes.note(per_message_ns, 1)
    assert sizes.count(backlog, 20) == count
