"""`rocketshim timers` on the in-memory Kafka: what is pending, what became of a name, and cancel."""

import json
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from rocketshim import Producer
from rocketshim.cli import main
from rocketshim.cli.records import label_of
from rocketshim.clock import SystemClock
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, Envelope, Layout, OutgoingRecord, TopicNames, decode
from rocketshim_topics.hops import fire, scheduled_timer, timer_command, timer_state
from rocketshim_topics.partitioner import timer_partition

NAMES = TopicNames()
HERE = ["--bootstrap", "memory:1"]
PARTITION = timer_partition("orders", "o-7")
HOUR_MS = 3_600_000


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> InMemoryKafka:
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic("orders")
    cluster.create_topics(Layout(NAMES, DelayLevels.default()).timers())
    for module in ("kafka.topic_reader", "producer.producer"):
        monkeypatch.setattr(f"rocketshim.{module}.confluent_clients", cluster.clients)
    return cluster


def put(kafka: InMemoryKafka, out: OutgoingRecord) -> None:
    kafka.append(out.topic, out.value, key=out.key, partition=out.partition or 0, headers=list(out.headers))


def fires(kafka: InMemoryKafka, generation: int) -> None:
    """The worker finds the message of the name due."""
    record = kafka.records(NAMES.timers, PARTITION)[generation]
    waiting = scheduled_timer(record, decode(record.headers(), trusted=True), NAMES, due_ms=9, partition=0)
    kafka.create_topic("waits")
    stored = kafka.append("waits", waiting.value, headers=list(waiting.headers))
    kafka.delete_topic("waits")
    put(kafka, fire(stored, decode(waiting.headers, trusted=True), NAMES))


def send(kafka: InMemoryKafka, name: str = "o-7", **options: Any) -> None:
    with Producer("memory:1", clients=kafka.clients()) as producer:
        producer.send("orders", b"x", **{"delay": "30m", "timer": name, **options})


def run(capsys: pytest.CaptureFixture[str], *words: str, command: str = "timers") -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([command, *words, *HERE])
    out, err = capsys.readouterr()
    return code, out, err


def facts(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    _, out, _ = run(capsys, *words, "--json")
    return [json.loads(line) for line in (out.splitlines() if words[0] != "show" else [out])]


# --- ls --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pending(kafka: InMemoryKafka) -> int:
    """Names as the worker stores them; the time of the first, which is due in an hour."""
    due_ms = SystemClock().wall_ms() + HOUR_MS
    names = [("orders", "o-9"), ("orders", "o-7"), ("reports", "daily"), ("orders", "gone")]
    for at, (topic, name) in enumerate(names):
        envelope = Envelope(real_topic=topic, timer=name)
        number, generation = timer_partition(topic, name), 40 + at
        for due in (due_ms, due_ms + at * HOUR_MS):
            put(
                kafka,
                timer_state(
                    NAMES, number, envelope, append_ms=1, era=0, applied=40 + at, generation=generation, due_ms=due
                ),
            )
        if name == "gone":
            put(kafka, timer_state(NAMES, number, envelope, append_ms=1, era=0, applied=60, generation=None))
    kafka.append(NAMES.timer_state, b"", key=b"x", headers=[("SHIM", b"one")])
    return due_ms


def test_the_pending_names_are_listed_the_next_first(pending: int, capsys: pytest.CaptureFixture[str]) -> None:
    rows = facts(capsys, "ls")
    assert [(each["target"], each["timer"], each["due_ms"], each["set_at"]) for each in rows] == [
        ("orders", "o-9", pending, 40),
        ("orders", "o-7", pending + HOUR_MS, 41),
        ("reports", "daily", pending + 2 * HOUR_MS, 42),
    ]
    assert rows[1]["partition"] == PARTITION
    code, out, _ = run(capsys, "ls")
    assert (code, " min " in out, f"{PARTITION}/41" in out, "gone" in out) == (0, True, True, False)


@pytest.mark.usefixtures("pending")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--topic", "orders"], ["o-9", "o-7"]),
        (["--name", "o-7"], ["o-7"]),
        (["--name", "o-*"], ["o-9", "o-7"]),
        (["--name", "*"], ["o-9", "o-7", "daily"]),
        (["--due-before", "90m"], ["o-9"]),
        (["--due-before", "2099-01-01T00:00:00Z"], ["o-9", "o-7", "daily"]),
        (["--topic", "orders", "--name", "d*"], []),
    ],
)
def test_options_select_names(words: list[str], names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert [each["timer"] for each in facts(capsys, "ls", *words)] == names


@pytest.mark.usefixtures("pending")
def test_the_list_ends_at_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "ls", "--limit", "1", "--json")
    assert (code, len(out.splitlines()), err) == (0, 1, "the first 1; --limit shows more\n")


