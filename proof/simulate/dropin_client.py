"""The drop-in consumer on the Kafka in memory: its own classes, over another client than the one written in C.

`rocketshim.dropin.Consumer` is a class of `confluent_kafka`. Here `Client` stands between the drop-in's classes and the
C class, and overrides each method with that of a guarded client in memory. The C client is never made. What the
drop-in's modules take from other modules by name, such as the clock, is replaced for the time of a run (`on_memory`).

librdkafka commits stored offsets in a thread of its own, at any time. The client in memory does it when it is polled;
`commit_in_background` does it at other times.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakKeyDictionary

import confluent_kafka

import rocketshim.dropin.consumer as consumer_module
from proof.simulate.clients import CrashedError, ProcessClients
from proof.simulate.virtual_time import replaced, time_of
from proof.simulate.world import World
from rocketshim.dropin import retry_side as retries
from rocketshim.dropin.consumer import Consumer

__all__ = ["DropinClients"]

_FIRST_WAIT_NS: Final = 20_000_000
_METHODS: Final = (
    "unsubscribe", "assignment", "assign", "incremental_assign", "unassign", "incremental_unassign", "committed",
    "pause", "resume", "seek", "position", "store_offsets", "commit", "poll", "consume", "close", "memberid",
)  # fmt: skip


class DropinClients:
    """Makes the drop-in consumers of a run.

    Args:
        world: what they run in.
        others: lets the other processes take a turn.
    """

    def __init__(self, world: World, others: Callable[[], None]) -> None:
        self._world = world
        self._others = others
        self._processes: dict[str, ProcessClients] = {}
        self._running: list[ProcessClients] = []
        self._waits = 0
        self._client = _client_class(self._processes)
        self._program: Any = type("Consumer", (Consumer, self._client), {"__slots__": ()})

    def make(self, process: ProcessClients, config: dict[str, Any]) -> Any:
        """Make the consumer of a process."""
        self._processes[process.name] = process
        made = self._program({**config, "client.id": process.name})
        made._rocketshim.has_topics = True  # noqa: SLF001 - an admin client would ask for the topics; they exist
        return made

    @contextmanager
    def running(self, process: ProcessClients) -> Iterator[None]:
        """Note that this process calls its consumer."""
        self._running.append(process)
        try:
            yield
        finally:
            self._running.pop()

    @contextmanager
    def on_memory(self) -> Iterator[None]:
        """Let the drop-in's modules use the Kafka in memory and the virtual clock."""
        client, clock = self._client, self._world.clock
        time = time_of(clock)
        items: list[tuple[Any, str, Any]] = [
            (consumer_module, "_poll", client.poll),
            (consumer_module, "monotonic", time.monotonic),
            (retries, "_Original", client),
            (retries, "monotonic", time.monotonic),
            (retries, "Producer", self._producer),
            (retries, "random", SimpleNamespace(Random=lambda: Random(0))),  # noqa: S311 - repeatable
            (retries, "SystemClock", lambda: clock),
            (retries, "Future", lambda: _Reported(self._await)),
        ]
        with replaced(items):
            yield

    def _producer(self, config: dict[str, Any]) -> Any:
        return self._processes[config["client.id"]].factories(in_turns=True).producer(config)

    def _await(self, future: Future[Any], timeout_s: float) -> None:
        """Let time pass until a report has come; the other processes run meanwhile, unless it comes immediately."""
        process, clock = self._running[-1], self._world.clock
        until_ns = clock.monotonic_ns() + round(timeout_s * 1e9)
        self._waits += 1
        is_slow, wait_ns = self._waits % 3 == 0, _FIRST_WAIT_NS
        while not future.done() and (now_ns := clock.monotonic_ns()) < until_ns:
            clock.advance_to(min(now_ns + wait_ns, until_ns))
            wait_ns *= 2  # the report may be held for long, and each wait costs a turn of everybody
            if is_slow:
                self._others()
            process.let_threads_poll()
            is_slow = True
            commit_in_background(process)
            if process.is_dead:
                raise CrashedError


def commit_in_background(process: ProcessClients) -> None:
    """Commit what is stored if it is time, as librdkafka's thread does."""
    for consumer in process.consumers:
        with consumer._broker.lock:  # noqa: SLF001 - no call of the program does it
            consumer._commit_automatically()  # noqa: SLF001


class _Reported(Future[Any]):
    """A future whose result the simulation waits for."""

    def __init__(self, wait: Callable[[Future[Any], float], None]) -> None:
        super().__init__()
        self._wait = wait

    def result(self, timeout: float | None = None) -> Any:
        """Return the result once it is there."""
        self._wait(self, timeout or 0.0)
        if not self.done():
            raise FutureTimeoutError
        return super().result(0)


def _client_class(processes: dict[str, ProcessClients]) -> Any:
    """Make the class that overrides confluent_kafka's."""
    clients: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def init(self: Any, config: dict[str, Any]) -> None:
        clients[self] = processes[config["client.id"]].factories().consumer(config)

    def subscribe(self: Any, topics: list[str], **callbacks: Any) -> None:
        named = {name: lambda _, given, call=call: call(self, given) for name, call in callbacks.items()}
        clients[self].subscribe(topics, **named)

    def method(name: str) -> Callable[..., Any]:
        return lambda self, *values, **named: getattr(clients[self], name)(*values, **named)

    methods = {name: method(name) for name in _METHODS}
    return type(
        "Client", (confluent_kafka.Consumer,), {"__slots__": (), "__init__": init, "subscribe": subscribe, **methods}
    )
