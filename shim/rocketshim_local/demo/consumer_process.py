"""The demo's consumer. It runs in its own process so that a user can kill it.

    python -m rocketshim_local.demo.consumer_process BOOTSTRAP NAMESPACE TOPIC GROUP DAY_MS LEVELS

For a flight that left more than half an hour late, the listener asks for a retry at the time when the flight really
left. For a cancelled flight it fails every time, until the message becomes a dead letter.
"""

import json
import sys
from collections.abc import Sequence

from rocketshim import ConsumeFromWhere, MessageView, PushConsumer, RetryLater
from rocketshim.core.listener_answers import ConsumeConcurrentlyContext
from rocketshim_local.demo.flights import Flight, Timetable

__all__ = ["MAX_RETRIES", "FlightCancelledError", "gate"]

MAX_RETRIES = 4
"""Maximum number of retries of a flight; then its message becomes a dead letter."""

_SHORTEST_MS = 32


class FlightCancelledError(Exception):
    """The flight was cancelled: it never left."""


def gate(arguments: Sequence[str]) -> PushConsumer:
    """Return the demo's consumer, with its listener registered and not yet started."""
    bootstrap, namespace, topic, group, day_ms, levels = arguments
    timetable = Timetable(int(day_ms))
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
            raise FlightCancelledError(f"the flight from {flight.origin} never left")  # the same for many: one cause
        if flight.late and message.reconsume_times == 0:
            raise RetryLater(f"{max(_SHORTEST_MS, timetable.lateness_ms(flight))}ms")

    return consumer


if __name__ == "__main__":
    gate(sys.argv[1:]).run()
