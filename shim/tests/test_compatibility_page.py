"""docs/compatibility.md says what was tried, and the round of a broker consists of tests that exist."""

import json
from pathlib import Path

import pytest

from tools.compat.environments import unit_tests
from tools.compat.page import PAGE, RESULTS, rendered
from tools.compat.round import FEATURES, outcomes

TESTS = Path(__file__).parents[2] / "integration_tests"


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rendered(page, json.loads(RESULTS.read_text(encoding="utf-8"))) == page


@pytest.mark.parametrize("test", [test for tests in FEATURES.values() for test in tests])
def test_each_test_of_the_round_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name or 'test_'}" in (TESTS / file).read_text(encoding="utf-8")


def _case(test: str, outcome: str = "") -> str:
    file, _, name = test.partition(".py::")
    return f'<testcase classname="integration_tests.{file}" name="{name}">{outcome}</testcase>'


def test_one_failure_fails_its_feature_and_a_feature_lacking_a_test_is_not_run(tmp_path: Path) -> None:
    report = tmp_path / "round.xml"
    (console,) = FEATURES["console"]
    ran, skipped = FEATURES["drop-in"]
    cases = [
        _case("test_init_cli.py::test_any[1]"),
        _case("test_init_cli.py::test_any[2]", "<failure/>"),
        _case(console),
        _case(ran),
        _case(skipped, "<skipped/>"),
    ]
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    found = outcomes(report)
    assert found["init, doctor"] == "1 of 2 failed"
    assert found["console"] == "passed"
    assert found["drop-in"] == "not run", "one of its tests was skipped"
    assert found["orderly"] == "not run"


def test_the_report_of_an_earlier_run_is_not_the_result_of_one_that_did_not_start(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text('<testsuites><testsuite tests="3"/></testsuites>')
    with pytest.raises(FileNotFoundError, match=r"unit\.xml"):
        unit_tests(Path("/bin/false"), tmp_path)
