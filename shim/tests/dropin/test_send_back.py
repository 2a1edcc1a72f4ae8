"""What a send-back makes of a message, its error and its settings; storing is the broker's tests'."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from rocketshim.consumer.outcome import class_name
from rocketshim.dropin.send_back import DropinSendBack, HopStore, _serve
from rocketshim.errors import MessageError
from rocketshim_topics import DelayLevels, TopicNames, decode
from rocketshim_topics.hops import OutgoingRecord

NAMES = TopicNames()


class Kept:
    """A store that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []

    def list_topics(self, *, timeout: float) -> Any:
        del timeout
        return SimpleNamespace(topics={NAMES.schedule: SimpleNamespace(partitions=dict.fromkeys(range(32)))})

    def store(self, out: OutgoingRecord) -> None:
        self.records.append(out)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


def send_back(limit: int = 16) -> tuple[DropinSendBack, Kept]:
    kept = Kept()
    levels = DelayLevels.default()
    made = DropinSendBack(kept, names=NAMES, levels=levels, group="g", limit=limit, timeout_s=1)  # type: ignore[arg-type]
    return made, kept


def message(**more: Any) -> Message:
    return Message(**{"topic": "orders", "partition": 0, "offset": 7, "value": b"x", "timestamp": (1, 5), **more})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad"), ("ValueError", "bad")),
        ("busy", ("ReconsumeLater", "busy")),
        (None, ("ReconsumeLater", "the consumer asked for it")),
        (UnprintableError(), ("UnprintableError", "(str() of a UnprintableError raised OSError)")),
    ],
)
def test_the_error_is_written_into_the_retry_record(error: Any, said: tuple[str, str]) -> None:
    sends, kept = send_back()
    sends.retry(message(), error, level=None, delay_ms=None)
    (record,) = kept.records
    envelope = decode(record.headers, trusted=True)
    assert (envelope.fail_class, envelope.fail_text) == said
    assert (envelope.real_topic, envelope.reconsume_times, envelope.origin_message_id, record.partition) == (
        "%RETRY%g", 1, "orders/0/7", 2,
    )  # fmt: skip


def test_the_limit_and_a_negative_level_are_dead_letters() -> None:
    for limit, level in ((0, None), (16, -1)):
        sends, kept = send_back(limit)
        sends.retry(message(), "x", level=level, delay_ms=None)
        assert [record.topic for record in kept.records] == [NAMES.dead_letter("g")]


def test_a_retry_record_that_breaks_the_wire_format_is_parked() -> None:
    sends, kept = send_back()
    sends.retry(message(topic=NAMES.retry("g"), headers=[("RECONSUME_TIMES", b"x")]), "x", level=None, delay_ms=None)
    (record,) = kept.records
    assert (record.topic, dict(record.headers)["PARK_REASON"]) == (NAMES.parked, b"bad-number:RECONSUME_TIMES")


class Narrow(Kept):
    """A store whose parking topic accepts no values, and whose dead-letter topic accepts none either."""

    def store(self, out: OutgoingRecord) -> None:
        if out.value is not None:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        super().store(out)


def test_a_record_that_is_too_large_for_its_topic_is_stored_without_its_value() -> None:
    for bad, topic in (([("RECONSUME_TIMES", b"x")], NAMES.parked), (None, NAMES.dead_letter("g"))):
        kept: Any = Narrow()
        sends = DropinSendBack(kept, names=NAMES, levels=DelayLevels.default(), group="g", limit=16, timeout_s=1)
        sends.retry(message(topic=NAMES.retry("g"), headers=bad), "x", level=None, delay_ms=None)
        assert [record.topic for record in kept.records] == [topic]


@pytest.mark.parametrize("changed", ["set_value", "set_key"])
def test_a_message_whose_content_was_replaced_is_refused(changed: str) -> None:
    sends, kept = send_back()
    decoded = message(key=b"k")
    getattr(decoded, changed)({"decoded": True})
    with pytest.raises(MessageError, match="replaced by dict"):
        sends.kill(decoded, "x")
    assert kept.records == []


def test_other_waiting_callers_get_their_reports_when_a_producer_is_abandoned() -> None:
    store = HopStore({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "message.timeout.ms": 500}, 120)
    failed: list[KafkaException] = []

    def wait() -> None:
        with pytest.raises(KafkaException) as caught:
            store.store(OutgoingRecord("t", None, b"k", b"v", ()))
        failed.append(caught.value)

    thread = threading.Thread(target=wait)
    thread.start()
    while store._producer is None or len(store._producer) == 0:
        assert thread.is_alive()
    given_up = store._producer
    store._give_up_if_fatal(given_up, KafkaError(KafkaError._TIMED_OUT))
    assert store._producer is given_up
    store._give_up_if_fatal(given_up, KafkaError(KafkaError._FATAL, fatal=True))
    assert store._producer is None
    thread.join(60)
    assert [error.args[0].code() for error in failed] == [KafkaError._MSG_TIMED_OUT]


@pytest.mark.usefixtures("broken_logging")
@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._FATAL, fatal=True)), SystemExit(), OSError()])
def test_reports_are_processed_after_the_producer_has_raised_an_error(error: BaseException) -> None:
    class Failing:
        polls = 0
        flushed: float | None = None

        def poll(self, _: float) -> None:
            self.polls += 1
            if self.polls == 1:
                raise error
            over.set()

        def flush(self, timeout: float) -> None:
            self.flushed = timeout

    over, producer = threading.Event(), Failing()
    _serve(producer, over, 7.0)  # type: ignore[arg-type]
    assert (producer.polls, producer.flushed) == (2, 7.0)


@pytest.mark.parametrize("call", ["retry", "kill"])
def test_an_exception_that_cannot_be_read_is_written_with_a_short_text(hostile: BaseException, call: str) -> None:
    sends, kept = send_back()
    if call == "retry":
        sends.retry(message(), hostile, level=None, delay_ms=None)
    else:
        sends.kill(message(), hostile)
    envelope = decode(kept.records[0].headers, trusted=True)
    assert envelope.fail_class == class_name(hostile)
    assert len((envelope.fail_text or "").encode()) <= 1_024


class Duplicating:
    """A producer whose first sends are reported without an offset."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.sent: list[Any] = []

    def produce(self, *record: Any, on_delivery: Any, headers: Any) -> None:
        self.sent.append((*record, headers))
        offset = -1 if len(self.sent) <= self.count else 7
        on_delivery(None, Message(topic="t", partition=0, offset=offset))


@pytest.mark.parametrize(("count", "sent"), [(0, 1), (2, 3)])
def test_a_hop_that_is_reported_without_an_offset_is_stored_again(count: int, sent: int) -> None:
    store = HopStore({}, 10.0)
    producer: Any = Duplicating(count)
    store._producer = producer
    store.store(OutgoingRecord("t", None, b"k", b"v", (("HOP_ID", b"x"),)))
    assert len(producer.sent) == sent
    assert all(record == producer.sent[0] for record in producer.sent)


def test_a_hop_that_is_never_confirmed_is_not_stored() -> None:
    store = HopStore({}, -4.8)
    producer: Any = Duplicating(1_000)
    store._producer = producer
    with pytest.raises(KafkaException, match="without an offset"):
        store.store(OutgoingRecord("t", None, b"k", b"v", ()))
