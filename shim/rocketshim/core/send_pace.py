"""How much a producer may have in flight, and how long a slow broker may take before it counts as silent. Pure.

A broker with a quota, or behind a slow link, is slow and not silent. Rules of this file:

* **Cost.** Records in flight are measured by their cost: their bytes, and 1,000 for each record, because brokers also
  need time for each request and each partition.
* **Limit.** The limit starts low, at 256 kB, and grows by half with each round trip in which everything was stored in
  good time. Kafka averages a quota over about 10 s. So at such a growth the records in flight exceed a quota by about
  5 s of it at most. If something was stored late, the limit halves, once for all that was in flight then, and grows
  slowly from there. It grows only while it is used. After a second without records it starts low again. One record may
  always be in flight.
* **Throttling.** A broker that enforces a quota answers immediately, states how long it will not read from this
  connection, and does not read for that long. In that time nothing more is sent, and nobody is silent. If the broker
  does not read for more than a second, the records before that were stored late.
* **Late** without throttling means: a third of the time after which the client gives up.
* **A silent target** must not hold up others. While nobody answers, the limit is extended by 256 kB each 250 ms, or
  each time in which the slowest record of the last 10 to 20 s was stored, if that is longer.
* **Patience.** A record must be without an answer for four times as long as the slowest record that was stored in the
  last 10 to 20 s, and for the configured time, before silence is possible. At least once, each failure of its target
  in a row, from the second on, doubles the configured time, up to four times; in a transaction others would wait for
  it. The result is two thirds of the time after which the client gives up, at most.
"""

from typing import Final

__all__ = ["SendPace", "cost"]

_NS_PER_S: Final = 1_000_000_000
_COST_OF_RECORD: Final = 1_000
_FIRST: Final = 256_000
_LEAST: Final = _COST_OF_RECORD + 1
_LATE_THROTTLED_NS: Final = _NS_PER_S
_GOOD_SHARE: Final = 2  # of what is late
_IDLE_NS: Final = _NS_PER_S
_EXTENSION_NS: Final = _NS_PER_S // 4
_FAST_GROWTH: Final = 2
_SLOW_GROWTH: Final = 16
_REMEMBERED_NS: Final = 10 * _NS_PER_S
_SLOWEST_TIMES: Final = 4
_MOST_DOUBLINGS: Final = 2
_PATIENCE_THIRDS: Final = 2


def cost(count: int, size_bytes: float) -> int:
    """Return the cost of a number of records with this total size."""
    return count * _COST_OF_RECORD + round(size_bytes)


