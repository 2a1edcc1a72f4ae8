"""How far messages were handed out and handled, and which offsets are stored, on the in-memory Kafka."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rocketshim.dropin.buffered import Buffered
from rocketshim.dropin.client_gate import ClientGate
from rocketshim.dropin.handled_offsets import HandledOffsets
from rocketshim.dropin.send_back_tracker import SendBackTracker
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
        self.client: Any = kafka.consumer({"group.id": "g", "enable.auto.offset.store": False})
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
        self.tracker, self.buffered, self.gate = SendBackTracker(), Buffered(), ClientGate()
        self.tracker.add({KEY: 0})
        self.offsets = HandledOffsets(stores=stores, tracker=self.tracker, buffered=self.buffered, gate=self.gate)

    def fetch(self, count: int) -> list[Message]:
        found: list[Message] = self.client.consume(count, 1)
        self.offsets.dirty = True
        return found


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.client.close()


def test_what_was_handed_out_is_stored_when_the_program_comes_back(stage: Stage) -> None:
    stage.fetch(3)
    stage.offsets.note_and_store(stage.client)
    assert (stage.stored, stage.offsets.positions[KEY].offset, stage.offsets.dirty) == ([3], 3, False)
    stage.offsets.note_and_store(stage.client)
    assert stage.stored == [3], "nothing new"


def test_what_no_reader_sees_is_stored_about_once_a_second_while_no_message_comes(stage: Stage) -> None:
    stage.fetch(10)
    stage.offsets.note_and_store(stage.client)
    stage.kafka.skip_offsets("orders", count=3)
    assert stage.client.poll(0) is None
    stage.offsets.look_again()
    assert not stage.offsets.dirty
    stage.offsets.store_at_s -= 60
    stage.offsets.look_again()
    assert stage.offsets.dirty
    stage.offsets.note_and_store(stage.client)
    assert stage.stored == [10, 13]


def test_a_program_that_stores_offsets_itself_is_left_alone() -> None:
    stage = Stage(stores=False)
    stage.fetch(3)
    stage.offsets.note_and_store(stage.client)
    assert (stage.stored, stage.offsets.positions[KEY].offset) == ([], 3)
    stage.client.close()


def test_the_stored_offset_does_not_pass_a_failing_message(stage: Stage) -> None:
    stage.fetch(5)
    future, _ = stage.tracker.begin(KEY, 2, 5)
    stage.offsets.note_and_store(stage.client)
    stage.tracker.end(KEY, 2, future, None)
    stage.offsets.note_and_store(stage.client)
    assert stage.stored == [2, 5]


def test_a_buffered_message_is_not_handled(stage: Stage) -> None:
    stage.buffered.messages.extend(stage.fetch(4)[1:])
    stage.offsets.note_and_store(stage.client)
    assert stage.stored == [1]


def test_positions_are_not_noted_during_a_call_that_waits(stage: Stage) -> None:
    stage.fetch(2)
    stage.offsets.note(stage.client)
    stage.gate.begin_wait()
    stage.fetch(2)  # what the call is about to return
    stage.offsets.note(stage.client)
    assert stage.offsets.position(stage.client, KEY, 1).offset == 2
    stage.gate.waiting = False
    assert stage.offsets.position(stage.client, KEY, 1).offset == 4


def test_an_unknown_partition_has_no_position(stage: Stage) -> None:
    other = TopicPartitionKey("other", 3)
    assert stage.offsets.position(stage.client, other, 1).offset < 0
    stage.gate.close()
    assert stage.offsets.position(stage.client, KEY, 1).offset < 0, "nothing was noted"


def test_a_partition_that_is_being_revoked_does_not_stop_the_others(stage: Stage) -> None:
    stage.fetch(3)
    stage.refuses = True
    stage.offsets.note_and_store(stage.client)
    stage.refuses = False
    stage.offsets.note_and_store(stage.client)
    assert stage.stored == [3], "it is stored as soon as it can be"


def test_positions_of_an_earlier_assignment_are_forgotten(stage: Stage) -> None:
    stage.fetch(3)
    stage.offsets.note(stage.client)
    stage.offsets.forget([KEY])
    assert stage.offsets.positions == {}
