"""Planted defects of the producer (`bugs`): each function makes a defective attribute from the original."""

from typing import Any

from confluent_kafka import Message

__all__ = ["acknowledged_when_taken", "same_ids_in_every_process"]


def acknowledged_when_taken(original: Any) -> Any:
    """Report a record as stored when the client has taken it."""

    def send(self: Any, out: Any, done: Any, **named: Any) -> None:
        original(self, out, lambda error, record: None, **named)  # noqa: ARG005
        done(None, Message(topic=out.topic, partition=0, timestamp=(0, -1)))

    return send


def same_ids_in_every_process(original: Any) -> Any:
    """Give messages of each producer the same ids."""

    def init(self: Any, *values: Any, **named: Any) -> None:
        original(self, *values, **named)
        self._ids = "the same", self._ids[1]

    return init
