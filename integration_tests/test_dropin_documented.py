"""What confluent-kafka's documentation shows, rewritten: each runs unchanged after the import is changed.

Every program takes the module its names come from: `rocketshim.dropin`, as it is and with retry on; in the long run the
original, too, which shows that the programs are right.
"""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.serialization import MessageField, SerializationContext, StringDeserializer, StringSerializer

from rocketshim import TopicNames, dropin
from rocketshim_local import Broker

GUARD_S = 150.0
COUNT = 5


class Place:
    """Where a program runs: the names it imports, its configuration, its topic."""

    def __init__(self, module: ModuleType, bootstrap: str, topic: str, group: str, more: dict[str, Any]) -> None:
        self.kafka: Any = module
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = group
        self.more = more
        self.deadline = time.monotonic() + GUARD_S

    def consumer_config(self, **config: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in config.items()},
            **self.more,
        }

    def running(self) -> bool:
        assert time.monotonic() < self.deadline, "the program has not ended"
        return True

    def committed(self) -> int:
        with confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group}) as looks:
            (found,) = looks.committed([confluent_kafka.TopicPartition(self.topic, 0)], timeout=GUARD_S)
        return found.offset


@pytest.fixture(
    params=[pytest.param("the original", marks=pytest.mark.long), "the drop-in", "the drop-in with retry on"]
)
def place(
    request: pytest.FixtureRequest,
    broker: Broker,
    topic: Callable[..., str],
    group: Callable[..., str],
    namespace: str,
) -> Place:
    on = {"rocketshim.retry.enable": True, "rocketshim.namespace": namespace}
    return Place(
        confluent_kafka if request.param == "the original" else dropin,
        broker.bootstrap,
        topic(),
        group(),
        on if request.param == "the drop-in with retry on" else {},
    )


@pytest.fixture
def filled(place: Place) -> Place:
    producer = confluent_kafka.Producer({"bootstrap.servers": place.bootstrap})
    for number in range(COUNT):
        producer.produce(place.topic, b"%d" % number)
    assert producer.flush(GUARD_S) == 0
    return place


def test_produce_with_a_delivery_callback(place: Place) -> None:
    reports: list[tuple[str, int]] = []

    def delivery_report(err: Any, msg: Any) -> None:
        if err is not None:
            raise AssertionError(f"Message delivery failed: {err}")
        reports.append((msg.topic(), msg.partition()))

    p = place.kafka.Producer({"bootstrap.servers": place.bootstrap})
    for data in ("one", "two", "three"):
        p.poll(0)
        p.produce(place.topic, data.encode("utf-8"), callback=delivery_report)
    p.flush()
    assert reports == [(place.topic, 0)] * 3


def test_the_basic_consumer(filled: Place) -> None:
    seen = []
    c = filled.kafka.Consumer(filled.consumer_config())
    c.subscribe([filled.topic])
    while filled.running() and len(seen) < COUNT:
        msg = c.poll(1.0)
        if msg is None:
            continue
        if msg.error():
            raise AssertionError(f"Consumer error: {msg.error()}")
        seen.append(msg.value().decode("utf-8"))
    c.close()
    assert seen == list("01234")
    assert filled.committed() == COUNT


def test_the_loop_that_ends_partitions(filled: Place) -> None:
    seen, ends = [], 0
    consumer = filled.kafka.Consumer(filled.consumer_config(enable_partition_eof=True))
    try:
        consumer.subscribe([filled.topic])
        while filled.running() and not ends:
            msg = consumer.poll(timeout=1.0)
            if msg is None:
                continue
            if msg.error():
                if msg.error().code() == filled.kafka.KafkaError._PARTITION_EOF:
                    assert (msg.topic(), msg.partition(), msg.offset()) == (filled.topic, 0, COUNT)
                    ends += 1
                elif msg.error():
                    raise filled.kafka.KafkaException(msg.error())
            else:
                seen.append(msg.offset())
    finally:
        consumer.close()
    assert seen == list(range(COUNT))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_commit_every_few_messages(filled: Place, asynchronous: bool) -> None:
    min_commit_count, msg_count = 2, 0
    consumer = filled.kafka.Consumer(filled.consumer_config(enable_auto_commit=False))
    consumer.subscribe([filled.topic])
    while filled.running() and msg_count < 4:
        msg = consumer.poll(timeout=1.0)
        if msg is None:
            continue
        msg_count += 1
        if msg_count % min_commit_count == 0:
            consumer.commit(asynchronous=asynchronous)
    consumer.close()
    while filled.running() and filled.committed() != 4:
        pass  # an asynchronous commit may arrive after close()


def test_commit_before_processing(filled: Place) -> None:
    consumer = filled.kafka.Consumer(filled.consumer_config(enable_auto_commit=False))
    consumer.subscribe([filled.topic])
    done = 0
    while filled.running() and done < 3:
        msg = consumer.poll(timeout=1.0)
        if msg is None:
            continue
        consumer.commit(message=msg, asynchronous=False)
        assert filled.committed() == msg.offset() + 1
        done += 1
    consumer.close()


def test_a_callback_is_told_of_commits(filled: Place) -> None:
    told = []

    def commit_completed(err: Any, partitions: Any) -> None:
        assert err is None, err
        told.extend((p.topic, p.offset) for p in partitions if p.offset >= 0)

    config = filled.consumer_config(enable_auto_commit=False)
    consumer = filled.kafka.Consumer({**config, "on_commit": commit_completed})
    consumer.subscribe([filled.topic])
    while filled.running() and not told:
        msg = consumer.poll(timeout=1.0)
        if msg is not None and msg.offset() == 0:
            consumer.commit(msg)
    consumer.close()
    assert told[0] == (filled.topic, 1)


