"""A fixture that the tests of both pull consumers share."""

from collections.abc import Callable
from typing import Any

import pytest

from rocketshim.testing.consumer import InMemoryConsumer


@pytest.fixture
def interrupt_fetch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let a signal handler raise in the next fetch, after the client has returned messages."""
    consume = InMemoryConsumer.consume

    def interrupted(self: InMemoryConsumer, *arguments: Any) -> Any:
        monkeypatch.undo()
        assert consume(self, *arguments)
        raise KeyboardInterrupt

    return lambda: monkeypatch.setattr(InMemoryConsumer, "consume", interrupted)
