"""A delay worker in a thread of the test's own process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rocketshim import DelayWorker


@contextmanager
def running(worker: DelayWorker) -> Iterator[DelayWorker]:
    """It runs as long as this lasts, and has ended afterwards."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()
