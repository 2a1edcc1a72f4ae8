"""What a send-back makes of a message, its error and its settings; storing is the broker's tests'."""

import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from rocketshim.core.user_values import class_name
from rocketshim.dropin.send_back import DropinSendBack, HopStore, with_credentials
from rocketshim.errors import ClosedError, MessageError
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, TopicNames, decode
from rocketshim_topics.hops import OutgoingRecord

NAMES = TopicNames()
DAY_MS = 86_400_000
GUARD_S = 60.0


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
    sends.reconsume_later(message(), error, level=None, delay_ms=None)
    (record,) = kept.records
    envelope = decode(record.headers, trusted=True)
    assert (envelope.fail_class, envelope.fail_text) == said
    assert (envelope.real_topic, envelope.reconsume_times, envelope.origin_message_id, record.partition) == (
        "%RETRY%g", 1, "orders/0/7", 2,
    )  # fmt: skip


def test_the_limit_and_a_negative_level_are_dead_letters() -> None:
    for limit, level in ((0, None), (16, -1)):
        sends, kept = send_back(limit)
        sends.reconsume_later(message(), "x", level=level, delay_ms=None)
        assert [record.topic for record in kept.records] == [NAMES.dead_letter("g")]


def test_a_retry_record_that_breaks_the_wire_format_is_parked() -> None:
    sends, kept = send_back()
    sends.reconsume_later(
        message(topic=NAMES.retry("g"), headers=[("RECONSUME_TIMES", b"x")]), "x", level=None, delay_ms=None
    )
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
        sends.reconsume_later(message(topic=NAMES.retry("g"), headers=bad), "x", level=None, delay_ms=None)
        assert [record.topic for record in kept.records] == [topic]


@pytest.mark.parametrize("changed", ["set_value", "set_key"])
def test_a_message_whose_content_was_replaced_is_refused(changed: str) -> None:
    sends, kept = send_back()
    decoded = message(key=b"k")
    getattr(decoded, changed)({"decoded": True})
    with pytest.raises(MessageError, match="replaced by dict"):
        sends.dead_letter(decoded, "x")
    assert kept.records == []


@pytest.mark.parametrize("call", ["retry", "kill"])
def test_an_exception_that_cannot_be_read_is_written_with_a_short_text(hostile: BaseException, call: str) -> None:
    sends, kept = send_back()
    if call == "retry":
        sends.reconsume_later(message(), hostile, level=None, delay_ms=None)
    else:
        sends.dead_letter(message(), hostile)
    envelope = decode(kept.records[0].headers, trusted=True)
    assert envelope.fail_class == class_name(hostile)
    assert len((envelope.fail_text or "").encode()) <= 1_024


OUT = OutgoingRecord("t", None, b"k", b"v", [("HOP_ID", b"x")])


@pytest.fixture
def kafka() -> InMemoryKafka:
    made = InMemoryKafka()
    made.create_topic("t", 1)
    return made


@pytest.fixture
def store(kafka: InMemoryKafka) -> Iterator[HopStore]:
    made = HopStore(lambda: kafka.producer({"enable.idempotence": True}), GUARD_S, NAMES)
    yield made
    made.close()


def test_a_hop_is_stored_when_the_call_returns(kafka: InMemoryKafka, store: HopStore) -> None:
    store.store(OUT)
    assert [record.value() for record in kafka.records("t")] == [b"v"]


def test_a_hop_that_is_reported_without_an_offset_is_stored_again(kafka: InMemoryKafka, store: HopStore) -> None:
    kafka.fail_produce(None, topic="t", count=2, stored=True)
    store.store(OUT)
    found = kafka.records("t")
    assert len(found) == 3
    assert {(record.key(), record.value(), record.headers()[0]) for record in found} == {(b"k", b"v", ("HOP_ID", b"x"))}


