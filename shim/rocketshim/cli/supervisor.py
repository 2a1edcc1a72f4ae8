"""Several processes of one command: started together, stopped together.

Each member's standard input is a pipe from the supervisor. The end of that pipe asks the member to stop. That works on
every platform, and also when the supervisor is killed. A signal to the whole process group, as Ctrl-C in a terminal,
reaches the members directly, too; a second request to stop changes nothing. If one member ends by itself, the
supervisor stops the others and ends with an error, so that your service manager can start all of them again.
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

__all__ = ["Member", "health_option", "obey_supervisor", "supervise"]

_LOG = safe_logger("rocketshim.consumer")
_POLL_S = 0.2


class Member(NamedTuple):
    """One process.

    Attributes:
        arguments: of the `rocketshim` command; the command must know `--supervised`, and call `obey_supervisor` then.
        environment: variables in addition to those of this process.
    """

    arguments: Sequence[str]
    environment: dict[str, str]


def health_option(address: tuple[str, int] | None, number: int) -> list[str]:
    """Return the option `--health` of a member: each uses the next port; port 0 stays 0."""
    if address is None:
        return []
    host, port = address
    return ["--health", f"{host}:{port + number if port else 0}"]


def supervise(members: Sequence[Member], signals: StopSignals, *, grace_s: float, error: type[RocketshimError]) -> None:
    """Run the members until a stop signal arrives, and stop all of them together.

    Args:
        members: what to run.
        signals: the stop signals of this process.
        grace_s: a member that has not stopped after this time is killed, in seconds.
        error: raised if a member ends by itself, or not well.
    """
    processes: list[subprocess.Popen[bytes]] = []
    ended: list[int] = []
    try:
        for member in members:
            command = [sys.executable, "-m", "rocketshim", *member.arguments, "--supervised"]
            with _signals_blocked():  # a member gets no signal before it can handle one
                processes.append(
                    subprocess.Popen(command, env={**os.environ, **member.environment}, stdin=subprocess.PIPE)  # noqa: S603 - ours
                )
            if signals.asked:
                break
        while not signals.asked and not ended:
            time.sleep(_POLL_S)
            ended = [process.pid for process in processes if process.poll() is not None]
        if ended:
            time.sleep(_POLL_S)  # a signal to the whole process group may have reached that member first
        codes = _stop(processes, grace_s)
    finally:
        for process in processes:
            if process.poll() is None:  # an exception left the loop or the stop
                process.kill()
    if not signals.asked:
        raise error(f"the process {ended[0]} of {len(members)} ended by itself; all were stopped")
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