@pytest.mark.usefixtures("pending")
def test_each_heading_of_the_list_is_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    labels = {label_of(name) for name in facts(capsys, "ls")[0]}
    _, out, _ = run(capsys, "ls")
    headings = {each.removesuffix(" (UTC)") for each in re.split("  +", out.splitlines()[0])}
    assert headings - labels == {"due in"}


@pytest.mark.usefixtures("kafka")
def test_no_name_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "ls") == (0, "none\n", "")


@pytest.mark.parametrize("command", ["timers", "tx"])
def test_a_list_says_that_no_worker_has_read_the_commands(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    send(kafka)
    code, out, err = run(capsys, "ls", command=command)
    assert (code, out, err) == (0, "none\n", ""), "a worker may read it in this moment"
    monkeypatch.setattr("rocketshim.kafka.timer_log._UNREAD_MS", -1_000)
    code, out, err = run(capsys, "ls", command=command)
    assert (code, out) == (0, "none\n")
    assert re.match("no worker has read the commands since .* UTC: names may be missing here", err)
    consumer = kafka.consumer({"group.id": NAMES.worker_group})
    consumer.commit(offsets=[TopicPartition(NAMES.timers, PARTITION, 1)], asynchronous=False)
    assert run(capsys, "ls", command=command) == (0, "none\n", "")


def test_no_command_is_stored_for_a_topic_that_does_not_exist(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["show"], ["cancel", "--apply"], ["now", "--apply"]):
        code, _, err = run(capsys, words[0], "order", "o-7", *words[1:])
        assert (code, "there is no topic order, and the log has no message 'o-7'; did you mean orders?" in err) == (
            1,
            True,
        )
    assert kafka.records(NAMES.timers, timer_partition("order", "o-7")) == []


@pytest.mark.usefixtures("kafka")
def test_a_time_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "ls", "--due-before", "soon")
    assert (code, "--due-before 'soon': write a duration from now (30m, 2h, 3d), or a time such as" in err) == (1, True)


# --- show ------------------------------------------------------------------------------------------------------------


def test_a_name_is_pending_until_it_fires(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka)
    code, out, _ = run(capsys, "show", "orders", "o-7")
    assert code == 0
    assert out.startswith("o-7: pending, due at ")
    assert re.search(r"\(in \d+ min", out)
    assert f"{PARTITION}/0" in out
    fires(kafka, 0)
    code, out, _ = run(capsys, "show", "orders", "o-7")
    assert (code, out.startswith("o-7: fired at "), "delivers that of offset 0" in out) == (0, True, True)


def test_a_message_that_is_late_asks_for_the_worker(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka, delay=None, deliver_at=SystemClock().wall_ms() - 90_000)
    _, out, _ = run(capsys, "show", "orders", "o-7")
    assert " s ago); is a worker running, or was it parked?" in out


def test_show_names_who_gave_a_command(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka)
    put(kafka, timer_command(NAMES, "orders", "o-7", "CANCEL", uniq_key="c1", born_ms=1, by="ada"))
    (found,) = facts(capsys, "show", "orders", "o-7")
    assert found["history"][1]["by"] == "ada"
    _, out, _ = run(capsys, "show", "orders", "o-7")
    _, head, _, cancel = out.splitlines()
    assert head.split()[-2:] == ["by", "effect"]
    assert "CANCEL   ada  in time: " in cancel


