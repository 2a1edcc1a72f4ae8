"""How Kafka clients are closed, and where their log lines go."""

import logging
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.errors import BrokerUnavailableError, ConfigError
from rocketshim.kafka.clients import (
    LastClientError,
    Parting,
    close_consumer,
    close_producer,
    confluent_clients,
    explained,
    init_transactions,
    is_fatal,
    unsubscribes,
    with_log,
)
from rocketshim.testing import InMemoryKafka

GUARD_S = 60.0


class Client:
    """A consumer that records the order of its calls, and may block forever."""

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


def test_a_consumer_commits_and_closes() -> None:
    client = Client()
    assert close_consumer(client, GUARD_S, client.commit) is Parting.LEFT  # type: ignore[arg-type]
    assert client.calls == ["commit", "close"]


def test_an_error_before_close_is_raised_and_the_consumer_is_closed() -> None:
    client = Client()

    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))

    with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
        close_consumer(client, GUARD_S, fail)  # type: ignore[arg-type]
    assert client.calls == ["close"]


def test_a_consumer_without_answers_stays_in_its_thread_and_closes_when_it_can() -> None:
    client = Client(silent=True)
    before = set(threading.enumerate())
    assert close_consumer(client, 0.01, client.commit) is Parting.SILENT  # type: ignore[arg-type]
    (thread,) = [each for each in set(threading.enumerate()) - before if each.name == "rocketshim-leaving"]
    assert thread.daemon
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


def test_a_member_finishes_joining_and_leaves_before_it_closes() -> None:
    client = JoiningClient()
    parting = close_consumer(client, GUARD_S, client.commit, unsubscribe=True, has_joined=lambda: client.has_joined)  # type: ignore[arg-type]
    assert parting is Parting.LEFT
    assert client.calls == ["commit", "poll", "poll", "unsubscribe", "poll", "poll", "close"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KafkaError(KafkaError._FATAL, "an event of a consumer"), True),
        (KafkaException(KafkaError(KafkaError._FATAL, "a refused call")), True),
        (KafkaError(KafkaError.FENCED_INSTANCE_ID, fatal=True), True),
        (KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), False),
        (RuntimeError("Consumer closed"), False),
        (None, False),
    ],
    ids=["event", "call", "flag", "other", "no-kafka-error", "none"],
)
def test_an_error_is_fatal_by_its_flag_or_its_code(error: object, *, expected: bool) -> None:
    assert is_fatal(error) is expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, True), ({"group.protocol": "consumer"}, False), ({"group.instance.id": "one"}, False)],
)
def test_only_a_dynamic_member_in_the_classic_protocol_unsubscribes(
    settings: dict[str, str], *, expected: bool
) -> None:
    assert unsubscribes(settings) is expected


def test_without_a_thread_left_a_consumer_commits_and_closes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    client = Client()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert close_consumer(client, GUARD_S, client.commit) is Parting.LEFT  # type: ignore[arg-type]
    assert client.calls == ["commit", "close"]


@pytest.mark.parametrize("is_down", [False, True])
def test_a_producer_is_connected_before_it_begins_transactions_and_without_a_broker_that_call_raises(
    monkeypatch: pytest.MonkeyPatch, *, is_down: bool
) -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("orders")
    producer = kafka.producer({"transactional.id": "t"})
    if is_down:
        kafka.stop_broker()
    calls: list[str] = []
    list_topics, init = producer.list_topics, producer.init_transactions

    def list_noted(topic: str, timeout: float) -> Any:
        calls.append(f"list {topic} {timeout}")
        return list_topics(topic, timeout)

    def init_noted(timeout: float) -> None:
        calls.append(f"init {timeout}")
        init(timeout)

    monkeypatch.setattr(producer, "list_topics", list_noted)
    monkeypatch.setattr(producer, "init_transactions", init_noted)
    with pytest.raises(KafkaException) if is_down else nullcontext():
        init_transactions(producer, "orders", 9.0)
    asked = ["list orders 1.0"] * (1 if is_down else 2)
    assert calls == [*asked, "init 9.0"]


