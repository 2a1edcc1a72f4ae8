"""What an assignment that changes within a fetch does to the records that the fetch brings."""

from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.testing import InMemoryKafka


class AssignedWhileFetching:
    """A consumer whose partition is assigned again, with an unknown start, inside a fetch that brings its records."""

    def __init__(self, real: Any, again: Any) -> None:
        self.sought: list[int] = []
        self._real = real
        self._again = again

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def consume(self, count: int, timeout: float = -1) -> Any:
        got = self._real.consume(count, timeout)
        self._again(self._real)
        return got

    def seek(self, place: TopicPartition) -> None:
        self.sought.append(place.offset)
        self._real.seek(place)


def test_records_of_an_earlier_assignment_do_not_seek_a_partition_to_the_end(kafka: InMemoryKafka, bench: Any) -> None:
    kafka.append("orders", b"x")
    made = bench([].append)
    made.run()
    made.commit_now()
    kafka.append("orders", b"y")

    def nobody_knows(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def again(consumer: Any) -> None:
        made.starts.resolve = nobody_knows
        made.loop.reader._on_revoke(consumer, [TopicPartition("orders", 0)])
        made.loop.reader._on_assign(consumer, [TopicPartition("orders", 0)])

    consumer = AssignedWhileFetching(made.loop.reader._consumer, again)
    made.loop.reader._consumer = consumer
    made.turn(1)
    assert [offset for offset in consumer.sought if offset < 0] == []


def test_a_partition_that_comes_and_goes_within_a_fetch_is_not_sought(kafka: InMemoryKafka, bench: Any) -> None:
    kafka.append("orders", b"x")
    made = bench([].append)
    made.run()
    made.commit_now()
    kafka.append("orders", b"y")
    place = [TopicPartition("orders", 0)]

    def comes_and_goes(consumer: Any) -> None:
        made.loop.reader._on_revoke(consumer, place)
        made.loop.reader._on_assign(consumer, place)
        made.loop.reader._on_revoke(consumer, place)

    consumer = AssignedWhileFetching(made.loop.reader._consumer, comes_and_goes)
    made.loop.reader._consumer = consumer
    made.turn(1)
    assert (consumer.sought, made.loop.error) == ([], None)
    assert made.committed() == 1
