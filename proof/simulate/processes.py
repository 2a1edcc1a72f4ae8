"""The simulated processes: delay workers and push consumers, each the real shell, run turn by turn.

A place is where a process runs: when it has died, its successor starts there after a while, under a new name.
"""

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from proof.history import Outcome
from proof.lines import Process
from proof.simulate.clients import CrashedError, ProcessClients
from proof.simulate.orderly import LOCKS, LogInTurns, Sink
from proof.simulate.world import ALLOWED, GROUP, LEVELS, World
from rocketshim import ConsumeFromWhere, ConsumeOrderlyContext, MessageView, PushConsumer
from rocketshim.consumer.dispatch import Result
from rocketshim.consumer.push.assembly import PushAssembly
from rocketshim.errors import RocketshimError
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.worker import DelayWorker

__all__ = ["CLASSIC", "KIP_848", "Consumer", "Place", "Shell", "Worker", "fails", "kills"]

CLASSIC: Final[dict[str, Any]] = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
KIP_848: Final[dict[str, Any]] = {"group.protocol": "consumer"}
_RESTART_MS: Final = 300
_CALLS_LAST_WAITS: Final = 2
_STOP_MS: Final = 1_000


def fails(number: int, attempt: int, dead_every: int) -> bool:
    """Return whether a listener fails with a message: one in five once or twice, one in `dead_every` always."""
    return number % dead_every == dead_every - 1 or (number % 5 == 3 and attempt <= number % 2)


def kills(number: int) -> bool:
    """Return whether a message kills the process that handles it, each time: one in eleven."""
    return number % 11 == 7


class _FailedError(Exception):
    """The listener fails with this message."""


class SteppedPool:
    """Listeners that run when the simulation says so, in its thread: begun in order, as by threads, and ended in any.

    Args:
        world: its clock moves while the owner waits for a result.
        run: runs a chunk.
    """

    shares_chunks = False

    def __init__(self, world: World, run: Callable[[Any], Any]) -> None:
        self.results: SimpleQueue[Result] = SimpleQueue()
        self.tasks: deque[Any] = deque()
        self.late: deque[Result] = deque()
        self.size = 2
        self.waits = 0
        self._world = world
        self._run = run

    def submit(self, chunk: Any) -> None:
        """Keep a chunk until `work`."""
        self.tasks.append(chunk)

    def report_part(self, chunk: Any) -> None:
        """Do nothing: one listener has a chunk."""

    def work(self, *, late: bool) -> None:
        """Run the oldest chunk; `late`: the call ends only by `hear`, after calls that began later."""
        if self.tasks:
            chunk = self.tasks.popleft()
            result = Result(chunk, self._run(chunk), 0)
            (self.late.append if late else self.results.put)(result)

    def hear(self) -> None:
        """Give the owner the results that are late."""
        while self.late:
            self.results.put(self.late.popleft())

    def wait(self, timeout_s: float, gather_s: float) -> Result:
        """Return a result; if there is none, let time pass and raise `queue.Empty`."""
        del gather_s
        if not self.results.qsize():
            self.waits += 1
            if self.waits > _CALLS_LAST_WAITS:  # the listeners' threads would have gone on
                self.hear()
                self.work(late=False)
            self._world.clock.advance(max(timeout_s * 1_000, 1))
            raise Empty
        return self.results.get()

    def resize(self, size: int) -> None:
        """Do nothing: the simulation decides what runs."""
        self.size = size

    def is_own_thread(self) -> bool:
        """Return whether a listener asks: never, since listeners do not stop their consumer."""
        return False

    def stop(self, timeout_s: float) -> bool:
        """Return whether nothing is left to do."""
        del timeout_s
        return not self.tasks


class Shell(Protocol):
    """A process that runs in turns."""

    name: str
    clients: ProcessClients

    def turn(self) -> None:
        """Do one turn of its loop."""

    def close(self) -> None:
        """End in order."""

    def died(self) -> None:
        """End what a dead process leaves behind."""


