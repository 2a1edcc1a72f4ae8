"""The generated reference pages name everything that they are about, and the site's links stay inside the site."""

import re

import pytest

import rocketshim
from rocketshim import errors
from rocketshim.cli.app import COMMANDS
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim.settings.worker import WorkerSettings
from tools.docs_site import ROOT, linked_files, site_links
from tools.reference import IN_REPOSITORY, PAGES
from tools.reference.tables import table


def rows(page: str) -> list[list[str]]:
    lines = [line for line in PAGES[page]().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("model", [PushConsumerSettings, WorkerSettings])
def test_each_setting_has_a_meaning(model: type[PushConsumerSettings | WorkerSettings]) -> None:
    meanings = {row[0].strip("`"): row[1] for row in rows("reference/settings.md")}
    assert [name for name in model.model_fields if not meanings.get(name)] == []


def test_the_range_and_the_default_of_a_setting_come_from_the_model() -> None:
    (lanes,) = [row for row in rows("reference/settings.md") if row[0] == "`consume_thread_min`"]
    assert lanes[2:] == ["20", "≥ 1, ≤ 1,000"]


def test_a_drop_in_setting_is_named_as_in_the_configuration() -> None:
    names = [row[0] for row in rows("reference/settings.md")]
    assert "`rocketshim.retry.enable`" in names
    assert "`retry_enable`" not in names


def test_each_command_has_a_section() -> None:
    headings = [line for line in PAGES["reference/cli.md"]().splitlines() if line.startswith("#")]
    for name in (*COMMANDS, "spark", "dlq apply", "group lag"):
        assert any(heading.endswith(f" rocketshim {name}") for heading in headings), name


def test_each_option_has_a_meaning() -> None:
    assert [row[0] for row in rows("reference/cli.md") if not row[1]] == []


def test_each_error_has_a_section() -> None:
    headings = [line.removeprefix("## ") for line in PAGES["reference/errors.md"]().splitlines() if line[:3] == "## "]
    assert sorted(headings) == sorted(errors.__all__)


def test_each_public_name_has_an_entry() -> None:
    entries = {line.rpartition(".")[2] for line in PAGES["reference/api.md"]().splitlines() if line[:3] == ":::"}
    assert {name for name in rocketshim.__all__ if not name.endswith("Settings")} <= entries


def test_metrics_name_their_labels() -> None:
    by_name = {row[0].strip("`"): row for row in rows("reference/metrics.md")}
    assert by_name["rocketshim_consumer_lag_messages"][2] == "`group`, `queue_id`, `topic`"
    assert by_name["rocketshim_worker_lateness_seconds"][1] == "histogram"


def test_a_bar_in_a_cell_is_escaped() -> None:
    assert table(("a",), [("x|y\nz",)]) == "| a |\n|---|\n| x\\|y z |\n"


def test_a_link_of_the_readme_leads_to_the_page_of_the_site() -> None:
    assert site_links("[a](docs/worker.md#limits) [b](DESIGN.md)", ROOT) == "[a](worker.md#limits) [b](design.md)"


def test_a_link_that_leaves_the_folder_of_pages_leads_to_a_copy() -> None:
    assert site_links("[a](../examples/dropin.py)", ROOT / "docs") == "[a](examples/dropin.py)"
    assert "examples/dropin.py" in linked_files()


def test_links_to_other_hosts_and_to_nothing_stay_as_they_are() -> None:
    text = "[a](https://example.org/x) [b](missing.md) [c](worker.md)"
    assert site_links(text, ROOT / "docs") == text


def test_each_relative_link_of_a_page_works_in_a_clone() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "proof").glob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []


def test_the_pages_that_others_link_to_stand_in_the_repository_as_they_are_generated() -> None:
    for path in IN_REPOSITORY:
        assert (ROOT / "docs" / path).read_text(encoding="utf-8") == PAGES[path](), "python -m tools.reference --write"
