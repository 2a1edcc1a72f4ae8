"""Delivery reports: whether a record that is reported as stored has an offset, and so is known to be stored.

librdkafka counts the broker's answer DUPLICATE_SEQUENCE_NUMBER as a success, because the batch must have been stored
before. That is wrong where a broker has no state of this idempotent producer. It accepts a later batch first, with any
sequence number, and then refuses the retry of the earlier batch, which is stored nowhere. Such a success has no offset.

librdkafka numbers the records of a refused batch from -1 on: the first has no offset, the next ones report 0, 1, 2 and
so on. The reports of one batch follow each other in one `poll`, so a run of such numbers is recognised. A record that
was produced after the run began does not belong to it. Without this rule, a record that is sent again into an empty
partition could be doubted, and repeated, forever.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError

__all__ = ["UNCONFIRMED", "delivery_error", "is_unconfirmed"]

UNCONFIRMED: Final = KafkaError(
    KafkaError.DUPLICATE_SEQUENCE_NUMBER, "reported as stored but without an offset; it may be stored or not"
)
"""Stands for a success without an offset. librdkafka itself never reports this code as an error."""


@dataclass(slots=True)
class _Run:
    """Reports of one batch without offsets.

    Attributes:
        place: topic and partition.
        next_offset: what the next report of the batch shows as its offset.
        began_s: monotonic time of the first report, in seconds.
    """

    place: tuple[str, int]
    next_offset: int
    began_s: float


_RUNS: Final[dict[int, _Run]] = {}
"""By the thread that serves the reports; empty as a rule."""


def delivery_error(error: KafkaError | None, message: Any) -> KafkaError | None:
    """Return the error of a delivery report; `UNCONFIRMED` for a success without an offset; None: it is stored.

    To be called in each delivery callback, in the order of the reports: the reports of one batch explain each other.
    """
    if error is not None:
        return error
    offset = message.offset()
    if not _RUNS and offset is not None and offset >= 0:
        return None
    return _look_closely(message, offset)


def is_unconfirmed(error: KafkaError) -> bool:
    """Return whether an error is that of a record that may be stored or not, and is to be sent again as it is."""
    return bool(error.code() == KafkaError.DUPLICATE_SEQUENCE_NUMBER)


def _look_closely(message: Any, offset: int | None) -> KafkaError | None:
    place, thread = (message.topic(), message.partition()), threading.get_ident()
    now_s = time.monotonic()
    if offset is None or offset < 0:
        _RUNS[thread] = _Run(place, 0, now_s)
        return UNCONFIRMED
    run = _RUNS.get(thread)
    if run is None:
        return None
    if run.place == place and run.next_offset == offset and _was_produced_before(message, now_s, run):
        run.next_offset += 1
        return UNCONFIRMED
    del _RUNS[thread]
    return None


def _was_produced_before(message: Any, now_s: float, run: _Run) -> bool:
    latency_s = message.latency()
    return latency_s is None or latency_s >= now_s - run.began_s