class Worker:
    """A delay worker."""

    def __init__(self, world: World, place: str, name: str, *, exactly_once: bool) -> None:
        self.name = name
        self.clients = ProcessClients(world, name)
        world.process(Process(name=name, role="worker"))
        settings = WorkerSettings.make(
            bootstrap="memory", allow=ALLOWED, delay_levels=LEVELS, exactly_once=exactly_once, instance=place,
            client=CLASSIC, commit_interval_ms=200, stop_timeout_ms=_STOP_MS,
        )  # fmt: skip
        self._worker = DelayWorker(
            settings, clients=self.clients.factories(), clock=world.clock, sleep=world.clock.sleep
        )
        self._is_started = False

    def turn(self) -> None:
        """Do a turn of the worker's loop."""
        if not self._is_started:
            self._worker.start()
            self._is_started = True
        self._worker.step(50)

    def close(self) -> None:
        """End in order."""
        self._worker.close()

    def died(self) -> None:
        """Do nothing: it has no thread here."""


class Consumer:
    """A push consumer; its poll loop and its listeners run in turns.

    Args:
        world: what it runs in.
        name: of the process.
        sink: what its listener writes to, in order; None: the consumer is concurrent.
        protocol: the settings of its group protocol.
        topic: what it has a listener for.
    """

    def __init__(
        self, world: World, name: str, sink: Sink | None, protocol: dict[str, Any], topic: str = "orders"
    ) -> None:
        self.name = name
        self.topic = topic
        self._sink = sink
        self._turned_ms = world.now_ms
        self.clients = ProcessClients(world, name, GROUP.name)
        self._world = world
        world.process(Process(name=name, role="consumer", group=GROUP.name, client_id=name))
        facade = PushConsumer(
            "memory", group=GROUP.name, delay_levels=LEVELS, consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            max_reconsume_times=GROUP.limit or 0, persist_consumer_offset_interval_ms=world.commit_interval_ms,
            hop_back_off_ms=500, client=protocol, client_id=name, **({} if sink is None else LOCKS),
        )  # fmt: skip
        if sink is None:
            facade.register_message_listener(topic, self._handle)
        else:
            facade.register_message_listener(topic, self._handle_in_order, orderly=True)
        pools: list[SteppedPool] = []

        def make_pool(run: Callable[[Any], Any], size: int, name: str) -> SteppedPool:
            del size, name
            pools.append(SteppedPool(world, run))
            return pools[0]

        self.loop, _ = PushAssembly(
            facade.settings,
            facade.names,
            facade._subscriptions,  # noqa: SLF001 - what the facade gives its assembly
            facade._hooks,  # noqa: SLF001
            self.clients.factories(),
            world.clock,
            0,
            make_pool=make_pool,
        ).build()
        self.pool = pools[0]
        owners = (self.loop.mode, self.loop.reader.assigner)  # of the group-log thread, if there is one
        self._log = LogInTurns(world, next((log for each in owners if (log := getattr(each, "_log", None))), None))

    def turn(self) -> None:
        """Do a turn of the poll loop."""
        if not self.loop.is_open:
            self.loop.open()
        self.pool.waits = 0
        self._note_late_turn()
        self._log.turn()
        self.loop.turn()

    def close(self) -> None:
        """End in order: running calls finish."""
        self.pool.hear()
        self.loop.stop(_STOP_MS)
        self.loop.close()
        error = self.loop.error
        if isinstance(error, CrashedError):
            raise error
        self._log.close()

    def died(self) -> None:
        """Do nothing: it has no thread here."""

    def _note_late_turn(self) -> None:
        """Record a fault if so much time has passed since the last turn that a lock may have lapsed."""
        now_ms, now_ns = self._world.now_ms, self._world.event_ns()
        if self._sink is not None and now_ms - self._turned_ms >= LOCKS["lock_renew_ms"]:
            self._world.fault("stand-still", self.name, self._turned_ms * 1_000_000, now_ns)
        self._turned_ms = now_ms

    def _handle(self, message: MessageView) -> None:
        self._check_alive()
        end = self._world.delivery_began(self.name, message)
        self._die_of(message, end)
        if self._fails(message):
            end("fail")
            raise _FailedError
        end("ok")

    def _handle_in_order(self, message: MessageView, context: ConsumeOrderlyContext) -> None:
        self._check_alive()
        token = context.fencing_token
        end = self._world.delivery_began(self.name, message, token=token)
        self._die_of(message, end)
        if self._fails(message) or (self._sink is not None and not self._sink.takes(self.name, message, token or 0)):
            end("fail")
            raise _FailedError
        end("ok")

    def _check_alive(self) -> None:
        """Let no listener of a dead process do anything: the library goes on with its chunk, since it cannot know."""
        if self.clients.is_dead:
            raise CrashedError

    def _die_of(self, message: MessageView, end: Callable[[Outcome], None]) -> None:
        if self._world.has_killers and kills(_number(message)):
            end("info")
            self._world.note(self.name, "dies", f"of {message.offset_msg_id}")
            self.clients.die()
            raise CrashedError

    def _fails(self, message: MessageView) -> bool:
        return fails(_number(message), message.reconsume_times, self._world.dead_every)


