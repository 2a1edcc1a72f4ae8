"""One producer and its report thread: each record gets its result, whatever the producer does."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.errors import ClosedError
from rocketshim.kafka.record_sender import RecordSender
from rocketshim.kafka.reports import UNCONFIRMED
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.hops import OutgoingRecord

OUT = OutgoingRecord("t", None, b"k", b"v", [("HOP_ID", b"x")])
GUARD_S = 30.0


class Notes:
    """What the sender logs."""

    def __init__(self) -> None:
        self.unconfirmed: list[OutgoingRecord] = []
        self.errors: list[BaseException] = []

    def sender(self, make: Callable[[], Any]) -> RecordSender:
        return RecordSender(
            make,
            thread_name="sender-under-test",
            closed_text="it is closed",
            on_unconfirmed=self.unconfirmed.append,
            on_error=self.errors.append,
        )


class Manual:
    """A producer that reports what the test says, in the report thread."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.due: list[Callable[[], None]] = []
        self.refuses: list[BaseException] = []
        self.raises: list[BaseException] = []
        self.polled = threading.Event()

    def produce(self, *record: Any, on_delivery: Any, timestamp: int, headers: Any) -> None:
        del record, timestamp, headers
        if self.refuses:
            raise self.refuses.pop(0)
        self.sent.append(on_delivery)

    def poll(self, timeout: float) -> None:
        del timeout
        self.polled.set()
        if self.raises:
            raise self.raises.pop(0)
        with suppress(IndexError):  # another thread may take the last one
            self.due.pop(0)()
            self.sent.pop(0)
        threading.Event().wait(0.001)

    flush = poll

    def purge(self) -> None:
        for each in self.sent:
            self.due.append(lambda each=each: each(KafkaError(KafkaError._PURGE_QUEUE), None))  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self.sent)


@pytest.fixture
def kafka() -> InMemoryKafka:
    made = InMemoryKafka()
    made.create_topic("t", 1)
    return made


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def sender(kafka: InMemoryKafka, notes: Notes) -> Iterator[RecordSender]:
    made = notes.sender(lambda: kafka.producer({"enable.idempotence": True}))
    yield made
    made.close(monotonic() + GUARD_S)


def send(sender: RecordSender, *, room_s: float = 0.0, again_s: float = GUARD_S) -> "Future[KafkaError | None]":
    future: Future[KafkaError | None] = Future()
    now_s = monotonic()
    sender.send(
        OUT, lambda error, _: future.set_result(error), room_until_s=now_s + room_s, again_until_s=now_s + again_s
    )
    return future


def test_a_record_is_reported_as_stored(kafka: InMemoryKafka, sender: RecordSender) -> None:
    assert send(sender).result(GUARD_S) is None
    assert [record.headers() for record in kafka.records("t")] == [[("HOP_ID", b"x")]]
    assert sender.flush(monotonic() + GUARD_S) == 0


def test_a_record_without_an_offset_is_sent_again(kafka: InMemoryKafka, sender: RecordSender, notes: Notes) -> None:
    kafka.fail_produce(None, topic="t", count=2, stored=True)
    assert send(sender).result(GUARD_S) is None
    assert len(kafka.records("t")) == 3
    assert notes.unconfirmed == [OUT, OUT]


def test_a_record_without_an_offset_is_given_up_in_the_end(kafka: InMemoryKafka, sender: RecordSender) -> None:
    kafka.fail_produce(None, topic="t", count=1_000)
    assert send(sender, again_s=0.15).result(GUARD_S) is UNCONFIRMED


def test_a_full_queue_is_waited_for_as_long_as_asked(notes: Notes) -> None:
    producer = Manual()
    sender = notes.sender(lambda: producer)
    producer.refuses = [BufferError()]
    with pytest.raises(BufferError):
        send(sender)
    producer.refuses = [BufferError(), BufferError()]
    future = send(sender, room_s=GUARD_S)
    sender.close(monotonic())
    assert future.result(GUARD_S) is not None, "closed without a report: it may or may not be stored"


class Full(Manual):
    """A producer whose queue is full until it is purged."""

    def __init__(self) -> None:
        super().__init__()
        self.was_full = threading.Event()

    def produce(self, *record: Any, on_delivery: Any, timestamp: int, headers: Any) -> None:
        del record, on_delivery, timestamp, headers
        self.was_full.set()
        raise BufferError


