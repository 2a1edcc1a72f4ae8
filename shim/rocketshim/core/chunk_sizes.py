"""How many messages a chunk for a listener thread has, and how long results may gather. Pure.

The size follows from the *minimum* time per message of the last 32 chunks, never from the mean. The mean includes
waiting for the interpreter lock, and makes fast listeners look slow (tried: 0.86 of raw with the minimum, 0.56 with
chunks of one). Below 10 µs per message a chunk has 1,024 messages, because waking a thread costs more than the
listener. Below 200 µs it has 64. Above that it has as many as take 8 ms, from 8 ms per message on one batch, and never
more than leave work for every thread: none is idle while another still has a quarter of its chunks to do.
"""

from collections import deque
from typing import Final

__all__ = ["ChunkSizes"]

_CHUNK: Final = 64
_LARGE_CHUNK: Final = 1_024
_FAST_NS: Final = 10_000
_SLOW_NS: Final = 200_000
_SLOW_CHUNK_NS: Final = 8_000_000
_CHUNKS_A_WORKER: Final = 4
_SHARED_CHUNK: Final = 16
_GATHER_S: Final = 0.004
_WINDOW: Final = 32


class ChunkSizes:
    """The chunk sizes of one consumer.

    Args:
        batch_count: maximum number of messages of a listener call.
        shared: whether several workers process one chunk at the same time: then no message waits for its neighbour.
    """

    def __init__(self, batch_count: int, *, shared: bool) -> None:
        self._batch_count = batch_count
        self._shared = shared
        self._per_message_ns: deque[int] = deque(maxlen=_WINDOW)

    def note(self, elapsed_ns: int, count: int) -> None:
        """Note how long a chunk of `count` messages, 1 or more, has taken."""
        self._per_message_ns.append(elapsed_ns // count)

    def count(self, backlog: int, workers: int) -> int:
        """Return the maximum size of the next chunk, if `backlog` messages are in flight or pending.

        Decides: How many messages does a listener thread get together? By the least time per message of the last 32
            chunks.
        """
        if self._shared:
            return max(self._batch_count, min(_SHARED_CHUNK, backlog // _SHARED_CHUNK))
        quickest = self._quickest_ns()
        if quickest is None:
            return self._batch_count
        if quickest <= _SLOW_NS:
            return max(_CHUNK if quickest > _FAST_NS else _LARGE_CHUNK, self._batch_count)
        fair = min(_SLOW_CHUNK_NS // quickest, backlog // (_CHUNKS_A_WORKER * workers))
        return max(fair - fair % self._batch_count, self._batch_count)

    def gather_s(self, in_flight: int, workers: int) -> float:
        """Return how long results may wait without a worker running out of work, in seconds.

        Processing them one by one would cost more than the listeners do.
        """
        quickest = self._quickest_ns()
        if quickest is None or quickest <= _SLOW_NS or self._shared:
            return 0.0
        return min(_GATHER_S, in_flight * quickest / (2e9 * workers))

    def _quickest_ns(self) -> int | None:
        times = self._per_message_ns
        return min(times) if len(times) == _WINDOW else None
