"""A program that sends with a producer. It may die at any call; then it never learns what became of its last messages.

The next program starts again and does not send them again: each message is sent by one call.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from proof.lines import Process, TimerCommand
from proof.simulate.clients import CrashedError, ProcessClients
from proof.simulate.world import LEVELS, NAMES, PRODUCERS, World
from rocketshim import Message, MessageView, Producer
from rocketshim.errors import RocketshimError, SendTimeoutError
from rocketshim.producer.arguments import Half
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
        self._halves: set[Future[Any]] = set()  # those of them that send half messages
        self._next: list[Callable[[], object]] = []  # what a transaction does, one step in a turn
        self._answered: set[str] = set()  # checks, by coordinates
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

    def _await(self, send: Callable[[], Future[Any]], end: End) -> Future[Any] | None:
        try:
            future = send()
        except (RocketshimError, BufferError):
            end("fail", None)
            return None
        except CrashedError:
            end("info", None)
            raise
        self._pending[future] = end
        future.add_done_callback(self._sent)
        return future

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

    def begin_transaction(self, kind: int, amount: int) -> None:
        """Send a half message. Then the database commits or not, and a COMMIT or ROLLBACK is sent, twice, or not."""
        number = next(self._numbers)
        message = Message("orders", b"%d body" % number, key=f"k{amount % 5}", properties=[("trace", b"%d" % number)])
        half = replace(message, delay=f"{1_000 + amount % 2_000}ms")
        ended = self._world.send_began(self.name, half, is_half=True)
        until_s = self._world.clock.monotonic_ns() / 1e9 + _COMMAND_S

        def stored(outcome: Any, result: Any) -> None:
            ended(outcome, result)
            if outcome == "ok":
                pays = kind != 4
                self._next.append(lambda: self._world.paid.setdefault(result.msg_id, pays))
                for _ in range((1, 1, 1, 2, 1, 0, 0, 0)[kind]):
                    self._next.append(lambda: self._end_transaction(result.msg_id, is_paid=pays))

        which = Half(PRODUCERS, self._producer.sender.new_id(), half)
        sent = self._await(lambda: self._producer.sender.send(half, None, None, until_s, which), stored)
        if sent is not None:
            self._halves.add(sent)

    def _end_transaction(self, msg_id: str, *, is_paid: bool) -> None:
        command: TimerCommand = "NOW" if is_paid else "CANCEL"
        end = self._world.command_began(self.name, command, "orders", msg_id)
        until_s = self._world.clock.monotonic_ns() / 1e9 + _COMMAND_S
        self._await(lambda: self._producer.sender.command(command, "orders", msg_id, until_s), end)

    def _answer_checks(self) -> None:
        """Answer the checks that have come, but for those of transactions that may still run here."""
        for record in self._world.kafka.records(NAMES.check(PRODUCERS)):
            if (where := coordinates(record)) not in self._answered:
                self._answered.add(where)
                msg_id = MessageView(record, trusted=True).msg_id
                if msg_id in self._world.paid or not (self._halves & self._pending.keys() or self._next):
                    self._end_transaction(msg_id, is_paid=self._world.paid.setdefault(msg_id, False))

    def turn(self) -> None:
        """Let the producer's thread process the reports that have arrived; a transaction takes its next step."""
        if self._pending:
            self.clients.call("poll", self.clients.let_threads_poll)
        if self._next:
            self._next.pop(0)()
        if self._world.has_timers:
            self._answer_checks()

    @property
    def is_idle(self) -> bool:
        """Whether each send has its result, and each transaction has done what it does."""
        return not self._pending and not self._next

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
        self._next.clear()
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
