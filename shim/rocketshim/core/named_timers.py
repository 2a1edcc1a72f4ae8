"""Named timers: what each command of a partition's log changes. Pure; the log alone decides.

A *named timer* is a delayed message with a name. All commands for one name are in one partition of `rmq.timers`, and
its owner applies them in the order of their offsets. The state of a name is its *generation*: the offset of the command
that set it. Rules:

=============  =============================================  ====================================
command        if the name is pending                         if it is not
=============  =============================================  ====================================
SET            the new message replaces it                    it is pending now
SET-IF-ABSENT  nothing                                        as SET
CANCEL         forgotten                                      nothing
NOW            its message is delivered, and it is forgotten  nothing
FIRE           as NOW, if it has the generation of this FIRE  nothing
=============  =============================================  ====================================

A message may recur. Its FIRE delivers it and sets the next occurrence, which has the offset of this FIRE as generation;
its NOW delivers it and changes nothing. The half message of a transaction is never delivered by a FIRE: that asks the
producers, and sets it again in the same way, or gives it up after the last question. COMMIT is NOW, ROLLBACK is CANCEL.

A CANCEL or SET with a lower offset than a FIRE always wins. One with a higher offset is too late for the message of
that FIRE; it still ends or replaces a next occurrence, and a SET begins again.

What is known is rebuilt from a compacted topic, which may be ahead of the position from which commands are read again:
at least once, the owner before stored what a command did, then the state, then its position, and may have ended between
two of these. So each entry carries the offset of the command that changed it last, and a command that its entry knows
is not applied again. An entry is stored after the effects of all commands up to its own. So the commands between the
position and `next_offset`, which is behind the newest entry, are applied again without effects.

The state may also be behind the position: exactly once, what a command did and the position are one transaction, and
the entry may follow in a later one; and an entry may be lost. Then the commands from `next_offset` to the position are
applied again without effects: those that changed nothing change nothing, and the others are missing. Their entries are
stored before any later one.

The log may be created again, and its offsets begin again. Then the entries are of another log. The owner begins a new
*era*: the names that are pending stay so, but each entry of the new era counts more than theirs.

Source: the model of 10,000 random programs with deaths between any two writes (test_named_timers).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["NAME_BYTES", "Change", "Command", "Effect", "Generations", "TimerTable"]

NAME_BYTES: Final = 16
"""Of the digest of a name."""

_ENTRY_BYTES: Final = NAME_BYTES + 8


class Command(Enum):
    """What a record of the log asks for; the value is what its header `TIMER_DO` has."""

    SET = "SET"
    SET_IF_ABSENT = "SET-IF-ABSENT"
    CANCEL = "CANCEL"
    NOW = "NOW"
    FIRE = "FIRE"


class Effect(Enum):
    """What the owner of the partition has to do for a command."""

    SCHEDULE = "schedule"  # the message of this command waits in a delay queue
    DELIVER = "deliver"  # the message of this command goes to its target
    DELIVER_PENDING = "deliver-pending"  # the message at the offset `Change.before` goes to its target
    ASK = "ask"  # the producers of a half message are asked
    GIVE_UP = "give-up"  # they have not answered: the half message is parked
    FORGET = "forget"  # nothing is delivered, but the state changes
    NOTHING = "nothing"  # the command comes too late, or has no object


_ENDS: Final = {Command.CANCEL: Effect.FORGET, Command.NOW: Effect.DELIVER_PENDING, Command.FIRE: Effect.DELIVER}


@dataclass(frozen=True, slots=True)
class Change:
    """What one command does.

    Attributes:
        effect: what has to be done.
        before: the generation that was pending; None: none was.
        after: the generation that is pending now; None: none is.
        due_ms: when the pending message is due, epoch ms; only if this command has set it.
        since_ms: since when the name has been pending without an end, epoch ms; None: nobody asked for that.
    """

    effect: Effect
    before: int | None
    after: int | None
    due_ms: int = 0
    since_ms: int | None = None

    @property
    def is_change(self) -> bool:
        """Whether the state of the name is different now, so that it has to be stored."""
        return self.after != self.before

    @property
    def sets_next(self) -> bool:
        """Whether the message has fired and waits again."""
        return self.effect in {Effect.DELIVER, Effect.ASK} and self.after is not None


class Generations:
    """The generation of each name, in 24 bytes and a part of a bucket; in a dict they would take 120.

    The first 12 bits of a digest choose its bucket, in which its entries follow each other.
    """

    __slots__ = ("_buckets", "_count")

    def __init__(self) -> None:
        self._buckets: dict[int, bytearray] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, name: bytes) -> int | None:
        """Return the generation of a name; None: there is none."""
        bucket, at = self._find(name)
        return None if at < 0 else int.from_bytes(bucket[at + NAME_BYTES : at + _ENTRY_BYTES])

    def keep(self, name: bytes, generation: int) -> None:
        """Set the generation of a name."""
        bucket, at = self._find(name)
        if at < 0:
            at, self._count = len(bucket), self._count + 1
        bucket[at : at + _ENTRY_BYTES] = name + generation.to_bytes(_ENTRY_BYTES - NAME_BYTES)

    def pop(self, name: bytes) -> int | None:
        """Forget a name, and return its generation; None: there was none."""
        bucket, at = self._find(name)
        if at < 0:
            return None
        generation = int.from_bytes(bucket[at + NAME_BYTES : at + _ENTRY_BYTES])
        del bucket[at : at + _ENTRY_BYTES]
        self._count -= 1
        return generation

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Yield each name and its generation."""
        for bucket in self._buckets.values():
            for at in range(0, len(bucket), _ENTRY_BYTES):
                entry = bytes(bucket[at : at + _ENTRY_BYTES])
                yield entry[:NAME_BYTES], int.from_bytes(entry[NAME_BYTES:])

    def _find(self, name: bytes) -> tuple[bytearray, int]:
        """Return the bucket of a name, and where its entry begins; -1: it has none."""
        bucket = self._buckets.setdefault(name[0] << 4 | name[1] >> 4, bytearray())
        at = bucket.find(name)
        while at % _ENTRY_BYTES and at > 0:
            at = bucket.find(name, at + 1)
        return bucket, at


