"""Transactional messages on the in-memory Kafka: half messages, their ends, and the answers to checks."""

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rocketshim import Message, MessageView
from rocketshim.clock import SystemClock
from rocketshim.errors import ClosedError, ConfigError, MessageError, SendTimeoutError, TopicMissingError
from rocketshim.testing import InMemoryKafka
from rocketshim.transactions import LocalTransactionState, TransactionMQProducer
from rocketshim_topics import DelayLevels, Layout, TopicNames
from rocketshim_topics.partitioner import TIMER_PARTITIONS

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOWN,
)
GUARD_S = 60


@pytest.fixture
def kafka() -> InMemoryKafka:
    layout = Layout(TopicNames(), DelayLevels.default())
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic("orders", 4)
    cluster.create_topics([*layout.timers(), layout.check("shop")])
    return cluster


class Shop:
    """A listener whose answers a test chooses. `asked` is set when a check was answered."""

    def __init__(self) -> None:
        self.answer: Any = UNKNOWN
        self.executed: list[tuple[MessageView, Any]] = []
        self.checked: list[MessageView] = []
        self.asked = threading.Semaphore(0)

    def execute_local_transaction(self, message: MessageView, arg: Any) -> LocalTransactionState:
        self.executed.append((message, arg))
        return self._answer()

    def check_local_transaction(self, message: MessageView) -> LocalTransactionState:
        self.checked.append(message)
        self.asked.release()
        return self._answer()

    def _answer(self) -> LocalTransactionState:
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: LocalTransactionState = self.answer
        return answer


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def producer(kafka: InMemoryKafka, shop: Shop) -> Iterator[TransactionMQProducer]:
    with TransactionMQProducer("memory:1", group="shop", listener=shop, clients=kafka.clients()) as made:
        yield made


def test_the_consumer_of_checks_gets_no_settings_of_producers(kafka: InMemoryKafka, shop: Shop) -> None:
    seen, clients = dict[str, Any](), kafka.clients()

    def consumer(settings: dict[str, Any]) -> Any:
        seen.update(settings)
        return clients.consumer(settings)

    client = {"compression.type": "zstd", "transaction.timeout.ms": 9_000, "socket.keepalive.enable": True}
    watched = replace(clients, consumer=consumer)
    with TransactionMQProducer("memory:1", group="shop", listener=shop, client=client, clients=watched):
        assert seen.keys() & client.keys() == {"socket.keepalive.enable"}


def commands(kafka: InMemoryKafka) -> list[tuple[str, str]]:
    """Return command and name of each record of the timer log."""
    return [(told["TIMER_DO"].decode(), told["TIMER"].decode()) for told in map(headers, log(kafka))]


def log(kafka: InMemoryKafka) -> list[Any]:
    return [record for at in range(TIMER_PARTITIONS) for record in kafka.records("rmq.timers", at)]


def headers(record: Any) -> dict[str, bytes]:
    return dict(record.headers())


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage().partition(":")[0] for each in caplog.records]


def check(kafka: InMemoryKafka, msg_id: str, number: int = 1, **user: bytes) -> None:
    told = {"RETRY_TOPIC": b"orders", "UNIQ_KEY": msg_id.encode(), "TIMER_ASKS": b"shop"}
    told |= {"TIMER_ASKED": b"%d" % number} | user
    kafka.append("rmq.check.shop", b"paid", partition=number % 4, headers=list(told.items()))


def test_a_transaction_commits_at_the_end_of_its_block(kafka: InMemoryKafka, producer: TransactionMQProducer) -> None:
    with producer.transaction("orders", b"paid", key="o-7", tag="a") as transaction:
        assert commands(kafka) == [("SET", transaction.msg_id)]
        assert transaction.state is UNKNOWN
    assert commands(kafka) == [("SET", transaction.msg_id), ("NOW", transaction.msg_id)]
    half = log(kafka)[0]
    told = headers(half)
    assert (half.key(), half.value(), told["TAGS"]) == (b"o-7", b"paid", b"a")
    assert (told["UNIQ_KEY"], told["TIMER_ASKS"], told["DELAY_MS"]) == (transaction.msg_id.encode(), b"shop", b"6000")


def test_a_block_that_raises_leaves_the_outcome_to_the_check(
    kafka: InMemoryKafka, producer: TransactionMQProducer
) -> None:
    with pytest.raises(OSError, match="the database"), producer.transaction("orders", b"paid") as transaction:
        raise OSError("the database has not answered")
    assert commands(kafka) == [("SET", transaction.msg_id)]


