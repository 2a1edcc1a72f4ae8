"""The page of log events: the vocabulary of every part, as the code has it."""

from rocketshim.log_events import EVENTS
from rocketshim.worker.log_format import EVENTS as WORKER_EVENTS
from tools.reference.tables import table

__all__ = ["page"]

_INTRODUCTION = """\
# Log events

rocketshim logs through `logging`, with loggers below `rocketshim`, and configures nothing. The message of a log record
is the name of an event, and its facts are attributes of the record (`record.partition`). Alert on names. Lines of
Kafka's client (librdkafka) come through the logger `rocketshim.client`; their message is librdkafka's text.
`rocketshim worker` and `rocketshim run` write one line for each record, as text or as JSON.
"""
_HEADINGS = {
    "consumer": "Consumers",
    "group": "Locks and members of a group",
    "dropin": "Drop-in",
    "producer": "Producer",
    "worker": "Worker",
    "run": "rocketshim run",
    "health": "Health and metrics",
}


def page() -> str:
    """Return the page."""
    events = {**EVENTS, **WORKER_EVENTS}
    parts = [_INTRODUCTION]
    for prefix, heading in _HEADINGS.items():
        rows = [(f"`{name}`", about) for name, about in sorted(events.items()) if name.partition(".")[0] == prefix]
        parts += [f"## {heading}", table(("event", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"
