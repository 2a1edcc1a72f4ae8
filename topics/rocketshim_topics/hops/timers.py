"""Named timers: the commands of the timer log, the records that its owner makes of them, and the stored state.

::

    delayed_record ──► timers: SET ── scheduled_timer ──► schedule ── fire ──► timers: FIRE ── delivered ──► target
    timer_command ───► timers: CANCEL, NOW                    └── check ──► check topic (of a half message)
                          └── timer_state ──► timer state (compacted by the name's digest)

A command is a record of `rmq.timers` with `REAL_TOPIC`, `TIMER` (the name) and `TIMER_DO` (SET, SET-IF-ABSENT, CANCEL,
NOW, FIRE). The partition of a name is `partitioner.timer_partition`; its owner forwards a command that another program
wrote to another partition. A SET is a schedule record otherwise: body, key, `DELAY_MS` or `DELIVER_AT_MS`, identity.

A SET with `TIMER_ASKS` is the *half message* of a transaction; its name is its id. COMMIT is NOW, and ROLLBACK is
CANCEL. Its FIRE asks the producers of that group, and it waits again; `TIMER_ASKED` counts.
"""

import hashlib
from typing import Final, NamedTuple

from rocketshim_topics import wire
from rocketshim_topics.errors import ConfigError, MalformedRecordError, MessageError
from rocketshim_topics.hops.deliver import due_at_ms, hopped
from rocketshim_topics.hops.record import OutgoingRecord, identity_only, next_envelope, outgoing_record
from rocketshim_topics.limits import LONG_MAX
from rocketshim_topics.message import check_timer
from rocketshim_topics.names import TopicNames, check_group
from rocketshim_topics.partitioner import timer_partition
from rocketshim_topics.recurrence import Recurrence
from rocketshim_topics.wire import WIRE_VERSION, Envelope, Record, encode

__all__ = [
    "CHECK_EVERY_MS",
    "COMMANDED_BY",
    "COMMANDS",
    "MOST_CHECKS",
    "check",
    "checks_left",
    "command_problem",
    "fire",
    "forwarded",
    "is_misplaced",
    "put_back",
    "scheduled_timer",
    "timer_command",
    "timer_digest",
    "timer_state",
    "timer_times",
]

_SETS: Final = frozenset({"SET", "SET-IF-ABSENT"})
COMMANDED_BY: Final = "BY"
"""Header of a command with the person who gave it, for people only."""
COMMANDS: Final = _SETS | {"CANCEL", "NOW", "FIRE"}
"""What `TIMER_DO` may be."""

CHECK_EVERY_MS: Final = 30_000
MOST_CHECKS: Final = 15
"""How often the producers of a half message are asked, as `transactionCheckInterval` and `-Max` of RocketMQ."""


