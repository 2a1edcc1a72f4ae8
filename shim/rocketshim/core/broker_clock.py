"""A sender's estimate of the brokers' clock, to choose the right queue for a message with an absolute time.

The time in `DELIVER_AT_MS` refers to the brokers' clock, and the sender's own clock may be wrong by days. A queue with
too long a delay makes the message late; one with too short a delay only costs a hop. So the estimate may be ahead of
the brokers' clock, but never behind it:

* Its evidence is a delivery report of the schedule topic: the append time in it, and the instants, on the sender's two
  clocks, at which the record was handed to the client. The append came later than these.
* It advances with whichever of the two clocks has advanced further: the wall clock may be set back, and the monotonic
  one may stand still while the machine sleeps.
* It expires after five minutes: clocks drift apart by up to 30 ms in that time, as much as the slack of the queue rule.

Not covered: brokers whose clocks differ, or are set while the evidence is fresh.
"""

from typing import Final

__all__ = ["BrokerClock"]

_FRESH_NS: Final = 300_000_000_000
_MS: Final = 1_000_000
_DIFFERS_MS: Final = 1_000


class BrokerClock:
    """An estimate of the brokers' clock from delivery reports.

    Thread-safety: one thread reports, any thread asks.
    """

    __slots__ = ("_evidence",)

    def __init__(self) -> None:
        self._evidence: tuple[int, int, int] | None = None  # append time, and the sender's clocks before it

    def reported(self, append_ms: int, sent_ns: int, sent_ms: int) -> None:
        """Record the delivery report of a record.

        Args:
            append_ms: its append time, epoch ms on its leader's clock.
            sent_ns: the monotonic clock when the record was handed to the client, in ns.
            sent_ms: the sender's wall clock then, epoch ms.
        """
        self._evidence = (append_ms, sent_ns, sent_ms)

    def now_ms(self, monotonic_ns: int, wall_ms: int) -> int | None:
        """Return an upper bound of the brokers' clock, epoch ms; None: not known.

        Args:
            monotonic_ns: the sender's monotonic clock, in ns.
            wall_ms: the sender's wall clock, epoch ms.

        Decides: Which clock chooses the first queue of a message with a time of delivery? The brokers' clock, from
            delivery reports; the finest queue while it is not known. The sender's own clock never does.
        """
        evidence = self._evidence
        if evidence is None:
            return None
        append_ms, sent_ns, sent_ms = evidence
        elapsed_ns = max(monotonic_ns - sent_ns, (wall_ms - sent_ms) * _MS)
        return None if elapsed_ns > _FRESH_NS else append_ms - (-elapsed_ns // _MS)

    @staticmethod
    def ahead_ms(append_ms: int, sent_ms: int, heard_ms: int) -> int:
        """Return how far the sender's wall clock is certainly ahead of the brokers' (negative: behind), in ms.

        Args:
            append_ms: the append time in a delivery report, epoch ms.
            sent_ms: the sender's wall clock when the record was handed to the client, epoch ms.
            heard_ms: the sender's wall clock when the report arrived, epoch ms.

        Returns:
            The difference, or 0 if it is at most one second.
        """
        ahead_ms = max(0, sent_ms - append_ms) + min(0, heard_ms - append_ms)
        return ahead_ms if abs(ahead_ms) > _DIFFERS_MS else 0
