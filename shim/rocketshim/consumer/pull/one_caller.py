"""One thread at a time: the guard of the calls of a pull consumer, and the request to stop from another thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rocketshim.errors import ConsumerError

__all__ = ["OneCaller"]


class OneCaller:
    """Lets one thread at a time call a consumer.

    Args:
        close: closes the consumer; it may be called again later.

    Attributes:
        stopping: whether the consumer is to stop; no event, because a signal handler sets it.

    Thread-safety: any thread; `stop` also in a signal handler.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self.stopping = False
        self._close = close
        self._lock = threading.Lock()
        self._thread: int | None = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """Hold the consumer for one call.

        Raises:
            ConsumerError: another call is in progress.
        """
        if not self._lock.acquire(blocking=False):
            raise ConsumerError("another call is using this consumer; only one thread at a time may use it")
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._lock.release()

    def stop(self) -> None:
        """Request the stop; wait for a call of another thread, and close the consumer.

        If a signal handler has interrupted a call of this thread, that call has to close it.
        """
        self.stopping = True
        if self._thread != threading.get_ident():
            with self._lock:
                self._close()
