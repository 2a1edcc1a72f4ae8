"""The pages of Spark's reports in a browser: accessible, in both modes, and nothing is wider than a phone."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright

from rocketshim_spark.report import Chart, Link, Report, Table, as_html

_BROWSER = os.environ.get("ROCKETSHIM_BROWSER") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(_BROWSER is None, reason="no browser: install chromium or set ROCKETSHIM_BROWSER")

HOURS = [f"11-20 {hour:02}:00" for hour in range(24)]
CAUSES = Table(
    "causes",
    ("grp", "fail_class", "fingerprint", "failures", "is_new", "sample"),
    [("pay", "shop.errors.Timeout", "x" * 120, 1_234, True, "orders/0/7")] * 3,
)
REPORT = Report(
    "failures", "3,702 failures of 3 causes: 4 ended dead, 3 causes are new", fine=False, tables=(CAUSES,),
    bars=(("a name that is longer than the forty characters of a bar", 3.0), ("b", 1.0)),
    charts=(
        Chart("failures by hour", HOURS, [(f"cause {number} " * 9, range(24)) for number in range(6)], stacked=True),
        Chart("lateness", HOURS, [("p50", [None, *range(23)]), ("p99", range(24))]),
    ),
    notes=("inferred",),
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for the file; each page has a profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_BROWSER, args=["--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_accessible_and_as_wide_as_its_window(
    chromium: Browser, tmp_path: Path, scheme: Literal["light", "dark"], width: int
) -> None:
    page = tmp_path / "failures.html"
    pages = [Link(name, f"{name}.html") for name in ("index", "audit", "failures", "delays", "dlq-trend", "keys")]
    page.write_text(as_html(REPORT, about="/data/lake, version 3", pages=pages, console="http://127.0.0.1:1"))
    seen = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen.goto(page.as_uri())
    found = [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in Axe().run(seen).response["violations"]]
    wider = seen.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    seen.close()
    assert (found, wider) == ([], 0)
