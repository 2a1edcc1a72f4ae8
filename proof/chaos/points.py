"""Named points at which a process of the run kills itself, and a wall clock that the harness can set.

The harness arms a process by writing the name of a point into `control/<process>.point`. The process dies, as by
`kill -9`, the next time it comes there. The points of the Kafka clients lie before and after a call, so they are the
same for every program:

    produce  commit  send_offsets_to_transaction  commit_transaction        each with -before and -after

`listener` and `listener-after` lie in the program itself. The offset of the wall clock is in `control/<process>.skew`.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from rocketshim.kafka import confluent

__all__ = ["Points", "skew_clock"]

CONSUMER_CALLS: Final = ("commit",)
PRODUCER_CALLS: Final = ("produce", "send_offsets_to_transaction", "commit_transaction")


class Points:
    """The points of one process.

    Args:
        control: the folder in which the harness arms them.
        name: of the process.

    Thread-safety: any thread.
    """

    def __init__(self, control: Path, name: str) -> None:
        self._armed = str(control / f"{name}.point")

    def reach(self, point: str) -> None:
        """Die here if this point is armed."""
        try:
            with open(self._armed) as file:  # noqa: PTH123 - this is called for every message
                armed = file.read()
        except FileNotFoundError:
            return
        if armed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Put points around the calls of all Kafka clients that the library creates from now on."""
        confluent_kafka.Consumer = self._around(confluent_kafka.Consumer, CONSUMER_CALLS)  # type: ignore[misc]
        confluent.Producer = self._around(confluent.Producer, PRODUCER_CALLS)  # type: ignore[misc]

    def _around(self, client: Any, calls: tuple[str, ...]) -> Any:
        return type(client.__name__, (client,), {call: self._call(getattr(client, call), call) for call in calls})

    def _call(self, original: Any, name: str) -> Any:
        def call(client: Any, *args: Any, **named: Any) -> Any:
            self.reach(f"{name}-before")
            answer = original(client, *args, **named)
            self.reach(f"{name}-after")
            return answer

        return call


def skew_clock(control: Path, name: str) -> None:
    """Let the harness set the wall clock of this process; call it before the library is used."""
    path, true_ns = control / f"{name}.skew", time.time_ns
    at_ns = skew_ns = 0

    def time_ns() -> int:
        nonlocal at_ns, skew_ns
        now_ns = true_ns()
        if now_ns - at_ns > 200_000_000:
            at_ns, skew_ns = now_ns, int(path.read_text() or "0") if path.exists() else 0
        return now_ns + skew_ns

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
