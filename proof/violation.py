"""What the checker finds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from proof.history import Source

__all__ = ["Kind", "Violation"]

Kind = Literal[
    "commit-back",  # a committed position went back
    "commit-past-unfinished",  # a commit passed a message that was finished only later
    "concurrent-calls",  # two calls of one orderly queue (or key) at the same time in one process
    "dead-letter-missing",  # a message failed for the last time and has no dead letter
    "delivery-differs",  # a listener saw another key, value or header than the record has
    "duplicate",  # a message was delivered again, and no fault explains it
    "duplicate-exactly-once",  # read_committed shows two records where exactly-once mode allows one
    "early",  # a message left its delay before its time
    "fold-differs",  # two folds of one group log disagree
    "forbidden-topic",  # a record lies where nothing may be written
    "header-changed",  # user headers changed on a hop
    "key-changed",  # the key changed on a hop
    "lag-does-not-fall",  # 15 s after the end of a fault the lag is no lower
    "lag-stays",  # 60 s after the end of a fault there is still lag
    "lost",  # an acknowledged message did not reach a group, and nothing waits for it
    "memory-grows",  # resident memory grows faster than allowed
    "memory-limit",  # a process used more memory than allowed
    "order",  # an orderly group's messages came in another order, or again under one token
    "parked-without-reason",  # a parked record says neither why nor where from
    "phantom",  # a message was stored or delivered that nobody sent
    "read-uncommitted",  # a listener got a record of an aborted transaction
    "reconsume-count",  # the count of failed attempts is not one above the last
    "reconsume-limit",  # a message was retried past its limit, or dead before it without being asked
    "stuck",  # at the end of a drained run a message still waits
    "token-back",  # the sink took a lower fencing token after a higher one
    "token-not-granted",  # a listener was called with a token that the group log gave to another, or to nobody
    "two-holders",  # a queue was consumed under an older lock after a newer one had begun
    "value-changed",  # the value changed on a hop
    "voided",  # a named message was delivered, or waits, though the log of timers says that it is not
    "wrong-target",  # the worker delivered to another topic than the record names
]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes:
        kind: which; the comments of `Kind` say what each means.
        what: for a person, with names and figures.
        evidence: the lines that show it.
    """

    kind: Kind
    what: str
    evidence: tuple[Source, ...]

    @classmethod
    def of(cls, kind: Kind, what: str, evidence: Iterable[Source | None]) -> "Violation":
        """Make one; evidence that is None is left out."""
        return cls(kind, what, tuple(each for each in evidence if each is not None))
