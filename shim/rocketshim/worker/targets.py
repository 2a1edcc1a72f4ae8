"""Whether a target accepts records at the moment, and how it is to be written to.

* A target that refused or did not answer is **avoided**: its records are re-appended without a try, so that it does not
  slow other targets. After a second the worker tries one batch. Each failure in a row doubles this time, up to 30 s.
* A target that refused a *batch* as too large, or because of an invalid record or timestamp, is **careful** for 30 s:
  each of its records is a separate batch. The reason: a broker refuses a whole batch because of one record (measured),
  and a topic's `max.message.bytes` limits the batch.
* A target that refused a **timestamp** that a sender gave gets no timestamp that is as far from the brokers' clock for
  an hour: these records have the time of their delivery.

One owner thread: the worker's.
"""

from dataclasses import dataclass
from typing import Final

from rocketshim.core.clock import Backoff

__all__ = ["NEVER_NS", "TargetHealth"]

_NS_PER_S: Final = 1_000_000_000
_AVOID_NS: Final = _NS_PER_S
_AVOID_MOST_NS: Final = 30 * _NS_PER_S
_BACKOFF_NS: Final = Backoff(_AVOID_NS, _AVOID_MOST_NS)
_CAREFUL_NS: Final = 30 * _NS_PER_S
_TIMESTAMP_LIMITS_NS: Final = 3_600 * _NS_PER_S
_TIMESTAMP_MARGIN_MS: Final = 60_000  # the brokers' clock has moved when the record is sent again
NEVER_NS: Final = 1 << 62
"""An instant that does not come."""
_NO_LIMITS_MS: Final = (-1 << 64, 1 << 64)


@dataclass(slots=True, eq=False)
class TargetHealth:
    """One physical topic to which the worker writes. All instants are monotonic, in ns.

    Decides: How long is a target avoided?
    """

    topic: str
    partitions: int | None = None  # 0: it does not exist; None: unknown at the moment, or not known yet
    ready_ns: int = NEVER_NS  # its records wait for the answer of a lookup or for a producer's refresh
    ask_ns: int = -1  # when to look it up again
    answered_ns: int = -NEVER_NS
    not_before_ns: int = 0  # its records wait until then even if an answer has arrived
    ticket: int = 0  # of the last lookup: answers to earlier ones are ignored
    lacking_ns: tuple[int, int] = (-NEVER_NS, -NEVER_NS)  # when a producer lacked a partition first and last
    avoid_until_ns: int = 0
    avoid_reason: str = ""
    careful_until_ns: int = 0  # until then each of its records is a separate batch
    failures: int = 0  # in a row
    last_failure_ns: int = -_AVOID_MOST_NS
    turn: int = 0  # the partition of the next keyless records
    timestamps_ms: tuple[int, int] = _NO_LIMITS_MS  # least and most that one is ahead of the brokers' clock, exclusive
    timestamps_until_ns: int = 0

    def is_open(self, now_ns: int) -> bool:
        """Return whether it takes records as they come: it is known, and nothing is wrong with it."""
        is_sound = not self.failures and now_ns >= self.careful_until_ns
        return is_sound and bool(self.partitions) and now_ns >= self.ready_ns

    def keep_missing(self, now_ns: int) -> None:
        """If it does not exist, have this be valid now, however long the answers for other targets have taken."""
        if self.partitions == 0:
            self.ask_ns = max(self.ask_ns, now_ns + 1)

    def may_try(self, now_ns: int) -> bool:
        """Return whether a record may be tried now; while it fails, one after each `avoid_until_ns`."""
        if not self.failures:
            return True
        if now_ns < self.avoid_until_ns:
            return False
        self.avoid_until_ns = now_ns + _AVOID_NS  # by then the result of that record is known
        return True

    def record_success(self) -> None:
        """Note that it has stored a record."""
        self.failures = 0

    def failed(self, now_ns: int, reason: str) -> bool:
        """Note that it refused a record because of its own state, or did not answer; return True if that is new."""
        if self.failures and now_ns < self.last_failure_ns + _AVOID_NS:
            return False
        self.last_failure_ns = now_ns
        self.avoid_until_ns = now_ns + _BACKOFF_NS.pause(self.failures)
        self.avoid_reason = reason
        self.failures += 1
        return True

    def begin_careful(self, now_ns: int) -> bool:
        """Switch to one record per batch after a refused batch; return False if the target is in that mode already."""
        was = now_ns < self.careful_until_ns
        self.careful_until_ns = now_ns + _CAREFUL_NS
        return not was

    def takes_timestamp(self, ahead_ms: int, now_ns: int) -> bool:
        """Return whether to give it a timestamp so far ahead of the brokers' clock (negative: behind)."""
        least_ms, most_ms = self.timestamps_ms
        return least_ms < ahead_ms < most_ms or now_ns >= self.timestamps_until_ns

    def timestamp_refused(self, ahead_ms: int, now_ns: int) -> bool:
        """Note that it refused a timestamp with this distance; return True if no limit was known."""
        is_first = now_ns >= self.timestamps_until_ns
        if is_first:
            self.timestamps_ms, self.timestamps_until_ns = _NO_LIMITS_MS, now_ns + _TIMESTAMP_LIMITS_NS
        least_ms, most_ms = self.timestamps_ms
        if ahead_ms > 0:
            self.timestamps_ms = least_ms, min(most_ms, max(1, ahead_ms - _TIMESTAMP_MARGIN_MS))
        else:
            self.timestamps_ms = max(least_ms, ahead_ms), most_ms
        return is_first
