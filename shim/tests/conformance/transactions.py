"""Scenarios: transactions, what their readers see, and who is fenced."""

from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from rocketshim.kafka.clients import ProducerClient
from rocketshim.testing.kafka_errors import Code

from .backend import (
    Backend,
    assigned,
    at,
    consumer_of,
    drive,
    equal,
    error_code,
    places,
    receive,
    refused,
    send,
    wait_for,
)

__all__: list[str] = []

TIMEOUT_S = 20.0


def _transactional(backend: Backend, name: str | None = None) -> ProducerClient:
    config: dict[str, Any] = {"transactional.id": name or backend.new_name(), "retry.backoff.ms": 1}
    producer = backend.producer(config)
    producer.init_transactions(TIMEOUT_S)
    return producer


def committed_is_seen_and_aborted_is_not(backend: Backend) -> None:
    """`read_committed` sees what was committed; markers and aborted records leave holes in the offsets."""
    topic = backend.new_topic()
    producer = _transactional(backend)
    for body, is_commit in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.produce(topic, body, None, 0)
        if is_commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the report")
            producer.abort_transaction(TIMEOUT_S)
    careful = consumer_of(backend, enable_partition_eof=True)
    wait_for(
        backend,
        lambda: careful.get_watermark_offsets(at(topic), timeout=TIMEOUT_S)[1] == 6 or None,
        "the last marker, which is written after the answer to the commit",
    )
    careful.assign([at(topic, 0, 0)])
    kept, too, end = receive(backend, careful, 3)
    equal([(kept.value(), kept.offset()), (too.value(), too.offset())], [(b"kept", 0), (b"kept too", 4)])
    equal((end.error().code(), end.offset()), (Code.PARTITION_EOF, 6))
    equal(careful.position([at(topic)])[0].offset, 6, "position, behind the last marker")
    careless = consumer_of(backend, isolation_level="read_uncommitted")
    careless.assign([at(topic, 0, 0)])
    equal([message.value() for message in receive(backend, careless, 3)], [b"kept", b"dropped", b"kept too"])


def an_open_transaction_holds_up_its_partition(backend: Backend) -> None:
    """Nothing behind its first record is there for `read_committed`, other producers' records included."""
    topic = backend.new_topic()
    producer = _transactional(backend)
    producer.begin_transaction()
    send(backend, topic, [b"open"], producer=producer)
    send(backend, topic, [b"plain"])
    careful = consumer_of(backend, enable_partition_eof=True)
    careful.assign([at(topic, 0, 0)])
    (end,) = receive(backend, careful, 1)
    equal((end.error().code(), end.offset()), (Code.PARTITION_EOF, 0))
    equal(careful.get_watermark_offsets(at(topic), timeout=10), (0, 0), "watermarks for read_committed")
    careless = consumer_of(backend, isolation_level="read_uncommitted")
    equal(careless.get_watermark_offsets(at(topic), timeout=10), (0, 2), "watermarks for read_uncommitted")
    producer.commit_transaction(TIMEOUT_S)
    messages = [message for message in receive(backend, careful, 3) if message.error() is None]
    equal([message.value() for message in messages], [b"open", b"plain"])