def test_store_offsets_after_processing(filled: Place) -> None:
    c = filled.kafka.Consumer(filled.consumer_config(enable_auto_offset_store=False, auto_commit_interval_ms=100))
    c.subscribe([filled.topic])
    done = 0
    while filled.running() and done < 3:
        msg = c.poll(1.0)
        if msg is None:
            continue
        done += 1
        if done < 3:
            c.store_offsets(message=msg)
    c.close()
    assert filled.committed() == 2


def test_start_where_the_assignment_callback_says(filled: Place) -> None:
    def my_on_assign(consumer: Any, partitions: Any) -> None:
        for p in partitions:
            p.offset = 3
        consumer.assign(partitions)

    c = filled.kafka.Consumer(filled.consumer_config())
    c.subscribe([filled.topic], on_assign=my_on_assign)
    msg = None
    while filled.running() and msg is None:
        msg = c.poll(1.0)
    assert msg.offset() == 3
    c.close()


def test_consume_in_batches_within_a_context(filled: Place) -> None:
    seen = []
    with filled.kafka.Consumer(filled.consumer_config()) as consumer:
        consumer.subscribe([filled.topic])
        while filled.running() and len(seen) < COUNT:
            seen += [m.value() for m in consumer.consume(num_messages=COUNT, timeout=1.0) if not m.error()]
    assert len(seen) == COUNT
    with pytest.raises(RuntimeError):
        consumer.poll(0)


def test_seek_pause_resume_and_look(filled: Place) -> None:
    c = filled.kafka.Consumer(filled.consumer_config(enable_auto_commit=False))
    partition = filled.kafka.TopicPartition(filled.topic, 0)
    c.subscribe([filled.topic])
    msg = None
    while filled.running() and msg is None:
        msg = c.poll(1.0)
    assert c.get_watermark_offsets(partition) == (0, COUNT)
    assert c.assignment() == [partition]
    c.seek(filled.kafka.TopicPartition(filled.topic, 0, 4))
    c.pause(c.assignment())
    c.resume(c.assignment())
    msg = None
    while filled.running() and msg is None:
        msg = c.poll(1.0)
    assert (msg.offset(), c.position([partition])[0].offset) == (4, 5)
    assert filled.topic in c.list_topics(timeout=GUARD_S).topics
    c.close()


def test_errors_and_statistics_reach_their_callbacks(place: Place) -> None:
    told: list[str] = []
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "statistics.interval.ms": 100}
    producer = place.kafka.Producer(
        {**config, "error_cb": lambda error: told.append(error.name()), "stats_cb": lambda _: told.append("stats")}
    )
    while place.running() and not {"_TRANSPORT", "stats"} <= set(told):
        producer.poll(0.1)


def test_consume_transform_produce_in_a_transaction(filled: Place) -> None:
    producer = filled.kafka.Producer({"bootstrap.servers": filled.bootstrap, "transactional.id": f"eos {filled.topic}"})
    consumer = filled.kafka.Consumer(filled.consumer_config(enable_auto_commit=False))
    consumer.subscribe([filled.topic])
    producer.init_transactions(GUARD_S)
    producer.begin_transaction()
    done = 0
    while filled.running() and done < 3:
        msg = consumer.poll(timeout=1.0)
        if msg is None:
            continue
        done += 1
        producer.poll(0)
        producer.produce(filled.topic, key="result", value=msg.value())
    if filled.more:
        with pytest.raises(dropin.NotSupportedError):
            consumer.consumer_group_metadata()
        producer.abort_transaction()
        consumer.close()
        return
    producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), consumer.consumer_group_metadata())
    producer.commit_transaction()
    consumer.close()
    assert filled.committed() == 3


def test_serializers_by_themselves(place: Place) -> None:
    serialize, deserialize = StringSerializer("utf_8"), StringDeserializer("utf_8")
    context = SerializationContext(place.topic, MessageField.VALUE)
    producer = place.kafka.Producer({"bootstrap.servers": place.bootstrap})
    producer.produce(topic=place.topic, value=serialize("grün", context))
    producer.flush(GUARD_S)
    consumer = place.kafka.Consumer(place.consumer_config())
    consumer.subscribe([place.topic])
    msg = None
    while place.running() and msg is None:
        msg = consumer.poll(1.0)
    assert deserialize(msg.value(), SerializationContext(msg.topic(), MessageField.VALUE, msg.headers())) == "grün"
    if place.more:
        consumer.dead_letter(msg, "still there byte for byte")
        names = TopicNames(place.more["rocketshim.namespace"])
        dead = confluent_kafka.TopicPartition(names.dead_letter(place.group), 0)
        assert consumer.get_watermark_offsets(dead, timeout=GUARD_S) == (0, 1)
    consumer.close()


def test_asyncio_by_threads(filled: Place) -> None:
    import asyncio

    async def consume() -> list[Any]:
        consumer = filled.kafka.Consumer(filled.consumer_config(enable_auto_commit=False))
        consumer.subscribe([filled.topic])
        seen: list[Any] = []
        while filled.running() and len(seen) < COUNT:
            msg = await asyncio.to_thread(consumer.poll, 1.0)
            if msg is not None and msg.error() is None:
                seen.append(msg.value())
                if filled.more:
                    await asyncio.to_thread(consumer.reconsume_later, msg, "later")
        await asyncio.to_thread(consumer.close)
        return seen

    assert asyncio.run(consume()) == [b"%d" % number for number in range(COUNT)]
