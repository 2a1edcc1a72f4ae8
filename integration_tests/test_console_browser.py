"""The console in Chromium: no request to another host, no violation of its policy, accessible, also without scripts.

The browser is `$ROCKETSHIM_BROWSER`, otherwise Debian's `chromium`. If the variable is set and the browser does not
start, the tests fail. They are skipped only if the variable is not set and there is no browser.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Browser, Page, expect, sync_playwright

from rocketshim import MessageView, Producer, PushConsumer
from rocketshim.cli import main
from rocketshim_local import Broker
from rocketshim_topics import TopicNames

from .console_stage import DEADLINE_S, console, store_dead_letters

COUNT = 40
OFFLINE = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu"]
_BROWSER = os.environ.get("ROCKETSHIM_BROWSER") or shutil.which("chromium")
expect.set_options(timeout=DEADLINE_S * 1000)

pytestmark = pytest.mark.skipif(_BROWSER is None, reason="no browser: install chromium or set ROCKETSHIM_BROWSER")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for the file; each test has a profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_BROWSER, args=OFFLINE)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A console with dead letters, and a browser's page that has logged in.

    Attributes:
        page: the page.
        url: the address of the console.
        paths: every page of the console that a link or a form leads to.
        foreign: requests to other hosts.
        complaints: what the browser reported: violations of the policy, errors of scripts.
    """

    page: Page
    url: str
    paths: list[str]
    foreign: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def notice(self, url: str) -> None:
        """Note a request to another host."""
        if not url.startswith((f"{self.url}/", "data:")):
            self.foreign.append(url)

    def open(self, path: str) -> None:
        """Open a page, which must exist."""
        answer = self.page.goto(self.url + path)
        assert answer is not None
        assert answer.status == 200, path

    def focus(self, role: Literal["link", "button", "textbox"], name: str) -> None:
        """Press Tab until a link, button or field has the focus."""
        wanted = self.page.get_by_role(role, name=name).first
        for _ in range(100):
            self.page.keyboard.press("Tab")
            if wanted.evaluate("element => element === document.activeElement"):
                return
        pytest.fail(f"Tab does not reach {name}")


Opener = Callable[..., AbstractContextManager[Visit]]


@pytest.fixture
def dead(broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str]) -> str:
    """A group with dead letters; its name."""
    name = group()
    store_dead_letters(broker, admin, namespace, name, COUNT)
    return name


@pytest.fixture
def source(topic: Callable[..., str]) -> str:
    """A topic of a program; its name."""
    return topic()


@pytest.fixture
def visit(broker: Broker, namespace: str, dead: str, *, source: str, tmp_path: Path, chromium: Browser) -> Opener:
    """Open the console in a browser: `with visit(scripts=True, scheme="light") as seen:`."""
    topic = TopicNames(namespace).dead_letter(dead)

    @contextmanager
    def opened(
        *, scripts: bool = True, scheme: Literal["light", "dark"] = "light", time_zone: str = "UTC"
    ) -> Iterator[Visit]:
        with console(broker, namespace, tmp_path) as (_, operator):
            plan = operator.post(f"/dead/{topic}/plans")
            paths = ["/", "/waiting", "/waiting/records", "/dead", f"/dead/{topic}", f"/dead/{topic}/letters"]
            paths += ["/plans", plan, "/parked", "/groups", f"/groups/{dead}", f"/retrying/{dead}", "/doctor"]
            paths += ["/timers", "/timers?topic=orders", "/timers/name?topic=orders&name=o-7"]
            stored = operator.post(f"/topics/{source}/messages", body='{"order": 1}', key="k", tag="paid")
            paths += [
                "/topics",
                f"/topics/{source}",
                f"/topics/{source}?tags=paid&since=1h",
                f"/topics/{topic}",
                stored,
            ]
            paths += ["/workers", "/message", f"/message/{topic}/0/0", "/message?id=m1"]
            context = chromium.new_context(java_script_enabled=scripts, color_scheme=scheme, timezone_id=time_zone)
            page = context.new_page()
            page.set_default_timeout(DEADLINE_S * 1000)
            parts = urlsplit(operator.login_url)
            seen = Visit(page, f"{parts.scheme}://{parts.netloc}", paths)
            page.on("request", lambda each: seen.notice(each.url))
            page.on("console", lambda each: seen.complaints.append(each.text) if each.type == "error" else None)
            page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            page.goto(operator.login_url)
            yield seen
            context.close()

    return opened