def offsets_go_with_the_transaction(backend: Backend) -> None:
    """They are committed with it, and dropped with it."""
    topic, group = backend.new_topic(), backend.new_name()
    send(backend, topic, [b"a", b"b"])
    consumer = consumer_of(backend, group_id=group)
    consumer.subscribe([topic])
    receive(backend, consumer, 2)
    producer = _transactional(backend)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([at(topic, 0, 1)], consumer.consumer_group_metadata(), TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)
    equal(consumer.committed([at(topic)], timeout=10)[0].offset, OFFSET_INVALID, "after the abort")
    equal(consumer.position([at(topic)])[0].offset, 2, "an abort does not rewind the consumer")
    producer.begin_transaction()
    producer.send_offsets_to_transaction([at(topic, 0, 2)], consumer.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    equal(consumer.committed([at(topic)], timeout=10)[0].offset, 2, "after the commit")


def metadata_of_a_former_generation_is_refused(backend: Backend) -> None:
    """Offsets in the name of a generation that is over must be aborted; those of nobody's are not even checked."""
    topic, group = backend.new_topic(2), backend.new_name()
    first, second = (
        consumer_of(
            backend,
            group_id=group,
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=30_000,
            heartbeat_interval_ms=200,
        )
        for _ in range(2)
    )
    first.subscribe([topic])
    drive(backend, [first], lambda: len(first.assignment()) == 2, "the first member has everything")
    old = first.consumer_group_metadata()
    second.subscribe([topic])
    drive(backend, [first, second], lambda: len(assigned(first)) == len(assigned(second)) == 1, "both have one")
    producer = _transactional(backend)
    producer.begin_transaction()
    error = refused(lambda: producer.send_offsets_to_transaction([at(topic, 0, 1)], old, TIMEOUT_S))
    equal(error.code(), KafkaError.ILLEGAL_GENERATION)
    equal((error.txn_requires_abort(), error.fatal()), (True, False), "abort is required")
    producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([at(topic, 0, 1)], first.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    equal(first.committed([at(topic)], timeout=10)[0].offset, 1)
    outsider = consumer_of(backend, group_id=group)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([at(topic, 0, 9)], outsider.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    equal(first.committed([at(topic)], timeout=10)[0].offset, 9, "offsets committed by nobody")


def a_second_owner_fences_the_first(backend: Backend) -> None:
    """What the first left open is aborted; its commit is `_FENCED`, fatal, and every call after it."""
    topic, name = backend.new_topic(), backend.new_name()
    first = _transactional(backend, name)
    first.begin_transaction()
    send(backend, topic, [b"zombie"], producer=first)
    second = _transactional(backend, name)
    second.begin_transaction()
    second.produce(topic, b"rightful", None, 0)
    second.commit_transaction(TIMEOUT_S)
    error = refused(lambda: first.commit_transaction(TIMEOUT_S))
    equal((error.code(), error.fatal()), (Code.FENCED, True))
    again = refused(lambda: first.abort_transaction(TIMEOUT_S))
    equal((again.code(), again.fatal()), (Code.FENCED, True), "abort after the fencing")
    equal(refused(first.begin_transaction).code(), Code.FENCED, "begin after the fencing")
    equal(refused(lambda: first.produce(topic, b"zombie", None, 0)).code(), Code.FATAL, "produce after the fencing")
    equal(refused(lambda: first.poll(backend.poll_s)).code(), Code.FENCED, "first poll after the fencing")
    equal(first.poll(0), 0, "second poll after the fencing")
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    equal([message.value() for message in receive(backend, consumer, 1)], [b"rightful"])


def a_fatal_error_comes_out_of_poll(backend: Backend) -> None:
    """A fenced producer notices when it sends: `poll` raises once, then the message is reported as purged."""
    topic, name = backend.new_topic(), backend.new_name()
    first = _transactional(backend, name)
    first.begin_transaction()
    _transactional(backend, name)
    codes: list[int | None] = []
    first.produce(topic, b"zombie", None, 0, on_delivery=lambda error, _: codes.append(error_code(error)))

    def raised() -> KafkaError | None:
        try:
            first.poll(backend.poll_s)
        except KafkaException as error:
            found: KafkaError = error.args[0]
            return found
        return None

    error = wait_for(backend, raised, "the exception of poll")
    equal((error.code(), error.fatal()), (Code.FENCED, True))
    wait_for(backend, lambda: first.poll(backend.poll_s) or None, "the report")
    equal(codes, [Code.PURGE_QUEUE])


def an_empty_transaction_ends_even_when_fenced(backend: Backend) -> None:
    """Nobody is asked: the coordinator has never heard of it."""
    name = backend.new_name()
    first = _transactional(backend, name)
    first.begin_transaction()
    _transactional(backend, name)
    first.commit_transaction(TIMEOUT_S)
    first.begin_transaction()
    first.abort_transaction(TIMEOUT_S)


def ending_a_transaction_serves_its_reports(backend: Backend) -> None:
    """Delivery callbacks run inside `commit_transaction` and `abort_transaction`."""
    topic = backend.new_topic()
    producer = _transactional(backend)
    codes: list[int | None] = []
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"x", None, 0, on_delivery=lambda error, _: codes.append(error_code(error)))
        end(TIMEOUT_S)
        equal(len(producer), 0, "messages left")
    equal(codes[0], None, "report of the committed message")
    equal(len(codes), 2, "reports")


def calls_out_of_turn_are_refused(backend: Backend) -> None:
    """`_STATE` for what does not fit; `_NOT_CONFIGURED` without an id."""
    topic = backend.new_topic()
    producer = backend.producer({"transactional.id": backend.new_name(), "retry.backoff.ms": 1})
    equal(refused(producer.begin_transaction).code(), Code.STATE, "begin before init")
    producer.init_transactions(TIMEOUT_S)
    equal(refused(lambda: producer.produce(topic, b"x")).code(), Code.STATE, "produce before begin")
    equal(refused(lambda: producer.commit_transaction(TIMEOUT_S)).code(), Code.STATE, "commit before begin")
    producer.begin_transaction()
    equal(refused(producer.begin_transaction).code(), Code.STATE, "begin twice")
    producer.commit_transaction(TIMEOUT_S)
    plain = backend.producer({})
    equal(refused(lambda: plain.init_transactions(TIMEOUT_S)).code(), Code.NOT_CONFIGURED)


def a_failed_message_forbids_the_commit(backend: Backend) -> None:
    """Everything but an abort raises its error; a new producer goes on (the old one lacks sequence numbers)."""
    topic, name = backend.new_topic(config={"max.message.bytes": "1000"}), backend.new_name()
    producer = _transactional(backend, name)
    producer.begin_transaction()
    codes: list[int | None] = []
    producer.produce(topic, b"x" * 2_000, None, 0, on_delivery=lambda error, _: codes.append(error_code(error)))
    wait_for(backend, lambda: producer.flush(backend.poll_s) == 0 or None, "the report")
    equal(codes, [KafkaError.MSG_SIZE_TOO_LARGE])
    for call in (lambda: producer.commit_transaction(TIMEOUT_S), producer.begin_transaction):
        error = refused(call)
        expected = (KafkaError.MSG_SIZE_TOO_LARGE, True, False)
        equal((error.code(), error.txn_requires_abort(), error.fatal()), expected)
    equal(refused(lambda: producer.produce(topic, b"x", None, 0)).code(), Code.STATE, "produce after the failure")
    producer.abort_transaction(TIMEOUT_S)
    successor = _transactional(backend, name)
    successor.begin_transaction()
    successor.produce(topic, b"fits", None, 0)
    successor.commit_transaction(TIMEOUT_S)
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    equal([message.value() for message in receive(backend, consumer, 1)], [b"fits"])


def an_oversized_message_is_lost_in_silence(backend: Backend) -> None:
    """Refused by `produce` it leaves the transaction usable: the commit succeeds without it."""
    topic = backend.new_topic()
    producer = backend.producer({"transactional.id": backend.new_name(), "message.max.bytes": 1_000})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"fits", None, 0)
    equal(refused(lambda: producer.produce(topic, b"x" * 1_000, None, 0)).code(), KafkaError.MSG_SIZE_TOO_LARGE)
    producer.commit_transaction(TIMEOUT_S)
    consumer = consumer_of(backend)
    consumer.assign([at(topic, 0, 0)])
    equal(places(receive(backend, consumer, 1)), [(0, 0)])
