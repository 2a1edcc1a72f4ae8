"""`send`: lines of standard input."""

import io
import json
from typing import Any

import pytest

from rocketshim import Message, Producer
from rocketshim.cli import main
from rocketshim.cli.send import LineSender, read_lines
from rocketshim.errors import SendError
from rocketshim.testing import InMemoryKafka


def sent(kafka: InMemoryKafka, text: bytes, *, as_json: bool = False) -> None:
    with Producer("memory:1", clients=kafka.clients()) as producer:
        sender = LineSender(producer, lambda body: Message("orders", body), timeout_s=60, as_json=as_json)
        sender.send(read_lines(io.BytesIO(text)))


@pytest.fixture
def kafka() -> InMemoryKafka:
    made = InMemoryKafka()
    made.create_topic("orders", 1)
    return made


def bodies(kafka: InMemoryKafka) -> list[Any]:
    return [record.value() for record in kafka.records("orders")]


def test_each_line_is_a_message_in_its_order(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    sent(kafka, b"one\r\n\ntwo\n  three ")
    assert bodies(kafka) == [b"one", b"two", b"  three "]
    assert capsys.readouterr().out == "3 messages stored\n"
    sent(kafka, b"four")
    assert capsys.readouterr().out == "1 message stored\n"


def test_each_stored_line_is_one_line_of_json(kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]) -> None:
    sent(kafka, b"one\n\ntwo\n", as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["line"] for row in rows] == [1, 3]
    assert all(set(row) == {"line", "msg_id", "offset_msg_id"} for row in rows)


def test_a_refused_line_stops_the_command_and_the_error_counts_what_was_stored(kafka: InMemoryKafka) -> None:
    with pytest.raises(SendError, match=r"line 3 was not sent: .*2 messages stored"):
        sent(kafka, b"one\ntwo\n" + b"x" * 5_000_000 + b"\nfour\n")
    assert bodies(kafka) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["orders"], "give BODY"),
        (["orders", "x", "--lines"], "give BODY"),
        (["orders", "x", "--deliver-at", "tomorrow"], "--deliver-at 'tomorrow': write a time such as"),
        (["orders", "x", "--deliver-at", "2026-11-20", "--delay", "5s"], "at most one of its three delays"),
        (["orders", "x", "--delay", "5"], "is not a duration"),
        (["orders", "x", "--timer", "o-7"], "--timer is given without a delay"),
        (["orders", "x", "--delay", "5s", "--if-absent"], "--if-absent is given without a timer"),
        (["orders", "--lines", "--delay", "5s", "--timer", "o-7"], "--timer names one message"),
    ],
)
def test_wrong_options_are_refused_before_a_broker_is_asked(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["send", *words, "--bootstrap", "127.0.0.1:1"]) == 1
    assert told in capsys.readouterr().err


def test_a_message_with_a_name_is_a_command(kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.producer.producer.confluent_clients", kafka.clients)
    kafka.create_topic("rmq.timers", 8)
    words = ["send", "orders", "x", "--delay", "30m", "--timer", "o-7", "--bootstrap", "memory:1"]
    assert main([*words, "--at-most", "2h"]) == 0
    assert main([*words, "--if-absent"]) == 0
    first, second = (dict(record.headers() or ()) for record in kafka.records("rmq.timers"))
    assert (first["TIMER"], first["TIMER_DO"], first["TIMER_AT_MOST_MS"]) == (b"o-7", b"SET", b"7200000")
    assert (second["TIMER"], second["TIMER_DO"]) == (b"o-7", b"SET-IF-ABSENT")


def test_what_is_not_utf_8_is_sent_as_it_was_typed(kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.producer.producer.confluent_clients", kafka.clients)
    words = ["x\udcff", "--key", "k\udcff", "--property", "p=\udcff"]
    assert main(["send", "orders", *words, "--bootstrap", "memory:1"]) == 0
    [record] = kafka.records("orders")
    assert (record.key(), record.value(), dict(record.headers() or ())["p"]) == (b"k\xff", b"x\xff", b"\xff")