def test_each_command_is_shown_with_what_it_did(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    with Producer("memory:1", clients=kafka.clients()) as producer:
        producer.cancel("orders", timer="o-7")
        send(kafka)
        send(kafka)
        send(kafka, if_absent=True)
        fires(kafka, 1)
        fires(kafka, 2)
        producer.cancel("orders", timer="o-7")
        send(kafka)
        producer.cancel("orders", timer="o-7")
    _, out, _ = run(capsys, "show", "orders", "o-7")
    effects = (
        "nothing: no message was pending", "waits until", "replaces that of offset 1",
        "dropped: that of offset 2 is pending", "nothing: the message was cancelled, replaced or delivered before",
        "delivers that of offset 2", "too late: delivered by offset 5", "waits until",
        "in time: that of offset 7 is not delivered",
    )  # fmt: skip
    assert all(effect in row for effect, row in zip(effects, out.splitlines()[2:], strict=True)), out
    [found] = facts(capsys, "show", "orders", "o-7")
    assert (found["fate"], found["set_at"], found["is_certain"], found["log_begins_ms"]) == (
        "cancelled", 7, True, None,
    )  # fmt: skip
    assert [each["effect"] for each in found["history"]] == [
        "nothing", "schedule", "schedule", "nothing", "nothing", "deliver", "nothing", "schedule", "forget",
    ]  # fmt: skip


@pytest.mark.parametrize("has_state", [True, False])
def test_the_trace_of_a_message_shows_the_command_that_ended_its_waiting(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str], has_state: bool
) -> None:
    send(kafka)
    send(kafka)
    fires(kafka, 0)
    with Producer("memory:1", clients=kafka.clients()) as producer:
        producer.cancel("orders", timer="o-7")
    send(kafka)
    if not has_state:
        kafka.delete_topic(NAMES.timer_state)

    def steps(offset: int) -> list[tuple[int, str | None]]:
        capsys.readouterr()
        assert main(["trace", f"{NAMES.timers}/{PARTITION}/{offset}", *HERE, "--json"]) == 0
        return [(each["offset"], each["decision"]) for each in json.loads(capsys.readouterr().out) if "offset" in each]

    if has_state:
        replaced, late, cancelled = steps(0)
        assert replaced == (0, None)
        assert late[0] == 1
        assert re.fullmatch("waits until .*, replaces that of offset 0", late[1] or "")
        assert cancelled == (2, "nothing: the message was cancelled, replaced or delivered before")
        assert steps(1) == [(1, None), (3, "in time: that of offset 1 is not delivered")]
    assert steps(4) == [(4, None)]
    assert main(["trace", f"{NAMES.timers}/{PARTITION}/1", *HERE]) == 0
    assert ("CANCEL of the timer o-7, in time" in " ".join(capsys.readouterr().out.split())) is has_state


def test_what_the_log_does_not_have_is_unknown(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "orders", "o-7")
    assert (code, out) == (2, "o-7: unknown: the log has no message of this name\n")
    send(kafka)
    fires(kafka, 0)
    kafka.truncate(NAMES.timers, PARTITION, before_offset=1)
    code, out, _ = run(capsys, "show", "orders", "o-7")
    assert code == 2
    assert "has no message of this name; the log begins at 20" in out
    assert "unknown, as the log does not have what was pending before" in out
    [found] = facts(capsys, "show", "orders", "o-7")
    assert (found["fate"], found["is_certain"], found["history"][0]["effect"]) == ("unknown", False, None)
    assert found["log_begins_ms"] is not None


