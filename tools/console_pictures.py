"""Photograph the console on a real Kafka: docs/pictures/console-*.png.

    python tools/console_pictures.py

A shop's consumer fails for three reasons, and its messages become dead letters. A browser then walks through the pages
as an operator would. It takes about two minutes, and needs `$ROCKETSHIM_BROWSER` or Debian's `chromium`.
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
SIZE: ViewportSize = {"width": 1_200, "height": 640}
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


def fill(bootstrap: str) -> None:
    """Let orders fail, and others wait."""
    levels, names = DelayLevels.parse(LEVELS), TopicNames("")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ensure_topics(admin, Layout(names, levels).shared())
    admin.create_topics([NewTopic("orders", 4)])["orders"].result(DEADLINE_S)
    wait_until(lambda: len(admin.list_topics("orders", timeout=DEADLINE_S).topics["orders"].partitions) == 4)
    consumer = PushConsumer(bootstrap, group="payments", delay_levels=levels, max_reconsume_times=2)
    consumer.register_message_listener("orders", charge)
    with process("worker", "--bootstrap", bootstrap, "--delay-levels", LEVELS, "--allow", "orders"):
        with Producer(bootstrap, delay_levels=levels) as producer:
            for number in range(ORDERS):
                tag = "gold" if number % 5 == 0 else None
                producer.send(Message("orders", b"%d" % number, key=f"customer-{number % 17}", tag=tag))
                if number % 4 == 0:
                    producer.send(Message("orders", b"%d" % (number + 1_000), delay=f"{5 + number}m"))
        expected = sum(1 for number in range(ORDERS) if number % 3 == 0 or number % 10 == 1 or number % 16 == 2)
        with consumer:
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


def photograph(page: Page, url: str) -> None:
    """Walk from the overview to the verdict on the first ten dead letters."""

    def take(name: str) -> None:
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=PICTURES / f"console-{name}.png")

    page.wait_for_selector("text=Groups with dead letters")
    page.locator("svg.spark").nth(5).wait_for(timeout=DEADLINE_S * 1_000)  # a point each 30 s
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
    page.locator(".picture").first.screenshot(path=PICTURES / "console-message.png")


def main() -> None:
    """Write the pictures."""
    with any_broker() as broker, tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        fill(broker.bootstrap)
        recovered = PushConsumer(broker.bootstrap, group="payments", delay_levels=DelayLevels.parse(LEVELS))
        recovered.register_message_listener("orders", lambda _: None)
        words = ["--bootstrap", broker.bootstrap, "--delay-levels", LEVELS, "--state-dir", folder, "--listen", "8099"]
        with recovered, process("console", "--operate", *words) as running:
            login = re.search(r"http://\S+", running.stderr.readline() if running.stderr else "")
            if login is None:
                raise RuntimeError("the console has not started")
            browser = playwright.chromium.launch(executable_path=BROWSER, args=["--disable-gpu"])
            page = browser.new_page(viewport=SIZE, device_scale_factor=1)
            wait_until(lambda: _opens(page, login[0]))
            photograph(page, login[0].partition("/login")[0])
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