def test_a_rollback_is_sent_and_the_end_of_the_block_does_not_commit(
    kafka: InMemoryKafka, producer: TransactionMQProducer
) -> None:
    with producer.transaction("orders", b"paid", check_after="1m") as transaction:
        transaction.rollback()
        transaction.rollback()
        with pytest.raises(MessageError, match="ROLLBACK_MESSAGE was sent before"):
            transaction.commit()
    assert commands(kafka) == [(each, transaction.msg_id) for each in ("SET", "CANCEL", "CANCEL")]


def test_rocketmq_s_shape_sends_what_the_listener_returns(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop
) -> None:
    for answer, command in ((COMMIT, ["NOW"]), (ROLLBACK, ["CANCEL"]), (UNKNOWN, [])):
        shop.answer = answer
        sent = producer.send_message_in_transaction(Message("orders", b"paid"), arg=7)
        assert sent.state is answer
        of_this = [each for each, name in commands(kafka) if name == sent.msg_id]
        assert of_this == ["SET", *command]
    assert [(message.body, arg) for message, arg in shop.executed] == [(b"paid", 7)] * 3


def test_the_local_transaction_gets_the_message_as_the_check_has_it(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop
) -> None:
    sent = producer.send_message_in_transaction(
        Message("orders", b"paid", key="o-7", tag="a", keys=["k"], properties={"mine": "x"})
    )
    [(view, _)] = shop.executed
    assert (view.topic, view.msg_id, view.body, view.record.key()) == ("orders", sent.msg_id, b"paid", b"o-7")
    assert (view.tag, view.keys, view.properties) == ("a", ("k",), {"mine": "x"})
    [half] = log(kafka)
    assert (view.queue_id, view.queue_offset) == (half.partition(), half.offset())


