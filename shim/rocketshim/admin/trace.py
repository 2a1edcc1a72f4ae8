"""The history of one message: find its records in the topics of a cluster, and put them in order.

The search reads whole topics: the records of a message share their id, and no index of ids exists.

Records of one message have the same id. Each hop names in `HOP_ID` the record that it was made from. From the first
failure on, `ORIGIN_MESSAGE_ID` names the record of the first delivery. A named record that was not read is reported as
*missing*: retention has deleted it, or it was not among the records read; the earliest remaining offset tells which.
No remaining record names the records in between, but the failure counts tell which attempts are missing.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.timer_view import FoundTimer
from rocketshim.core.named_timers import Effect
from rocketshim.core.timer_history import TimerHistory
from rocketshim.errors import ConfigError, NotAuthorizedError, TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import DelayLevels, Envelope, Origin, TopicNames
from rocketshim_topics.hops import due_ms
from rocketshim_topics.levels import time_in_queue_ms
from rocketshim_topics.names import check_topic
from rocketshim_topics.wire import REPLAY_ID, USER_PREFIX

__all__ = [
    "Missing",
    "history",
    "life",
    "message_at",
    "missing_text",
    "own_topics",
    "records_of",
    "step_text",
    "topics_named",
]


@dataclass(frozen=True, slots=True)
class Missing:
    """A record that another record was made from, but that was not read.

    * `attempts`: the first and the last failed attempt without a remaining record, up to the attempt of this record;
      None: there are none.
    """

    at: str  # its coordinates
    expired: bool  # retention has deleted it; False: it exists, but was not among the records read
    attempts: tuple[int, int] | None = None


def life(
    entries: Iterable[RecordView],
    *,
    schedule: str,
    levels: DelayLevels,
    low_offset: Callable[[str, int], int],
) -> list[RecordView | Missing]:
    """Return every record of one message in the order in which they were stored, each after its predecessors. Pure.

    A record that waits has its due time (`due_ms`), a delivered one how late it was (`late_ms`).

    A repeated record in `entries` counts once. Clocks that stamp records differ by some ms.
    """
    found = {entry.at: entry for entry in entries}

    def order(entry: RecordView) -> tuple[int, bool, int, str]:
        origin = found.get(entry.envelope.hop_id or "", entry)
        is_behind = origin is not entry and origin.stored_ms >= entry.stored_ms
        return max(entry.stored_ms, origin.stored_ms), is_behind, entry.offset, entry.at

    ordered = sorted(found.values(), key=order)
    reported: set[str] = set(found)
    result: list[RecordView | Missing] = []
    failures = 0
    for entry in ordered:
        envelope = entry.envelope
        origin = found.get(envelope.hop_id or "")
        new_failures = envelope.reconsume_times or 0
        for source in (envelope.origin_message_id, envelope.hop_id):
            if source is not None and source not in reported:
                reported.add(source)
                has_gap = source == envelope.hop_id != envelope.origin_message_id and failures + 1 < new_failures
                attempts = (failures + 1, new_failures - 1) if has_gap else None
                result.append(Missing(source, _is_expired(source, low_offset), attempts))
        failures = new_failures
        waits = entry.topic == schedule or envelope.timer_do in _SETS
        is_due = origin is not None and (origin.topic == schedule or origin.envelope.timer_do == "FIRE")
        is_delivered = is_due and not waits and envelope.timer_do is None
        due = _due_ms(entry, levels) if waits else None
        late_ms = entry.stored_ms - _due_ms(origin, levels) if is_delivered and origin is not None else None
        result.append(replace(entry, due_ms=due, late_ms=late_ms))
    return result


def _due_ms(entry: RecordView, levels: DelayLevels) -> int:
    return due_ms(entry.envelope, entry.stored_ms, time_in_queue_ms(levels, entry.partition))


def _is_expired(at: str, low_offset: Callable[[str, int], int]) -> bool:
    try:
        origin = Origin.parse(at)
    except ValueError:
        return False
    return origin.offset < low_offset(origin.topic, origin.partition)


def _command_text(envelope: Envelope) -> str:
    if envelope.timer_asks is None or envelope.timer_do in {"CANCEL", "NOW"}:
        return f"{envelope.timer_do} of the timer {envelope.timer}"
    kind = "check" if envelope.timer_do == "FIRE" else "half message"
    return f"{kind} of the producers {envelope.timer_asks}"


def step_text(hop: RecordView, names: TopicNames) -> str:
    """Return what a record in the history of a message means, for a person."""
    envelope = hop.envelope
    cause = f"{envelope.fail_class}: {envelope.fail_text}" if envelope.fail_class else ""
    name = hop.topic
    if hop.malformed is not None and name != names.parked:
        return f"malformed: {hop.malformed}"
    if hop.due_ms is not None:
        return _waiting_text(hop, cause, _physical(envelope.real_topic, names))
    if envelope.timer_do is not None and hop.decision:
        return f"{_command_text(envelope)}, {hop.decision}"
    if envelope.timer_do is not None:
        kind = "timers" if envelope.timer_asks is None else "tx"
        show = f"rocketshim {kind} show {envelope.real_topic} {envelope.timer}"
        return f"{_command_text(envelope)}; {show} tells what it did"
    if name == names.parked:
        return f"parked: {envelope.park_reason}"
    if name.startswith(names.dead_letter_prefix):  # whichever group it names, perhaps none that can exist
        return f"dead: {cause}"
    plan = _redriven_by(envelope)
    if plan is not None:
        return f"sent again by plan {plan}"
    word = "sent" if envelope.hop_id is None else "delivered"  # what a group has made of it, the records do not tell
    return word if hop.late_ms is None else f"delivered, {hop.late_ms} ms after it was due"


def _waiting_text(hop: RecordView, cause: str, target: str | None) -> str:
    envelope, wait_ms = hop.envelope, (hop.due_ms or 0) - hop.stored_ms
    wait = f"waits {wait_ms} ms for {target}" if wait_ms > 0 else f"already due when it was stored, for {target}"
    if envelope.timer_do is not None:
        return f"{_command_text(envelope)}, {hop.decision or wait}"
    if envelope.park_from is not None and (plan := _redriven_by(envelope)) is not None:
        return f"sent again by plan {plan}, {wait}"
    if envelope.unhandled_since_ms is not None:
        return f"sent on by a member that could not handle it, {wait}"
    return f"failed ({cause}), {wait}" if cause else wait


def _physical(topic: str | None, names: TopicNames) -> str | None:
    """Return the name of a topic in Kafka; a name that no topic can have stays as it is."""
    try:
        return topic and names.physical(topic)
    except ConfigError:
        return topic


def _redriven_by(envelope: Envelope) -> str | None:
    """Return the id of the plan that redrove a record; None if it is not a redrive.

    On a source topic the header counts as a user header.
    """
    carried = dict(envelope.user).get(USER_PREFIX + REPLAY_ID) or b""
    replay_id = envelope.replay_id or carried.decode("utf-8", "replace")
    return replay_id.partition(".")[0] if replay_id and not envelope.reconsume_times else None


def missing_text(hop: Missing) -> str:
    """Return why a record is missing, for a person."""
    why = "retention has deleted it" if hop.expired else "it was not found"
    if hop.attempts is None:
        return why
    first, last = hop.attempts
    return f"{why}; no record is left of {f'attempt {first}' if first == last else f'attempts {first} to {last}'}"


_SETS: Final = frozenset({"SET", "SET-IF-ABSENT"})
Watch = Callable[[Iterator[Any]], Iterator[Any]]
"""A function that records pass through as they are read, for example to show progress."""


def message_at(reader: TopicReader, names: TopicNames, what: str) -> tuple[str | None, RecordView | None]:
    """Return the id of the message at `topic/partition/offset`, and its record there; an id is returned as it is.

    The record need not exist any more, if a record that was made from it does. No id: neither does.
    """
    if re.fullmatch(r"\d+/\d+", what):
        raise ConfigError(
            f"{what!r} names no topic: write topic/partition/offset, such as {names.dead_letter('GROUP')}/{what}"
        )
    if what.count("/") != 2:
        return what, None
    try:
        at = Origin.parse(what)
    except ValueError as error:
        raise ConfigError(f"{what!r} is neither an id nor topic/partition/offset") from error
    if (record := reader.fetch(at.topic, at.partition, at.offset)) is not None:
        found = RecordView.of(record, trusted=names.is_ours(at.topic))
        return found.id, found
    for entry in map(RecordView.of, reader.read(own_topics(reader, names))):
        if what in {entry.envelope.hop_id, entry.envelope.origin_message_id, entry.id}:
            return entry.id, None
    return None, None


def own_topics(reader: TopicReader, names: TopicNames) -> list[str]:
    """Return the existing topics of rocketshim in the namespace that have messages, and not the logs."""
    of_groups = (names.retry_prefix, names.dead_letter_prefix)
    ours = [
        name
        for name in reader.topics()
        if name in {names.schedule, names.timers, names.parked} or (name.startswith(of_groups) and names.is_ours(name))
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
    reader: TopicReader,
    names: TopicNames,
    levels: DelayLevels,
    entries: Iterable[RecordView],
    look: Callable[[str, str], TimerHistory | None],
) -> list[RecordView | Missing]:
    """Return the records of one message in the order in which they were stored, with what is missing between them.

    `look` reads what the timer log has about a name of a topic: the commands that ended the waiting of the message are
    steps, too.
    """
    entries = list(entries)
    named = {(each.envelope.real_topic, each.envelope.timer) for each in entries if each.topic == names.timers}
    for topic, name in named:
        if topic and name and (found := look(topic, name)) is not None:
            entries = _decided(entries, reader, names, FoundTimer(topic, name, found))
    return life(entries, schedule=names.schedule, levels=levels, low_offset=partial(_low_offset, reader))


def _decided(entries: list[RecordView], reader: TopicReader, names: TopicNames, timer: FoundTimer) -> list[RecordView]:
    """Return the records of a message, with what its commands did, and the commands that ended its waiting."""
    of_name = {each.offset: each for each in timer.history.events}
    own = {each.offset for each in entries if (each.topic, each.partition) == (names.timers, timer.partition)}
    ends = {event.offset for _, event in map(timer.history.fate, own & of_name.keys()) if event is not None}
    records = (reader.fetch(names.timers, timer.partition, offset) for offset in sorted(ends - own))
    both = [*entries, *(RecordView.of(record) for record in records if record is not None)]
    decisions = {
        f"{names.timers}/{timer.partition}/{offset}": timer.effect(of_name[offset])
        for offset in ends | own & of_name.keys()
        if offset not in own or of_name[offset].effect is not Effect.SCHEDULE
    }
    return [replace(each, decision=decisions.get(each.at, "")) for each in both]


def _low_offset(reader: TopicReader, topic: str, partition: int) -> int:
    try:
        return reader.bounds(check_topic(topic), partition)[0]
    except (ConfigError, TopicMissingError, NotAuthorizedError):
        return 0  # there is no such topic, or it is hidden: retention is not the cause