def test_a_producer_that_is_closed_may_be_closed_again() -> None:
    producer = confluent_clients().producer({"bootstrap.servers": "127.0.0.1:1"})
    close_producer(producer, 0.0)
    close_producer(producer, 0.0)


def test_closing_a_producer_drops_and_reports_its_records() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("orders")
    kafka.hold_sends()
    producer = kafka.producer({})
    reports: list[KafkaError | None] = []
    producer.produce("orders", b"", on_delivery=lambda error, _: reports.append(error))
    close_producer(producer, 1.0)
    assert [error is None for error in reports] == [False]
    assert producer._is_gone
    assert kafka.records("orders") == []


def test_a_producer_without_reports_does_not_delay_the_close() -> None:
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
    close_producer(producer, 0.0)  # type: ignore[arg-type]
    assert not producer.closed


TLS_ON_PLAINTEXT = (
    "ssl://127.0.0.1:9092/bootstrap: SSL handshake failed: Disconnected: SSL connection closed by peer: connecting to "
    "a PLAINTEXT broker listener? (after 2ms in state SSL_HANDSHAKE)"
)
PLAINTEXT_ON_TLS = (
    "127.0.0.1:9092/bootstrap: Disconnected: connection closed by peer: receive 0 after POLLIN "
    "(after 2ms in state APIVERSION_QUERY)"
)
IDLE = "127.0.0.1:9092/1: Disconnected: connection closed by peer: receive 0 after POLLIN (after 15260ms in state UP)"


class Ticking:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def say(complaints: LastClientError, words: str, facility: str = "FAIL", level: int = logging.ERROR) -> None:
    """Log a line as confluent_kafka does."""
    complaints.log(level, "%s [%s] %s", facility, "rdkafka#producer-1", f"[thrd:127.0.0.1:9092/bootstrap]: {words}")


def test_lines_of_a_client_are_logged_and_too_many_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Ticking()
    complaints = LastClientError(clock)
    with caplog.at_level(logging.DEBUG, "rocketshim.client"):
        for _ in range(25):
            say(complaints, "refused")
        assert [record.getMessage() for record in caplog.records] == ["FAIL rdkafka#producer-1: refused"] * 10
        clock.now_s = 10.0
        say(complaints, "refused", level=logging.WARNING)
    assert caplog.records[-1].getMessage() == "FAIL rdkafka#producer-1: refused (15 lines left out)"
    assert caplog.records[-1].levelno == logging.WARNING


def test_an_exception_in_a_log_filter_does_not_leave_the_client() -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise OSError(record.msg)

    logger = logging.getLogger("rocketshim.client")
    logger.addFilter(broken)
    try:
        complaints = LastClientError()
        say(complaints, "refused")
    finally:
        logger.removeFilter(broken)
    assert "refused" in complaints.text()


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (TLS_ON_PLAINTEXT, "TLS handshake failed: does 127.0.0.1:9092 speak TLS? security.protocol=SSL; "),
        (
            "ssl://127.0.0.1:9092/bootstrap: Disconnected: closed by peer (after 0ms in state SSL_HANDSHAKE)",
            "TLS handshake failed: does 127.0.0.1:9092 speak TLS? security.protocol=SSL; ",
        ),
        (f"sasl_{TLS_ON_PLAINTEXT}", "does 127.0.0.1:9092 speak TLS? security.protocol=SASL_SSL; "),
        (PLAINTEXT_ON_TLS, "does it expect TLS or SASL? security.protocol=PLAINTEXT; "),
        (PLAINTEXT_ON_TLS.replace("2ms", "2000ms"), "does it expect TLS or SASL? security.protocol=PLAINTEXT; "),
        (f"sasl_plaintext://{PLAINTEXT_ON_TLS}", "does it expect TLS or SASL? security.protocol=SASL_PLAINTEXT; "),
        ("127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused", ""),
    ],
)
def test_the_likely_cause_precedes_the_clients_error(words: str, cause: str) -> None:
    complaints = LastClientError()
    assert complaints.text() == ""
    say(complaints, words)
    assert complaints.text().endswith(f"{cause}the Kafka client reports: {words})")