def test_an_error_of_the_local_transaction_leaves_the_outcome_to_the_check(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    for shop.answer in (OSError("no answer"), None, "COMMIT_MESSAGE"):
        assert producer.send_message_in_transaction(Message("orders", b"paid")).state is UNKNOWN
    assert {each for each, _ in commands(kafka)} == {"SET"}
    failed = [each for each in caplog.records if each.message.startswith("producer.transaction-unknown")]
    assert len(failed) == 3
    assert all(each.exc_info for each in failed)


def test_a_commit_that_is_not_stored_is_logged_and_not_raised_by_the_block(
    producer: TransactionMQProducer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise SendTimeoutError("no delivery report")

    with producer.transaction("orders", b"paid") as transaction:
        monkeypatch.setattr(producer, "send_now", late)
    assert events(caplog) == ["producer.transaction-not-ended"]
    with pytest.raises(SendTimeoutError):
        transaction.commit()


@pytest.mark.parametrize(("answer", "command"), [(COMMIT, "NOW"), (ROLLBACK, "CANCEL")])
def test_a_check_is_answered(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop, answer: LocalTransactionState, command: str
) -> None:
    del producer
    shop.answer = answer
    check(kafka, "tx-1", mine=b"x")
    kafka.wait_until(lambda: commands(kafka) == [(command, "tx-1")], guard_s=GUARD_S)
    [view] = shop.checked
    assert (view.topic, view.msg_id, view.body, view.properties) == ("orders", "tx-1", b"paid", {"mine": "x"})


def test_an_unknown_outcome_or_an_error_is_no_answer(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    del producer
    for number, shop.answer in enumerate((UNKNOWN, OSError("no database"), 7, COMMIT)):
        check(kafka, f"tx-{number}", number)
        assert shop.asked.acquire(timeout=GUARD_S)
    kafka.wait_until(lambda: commands(kafka) == [("NOW", "tx-3")], guard_s=GUARD_S)
    assert events(caplog) == ["producer.transaction-unknown"] * 2


def test_checks_of_other_programs_stop_nothing(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop
) -> None:
    del producer
    shop.answer = COMMIT
    kafka.append("rmq.check.shop", None, partition=0, headers=[("UNIQ_KEY", b"a"), ("UNIQ_KEY", b"b")])
    kafka.append("rmq.check.shop", None, partition=0, headers=[("RETRY_TOPIC", b"%RETRY%g"), ("UNIQ_KEY", b"a")])
    kafka.append("rmq.check.shop", None, partition=0, headers=[])
    check(kafka, "tx-1", 4)
    kafka.wait_until(lambda: commands(kafka) == [("NOW", "tx-1")], guard_s=GUARD_S)


def test_a_check_that_came_while_no_producer_ran_is_answered(kafka: InMemoryKafka, shop: Shop) -> None:
    check(kafka, "tx-1")
    shop.answer = COMMIT
    with TransactionMQProducer("memory:1", group="shop", listener=shop, clients=kafka.clients()):
        kafka.wait_until(lambda: commands(kafka) == [("NOW", "tx-1")], guard_s=GUARD_S)


def test_a_function_is_a_listener_for_checks_alone(kafka: InMemoryKafka) -> None:
    made = TransactionMQProducer("memory:1", group="shop", listener=lambda _: COMMIT, clients=kafka.clients())
    with made as producer, pytest.raises(MessageError, match="use transaction"):
        producer.send_message_in_transaction(Message("orders", b""))
    assert commands(kafka) == []


@pytest.mark.parametrize(
    ("body", "options", "said"),
    [
        (b"", {"delay": "5s"}, "no delay and no name"),
        (b"", {"delay": "5s", "timer": "a"}, "no delay and no name"),
        (b"", {"delay": "5s", "recallable": True}, "no delay and no name"),
        (b"", {"timer": "a", "cron": "* * * * *"}, "no delay and no name"),
        (b"", {"check_after": "10ms"}, "1 s or more"),
        (b"", {"check_after": "soon"}, "soon"),
    ],
)
def test_what_no_transaction_can_have_is_refused_and_nothing_is_sent(
    kafka: InMemoryKafka, producer: TransactionMQProducer, body: Any, options: Any, said: str
) -> None:
    with pytest.raises(MessageError, match=said):
        producer.transaction("orders", body, **options)
    with pytest.raises(MessageError, match="has a body"):
        producer.transaction(Message("orders", None))
    with pytest.raises(MessageError, match="takes no delayed messages"):
        producer.transaction(Message("%RETRY%g", b""))
    assert commands(kafka) == []


def test_a_group_or_a_listener_that_is_not_legal_is_refused(kafka: InMemoryKafka) -> None:
    wrong: Any
    for wrong in (lambda: COMMIT, None, object()):
        with pytest.raises(ConfigError, match="listener="):
            TransactionMQProducer("memory:1", group="shop", listener=wrong, clients=kafka.clients())
    with pytest.raises(ConfigError, match="not a group name"):
        TransactionMQProducer("memory:1", group=" ", listener=lambda _: COMMIT, clients=kafka.clients())


def test_without_the_topic_of_checks_nothing_starts_and_the_error_says_what_creates_it(kafka: InMemoryKafka) -> None:
    producer = TransactionMQProducer("memory:1", group="other", listener=lambda _: COMMIT, clients=kafka.clients())
    with pytest.raises(TopicMissingError, match="rocketshim init --producer-group other"):
        producer.transaction("orders", b"")
    kafka.create_topics([Layout(TopicNames(), DelayLevels.default()).check("other")])
    with producer.transaction("orders", b"") as transaction:
        pass
    producer.close()
    assert commands(kafka) == [("SET", transaction.msg_id), ("NOW", transaction.msg_id)]


def test_a_consumer_that_fails_is_replaced(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    del producer
    monkeypatch.setattr("rocketshim.transactions._AGAIN_S", 0.0)
    shop.answer = COMMIT
    kafka.deny("rmq.check.shop")
    kafka.wait_until(lambda: "producer.checks-unread" in events(caplog), guard_s=GUARD_S)
    kafka.allow("rmq.check.shop")
    check(kafka, "tx-1")
    kafka.wait_until(lambda: commands(kafka) == [("NOW", "tx-1")], guard_s=GUARD_S)


def test_a_closed_producer_answers_no_more(kafka: InMemoryKafka, shop: Shop) -> None:
    producer = TransactionMQProducer("memory:1", group="shop", listener=shop, clients=kafka.clients())
    producer.start()
    producer.start()
    producer.close()
    producer.close()
    assert not [each for each in threading.enumerate() if each.name == "rocketshim-checks"]


def test_a_listener_that_hangs_does_not_keep_the_producer_open(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.transactions._LEAVE_S", 0.01)
    asked, may_go_on = threading.Event(), threading.Event()

    def hang(_: MessageView) -> LocalTransactionState:
        asked.set()
        may_go_on.wait(GUARD_S)
        return COMMIT

    producer = TransactionMQProducer("memory:1", group="shop", listener=hang, clients=kafka.clients())
    producer.start()
    check(kafka, "tx-1")
    assert asked.wait(GUARD_S)
    producer.close()
    may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == "rocketshim-checks":
            thread.join(GUARD_S)
    assert commands(kafka) == []


def test_nobody_answers_for_a_transaction_that_runs_here(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop
) -> None:
    shop.answer = ROLLBACK
    with producer.transaction("orders", b"paid") as transaction:
        check(kafka, transaction.msg_id, 1)
        check(kafka, "of-another", 1)
        kafka.wait_until(lambda: ("CANCEL", "of-another") in commands(kafka), guard_s=GUARD_S)
    assert [each for each, name in commands(kafka) if name == transaction.msg_id] == ["SET", "NOW"]
    with pytest.raises(OSError, match="database"), producer.transaction("orders", b"paid") as transaction:
        raise OSError("the database has not answered")
    check(kafka, transaction.msg_id, 2)  # the block has ended, so the listener knows
    kafka.wait_until(lambda: ("CANCEL", transaction.msg_id) in commands(kafka), guard_s=GUARD_S)
    forgotten = producer.transaction("orders", b"paid").msg_id
    check(kafka, forgotten, 3)  # nobody has this transaction any more
    kafka.wait_until(lambda: ("CANCEL", forgotten) in commands(kafka), guard_s=GUARD_S)


def test_a_local_transaction_with_an_unknown_outcome_is_asked_about_while_its_result_is_kept(
    kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop
) -> None:
    kept = producer.send_message_in_transaction(Message("orders", b"paid"))
    shop.answer = COMMIT
    check(kafka, kept.msg_id)
    kafka.wait_until(lambda: ("NOW", kept.msg_id) in commands(kafka), guard_s=GUARD_S)


def test_a_transaction_whose_half_message_was_stored_too_late_does_not_begin(
    kafka: InMemoryKafka, producer: TransactionMQProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, now_s = producer._stored, [0.0]

    def late(*values: Any) -> Any:
        now_s[0] += 0.6
        return stored(*values)

    monkeypatch.setattr(producer, "_stored", late)
    monkeypatch.setattr("rocketshim.transactions.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with pytest.raises(SendTimeoutError, match="too late to begin"):
        producer.transaction("orders", b"paid", check_after="1s", timeout_s=1e9)
    assert [each for each, _ in commands(kafka)] == ["SET", "CANCEL"]


@pytest.mark.parametrize(
    ("options", "asked_ms"),
    [({}, b"6000"), ({"timeout_s": 5}, b"10000"), ({"timeout_s": 1e9}, b"60000"), ({"check_after": "2m"}, b"120000")],
)
def test_the_outcome_is_asked_for_later_than_the_send_may_take(
    kafka: InMemoryKafka, producer: TransactionMQProducer, options: Any, asked_ms: bytes
) -> None:
    producer.transaction("orders", b"paid", **options)
    assert headers(log(kafka)[0])["DELAY_MS"] == asked_ms


def test_a_level_of_no_delay_is_accepted(kafka: InMemoryKafka, producer: TransactionMQProducer) -> None:
    with producer.transaction("orders", b"paid", delay_level=0):
        pass
    assert headers(log(kafka)[0])["DELAY_MS"] == b"6000"


def test_a_listener_that_ends_the_program_ends_no_thread(
    kafka: InMemoryKafka, producer: TransactionMQProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(message: MessageView) -> LocalTransactionState:
        return COMMIT if message.msg_id == "tx-2" else sys.exit(3)

    monkeypatch.setattr(producer._checks, "_check", answer)
    for number in (1, 2):
        check(kafka, f"tx-{number}", 1)
    kafka.wait_until(lambda: commands(kafka) == [("NOW", "tx-2")], guard_s=GUARD_S)


def test_a_closed_producer_starts_nothing(kafka: InMemoryKafka, shop: Shop) -> None:
    producer = TransactionMQProducer("memory:1", group="shop", listener=shop, clients=kafka.clients())
    producer.close()
    with pytest.raises(ClosedError):
        producer.start()


def test_a_hook_may_replace_the_message(kafka: InMemoryKafka, producer: TransactionMQProducer, shop: Shop) -> None:
    class Elsewhere:
        def send_message_before(self, context: Any) -> None:
            context.message = replace(context.message, topic="payments")

        def send_message_after(self, context: Any) -> None:
            pass

    kafka.create_topic("payments", 1)
    producer.register_send_message_hook(Elsewhere())
    shop.answer = COMMIT
    transaction = producer.send_message_in_transaction(Message("orders", b"paid"))
    assert [view.topic for view, _ in shop.executed] == ["payments"]
    assert [headers(each)["REAL_TOPIC"] for each in log(kafka)] == [b"payments", b"payments"]
    assert commands(kafka) == [("SET", transaction.msg_id), ("NOW", transaction.msg_id)]


@pytest.mark.parametrize("wrong", ["one", "asynchronous"])
def test_a_local_transaction_that_cannot_be_called_is_refused(kafka: InMemoryKafka, wrong: str) -> None:
    class One(Shop):
        def execute_local_transaction(self, message: MessageView) -> LocalTransactionState:  # type: ignore[override]
            raise AssertionError(message)

    class Asynchronous(Shop):
        async def check_local_transaction(self, message: MessageView) -> Any:  # type: ignore[override]
            raise AssertionError(message)

    listener: Any = One() if wrong == "one" else Asynchronous()
    with pytest.raises(ConfigError, match="listener="):
        TransactionMQProducer("memory:1", group="shop", listener=listener, clients=kafka.clients())
