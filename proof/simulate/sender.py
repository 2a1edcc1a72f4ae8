"""A program that sends with a producer. It may die at any call; then it never learns what became of its last messages.

The next program starts again and does not send them again: each message is sent by one call.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

from proof.lines import Process
from proof.simulate.clients import CrashedError, ProcessClients
from proof.simulate.world import LEVELS, World
from rocketshim import Message, Producer
from rocketshim.errors import RocketshimError, SendTimeoutError

__all__ = ["Sender"]

_CLOSE_S: Final = 2.0
End = Callable[[Any, Any], None]


class Sender:
    """A producer; its thread polls when it is given a turn.

    Args:
        world: what it runs in.
        name: of the process.
        numbers: of the messages; the next program goes on with them.
    """

    def __init__(self, world: World, name: str, numbers: Iterator[int]) -> None:
        self.name = name
        self.clients = ProcessClients(world, name)
        self._world = world
        self._numbers = numbers
        self._pending: dict[Future[Any], End] = {}
        world.process(Process(name=name, role="sender"))
        clients = self.clients.factories(in_turns=True)
        self._producer = Producer("memory", delay_levels=LEVELS, clients=clients, clock=world.clock)

    def send(self, kind: int, amount: int) -> None:
        """Send the next message: directly, at a level, with a delay, at a time, or to a topic that is not allowed."""
        number = next(self._numbers)
        delay: dict[str, Any] = {}
        match kind % 8:
            case 0 | 1:
                delay = {"delay_level": 1 + amount % 4}
            case 2:
                delay = {"delay": f"{100 + amount % 3_000}ms"}
            case 3:
                delay = {"deliver_at": self._world.clock.wall_ms() + amount % 2_000}
            case _:
                pass
        topic = "secret" if kind % 32 == 1 else "orders"
        body = b"%d body" % number
        message = Message(topic, body, key=f"k{amount % 5}", properties=[("trace", b"%d" % number)], **delay)
        end = self._world.send_began(self.name, message)
        try:
            future = self._producer.send_async(message)
        except (RocketshimError, BufferError):
            end("fail", None)
            return
        except CrashedError:
            end("info", None)
            raise
        self._pending[future] = end
        future.add_done_callback(self._sent)

    def turn(self) -> None:
        """Let the producer's thread process the reports that have arrived."""
        if self._pending:
            self.clients.call("poll", self.clients.let_threads_poll)

    @property
    def is_idle(self) -> bool:
        """Whether each send has its result."""
        return not self._pending

    def close(self) -> None:
        """Close the producer, which waits for reports and ends its thread."""
        self._producer.close(_CLOSE_S)
        self._forget()

    def died(self) -> None:
        """End what a dead process leaves behind: nobody learns the results any more."""
        self._forget()
        self.clients.end_threads()

    def _forget(self) -> None:
        pending, self._pending = self._pending, {}
        for end in pending.values():
            end("info", None)

    def _sent(self, future: Future[Any]) -> None:
        end = self._pending.pop(future, None)
        if end is None:
            return
        error = future.exception()
        if error is None:
            end("ok", future.result())
        else:
            end("info" if isinstance(error, SendTimeoutError) else "fail", None)
