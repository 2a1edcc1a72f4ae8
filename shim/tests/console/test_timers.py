"""The pages of named timers: what is pending, what became of a name, cancel and "deliver now"."""

import re
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from rocketshim import Producer
from rocketshim.admin.timer_view import is_named
from rocketshim_topics import DelayLevels, Envelope, Layout, encode
from rocketshim_topics.hops import timer_state
from rocketshim_topics.partitioner import timer_partition

from .conftest import NAMES, OUR_PAGE, Stage
from .test_dead_letters import text_of

PARTITION = timer_partition("orders", "o-7")
COMMAND = {"topic": "orders", "name": "o-7", "generation": "0"}


@pytest.fixture(autouse=True)
def _topics(stage: Stage) -> None:
    stage.kafka.create_topics(Layout(NAMES, DelayLevels.default()).timers())


def put_state(stage: Stage, name: str, due_ms: int | None, *, topic: str = "orders", generation: int = 0) -> None:
    out = timer_state(
        NAMES, timer_partition(topic, name), Envelope(real_topic=topic, timer=name), applied=generation, append_ms=1,
        era=0, generation=None if due_ms is None else generation, due_ms=due_ms or 0,
    )  # fmt: skip
    stage.kafka.append(out.topic, out.value, key=out.key, partition=out.partition or 0, headers=list(out.headers))


def send(stage: Stage, name: str = "o-7", **options: Any) -> None:
    with Producer("memory:1", clients=stage.kafka.clients()) as producer:
        producer.send("orders", b"x", **{"delay": "30m", "timer": name, **options})


def shown(browser: Any, **query: str) -> str:
    return text_of(browser.get("/timers/name", params={"topic": "orders", "name": "o-7", **query}).text)


def commands(stage: Stage) -> list[str]:
    found = [dict(record.headers()).get("TIMER_DO") for record in stage.kafka.records(NAMES.timers, PARTITION)]
    return [each.decode() for each in found if each is not None]


def test_pending_names_are_listed_by_topic_name_and_time_the_first_due_first(stage: Stage) -> None:
    browser = stage.browser()
    now_ms = stage.consoles[0].now_ms()
    assert "No name is pending." in text_of(browser.get("/timers").text)
    put_state(stage, "o-9", now_ms + 7_000_000)
    put_state(stage, "o-7", now_ms + 50_000)
    put_state(stage, "daily", now_ms + 8_000_000, topic="reports")
    put_state(stage, "gone", now_ms + 9_000_000)
    put_state(stage, "gone", None, generation=1)
    seen = text_of(browser.get("/timers").text)
    assert "3 pending names" in seen
    assert seen.index("o-7") < seen.index("o-9") < seen.index("daily")
    assert "gone" not in seen
    assert "Everything was read" in seen
    histogram = re.search(r"due now 10 s 1 min .*? later|due now .*? 6 h 1 d", seen)
    assert histogram is not None
    by_topic = text_of(browser.get("/timers", params={"topic": "orders", "name": "o-*", "due_before": "1h"}).text)
    assert "1 pending name " in by_topic
    assert "o-9" not in by_topic
    assert "timers ls --bootstrap memory:1 --topic orders --name 'o-*' --due-before 1h" in by_topic
    assert browser.get("/timers", params={"due_before": "soon"}).status_code == 400


def test_the_list_says_that_no_worker_has_read_the_commands(stage: Stage) -> None:
    send(stage)
    browser = stage.browser()
    said = "No worker has read the commands since "
    assert said in text_of(browser.get("/timers").text)
    consumer = stage.kafka.consumer({"group.id": NAMES.worker_group})
    consumer.commit(offsets=[TopicPartition(NAMES.timers, PARTITION, 1)], asynchronous=False)
    assert said not in text_of(browser.get("/timers").text)


def test_names_fit_a_glob_and_themselves() -> None:
    assert is_named("o-7", None)
    assert is_named("o-7", "o-*")
    assert is_named("a[1]", "a[1]"), "a name may look like a glob"
    assert not is_named("o-7", "p-*")


def test_a_list_that_was_cut_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.console.timers._MOST_STATES", 2)
    now_ms = stage.consoles[0].now_ms() if stage.consoles else 1
    for number in range(5):
        put_state(stage, f"o-{number}", now_ms + 1_000_000)
    seen = text_of(stage.browser().get("/timers").text)
    assert "Not complete: the limit of records on a page was reached" in seen
    assert "2 pending names" in seen


def test_the_history_of_a_name_shows_what_each_command_did(stage: Stage) -> None:
    send(stage)
    send(stage, delay="2h")
    send(stage, delay="2h", if_absent=True)
    browser = stage.browser()
    seen = shown(browser)
    assert "pending, due at" in seen
    assert "replaces that of offset 0" in seen
    assert "dropped: that of offset 1 is pending" in seen
    assert "Cancel it" not in seen, "this console may not operate"
    assert "unknown: the log has no message of this name" in text_of(
        browser.get("/timers/name", params={"topic": "orders", "name": "other"}).text
    )
    assert browser.get("/timers/name", params={"topic": "orders", "name": ""}).status_code == 400
    assert browser.get("/timers/name").headers["location"] == "/timers"


