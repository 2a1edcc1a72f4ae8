"""Become a command that does not outlive the process that started it.

Run as `python -I -S watchdog.py PARENT_PID COMMAND...`. It leaves a small guard process behind and then *becomes* the
command (`exec`), so that the pid the starter knows is the command's own: it can be killed, stopped and continued
directly. The guard waits for two processes and for nothing else: when the starter ends, in any way, `kill -9`
included, it kills the command; when the command ends, it ends too.

Why not `PR_SET_PDEATHSIG`: it fires when the *thread* that started the child ends. Why not a pipe that closes: a
process forked by the starter would hold it open.

The guard leads its own session, so that Ctrl-C at a terminal reaches the starter only, which stops the command in
order. It waits on pidfds where the kernel has them (Linux 5.3), else it looks twice a second.
"""

import os
import select
import signal
import sys
import time


def main(arguments: list[str]) -> None:
    """Fork the guard, then exec the command; returns never."""
    starter, command = int(arguments[0]), arguments[1:]
    target = os.getpid()
    try:
        # Opened before the parent is compared: so it is the starter's and not a later process' with the same pid.
        pidfds = (os.pidfd_open(starter), os.pidfd_open(target)) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        pidfds = None
    if os.getppid() != starter:
        sys.exit("the starter has ended already")
    middle = os.fork()
    if middle == 0:
        # Forked twice: the guard becomes a child of init, not one the command would have to reap.
        os.setsid()
        if os.fork() == 0:
            _guard(starter, target, pidfds)
        os._exit(0)
    os.waitpid(middle, 0)
    os.execv(command[0], command)  # noqa: S606 no shell wanted


def _guard(starter: int, target: int, pidfds: tuple[int, int] | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)  # a reader of the command's output must see it end
    if pidfds is not None:
        ready, _, _ = select.select(pidfds, [], [])
        if pidfds[1] not in ready:
            signal.pidfd_send_signal(pidfds[1], signal.SIGKILL)
        return
    while _alive(target):
        if not _alive(starter):
            os.kill(target, signal.SIGKILL)
            return
        time.sleep(0.5)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
