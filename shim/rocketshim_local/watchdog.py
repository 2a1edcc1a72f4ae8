"""Run a command that never outlives the process that started it.

Usage: start what `guarded` returns: `python -I -S watchdog.py PARENT_PID COMMAND...`. The watchdog forks a small guard
process and then *becomes* the command (`exec`). So the pid that the starter knows is the pid of the command, and the
starter can kill, stop and continue it directly. The guard only waits for two processes. When the starter ends in any
way, also by `kill -9`, the guard kills the command. When the command ends, the guard ends too.

Why not `PR_SET_PDEATHSIG`: it fires when the *thread* that started the child ends. Why not a pipe that closes: a
process that the starter forked would keep it open.

The guard leads its own session, so that Ctrl-C at a terminal reaches only the starter, which stops the command cleanly.
The guard waits on pidfds where the kernel has them (Linux 5.3); elsewhere it checks twice a second.
"""

import os
import select
import signal
import sys
import time


def guarded(command: list[str]) -> list[str]:
    """Return the command that runs `command` and ends it when this process ends.

    Decides: What ends the brokers if their process is killed, and who removes the data? A process ends them. The next
        start removes the data of folders that nobody has locked (`rocketshim_local.home.ClusterHome`).
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(arguments: list[str]) -> None:
    """Fork the guard, then exec the command. Never returns."""
    starter, command = int(arguments[0]), arguments[1:]
    target = os.getpid()
    try:
        # Open it before the parent is compared: then it surely belongs to the starter, not to a later process with the
        # same pid.
        pidfds = (os.pidfd_open(starter), os.pidfd_open(target)) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        pidfds = None
    if os.getppid() != starter:
        sys.exit("the process that started this command has already ended; the command was not run")
    middle = os.fork()
    if middle == 0:
        # Fork twice: the guard becomes a child of init, so the command does not have to reap it.
        os.setsid()
        if os.fork() == 0:
            _guard(starter, target, pidfds)
        os._exit(0)
    os.waitpid(middle, 0)
    os.execv(command[0], command)  # noqa: S606 a shell is not wanted


def _guard(starter: int, target: int, pidfds: tuple[int, int] | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)  # a reader must see the end of the command's output
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