class TimerTable:
    """The pending names of one partition of the log. One owner thread.

    Attributes:
        era: of its entries.
        newest: name, offset and append time of the newest command of the stored entries; None: there are none.
    """

    __slots__ = ("_earlier", "_ended", "_pending", "_recurring", "_since_ms", "era", "newest")

    def __init__(self) -> None:
        self.era = 0
        self.newest: tuple[bytes, int, int] | None = None
        self._pending = Generations()
        self._earlier = Generations()  # of earlier eras
        self._ended: dict[bytes, int] = {}  # the command that ended a name, until all is loaded
        self._since_ms: dict[bytes, int] = {}  # of pending names that may not be put off forever
        self._recurring: set[bytes] = set()

    def __len__(self) -> int:
        """Return how many names are pending."""
        return len(self._pending) + len(self._earlier)

    @property
    def next_offset(self) -> int:
        """The offset after the newest command of the stored entries; 0: there are none."""
        return 0 if self.newest is None else self.newest[1] + 1

    def pending(self, name: bytes) -> int | None:
        """Return the generation of a name; None: it is not pending."""
        generation = self._pending.get(name)
        return self._earlier.get(name) if generation is None and self._earlier else generation

    def load(
        self,
        name: bytes,
        applied: int,
        *,
        is_pending: bool,
        append_ms: int = 0,
        since_ms: int | None = None,
        recurs: bool = False,
        era: int = 0,
    ) -> None:
        """Take the stored state of a name after the command at `applied`; an older one than is known is ignored."""
        if era > self.era:
            self.begin_era(era)
        known = self._known(name)
        if applied < known or (era < self.era and known >= 0):
            return  # a frozen owner stored it late
        if era < self.era:
            self._put(name, None, None)
            if is_pending:
                self._put(name, applied, since_ms, recurs=recurs)
                self._pending.pop(name)
                self._earlier.keep(name, applied)
            return
        if applied >= self.next_offset:
            self.newest = name, applied, append_ms
        if is_pending:
            self._ended.pop(name, None)
            self._put(name, applied, since_ms, recurs=recurs)
        else:
            self._ended[name] = applied
            self._put(name, None, None)

    def begin_era(self, era: int) -> None:
        """Begin a new era: the log was created again, and nothing of it is known."""
        self.era, self.newest = era, None
        for name, generation in self._pending.items():
            self._earlier.keep(name, generation)
        self._pending, self._ended = Generations(), {}

    def begin(self) -> None:
        """Begin to apply commands for the first time; everything is loaded."""
        self._ended = {}

    def forget(self, name: bytes, generation: int) -> bool:
        """Forget a name whose message cannot wait; return whether this generation was pending."""
        if self.pending(name) != generation:
            return False
        self._put(name, None, None)
        return True

    def apply(
        self,
        offset: int,
        command: Command,
        name: bytes,
        *,
        generation: int | None = None,
        due_ms: int = 0,
        appended_ms: int = 0,
        at_most_ms: int | None = None,
        recurs: bool = False,
        is_missed: bool = False,
        checks_left: int | None = None,
        era: int | None = None,
    ) -> Change:
        """Apply the command at an offset, and return what it does. Offsets rise, as in the log.

        Args:
            offset: of the command.
            command: what it asks for.
            name: digest of the name, 16 bytes.
            generation: of a FIRE, the offset of the command that set the message.
            due_ms: of a SET, when its message is due, epoch ms; of a FIRE that sets it again, the next time.
            appended_ms: of a SET, its append time, epoch ms.
            at_most_ms: of a SET, for how long the name may stay pending while it is set again and again, in ms; None:
                without a limit.
            recurs: the message recurs.
            is_missed: of a FIRE of such a message: this occurrence is not delivered.
            checks_left: of a half message, how often its producers may still be asked; None: it is none.
            era: of a FIRE, in which its generation was set; None: it is not known, and does not count.

        Decides: Which generation of a named timer is delivered, if any? The pending one, by the table of this module.
        """
        pending = self.pending(name)
        if offset <= self._known(name):
            return Change(Effect.NOTHING, pending, pending)
        if command is Command.SET or (command is Command.SET_IF_ABSENT and pending is None):
            since_ms = None
            if at_most_ms is not None:
                since_ms = self._since_ms.get(name, appended_ms)
                due_ms = min(due_ms, since_ms + at_most_ms)
            self._put(name, offset, since_ms, recurs=recurs)
            return Change(Effect.SCHEDULE, pending, offset, due_ms, since_ms)
        effect = _ENDS.get(command)
        is_fire = command is Command.FIRE
        is_of_other = is_fire and (pending != generation or (era is not None and not self._is_of(name, era)))
        if pending is None or effect is None or is_of_other:
            return Change(Effect.NOTHING, pending, pending)
        if command is Command.FIRE and checks_left is not None:
            self._put(name, offset if checks_left else None, None)
            return Change(Effect.ASK if checks_left else Effect.GIVE_UP, pending, self.pending(name), due_ms)
        if name in self._recurring and command is Command.NOW:
            return Change(effect, pending, pending)
        if name in self._recurring and command is Command.FIRE and recurs:
            self._put(name, offset, None, recurs=True)
            return Change(Effect.SCHEDULE if is_missed else effect, pending, offset, due_ms)
        self._put(name, None, None)
        return Change(effect, pending, None)

    def _is_of(self, name: bytes, era: int) -> bool:
        """Return whether the pending generation of a name may be of an era; of earlier ones the state knows no more.

        An era that is higher than that of the state was begun before the state was lost.
        """
        return era < self.era if self._pending.get(name) is None else era >= self.era

    def _known(self, name: bytes) -> int:
        """Return the newest command of this era that is known to have changed a name; -1: none is."""
        generation = self._pending.get(name)
        return max(-1 if generation is None else generation, self._ended.get(name, -1))

    def _put(self, name: bytes, generation: int | None, since_ms: int | None, *, recurs: bool = False) -> None:
        (self._recurring.add if recurs else self._recurring.discard)(name)
        if self._earlier:
            self._earlier.pop(name)
        if generation is None:
            self._pending.pop(name)
        else:
            self._pending.keep(name, generation)
        if since_ms is None:
            self._since_ms.pop(name, None)
        else:
            self._since_ms[name] = since_ms
