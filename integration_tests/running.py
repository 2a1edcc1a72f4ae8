"""What a test has running beside it: a delay worker in a thread, or a process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any

from rocketshim import DelayWorker, WorkerSettings


def patient_worker(
    bootstrap: str, namespace: str, levels: str, *, allow: tuple[str, ...] = ("*",), **values: Any
) -> DelayWorker:
    """A delay worker for tests that count: it repeats nothing because its broker stands still for some seconds."""
    return DelayWorker(
        WorkerSettings.make(
            bootstrap=bootstrap,
            namespace=namespace,
            delay_levels=levels,
            allow=allow,
            target_patience_ms=30_000,
            **values,
        )
    )


@contextmanager
def running(worker: DelayWorker) -> Iterator[DelayWorker]:
    """It runs as long as this lasts, and has ended afterwards."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


@contextmanager
def killed_at_last(child: Popen[Any]) -> Iterator[None]:
    """A process that has not ended afterwards is killed: `with Popen(…)` would wait for it after a failure."""
    try:
        yield
    finally:
        child.kill()