def timer_digest(topic: str, name: str) -> bytes:
    """Return the 16 bytes that stand for a name of a target topic: the key of its state (BLAKE2b)."""
    return hashlib.blake2b(f"{topic}\0{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest()


def timer_command(
    names: TopicNames, topic: str, timer: str, command: str, *, uniq_key: str, born_ms: int, by: str | None = None
) -> OutgoingRecord:
    """Return the CANCEL or NOW for a name; its key, `topic/name`, has the same partition in Java's partitioner.

    Args:
        names: of the sender's namespace.
        topic: the target of the timer's message.
        timer: the name.
        command: `CANCEL` or `NOW`.
        uniq_key: id of the command.
        born_ms: epoch ms of the command.
        by: the person who gives it, for its history (a header of the user, `BY`); None: a program.
    """
    check_timer(timer)
    names.physical(topic)
    envelope = Envelope(
        shim=WIRE_VERSION, real_topic=topic, uniq_key=uniq_key, born_timestamp_ms=born_ms, timer=timer, timer_do=command
    )
    if by is not None:
        envelope.user = ((COMMANDED_BY, by.encode()),)
    key = f"{topic}/{timer}".encode()
    return OutgoingRecord(names.timers, timer_partition(topic, timer), key, None, encode(envelope))


def command_problem(record: Record, envelope: Envelope) -> str:
    """Return why a record of the timer log is no command, as the reason to park it; `""`: it is one."""
    command = envelope.timer_do
    if not envelope.real_topic:
        return f"missing-header:{wire.REAL_TOPIC}"
    try:
        check_timer(envelope.timer)
    except MessageError:
        return f"bad-name:{wire.TIMER}" if envelope.timer is not None else f"missing-header:{wire.TIMER}"
    if command not in COMMANDS:
        return f"bad-command:{wire.TIMER_DO}" if command is not None else f"missing-header:{wire.TIMER_DO}"
    if command == "FIRE" and envelope.timer_set_at is None:
        return f"missing-header:{wire.TIMER_SET_AT}"
    if envelope.timer_asks is not None and not _is_half(envelope):
        return f"bad-transaction:{wire.TIMER_ASKS}"
    if command in _SETS and envelope.timer_repeat is not None:
        try:
            recurrence_of(envelope)
        except MessageError:
            return f"bad-recurrence:{wire.TIMER_REPEAT}"
    elif command in _SETS and envelope.delay_ms is None and envelope.deliver_at_ms is None:
        return f"missing-header:{wire.DELIVER_AT_MS}"
    if command in _SETS and record.value() is None:
        return "timer-without-body"
    return ""


def _is_half(envelope: Envelope) -> bool:
    try:
        check_group(envelope.timer_asks or "")
    except ConfigError:
        return False
    is_named_by_id = envelope.timer == envelope.uniq_key
    return is_named_by_id and envelope.timer_do != "SET-IF-ABSENT" and envelope.timer_repeat is None


def checks_left(envelope: Envelope) -> int | None:
    """Return how often the producers of a half message may still be asked; None: it is none."""
    return None if envelope.timer_asks is None else max(0, MOST_CHECKS - (envelope.timer_asked or 0))


class TimerTimes(NamedTuple):
    """When the message of a command is due, and of a FIRE that sets it again, when it is due next (epoch ms)."""

    due_ms: int
    next_ms: int
    is_missed: bool  # this occurrence is not delivered, since the next one is due


def timer_times(envelope: Envelope, append_ms: int) -> TimerTimes:
    """Return the times of a command that was appended at this time. The command has no problem (`command_problem`)."""
    recurrence = recurrence_of(envelope)
    if recurrence is None:
        due_ms = due_at_ms(envelope.deliver_at_ms, envelope.delay_ms, append_ms, 0)
        is_asked = envelope.timer_asks is not None and envelope.timer_do == "FIRE"
        return TimerTimes(due_ms, append_ms + CHECK_EVERY_MS if is_asked else due_ms, is_missed=False)
    if envelope.timer_do in _SETS:
        first_ms = recurrence.next_ms(append_ms, append_ms) or LONG_MAX
        return TimerTimes(first_ms, first_ms, is_missed=False)
    due_ms = envelope.deliver_at_ms or append_ms
    next_ms = recurrence.next_ms(due_ms, append_ms) or LONG_MAX
    return TimerTimes(due_ms, next_ms, recurrence.is_missed(due_ms, append_ms))


def recurrence_of(envelope: Envelope) -> Recurrence | None:
    """Return when a message recurs; None: it does not. Raise `MessageError` if its headers cannot be read."""
    line = envelope.timer_repeat
    if line is None:
        return None
    return Recurrence(line, envelope.timer_tz or "UTC", envelope.timer_late or "once").check()


def is_misplaced(record: Record, envelope: Envelope) -> bool:
    """Return whether a command is in another partition than that of its name."""
    return record.partition() != timer_partition(envelope.real_topic or "", envelope.timer or "")


def forwarded(record: Record, envelope: Envelope, names: TopicNames, *, due_ms: int) -> OutgoingRecord:
    """Return a misplaced command for the partition of its name; a delay counts from the command as it was sent."""
    following = next_envelope(record, envelope)
    if following.delay_ms is not None:
        following.delay_ms, following.deliver_at_ms = None, due_ms
    partition = timer_partition(envelope.real_topic or "", envelope.timer or "")
    return outgoing_record(record, names.timers, partition, following)


def scheduled_timer(
    record: Record, envelope: Envelope, names: TopicNames, *, due_ms: int, partition: int, era: int = 0
) -> OutgoingRecord:
    """Return the record of a delay queue for a command that sets a message; its offset is `TIMER_SET_AT`.

    Args:
        record: the command as fetched: a SET, or a FIRE of a message that waits again.
        envelope: its headers.
        names: of the worker's namespace.
        due_ms: when it is due, epoch ms.
        partition: the queue to wait in.
        era: of the log, in which the offset counts.
    """
    outgoing = envelope.copy()
    outgoing.timer_era = era or None
    outgoing.timer_do = outgoing.timer_at_most_ms = None
    outgoing.timer_set_at = record.offset()
    outgoing.timer_asked = _asked(envelope)
    return hopped(record, outgoing, names, deliver_at_ms=due_ms, partition=partition)


def put_back(record: Record, envelope: Envelope, names: TopicNames, *, due_ms: int, partition: int) -> OutgoingRecord:
    """Return the record of a delay queue for a FIRE that comes too early, as another program may write one."""
    outgoing = envelope.copy()
    outgoing.timer_do = None
    return hopped(record, outgoing, names, deliver_at_ms=due_ms, partition=partition)


def fire(record: Record, envelope: Envelope, names: TopicNames) -> OutgoingRecord:
    """Return the FIRE for a record of a delay queue that is due. It carries the message.

    Raises:
        MalformedRecordError: `missing-header:TIMER_SET_AT`: the record has a name, but no generation.
    """
    if envelope.timer_set_at is None:
        raise MalformedRecordError(f"missing-header:{wire.TIMER_SET_AT}", "a named schedule record has no generation")
    following = next_envelope(record, envelope)
    following.shim, following.timer_do = WIRE_VERSION, "FIRE"
    following.target_tries = None  # of a worker that was not allowed to write there
    partition = timer_partition(envelope.real_topic or "", envelope.timer or "")
    return outgoing_record(record, names.timers, partition, following)


def check(record: Record, envelope: Envelope, names: TopicNames) -> OutgoingRecord:
    """Return the question to the producers of a half message, for the FIRE that asks it.

    It has the message. `RETRY_TOPIC` is its target, and `UNIQ_KEY` its name; `TIMER_ASKED` says which question it is.
    The caller chooses the partition.
    """
    following = identity_only(next_envelope(record, envelope))
    following.shim, following.retry_topic = WIRE_VERSION, envelope.real_topic
    following.timer_asks, following.timer_asked = envelope.timer_asks, _asked(envelope)
    return outgoing_record(record, names.check(envelope.timer_asks or ""), None, following)


def _asked(envelope: Envelope) -> int | None:
    """Return how often the producers of a message have been asked after this command; None: never."""
    if envelope.timer_asks is None or envelope.timer_do != "FIRE":
        return envelope.timer_asked
    return min((envelope.timer_asked or 0) + 1, MOST_CHECKS)


def timer_state(
    names: TopicNames,
    partition: int,
    envelope: Envelope,
    *,
    applied: int,
    append_ms: int,
    era: int,
    generation: int | None,
    due_ms: int = 0,
    since_ms: int | None = None,
) -> OutgoingRecord:
    """Return the state of a name after a command, for the compacted topic.

    A pending name has `REAL_TOPIC`, `TIMER`, `TIMER_SET_AT` and `DELIVER_AT_MS`, and an empty value. A forgotten one is
    a tombstone, whose `TIMER_SET_AT` is the offset of the command that made it forgotten: nobody needs it once the
    position is behind that.

    Args:
        names: of the worker's namespace.
        partition: of the log and of the state.
        envelope: of the command.
        applied: offset of the command.
        append_ms: its append time, epoch ms: with the offset it tells whether the log is still the same.
        era: one more for each log that was created again.
        generation: the generation that is pending; None: none is.
        due_ms: when it is due, epoch ms.
        since_ms: since when the name is pending, epoch ms; None: it has no limit.
    """
    state = Envelope(shim=WIRE_VERSION, born_timestamp_ms=append_ms, timer_set_at=applied, timer_era=era or None)
    if generation is not None:
        state.real_topic, state.timer, state.deliver_at_ms = envelope.real_topic, envelope.timer, due_ms
        state.timer_since_ms, state.timer_repeat = since_ms, envelope.timer_repeat
        state.timer_tz, state.timer_late = envelope.timer_tz, envelope.timer_late
        state.timer_asks, state.timer_asked = envelope.timer_asks, _asked(envelope)
    key = timer_digest(envelope.real_topic or "", envelope.timer or "")
    return OutgoingRecord(names.timer_state, partition, key, None if generation is None else b"", encode(state))