def test_a_history_that_was_cut_takes_a_pending_name_from_what_the_worker_stored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.console.timers._MOST_COMMANDS", 1)
    send(stage)
    send(stage, if_absent=True)
    put_state(stage, "o-7", stage.kafka.clock.wall_ms() + 1_800_000)
    seen = shown(stage.browser())
    assert "pending, due at" in seen
    assert "dropped: that of offset 0 is pending" in seen
    assert "Not complete: the limit of records on a page was reached" in seen
    assert "the commands of the log" in seen.lower()


@pytest.mark.parametrize(
    ("do", "became"), [("cancel", "in time: that of offset 0 is not delivered"), ("now", "delivers that")]
)
def test_an_operator_cancels_or_delivers_what_the_page_shows_and_the_record_names_the_person(
    stage: Stage, do: str, became: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(stage)
    browser = stage.browser(operate=True)
    page = browser.get("/timers/name", params={"topic": "orders", "name": "o-7"}).text
    assert 'name="generation" value="0"' in page
    caplog.set_level("INFO", logger="rocketshim.console")
    answer = browser.post("/timers/command", data={**COMMAND, "do": do})
    assert answer.status_code == 303
    seen = text_of(browser.get(answer.headers["location"]).text)
    assert f"stored at {PARTITION}/1: {became}" in seen
    assert commands(stage) == ["SET", {"cancel": "CANCEL", "now": "NOW"}[do]]
    [_, record] = stage.kafka.records(NAMES.timers, PARTITION)
    by = dict(record.headers())["BY"].decode()
    assert "(console of " in by
    assert by in seen
    logged = [vars(each) for each in caplog.records]
    assert [each["by"] for each in logged if each.get("event") == "console.timer-commanded"] == [by]
    assert "Cancel it" not in seen
    assert browser.post("/timers/command", data={**COMMAND, "do": do}).status_code == 400, "it waits no more"


def test_a_button_of_an_old_page_does_nothing_to_a_newer_message(stage: Stage) -> None:
    send(stage)
    browser = stage.browser(operate=True)
    send(stage, delay="2h")
    answer = browser.post("/timers/command", data={**COMMAND, "do": "cancel"})
    assert answer.status_code == 400
    assert "does not wait" in text_of(answer.text)
    assert browser.post("/timers/command", data={**COMMAND, "generation": "1", "do": "drop"}).status_code == 400
    assert commands(stage) == ["SET", "SET"]


def test_without_operate_there_is_no_way_to_command(stage: Stage) -> None:
    send(stage)
    answer = stage.browser().post("/timers/command", data={**COMMAND, "do": "cancel"}, headers=OUR_PAGE)
    assert answer.status_code == 404
    assert commands(stage) == ["SET"]


def test_a_message_leads_to_the_history_of_its_name(stage: Stage) -> None:
    send(stage)
    page = stage.browser().get(f"/message/{NAMES.timers}/{PARTITION}/0").text
    assert "/timers/name?topic=orders&amp;name=o-7" in page
    assert "SET of the timer o-7, waits" in text_of(page)


def test_the_biography_of_a_message_shows_that_it_was_cancelled_or_replaced(stage: Stage) -> None:
    send(stage)
    send(stage)
    browser = stage.browser(operate=True)
    browser.post("/timers/command", data={**COMMAND, "generation": "1", "do": "cancel"})
    seen = [text_of(browser.get(f"/message/{NAMES.timers}/{PARTITION}/{offset}").text) for offset in (0, 1)]
    assert "replaces that of offset 0" in seen[0]
    assert "CANCEL of the timer o-7, in time: that of offset 1 is not delivered" in seen[1]


def test_a_message_of_a_transaction_is_left_to_its_producers(stage: Stage) -> None:
    half = Envelope(real_topic="orders", timer="o-7", timer_asks="shop", deliver_at_ms=2**42, shim=1, timer_do="SET")
    stage.kafka.append(NAMES.timers, b"x", partition=PARTITION, headers=encode(half))
    out = timer_state(NAMES, PARTITION, half, applied=0, append_ms=1, era=0, generation=0, due_ms=2**42)
    stage.kafka.append(out.topic, out.value, key=out.key, partition=out.partition or 0, headers=list(out.headers))
    browser = stage.browser(operate=True)
    assert "No name is pending." in text_of(browser.get("/timers").text)
    seen = shown(browser)
    assert "It is a message of a transaction" in seen
    assert "Cancel it" not in seen
    assert browser.post("/timers/command", data={**COMMAND, "do": "cancel"}).status_code == 400


def test_a_log_that_no_worker_reads_is_seen_where_queues_are(stage: Stage) -> None:
    send(stage)
    stage.kafka.clock.advance(90_000)  # type: ignore[attr-defined]
    browser = stage.browser()
    assert f"{PARTITION} timer log 1" in text_of(browser.get("/waiting").text)
    assert "timer log 1 " in text_of(browser.get("/workers").text)
