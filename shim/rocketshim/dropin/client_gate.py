"""Who may call the Kafka client now: the thread that polls, or another one that asks it something quickly.

confluent_kafka lets one call into a consumer at a time: a second one waits for the first, and a `poll` may wait for
ever. A thread that sends a message back has to ask the client for a position. It must not wait behind a `poll`, and it
must not be in the client while a callback of a `poll` waits for this very thread.

The poll thread is in one of three states:

* *outside*: in the program's own code. Another thread may call the client, and has the lock meanwhile.
* *polling*: in a client call that does not wait. Another thread waits until it is over.
* *waiting*: in a client call that may wait, or in a callback of the program. No other thread may call the client. The
  poll thread has noted before what others may ask (`HandledOffsets.positions`). That is exact, because such a call has
  returned nothing yet.

To enter *waiting*, the poll thread takes the lock, so that no other thread is in the client then. *Polling* begins for
each message and takes no lock as a rule. Both sides set their own flag before they read the other's: the poll thread
sets `polling` and then reads `asking`, the other thread sets `asking` and then reads `polling`. So at least one of them
sees the other. If the poll thread sees `asking`, it waits for the lock once.

*Waiting* may begin again inside itself, since a callback may call `poll`. After `close` it lasts. The caller sets
`waiting` back by an assignment, because a signal handler may raise at the beginning of a call.

Not covered: a handler of the client's `logger` is called inside *polling*, and nothing tells us. A thread for which
such a handler waits gives up after its time-out.
"""

import threading
from collections.abc import Callable
from threading import get_ident
from time import monotonic, sleep
from typing import Final, TypeVar

from rocketshim.errors import SendTimeoutError

__all__ = ["ClientGate"]

T = TypeVar("T")

_TURN_S: Final = 0.0005


class ClientGate:
    """Lets other threads call a consumer while its poll thread is not in it.

    Attributes:
        asking: another thread is about to call the client, or calls it.
        poll_thread: identity of the thread that polled last.
        polling: the poll thread is in a client call that does not wait.
        waiting: the poll thread is in a client call that may wait, or in a callback, or the consumer is closed.

    Thread-safety: any thread may call `ask`. The other methods belong to the poll thread.

    Decides: Which thread may call the drop-in's client now?
    """

    __slots__ = ("_lock", "asking", "poll_thread", "polling", "waiting")

    def __init__(self) -> None:
        self.waiting = False
        self.polling = False
        self.asking = False
        self.poll_thread = 0
        self._lock = threading.Lock()

    @property
    def is_poll_thread(self) -> bool:
        """Whether this is the thread that polled last."""
        return get_ident() == self.poll_thread

    def begin_poll(self) -> None:
        """Enter a client call that does not wait; call `end_poll` afterwards, whatever happens."""
        self.poll_thread = get_ident()
        self.polling = True
        if self.asking:
            self.await_asking()

    def await_asking(self) -> None:
        """Wait until the thread that may have missed `polling` has left the client."""
        with self._lock:
            pass

    def end_poll(self) -> None:
        """Leave a client call that does not wait."""
        self.polling = False

    def begin_wait(self) -> None:
        """Enter a client call that may wait; set `waiting` back afterwards, whatever happens."""
        self.poll_thread = get_ident()
        with self._lock:
            self.waiting = True

    def close(self) -> None:
        """Let no other thread into the client from now on."""
        with self._lock:
            self.waiting = True

    def ask(self, now: Callable[[], T], noted: Callable[[], T], timeout_s: float) -> T:
        """Return what a thread wants to know, without waiting for a `poll` that waits.

        Args:
            now: asks the client; called while the poll thread is outside, and in that thread itself.
            noted: returns what the poll thread noted before it began to wait.
            timeout_s: how long to wait for a poll that does not wait, in seconds.

        Raises:
            SendTimeoutError: that poll did not return in time. Nothing was called.
        """
        if self.is_poll_thread:  # also in its callbacks, in which it may already be in a client call
            return noted() if self.waiting else now()
        deadline = monotonic() + timeout_s
        while True:
            with self._lock:
                self.asking = True  # before `polling` is read, as `begin_poll` sets `polling` before it reads this
                try:
                    if self.waiting:
                        return noted()
                    if not self.polling:
                        return now()
                finally:
                    self.asking = False
            if monotonic() > deadline:
                raise SendTimeoutError(
                    f"a poll has been in a handler of the client's logger for {timeout_s * 1_000:.0f} ms; until it "
                    "returns, no other thread can send a message back; nothing was sent. A log handler must not wait "
                    "for a thread that sends messages back"
                )
            sleep(_TURN_S)  # a poll that does not wait is running; its callbacks note what others may ask
