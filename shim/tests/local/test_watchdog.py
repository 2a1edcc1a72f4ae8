"""Real processes: the guard is about what the kernel does when one ends."""

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
    """Tell whether a process ends before the deadline."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], DEADLINE_S)[0])
    finally:
        os.close(handle)


def guards_of(command_pid: int) -> list[int]:
    """Return the guard processes whose command line names this process' starter and command."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] and str(WATCHDOG) in process.info["cmdline"] and process.pid != command_pid
    ]


STARTER = f"""
import os, subprocess, sys, threading
pids = []
def start():  # in a thread that ends at once: only the end of the whole process may matter
    command = [sys.executable, "-I", "-S", {str(WATCHDOG)!r}, str(os.getpid()), "/bin/sh", "-c"]
    process = subprocess.Popen([*command, "echo ready; exec sleep 600"], stdout=subprocess.PIPE)
    process.stdout.readline()  # it has become the command, and so its guard stands
    pids.append(process.pid)
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(pids[0], flush=True)
sys.stdin.read()
"""


def test_the_command_keeps_the_pid_its_starter_knows_and_its_signals_work() -> None:
    command = [sys.executable, "-I", "-S", str(WATCHDOG), str(os.getpid()), "/bin/sh", "-c", "echo $$; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.terminate()
        assert process.wait(DEADLINE_S) == -signal.SIGTERM


def test_the_output_of_a_command_ends_with_it_although_the_guard_lives_on_for_a_moment() -> None:
    command = [sys.executable, "-I", "-S", str(WATCHDOG), str(os.getpid()), "/bin/echo", "hello"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)  # noqa: S603
    assert run.stdout == "hello\n"


def test_a_starter_that_is_killed_takes_the_command_with_it_and_the_guard_goes_too() -> None:
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        guards = [g for g in guards_of(pid) if str(starter.pid) in psutil.Process(g).cmdline()]
        assert psutil.pid_exists(pid)
        assert len(guards) == 1
        starter.kill()
        assert ends(pid)
        assert ends(guards[0])


def test_a_frozen_command_is_ended_too() -> None:
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        starter.kill()
        assert ends(pid)


def test_a_command_whose_starter_has_ended_before_is_not_started() -> None:
    command = [sys.executable, "-I", "-S", str(WATCHDOG), "1", "/bin/echo", "hello"]
    if os.getpid() == 1:
        command[4] = "2"
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)  # noqa: S603
    assert run.returncode != 0
    assert run.stdout == ""
    assert "starter has ended" in run.stderr
