"""Freezing a process that a test has started."""

import os
import signal

__all__ = ["freeze"]


def freeze(pid: int) -> None:
    """Send SIGSTOP to a child process, and return when it has stopped: on a busy machine it runs on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
