"""Detects that the worker's loop is blocked, so that its process can end and be restarted.

A call into the Kafka client may block longer than its own time-out (seen: a transactional producer whose broker was
unavailable). Nothing inside the process can end such a call, and the group's heartbeats continue in the background. Two
guards:

* The consumer leaves the group when it was not polled for `max.poll.interval.ms` (five seconds more than the session
  time-out). Another worker takes the partitions over, and the group's generation fences a blocked transaction.
* A little later this watchdog ends the process, and its supervisor restarts it.

At each turn, and before each call with its own time-out, the loop reports how long it may take (`Heartbeat`). The
process asks the watchdog once a second. The watchdog counts **its own checks**, not the clock: a process that was
frozen, or a machine that was suspended, has the whole time again when it wakes.
"""

from typing import Final

__all__ = ["TURN_S", "Heartbeat"]

TURN_S: Final = 60
"""How long one turn of the loop may take, in s; a call with its own time-out may have less."""


class Heartbeat:
    """The loop's sign of life, and its watchdog.

    Thread-safety: the loop's thread beats and rests; one other thread looks.
    """

    __slots__ = ("_beat", "_looks", "_number", "_seen")

    def __init__(self) -> None:
        self._number = 0
        self._beat: tuple[int, float] | None = None  # number of the last one, and its time; None: not supervised
        self._seen: tuple[int, float] | None = None
        self._looks = 0

    def beat(self, longest_s: float = TURN_S) -> None:
        """Report that the loop is running and will report again within this number of seconds."""
        self._number += 1
        self._beat = self._number, longest_s

    def rest(self) -> None:
        """Stop the supervision: the loop has not started yet, or it is shutting down."""
        self._beat = None

    def has_stopped(self) -> bool:
        """Return whether the loop is blocked; to be called once a second.

        Decides: What if the worker's loop hangs? Its process ends (worker.stuck).
        """
        last = self._beat
        if last is None or last != self._seen:
            self._seen, self._looks = last, 0
            return False
        self._looks += 1
        return self._looks > last[1]
