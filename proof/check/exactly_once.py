"""Where exactly once is promised, `read_committed` shows one record.

That is: one of each hop of an exactly-once worker, and one of each dead letter in each redrive. A message that waits
under a name, and its FIRE, may be stored again: the log lets one of equal FIREs count, which `named` judges.
"""

from collections import defaultdict
from collections.abc import Iterator

from proof.index import Index, Stored
from proof.violation import Violation
from rocketshim_topics.wire import REPLAY_ID

__all__ = ["find"]


def find(index: Index) -> Iterator[Violation]:
    """Find second records where there may be one."""
    for record in index.messages():
        children = record.committed_children()
        if len(children) < 2:
            continue
        if record.topic in index.waiting and index.setup.exactly_once:
            for relayed in index.relays(record):
                same = [child for child in relayed if not _may_repeat(index, record, child)]
                if len(same) > 1:
                    what = f"{record.it.where} was relayed {len(same)} times"
                    yield Violation.of("duplicate-exactly-once", what, [record.source, *(c.source for c in same)])
        elif record.topic in index.dead_letter_topics:
            by_replay: dict[str | None, list[Stored]] = defaultdict(list)
            for child in children:
                by_replay[_replay(child)].append(child)
            for replay, again in by_replay.items():
                if len(again) > 1:
                    what = f"{record.it.where} was redriven {len(again)} times by {replay}"
                    evidence = [record.source, *(child.source for child in again)]
                    yield Violation.of("duplicate-exactly-once", what, evidence)


def _may_repeat(index: Index, record: Stored, child: Stored) -> bool:
    if record.topic == index.names.timers:
        return index.effect_of(child) == "waits"
    return child.topic == index.names.timers


def _replay(record: Stored) -> str | None:
    return next((value for name, value in record.it.headers if name == REPLAY_ID), None)
