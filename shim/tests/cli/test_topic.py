"""`topic ls` on the in-memory Kafka."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rocketshim.admin.record_filter import RecordFilter
from rocketshim.admin.record_view import RecordView, time_text
from rocketshim.cli import main
from rocketshim.cli.kinds import Records, partitions, read_partitions
from rocketshim.errors import ConfigError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

KEYS = [TopicPartitionKey("orders", 0), TopicPartitionKey("orders", 1)]


@pytest.fixture
def kafka() -> InMemoryKafka:
    made = InMemoryKafka()
    made.create_topic("orders", 2)
    producer = made.producer({"bootstrap.servers": "memory:1"})
    for number in range(10):
        headers = [("TAGS", b"even" if number % 2 == 0 else b"odd"), ("price", b"%d" % number)]
        producer.produce("orders", b"body %d" % number, b"key", number % 4 // 3, headers=headers)
    producer.flush(10)
    return made


def seen(kafka: InMemoryKafka, *, last: int | None = None, keys: Any = KEYS, **choice: Any) -> list[int]:
    selected = RecordFilter(**choice)
    selected.newest = last
    with TopicReader("memory:1", clients=kafka.clients()) as reader:
        records = Records(
            reader,
            "orders",
            partial(RecordView.of, trusted=False),
            lambda *_: read_partitions(reader, keys, selected, follow=False),
        )
        found = list(records.select(selected))
    return sorted(int((entry.value or b"").split()[1]) for entry in found)


def test_everything_is_shown_without_a_selection(kafka: InMemoryKafka) -> None:
    assert seen(kafka) == list(range(10))
    assert seen(kafka, since="1970-01-02") == list(range(10))


def test_tags_conditions_keys_and_partitions_select(kafka: InMemoryKafka) -> None:
    assert seen(kafka, tags="even") == [0, 2, 4, 6, 8]
    assert seen(kafka, where="price > 6") == [7, 8, 9]
    assert seen(kafka, key="other") == []
    assert seen(kafka, keys=KEYS[1:]) == [3, 7]
    assert seen(kafka, keys=KEYS[1:], since="1970-01-02") == [3, 7]


def test_the_newest_are_the_last_ones_of_each_partition(kafka: InMemoryKafka) -> None:
    assert seen(kafka, last=1) == [7, 9]
    assert seen(kafka, last=2, tags="even") == [8]


def test_the_newest_are_records_and_not_offsets_behind_markers_and_aborted_records(kafka: InMemoryKafka) -> None:
    for number in (0, 1):
        kafka.skip_offsets("orders", number, count=7)
    assert seen(kafka, last=1) == [7, 9]
    assert seen(kafka, last=2) == [3, 7, 8, 9]
    assert seen(kafka, last=100) == list(range(10))


def test_a_missing_partition_is_refused(kafka: InMemoryKafka) -> None:
    with TopicReader("memory:1", clients=kafka.clients()) as reader:
        assert partitions(reader, "orders", 1) == KEYS[1:]
        with pytest.raises(ConfigError, match="the topic has the partitions 0 to 1"):
            partitions(reader, "orders", 2)


def test_the_table_ends_at_the_limit(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", kafka.clients)
    assert main(["topic", "ls", "orders/0", "--limit", "2", "--bootstrap", "memory:1"]) == 0
    out, err = capsys.readouterr()
    assert ("body 1" in out, "body 2" in out) == (True, False)
    assert "the first 2; --limit shows more" in err


@pytest.mark.parametrize("words", ["--newest 2 --since 1h", "--newest 2 --until 1h"])
def test_two_beginnings_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "ls", "orders", *words.split(), "--bootstrap", "127.0.0.1:1"]) == 1
    assert "use one of them" in capsys.readouterr().err


def test_records_before_a_time_are_read_and_no_later_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic("orders", 2)
    for number in range(4):
        kafka.append("orders", b"body %d" % number, partition=number % 2)
        clock.advance(3_600_000)
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", kafka.clients)
    until = time_text(clock.wall_ms() - 2 * 3_600_000 - 1).replace(" ", "T") + "Z"
    since = time_text(clock.wall_ms() - 4 * 3_600_000 + 1).replace(" ", "T") + "Z"
    words = ["topic", "ls", "--bootstrap", "memory:1", "--until", until]
    assert main([*words, "orders"]) == 0
    out = capsys.readouterr().out
    assert [f"body {number}" in out for number in range(4)] == [True, True, False, False]
    assert main([*words, "--since", since, "orders"]) == 0
    out = capsys.readouterr().out
    assert [f"body {number}" in out for number in range(4)] == [False, True, False, False]
    assert main([*words, "orders/0"]) == 0
    assert "body 1" not in capsys.readouterr().out
    assert main([*words, "--follow", "orders"]) == 1
    assert "--until leaves them out" in capsys.readouterr().err


def test_records_that_were_stored_out_of_order_are_selected_by_their_own_time(kafka: InMemoryKafka) -> None:
    choice = RecordFilter()
    choice.until_ms = 5
    with TopicReader("memory:1", clients=kafka.clients()) as reader:
        [first, *_] = reader.read(["orders"])
    view = RecordView.of(first)
    assert [choice.wants(replace(view, stored_ms=at_ms)) for at_ms in (4, 5)] == [True, False]


@pytest.mark.parametrize("words", ["topic show orders/0/0", "topic show orders 0/0", "trace orders/0/0"])
def test_a_record_is_shown_by_its_address_alone(
    words: str, kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.create_topic(TopicNames().schedule, 1)
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", lambda: kafka.clients(blocking=False))
    assert main([*words.split(), "--bootstrap", "memory:1"]) == 0
    assert "orders/0/0" in capsys.readouterr().out


def test_an_address_is_no_list_and_a_topic_is_no_record(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", lambda: kafka.clients(blocking=False))
    assert main(["topic", "ls", "orders/0/0", "--bootstrap", "memory:1"]) == 1
    assert "rocketshim topic show orders/0/0" in capsys.readouterr().err
    assert main(["topic", "show", "orders", "--bootstrap", "memory:1"]) == 1
    assert "orders: write TOPIC/PARTITION/OFFSET" in capsys.readouterr().err
