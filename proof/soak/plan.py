"""What a soak consists of: topics, groups and processes, the same for the harness and for every process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["DEAD_LETTER_GROUPS", "LANES", "LEVELS", "LIMIT", "ROLES", "Lane", "Role", "fails"]

LEVELS: Final = "1s 2s 5s 10s 30s 1m"
LIMIT: Final = 3
"""A message is dead when it has failed this often and fails once more."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A namespace with a worker of one delivery mode.

    Attributes:
        exactly_once: the delivery mode of its workers.
        topics: partitions by topic.
        shares: how often each topic is sent to, relative to the others.
    """

    exactly_once: bool
    topics: Mapping[str, int]
    shares: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Role:
    """What a process does.

    Attributes:
        lane: its lane, by name.
        topic: what it consumes; empty: it does not.
        group: its consumer group; empty: it has none.
        grows: a second process of this role joins and leaves in each cycle.
    """

    lane: str
    topic: str = ""
    group: str = ""
    grows: bool = True


LANES: Final[Mapping[str, Lane]] = {
    "least": Lane(exactly_once=False, topics={"orders": 4, "bills": 3}, shares={"orders": 60, "bills": 40}),
    "once": Lane(exactly_once=True, topics={"parcels": 4, "news": 2}, shares={"parcels": 80, "news": 20}),
}
ROLES: Final[Mapping[str, Role]] = {
    "worker-least": Role("least"),
    "worker-once": Role("once"),
    "concurrent": Role("least", "orders", "pay"),
    "orderly": Role("least", "bills", "bill"),
    "pull": Role("least", "orders", "audit"),
    "dropin": Role("once", "parcels", "ship"),
    "broadcast": Role("once", "news", "tell"),
    "sender-least": Role("least", grows=False),
    "sender-once": Role("once", grows=False),
}
DEAD_LETTER_GROUPS: Final = {"pay": "least", "bill": "least", "ship": "once"}
"""The groups whose dead letters are sent again, with their lanes."""


def fails(number: int, attempt: int) -> bool:
    """Whether a listener fails with a message: one in ten once or twice, one in 200 always."""
    return number % 200 == 199 or (number % 10 == 3 and attempt <= number // 10 % 2)
