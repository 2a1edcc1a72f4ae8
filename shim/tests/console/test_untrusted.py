"""Nothing that a sender controls reaches a page unescaped, and what is hidden cannot be found out."""

from dataclasses import fields
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from rocketshim_topics import Envelope

from .conftest import DEAD, NAMES, RETRY, Stage, dead_letter

ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}javascript:\u202e\x1b[31m"
RAW = ("<script>alert", "<img src=x", "\u202e", "\x1b")
TEXTS = [field.name for field in fields(Envelope) if field.type in {"str | None", str | None}]


def pages(browser: TestClient) -> list[str]:
    urls = [
        "/", "/dead", f"/dead/{DEAD}", f"/dead/{DEAD}/letters?all=1", f"/message/{DEAD}/0/0",
        f"/message/{DEAD}/0/0?everything=1", "/message?everything=1&id=m0", "/plans",
        "/waiting", "/waiting/records", "/retrying/payments", "/parked", "/groups", "/groups/payments", "/workers",
        "/topics", f"/topics/{DEAD}", f"/topics/{NAMES.schedule}", "/topics/orders", f"/topics/{RETRY}",
    ]  # fmt: skip
    answers = [browser.get(url) for url in urls]
    assert {answer.status_code for answer in answers} == {200}, [
        (a.url, a.text[-500:]) for a in answers if a.status_code != 200
    ]
    found = [answer.text for answer in answers]
    answer = browser.post(f"/dead/{DEAD}/plans", data={"again": "1"})
    if answer.status_code == 303:
        found += [browser.get(answer.headers["location"]).text, browser.get("/plans").text]
    return found


def assert_escaped(browser: TestClient) -> str:
    everything = "\n".join(pages(browser))
    for raw in RAW:
        assert raw not in everything, raw
    return everything


@pytest.mark.parametrize("name", TEXTS)
def test_each_text_of_the_headers_is_escaped(stage: Stage, name: str) -> None:
    stage.add_dead(2, **{name: ATTACK})
    for topic in (NAMES.schedule, NAMES.parked, RETRY):
        stage.kafka.append(topic, b"x", headers=dead_letter(9, **{"real_topic": "%RETRY%payments", name: ATTACK}))
    stage.kafka.append("orders", b"x", headers=dead_letter(9, **{name: ATTACK}))
    assert_escaped(stage.browser(operate=True))


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_not_utf_8_breaks_no_page(stage: Stage, name: str) -> None:
    stage.add_dead(2, **{name: "m\udcff"})
    for topic in (NAMES.schedule, NAMES.parked, RETRY):
        stage.kafka.append(topic, b"x", headers=dead_letter(9, **{"real_topic": "%RETRY%payments", name: "m\udcff"}))
    assert "a bug in rocketshim" not in "".join(pages(stage.browser(operate=True)))


def test_the_attack_would_be_seen(stage: Stage) -> None:
    """The tests above hold of something: the text is on the pages, escaped."""
    stage.add_dead(1, fail_class=ATTACK, fail_text=ATTACK)
    assert "&lt;script&gt;alert(1)" in assert_escaped(stage.browser(operate=True))


def test_keys_bodies_and_headers_are_escaped(stage: Stage) -> None:
    text = ATTACK.encode()
    headers: list[Any] = [*dead_letter(0), (ATTACK, text), ("PARK_REASON", text), ("x", None)]
    stage.kafka.append(DEAD, text, key=text, partition=0, headers=headers)
    stage.kafka.append(NAMES.parked, text, key=text, headers=[*dead_letter(0), ("PARK_REASON", text)])
    for topic in (RETRY, "orders"):
        stage.kafka.append(topic, text, key=text, headers=dead_letter(0, tags=ATTACK))
    assert "&lt;script&gt;alert(1)" in assert_escaped(stage.browser(operate=True))


@pytest.mark.parametrize("dialect", ["kafka_dlt-original-topic", "__connect.errors.topic", "x-original-topic"])
def test_other_projects_dead_letters_are_escaped(stage: Stage, dialect: str) -> None:
    prefix = dialect.rpartition("-" if "-" in dialect else ".")[0]
    other = [
        (f"{prefix}{end}", ATTACK.encode()) for end in ("-exception-fqcn", "-exception-message", ".exception.message")
    ]
    stage.kafka.append(DEAD, b"x", partition=0, headers=[(dialect, ATTACK.encode()), *other])
    assert_escaped(stage.browser(operate=True))


@pytest.mark.parametrize(
    "parameter", ["where", "tags", "key", "since", "until", "from", "id", "topic", "name", "token", "all"]
)
@pytest.mark.parametrize(
    "url",
    [f"/dead/{DEAD}", f"/dead/{DEAD}/letters", "/message", "/dead", "/login", "/plans", "/topics", f"/topics/{DEAD}"],
)
def test_what_a_link_carries_is_escaped(stage: Stage, url: str, parameter: str) -> None:
    stage.add_dead(1)
    answer = stage.browser().get(url, params={parameter: ATTACK})
    for raw in RAW:
        assert raw not in answer.text
        assert raw not in answer.headers.get("location", "")


@pytest.mark.parametrize(
    "path", ["/{}", "/dead/{}", "/topics/{}", "/message/{}/0/0", "/plans/{}", "/dead/a%0d%0aset-cookie:x"]
)
def test_what_a_path_carries_is_escaped(stage: Stage, path: str) -> None:
    answer = stage.browser().get(path.replace("{}", quote(ATTACK, safe="")))
    assert answer.status_code >= 400
    assert not any(raw in answer.text for raw in RAW)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("topic", ["%00", "a%00b", "%20"])
def test_a_name_that_no_topic_can_have_is_not_found(stage: Stage, topic: str) -> None:
    for path in ("/message/{}/0/0", "/message/{}/0/0/body", "/dead/{}", "/topics/{}"):
        assert stage.browser().get(path.replace("{}", topic)).status_code == 404


@pytest.mark.parametrize("number", ["9" * 5_000, "9223372036854775808", "2147483648", "7", "-1", "x", "%D9%A3"])
def test_a_number_that_no_record_has_is_not_found(stage: Stage, number: str) -> None:
    browser = stage.browser()
    for path in ("/message/orders/0/{}", "/message/orders/{}/0", "/message/orders/0/{}/body"):
        assert browser.get(path.replace("{}", number)).status_code == 404
    assert browser.get(f"/message?id=orders/0/{number}").status_code == 200


@pytest.mark.parametrize("group", ["%20", "%0a", "%00a", "a%00", "%ff", "a" * 300])
def test_what_is_no_name_of_a_group_is_not_found(stage: Stage, group: str) -> None:
    assert stage.browser().get(f"/groups/{group}").status_code == 404


def test_a_redirect_never_leaves_the_console(stage: Stage) -> None:
    for topic in ("//evil.example", "https://evil.example", "\\\\evil", "\r\nset-cookie: x"):
        answer = stage.browser().get("/dead", params={"topic": topic})
        assert answer.headers["location"].startswith("/dead/")
        assert "/" not in answer.headers["location"].removeprefix("/dead/")


def test_a_long_body_is_cut_and_downloaded_as_a_file_that_no_browser_runs(stage: Stage) -> None:
    body = b"<html>" + b"x" * 100_000
    stage.kafka.append(DEAD, body, partition=0, headers=dead_letter(0))
    browser = stage.browser()
    page = browser.get(f"/message/{DEAD}/0/0").text
    assert "only the first 64 KiB" in page
    assert len(page) < 100_000
    answer = browser.get(f"/message/{DEAD}/0/0/body")
    assert answer.content == body
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_a_body_that_is_not_text_is_shown_as_bytes(stage: Stage) -> None:
    stage.kafka.append(DEAD, b"\xff\x00A", partition=0, headers=dead_letter(0))
    assert "ff 00 41" in stage.browser().get(f"/message/{DEAD}/0/0").text


def test_hidden_bodies_and_headers_are_on_no_page_and_cannot_be_searched(stage: Stage) -> None:
    headers = [*dead_letter(0, keys="secret-key", user=(("card", b"secret-header"),))]
    stage.kafka.append(DEAD, b"secret-body", key=b"secret-key", partition=0, headers=headers)
    shown = stage.browser().get(f"/message/{DEAD}/0/0").text
    assert all(text in shown for text in ("secret-body", "secret-key", "secret-header"))
    hiding = stage.browser(hide=frozenset({"bodies", "headers"}), operate=True)
    assert "secret" not in "".join(pages(hiding))
    assert hiding.get(f"/message/{DEAD}/0/0/body").status_code == 403
    for guess in ({"where": "card = 'secret-header'"}, {"key": "secret-key"}, {"where": "KEYS = 'secret-key'"}):
        assert hiding.get(f"/dead/{DEAD}", params=guess).status_code == 400
        assert hiding.get(f"/topics/{DEAD}", params=guess).status_code == 400
        assert hiding.post(f"/dead/{DEAD}/plans", data=guess).status_code == 400
    assert hiding.get(f"/dead/{DEAD}", params={"where": "FAIL_CLASS = 'KeyError'"}).status_code == 200
    assert stage.browser(allow_export=False).get(f"/message/{DEAD}/0/0/body").status_code == 403


def test_a_record_that_breaks_the_wire_format_is_shown_with_the_reason(stage: Stage) -> None:
    stage.kafka.append(DEAD, b"x", partition=0, headers=[("SHIM", b"\xff"), ("RECONSUME_TIMES", b"many")])
    assert "malformed" in "".join(pages(stage.browser(operate=True)))
