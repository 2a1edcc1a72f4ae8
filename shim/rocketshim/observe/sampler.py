"""Take snapshots of an installation while somebody watches.

One thread looks up offsets, for all who watch: a hundred pages cost as much as one. It starts with the first watcher.
When nobody has watched for a while it closes its Kafka clients and ends, so an idle console has no traffic at all. A
round takes long where there are many groups: what the first one found is kept for that while, too. The history of the
last hour stays, so that it has a gap where nobody watched.

A snapshot is published by one assignment under a condition, which wakes those that wait for a newer one. A round that
fails publishes the last good values with the error, and the next round tries again with new clients.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol, Self

from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.errors import ClosedError, RocketshimError
from rocketshim.logs import safe_logger
from rocketshim.observe.history import History
from rocketshim.observe.snapshot import Earlier, Offsets, Snapshot, WorkerSnapshot, snapshot_of
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

__all__ = ["Lookup", "Sampler"]

_LOG = safe_logger("rocketshim.observe")
_EVERY_S: Final = 2.0
_IDLE_S: Final = 30.0
_TREND_MS: Final = 60_000


class Lookup(Protocol):
    """What a round of the sampler asks; `OffsetLookup`."""

    def look_up(self, between: Callable[[], None]) -> Offsets:
        """Make one round of look-ups, and call `between` between two requests; raises `RocketshimError`."""

    def close(self) -> None:
        """Close the clients."""


class Sampler:
    """Takes snapshots, and asks the workers, in a thread that goes on for `idle_s` after the last watcher left.

    Thread-safety: any thread may watch and read. `close` waits for the thread, for a request of 10 s at most.
    """

    def __init__(
        self,
        lookup: Callable[[], Lookup],
        names: TopicNames,
        levels: DelayLevels,
        *,
        every_s: float = _EVERY_S,
        idle_s: float = _IDLE_S,
        clock: Clock | None = None,
        workers: Callable[[], tuple[WorkerSnapshot, ...]] = tuple,
        logs_failures: bool = True,  # False: the caller shows why a round failed
    ) -> None:
        self._names = names
        self._levels = levels
        self._every_s = every_s
        self._idle_s = idle_s
        self._clock = clock or SystemClock()
        self._new_lookup = lookup
        self._ask_workers = workers
        self._logs_failures = logs_failures
        self._changed = threading.Condition()
        self._newest: Snapshot | None = None
        self._behind: deque[Earlier] = deque()
        self.history = History(names)  # the last hour; it outlasts the thread
        self._watchers = 0
        self._unwatched_since_s = 0.0
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.moved_ns = self._clock.monotonic_ns()  # when the thread last went on: a request or a round had ended

    @contextmanager
    def watch(self) -> Iterator[Self]:
        """Keep the thread running until the block ends, and yield this sampler."""
        with self._changed:
            if self._is_closed:
                raise ClosedError("this sampler is closed; make another one")
            if self._thread is None:
                self._newest = None  # what an earlier thread left is old
                thread = threading.Thread(target=self._run, name="rocketshim-sampler", daemon=True)
                thread.start()
                self._thread = thread
            self._watchers += 1
        try:
            yield self
        finally:
            with self._changed:
                self._watchers -= 1
                self._unwatched_since_s = time.monotonic()
                self._changed.notify_all()

    @property
    def is_running(self) -> bool:
        """Return whether the thread takes snapshots now."""
        with self._changed:
            return self._thread is not None

    def close(self) -> None:
        """End the thread and close its clients. Idempotent."""
        with self._changed:
            self._is_closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def newest(self) -> Snapshot | None:
        """Return the newest snapshot; None before the first."""
        with self._changed:
            return self._newest

    def wait_newer(self, than: Snapshot | None, timeout_s: float) -> Snapshot | None:
        """Wait for a snapshot that is newer than another one, or for the first; None: there was none in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not than or self._is_closed, timeout_s)
            return self._newest if self._newest is not than else None

    def _run(self) -> None:
        lookup: Lookup | None = None
        try:
            while self._must_go_on():
                began_s, workers = time.monotonic(), self._ask_workers()
                try:
                    lookup, at_ms = lookup or self._new_lookup(), self._clock.wall_ms()
                    snapshot = self._with_trend(
                        snapshot_of(at_ms, self._names, self._levels, lookup.look_up(self._go_on))
                    )
                except Exception as error:  # noqa: BLE001 - the top of the thread; the next round tries again
                    if self._is_closed:
                        continue
                    snapshot = self._failed(error)
                    if lookup is not None:
                        lookup.close()
                    lookup = None
                with self._changed:
                    if self._newest is None:  # a first round may take longer than its watcher waits
                        self._unwatched_since_s = time.monotonic()
                    self._newest = replace(snapshot, workers=workers)
                    self._changed.notify_all()
                self.moved_ns = self._clock.monotonic_ns()
                now_s = time.monotonic()
                if snapshot.error is not None:  # its watcher may leave; the next round may last as long as this one
                    began_s = now_s
                # with very many groups, half of the time is left to the pages
                self._pause(max(began_s + self._every_s, now_s + (now_s - began_s)))
        finally:
            if lookup is not None:
                lookup.close()

    def _with_trend(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with how far behind the groups were up to a minute before, and note it in the history."""
        self.history.add(snapshot)
        while self._behind and snapshot.at_ms - self._behind[0].at_ms > _TREND_MS:
            self._behind.popleft()
        earlier = self._behind[0] if self._behind else None
        self._behind.append(Earlier(snapshot.at_ms, {each.group: each.behind for each in snapshot.groups}))
        return replace(snapshot, earlier=earlier)

    def _go_on(self) -> None:
        """Note that a request of a round has ended; raise if no other one is wanted."""
        self.moved_ns = self._clock.monotonic_ns()
        if self._is_closed:
            raise ClosedError("this sampler is closed")

    def _failed(self, error: Exception) -> Snapshot:
        unexpected = not isinstance(error, RocketshimError)
        if unexpected or self._logs_failures:
            _LOG.warning("observe.round-failed", exc_info=unexpected, extra={"error": str(error)})
        return replace(self._newest or Snapshot(self._clock.wall_ms()), error=str(error))

    def _must_go_on(self) -> bool:
        """Return whether to make another round; if not, the thread is no longer ours, and another one may start."""
        with self._changed:
            if not self._is_closed and not self._is_idle():
                return True
            self._thread = None
            return False

    def _is_idle(self) -> bool:
        return self._watchers == 0 and time.monotonic() - self._unwatched_since_s >= self._idle_s

    def _pause(self, until_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._is_idle(), max(0.0, until_s - time.monotonic()))
