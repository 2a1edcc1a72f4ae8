"""The watchdog with real processes, because it depends on what the kernel does when a process ends."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil

import rocketshim_local.watchdog as watchdog_module

WATCHDOG = Path(watchdog_module.__file__)
DEADLINE_S = 60.0


def ends(pid: int) -> bool:
    """Return whether a process ends before the deadline."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], DEADLINE_S)[0])
    finally:
        os.close(handle)


def guards_of(command_pid: int, starter_pid: int) -> list[int]:
    """Return the pids of the guard processes of a command of this starter."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if {str(WATCHDOG), str(starter_pid)} <= set(process.info["cmdline"] or ()) and process.pid != command_pid
    ]


STARTER = f"""
import os, subprocess, sys, threading
pids = []
def start():  # in a thread that ends immediately: only the end of the whole process may matter
    command = [sys.executable, "-I", "-S", {str(WATCHDOG)!r}, str(os.getpid()), "/bin/sh", "-c"]
    process = subprocess.Popen([*command, "echo ready; exec sleep 600"], stdout=subprocess.PIPE)
    process.stdout.readline()  # the watchdog has become the command, so its guard runs
    pids.append(process.pid)
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(pids[0], flush=True)
sys.stdin.read()
"""


def test_the_command_has_the_pid_that_its_starter_knows_and_receives_signals() -> None:
    command = [sys.executable, "-I", "-S", str(WATCHDOG), str(os.getpid()), "/bin/sh", "-c", "echo $$; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.terminate()
        assert process.wait(DEADLINE_S) == -signal.SIGTERM


def test_the_output_of_a_command_ends_when_the_command_ends_although_the_guard_still_runs() -> None:
    command = [sys.executable, "-I", "-S", str(WATCHDOG), str(os.getpid()), "/bin/echo", "hello"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)  # noqa: S603
    assert run.stdout == "hello\n"


def test_when_the_starter_is_killed_the_command_and_the_guard_end() -> None:
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        guards = guards_of(pid, starter.pid)
        assert psutil.pid_exists(pid)
        assert len(guards) == 1
        starter.kill()
        assert ends(pid)
        assert ends(guards[0])


def test_a_stopped_command_is_killed_too() -> None:
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        starter.kill()
        assert ends(pid)


def test_the_command_is_not_started_if_its_starter_has_already_ended() -> None:
    command = [sys.executable, "-I", "-S", str(WATCHDOG), "1", "/bin/echo", "hello"]
    if os.getpid() == 1:
        command[4] = "2"
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)  # noqa: S603
    assert run.returncode != 0
    assert run.stdout == ""
    assert "has already ended; the command was not run" in run.stderr
