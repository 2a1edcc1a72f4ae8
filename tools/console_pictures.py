"""Photograph the console on a real Kafka: docs/pictures/console-*.png.

    python tools/console_pictures.py
    python tools/console_pictures.py /tmp/pictures      # there also: dark, on a phone, and every page of the menu

A shop's consumer fails for three reasons, and its messages become dead letters. A browser then walks through the pages
as an operator would. It takes about four minutes, so that curves have points, and needs `$ROCKETSHIM_BROWSER` or
Debian's `chromium`.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Page, ViewportSize, sync_playwright

from rocketshim import (
    DeadLetter,
    DelayLevels,
    Layout,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    TopicNames,
    ensure_topics,
)
from rocketshim_local import any_broker

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
BROWSER = os.environ.get("ROCKETSHIM_BROWSER") or shutil.which("chromium")
LEVELS = "1s 2s 3s 4s 10m 2h"
ORDERS = 120
WAVES = 4
POINT_MS = 31_000
SCREEN: ViewportSize = {"width": 1_200, "height": 640}
PHONE: ViewportSize = {"width": 390, "height": 844}
Look = tuple[str, Literal["light", "dark"], ViewportSize]
"""End of the picture's name, colours, and size of the window."""

LIGHT: Final[Look] = ("", "light", SCREEN)
LOOKS: Final[tuple[Look, ...]] = (
    ("-dark", "dark", SCREEN),
    ("-phone", "light", PHONE),
    ("-phone-dark", "dark", PHONE),
    LIGHT,
)
"""The last one stays."""
DEADLINE_S = 120.0


def charge(message: MessageView) -> None:
    """Fail for orders of a bank that is down, of customers who are not known, and of a currency that is not."""
    number = int(message.body or b"0")
    if number % 3 == 0:
        raise ConnectionError(f"bank-{number % 2 + 1}.example does not answer: order {number}")
    if number % 10 == 1:
        raise DeadLetter(f"no customer {number * 7}")
    if number % 16 == 2:
        raise ValueError(f"order {number} has the currency 'XXX'")


def create(bootstrap: str) -> None:
    """Create the topics."""
    levels, names = DelayLevels.parse(LEVELS), TopicNames("")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ensure_topics(admin, Layout(names, levels).shared())
    admin.create_topics([NewTopic("orders", 4)])["orders"].result(DEADLINE_S)
    wait_until(lambda: len(admin.list_topics("orders", timeout=DEADLINE_S).topics["orders"].partitions) == 4)


def fill(bootstrap: str, page: Page) -> None:
    """Let orders fail, and others wait, wave by wave, while the page is open."""
    levels = DelayLevels.parse(LEVELS)
    consumer = PushConsumer(bootstrap, group="payments", delay_levels=levels, max_reconsume_times=2)
    consumer.register_message_listener("orders", charge)
    expected = sum(1 for number in range(ORDERS) if number % 3 == 0 or number % 10 == 1 or number % 16 == 2)
    with (
        process("worker", "--bootstrap", bootstrap, "--delay-levels", LEVELS, "--allow", "orders"),
        Producer(bootstrap, delay_levels=levels) as producer,
        consumer,
    ):
        for number in range(ORDERS):
            tag = "gold" if number % 5 == 0 else None
            producer.send(Message("orders", b"%d" % number, key=f"customer-{number % 17}", tag=tag))
            if number % 4 == 0:
                producer.send(Message("orders", b"%d" % (number + 1_000), delay=f"{5 + number}m"))
            if number % (ORDERS // WAVES) == 0:
                page.wait_for_timeout(POINT_MS)
        wait_until(lambda: consumer.send_back_counts.dead == expected)


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of rocketshim until the block ends."""
    command = [sys.executable, "-m", "rocketshim", *words]
    env = {**os.environ, "LOGNAME": "ada"}  # a plan names its user
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.terminate()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a fact."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError("the dead letters did not arrive")
        time.sleep(0.1)


def photograph(page: Page, url: str, others: Path | None) -> None:
    """Walk from the overview to the verdict on the first ten dead letters; `others`: where the other looks go."""

    def take(name: str, part: str = "", folder: Path = PICTURES) -> None:
        for end, colours, size in LOOKS if others else [LIGHT]:
            page.emulate_media(color_scheme=colours)
            page.set_viewport_size(size)
            page.evaluate("scrollTo(0, 0)")
            path = (others if end and others else folder) / f"console-{name}{end}.png"
            (page.locator(part).first if part else page).screenshot(path=path, animations="disabled")

    page.wait_for_selector("text=Groups with dead letters")
    page.wait_for_timeout(POINT_MS)
    take("overview")
    page.goto(f"{url}/topics/orders?tags=gold")
    take("topic")
    page.goto(f"{url}/dead/rmq.dlq.payments")
    take("causes")
    page.get_by_role("button", name=re.compile("Plan to send again: ConnectionError")).click()
    page.get_by_role("button", name="Send 10 first").click()
    page.wait_for_selector("text=10 of 40 applied")
    wait_until(lambda: _has(page, "✓ None of them failed again"))
    take("plan")
    page.goto(f"{url}/dead/rmq.dlq.payments/letters")
    page.locator("main table a").first.click()
    take("message", ".picture svg")
    if others:
        take("message-page", folder=others)
        for path in page.locator("nav a").evaluate_all("links => links.map(each => each.getAttribute('href'))"):
            page.goto(f"{url}{path}")
            take(f"menu{path.replace('/', '-')}", folder=others)


def main() -> None:
    """Write the pictures."""
    others = Path(sys.argv[1]) if sys.argv[1:] else None
    if others:
        others.mkdir(parents=True, exist_ok=True)
    with any_broker() as broker, tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        create(broker.bootstrap)
        recovered = PushConsumer(broker.bootstrap, group="payments", delay_levels=DelayLevels.parse(LEVELS))
        recovered.register_message_listener("orders", lambda _: None)
        words = ["--bootstrap", broker.bootstrap, "--delay-levels", LEVELS, "--state-dir", folder, "--listen", "8099"]
        with process("console", "--operate", *words) as running:
            login = re.search(r"http://\S+", running.stderr.readline() if running.stderr else "")
            if login is None:
                raise RuntimeError("the console has not started")
            browser = playwright.chromium.launch(executable_path=BROWSER, args=["--disable-gpu"])
            page = browser.new_page(viewport=SCREEN, device_scale_factor=1)
            wait_until(lambda: _opens(page, login[0]))
            fill(broker.bootstrap, page)
            with recovered:
                photograph(page, login[0].partition("/login")[0], others)
            browser.close()


def _has(page: Page, text: str) -> bool:
    page.reload()
    return text in page.inner_text("main")


def _opens(page: Page, address: str) -> bool:
    try:
        page.goto(address)
    except Exception:  # noqa: BLE001 - it does not listen yet
        return False
    return True


if __name__ == "__main__":
    main()
