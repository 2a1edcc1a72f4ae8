"""What a send-back makes of a message, its error and its settings; storing is the broker's tests'."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from rocketshim.clock import SystemClock
from rocketshim.core.user_values import class_name
from rocketshim.dropin.retry_side import DropinSendBack
from rocketshim.dropin.settings import ConsumerDropinSettings, with_credentials
from rocketshim.errors import ClosedError, MessageError, SendError, SendTimeoutError
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, Layout, TopicNames, decode

NAMES = TopicNames()
DAY_MS = 86_400_000
GUARD_MS = 60_000


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


Make = Callable[..., DropinSendBack]


@pytest.fixture
def kafka() -> InMemoryKafka:
    made = InMemoryKafka(SystemClock())
    layout = Layout(NAMES, DelayLevels.default())
    made.create_topics([*layout.shared(), *layout.for_group("g", with_log=False)])
    return made


@pytest.fixture
def make(kafka: InMemoryKafka) -> Iterator[Make]:
    """Makes send-backs with these settings."""
    with ExitStack() as ends:

        def make(limit: int = 16) -> DropinSendBack:
            settings = ConsumerDropinSettings(max_reconsume_times=limit, hop_timeout_ms=GUARD_MS)
            made = DropinSendBack(lambda: kafka.producer({"enable.idempotence": True}), settings, "g")
            ends.callback(made.close)
            return made

        yield make


def headers_of(record: Message) -> dict[str, Any]:
    return dict(record.headers() or ())


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
def test_the_error_is_written_into_the_retry_record(
    kafka: InMemoryKafka, make: Make, error: Any, said: tuple[str, str]
) -> None:
    make().reconsume_later(message(), error, level=None, delay_ms=None)
    (record,) = kafka.records(NAMES.schedule)
    envelope = decode(record.headers(), trusted=True)
    assert (envelope.fail_class, envelope.fail_text) == said
    assert (envelope.real_topic, envelope.reconsume_times, envelope.origin_message_id, record.partition()) == (
        "%RETRY%g", 1, "orders/0/7", 2,
    )  # fmt: skip


def test_the_limit_and_a_negative_level_are_dead_letters(kafka: InMemoryKafka, make: Make) -> None:
    for count, (limit, level) in enumerate(((0, None), (16, -1)), start=1):
        make(limit).reconsume_later(message(), "x", level=level, delay_ms=None)
        assert len(kafka.records(NAMES.dead_letter("g"))) == count


def test_a_retry_record_that_breaks_the_wire_format_is_parked(kafka: InMemoryKafka, make: Make) -> None:
    make().reconsume_later(
        message(topic=NAMES.retry("g"), headers=[("RECONSUME_TIMES", b"x")]), "x", level=None, delay_ms=None
    )
    (record,) = kafka.records(NAMES.parked)
    assert headers_of(record)["PARK_REASON"] == b"bad-number:RECONSUME_TIMES"


def test_a_record_that_is_too_large_for_its_topic_is_stored_without_its_value(kafka: InMemoryKafka, make: Make) -> None:
    for bad, topic in (([("RECONSUME_TIMES", b"x")], NAMES.parked), (None, NAMES.dead_letter("g"))):
        kafka.fail_produce(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), topic=topic if bad else NAMES.schedule)
        make().reconsume_later(message(topic=NAMES.retry("g"), headers=bad), "x", level=None, delay_ms=None)
        assert [record.value() for record in kafka.records(topic)] == [None]


@pytest.mark.parametrize("changed", ["set_value", "set_key"])
def test_a_message_whose_content_was_replaced_is_refused(make: Make, changed: str) -> None:
    decoded = message(key=b"k")
    getattr(decoded, changed)({"decoded": True})
    with pytest.raises(MessageError, match="replaced by dict"):
        make().dead_letter(decoded, "x")


@pytest.mark.parametrize("call", ["retry", "kill"])
def test_an_exception_that_cannot_be_read_is_written_with_a_short_text(
    kafka: InMemoryKafka, make: Make, hostile: BaseException, call: str
) -> None:
    if call == "retry":
        make().reconsume_later(message(), hostile, level=None, delay_ms=None)
    else:
        make().dead_letter(message(), hostile)
    (record,) = kafka.records(NAMES.schedule if call == "retry" else NAMES.dead_letter("g"))
    envelope = decode(record.headers(), trusted=True)
    assert envelope.fail_class == class_name(hostile)
    assert len((envelope.fail_text or "").encode()) <= 1_024


def dead_letters(kafka: InMemoryKafka) -> list[Message]:
    return kafka.records(NAMES.dead_letter("g"))


def test_a_hop_is_stored_when_the_call_returns(kafka: InMemoryKafka, make: Make) -> None:
    make().dead_letter(message(), "x")
    assert [record.value() for record in dead_letters(kafka)] == [b"x"]


def test_a_hop_that_is_reported_without_an_offset_is_stored_again(kafka: InMemoryKafka, make: Make) -> None:
    kafka.fail_produce(None, topic=NAMES.dead_letter("g"), count=2, stored=True)
    make().dead_letter(message(key=b"k"), "x")
    found = dead_letters(kafka)
    assert len(found) == 3
    assert {(record.key(), record.value(), headers_of(record)["HOP_ID"]) for record in found} == {
        (b"k", b"x", headers_of(found[0])["HOP_ID"])
    }


@pytest.mark.parametrize("ahead_ms", [7_200_000, 86_400_000])
def test_with_a_clock_that_is_ahead_a_hop_is_stored_at_the_brokers_time(
    kafka: InMemoryKafka, make: Make, caplog: pytest.LogCaptureFixture, ahead_ms: int
) -> None:
    kafka.set_leader_clock(-ahead_ms)
    sends = make()
    sends.dead_letter(message(), "x")
    sends.dead_letter(message(), "x")
    for record in dead_letters(kafka):
        assert abs(kafka.clock.wall_ms() - ahead_ms - record.timestamp()[1]) < 60_000
    assert len(kafka.records(NAMES.schedule)) == 1, "one probe shows the brokers' time"
    logged = [getattr(record, "event", "") for record in caplog.records]
    assert logged.count("dropin.clock-differs") == 1


def test_without_a_schedule_topic_the_error_of_a_refused_time_is_raised(kafka: InMemoryKafka, make: Make) -> None:
    kafka.delete_topic(NAMES.schedule)
    kafka.set_leader_clock(-86_400_000)
    with pytest.raises(SendError, match="INVALID_TIMESTAMP"):
        make().dead_letter(message(), "x")


def test_a_hop_that_is_never_confirmed_is_not_stored(
    kafka: InMemoryKafka, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.kafka.record_sender._AGAIN_S", 2 * GUARD_MS)  # after the time of the send-back
    kafka.fail_produce(None, topic=NAMES.dead_letter("g"), count=1_000)
    with pytest.raises(SendTimeoutError, match="without an offset"):
        make().dead_letter(message(), "x")


def test_nothing_is_sent_after_close(kafka: InMemoryKafka, make: Make) -> None:
    sends = make()
    sends.close()
    with pytest.raises(ClosedError, match="nothing was sent"):
        sends.dead_letter(message(), "x")
    assert dead_letters(kafka) == []


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

    sends = DropinSendBack(Client, ConsumerDropinSettings(), "g")  # type: ignore[arg-type]
    sends.set_sasl_credentials("a", "1")
    assert seen == []
    sends._sender.list_topics(timeout=1)
    sends.set_sasl_credentials("b", "2")
    with_credentials(Client(), sends.credentials)
    sends.close()
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


def test_a_delay_of_more_than_40_days_is_shortened_and_logged_as_shortened(
    kafka: InMemoryKafka, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make().reconsume_later(message(headers=[("DELAY_MS", b"mine")]), "x", level=None, delay_ms=60 * DAY_MS)
    assert headers_of(kafka.records(NAMES.schedule)[0])["DELAY_MS"] == b"%d" % (40 * DAY_MS)
    (record,) = caplog.records
    assert "next attempt in 40 d, at" in record.message
    assert record.delay_ms == 40 * DAY_MS  # type: ignore[attr-defined]


def test_a_message_that_was_sent_back_is_logged_with_its_stack_trace(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    sends = make()
    with pytest.raises(ConnectionError) as caught:
        raise ConnectionError("the bank does not answer")
    sends.reconsume_later(message(), caught.value, level=None, delay_ms=None)
    sends.dead_letter(message(), "nobody wants it")
    first, second = caplog.records
    assert (first.levelname, first.event) == ("WARNING", "dropin.listener-failed")  # type: ignore[attr-defined]
    assert "attempt 1 of 17 of message orders/0/7 in group g failed: ConnectionError" in first.message
    assert 'raise ConnectionError("the bank does not answer")' in first.message
    assert (second.levelname, second.event) == ("ERROR", "dropin.message-dead")  # type: ignore[attr-defined]
