"""How far messages were handed out and handled, and which offsets are stored, on the in-memory Kafka."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rocketshim.dropin import retry_side as retries
from rocketshim.dropin.retry_side import RetrySide, prepare
from rocketshim.dropin.settings import ConsumerDropinSettings
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.coordinates import TopicPartitionKey

KEY = TopicPartitionKey("orders", 0)


class Stage:
    """An assigned partition with ten messages, and the offsets that were stored for it."""

    def __init__(self, *, stores: bool = True) -> None:
        self.kafka = kafka = InMemoryKafka()
        kafka.create_topic("orders", 1)
        for number in range(10):
            kafka.append("orders", b"%d" % number)
        settings = ConsumerDropinSettings(retry_enable=True)
        config = {"group.id": "g", "enable.auto.offset.store": stores}
        self.retries: RetrySide = prepare(settings, ({**config, "bootstrap.servers": "127.0.0.1:1"},), {})[0]
        self.client: Any = kafka.consumer({**config, "enable.auto.offset.store": False})
        self.client.assign([TopicPartition("orders", 0, 0)])
        self.stored: list[int] = []
        self.refuses = False
        store = self.client.store_offsets

        def store_offsets(*, offsets: list[TopicPartition]) -> None:
            if self.refuses:
                raise KafkaException(KafkaError(KafkaError._STATE))
            self.stored += [each.offset for each in offsets]
            store(offsets=offsets)

        self.client.store_offsets = store_offsets  # type: ignore[assignment]
        self.retries.partitions.add([KEY])

    def fetch(self, count: int) -> list[Message]:
        found: list[Message] = self.client.consume(count, 1)
        return found

    def take(self, count: int) -> list[Message]:
        return self.retries.hand_out(self.client, self.fetch(count))

    def settle(self) -> None:
        self.retries.store_handled(self.client)


class Client:
    """The original's methods as functions of a class, of the client in memory."""

    def __getattr__(self, name: str) -> Any:
        return lambda client, *given, **named: getattr(client, name)(*given, **named)


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_Original", Client())


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.client.close()


def values(messages: list[Message]) -> list[bytes | None]:
    return [each.value() for each in messages]


def test_what_was_handed_out_is_stored_when_the_program_comes_back(stage: Stage) -> None:
    stage.take(3)
    assert stage.retries.is_dirty
    stage.settle()
    assert (stage.stored, stage.retries.is_dirty) == ([3], False)
    stage.settle()
    assert stage.stored == [3], "nothing new"


def test_a_program_that_stores_offsets_itself_is_left_alone() -> None:
    stage = Stage(stores=False)
    stage.take(3)
    stage.settle()
    assert stage.stored == []
    stage.client.close()


def test_the_stored_offset_does_not_pass_a_failing_message(stage: Stage) -> None:
    stage.take(5)
    future, _ = stage.retries.partitions.begin(KEY, 2)
    stage.settle()
    stage.retries.partitions.end(KEY, 2, future, None)
    stage.settle()
    assert stage.stored == [2, 5]


def test_each_call_raises_one_error_of_a_callback_and_no_message_is_lost(stage: Stage) -> None:
    stage.retries.errors.extend([OSError("first"), ValueError("second")])
    with pytest.raises(OSError, match="first"):
        stage.take(2)
    with pytest.raises(ValueError, match="second"):
        stage.retries.take(stage.client, 1, 0)
    assert stage.retries.is_slow
    taken = [stage.retries.take(stage.client, 1, 0) for _ in range(3)]
    assert [values(each) for each in taken] == [[b"0"], [b"1"], [b"2"]]
    assert not stage.retries.is_slow


def test_a_buffered_message_is_not_handled(stage: Stage) -> None:
    stage.take(1)
    stage.retries.errors.append(OSError("no"))
    with pytest.raises(OSError, match="no"):
        stage.take(3)
    stage.settle()
    assert stage.stored == [1]
    stage.retries.take(stage.client, 2, 0)
    stage.settle()
    assert stage.stored == [1, 3]


def test_what_a_call_that_waits_is_about_to_return_is_not_handled(stage: Stage) -> None:
    def callback_in_the_call(client: Any, count: int, _: float) -> list[Message]:
        found: list[Message] = client.consume(count, 1)
        stage.settle()  # as a callback for a revoked partition does, and a `commit()` in it
        return found

    stage.take(2)
    stage.retries.wait(stage.client, callback_in_the_call, 2, 1)
    assert stage.stored == [2]


def test_an_offset_that_passes_marks_does_not_go_back_in_a_callback(stage: Stage) -> None:
    stage.take(2)
    stage.settle()
    stage.client.position = lambda partitions: [TopicPartition(*KEY, 4) for _ in partitions]
    stage.retries.store_at_s -= 60
    stage.retries.hand_out(stage.client, [])
    stage.settle()
    stage.retries.wait(stage.client, lambda _: stage.settle())
    assert stage.stored == [2, 4]


def test_a_partition_that_is_being_revoked_does_not_stop_the_others(stage: Stage) -> None:
    stage.take(3)
    stage.refuses = True
    stage.settle()
    stage.refuses = False
    stage.settle()
    assert stage.stored == [3], "it is stored as soon as it can be"


def test_what_no_reader_sees_is_stored_about_once_a_second_while_no_message_comes(stage: Stage) -> None:
    stage.take(10)
    stage.settle()
    stage.kafka.skip_offsets("orders", count=3)
    assert stage.client.poll(0) is None
    stage.take(1)
    assert not stage.retries.is_dirty
    stage.retries.store_at_s -= 60
    stage.take(1)
    assert stage.retries.is_dirty
    stage.settle()
    assert stage.stored == [10, 13]


def test_the_positions_of_a_topic_that_was_created_again_go_back(stage: Stage) -> None:
    stage.take(10)
    stage.settle()
    stage.client.position = lambda partitions: [TopicPartition(*KEY, 4) for _ in partitions]
    stage.retries.hand_out(stage.client, [Message("orders", 0, number, value=b"x") for number in range(-20, 4)])
    stage.settle()
    assert stage.stored == [10, 4]


def test_messages_before_the_target_of_a_seek_count_as_handled(stage: Stage) -> None:
    stage.take(3)
    stage.retries.seek(stage.client, TopicPartition(*KEY, 7))
    assert stage.stored == [3]
    stage.take(1)
    stage.retries.seek(stage.client, TopicPartition(*KEY, 1))
    assert stage.stored == [3, 1]
