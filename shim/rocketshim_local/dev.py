"""A Kafka to develop with, the worker, and the user's consumer, in one terminal.

The worker runs in a thread of this process. The consumer runs in a process of its own, so that it can be started again
with changed code; the end of its standard input asks it to stop. So nothing is left if this process is killed: the
brokers have a watchdog, the worker is a thread, and the consumer's pipe closes.
"""

import importlib.util
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocketshim.cli.run import missing_module, split_target
from rocketshim.settings import BOOTSTRAP_VARIABLE
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.log_format import JsonLines, LogFormat, LogLevel, TextLines
from rocketshim.worker.worker import DelayWorker

__all__ = ["ConsumerProcess", "PartLogs", "WorkerThread", "changes", "check_target"]

Show = Callable[[str, str], None]
"""Prints a line of a part: its name and the line."""

_LOOK_EVERY_S: Final = 0.5
_STOP_WORKER_S: Final = 15.0
_STOP_CONSUMER_S: Final = 45.0
_ON_USE: Final = {"allow.auto.create.topics": True}  # a delayed message, too, creates its topic


def check_target(target: str) -> None:
    """Check that a consumer is named as MODULE:NAME and that its module exists; do not import it."""
    module, _ = split_target(target)
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise missing_module(target, module)


class PartLogs(logging.Handler):
    """Prints the log lines of this process under the name of the part that logged them."""

    def __init__(self, show: Show, log_format: LogFormat = "text") -> None:
        super().__init__()
        self._show = show
        self.setFormatter(JsonLines() if log_format == "json" else TextLines())

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; of the Kafka clients only errors, since a new broker makes them warn of what is normal."""
        is_worker = record.name == "rocketshim.worker"
        if is_worker or record.levelno >= logging.ERROR:
            for line in self.format(record).split("\n"):
                self._show("worker" if is_worker else "kafka", line)


class WorkerThread:
    """The delay worker in a thread."""

    def __init__(self, bootstrap: str) -> None:
        self._worker = DelayWorker(WorkerSettings.make(bootstrap=bootstrap, allow=("*",), client=_ON_USE))
        self._thread = threading.Thread(target=self._run, name="rocketshim-dev-worker", daemon=True)
        self.error: Exception | None = None
        self._thread.start()

    def stop(self) -> None:
        """Stop the worker, and wait for it up to 15 s."""
        self._worker.stop()
        self._thread.join(_STOP_WORKER_S)

    def _run(self) -> None:
        try:
            self._worker.run()
        except Exception as error:  # noqa: BLE001 - the top of the thread; `rocketshim dev` ends with it
            self.error = error


class ConsumerProcess:
    """The user's consumer, as `rocketshim run` in a process of its own.

    Thread-safety: one thread, except for its own thread that reads the output.
    """

    def __init__(
        self, target: str, bootstrap: str, show: Show, *, log_format: LogFormat = "text", log_level: LogLevel = "info"
    ) -> None:
        self._arguments = [target, "--supervised", "--log-format", log_format, "--log-level", log_level]
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", BOOTSTRAP_VARIABLE: bootstrap}
        self._environment.pop("ROCKETSHIM_CLIENT", None)  # it belongs to a cluster with TLS
        self._show = show
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process."""
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "rocketshim", "run", *self._arguments],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C at the terminal reaches this process only, which stops the consumer
        )
        threading.Thread(target=self._read, args=(self._process,), name="rocketshim-dev-output", daemon=True).start()

    def ended(self) -> int | None:
        """Return, once, the exit code of a process that has ended by itself; None: it has not."""
        if self._process is None or self._process.poll() is None:
            return None
        code, self._process = self._process.returncode, None
        return code

    def stop(self) -> None:
        """Ask the process to finish what is in progress and to stop; kill it after 45 s."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_STOP_CONSUMER_S)
        except subprocess.TimeoutExpired:
            self._show("dev", f"the consumer did not stop within {_STOP_CONSUMER_S:.0f} s; it is killed")
        finally:
            process.kill()  # also when a second Ctrl-C has interrupted the wait
            process.wait()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout or ():
            self._show("consumer", line.rstrip("\n"))


def changes(folder: Path | None) -> Iterator[list[str]]:
    """Yield the names of Python files that have changed in a folder since the last time; mostly none.

    Hidden folders, virtual environments and `node_modules` are left out. Without a folder nothing is watched.
    """
    before = _python_files(folder)
    while True:
        time.sleep(_LOOK_EVERY_S)
        now = _python_files(folder)
        changed = [path for path in now.keys() | before.keys() if now.get(path) != before.get(path)]
        before = now
        yield sorted({Path(path).name for path in changed})


def _python_files(folder: Path | None) -> dict[str, int]:
    """Return the Python files below a folder with their time of change."""
    found: dict[str, int] = {}
    for path, folders, files in () if folder is None else os.walk(folder):
        folders[:] = [
            each
            for each in folders
            if not each.startswith(".") and each != "node_modules" and not Path(path, each, "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py"):
                with suppress(OSError):  # it was removed meanwhile
                    file = os.path.join(path, name)  # noqa: PTH118 - ten times as fast as Path for thousands of files
                    found[file] = os.stat(file).st_mtime_ns  # noqa: PTH116 - likewise
    return found
