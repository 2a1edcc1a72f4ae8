"""The properties, one module each; `run` asks them all.

Each module has `find(index)`, a pure function that yields what breaks its property.
"""

from proof.check import (
    commits,
    content,
    duplicates,
    exactly_once,
    fold,
    liveness,
    locks,
    loss,
    memory,
    named,
    order,
    phantom,
    retries,
    targets,
    timing,
)
from proof.history import History
from proof.index import Index
from proof.violation import Violation

__all__ = ["PROPERTIES", "run"]

PROPERTIES = (
    loss, phantom, duplicates, timing, commits, order, locks, fold, retries, content, targets, exactly_once, liveness,
    memory, named,
)  # fmt: skip


def run(history: History) -> list[Violation]:
    """Return everything that is wrong with a history, by property."""
    index = Index(history)
    return [violation for module in PROPERTIES for violation in module.find(index)]