def test_a_message_that_is_older_than_the_log_is_pending_by_the_state_of_the_worker(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    send(kafka, delay="30d")
    due_ms = SystemClock().wall_ms() + 10 * 24 * HOUR_MS
    envelope = Envelope(real_topic="orders", timer="o-7")
    put(kafka, timer_state(NAMES, PARTITION, envelope, append_ms=1, era=0, applied=0, generation=0, due_ms=due_ms))
    send(kafka, next(f"x-{n}" for n in range(100) if timer_partition("orders", f"x-{n}") == PARTITION))
    kafka.truncate(NAMES.timers, PARTITION, before_offset=1)
    code, out, _ = run(capsys, "show", "orders", "o-7")
    assert (code, out.startswith("o-7: pending, due at "), "(in 9 d 23 h)" in out) == (0, True, True), out
    [found] = facts(capsys, "show", "orders", "o-7")
    assert (found["fate"], found["set_at"], found["due_ms"], found["history"]) == ("pending", 0, due_ms, [])
    code, out, _ = run(capsys, "cancel", "orders", "o-7", "--apply")
    assert (code, "in time: that of offset 0 is not delivered" in out) == (0, True)


@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("command", ["show", "cancel"])
def test_names_that_no_message_can_have_are_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "more than 255" in run(capsys, command, "orders", "x" * 256)[2]
    assert "is not a topic name" in run(capsys, command, "no topic", "o-7")[2]


@pytest.mark.parametrize("words", [["ls"], ["show", "orders", "o-7"], ["cancel", "orders", "o-7", "--apply"]])
def test_without_the_topics_the_error_says_how_to_create_them(
    kafka: InMemoryKafka, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.delete_topic(NAMES.timers)
    kafka.delete_topic(NAMES.timer_state)
    code, _, err = run(capsys, *words)
    assert (code, "rocketshim init" in err) == (1, True), err


# --- cancel ----------------------------------------------------------------------------------------------------------


def test_without_apply_nothing_is_cancelled(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka)
    code, out, _ = run(capsys, "cancel", "orders", "o-7")
    assert code == 0
    assert out.startswith("o-7: pending, due at ")
    assert out.endswith("nothing was changed; to do it, add --apply\n")
    assert len(kafka.records(NAMES.timers)) == 1
    assert run(capsys, "cancel", "orders", "o-7", "other")[0] == 2, "one of them is not pending"


def test_a_cancel_says_where_it_is_stored_and_what_the_log_has_decided(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    send(kafka)
    send(kafka, "o-8")
    code, out, _ = run(capsys, "cancel", "orders", "o-7", "o-8", "--apply")
    assert code == 0
    assert out.splitlines()[0] == (
        f"o-7: CANCEL stored at rmq.timers/{PARTITION}/1: in time: that of offset 0 is not delivered"
    )
    assert len(out.splitlines()) == 2
    code, out, _ = run(capsys, "cancel", "orders", "o-7", "--apply")
    assert (code, "nothing: no message was pending" in out) == (2, True)


def test_a_cancel_behind_the_fire_is_too_late(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka)
    fires(kafka, 0)
    code, out, _ = run(capsys, "cancel", "orders", "o-7", "--apply")
    assert (code, "too late: delivered by offset 1" in out) == (2, True)
    [found] = facts(capsys, "cancel", "orders", "o-7", "--apply")
    assert (found["fate"], found["command"], found["stored_at"]) == ("fired", "CANCEL", f"rmq.timers/{PARTITION}/3")


def test_a_command_that_a_transaction_of_the_worker_hides_is_read_when_that_has_ended(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(kafka)
    worker = kafka.producer({"bootstrap.servers": "memory:1", "transactional.id": "w"})
    worker.init_transactions(10)
    worker.begin_transaction()
    worker.produce(NAMES.timers, b"x", partition=PARTITION)
    worker.flush(10)
    ends = SimpleNamespace(
        sleep=lambda _: worker.commit_transaction(10), monotonic=time.monotonic, time_ns=time.time_ns
    )
    monkeypatch.setattr("rocketshim.kafka.timer_log.time", ends)
    code, out, _ = run(capsys, "cancel", "orders", "o-7", "--apply")
    assert (code, "in time" in out) == (0, True), out


def test_a_message_is_delivered_now_at_most_once(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka)
    assert run(capsys, "now", "orders", "o-7")[0] == 0
    code, out, _ = run(capsys, "now", "orders", "o-7", "--apply")
    assert (code, out) == (0, f"o-7: NOW stored at rmq.timers/{PARTITION}/1: delivers that of offset 0\n")
    code, out, _ = run(capsys, "now", "orders", "o-7", "--apply")
    assert (code, "too late: delivered by offset 1" in out) == (2, True)
    assert run(capsys, "show", "orders", "o-7")[1].startswith("o-7: delivered-now at ")


def test_cancels_that_were_stored_before_an_error_are_named(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = Producer.cancel

    def fail(self: Producer, topic: str, *, timer: str, timeout_s: float) -> Any:
        kafka.deny(NAMES.timers) if timer == "o-8" else None
        return cancel(self, topic, timer=timer, timeout_s=timeout_s)

    monkeypatch.setattr(Producer, "cancel", fail)
    code, _, err = run(capsys, "cancel", "orders", "o-7", "o-8", "--apply")
    assert (code, "the CANCEL for 'o-8'" in err, "Stored before: o-7" in err) == (1, True, True), err
