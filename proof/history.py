"""A history as the checker sees it: lines parsed, each operation's beginning joined with its end.

Everything remembers the line it comes from (`Source`), which is what evidence consists of.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from proof.lines import (
    Commit,
    Fault,
    FoldSeen,
    Group,
    JsonHeaders,
    Process,
    Record,
    Sample,
    Setup,
    SinkWrite,
    TimerCommand,
)

__all__ = ["CommitCall", "Delivery", "History", "Hop", "Outcome", "Seen", "Send", "Source"]

Outcome = Literal["ok", "fail", "info"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A line of a history: file name, and line from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """A line that stands for itself, and where it is."""

    source: Source
    it: T


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """What all operations have: `end_ns` is None and `outcome` is `info` where the end is not known."""

    source: Source
    process: str
    begin_ns: int
    end_ns: int | None
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(_Operation):
    """A message, or a command for a name, was sent; `where` and `id` are known when it was acknowledged."""

    topic: str
    key: str | None
    digest: str | None
    headers: JsonHeaders
    delay_ms: int | None
    deliver_at_ms: int | None
    timer: str | None = None
    command: TimerCommand | None = None
    where: str | None
    id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(_Operation):
    """A listener was called with a message: `ok` succeeded, `fail` failed, `info` did not return."""

    group: str
    where: str
    id: str
    attempt: int
    replay: str | None
    token: int | None
    key: str | None
    digest: str | None
    headers: JsonHeaders
    then: Literal["retry", "dead", "again"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCall(_Operation):
    """A member committed positions."""

    group: str
    epoch: int
    positions: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop(_Operation):
    """A member stored the next record of a failed message: `made_from` is what failed, `where` the new record."""

    group: str
    made_from: str
    topic: str
    where: str | None


@dataclass(slots=True)
class History:
    """All lines of a run.

    Attributes:
        setup: what the run was.
        processes: by name.
        sends, deliveries, commit_calls, hops: operations, each in the order of its file.
        sink: in the order in which the sink saw them.
        folds, faults, records, commits, samples: lines as they are.
    """

    setup: Setup
    processes: dict[str, Process] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    commit_calls: list[CommitCall] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    sink: list[Seen[SinkWrite]] = field(default_factory=list)
    folds: list[Seen[FoldSeen]] = field(default_factory=list)
    faults: list[Seen[Fault]] = field(default_factory=list)
    records: list[Seen[Record]] = field(default_factory=list)
    commits: list[Seen[Commit]] = field(default_factory=list)
    samples: list[Seen[Sample]] = field(default_factory=list)

    def group(self, name: str) -> Group | None:
        """The group of this name; None: the run has none."""
        return next((group for group in self.setup.groups if group.name == name), None)

    def groups_where(self, wanted: Callable[[Group], bool]) -> list[Group]:
        """The groups for which this holds."""
        return [group for group in self.setup.groups if wanted(group)]
