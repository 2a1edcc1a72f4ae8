"""`rocketshim tx` on the in-memory Kafka: which transactions wait, what became of one, and its end by hand."""

import json
import re
from typing import Any

import pytest

from rocketshim import Producer
from rocketshim.cli import main
from rocketshim.cli.records import label_of
from rocketshim.clock import SystemClock
from rocketshim.testing import InMemoryKafka
from rocketshim.transactions import LocalTransactionState, Transaction, TransactionMQProducer
from rocketshim_topics import DelayLevels, Envelope, Layout, OutgoingRecord, TopicNames, decode
from rocketshim_topics.hops import MOST_CHECKS, fire, scheduled_timer, timer_state
from rocketshim_topics.partitioner import timer_partition

NAMES = TopicNames()
HERE = ["--bootstrap", "memory:1"]


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> InMemoryKafka:
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic("orders")
    cluster.create_topic("waits")
    layout = Layout(NAMES, DelayLevels.default())
    cluster.create_topics([*layout.timers(), layout.check("shop")])
    for module in ("kafka.topic_reader", "producer.producer"):
        monkeypatch.setattr(f"rocketshim.{module}.confluent_clients", cluster.clients)
    return cluster


def begin(kafka: InMemoryKafka) -> Transaction:
    """Send a half message, whose producer then dies."""

    def never(_: Any) -> LocalTransactionState:
        raise AssertionError

    producer = TransactionMQProducer("memory:1", group="shop", listener=never, clients=kafka.clients())
    transaction = producer.transaction("orders", b"paid")
    producer.close()
    return transaction


def put(kafka: InMemoryKafka, out: OutgoingRecord) -> Any:
    return kafka.append(out.topic, out.value, key=out.key, partition=out.partition or 0, headers=list(out.headers))


def fires(kafka: InMemoryKafka, msg_id: str) -> None:
    """The worker finds the half message due, as the last command has set it."""
    partition = timer_partition("orders", msg_id)
    record = kafka.records(NAMES.timers, partition)[-1]
    waiting = scheduled_timer(record, decode(record.headers(), trusted=True), NAMES, due_ms=9, partition=0)
    stored = kafka.append("waits", waiting.value, headers=list(waiting.headers))
    put(kafka, fire(stored, decode(waiting.headers, trusted=True), NAMES))


def stores(kafka: InMemoryKafka, msg_id: str, asks: str | None, asked: int, *, due_ms: int = 5, at: int = 0) -> None:
    """The worker stores that a name is pending."""
    partition = timer_partition("orders", msg_id)
    envelope = Envelope(real_topic="orders", timer=msg_id, timer_asks=asks, timer_asked=asked or None)
    state = timer_state(
        NAMES, partition, envelope, append_ms=1, era=0, applied=at, generation=at, due_ms=due_ms
    )  # fmt: skip
    put(kafka, state)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([*words, *HERE])
    out, err = capsys.readouterr()
    return code, out, err


def shown(capsys: pytest.CaptureFixture[str], msg_id: str) -> dict[str, Any]:
    _, out, _ = run(capsys, "tx", "show", "orders", msg_id, "--json")
    facts: dict[str, Any] = json.loads(out)
    return facts


