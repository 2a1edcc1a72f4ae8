"""The picture of a message's history: its layout, and the drawing as a golden file."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.trace import history
from rocketshim.console.context import Templates
from rocketshim.console.records import biography
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import DelayLevels

from .conftest import DEAD, NAMES, RETRY, Stage, dead_letter
from .test_dead_letters import text_of

GOLDEN = Path(__file__).parent / "golden"


def append(stage: Stage, topic: str, *, after_ms: int = 0, made_from: str | None = None, **fields: object) -> str:
    stage.kafka.clock.advance(after_ms)  # type: ignore[attr-defined]
    record = stage.kafka.append(topic, b"x", partition=0, headers=dead_letter(0, hop_id=made_from, **fields))
    del record
    return f"{topic}/0/{len(stage.kafka.records(topic)) - 1}"


def a_life(stage: Stage) -> str:
    """A message that failed twice, whose first delivery retention has deleted, and that is dead."""
    first = append(stage, NAMES.schedule, reconsume_times=1, real_topic="%RETRY%payments", delay_ms=10_000)
    retry = append(stage, RETRY, after_ms=10_000, made_from=first, reconsume_times=1, fail_class=None, fail_text=None)
    second = append(
        stage, NAMES.schedule, made_from=retry, reconsume_times=2, real_topic="%RETRY%payments", delay_ms=30_000
    )
    again = append(stage, RETRY, after_ms=30_000, made_from=second, reconsume_times=2, fail_class=None, fail_text=None)
    return append(stage, DEAD, after_ms=5_400_000, made_from=again, reconsume_times=2)


def test_the_picture_has_a_column_for_each_record_and_waits_as_labels(stage: Stage) -> None:
    a_life(stage)
    with TopicReader("memory:1", clients=stage.kafka.clients(blocking=False)) as reader:
        entries = [RecordView.of(each) for each in reader.read([NAMES.schedule, RETRY, DEAD])]
        drawn = biography(history(reader, NAMES, DelayLevels.default(), entries, lambda *_: None), NAMES)
    assert [*drawn.lanes] == ["source", "schedule", "retry", "dead"]
    assert [(step.lane, step.kind, step.wait) for step in drawn.steps] == [
        ("source", "missing", ""),
        ("schedule", "failed", ""),
        ("retry", "made", "10 s"),
        ("schedule", "failed", ""),
        ("retry", "made", "30 s"),
        ("dead", "dead", "1 h 30 min"),
    ]
    templates = Templates("", lambda: 0)
    shown = templates.drawn("picture", drawn)
    svg = re.search(r"<svg.*</svg>", shown, flags=re.DOTALL)
    assert svg is not None
    assert svg[0] + "\n" == (GOLDEN / "biography.svg").read_text()


def test_the_page_of_a_dead_letter_finds_the_records_that_it_was_made_from(stage: Stage) -> None:
    at = a_life(stage)
    page = stage.browser().get(f"/message/{at}").text
    assert page.count("<circle") == 6
    assert f'href="/message/{NAMES.schedule}/0/1"' in page
    assert "rocketshim trace rmq.dlq.payments/0/0" in page
    found = stage.browser().get("/message", params={"id": "m0", "everything": "1"}).text
    assert found.count("<circle") == 6
    assert stage.browser().get("/message", params={"id": at}).headers["location"] == f"/message/{at}"
    assert "No record" in stage.browser().get("/message", params={"id": "unknown"}).text


def test_a_hidden_source_topic_hides_nothing_else(stage: Stage) -> None:
    stage.add_dead(1)
    clients = stage.kafka.clients(blocking=False)

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        ask = made.get_watermark_offsets

        def answer(partition: TopicPartition, timeout: float = -1) -> Any:
            if partition.topic == "orders":
                raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
            return ask(partition, timeout)

        made.get_watermark_offsets = answer  # type: ignore[method-assign, assignment]
        return made

    answer = stage.browser(replace(clients, consumer=consumer)).get(f"/message/{DEAD}/0/0")
    assert answer.status_code == 200
    assert "missing: it was not found" in text_of(answer.text)


def test_only_a_dead_letter_is_called_dead(stage: Stage) -> None:
    stage.add_dead(1)
    browser = stage.browser()
    for topic in ("orders", RETRY, NAMES.schedule, NAMES.parked):
        stage.kafka.append(topic, b"x", partition=0)
        assert "state dead" not in text_of(browser.get(f"/message/{topic}/0/0").text)
    assert "state dead" in text_of(browser.get(f"/message/{DEAD}/0/0").text)
