"""What a delivery report says about a record: stored, failed, or reported as stored without an offset."""

import threading
from typing import Any

from confluent_kafka import OFFSET_INVALID, TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from rocketshim.kafka.reports import UNCONFIRMED, DeliveryReports, is_unconfirmed


class Reports(DeliveryReports):
    """The reports of one producer for the topic `orders`."""

    def stored(
        self, offset: int, *, partition: int = 0, latency_s: float = 60.0, kind: int = TIMESTAMP_CREATE_TIME
    ) -> KafkaError | None:
        """Check a report without an error."""
        time = (kind, 1_700_000_000_000)
        record = Message(topic="orders", partition=partition, offset=offset, latency=latency_s, timestamp=time)
        return self.error(None, record)


def test_an_error_is_that_of_the_report_whatever_the_offset() -> None:
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    nothing: Any = None
    assert DeliveryReports().error(error, nothing) is error
    assert not is_unconfirmed(error)


def test_a_success_without_an_offset_is_an_error_of_its_own() -> None:
    reports = Reports()
    assert reports.stored(5) is None
    for offset in (OFFSET_INVALID, -1):
        assert reports.stored(offset) is UNCONFIRMED
    assert is_unconfirmed(UNCONFIRMED)
    assert reports.stored(5) is None


def test_the_records_behind_it_in_its_batch_are_not_stored_where_they_say() -> None:
    reports = Reports()
    assert [reports.stored(offset) for offset in (-1, 0, 1, 2)] == [UNCONFIRMED] * 4
    assert [reports.stored(offset) for offset in (7, 3)] == [None, None], "the batch is over"
    assert [reports.stored(offset) for offset in (-1, 0, -1, 0)] == [UNCONFIRMED] * 4, "two batches"
    assert reports.stored(1, partition=1) is None
    assert reports.stored(1) is None


def test_what_is_sent_again_into_an_empty_partition_is_not_doubted_again() -> None:
    reports = Reports()
    assert reports.stored(-1) is UNCONFIRMED
    assert reports.stored(0, latency_s=0.0) is None
    assert reports.stored(1) is None


def test_a_record_with_an_append_time_is_stored_whatever_was_refused_before_it() -> None:
    reports = Reports()
    assert [reports.stored(-1) for _ in range(3)] == [UNCONFIRMED] * 3, "batches of one record"
    after = [reports.stored(offset, kind=TIMESTAMP_LOG_APPEND_TIME) for offset in range(5)]
    assert after == [None] * 5, "the batch that the broker of a new topic took first"


def test_reports_that_another_thread_serves_do_not_end_a_batch() -> None:
    reports = Reports()
    assert reports.stored(-1) is UNCONFIRMED
    other = threading.Thread(target=reports.stored, args=(9,))
    other.start()
    other.join()
    assert reports.stored(0) is UNCONFIRMED
    assert reports.stored(9) is None


def test_the_reports_of_one_producer_say_nothing_about_those_of_another() -> None:
    reports, others = Reports(), Reports()
    assert reports.stored(-1) is UNCONFIRMED
    assert others.stored(0) is None
    assert reports.stored(0) is UNCONFIRMED