class SendPace:
    """The pace of one way of delivery. All instants are monotonic, in ns. One owner thread.

    `longest_ns` is the time after which the client abandons a record. `limit` and `in_flight` are costs.

    Source: slow start and congestion avoidance of TCP (RFC 5681); throttling of Kafka clients (KIP-219).
    """

    __slots__ = (
        "_answered_ns", "_cut_ns", "_fast_to", "_is_known", "_most", "_patience_ns", "_slowest_ns",
        "_slowest_since_ns", "_third_ns", "in_flight", "limit", "throttled_until_ns",
    )  # fmt: skip

    def __init__(self, *, patience_ns: int, longest_ns: int, most: int) -> None:
        self.throttled_until_ns = 0
        self.limit = min(_FIRST, most)
        self.in_flight = 0
        self._most = most
        self._patience_ns = patience_ns
        self._third_ns = longest_ns // 3
        self._fast_to = most  # below it the limit doubles, above it it grows slowly
        self._cut_ns = -1  # what was sent before is no reason for another cut
        self._answered_ns = 0  # when something was answered, or sent while nothing was in flight
        self._is_known = False  # whether something was answered: a new client connects first
        self._slowest_ns = (0, 0)  # in the current and in the last period of 10 s
        self._slowest_since_ns = 0

    # --- how much ----------------------------------------------------------------------------------------------------

    def throttled(self, now_ns: int, time_ns: int) -> None:
        """Note that a broker does not read what is sent to it from now on for this time; 0: it reads again."""
        if time_ns > 0:
            self.throttled_until_ns = max(self.throttled_until_ns, now_ns + time_ns)

    def room(self, now_ns: int) -> int:
        """Return the cost of the records that may be sent now; 0: none.

        Decides: How much does the worker have in flight, and how large is a transaction? Little at first, more while
            everything is stored in good time, half after it was late, nothing while a broker throttles. Records of a
            transaction that was too large come back in smaller runs (`core.level_queue.LevelQueue.take`).
        """
        if now_ns < self.throttled_until_ns:
            return 0
        quiet_ns = self.quiet_ns(self._answered_ns, now_ns)
        if self.in_flight:
            step_ns = max(_EXTENSION_NS, *self._slowest_at(now_ns))
            steps = quiet_ns // step_ns if self._is_known else 0
            return min(self._most, self.limit + steps * _FIRST) - self.in_flight
        if quiet_ns >= _IDLE_NS:
            self.limit = min(self.limit, _FIRST)
            self._fast_to = self._most
        return self.limit

    def room_count(self, now_ns: int) -> int:
        """Return how many records may be sent now, however small they are."""
        return max(0, self.room(now_ns)) // _COST_OF_RECORD

    def sent(self, amount: int, now_ns: int) -> None:
        """Note that records of this cost were sent."""
        if not self.in_flight:
            self._answered_ns = now_ns
        self.in_flight += amount

    def ended(self, amount: int, now_ns: int) -> None:
        """Note that records of this cost are in flight no longer."""
        self.in_flight -= amount
        self._answered_ns = now_ns
        self._is_known = True

    def stored(self, amount: int, sent_ns: int, now_ns: int, base_ns: int = 0) -> None:
        """Note that records of this cost, which are in flight, were stored; `base_ns` is the time without records."""
        took_ns, late_ns = now_ns - sent_ns - base_ns, self._third_ns
        if self.throttled_until_ns > sent_ns:
            took_ns, late_ns = max(now_ns, self.throttled_until_ns) - sent_ns, _LATE_THROTTLED_NS
        if took_ns > late_ns:
            self.late(sent_ns, now_ns)
        elif took_ns <= late_ns // _GOOD_SHARE and 2 * self.in_flight >= self.limit:
            grown = self.limit + amount // (_FAST_GROWTH if self.limit < self._fast_to else _SLOW_GROWTH)
            self.limit = min(self._most, grown)

    def late(self, sent_ns: int, now_ns: int) -> None:
        """Halve the limit because records that were sent then took too long, unless that was taken into account."""
        if sent_ns > self._cut_ns:
            self.limit = self._fast_to = max(_LEAST, min(self.limit, self.in_flight) // 2)
            self._cut_ns = now_ns

    # --- how long ----------------------------------------------------------------------------------------------------

    def answered(self, took_ns: int, now_ns: int) -> None:
        """Note how long a broker took to answer; to be called only if none throttled this client meanwhile."""
        current, last = self._slowest_at(now_ns)
        self._slowest_ns = max(current, took_ns), last

    def _slowest_at(self, now_ns: int) -> tuple[int, int]:
        periods = (now_ns - self._slowest_since_ns) // _REMEMBERED_NS
        if periods > 0:
            self._slowest_since_ns += periods * _REMEMBERED_NS
            self._slowest_ns = 0, self._slowest_ns[0] if periods == 1 else 0
        return self._slowest_ns

    def patience_ns(self, now_ns: int, failures: int = 0) -> int:
        """Return how long a record must be without an answer before silence is possible.

        Decides: How long may a target of the worker take? `target_patience_ms`, or longer while the brokers are slow; a
            time in which a broker throttles does not count (`core.send_pace.SendPace.quiet_ns`). `failures` is how
            often its target has failed in a row; 0 if others wait for the record.
        """
        least_ns = self._patience_ns << min(max(0, failures - 1), _MOST_DOUBLINGS)
        slow_ns = _SLOWEST_TIMES * max(self._slowest_at(now_ns))
        return max(self._patience_ns, min(max(least_ns, slow_ns), _PATIENCE_THIRDS * self._third_ns))

    def quiet_ns(self, since_ns: int, now_ns: int) -> int:
        """Return for how long there was no answer while no broker throttled this client."""
        return max(0, now_ns - max(since_ns, self.throttled_until_ns))
