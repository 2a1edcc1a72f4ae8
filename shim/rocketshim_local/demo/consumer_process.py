"""The gate: the demonstration's consumer, a process of its own so that it can be killed.

    python -m rocketshim_local.demo.consumer_process BOOTSTRAP NAMESPACE TOPIC GROUP DAY_MS LEVELS

A flight that left more than half an hour late asks for a retry when it has really left. A cancelled one fails every
time, until it is dead.
"""

import json
import sys

from rocketshim import ConsumeFromWhere, MessageView, PushConsumer, RetryLater
from rocketshim.consumer.outcome import ConsumeConcurrentlyContext
from rocketshim_local.demo.flights import Flight, Timetable

__all__ = ["MAX_RETRIES", "FlightCancelledError", "gate"]

MAX_RETRIES = 4
"""Retries of a flight before it is dead."""

_SHORTEST_MS = 32


class FlightCancelledError(Exception):
    """A flight that never left."""


def gate(*, bootstrap: str, namespace: str, topic: str, group: str, day_ms: int, levels: str) -> PushConsumer:
    """The consumer of the demonstration."""
    timetable = Timetable(day_ms)
    consumer = PushConsumer(
        bootstrap,
        group=group,
        namespace=namespace,
        delay_levels=levels,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=MAX_RETRIES,
        persist_consumer_offset_interval_ms=500,
        client={"session.timeout.ms": 6_000},
    )

    @consumer.listener(topic)
    def depart(message: MessageView, context: ConsumeConcurrentlyContext) -> None:
        del context
        flight = Flight(**json.loads(message.body or b"{}"))
        if flight.cancelled:
            raise FlightCancelledError(f"{flight} never left")
        if flight.late and message.reconsume_times == 0:
            raise RetryLater(f"{max(_SHORTEST_MS, timetable.lateness_ms(flight))}ms")

    return consumer


def main() -> None:
    """Run the gate until SIGTERM."""
    bootstrap, namespace, topic, group, day_ms, levels = sys.argv[1:7]
    gate(bootstrap=bootstrap, namespace=namespace, topic=topic, group=group, day_ms=int(day_ms), levels=levels).run()


if __name__ == "__main__":
    main()
