"""The pages of topics: the list, the records of one, and a message that an operator sends."""

import re
from typing import Any

import pytest

from rocketshim.admin.record_view import time_text
from rocketshim.console.topics import SENT_BY, _retention
from rocketshim_topics import Envelope, encode

from .conftest import DEAD, NAMES, OUR_PAGE, Stage
from .test_dead_letters import text_of, without_leader
from .test_observed import commit


def put(stage: Stage, body: bytes = b"x", *, key: bytes | None = None, tag: str | None = None, **user: str) -> None:
    fields = tuple((name, value.encode()) for name, value in user.items())
    headers = encode(Envelope(shim=1, uniq_key=f"id-{body.decode()}", tags=tag, user=fields))
    stage.kafka.append("orders", body, key=key, headers=headers)


def shown(browser: Any, topic: str = "orders", **query: str) -> str:
    answer = browser.get(f"/topics/{topic}", params=query)
    assert answer.status_code == 200, answer.text
    return text_of(answer.text)


def test_topics_are_listed_with_who_reads_them_and_rocketshims_own_come_last(stage: Stage) -> None:
    stage.kafka.create_topic("__consumer_offsets", 1)
    put(stage, b"old")
    clock: Any = stage.kafka.clock
    clock.advance(60_001)
    for number in range(6):
        put(stage, b"%d" % number)
    commit(stage, "payments", "orders", 0, 1)
    browser = stage.browser()
    [console] = stage.consoles
    console.now_ms = clock.wall_ms
    page = browser.get("/topics").text
    seen = text_of(page)
    assert "orders 1 7 0.1 – payments (6)" in seen
    assert seen.index("orders 1 7") < seen.index(f"{DEAD} rocketshim's 2 0")
    assert "__consumer_offsets" not in seen
    assert f'href="/topics/{DEAD}"' in page
    named = text_of(stage.browser().get("/topics", params={"name": "der"}).text)
    assert ("orders 1 7" in named, DEAD in named) == (True, False)


def test_a_list_of_many_topics_is_cut_and_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketshim.console.topics._MOST_TOPICS", 1)
    seen = text_of(stage.browser().get("/topics").text)
    assert "orders" in seen
    assert DEAD not in seen
    assert re.search(r"Not complete: \d+ more topics", seen)


@pytest.mark.parametrize(
    ("policy", "keep_ms", "text"),
    [
        ("delete", "604800000", "7 d"),
        ("delete", "-1", "forever"),
        ("compact", "604800000", "the newest of each key"),
        ("compact,delete", "86400000", "1 d, the newest of each key"),
    ],
)
def test_how_long_a_topic_keeps_its_records_is_said_in_words(policy: str, keep_ms: str, text: str) -> None:
    assert _retention({"cleanup.policy": policy, "retention.ms": keep_ms}) == text


def test_the_offsets_of_a_topic_whose_leader_is_away_are_not_known(stage: Stage) -> None:
    stage.kafka.create_topic("bills", 2)
    seen = text_of(stage.browser(without_leader(stage, "bills", 1)).get("/topics").text)
    assert "bills 2 – – –" in seen
    assert "orders 1 0" in seen


