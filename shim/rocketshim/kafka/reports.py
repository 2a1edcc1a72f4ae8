"""Delivery reports: whether a record is known to be stored.

A record that is reported as stored, but without an offset, is not known to be stored.

librdkafka counts the broker's answer DUPLICATE_SEQUENCE_NUMBER as a success, because the batch must have been stored
before. That is wrong where a broker has no state of this idempotent producer. It accepts a later batch first, with any
sequence number, and then refuses the retry of the earlier batch, which is stored nowhere. Such a success has no offset
(test_a_success_without_an_offset_is_an_error_of_its_own).

librdkafka numbers the records of a refused batch from -1 on: the first has no offset, the next ones report 0, 1, 2 and
so on (test_the_records_behind_it_in_its_batch_are_not_stored_where_they_say). The reports of one batch follow each
other in one `poll`, so a run of such numbers is recognised. A record that was produced after the run began does not
belong to it. Without this rule, a record that is sent again into an empty partition could be doubted, and repeated,
forever. A record with an append time does not belong to it either: a broker gives none to what it refuses. So the later
batch, which begins at offset 0 if the topic is new, is not doubted if the topic has LogAppendTime, as the schedule
topic has.

So the reports of a producer need a memory, `DeliveryReports`, which all its delivery callbacks share: the records of a
batch may have different callbacks. It is separate for each thread, because several threads may poll one producer, and
each of them serves whole batches.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from rocketshim.errors import SendError
from rocketshim.kafka.client_config import PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import Clients, ProducerClient, close_producer, confluent_clients

__all__ = ["UNCONFIRMED", "DeliveryError", "DeliveryReports", "is_unconfirmed", "store", "store_command"]

_COMMAND_S: Final = 30.0

UNCONFIRMED: Final = KafkaError(
    KafkaError.DUPLICATE_SEQUENCE_NUMBER, "reported as stored but without an offset; it may be stored or not"
)
"""Stands for a success without an offset. librdkafka itself never reports this code as an error."""


DeliveryError = Callable[[KafkaError | None, Any], KafkaError | None]
"""`DeliveryReports.error` of one owner."""


def is_unconfirmed(error: KafkaError) -> bool:
    """Return whether an error is that of a record that may be stored or not, and is to be sent again as it is."""
    return bool(error.code() == KafkaError.DUPLICATE_SEQUENCE_NUMBER)


class DeliveryReports(threading.local):
    """Checks the delivery reports of one producer, or of the producers that one thread polls."""

    _refused: tuple[str, int] | None = None  # partition of a batch without offsets, whose reports are coming
    _next_offset: int  # what the next report of the batch shows as its offset
    _began_s: float  # monotonic time of its first report

    def error(self, error: KafkaError | None, message: Any) -> KafkaError | None:
        """Return the error of a delivery report; `UNCONFIRMED` for a success without an offset; None: it is stored.

        To be called in each delivery callback of the producer, in the order of the reports.

        Decides: Is a record that is reported as stored known to be stored? Not without an offset; then the sender's
            report thread sends it again (`kafka.record_sender.RecordSender`). If its time ends, the caller gets a
            SendTimeoutError (`kafka.send_errors.send_error`): it may be stored or not.
        """
        if error is not None:
            return error
        offset = message.offset()
        if self._refused is None and offset is not None and offset >= 0:
            return None
        return self._look_closely(message, offset)

    def _look_closely(self, message: Any, offset: int | None) -> KafkaError | None:
        key, now_s = (message.topic(), message.partition()), time.monotonic()
        if offset is None or offset < 0:
            self._refused, self._next_offset, self._began_s = key, 0, now_s
            return UNCONFIRMED
        if key == self._refused and offset == self._next_offset and _may_be_refused(message, now_s - self._began_s):
            self._next_offset += 1
            return UNCONFIRMED
        self._refused = None
        return None


def _may_be_refused(message: Any, age_s: float) -> bool:
    """Return whether a record may be in the refused batch: it has no append time, and was produced before the run."""
    if message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME:
        return False
    latency_s = message.latency()
    return latency_s is None or latency_s >= age_s


def store(producer: ProducerClient, checked: DeliveryReports, timeout_s: float, *record: Any, **options: Any) -> Any:
    """Produce one record and wait for its report; return it, or None if there was none within the time.

    `record` and `options` are those of `produce`. Raises KafkaException: the record is not stored, or not surely.
    """
    reports: list[tuple[KafkaError | None, Any]] = []

    def reported(error: KafkaError | None, message: Any) -> None:
        reports.append((checked.error(error, message), message))

    producer.produce(*record, on_delivery=reported, **options)
    until_s = time.monotonic() + timeout_s
    # A `flush` of more than 0.2 s calls callbacks with the exception of a fatal error pending, which breaks them.
    while not reports and (left_s := until_s - time.monotonic()) > 0:
        producer.poll(left_s)
    if not reports:
        return None
    error, message = reports[0]
    if error is not None:
        raise KafkaException(error)
    return message


def store_command(
    client: Mapping[str, Any], bootstrap: str, clients: Clients | None, topic: str, *record: Any, **options: Any
) -> int:
    """Store a person's command with a producer of its own; return its offset. Raises SendError: not surely stored.

    `record` and `options` are those of `produce`.
    """
    config = merge(client, defaults={}, required={**PROTECTED_PRODUCER, "bootstrap.servers": bootstrap})
    why: object = "no answer"
    producer = (clients or confluent_clients()).producer(config)
    try:
        stored = store(producer, DeliveryReports(), _COMMAND_S, topic, *record, **options)
        if stored is not None:
            return int(stored.offset())
    except (KafkaException, BufferError) as error:
        why = error.args[0]
    finally:
        close_producer(producer, 1.0)
    raise SendError(f"cannot confirm that the record is stored in {topic}: {why}; run the command again")
