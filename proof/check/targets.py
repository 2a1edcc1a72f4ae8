"""Nothing is written outside the allow-list, and each delayed message reaches the topic it names."""

from collections.abc import Iterator

from proof.index import Index, Stored
from proof.violation import Violation
from rocketshim_topics.errors import ConfigError

__all__ = ["find", "may_be_written"]


def find(index: Index) -> Iterator[Violation]:
    """Find records in topics that the run may not write to, or that their schedule record does not name."""
    waiting, parked = index.waiting, index.names.parked
    for record in index.records.values():
        if not may_be_written(index, record.topic):
            what = f"{record.it.where} lies in a topic that nothing may be written to"
            yield Violation.of("forbidden-topic", what, [record.source])
            continue
        if record.topic == parked:
            yield from _parked(record)
            continue
        parent = index.records.get(record.envelope.hop_id or "")
        if parent is None or parent.topic not in waiting or record.topic in waiting:
            continue
        if index.is_check(record.topic) and record.topic == index.names.check(parent.envelope.timer_asks or "-"):
            continue
        if not _may_deliver(index, record, parent):
            what = f"the worker wrote {record.it.where}, which its allow-list does not cover"
            yield Violation.of("forbidden-topic", what, [record.source, parent.source])
        elif record.topic != _physical(index, parent.envelope.real_topic):
            what = f"{record.it.where} was made from {parent.it.where}, which goes to {parent.envelope.real_topic}"
            yield Violation.of("wrong-target", what, [record.source, parent.source])


def may_be_written(index: Index, topic: str) -> bool:
    """Whether any process of the run may write to a topic."""
    names = index.names
    if topic in {*index.waiting, names.timer_state, names.parked, names.redrive_log} or index.is_check(topic):
        return True
    if topic in index.retry_topics or topic in index.dead_letter_topics or topic in index.group_logs:
        return True
    return index.is_allowed(topic) or any(topic in group.topics for group in index.setup.groups)


def _may_deliver(index: Index, record: Stored, parent: Stored) -> bool:
    group = index.retry_topics.get(record.topic)
    if group is not None:
        return parent.envelope.consumer_group == group
    return not index.names.is_ours(record.topic) and index.is_allowed(record.topic)


def _physical(index: Index, logical: str | None) -> str | None:
    try:
        return None if logical is None else index.names.physical(logical)
    except ConfigError:
        return None


def _parked(record: Stored) -> Iterator[Violation]:
    envelope = record.envelope
    if not envelope.park_reason or not envelope.park_from or envelope.park_from != envelope.hop_id:
        what = f"{record.it.where} is parked for {envelope.park_reason!r} from {envelope.park_from!r}"
        yield Violation.of("parked-without-reason", what, [record.source])
