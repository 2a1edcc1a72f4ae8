"""Named points at which a process of the run kills itself.

The harness arms a process by writing the name of a point into `control/<process>.point`. The process dies, as by
`kill -9`, the next time it comes there. The points of the Kafka clients lie before and after a call, so they are the
same for every program:

    produce  commit  send_offsets_to_transaction  commit_transaction        each with -before and -after

`listener` and `listener-after` lie in the program itself.
"""

import os
import signal
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from rocketshim.kafka import confluent

__all__ = ["Points"]

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
