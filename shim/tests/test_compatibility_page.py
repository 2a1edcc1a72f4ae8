"""docs/compatibility.md says what was tried, and the round of a broker consists of tests that exist."""

import json
from pathlib import Path

import pytest

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


def test_one_failure_fails_its_feature_and_a_feature_without_tests_is_not_run(tmp_path: Path) -> None:
    report = tmp_path / "round.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="integration_tests.test_init_cli" name="test_any[1]"/>'
        '<testcase classname="integration_tests.test_init_cli" name="test_any[2]"><failure/></testcase>'
        '<testcase classname="integration_tests.test_letters_cli" name="test_other"/>'
        "</testsuite></testsuites>"
    )
    found = outcomes(report)
    assert found["init, doctor"] == "1 of 2 failed"
    assert found["commands"] == "passed"
    assert found["orderly"] == "not run"
