"""Two bounds of the brokers' clock, from delivery reports. The clock of this machine may be wrong by days.

The evidence is a delivery report of a topic with append times: the append time in it, the instants, on this machine's
two clocks, at which the record was handed to the client, and the instant at which the report arrived. The append lies
between them.

* The upper bound (`now_ms`) chooses the queue of a message with an absolute time. A queue with too long a delay makes
  the message late; one with too short a delay only costs a hop. So the bound may be ahead of the brokers' clock, but
  never behind it. It advances with whichever of the two clocks has advanced further: the wall clock may be set back,
  and the monotonic one may stand still while the machine sleeps. It expires after five minutes: clocks drift apart by
  up to 30 ms in that time, as much as the slack of the queue rule. While it is not known, the message goes through the
  finest queue (test_deliver_at_selects_its_queue_by_the_brokers_clock_even_if_the_senders_is_wrong,
  test_absolute_time_waits_in_the_finest_queue_while_the_brokers_clock_is_not_known).
* The lower bound (`stamp_ms`) is the timestamp of dead letters, of records that a consumer parks, and of redriven
  records; what the worker writes: `worker.hop_writer`. Brokers refuse a record whose timestamp is more than an hour
  ahead of their clock (`message.timestamp.after.max.ms`). It advances with the monotonic clock, and ends when the two
  clocks of this machine have advanced differently by a minute: the wall clock was set, or the machine was asleep.
* Outside both bounds by more than a minute, this machine's clock is certainly wrong (`wrong_by_ms`).

Not covered: brokers whose clocks differ, or are set while the evidence is fresh.
"""

from collections.abc import Callable
from typing import Final

from rocketshim.core.clock import Clock

__all__ = ["APPEND_TIME", "BrokerClock"]

APPEND_TIME: Final = 2
"""`TIMESTAMP_LOG_APPEND_TIME` of the Kafka client."""

_FRESH_NS: Final = 300_000_000_000
_MS: Final = 1_000_000


class BrokerClock:
    """Bounds of the brokers' clock from delivery reports, beside this machine's clocks.

    When this machine's clock begins to differ by more than `beyond_ms`, `on_wrong` logs the difference, in ms. It is
    right again at half of that.

    Thread-safety: one thread reports, any thread asks.
    """

    __slots__ = ("_beyond_ms", "_evidence", "_is_wrong", "_on_wrong", "clock")
    WRONG_MS: Final = 60_000

    def __init__(
        self, clock: Clock, on_wrong: Callable[[int], None] = lambda _: None, beyond_ms: int = WRONG_MS
    ) -> None:
        self.clock = clock
        self._on_wrong = on_wrong
        self._beyond_ms = beyond_ms
        self._is_wrong = False
        # append time, the sender's two clocks before it, and the monotonic one after it
        self._evidence: tuple[int, int, int, int] | None = None

    def read(self) -> tuple[int, int]:
        """Return this machine's monotonic time in ns, and its wall clock, epoch ms."""
        return self.clock.monotonic_ns(), self.clock.wall_ms()

    def learn(self, stamp: tuple[int, int], sent_ns: int, sent_ms: int) -> None:
        """Learn from the type and the time of a stored record's timestamp, if its topic has append times."""
        kind, append_ms = stamp
        if kind != APPEND_TIME:
            return
        reported_ns, reported_ms = self.read()
        self.reported(append_ms, sent_ns, sent_ms, reported_ns)
        was_wrong = self._is_wrong
        beyond_ms = self._beyond_ms // 2 if was_wrong else self._beyond_ms
        ahead_ms = self.wrong_by_ms(reported_ns, reported_ms, beyond_ms)
        self._is_wrong = ahead_ms != 0
        if ahead_ms and not was_wrong:
            self._on_wrong(ahead_ms)

    @property
    def ahead_ms(self) -> int:
        """How far this machine's clock is ahead of the brokers' (negative: behind); 0: at most a minute, or unknown."""
        return self.wrong_by_ms(*self.read())

    def reported(self, append_ms: int, sent_ns: int, sent_ms: int, reported_ns: int) -> None:
        """Record the delivery report of a record, with its append time on its leader's clock.

        `sent_ns` and `sent_ms` were read when the client got the record, `reported_ns` when the report arrived.
        """
        self._evidence = (append_ms, sent_ns, sent_ms, reported_ns)

    def now_ms(self, monotonic_ns: int, wall_ms: int) -> int | None:
        """Return an upper bound of the brokers' clock, epoch ms; None: not known.

        Decides: Which clock chooses the first queue of a message with a time of delivery? The brokers' clock, from
            delivery reports; the finest queue while it is not known. The sender's own clock never does.
        """
        evidence = self._evidence
        if evidence is None:
            return None
        append_ms, sent_ns, sent_ms, _ = evidence
        elapsed_ns = max(monotonic_ns - sent_ns, (wall_ms - sent_ms) * _MS)
        return None if elapsed_ns > _FRESH_NS else append_ms - (-elapsed_ns // _MS)

    def stamp_ms(self, monotonic_ns: int, wall_ms: int) -> int:
        """Return a lower bound of the brokers' clock, epoch ms; 0: not known, so Kafka's client uses its own clock.

        Decides: Which timestamp has a dead letter, a redriven record, or one that a consumer parks? The brokers' clock
            once it is known. If a broker refuses this machine's time before that, a probe shows the clock
            (`kafka.record_sender.OwnedSender`, `dropin.retry_side.DropinSendBack`). A sent message has the time of this
            machine, or the one that the user gives. What the worker writes or parks: `worker.hop_writer.HopWriter`.
        """
        evidence = self._evidence
        if evidence is None or _was_set(evidence, monotonic_ns, wall_ms):
            return 0
        return evidence[0] + (monotonic_ns - evidence[3]) // _MS

    def wrong_by_ms(self, monotonic_ns: int, wall_ms: int, beyond_ms: int = WRONG_MS) -> int:
        """Return how far this machine's clock is surely ahead of the brokers' (negative: behind); 0: within the limit.

        Decides: Is this machine's clock wrong? If it differs by more than a minute. Then the worker or consumer is not
            ready (`health.LoopState.is_ready`), logs it once, and the doctor names it (`admin.doctor.queues.clocks`).
        """
        evidence = self._evidence
        if evidence is None or _was_set(evidence, monotonic_ns, wall_ms):
            return 0
        append_ms, sent_ns, _, reported_ns = evidence
        ahead_ms = wall_ms - append_ms - (monotonic_ns - sent_ns) // _MS
        behind_ms = append_ms + (monotonic_ns - reported_ns) // _MS - wall_ms
        return ahead_ms if ahead_ms > beyond_ms else -behind_ms if behind_ms > beyond_ms else 0

    def is_known(self, monotonic_ns: int, wall_ms: int, *, within_ns: int) -> bool:
        """Return whether there was a report in the last `within_ns`, and this machine's clock was not set since."""
        evidence = self._evidence
        if evidence is None or _was_set(evidence, monotonic_ns, wall_ms):
            return False
        return monotonic_ns - evidence[3] <= within_ns


def _was_set(evidence: tuple[int, int, int, int], monotonic_ns: int, wall_ms: int) -> bool:
    """Return whether this machine's wall clock was set since the evidence, or the machine was asleep."""
    _, sent_ns, sent_ms, _ = evidence
    return abs((wall_ms - sent_ms) - (monotonic_ns - sent_ns) // _MS) > BrokerClock.WRONG_MS
