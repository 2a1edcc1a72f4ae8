"""Start the processes of a run, so that none outlives the harness.

A guard process kills a child when the harness ends in any way, also by `kill -9`, and also a child that is frozen. See
`rocketshim_local.watchdog` for why neither a pipe nor a signal of the kernel does.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rocketshim_local.watchdog import guarded

__all__ = ["start_module"]

_ROOT: Final = Path(__file__).parents[2]


def start_module(words: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a module with arguments, as `python -m` does; what it prints is appended to a file.

    The process has the pid of the returned object: it is killed, frozen and awaited directly.

    Args:
        words: the module and its arguments.
        log: the file.
        env: environment of the process; None: that of this one.
    """
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603 - our own programs
            guarded([sys.executable, "-m", *words]),
            stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=_ROOT, env=env,
        )  # fmt: skip