@pytest.mark.parametrize("ahead_ms", [7_200_000, 86_400_000])
def test_with_a_clock_that_is_ahead_a_hop_is_stored_at_the_brokers_time(
    kafka: InMemoryKafka, store: HopStore, caplog: pytest.LogCaptureFixture, ahead_ms: int
) -> None:
    kafka.create_topic(NAMES.schedule, 32, config={"message.timestamp.type": "LogAppendTime"})
    kafka.set_leader_clock(-ahead_ms)
    store.store(OUT)
    store.store(OUT)
    for record in kafka.records("t"):
        assert abs(kafka.clock.wall_ms() - ahead_ms - record.timestamp()[1]) < 60_000
    assert len(kafka.records(NAMES.schedule)) == 1, "one probe shows the brokers' time"
    logged = [getattr(record, "event", "") for record in caplog.records]
    assert logged.count("dropin.clock-differs") == 1


def test_without_a_schedule_topic_the_error_of_a_refused_time_is_raised(kafka: InMemoryKafka, store: HopStore) -> None:
    kafka.set_leader_clock(-86_400_000)
    with pytest.raises(KafkaException, match="INVALID_TIMESTAMP"):
        store.store(OUT)


def test_a_hop_that_is_never_confirmed_is_not_stored(kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.kafka.record_sender._AGAIN_S", 2 * GUARD_S)  # after the time of the store
    kafka.fail_produce(None, topic="t", count=1_000)
    store = HopStore(lambda: kafka.producer({"enable.idempotence": True}), GUARD_S, NAMES)
    with pytest.raises(KafkaException, match="without an offset"):
        store.store(OUT)
    store.close()


def test_nothing_is_sent_after_close(kafka: InMemoryKafka, store: HopStore) -> None:
    store.close()
    with pytest.raises(ClosedError, match="nothing was sent"):
        store.store(OUT)
    assert kafka.records("t") == []


def test_credentials_reach_a_producer_that_is_made_later_and_one_that_exists() -> None:
    seen: list[tuple[str, str]] = []

    class Client:
        def set_sasl_credentials(self, username: str, password: str) -> None:
            seen.append((username, password))

        def list_topics(self, *, timeout: float) -> None:
            del timeout

        def poll(self, timeout: float) -> None:
            threading.Event().wait(timeout)

        def flush(self, timeout: float) -> None:
            del timeout

        def purge(self) -> None: ...

        def __len__(self) -> int:
            return 0

    store = HopStore(Client, 1.0, NAMES)  # type: ignore[arg-type]
    store.set_sasl_credentials("a", "1")
    assert seen == []
    store.list_topics(timeout=1)
    store.set_sasl_credentials("b", "2")
    with_credentials(Client(), store.credentials)
    store.close()
    assert seen == [("a", "1"), ("b", "2"), ("b", "2")]


def test_credentials_may_be_set_while_a_producer_is_being_made() -> None:
    credentials = deque([("old", "1")], maxlen=1)
    seen: list[tuple[str, str]] = []

    class Client:
        def set_sasl_credentials(self, username: str, password: str) -> None:
            seen.append((username, password))
            credentials.append(("new", "2"))  # by another thread, at this moment

    with_credentials(Client(), credentials)
    assert seen == [("old", "1")]


def test_a_delay_of_more_than_40_days_is_shortened_and_logged_as_shortened(caplog: pytest.LogCaptureFixture) -> None:
    sends, kept = send_back()
    sends.reconsume_later(message(headers=[("DELAY_MS", b"mine")]), "x", level=None, delay_ms=60 * DAY_MS)
    assert dict(kept.records[0].headers)["DELAY_MS"] == b"%d" % (40 * DAY_MS)
    (record,) = caplog.records
    assert "next attempt in 40 d, at" in record.message
    assert record.delay_ms == 40 * DAY_MS  # type: ignore[attr-defined]


def test_a_message_that_was_sent_back_is_logged_with_its_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    sends, _ = send_back()
    with pytest.raises(ConnectionError) as caught:
        raise ConnectionError("the bank does not answer")
    sends.reconsume_later(message(), caught.value, level=None, delay_ms=None)
    sends.dead_letter(message(), "nobody wants it")
    first, second = caplog.records
    assert (first.levelname, first.event) == ("WARNING", "dropin.listener-failed")  # type: ignore[attr-defined]
    assert "attempt 1 of 17 of message orders/0/7 in group g failed: ConnectionError" in first.message
    assert 'raise ConnectionError("the bank does not answer")' in first.message
    assert (second.levelname, second.event) == ("ERROR", "dropin.message-dead")  # type: ignore[attr-defined]
