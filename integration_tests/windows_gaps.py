"""Run a program in a Python that lacks what Windows lacks: `python windows_gaps.py PROGRAM [ARGUMENTS]`.

Modules, functions, flags and signals of Unix are removed after the standard library and the packages that we use were
loaded, which know Windows by themselves. `msvcrt.locking` locks by `flock`, because both lock by the open file.
"""

import asyncio
import concurrent.futures.process
import logging.handlers
import multiprocessing.pool
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import types

import confluent_kafka.admin
import jgo
import pydantic
import textual.app
import typer.testing

LOADED = (
    asyncio, concurrent.futures.process, logging.handlers, multiprocessing.pool, random, subprocess, tempfile,
    confluent_kafka.admin, jgo, pydantic, textual.app, typer.testing,
)  # fmt: skip
MODULES = ("fcntl", "resource", "termios", "tty", "pwd", "grp", "pty", "syslog")
FUNCTIONS = (
    "fork", "forkpty", "register_at_fork", "setsid", "killpg", "getpgid", "getuid", "geteuid", "getgid", "chown",
    "pread", "pwrite", "uname", "sync", "nice", "mkfifo", "sched_getaffinity", "pidfd_open", "wait", "wait4",
    "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG",
)  # fmt: skip
SIGNALS = (
    "SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGSTOP", "SIGCHLD", "SIGPIPE", "SIGALRM",
    "pthread_sigmask", "pthread_kill", "sigwait", "pause", "alarm", "setitimer", "SIG_BLOCK", "SIG_UNBLOCK",
    "SIG_SETMASK",
)  # fmt: skip


def remove() -> None:
    """Remove what Windows lacks from this process."""
    import fcntl

    signal.SIGBREAK = signal.SIGUSR2  # type: ignore[attr-defined] # Ctrl-Break: sent as SIGUSR2
    flock, modes = fcntl.flock, {0: fcntl.LOCK_UN, 1: fcntl.LOCK_EX, 2: fcntl.LOCK_EX | fcntl.LOCK_NB}
    lacks = types.ModuleType("msvcrt")
    lacks.__dict__.update(
        LK_UNLCK=0, LK_LOCK=1, LK_NBLCK=2, locking=lambda descriptor, mode, _: flock(descriptor, modes[mode])
    )
    sys.modules["msvcrt"] = lacks
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment] # an import of it raises ImportError
    for holder, names in ((os, FUNCTIONS), (signal, SIGNALS)):
        for name in names:
            if hasattr(holder, name):
                delattr(holder, name)


if __name__ == "__main__":
    remove()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
