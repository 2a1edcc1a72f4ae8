"""Which dead letters of a plan come next, how fast, and when to stop; and which need not be sent. Pure.

Each dead letter is in exactly one state: *waiting*, *taken* (in the running transaction), *sent*, *settled* (resent or
discarded by an earlier run, or by another plan since), or *failed* (it cannot be sent now: gone, changed, refused).
Events come in with the time; counts and dead letters go out. After a transaction with an uncertain outcome, `resume`
puts its dead letters back by what the log contains.

The rate is kept across transactions: one transaction carries at most a second's worth, and the next may begin when the
last one's share of time is over.

Two conditions stop the run, each from 20 dead letters on, so that one bad dead letter of three stops nothing. The first
is the share that *failed* of the whole plan (wherever the bad ones are: twenty at its head, for example, do not block
the ones behind). The second is the share *dead again* already of what this run has sent.

`RedriveRefusals`: each refusal of a record costs a session of the redrive, so a record that would certainly be refused
is not sent. What is certain depends on the cause:

* A topic limits the size of a batch. Of records that are sent one per batch, uncompressed, each one at least as large
  as a refused one would be refused.
* A topic or partition that does not exist takes no record.
* A compacted topic takes no record without a key. Apache Kafka has no other reason to call such a record invalid.
  So one with a key, which another broker's own rules may refuse, says nothing about others.

Source: Kafka's `UnifiedLog#analyzeAndValidateRecords` and `LogValidator`, its record format 2.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import Final, Literal, assert_never

from rocketshim.errors import ConfigError
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.redrive_plan import PlannedLetter

__all__ = ["DEFAULT_STOP_RATIO", "MOST_IN_TRANSACTION", "RedriveProgress", "RedriveRefusals", "RefusedFor"]

DEFAULT_STOP_RATIO: Final = 0.1
MOST_IN_TRANSACTION: Final = 500
_RATIO_FROM: Final = 20

RecordPosition = tuple[int, int]


class RedriveProgress:
    """State of applying one plan, in the order of its letters.

    Thread-safety: one thread calls the methods. `stop`, and reading the numbers, may come from any thread.

    Decides: Which dead letters of a plan come next, and when does a redrive stop? What is dead again is counted between
        two transactions, so without a rate up to 500 are sent before the first look.
    """

    def __init__(
        self,
        letters: Iterable[PlannedLetter],
        *,
        rate_per_s: float | None = None,
        most: int | None = None,
        stop_ratio: float = DEFAULT_STOP_RATIO,
    ) -> None:
        if rate_per_s is not None and not 0.0001 <= rate_per_s < inf:
            raise ConfigError(f"the rate is {rate_per_s} dead letters a second; it must be 0.0001 or more")
        if most is not None and most < 1:
            raise ConfigError(f"the maximum is {most} dead letters; it must be 1 or more")
        if not 0 <= stop_ratio <= 1:
            raise ConfigError(f"the failure ratio is {stop_ratio}; it must be 0 to 1")
        self._letters = {(letter.partition, letter.offset): letter for letter in letters}
        self._rate_per_s = rate_per_s
        self.most = most
        self._stop_ratio = stop_ratio
        self._taken: dict[RecordPosition, PlannedLetter] = {}
        self._sent: set[RecordPosition] = set()
        self._settled: set[RecordPosition] = set()
        self._failed: set[RecordPosition] = set()
        self._dead_again: set[RecordPosition] = set()
        self._not_before_ms = 0
        self._before_taken_ms = 0
        self._has_begun = False
        self._is_stopped = False
        self.failures: Counter[str] = Counter()
        self.failed_letters: list[tuple[PlannedLetter, str]] = []

    @property
    def planned(self) -> int:
        """Number of dead letters in the plan."""
        return len(self._letters)

    @property
    def sent(self) -> int:
        """Number certainly sent in this run."""
        return len(self._sent)

    @property
    def settled(self) -> int:
        """Number settled before this run, or by another plan since."""
        return len(self._settled)

    @property
    def failed(self) -> int:
        """Number that failed in this run."""
        return len(self._failed)

    @property
    def dead_again(self) -> int:
        """Number sent in this run that are dead letters again."""
        return len(self._dead_again)

    @property
    def dead_again_letters(self) -> list[PlannedLetter]:
        """Those of `dead_again`, by partition and offset."""
        return [self._letters[position] for position in sorted(self._dead_again)]

    @property
    def waiting(self) -> int:
        """Number neither sent nor settled nor failed nor taken."""
        return self.planned - self.sent - self.settled - self.failed - len(self._taken)

    @property
    def stopped_by(self) -> Literal["user", "most", "failures"] | None:
        """Why no further dead letter is taken although some wait; None: the run continues."""
        if self._is_stopped:
            return "user"
        if self._is_too_many(self.failed, self.planned) or self._is_too_many(self.dead_again, self.sent):
            return "failures"
        if self.most is not None and self.sent >= self.most:
            return "most"
        return None

    def stop(self) -> None:
        """Take no further dead letter; the transaction that is open is finished."""
        self._is_stopped = True

    def resume(self, is_done: Callable[[PlannedLetter], bool]) -> list[PlannedLetter]:
        """Adopt the state in the log, at the start and after each transaction with an uncertain outcome.

        Return the dead letters that wait, in the order of the plan.
        """
        done = {position for position, letter in self._letters.items() if is_done(letter)}
        if not self._has_begun:
            self._settled, self._has_begun = done, True
        # Dead letters that another plan settled meanwhile count as settled; those that we had taken count as sent.
        self._sent |= done & self._taken.keys()
        self._settled |= done - self._sent
        self._taken = {}
        return [letter for position, letter in self._letters.items() if not self._is_gone(position)]

    def capacity(self, now_ms: int) -> int:
        """Return the maximum size of the next transaction; 0: stopped, or not yet (`wait_ms`)."""
        if self.stopped_by is not None or now_ms < self._not_before_ms:
            return 0
        capacity = MOST_IN_TRANSACTION
        if self._rate_per_s is not None:
            capacity = min(capacity, max(1, int(self._rate_per_s)))
        if self.most is not None:
            capacity = min(capacity, self.most - self.sent)
        return capacity

    def wait_ms(self, now_ms: int) -> int:
        """Return how long to wait until the next transaction may begin, in ms."""
        return max(0, self._not_before_ms - now_ms)

    def take(self, letters: Iterable[PlannedLetter], now_ms: int) -> None:
        """Put dead letters into a transaction that begins now; a `ValueError` if one of them does not wait."""
        taken = {(letter.partition, letter.offset): letter for letter in letters}
        if any(
            position not in self._letters or position in self._taken or self._is_gone(position) for position in taken
        ):
            raise ValueError("a dead letter that does not wait cannot be taken")
        self._taken |= taken
        self._before_taken_ms = self._not_before_ms
        if self._rate_per_s is not None:
            self._not_before_ms = max(self._not_before_ms, now_ms) + round(1_000 * len(taken) / self._rate_per_s)

    def committed(self) -> None:
        """Record that the transaction was committed: the taken dead letters are sent."""
        self._sent |= self._taken.keys()
        self._taken = {}

    def aborted(self) -> None:
        """Record that the transaction was certainly aborted: its dead letters wait and its share of time is free."""
        self._taken = {}
        self._not_before_ms = self._before_taken_ms

    def fail(self, letter: PlannedLetter, reason: str) -> None:
        """Record that a waiting dead letter cannot be sent now; `reason` is short and stable."""
        position = (letter.partition, letter.offset)
        if not self._is_gone(position):
            self._taken.pop(position, None)
            self._failed.add(position)
            self.failures[reason] += 1
            self.failed_letters.append((letter, reason))

    def died_again(self, partition: int, offset: int) -> None:
        """Count a dead letter that this run sent as dead again, once; ignore those of earlier runs."""
        if (partition, offset) in self._sent:
            self._dead_again.add((partition, offset))

    def _is_too_many(self, bad: int, of: int) -> bool:
        return of >= _RATIO_FROM and bad > self._stop_ratio * of

    def _is_gone(self, position: RecordPosition) -> bool:
        return position in self._sent or position in self._settled or position in self._failed


RefusedFor = Literal["too-large", "missing", "invalid"]
"""Why a topic has refused a record."""


class RedriveRefusals:
    """The refusals of a redrive. With compression records may be stored smaller than they are, so no size counts."""

    def __init__(self, *, is_compressed: bool) -> None:
        self._is_compressed = is_compressed
        self._sizes: dict[str, tuple[int, str]] = {}  # topic to the smallest refused size, and the reason
        self._missing: dict[tuple[str, int | None], str] = {}  # topic and partition to the reason
        self._compacted: dict[str, str] = {}  # topic to the reason

    def add(self, record: OutgoingRecord, cause: RefusedFor, reason: str) -> None:
        """Record that a record was refused."""
        match cause:
            case "too-large":
                size_bytes, known = _stored_bytes(record), self._sizes.get(record.topic)
                if not self._is_compressed and (known is None or size_bytes < known[0]):
                    self._sizes[record.topic] = size_bytes, reason
            case "missing":
                self._missing[record.topic, record.partition] = reason
            case "invalid":
                if record.key is None:
                    self._compacted[record.topic] = reason
            case _:
                assert_never(cause)

    def reason(self, record: OutgoingRecord) -> str | None:
        """Return why a record would certainly be refused; None: it may be accepted."""
        size = self._sizes.get(record.topic)
        if size is not None and _stored_bytes(record) >= size[0]:
            return size[1]
        if record.key is None and record.topic in self._compacted:
            return self._compacted[record.topic]
        return self._missing.get((record.topic, record.partition))


def _stored_bytes(record: OutgoingRecord) -> int:
    """Return a record's size in record format 2, alone in its batch, without the parts that all records share."""
    fields = [record.key, record.value]
    for name, value in record.headers:
        fields += [name.encode(), value]
    lengths = [len(field or b"") for field in fields]
    return _length_bytes(len(record.headers)) + sum(lengths) + sum(map(_length_bytes, lengths))


def _length_bytes(length: int) -> int:
    """Return the size of an encoded length: seven bits per byte, one bit for the sign."""
    return max(1, -(-(2 * length).bit_length() // 7))