@pytest.fixture(params=product(("light", "dark"), (390, 1280)), ids=lambda each: f"{each[0]}-{each[1]}")
def screen(visit: Opener, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """The console in a browser: in both colours, on a phone and on a screen."""
    scheme, width = request.param
    with visit(scheme=scheme) as seen:
        seen.page.set_viewport_size({"width": width, "height": 844})
        yield seen


def _unreadable(page: Page) -> list[str]:
    """Return what axe finds on the page: the rule, and the first element that breaks it."""
    found = Axe().run(page).response["violations"]
    return [f"{page.url}: {each['id']}: {each['nodes'][0]['html'][:120]}" for each in found]


def _look(page: Page) -> None:
    """The page is accessible, and no wider than its window."""
    assert _unreadable(page) == []
    assert page.viewport_size is not None
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_is_accessible_asks_no_other_host_and_keeps_its_policy(
    visit: Opener, scheme: Literal["light", "dark"]
) -> None:
    found: list[str] = []
    with visit(scheme=scheme) as seen:
        for path in seen.paths:
            seen.open(path)
            found += _unreadable(seen.page)
        seen.page.context.clear_cookies()
        seen.open("/login")
        found += _unreadable(seen.page)
        assert found == []
        assert seen.foreign == []
        assert seen.complaints == []


def test_no_page_is_wider_than_a_phone_and_ids_stay_in_one_line(visit: Opener) -> None:
    with visit() as seen:
        seen.page.set_viewport_size({"width": 390, "height": 844})
        for path in seen.paths:
            seen.open(path)
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390, path
            wraps = seen.page.eval_on_selector_all(
                "td.id", "cells => cells.map(each => getComputedStyle(each).whiteSpace)"
            )
            assert set(wraps) <= {"nowrap"}, path
            assert seen.page.locator("nav [aria-current=page]").count() <= 1, path
        seen.open(seen.paths[5])
        expect(seen.page.locator("nav [aria-current=page]")).to_have_text("Dead letters")
        assert seen.complaints == []


def test_a_phone_shows_the_id_of_a_plan_in_one_line_and_a_record_without_scrolling_sideways(visit: Opener) -> None:
    with visit() as seen:
        page = seen.page
        page.set_viewport_size({"width": 390, "height": 844})
        seen.open(next(path for path in seen.paths if path.startswith("/plans/")))
        title = page.locator("h1")
        assert title.evaluate("title => title.offsetHeight < 2 * parseFloat(getComputedStyle(title).lineHeight)")
        seen.open(seen.paths[seen.paths.index("/workers") - 1])
        record = page.locator(".scroll", has=page.locator(".facts")).first
        assert len(record.get_by_role("row", name="id").first.inner_text().split()[-1]) == 32
        assert record.evaluate("box => box.scrollWidth <= box.clientWidth")
        assert _unreadable(page) == []
        page.emulate_media(color_scheme="dark")
        page.reload()  # a page that is open changes its colours slowly
        assert _unreadable(page) == []


def test_the_last_hour_is_drawn_on_the_overview_and_for_each_group_in_both_colours_and_on_a_phone(
    visit: Opener, dead: str
) -> None:
    with visit() as seen:
        page = seen.page
        seen.open("/")
        curves = page.get_by_role("img", name="the last")
        expect(curves).to_have_count(6)  # the second point is there after 30 s; the page refreshes itself
        for path, least in (("/", 6), ("/groups", 2), (f"/groups/{dead}", 4)):
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                seen.open(path)  # a page that is open changes its colours slowly
                assert curves.count() >= least, path
                colours = page.locator("svg.spark path").first.evaluate(
                    "path => [getComputedStyle(path).stroke, getComputedStyle(document.body).backgroundColor]"
                )
                assert colours[0] != colours[1]
                assert _unreadable(page) == []
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 844})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert (seen.foreign, seen.complaints) == ([], [])


def test_an_operator_sends_a_message_and_finds_it_whole(screen: Visit, source: str) -> None:
    page = screen.page
    screen.open(f"/topics/{source}")
    expect(page.locator("nav [aria-current=page]")).to_have_text("Topics")
    page.get_by_text("Send a message as a test").click()
    _look(page)
    page.get_by_label("Body").fill('{"order": 7, "of": ["a"]}')
    page.get_by_label("Tag (empty: none)").fill("sent")
    page.get_by_role("button", name=f"Send it to {source}").click()
    expect(page.locator("pre")).to_contain_text('"order": 7,\n  "of": [\n')
    page.get_by_text("headers, as stored").click()
    expect(page.get_by_role("row", name="SENT_BY").last).to_contain_text("token (console of")
    _look(page)
    page.get_by_role("link", name=f"Records of {source}").click()
    page.get_by_label("Tags").fill("sent")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert (screen.foreign, screen.complaints) == ([], [])


