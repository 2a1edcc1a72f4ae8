"""Processes whose wall clock is wrong: the environment that `shift_clock.c`, compiled here by gcc, needs.

Python and librdkafka see the wrong time; the monotonic clock stays right, as on a machine whose clock was set wrongly.
"""

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["ShiftedClock"]

_SOURCE = Path(__file__).with_name("shift_clock.c")


class ShiftedClock:
    """Makes environments of processes with a wrong clock; the compiled library lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc")
        assert compiler is not None, "no gcc on PATH: processes with a wrong clock need it"
        self._library = folder / "shift_clock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", self._library, _SOURCE, "-ldl"], check=True)

    def env(self, ahead_s: int) -> dict[str, str]:
        """Return the environment of a process whose wall clock is ahead by `ahead_s` seconds (negative: behind)."""
        return {**os.environ, "LD_PRELOAD": str(self._library), "SHIFT_S": str(ahead_s)}
