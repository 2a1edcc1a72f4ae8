"""What a kind of fault is: a row of a table. `kind` appears in the history.

Kinds that begin with `freeze` and `clock-` mean something to the checker (see `proof.check.locks` and `proof.index`).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from proof.chaos.plan import Lane
from proof.chaos.stage import Running, Stage

__all__ = ["ClusterFault", "LaneFault", "PointNotReachedError", "one_of"]


class PointNotReachedError(Exception):
    """A process did not come to a named point in time. It was killed where it was, and has a successor."""

    def __init__(self, target: str) -> None:
        super().__init__(f"{target} did not come to the point")
        self.target = target


@dataclass(frozen=True, slots=True)
class ClusterFault:
    """Something that is done to the brokers, to links or topics, for both lanes.

    Attributes:
        kind: its name in the history.
        weight: how often it is chosen, relative to the others.
        do: does it, returns when it has ended, and says what it hit.
    """

    kind: str
    weight: int
    do: Callable[[Stage, random.Random], str]


@dataclass(frozen=True, slots=True)
class LaneFault:
    """Something that is done to a process of a lane.

    Attributes:
        kind: its name in the history.
        roles: of the processes that it can hit.
        weight: how often it is chosen, relative to the others.
        do: does it to a process, returns when it has ended, and says what it hit. It may raise `PointNotReachedError`.
        exactly_once: whether only the processes of an exactly-once lane can be hit.
    """

    kind: str
    roles: tuple[str, ...]
    weight: int
    do: Callable[[Stage, random.Random, Running], str]
    exactly_once: bool = False

    def is_possible(self, lane: Lane) -> bool:
        """Whether the lane has a process that this can hit."""
        return lane.exactly_once >= self.exactly_once and any(role in lane.members for role in self.roles)


def one_of(stage: Stage, dice: random.Random, lane: Lane, roles: tuple[str, ...]) -> Running | None:
    """A process of the lane that has one of these roles; None: there is none just now."""
    found = stage.of(lane, *(role for role in roles if role in lane.members))
    return dice.choice(found) if found else None
