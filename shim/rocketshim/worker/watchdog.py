"""Tells when the worker's loop hangs, so that its process can be ended and started anew.

A call into the Kafka client may hang past its own time-out (seen: a transactional producer whose broker was away).
Nothing inside the process can end such a call, and the group's heartbeats go on behind it. Two guards:

* the consumer leaves the group when it was not polled for `max.poll.interval.ms` (five seconds more than the session's
  time-out): another worker takes the partitions over, and a transaction that hangs here is fenced by the generation;
* the process ends a little later, by this watchdog; its supervisor starts it anew.

The loop says at each turn, and before each call with a time-out of its own, how long it may take (`Heartbeat`). The
watchdog is asked once a second and counts **its own looks**, not the clock: a process that was frozen, or a machine
that stood still, has the whole time again when it wakes.
"""

from typing import Final

__all__ = ["TURN_S", "Heartbeat", "Watchdog"]

TURN_S: Final = 60
"""How long one turn of the loop may take, in s; calls with a time-out of their own may take less."""


class Heartbeat:
    """Where the loop says that it goes on.

    Thread-safety: written by the loop's thread; read by any.
    """

    __slots__ = ("_beat", "_number")

    def __init__(self) -> None:
        self._number = 0
        self._beat: tuple[int, float] | None = None

    def beat(self, longest_s: float = TURN_S) -> None:
        """The loop goes on, and will say so again within this many seconds."""
        self._number += 1
        self._beat = self._number, longest_s

    def rest(self) -> None:
        """Nothing is promised from here on: it has not begun, or it is ending."""
        self._beat = None

    @property
    def last(self) -> tuple[int, float] | None:
        """Number of the last beat and the seconds that it promised; None: nothing is promised."""
        return self._beat


class Watchdog:
    """Looks after one heartbeat.

    Thread-safety: none; one thread of its own.
    """

    __slots__ = ("_heart", "_looks", "_seen")

    def __init__(self, heart: Heartbeat) -> None:
        self._heart = heart
        self._seen: tuple[int, float] | None = None
        self._looks = 0

    def look(self) -> bool:
        """Whether the loop hangs; to be asked once a second."""
        last = self._heart.last
        if last is None or last != self._seen:
            self._seen, self._looks = last, 0
            return False
        self._looks += 1
        return self._looks > last[1]
