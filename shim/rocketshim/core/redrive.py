"""Which letters of a plan come next, how fast, and when to stop. Pure.

Each letter is in exactly one of: *waiting*, *taken* (in the transaction that runs), *sent*, *settled* (by an earlier
run, or by another plan since), *failed* (it cannot be sent now: gone, changed, refused). Facts come in with the time,
numbers go out; a transaction whose fate is not known puts its letters back by `resume`, which is told by the log.

A rate is kept over transactions: one holds at most a second's worth, and the next may begin when the last one's share
of time is over.

Two things stop it, each from 20 letters on, so that one bad letter of three stops nothing: what *failed* among all of
the plan (wherever in it the bad ones are: twenty at its head, say, hold up nothing behind them), and what is *dead
again* already among what this run has sent.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import Final, Literal

from rocketshim.errors import ConfigError
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.redrive_plan import PlannedLetter

__all__ = ["DEFAULT_STOP_RATIO", "MOST_IN_TRANSACTION", "RedriveProgress", "TooLarge"]

DEFAULT_STOP_RATIO: Final = 0.1
MOST_IN_TRANSACTION: Final = 500
_RATIO_FROM: Final = 20

RecordPosition = tuple[int, int]


class RedriveProgress:
    """State of applying one plan.

    Args:
        letters: of the plan, in its order.
        rate_per_s: letters a second at most, above 0; None: as fast as it goes.
        most: letters at most in this run, 1 or more; None: all.
        stop_ratio: stop when more than this share of the plan has failed, or of what was sent in this run died again;
            0 to 1, default 0.1.

    Attributes:
        failures: how many failed, by reason.

    Raises:
        ConfigError: a number out of range.

    Thread-safety: none; belongs to one thread.
    """

    def __init__(
        self,
        letters: Iterable[PlannedLetter],
        *,
        rate_per_s: float | None = None,
        most: int | None = None,
        stop_ratio: float = DEFAULT_STOP_RATIO,
    ) -> None:
        if rate_per_s is not None and not 0 < rate_per_s < inf:
            raise ConfigError(f"the rate is {rate_per_s} letters a second; it is a number above 0")
        if most is not None and most < 1:
            raise ConfigError(f"at most {most} letters; it is 1 or more")
        if not 0 <= stop_ratio <= 1:
            raise ConfigError(f"the failure ratio is {stop_ratio}; it is 0 to 1")
        self._letters = {(letter.partition, letter.offset): letter for letter in letters}
        self._rate_per_s = rate_per_s
        self._most = most
        self._stop_ratio = stop_ratio
        self._taken: dict[RecordPosition, PlannedLetter] = {}
        self._sent: set[RecordPosition] = set()
        self._settled: set[RecordPosition] = set()
        self._failed: set[RecordPosition] = set()
        self._dead_again: set[RecordPosition] = set()
        self._not_before_ms = 0
        self._before_taken_ms = 0
        self._has_begun = False
        self.failures: Counter[str] = Counter()

    @property
    def planned(self) -> int:
        """Letters of the plan."""
        return len(self._letters)

    @property
    def sent(self) -> int:
        """Sent in this run, and known to be."""
        return len(self._sent)

    @property
    def settled(self) -> int:
        """Settled before this run."""
        return len(self._settled)

    @property
    def failed(self) -> int:
        """Failed in this run."""
        return len(self._failed)

    @property
    def dead_again(self) -> int:
        """Sent in this run, and seen dead again."""
        return len(self._dead_again)

    @property
    def waiting(self) -> int:
        """Neither sent nor settled nor failed nor taken."""
        return self.planned - self.sent - self.settled - self.failed - len(self._taken)

    @property
    def stopped_by(self) -> Literal["most", "failures"] | None:
        """Why no further letter is taken although some wait; None: it goes on."""
        if self._is_too_many(self.failed, self.planned) or self._is_too_many(self.dead_again, self.sent):
            return "failures"
        if self._most is not None and self.sent >= self._most:
            return "most"
        return None

    def resume(self, is_done: Callable[[PlannedLetter], bool]) -> list[PlannedLetter]:
        """What the log says, at the start and whenever the fate of a transaction is not known.

        Args:
            is_done: whether the log has a letter as done.

        Returns:
            the letters that wait, in the order of the plan.
        """
        done = {place for place, letter in self._letters.items() if is_done(letter)}
        if not self._has_begun:
            self._settled, self._has_begun = done, True
        # What another plan settled meanwhile counts as settled; what was ours to send, as sent.
        self._sent |= done & self._taken.keys()
        self._settled |= done - self._sent
        self._taken = {}
        return [letter for place, letter in self._letters.items() if not self._is_gone(place)]

    def room(self, now_ms: int) -> int:
        """How many letters the next transaction may hold; 0: stopped, or not yet (`wait_ms`)."""
        if self.stopped_by is not None or now_ms < self._not_before_ms:
            return 0
        room = MOST_IN_TRANSACTION
        if self._rate_per_s is not None:
            room = min(room, max(1, int(self._rate_per_s)))
        if self._most is not None:
            room = min(room, self._most - self.sent)
        return room

    def wait_ms(self, now_ms: int) -> int:
        """Until the next transaction may begin."""
        return max(0, self._not_before_ms - now_ms)

    def take(self, letters: Iterable[PlannedLetter], now_ms: int) -> None:
        """These go into a transaction that begins now.

        Raises:
            ValueError: one of them does not wait; nothing has changed.
        """
        taken = {(letter.partition, letter.offset): letter for letter in letters}
        if any(place not in self._letters or place in self._taken or self._is_gone(place) for place in taken):
            raise ValueError("a letter was taken that does not wait")
        self._taken |= taken
        self._before_taken_ms = self._not_before_ms
        if self._rate_per_s is not None:
            self._not_before_ms = max(self._not_before_ms, now_ms) + round(1_000 * len(taken) / self._rate_per_s)

    def committed(self) -> None:
        """The transaction was committed: what was taken is sent."""
        self._sent |= self._taken.keys()
        self._taken = {}

    def aborted(self) -> None:
        """The transaction was aborted, and that is known: what was taken waits, and its share of time is free again."""
        self._taken = {}
        self._not_before_ms = self._before_taken_ms

    def fail(self, letter: PlannedLetter, reason: str) -> None:
        """A letter that waits cannot be sent now.

        Args:
            letter: which.
            reason: short and stable.
        """
        place = (letter.partition, letter.offset)
        if not self._is_gone(place):
            self._taken.pop(place, None)
            self._failed.add(place)
            self.failures[reason] += 1

    def died_again(self, partition: int, offset: int) -> None:
        """The letter of this place is dead again; of an earlier run's it is not counted, nor twice."""
        if (partition, offset) in self._sent:
            self._dead_again.add((partition, offset))

    def _is_too_many(self, bad: int, of: int) -> bool:
        return of >= _RATIO_FROM and bad > self._stop_ratio * of

    def _is_gone(self, place: RecordPosition) -> bool:
        return place in self._sent or place in self._settled or place in self._failed