def _number(message: MessageView) -> int:
    return int((message.body or b"0").partition(b" ")[0])


class Place:
    """Where one process runs after the other.

    Args:
        world: what it runs in.
        name: of the place; its processes are numbered.
        start: starts a process with this name.

    Attributes:
        shell: the process that runs; None: it has died, and its successor has not started.
    """

    def __init__(self, world: World, name: str, start: Callable[[str], Shell]) -> None:
        self.name = name
        self.shell: Shell | None = None
        self.frozen_until_ms = 0
        self._world = world
        self._start = start
        self._count = 0
        self._starts_ms = 0
        self._is_running = False
        self._died: tuple[str, str, int] | None = None

    def turn(self, act: Callable[[Shell], None]) -> None:
        """Let the process do something, unless it is frozen or dead; its successor starts when it is time.

        Do nothing if this process waits in a call, and lets the others run meanwhile.
        """
        now_ms = self._world.now_ms
        if self._is_running or now_ms < self.frozen_until_ms:
            return
        if self.shell is None:
            if now_ms < self._starts_ms:
                return
            self._begin()
        shell = self.shell
        if shell is None:
            return
        self._is_running = True
        try:
            act(shell)
        except CrashedError:
            self.died("crash")
        except RocketshimError as error:  # it cannot go on, and a supervisor starts it again
            self._world.note(shell.name, "fails", type(error).__name__)
            self._end(shell)
            self.died("failed")
        else:
            if shell.clients.is_dead:  # the library has kept the end of the process as an error of its loop
                self.died("crash")
        finally:
            self._is_running = False

    def freeze(self, ms: int) -> None:
        """Stop the process for a while; its session may end meanwhile, and it does not know that."""
        if self.shell is not None and self._world.now_ms >= self.frozen_until_ms:
            begin_ns = self._world.event_ns()
            self.frozen_until_ms = self._world.now_ms + ms
            for consumer in self.shell.clients.consumers:
                self._world.kafka.freeze(consumer)
            self._world.fault("stand-still", self.shell.name, begin_ns, begin_ns + ms * 1_000_000)

    def leave(self) -> None:
        """Stop the process in order; its successor starts later."""
        shell = self.shell
        if shell is not None and self._world.now_ms >= self.frozen_until_ms:
            self._end(shell)
            self.died("leave")

    def died(self, kind: str) -> None:
        """Note that the process has ended."""
        shell, self.shell = self.shell, None
        if shell is not None:
            if not shell.clients.is_dead:
                shell.clients.die()
            shell.died()
            self._died = kind, shell.name, self._world.event_ns()
            self._starts_ms = self._world.now_ms + _RESTART_MS

    def _end(self, shell: Shell) -> None:
        try:
            shell.close()
        except (CrashedError, RocketshimError) as error:
            self._world.note(shell.name, "does not close", type(error).__name__)

    def _begin(self) -> None:
        self._count += 1
        self.shell = self._start(f"{self.name}-{self._count}")
        if self._died is not None:
            kind, target, begin_ns = self._died
            if kind != "leave":  # it explains no repeat: a member that leaves finishes its work
                self._world.fault(kind, target, begin_ns)
            self._died = None