def test_close_ends_a_send_that_waits_for_room(notes: Notes) -> None:
    producer = Full()
    sender = notes.sender(lambda: producer)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(send, sender, room_s=GUARD_S)
        assert producer.was_full.wait(GUARD_S)
        sender.close(monotonic())
        with pytest.raises(ClosedError, match="it is closed"):
            waiting.result(GUARD_S)


class Interrupted(Manual):
    """A producer whose caller presses Ctrl-C while it waits for the reports, once."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupts: list[BaseException] = [KeyboardInterrupt()]

    def flush(self, timeout: float) -> None:
        if self.interrupts:
            raise self.interrupts.pop()
        super().poll(timeout)


def test_ctrl_c_while_close_waits_gives_the_records_a_result_and_ends_the_thread(notes: Notes) -> None:
    producer = Interrupted()
    sender = notes.sender(lambda: producer)
    result = send(sender)
    (thread,) = [each for each in threading.enumerate() if each.name == "sender-under-test"]
    with pytest.raises(KeyboardInterrupt):
        sender.close(monotonic() + GUARD_S)
    assert result.result(GUARD_S) is not None
    sender.close(monotonic() + GUARD_S)
    thread.join(GUARD_S)
    assert not thread.is_alive()


def test_a_signal_handler_may_close_while_the_producer_is_made(notes: Notes) -> None:
    def interrupted() -> Any:
        made.close(monotonic())  # as a signal handler does
        return Manual()

    made = notes.sender(interrupted)
    with pytest.raises(ClosedError, match="it is closed"):
        send(made)
    assert "sender-under-test" not in {each.name for each in threading.enumerate()}


def test_flush_and_close_in_a_callback_leave_the_client_alone_and_do_not_wait(notes: Notes) -> None:
    """A real client would end the process at the next callback."""
    producer = Manual()
    sender = notes.sender(lambda: producer)
    flush, in_callback, calls, left = producer.flush, [False], [], []

    def noted(timeout: float) -> None:
        calls.append(in_callback[0])
        flush(timeout)

    def ends(error: object, record: object) -> None:
        del error, record
        in_callback[0] = True
        left.append(sender.flush(monotonic() + GUARD_S))
        sender.close(monotonic() + GUARD_S)
        in_callback[0] = False

    producer.flush = noted  # type: ignore[method-assign]
    sender.send(OUT, ends, room_until_s=0, again_until_s=0)
    other = send(sender)
    for each in list(producer.sent):
        producer.due.append(lambda each=each: each(KafkaError(KafkaError._MSG_TIMED_OUT), None))  # type: ignore[misc]
    assert other.result(GUARD_S) is not None
    assert left == [2]
    assert not any(calls)


def test_a_callback_of_a_record_that_cannot_be_sent_again_may_close_the_sender(notes: Notes) -> None:
    producer, result = Manual(), Future[KafkaError | None]()
    sender = notes.sender(lambda: producer)

    def ends(error: KafkaError | None, record: object) -> None:
        del record
        sender.close(monotonic() + GUARD_S)
        result.set_result(error)

    sender.send(OUT, ends, room_until_s=0, again_until_s=monotonic() + GUARD_S)
    without_offset = SimpleNamespace(offset=lambda: None, topic=lambda: "t", partition=lambda: 0)
    producer.refuses.append(KafkaException(KafkaError(KafkaError._QUEUE_FULL)))
    producer.due.append(lambda: producer.sent[0](None, without_offset))
    error = result.result(GUARD_S)
    assert error is not None
    assert error.code() == KafkaError._QUEUE_FULL
    assert notes.errors == []


class Slow(Manual):
    """A producer that takes a record when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.was_called = threading.Event()
        self.may_go = threading.Event()

    def produce(self, *record: Any, on_delivery: Any, timestamp: int, headers: Any) -> None:
        self.was_called.set()
        assert self.may_go.wait(GUARD_S)
        super().produce(*record, on_delivery=on_delivery, timestamp=timestamp, headers=headers)


def test_a_record_that_the_client_takes_after_close_has_a_result(notes: Notes) -> None:
    producer = Slow()
    sender = notes.sender(lambda: producer)
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(send, sender)
        assert producer.was_called.wait(GUARD_S)
        sender.close(monotonic())
        producer.may_go.set()
        assert sending.result(GUARD_S).result(GUARD_S) is not None


def test_a_refused_call_is_raised_and_the_callback_not_called(notes: Notes) -> None:
    producer = Manual()
    sender = notes.sender(lambda: producer)
    producer.refuses = [KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))]
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        send(sender)
    assert sender.producer is producer
    sender.close(monotonic())