class TooLarge:
    """Which records a topic will refuse for their size, from those it has refused. Pure.

    A broker compares the size of a batch with the topic's limit, so of records that go one a batch, uncompressed, each
    that is as large as a refused one would be refused.

    Thread-safety: none; belongs to one thread.

    Source: Kafka's `UnifiedLog#analyzeAndValidateRecords`, its record format 2.
    """

    def __init__(self) -> None:
        self._refused_bytes: dict[str, int] = {}

    def refused(self, record: OutgoingRecord) -> None:
        """The topic has refused this record for its size."""
        size_bytes = _stored_bytes(record)
        self._refused_bytes[record.topic] = min(size_bytes, self._refused_bytes.get(record.topic, size_bytes))

    def has_refused(self, record: OutgoingRecord) -> bool:
        """Whether the topic has refused one that was not larger."""
        refused_bytes = self._refused_bytes.get(record.topic)
        return refused_bytes is not None and _stored_bytes(record) >= refused_bytes


def _stored_bytes(record: OutgoingRecord) -> int:
    """What a record takes in record format 2 if it is alone in its batch, but for what is the same for all."""
    fields = [record.key, record.value]
    for name, value in record.headers:
        fields += [name.encode(), value]
    lengths = [len(field or b"") for field in fields]
    return _length_bytes(len(record.headers)) + sum(lengths) + sum(map(_length_bytes, lengths))


def _length_bytes(length: int) -> int:
    """What a length takes: seven bits a byte, one bit for the sign."""
    return max(1, -(-(2 * length).bit_length() // 7))
