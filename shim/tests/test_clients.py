"""How Kafka clients end: producers with their threads, consumers in time."""

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.clients import Parting, leave, let_go, unsubscribes
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
    assert leave(client, GUARD_S, client.commit) is Parting.LEFT  # type: ignore[arg-type]
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
    assert leave(client, 0.01, client.commit) is Parting.SILENT  # type: ignore[arg-type]
    (thread,) = [each for each in threading.enumerate() if each.name == "rocketshim-leaving"]
    assert thread.daemon
    assert threading.active_count() == before + 1
    client.answered.set()
    thread.join(GUARD_S)
    assert client.calls == ["commit", "close"]


class JoiningClient(Client):
    """A consumer whose first rebalance ends with its second poll, and whose LeaveGroup leaves two polls after that."""

    def __init__(self) -> None:
        super().__init__()
        self.has_joined = False
        self._left_in: int | None = None

    def poll(self, timeout: float) -> None:
        assert timeout == 0
        self.calls.append("poll")
        self.has_joined = self.has_joined or self.calls.count("poll") == 2
        if self._left_in is not None:
            self._left_in -= 1

    def unsubscribe(self) -> None:
        self.calls.append("unsubscribe")
        self._left_in = 2

    def memberid(self) -> str:
        return "" if self._left_in == 0 else "member"


def test_a_member_finishes_joining_and_sends_its_leave_before_it_closes() -> None:
    client = JoiningClient()
    parting = leave(client, GUARD_S, client.commit, unsubscribe=True, has_joined=lambda: client.has_joined)  # type: ignore[arg-type]
    assert parting is Parting.LEFT
    assert client.calls == ["commit", "poll", "poll", "unsubscribe", "poll", "poll", "close"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, True), ({"group.protocol": "consumer"}, False), ({"group.instance.id": "one"}, False)],
)
def test_only_a_dynamic_member_in_the_classic_protocol_unsubscribes(
    settings: dict[str, str], *, expected: bool
) -> None:
    assert unsubscribes(settings) is expected


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