@pytest.fixture
def blocked(broker: Broker, namespace: str, group: Callable[..., str], topic: Callable[..., str]) -> Iterator[str]:
    """An orderly group whose only queue is blocked by its first message, `poison`, with one behind it; its name."""
    name, orders = group(), topic(1)
    where = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
    assert main(["init", *where, "--group", name, "--with-log"]) == 0

    def ship(message: MessageView) -> None:
        if message.body == b"poison":
            raise ConnectionError("warehouse 7 does not answer")

    consumer = PushConsumer(broker.bootstrap, group=name, namespace=namespace)
    consumer.listener(orders, orderly=True)(ship)
    with Producer(broker.bootstrap, namespace=namespace) as producer:
        for body in (b"poison", b"behind it"):
            producer.send(orders, body)
    consumer.start()
    yield name
    consumer.stop()


def test_the_message_that_blocks_a_group_is_seen_tried_and_made_a_dead_letter(screen: Visit, blocked: str) -> None:
    page = screen.page
    failing = page.get_by_role("heading", name="Failing messages")

    screen.open("/")
    found = page.get_by_role("listitem").filter(has_text="ConnectionError: warehouse 7 does not answer")
    expect(found).to_be_visible()
    _look(page)
    found.get_by_role("link", name=blocked).click()
    expect(failing).to_be_visible()
    expect(page.get_by_role("row", name="ConnectionError: warehouse 7 does not answer")).to_have_count(1)
    page.get_by_text("Stack trace of the last attempt of").click()
    expect(page.locator("td pre")).to_contain_text("in ship")
    expect(page.locator("td pre")).to_be_visible()
    _look(page)
    page.get_by_role("button", name="Try it now").click()
    expect(page.get_by_role("alert")).to_contain_text("try-now for")
    expect(failing).to_be_visible()
    _look(page)
    page.get_by_role("button", name="Make it a dead letter").click()
    expect(page.get_by_role("alert")).to_contain_text("is stored: it does not fail any more")
    expect(failing).to_have_count(0)
    expect(page.get_by_role("row", name="dead-letter token (console of")).to_have_count(1)
    _look(page)
    page.get_by_role("link", name="dead letters", exact=True).click()
    page.get_by_role("link", name="ConnectionError").first.click()
    expect(page.get_by_role("row", name="warehouse 7 does not answer")).to_have_count(1)
    _look(page)
    assert (screen.foreign, screen.complaints) == ([], [])


def test_times_are_also_shown_in_the_time_zone_of_the_browser(visit: Opener) -> None:
    with visit(time_zone="Asia/Tokyo") as seen:
        seen.open(seen.paths[5])
        expect(seen.page.locator("td time + small").first).to_contain_text("GMT+9")
        assert seen.page.locator("td time").first.get_attribute("title")


def test_each_page_works_without_scripts(visit: Opener) -> None:
    with visit(scripts=False) as seen:
        for path in seen.paths:
            seen.open(path)
            expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
        seen.open("/dead")
        seen.page.locator("main table a").first.click()
        seen.page.get_by_role("button", name="Plan to send again: Timeout").click()
        expect(seen.page.get_by_role("button", name="Send 10 first")).to_be_visible()
        assert seen.foreign == []


def test_the_page_of_a_plan_reloads_without_scripts_until_it_is_applied(visit: Opener) -> None:
    with visit(scripts=False) as seen:
        seen.open(next(path for path in seen.paths if path.startswith("/plans/")))
        seen.page.get_by_label("type how many").fill(str(COUNT))
        seen.page.get_by_label("Most in a second").fill("2")
        seen.page.get_by_role("button", name=f"Send all {COUNT}").click()
        expect(seen.page.get_by_role("button", name="Stop")).to_be_visible()
        assert seen.page.url.endswith("#state")
        applied = seen.page.get_by_role("heading", name="Applied", exact=True)
        expect(applied).to_be_visible()


def test_an_operator_sends_dead_letters_again_by_keyboard_alone(
    visit: Callable[..., AbstractContextManager[Visit]],
) -> None:
    with visit() as seen:
        page = seen.page
        page.goto(f"{seen.url}/")
        _press(seen, "link", "Dead letters")
        page.wait_for_url("**/dead")
        _press(seen, "link", "g-")
        page.wait_for_url("**/dead/**")
        _press(seen, "button", "Plan to send again: Timeout")
        page.wait_for_url("**/plans/**")
        _press(seen, "button", "Send 10 first")
        expect(page.get_by_role("heading", name="10 of 36 applied")).to_be_visible()
        expect(page.get_by_role("button", name="Send 10 first")).to_have_count(0)
        seen.focus("textbox", "type how many")
        page.keyboard.type("26")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Applied", exact=True)).to_be_visible()
        assert seen.foreign == []
        assert seen.complaints == []


def _press(seen: Visit, role: Literal["link", "button", "textbox"], name: str) -> None:
    seen.focus(role, name)
    seen.page.keyboard.press("Enter")
