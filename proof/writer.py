"""Write one process's file of a history.

Each line is one `write` to a file opened for appending, with its line feed: what a process wrote before `kill -9`
stays, and at most the last line is torn. Nothing is buffered here, and nothing is synced: the host does not crash.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from proof.lines import End, Invoke, Line, Process, to_json

__all__ = ["HistoryWriter"]


class HistoryWriter:
    """The file of one process.

    Args:
        folder: of the history.
        process: who writes; the file is named after it, and must not be there yet.
        clock_ns: the host's monotonic clock.

    Raises:
        FileExistsError: a process of this name has written before: restarted processes have names of their own.

    Thread-safety: all methods, from any thread.
    """

    def __init__(self, folder: Path, process: Process, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(folder / f"{process.name}.jsonl", flags, 0o644)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.clock_ns = clock_ns
        self.write(process)

    def write(self, line: Line) -> None:
        """Append a line; it is in the file when this returns."""
        data = memoryview(to_json(line) + b"\n")
        with self._lock:  # a large line may take several writes
            while data:
                data = data[os.write(self._file, data) :]

    def next_op(self) -> int:
        """A number for the next operation."""
        return next(self._numbers)

    def invoke(self, line: Callable[[int, int], Invoke]) -> int:
        """Write the beginning of an operation, made from its number and the time; return the number."""
        number = self.next_op()
        self.write(line(number, self.clock_ns()))
        return number

    def end(self, line: Callable[[int], End]) -> None:
        """Write the end of an operation, made from the time."""
        self.write(line(self.clock_ns()))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