def test_records_are_listed_newest_first_and_the_next_page_goes_on_without_a_gap(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.console.topics._ON_A_PAGE", 2)
    for number in range(5):
        put(stage, b"body-%d" % number, key=b"k%d" % number, tag="paid")
    browser, found, path = stage.browser(), [], "/topics/orders"
    for _ in range(3):
        page = browser.get(path).text
        found.append(re.findall(r"<td class=\"text\">(body-\d)</td>", page))
        more = re.search(r'<a href="([^"]+)">Older records', page)
        path = "" if more is None else more[1].replace("&amp;", "&")
    assert found == [["body-4", "body-3"], ["body-2", "body-1"], ["body-0"]]
    assert path == ""
    assert "0/4" in shown(browser)
    assert "k4 paid 6 body-4 id-body-4" in shown(browser)
    assert "rocketshim topic ls orders --bootstrap memory:1 --newest 2" in shown(browser)


def test_records_are_selected_by_condition_tag_key_and_time(stage: Stage) -> None:
    clock: Any = stage.kafka.clock
    put(stage, b"old", key=b"k1", tag="created", price="5")
    clock.advance(3_600_000)
    middle_ms = clock.wall_ms()
    put(stage, b"new", key=b"k2", tag="paid", price="20")
    browser = stage.browser()

    def bodies(**query: str) -> list[str]:
        page = browser.get("/topics/orders", params=query).text
        return re.findall(r"<td class=\"text\">(old|new)</td>", page)

    between = time_text(middle_ms - 1_000).replace(" ", "T") + "Z"
    assert bodies() == ["new", "old"]
    assert bodies(where="price >= 10") == ["new"]
    assert bodies(tags="created || other") == ["old"]
    assert bodies(key="k1") == ["old"]
    assert bodies(since=between) == ["new"]
    assert bodies(until=between) == ["old"]
    assert "Everything was read (1 record," in shown(browser, since=between), "the index has found where to begin"
    assert bodies(since=between, until=between) == []
    assert f"topic ls orders --bootstrap memory:1 --until {between}" in shown(browser, until=between)
    assert "no record here has a header prize" in shown(browser, where="prize >= 10")
    for wrong in ({"where": "price >="}, {"until": "soon"}, {"since": "soon"}, {"from": "x"}, {"where": "a" * 3_000}):
        assert browser.get("/topics/orders", params=wrong).status_code == 400, wrong
    assert browser.get("/topics/nowhere").status_code == 404


def test_bodies_keys_and_headers_that_are_hidden_are_not_in_a_list(stage: Stage) -> None:
    put(stage, b"secret-body", key=b"secret-key", tag="paid", card="secret-header")
    seen = shown(stage.browser(hide=frozenset({"bodies", "headers"})))
    assert "paid" in seen
    assert "secret-key" not in seen
    assert "stored (UTC) tag bytes id" in seen
    record = text_of(stage.browser(hide=frozenset({"headers"})).get("/message/orders/0/0").text)
    assert ("secret-header" in record, "as stored" in record) == (False, False)


def test_a_record_is_shown_whole_with_each_header_as_it_is_stored(stage: Stage) -> None:
    put(stage, b'{"n":1}', tag="paid", price="20")
    page = stage.browser().get("/message/orders/0/0").text
    assert "4 headers, as stored" in text_of(page)
    assert '<th scope="row">TAGS</th><td class="text">paid</td>' in page
    assert '<th scope="row">price</th><td class="text">20</td>' in page
    assert "{\n  &#34;n&#34;: 1\n}" in page
    assert 'href="/topics/orders"' in page


def test_an_operator_sends_a_message_as_a_program_would_and_it_names_them(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    browser = stage.browser(operate=True)
    assert "Send it to orders" in shown(browser)
    caplog.set_level("INFO", logger="rocketshim.console")
    form = {"body": '{"n":\r\n1}', "key": "k", "tag": "paid", "properties": "price=20\r\n\r\n note = a=b "}
    answer = browser.post("/topics/orders/messages", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/message/orders/0/0")
    [record] = stage.kafka.records("orders")
    headers = dict(record.headers())
    assert (record.value(), record.key()) == (b'{"n":\n1}', b"k")
    assert (headers["TAGS"], headers["price"], headers["note"]) == (b"paid", b"20", b"a=b")
    assert b"(console of " in headers[SENT_BY]
    assert re.fullmatch(b"[0-9a-f]{32}", headers["UNIQ_KEY"])
    logged = [vars(each) for each in caplog.records]
    [fact] = [each for each in logged if each.get("event") == "console.message-sent"]
    assert (fact["by"].encode(), fact["stored_at"]) == (headers[SENT_BY], "orders/0/0")
    assert headers[SENT_BY].decode() in text_of(browser.get(answer.headers["location"]).text)


def test_a_message_with_a_delay_waits_for_the_worker(stage: Stage) -> None:
    browser = stage.browser(operate=True)
    answer = browser.post("/topics/orders/messages", data={"body": "later", "delay": "30s"})
    assert answer.headers["location"].startswith(f"/message/{NAMES.schedule}/")
    assert stage.kafka.records("orders") == []
    assert "orders" in text_of(browser.get("/waiting/records").text)


@pytest.mark.parametrize(
    ("topic", "form", "why"),
    [
        ("nowhere", {}, "there is no topic nowhere"),
        (DEAD, {}, "no message is sent to"),
        ("orders", {"delay": "soon"}, "soon"),
        ("orders", {"tag": "a||b"}, "tag"),
        ("orders", {"properties": "price"}, "one NAME=VALUE a line"),
        ("orders", {"properties": "UNIQ_KEY=1"}, "UNIQ_KEY"),
        ("orders", {"properties": "SENT_BY=somebody"}, "SENT_BY"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_the_reason_and_nothing_is_sent(
    stage: Stage, topic: str, form: dict[str, str], why: str
) -> None:
    answer = stage.browser(operate=True).post(f"/topics/{topic}/messages", data={"body": "x", **form})
    assert answer.status_code in {400, 404}
    assert why in text_of(answer.text)
    assert "bug in rocketshim" not in answer.text
    assert stage.kafka.records("orders") == []


def test_a_topic_of_rocketshim_has_no_form_and_without_operate_no_topic_has(stage: Stage) -> None:
    assert "Send it to" not in shown(stage.browser(operate=True), DEAD)
    reading = stage.browser()
    assert "Send it to" not in shown(reading)
    assert reading.post("/topics/orders/messages", data={"body": "x"}, headers=OUR_PAGE).status_code in {404, 405}
    assert stage.kafka.records("orders") == []