@pytest.mark.parametrize("where", ["call", "report", "poll"])
def test_after_a_fatal_error_the_next_record_goes_through_another_producer(notes: Notes, where: str) -> None:
    made: list[Manual] = []

    def make() -> Manual:
        made.append(Manual())
        return made[-1]

    sender = notes.sender(make)
    waiting = send(sender)
    first, fatal = made[0], KafkaError(KafkaError._FATAL, fatal=True)
    if where == "call":
        first.refuses = [KafkaException(fatal)]
        with pytest.raises(KafkaException):
            send(sender)
    elif where == "poll":
        first.raises = [KafkaException(fatal)]
        while not notes.errors:
            first.polled.clear()
            assert first.polled.wait(GUARD_S)
    else:
        report = first.sent[0]
        first.due.append(lambda: report(fatal, None))
        failed = waiting.result(GUARD_S)
        assert failed is not None
        assert failed.fatal()
        waiting = Future()
        waiting.set_result(failed)
    later = send(sender)
    assert len(made) == 2
    for producer in made:
        for report in list(producer.sent):
            producer.due.append(lambda report=report: report(KafkaError(KafkaError._MSG_TIMED_OUT), None))  # type: ignore[misc]
    assert waiting.result(GUARD_S) is not None, "the former producer still reports what it had"
    assert later.result(GUARD_S) is not None
    sender.close(monotonic() + GUARD_S)


@pytest.mark.parametrize("has_stored", [False, True])
def test_records_of_a_producer_that_may_not_send_fail_for_that_reason(notes: Notes, *, has_stored: bool) -> None:
    """librdkafka purges them; after a success it is not certain that the broker has none of them."""
    producer = Manual()
    sender = notes.sender(lambda: producer)
    if has_stored:
        stored = send(sender)
        report = producer.sent[0]
        producer.due.append(lambda: report(None, SimpleNamespace(offset=lambda: 0)))
        assert stored.result(GUARD_S) is None
    waiting = send(sender)
    denial = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no id", fatal=True)
    producer.raises = [KafkaException(denial)]
    while not notes.errors:
        producer.polled.clear()
        assert producer.polled.wait(GUARD_S)
    producer.purge()
    failed = waiting.result(GUARD_S)
    assert failed is not None
    assert failed.code() == (KafkaError._PURGE_QUEUE if has_stored else KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    sender.close(monotonic() + GUARD_S)


def test_records_of_the_former_producer_count_until_they_have_their_result(notes: Notes) -> None:
    made: list[Manual] = []

    def make() -> Manual:
        made.append(Manual())
        return made[-1]

    sender = notes.sender(make)
    former = send(sender)
    made[0].refuses = [KafkaException(KafkaError(KafkaError._FATAL, fatal=True))]
    with pytest.raises(KafkaException):
        send(sender)
    later = send(sender)
    assert sender.outstanding == 2
    assert sender.flush(monotonic()) == 2
    sender.close(monotonic())
    assert former.result(GUARD_S) is not None
    assert later.result(GUARD_S) is not None


def test_an_error_of_a_callback_does_not_end_the_poll_thread(kafka: InMemoryKafka, notes: Notes) -> None:
    sender = notes.sender(lambda: kafka.producer({"enable.idempotence": True}))

    def raising(error: object, record: object) -> None:
        del error, record
        raise SystemExit

    sender.send(OUT, raising, room_until_s=0, again_until_s=0)
    assert send(sender).result(GUARD_S) is None
    assert [type(error) for error in notes.errors] == [SystemExit]
    sender.close(monotonic() + GUARD_S)


def test_nothing_is_sent_after_close(sender: RecordSender) -> None:
    send(sender).result(GUARD_S)
    sender.close(monotonic() + GUARD_S)
    sender.close(monotonic() + GUARD_S)
    with pytest.raises(ClosedError, match="it is closed"):
        send(sender)
    assert sender.producer is None


def test_a_sender_that_nobody_uses_any_more_leaves_no_thread(kafka: InMemoryKafka, notes: Notes) -> None:
    sender = notes.sender(lambda: kafka.producer({"enable.idempotence": True}))
    send(sender).result(GUARD_S)
    (thread,) = [each for each in threading.enumerate() if each.name == "sender-under-test"]
    gone = weakref.ref(sender)
    del sender
    gc.collect()
    assert gone() is None
    thread.join(GUARD_S)
    assert not thread.is_alive()
