"""What a program has left open when its interpreter ends: stop its consumers, and wait for what its producers send.

Our threads are daemons, so a program may end while they hold messages that it believes sent, or a membership of a
group. This module ends all of it within a bounded time, in two steps:

1. When the main thread has ended and no other thread keeps the program alive, every consumer is asked to stop, then
   each is awaited. Python's executors still work at this point (they end next), so listeners can finish.
2. When the functions of `atexit` run, the producers are awaited: listeners and other functions of `atexit` may send
   until then. So are consumers that were kept by a thread, or by a Python that does not tell when its main thread ends.

One clock counts for both steps. Each object waits until its own limit after the beginning; the producers get at least a
second after the consumers. What is not stored by then is counted, and logged as one line. Ctrl-C ends the wait.

A forked child has no objects of its parent. A child of `multiprocessing`, or of its fork billiard, runs no function of
`atexit`: it runs this as a finalizer. A child of Celery's pool ends by `os._exit`, and runs this at its signal
`worker_process_shutdown`. References are weak, because an object that is in use is kept by its own thread. Not handled:
`os._exit` elsewhere, a signal that kills, a crash; messages that are sent by functions of `atexit` which were
registered before rocketshim was imported, since they run later; tasks of an executor that outlive the main thread (they
count as no thread).
"""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import thread as executors
from typing import Final, Protocol

from rocketshim.core.user_values import safe_text
from rocketshim.logs import safe_logger

__all__ = ["EXIT_TIMEOUT_MS", "AtExit", "LeftOpen", "at_exit"]

EXIT_TIMEOUT_MS: Final = 10_000
"""How long the exit of the interpreter waits by default, in ms."""

_LOG = safe_logger("rocketshim.producer")
_LEAST_S: Final = 1.0
_HINT: Final = "close() each producer, or use it in a with block: it waits longer, and raises what went wrong"


class LeftOpen(Protocol):
    """An object that a program may leave open.

    Attributes:
        exit_timeout_ms: how long the exit may wait for it, in ms; 0: it is only counted.
    """

    exit_timeout_ms: int

    def begin_exit(self) -> None:
        """Ask it to end; never wait."""

    def finish_exit(self, until_s: float) -> int:
        """Wait for its end until a monotonic time in seconds; return the number of messages that are not stored."""


class AtExit:
    """The objects of this process that end with the interpreter. Any thread and signal handlers may call it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.forget_all()

    def forget_all(self) -> None:
        """Forget every object: they belong to the process that this one was forked from."""
        self._lock = threading.RLock()  # a signal handler may open a client; another thread of the parent may hold it
        self._consumers: weakref.WeakSet[LeftOpen] = weakref.WeakSet()
        self._producers: weakref.WeakSet[LeftOpen] = weakref.WeakSet()
        self._began_s: float | None = None
        self._is_interrupted = False
        self._runs_in_child = False

    def add_consumer(self, consumer: LeftOpen) -> None:
        """Stop this object at the exit; it may have stopped by then."""
        with self._lock:
            self._consumers.add(consumer)
        self._run_in_child()

    def add_producer(self, producer: LeftOpen) -> None:
        """Wait at the exit for the messages of this object."""
        with self._lock:
            self._producers.add(producer)
        self._run_in_child()

    def producers(self) -> list[LeftOpen]:
        """Return the objects that may have messages to send."""
        with self._lock:
            return list(self._producers)

    def abandon(self) -> None:
        """Wait for nothing at the exit: a person has asked twice for the end. Messages are still counted."""
        self._is_interrupted = True

    def main_thread_ended(self) -> None:
        """Stop the consumers, unless another thread keeps the program alive; the first step."""
        if not _is_kept_alive():
            self._end(self._consumers, 0.0)

    def run(self) -> int:
        """End everything that is left, and return the number of messages that are not stored; the second step."""
        self._end(self._consumers, 0.0)
        count = self._end(self._producers, _LEAST_S)
        if count:
            waited_s = round(self._now_s() - self._begin(), 1)
            _LOG.error("producer.not-stored-at-exit", extra={"messages": count, "waited_s": waited_s, "hint": _HINT})
        return count

    def _begin(self) -> float:
        self._began_s = self._now_s() if self._began_s is None else self._began_s
        return self._began_s

    def _end(self, objects: "weakref.WeakSet[LeftOpen]", least_s: float) -> int:
        """End these objects, and forget them; return the number of messages that are not stored."""
        with self._lock:
            left_open = list(objects)
            objects.clear()
        if not left_open or (self._is_interrupted and objects is self._consumers):
            return 0
        began_s, now_s = self._begin(), self._now_s()

        def until_s(each: LeftOpen) -> float:
            limit_s = each.exit_timeout_ms / 1_000
            return 0.0 if self._is_interrupted else max(began_s + limit_s, now_s + min(least_s, limit_s))

        try:
            for each in left_open:
                each.begin_exit()
            return _all_ended(left_open, until_s)
        except KeyboardInterrupt:  # a person does not want to wait
            self._is_interrupted = True
            return _all_ended(left_open, until_s)

    def _run_in_child(self) -> None:
        """Have a child of `multiprocessing` call `run` before it ends; once, since it may open clients without end."""
        process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
        # billiard's processes are those of `multiprocessing` in all but `parent_process`
        if self._runs_in_child or process is None or util is None or process.current_process()._parent_pid is None:  # noqa: SLF001
            return
        self._runs_in_child = True
        util.Finalize(None, self.run, exitpriority=0)
        celery = sys.modules.get("celery.signals")
        if celery is not None:
            celery.worker_process_shutdown.connect(lambda **_: self.run(), weak=False)


def _all_ended(left_open: Iterable[LeftOpen], until_s: Callable[[LeftOpen], float]) -> int:
    count = 0
    for each in left_open:
        try:
            count += each.finish_exit(until_s(each))
        except Exception as error:  # noqa: BLE001 - the others must end, too
            _LOG.error("client.exit-failed", extra={"error": safe_text(error)})
    return count


def _is_kept_alive() -> bool:
    """Return whether a thread that is not a daemon goes on; those of executors only wait for work."""
    idle = getattr(executors, "_threads_queues", {})
    others = (each for each in threading.enumerate() if not each.daemon and each not in idle)
    return any(each not in {threading.main_thread(), threading.current_thread()} for each in others)


at_exit: Final = AtExit()
"""Those of this process."""

atexit.register(at_exit.run)
if (before_executors_end := getattr(threading, "_register_atexit", None)) is not None:  # since `executors` is imported
    before_executors_end(at_exit.main_thread_ended)
if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=at_exit.forget_all)
