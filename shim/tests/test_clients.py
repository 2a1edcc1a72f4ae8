"""How Kafka clients end: producers with their threads, consumers in time."""

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.clients import leave, let_go
from rocketshim.testing import InMemoryKafka

GUARD_S = 60.0


class Client:
    """A consumer that says in which order it is called, and may never come back."""

    def __init__(self, *, silent: bool = False) -> None:
        self.calls: list[str] = []
        self.answered = threading.Event()
        if not silent:
            self.answered.set()

    def commit(self) -> None:
        self.calls.append("commit")
        assert self.answered.wait(GUARD_S)

    def close(self) -> None:
        self.calls.append("close")


def test_a_consumer_says_its_last_words_and_closes() -> None:
    client = Client()
    assert leave(client, GUARD_S, client.commit)  # type: ignore[arg-type]
    assert client.calls == ["commit", "close"]


def test_what_the_last_words_raise_is_raised_by_a_consumer_that_is_closed() -> None:
    client = Client()

    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))

    with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
        leave(client, GUARD_S, fail)  # type: ignore[arg-type]
    assert client.calls == ["close"]


def test_a_consumer_whom_nobody_answers_is_left_behind_and_closes_when_it_can() -> None:
    client = Client(silent=True)
    before = threading.active_count()
    assert not leave(client, 0.01, client.commit)  # type: ignore[arg-type]
    (thread,) = [each for each in threading.enumerate() if each.name == "rocketshim-leaving"]
    assert thread.daemon
    assert threading.active_count() == before + 1
    client.answered.set()
    thread.join(GUARD_S)
    assert client.calls == ["commit", "close"]


def test_a_producer_that_is_let_go_gives_up_what_it_holds_reports_it_and_closes() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("orders")
    kafka.hold_sends()
    producer = kafka.producer({})
    reports: list[KafkaError | None] = []
    producer.produce("orders", b"", on_delivery=lambda error, _: reports.append(error))
    let_go(producer, 1.0)
    assert [error is None for error in reports] == [False]
    assert producer._is_gone
    assert kafka.records("orders") == []


def test_a_producer_whose_reports_do_not_come_is_not_waited_for() -> None:
    class Silent:
        closed = False

        def purge(self) -> None: ...

        def flush(self, timeout: float) -> int:
            del timeout
            return 1

        def close(self) -> bool:
            self.closed = True
            return True

        def __len__(self) -> int:
            return 1

    producer = Silent()
    let_go(producer, 0.0)  # type: ignore[arg-type]
    assert not producer.closed
