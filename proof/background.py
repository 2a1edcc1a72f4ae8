"""A thread that does something beside a run."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["in_background"]


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do something in a thread for as long as the block lasts; the event is set when it has to end."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name="background")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
