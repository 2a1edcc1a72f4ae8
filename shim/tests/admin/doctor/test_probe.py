"""What a probe says of append times, on the in-memory Kafka, and of a broker that does not answer."""

from typing import Any

import pytest

from rocketshim.admin.doctor.probe import APPEND_TIME, Capability, _size, append_times
from rocketshim.testing import InMemoryKafka, VirtualClock


@pytest.mark.parametrize("kind", ["LogAppendTime", "CreateTime"])
def test_a_broker_that_does_not_keep_append_times_is_found_by_a_record(kind: str) -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic("probe", 1, config={"message.timestamp.type": kind})
    producer, reader = kafka.producer({}), kafka.consumer({"group.id": "g"})
    found = append_times(producer, reader, "probe", 1.0, now_ms=clock.wall_ms())
    where = "not in the answer to the producer and the stored record, though the topic has LogAppendTime"
    is_kept = kind == "LogAppendTime"
    assert found == Capability(APPEND_TIME, is_kept, "kept" if is_kept else where, "delays, retries, locks")


class Unanswered:
    """A producer whose records get no report."""

    def produce(self, *_: Any, **__: Any) -> None:
        """Take a record."""

    def flush(self, _: float) -> int:
        return 1


def test_a_record_without_a_report_is_not_measured() -> None:
    producer: Any = Unanswered()
    assert _size(producer, "probe", 0.0).works is None
