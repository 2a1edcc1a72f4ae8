"""Waiting for a fact on a real broker, which gives no signal of it."""

import time
from collections.abc import Callable

_LOOK_EVERY_S = 0.02


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str] = "a fact", *, within_s: float) -> None:
    """Look again and again; the time is for broken tests only. `what` may be a function, called at the end."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s} s: {what if isinstance(what, str) else what()}"
        time.sleep(_LOOK_EVERY_S)
