"""The fixture `at_once`: a drop-in consumer whose polls do not wait."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rocketshim.dropin import Consumer


@pytest.fixture
def at_once() -> "type[Consumer]":
    """Return a drop-in consumer class. Once its `waits` is False, its polls do not wait, as with a backlog."""
    from rocketshim.dropin import Consumer

    class AtOnce(Consumer):
        waits = True

        def _shim_wait(self, *args: Any) -> Any:
            return super()._shim_wait(*args) if self.waits else None

        def poll(self, timeout: float = -1) -> Any:
            offsets = self._rocketshim.offsets
            offsets.dirty = offsets.dirty or not self.waits
            return super().poll(timeout)

    return AtOnce