def test_harmless_or_old_log_lines_are_not_added_to_errors() -> None:
    clock = Ticking()
    complaints = LastClientError(clock)
    say(complaints, IDLE)
    say(complaints, "TxnCoordinator/1: loading, retrying", facility="GETPID")
    assert complaints.text() == ""
    say(complaints, "refused")
    assert complaints.text(since_s=0.0)
    assert not complaints.text(since_s=1.0)
    with pytest.raises(BrokerUnavailableError, match=r"^nobody \(the Kafka client reports: refused\)$"):  # noqa: SIM117
        with explained(complaints, None):
            raise BrokerUnavailableError("nobody")


def test_a_logger_of_the_user_stays_and_debug_lines_go_to_stderr() -> None:
    mine = logging.getLogger("mine")
    assert with_log({"logger": mine})["logger"] is mine
    assert isinstance(with_log({})["logger"], LastClientError)
    assert with_log({"debug": "broker", **LastClientError().settings}).keys() == {"debug", "error_cb"}


@pytest.mark.parametrize("is_set_up", [False, True])
def test_lines_of_a_real_client_reach_stderr_only_if_logging_is_configured(is_set_up: bool) -> None:
    program = f"""
import logging
from rocketshim.kafka.clients import confluent_clients
if {is_set_up}:
    logging.basicConfig()
logged = []
logging.getLogger("rocketshim.client").addFilter(lambda line: logged.append(line) or True)
clients = confluent_clients()
for client in (clients.producer({{"bootstrap.servers": "127.0.0.1:1"}}),
               clients.consumer({{"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}}),
               clients.admin({{"bootstrap.servers": "127.0.0.1:1"}})):
    logged.clear()
    while not logged:
        try:
            client.list_topics(timeout=0.2)
        except Exception:
            pass
        client.poll(0.1)
"""
    done = subprocess.run(  # noqa: S603 - the program above
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=GUARD_S
    )
    said = done.stderr.splitlines()
    assert not [line for line in said if line.startswith("%")]
    assert bool(said) is is_set_up
    assert all(line.startswith("ERROR:rocketshim.client:FAIL ") for line in said)


@pytest.mark.parametrize("has_lock", [True, False])
def test_python_without_its_global_lock_is_refused(has_lock: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_lock, raising=False)
    if has_lock:
        assert confluent_clients().admin is not None
        return
    with pytest.raises(ConfigError, match="PYTHON_GIL=1"):
        confluent_clients()


@pytest.mark.parametrize("replaced", ["threading", "queue", "socket"])
def test_threads_that_gevent_replaced_are_refused(replaced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda name: name == replaced))
    if replaced == "socket":
        assert confluent_clients().admin is not None
        return
    with pytest.raises(ConfigError, match=r"gevent has replaced .* monkey.patch_all\(thread=False, queue=False\)"):
        confluent_clients()


@pytest.mark.parametrize("replaced", ["thread", "socket"])
def test_threads_that_eventlet_replaced_are_refused(replaced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patcher = SimpleNamespace(is_monkey_patched=lambda name: name == replaced)
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    if replaced == "socket":
        assert confluent_clients().admin is not None
        return
    with pytest.raises(ConfigError, match=r"eventlet has replaced .* eventlet.monkey_patch\(thread=False\)"):
        confluent_clients()


LOGIN = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "needs a source of tokens: set sasl.oauthbearer.method=oidc"),
        ({"sasl.oauthbearer.method": "oidc"}, "`sasl.oauthbearer.token.endpoint.url` is mandatory"),
        (
            {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.metadata.authentication.type": "aws_iam"},
            "sasl.oauthbearer.config",
        ),
    ],
)
def test_a_log_in_that_cannot_work_is_a_config_error(settings: dict[str, str], said: str) -> None:
    """Before, the first was an hour of time-outs, and the last ended in a traceback of another class."""
    clients = confluent_clients()
    assert clients.admin is not None
    for make in (clients.consumer, clients.producer, clients.admin):
        with pytest.raises(ConfigError, match=said):
            make({**LOGIN, "group.id": "g", **settings})


def test_a_program_may_give_tokens_by_itself() -> None:
    confluent_clients().producer({**LOGIN, "oauth_cb": lambda _: ("token", time.time() + 3_600)}).close()
