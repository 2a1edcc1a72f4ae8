"""Make a redrive plan from a topic, of its dead letters or parked records, or read a plan from its file.

The plan itself, and why a dead letter is held back, is in `rocketshim_topics.redrive_plan`; `rocketshim.admin.redrive`
applies it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from rocketshim.admin.dead_letter_formats import DeadLetterRecord, Decoder
from rocketshim.admin.record_filter import RecordFilter
from rocketshim.admin.record_view import RecordView
from rocketshim.admin.redrive import read_log
from rocketshim.errors import ConfigError, RocketshimError
from rocketshim.kafka.clients import LastClientError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import TopicNames
from rocketshim_topics.layout import is_compacted
from rocketshim_topics.provision import read_topics
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.redrive_plan import (
    Planner,
    RedrivePlan,
    RedriveRules,
)

__all__ = ["make_plan", "read_plan"]

Watch = Callable[[Iterator[Any]], Iterator[Any]]
"""A function that records pass through as they are read, for example to show progress."""


def make_plan(
    reader: TopicReader,
    sources: TopicReader,
    source: str,
    rules: RedriveRules,
    choice: RecordFilter,
    *,
    watch: Watch = iter,
) -> RedrivePlan:
    """Read the topic of dead letters, or that of parked records, and plan what to do with the selected ones.

    `sources` is another reader, which completes dead letters that only name their record.
    """
    names = TopicNames(rules.namespace)
    log = read_log(reader, names.redrive_log, source)
    planner = Planner(source, rules, log, reader.topics(), is_compacted=cache(partial(_is_compacted, reader)))
    decoder = Decoder(names, source, fetch=sources.fetch)
    for dead_letter, entry, is_selected in _classified(reader, decoder, choice, log, watch):
        if not is_selected:
            planner.pass_over(dead_letter.message, entry.envelope)
            continue
        planner.add(
            dead_letter.message,
            entry.envelope,
            malformed=dead_letter.malformed,
            opened=None if dead_letter.dialect is None else dead_letter.record,
        )
    return planner.plan(cluster_id=reader.cluster_id(), created_ms=time.time_ns() // 1_000_000, choice=choice.written)


def _is_compacted(reader: TopicReader, topic: str) -> bool:
    """Return whether a topic is compacted; False also if its settings may not be read, as in a Kafka in memory."""
    with suppress(RocketshimError):
        admin = reader.admin(LastClientError())
        state = None if admin is None else read_topics(admin, [topic]).get(topic)
        return state is not None and is_compacted(state.config)
    return False


def _classified(
    reader: TopicReader, decoder: Decoder, choice: RecordFilter, log: RedriveLog, watch: Watch
) -> Iterator[tuple[DeadLetterRecord, RecordView, bool]]:
    """Yield the dead letters that are selected or have a mark in the redrive log, each with "is selected"."""
    since_ms = None if log.has_marks() else choice.since_ms
    for message in watch(reader.read([decoder.topic], since_ms=since_ms)):
        is_marked = log.is_marked(message.partition(), message.offset())
        if not is_marked and choice.since_ms is not None and message.timestamp()[1] < choice.since_ms:
            continue
        dead_letter = decoder.open(message)
        entry = RecordView.opened(dead_letter)
        is_wanted = choice.wants(entry)
        if is_wanted or is_marked:
            yield dead_letter, entry, is_wanted


def read_plan(path: Path) -> RedrivePlan:
    """Return the plan in a file; refuse one that is not as it was made."""
    try:
        return RedrivePlan.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the plan ({type(error).__name__})") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
