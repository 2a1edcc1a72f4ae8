"""Find every record of one message in the topics of a cluster.

This reads whole topics: the records of a message share their id, and no index of ids exists.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.trace import Missing, TraceStep, life
from rocketshim.errors import ConfigError, NotAuthorizedError, TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import DelayLevels, Origin, TopicNames
from rocketshim_topics.names import check_topic

__all__ = ["history", "message_id", "own_topics", "records_of", "topics_named"]

Watch = Callable[[Iterator[Any]], Iterator[Any]]
"""A function that records pass through as they are read, for example to show progress."""


def message_id(reader: TopicReader, names: TopicNames, what: str) -> str | None:
    """Return the id of the message at `topic/partition/offset`; an id is returned as it is.

    The record need not exist any more, if a record that was made from it does. None: neither does.
    """
    if re.fullmatch(r"\d+/\d+", what):
        raise ConfigError(
            f"{what!r} names no topic: write topic/partition/offset, such as {names.dead_letter('GROUP')}/{what}"
        )
    if what.count("/") != 2:
        return what
    try:
        at = Origin.parse(what)
    except ValueError as error:
        raise ConfigError(f"{what!r} is neither an id nor topic/partition/offset") from error
    message = reader.fetch(at.topic, at.partition, at.offset)
    if message is not None:
        return RecordView.of(message, trusted=names.is_ours(at.topic)).id
    for entry in map(RecordView.of, reader.read(own_topics(reader, names))):
        if what in {entry.envelope.hop_id, entry.envelope.origin_message_id, entry.id}:
            return entry.id
    return None


def own_topics(reader: TopicReader, names: TopicNames) -> list[str]:
    """Return the existing topics of rocketshim in the namespace that have messages, and not the logs."""
    of_groups = (names.retry_prefix, names.dead_letter_prefix)
    ours = [
        name
        for name in reader.topics()
        if name in {names.schedule, names.parked} or (name.startswith(of_groups) and names.is_ours(name))
    ]
    if not ours:
        raise TopicMissingError(f"there is no topic of rocketshim in the namespace {names.namespace!r}. {OR_HIDDEN}")
    return ours


def topics_named(entries: Iterable[RecordView], wanted: str) -> set[str]:
    """Return the source and target topics that the records of a message name."""
    named: set[str] = set()
    for entry in entries:
        envelope = entry.envelope
        named |= {name for name in (envelope.retry_topic, envelope.real_topic) if name and not name.startswith("%")}
    parts = wanted.split("/")
    if len(parts) == 3:  # a record without an id of its own has its coordinates as its id
        named.add(parts[0])
    return named


def records_of(
    reader: TopicReader, names: TopicNames, wanted: str, sources: set[str], *, watch: Watch = iter
) -> list[RecordView]:
    """Return every record with this id, from rocketshim's topics and then from the topics that those records name.

    Decides: Where is a message found, and in which order is its history? `admin.trace.life` puts its records in order.
    """
    found = [entry for entry in map(RecordView.of, watch(reader.read(own_topics(reader, names)))) if entry.id == wanted]
    known = reader.topics()
    for name in sorted(source for source in sources | topics_named(found, wanted) if known.get(source)):
        for message in watch(reader.read([name])):
            entry = RecordView.of(message, trusted=False)
            if entry.id == wanted:
                found.append(entry)
    return found


def history(
    reader: TopicReader, names: TopicNames, levels: DelayLevels, entries: Iterable[RecordView]
) -> list[TraceStep | Missing]:
    """Return the records of one message in the order in which they were stored, with what is missing between them."""
    return life(entries, schedule=names.schedule, levels=levels, low_offset=partial(_low_offset, reader))


def _low_offset(reader: TopicReader, topic: str, partition: int) -> int:
    try:
        return reader.bounds(check_topic(topic), partition)[0]
    except (ConfigError, TopicMissingError, NotAuthorizedError):
        return 0  # there is no such topic, or it is hidden: retention is not the cause
