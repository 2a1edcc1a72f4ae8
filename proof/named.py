"""Named timers: what each command of the timer log does, told slowly and by the log alone.

A half message is asked about when it fires, and waits again; after the last question it is parked.

Only commands that readers of committed records see count, those of a partition in the order of their offsets. A command
that is not in the partition of its name is forwarded, and counts where it arrives.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rocketshim_topics.hops import due_at_ms
from rocketshim_topics.partitioner import timer_partition

if TYPE_CHECKING:
    from proof.index import Stored

__all__ = ["Effect", "Told", "tell"]

Effect = Literal["waits", "asks", "delivered", "forwarded", "parked", "nothing"]
"""What becomes of a command: its message waits under its name (also that of a FIRE that comes too early) or is
delivered, or the producers of a half message are asked and it waits again, or the command is forwarded or parked, or
nothing happens."""
_SETS: Final = frozenset({"SET", "SET-IF-ABSENT"})
_EARLY_MS: Final = 60_000
_MOST_CHECKS: Final = 15


@dataclass(slots=True)
class Told:
    """What one command does.

    Attributes:
        command: its record.
        effect: what becomes of it.
        message: the record whose message that is: of a NOW, the one that was pending.
        due_ms: when its message is due, epoch ms of the broker; it has a meaning only if it waits.
        is_pending: whether its message is still pending at the end of the log.
    """

    command: "Stored"
    effect: Effect
    message: "Stored"
    due_ms: int = 0
    is_pending: bool = False


@dataclass(slots=True)
class _Pending:
    told: Told
    since_ms: int | None


def tell(queues: Iterable[list["Stored"]], is_refused: Callable[["Stored"], bool]) -> Iterator[Told]:
    """Tell what each command does.

    Args:
        queues: the committed records of each partition of the log, in the order of their offsets.
        is_refused: whether a SET was, or has to be, parked.
    """
    for records in queues:
        live: dict[tuple[str | None, str | None], _Pending] = {}
        for record in records:
            yield _told(live, record, is_refused)
        for pending in live.values():
            pending.told.is_pending = True


def _told(
    live: dict[tuple[str | None, str | None], _Pending], record: "Stored", is_refused: Callable[["Stored"], bool]
) -> Told:
    envelope = record.envelope
    command, name = envelope.timer_do, (envelope.real_topic, envelope.timer)
    due_ms = due_at_ms(envelope.deliver_at_ms, envelope.delay_ms, record.it.ms, 0)
    if record.malformed is not None or command is None or (command in _SETS and is_refused(record)):
        return Told(record, "parked", record)
    if record.partition != timer_partition(envelope.real_topic or "", envelope.timer or ""):
        return Told(record, "forwarded", record)
    if command == "FIRE" and due_ms > record.it.ms + _EARLY_MS:
        return Told(record, "waits", record, due_ms)
    before = live.get(name)
    if command == "SET" or (command == "SET-IF-ABSENT" and before is None):
        most_ms, since_ms = envelope.timer_at_most_ms, None
        if most_ms is not None:
            since_ms = record.it.ms if before is None or before.since_ms is None else before.since_ms
            due_ms = min(due_ms, since_ms + most_ms)
        live[name] = _Pending(Told(record, "waits", record, due_ms), since_ms)
        return live[name].told
    is_other = command == "FIRE" and before is not None and envelope.timer_set_at != before.told.command.offset
    if before is None or is_other or command == "SET-IF-ABSENT":
        return Told(record, "nothing", record)
    del live[name]
    if command == "FIRE" and envelope.timer_asks is not None:
        if (envelope.timer_asked or 0) >= _MOST_CHECKS:
            return Told(record, "parked", record)
        live[name] = _Pending(Told(record, "asks", record), None)
        return live[name].told
    if command == "CANCEL":
        return Told(record, "nothing", record)
    return Told(record, "delivered", before.told.message if command == "NOW" else record)