def test_half_messages_are_listed_here_and_not_among_the_timers(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    stores(kafka, "tx-1", "shop", 3, due_ms=7)
    stores(kafka, "tx-2", "billing", 0, due_ms=5)
    stores(kafka, "o-7", None, 0, due_ms=1)
    code, out, _ = run(capsys, "tx", "ls", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(each["id"], each["producer_group"], each["asked"], each["next_check_ms"]) for each in rows] == [
        ("tx-2", "billing", 0, 5),
        ("tx-1", "shop", 3, 7),
    ]
    for words, ids in (
        (["--producer-group", "shop"], ["tx-1"]),
        (["--asked", "1"], ["tx-1"]),
        (["--topic", "others"], []),
    ):
        _, out, _ = run(capsys, "tx", "ls", *words, "--json")
        assert [json.loads(line)["id"] for line in out.splitlines()] == ids
    _, out, _ = run(capsys, "tx", "ls")
    assert re.search(r"tx-1 +shop +3 ", out)
    _, out, _ = run(capsys, "timers", "ls", "--json")
    assert [json.loads(line)["timer"] for line in out.splitlines()] == ["o-7"]


def test_a_transaction_waits_is_asked_about_and_is_committed(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    made = begin(kafka)
    facts = shown(capsys, made.msg_id)
    assert (facts["id"], facts["fate"], facts["producer_group"], facts["asked"]) == (made.msg_id, "waiting", "shop", 0)
    fires(kafka, made.msg_id)
    fires(kafka, made.msg_id)
    facts = shown(capsys, made.msg_id)
    assert (facts["fate"], facts["asked"]) == ("waiting", 2)
    assert facts["next_check_ms"] == kafka.records(NAMES.timers, facts["partition"])[-1].timestamp()[1] + 30_000
    code, out, _ = run(capsys, "tx", "show", "orders", made.msg_id)
    assert (code, f"{made.msg_id}: waits for its outcome, asked 2 times, next at " in out) == (0, True)
    with Producer("memory:1", clients=kafka.clients()) as producer:
        producer.send_now("orders", timer=made.msg_id)
        producer.cancel("orders", timer=made.msg_id)
    facts = shown(capsys, made.msg_id)
    assert (facts["fate"], facts["next_check_ms"]) == ("committed", None)
    assert [each["command"] for each in facts["history"]] == ["HALF", "CHECK", "CHECK", "COMMIT", "ROLLBACK"]
    _, out, _ = run(capsys, "tx", "show", "orders", made.msg_id)
    assert out.startswith(f"{made.msg_id}: committed at ")
    assert "asks the producers, and again at" in out
    assert "commits: the message is delivered" in out
    assert "too late: committed by offset 3" in out


def test_a_transaction_that_nobody_answers_is_parked(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    made = begin(kafka)
    for _ in range(MOST_CHECKS + 1):
        fires(kafka, made.msg_id)
    facts = shown(capsys, made.msg_id)
    assert (facts["fate"], facts["asked"]) == ("unanswered", MOST_CHECKS)
    _, out, _ = run(capsys, "tx", "show", "orders", made.msg_id)
    assert "it is parked: rocketshim parked ls --reason transaction-unanswered" in out
    code, out, _ = run(capsys, "tx", "commit", "orders", made.msg_id, "--apply")
    assert (code, f"too late: parked by offset {MOST_CHECKS + 1}" in out) == (2, True)


@pytest.mark.parametrize(
    ("command", "words", "state"),
    [
        ("commit", ("COMMIT", "commits: the message is delivered"), "committed"),
        ("rollback", ("ROLLBACK", "rolls back: the message is dropped"), "rolled-back"),
    ],
)
def test_an_operator_ends_a_transaction_only_with_apply(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str], command: str, words: tuple[str, str], state: str
) -> None:
    made, (word, did) = begin(kafka), words
    code, out, _ = run(capsys, "tx", command, "orders", made.msg_id)
    assert (code, "waits for its outcome" in out, out.endswith("to do it, add --apply\n")) == (0, True, True)
    code, out, _ = run(capsys, "tx", command, "orders", made.msg_id, "--apply")
    partition = timer_partition("orders", made.msg_id)
    assert (code, out) == (0, f"{made.msg_id}: {word} stored at rmq.timers/{partition}/1: {did}\n")
    assert shown(capsys, made.msg_id)["fate"] == state
    code, out, _ = run(capsys, "tx", command, "orders", made.msg_id, "--apply", "--json")
    facts = json.loads(out)
    assert (code, facts["command"], facts["stored_at"], facts["fate"]) == (
        2, word, f"rmq.timers/{partition}/2", state,
    )  # fmt: skip


def test_what_is_not_known_is_a_finding(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    del kafka
    code, out, _ = run(capsys, "tx", "show", "orders", "tx-9")
    assert (code, out.startswith("tx-9: unknown")) == (2, True)


def test_the_checks_before_the_log_begins_count(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    made = begin(kafka)
    fires(kafka, made.msg_id)
    stores(kafka, made.msg_id, "shop", 9, at=1)
    fires(kafka, made.msg_id)
    assert shown(capsys, made.msg_id)["asked"] == 10


@pytest.mark.parametrize("became", ["sent", "stored", "cancelled"])
def test_a_named_timer_is_no_transaction(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str], became: str) -> None:
    with Producer("memory:1", clients=kafka.clients()) as producer:
        producer.send("orders", b"x", delay="30m", timer="o-7")
        if became == "cancelled":
            producer.cancel("orders", timer="o-7")
    if became == "stored":
        stores(kafka, "o-7", None, 0)
    count = len(kafka.records(NAMES.timers, timer_partition("orders", "o-7")))
    for words in (["show"], ["commit", "--apply"], ["rollback", "--apply"]):
        code, _, err = run(capsys, "tx", words[0], "orders", "o-7", *words[1:])
        assert (code, "'o-7' is a named timer, and no transaction" in err) == (1, True)
    assert len(kafka.records(NAMES.timers, timer_partition("orders", "o-7"))) == count


def test_a_message_in_a_transaction_is_no_named_timer(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    made = begin(kafka)
    for words in (["show"], ["cancel", "--apply"], ["now", "--apply"]):
        code, _, err = run(capsys, "timers", words[0], "orders", made.msg_id, *words[1:])
        assert (code, "is the id of a message in a transaction: see `rocketshim tx`" in err) == (1, True)
    assert len(kafka.records(NAMES.timers, timer_partition("orders", made.msg_id))) == 1


def test_show_prints_the_producer_group_and_has_each_field_of_the_list(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    made = begin(kafka)
    fires(kafka, made.msg_id)
    facts = shown(capsys, made.msg_id)
    _, out, _ = run(capsys, "tx", "show", "orders", made.msg_id)
    assert out.splitlines()[1] == "producer group: shop"
    stores(kafka, made.msg_id, "shop", 1, at=1, due_ms=facts["next_check_ms"])
    _, out, _ = run(capsys, "tx", "ls", "--json")
    assert json.loads(out).items() <= facts.items()
    _, out, _ = run(capsys, "tx", "show", "orders", "tx-9")
    assert len(out.splitlines()) == 1, "of an unknown transaction there is no group"


def test_each_heading_of_the_list_is_a_field(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    stores(kafka, "tx-1", "shop", 3)
    _, out, _ = run(capsys, "tx", "ls", "--json")
    labels = {label_of(name) for name in json.loads(out)}
    _, out, _ = run(capsys, "tx", "ls")
    headings = [each.removesuffix(" (UTC)") for each in re.split("  +", out.splitlines()[0])]
    assert (headings[-1], set(headings[:-1]) - labels) == ("in", set())
