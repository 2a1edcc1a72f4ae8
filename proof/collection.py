"""Python's search for reference cycles, paused while a history is read and judged."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused_collection"]


@contextmanager
def paused_collection() -> Iterator[None]:
    """Do not search for reference cycles in this block.

    A history has millions of objects and no cycle. The search looks at all of them again and again, which takes a third
    of the checker's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
