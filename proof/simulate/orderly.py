"""What an orderly consumer needs in a simulated run: a sink that checks tokens, and turns of its group-log thread."""

from typing import Any, Final

from proof.simulate.world import World
from rocketshim import MessageView

__all__ = ["LOCKS", "LogInTurns", "Sink"]

LOCKS: Final[dict[str, Any]] = {"lock_lease_ms": 6_000, "lock_hold_ms": 3_000, "lock_renew_ms": 1_000}
_LAST_TURNS: Final = 3


class Sink:
    """What listeners write to: it refuses a token lower than the highest that it has seen of a queue."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._highest: dict[str, int] = {}

    def takes(self, by: str, message: MessageView, token: int) -> bool:
        """Take a write, or refuse it."""
        where = message.offset_msg_id
        queue = where.rpartition("/")[0]
        is_accepted = token >= self._highest.get(queue, -1)
        if is_accepted:
            self._highest[queue] = token
        self._world.sink_written(by, where, token, accepted=is_accepted)
        return is_accepted


class LogInTurns:
    """The group-log thread of a consumer, without its thread.

    Args:
        log: the `GroupLogThread`; None: the consumer is concurrent, and has none.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        if log is not None:
            log.start = lambda _name: log.open()

    def turn(self) -> None:
        """Do an iteration."""
        if self._log is not None:
            self._log.turn(0)

    def close(self) -> None:
        """Write what was released, and close."""
        if self._log is not None:
            for _ in range(_LAST_TURNS):
                self._log.turn(0)
            self._log.close()
