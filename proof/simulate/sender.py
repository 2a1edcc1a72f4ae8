"""A program that sends with a producer. It may die at any call; then it never learns what became of its last messages.

The next program starts again and does not send them again: each message is sent by one call.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Final

from proof.lines import Process, TimerCommand
from proof.simulate.clients import CrashedError, ProcessClients
from proof.simulate.world import LEVELS, NAMES, World
from rocketshim import Message, Producer
from rocketshim.errors import RocketshimError, SendTimeoutError
from rocketshim_topics.wire import coordinates

__all__ = ["Sender"]

_CLOSE_S: Final = 2.0
_COMMAND_S: Final = 3.0
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
        self._send("secret" if kind % 32 == 1 else "orders", amount, delay)

    def _send(self, topic: str, amount: int, options: dict[str, Any]) -> None:
        number = next(self._numbers)
        body = b"%d body" % number
        message = Message(topic, body, key=f"k{amount % 5}", properties=[("trace", b"%d" % number)], **options)
        self._await(lambda: self._producer.send_async(message), self._world.send_began(self.name, message))

    def _await(self, send: Callable[[], Future[Any]], end: End) -> None:
        try:
            future = send()
        except (RocketshimError, BufferError):
            end("fail", None)
            return
        except CrashedError:
            end("info", None)
            raise
        self._pending[future] = end
        future.add_done_callback(self._sent)

    def send_named(self, kind: int, amount: int) -> None:
        """Send the next message under a name, or a command for a name; there are few names, so they meet."""
        name = f"n{amount % 3}"
        if kind in {5, 6, 7}:
            command: TimerCommand = "NOW" if kind == 7 else "CANCEL"
            end = self._world.command_began(self.name, command, "orders", name)
            until_s = self._world.clock.monotonic_ns() / 1e9 + _COMMAND_S
            self._await(lambda: self._producer.sender.command(command, "orders", name, until_s), end)
            return
        options: dict[str, Any] = {"delay": f"{50 * (amount % 31)}ms", "if_absent": kind == 4}
        if kind == 3:
            options["at_most"] = f"{500 + amount % 1_000}ms"
        topic = "secret" if amount % 29 == 1 else "orders"
        if kind == 2 and amount % 2:
            self._write_set(
                Message(topic, b"%d body" % next(self._numbers), timer=name, delay=options["delay"]), amount
            )
        else:
            self._send(topic, amount, {"timer": name, **options})

    def _write_set(self, message: Message, amount: int) -> None:
        """Set a name as another program does: a plain record in any partition, without an id."""
        headers = {"REAL_TOPIC": message.topic, "TIMER": message.timer, "TIMER_DO": "SET", "DELAY_MS": message.delay_ms}
        end = self._world.send_began(self.name, message)
        record = self._world.kafka.append(
            NAMES.timers, message.body, partition=amount % 8,
            headers=[(name, str(value).encode()) for name, value in headers.items()],
        )  # fmt: skip
        end("ok", SimpleNamespace(queue_offset=record.offset(), offset_msg_id=coordinates(record), msg_id=None))

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
