"""Land again and again in one session, until a signal asks to stop.

A landing begins where the table says that the last one ended, so this loop keeps no state: it may be stopped or killed
at any moment, and started again anywhere. A signal lets the landing in progress end. A service manager that signals
Java, too, makes it fail instead; then nothing of it was stored.

If brokers do not answer, or a landing fails, that is reported, and the next landing reads the same records. The first
landing must succeed, because its failure is mostly a mistake in the command. Ten failures in a row end the loop with
the last one, so that whatever watches the process notices.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rocketshim_spark.errors import LandingFailedError
from rocketshim_topics.errors import BrokerUnavailableError

if TYPE_CHECKING:
    from rocketshim_spark.land import Landing

__all__ = ["follow"]

_LOOK_S: Final = 0.2
_MAX_FAILURES: Final = 10


def follow(
    land_once: "Callable[[], Landing]",
    *,
    every_s: float,
    note: Callable[[str], None],
    is_asked_to_stop: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> bool:
    """Land until a signal asks to stop; return whether no landing found a gap.

    Args:
        land_once: lands the new records, and shows the result.
        every_s: time from the start of one landing to the start of the next, in seconds.
        note: prints why a landing failed.
        is_asked_to_stop: whether a signal has arrived.
        sleep: waits for a number of seconds.
        now_s: the clock, in seconds.

    Raises:
        RocketshimError: the first landing failed, or ten in a row, or one for a reason that will not pass. Nothing of
            it was stored.
    """
    is_fine, has_landed, failures = True, False, 0
    while not is_asked_to_stop():
        due_s = now_s() + every_s
        try:
            is_fine &= not land_once().gaps
            has_landed, failures = True, 0
        except Exception as error:
            if is_asked_to_stop():  # the signal ended Java, too
                break
            failures += 1
            may_pass = isinstance(error, BrokerUnavailableError | LandingFailedError)
            if not (may_pass and has_landed and failures < _MAX_FAILURES):
                raise
            note(f"note: {error}. The next landing begins in {max(0.0, due_s - now_s()):.0f} s")
        while not is_asked_to_stop() and now_s() < due_s:
            sleep(_LOOK_S)
    return is_fine
