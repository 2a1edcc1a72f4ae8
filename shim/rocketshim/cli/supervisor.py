"""Several processes of one command: started together, each started again if it dies, stopped together.

Each member's standard input is a pipe from the supervisor. The end of that pipe asks the member to stop. That works on
every platform, and also when the supervisor is killed
(test_members_stop_by_themselves_when_their_supervisor_is_killed). A signal to the whole process group, as Ctrl-C in a
terminal, reaches the members directly, too; a second request to stop changes nothing.

A member that dies (killed for its memory, a segmentation fault, an error that ends its loop) does not disturb the
others. `Restarts` decides what follows:

* It is started again after a pause: 1 s, then twice as long for each death that follows within a minute of a start, at
  most 30 s.
* If it ends with an exit code within 10 s of its first start, the set-up is wrong (settings, topics, log-in). A new
  start would not help. So all are stopped, and the command ends with an error.
* After 20 such quick deaths in a row all are stopped, too, so that the service manager and its alerts learn of it.

"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from rocketshim.errors import RocketshimError
from rocketshim.logs import safe_logger
from rocketshim.stop_signals import STOP_SIGNALS, StopSignals

__all__ = ["GIVE_UP", "Member", "Restarts", "health_option", "obey_supervisor", "supervise"]

_LOG = safe_logger("rocketshim.consumer")
_POLL_S = 0.2
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_QUICK_S = 60.0
_AT_START_S = 10.0
_QUICK_DEATHS = 20

GIVE_UP = None
"""What `Restarts.pause_s` returns if the member is not to be started again."""


class Member(NamedTuple):
    """One process of a `rocketshim` command that knows `--supervised` and calls `obey_supervisor` then."""

    arguments: Sequence[str]
    environment: dict[str, str]


def health_option(address: tuple[str, int] | None, number: int) -> list[str]:
    """Return the option `--health` of a member: each uses the next port; port 0 stays 0."""
    if address is None:
        return []
    host, port = address
    return ["--health", f"{host}:{port + number if port else 0}"]


class Restarts:
    """Decide whether and when one member is started again. The caller passes all times. Pure."""

    def __init__(self) -> None:
        self._is_first = True
        self._quick_deaths = 0

    def pause_s(self, exit_code: int, lived_s: float) -> float | None:
        """Return how long to wait before the next start; `GIVE_UP`: stop all. An exit code below 0 is a signal's.

        Decides: What if a process of `--processes` dies? The others go on; it is started again after a pause.
        """
        is_first, self._is_first = self._is_first, False
        if is_first and exit_code >= 0 and lived_s < _AT_START_S:
            return GIVE_UP
        self._quick_deaths = self._quick_deaths + 1 if lived_s < _QUICK_S else 1
        if self._quick_deaths >= _QUICK_DEATHS:
            return GIVE_UP
        return min(_FIRST_PAUSE_S * 2.0 ** (self._quick_deaths - 1), _LONGEST_PAUSE_S)


class _Place:
    """The place of one member: its present process, or when the next one is started."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._restarts = Restarts()
        self.process = self._start()
        self._next_s: float | None = None  # None: the process has not ended, or its end was not seen yet

    def _start(self) -> "subprocess.Popen[bytes]":
        self._began_s = time.monotonic()
        command = [sys.executable, "-m", "rocketshim", *self._member.arguments, "--supervised"]
        environment = {**os.environ, **self._member.environment}
        with _signals_blocked():  # a member gets no signal before it can handle one
            return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)  # noqa: S603 - ours

    @property
    def is_pausing(self) -> bool:
        """Return whether its process has died, and the next one is not started yet."""
        return self._next_s is not None

    def look(self, signals: StopSignals) -> bool:
        """Start the process again if that is due; return whether it is to be given up."""
        code = self.process.poll()
        if code is None:
            return False
        now_s = time.monotonic()
        if self._next_s is None:
            time.sleep(_POLL_S)  # a signal to the whole process group may have reached that member first
            if signals.asked:
                return False
            pause_s = self._restarts.pause_s(code, now_s - self._began_s)
            if pause_s is GIVE_UP:
                return True
            _LOG.error("run.member-died", extra={"pid": self.process.pid, "exit_code": code, "next_start_s": pause_s})
            self._next_s = now_s + pause_s
        if now_s >= self._next_s:
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process, self._next_s = self._start(), None
        return False


def supervise(members: Sequence[Member], signals: StopSignals, *, grace_s: float, error: type[RocketshimError]) -> None:
    """Run the members until a stop signal arrives, start those again that die, and stop all of them together.

    A member that has not stopped after `grace_s` is killed. One that is given up (`Restarts`) raises `error`.
    """
    places: list[_Place] = []
    given_up: list[_Place] = []
    try:
        for member in members:
            places.append(_Place(member))
            if signals.asked:
                break
        while not signals.asked and not given_up:
            time.sleep(_POLL_S)
            given_up = [place for place in places if place.look(signals)]
        codes = _stop([place.process for place in places if not place.is_pausing], grace_s)
    finally:
        for place in places:
            if place.process.poll() is None:  # an exception left the loop or the stop
                place.process.kill()
    if given_up and not signals.asked:
        process = given_up[0].process
        raise error(
            f"the process {process.pid} of {len(members)} ended by itself with exit code {process.returncode}, and "
            "starting it again does not help; all were stopped"
        )
    if any(codes):
        raise error(f"not every process ended well: exit codes {codes}")


def _stop(members: "list[subprocess.Popen[bytes]]", grace_s: float) -> list[int]:
    """Ask the members to stop, kill those that have not stopped in time, and return the exit codes."""
    for member in members:
        if member.stdin is not None:
            member.stdin.close()
    deadline = time.monotonic() + grace_s
    for member in members:
        try:
            member.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _LOG.error("run.member-killed", extra={"pid": member.pid, "grace_s": grace_s})
            member.kill()
    return [member.wait() for member in members]


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start child processes with the stop signals blocked, where the platform supports it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def obey_supervisor() -> None:
    """Accept the stop signals, which were blocked until now, and treat the end of standard input as a stop signal."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(sys.stdin.fileno(), 1_024):
                pass
        _LOG.info("run.stop-asked")
        signal.raise_signal(signal.SIGTERM)

    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    threading.Thread(target=watch, name="rocketshim-supervisor", daemon=True).start()
