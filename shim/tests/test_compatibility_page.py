"""docs/compatibility.md says what was tried, and the round of a broker consists of tests that exist."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.compat.__main__ import app
from tools.compat.environments import AwayError, newest, newest_python, unit_tests, with_spark
from tools.compat.page import PAGE, RESULTS, rendered
from tools.compat.round import FEATURES, SHORT, outcomes

TESTS = Path(__file__).parents[2] / "integration_tests"


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rendered(page, json.loads(RESULTS.read_text(encoding="utf-8"))) == page


def test_what_a_version_of_kafka_lacks_is_a_dash_and_what_it_has_must_be_run() -> None:
    nothing = {"mode": "KRaft", "features": {}, "date": "today"}
    page = rendered("<!-- brokers --><!-- end of brokers -->", {"brokers": {"4.3.1": nothing, "4.4.0": nothing}})
    column = 2 + list(FEATURES).index("share groups")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| 4.")]
    found = [(row[0], row[column], row[2]) for row in rows]
    assert found == [("4.3.1", "–", "not run"), ("4.4.0", "not run", "not run")]


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


def test_a_run_that_was_interrupted_has_no_result(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    report = tmp_path / "unit.xml"
    interpreter.write_text(f"#!/bin/sh\necho '<testsuites><testsuite tests=\"3\"/></testsuites>' > {report}; exit 2\n")
    interpreter.chmod(0o755)
    with pytest.raises(FileNotFoundError, match=r"unit\.xml"):
        unit_tests(interpreter, tmp_path)


def test_the_short_round_is_a_part_of_the_whole_one() -> None:
    for feature, tests in SHORT.items():
        assert tests
        assert set(tests) <= set(FEATURES[feature])


def test_a_pyspark_whose_jars_cannot_be_had_is_not_tried_for_the_reason_that_the_command_gives(tmp_path: Path) -> None:
    interpreter = tmp_path / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.write_text("#!/bin/sh\necho 'error: no jars; pip install pyspark==4.2.0' >&2; exit 1\n")
    interpreter.chmod(0o755)
    (tmp_path / "whole").touch()
    with pytest.raises(AwayError, match=r"pip install pyspark==4\.2\.0"):
        with_spark("4.2.1", tmp_path)


def test_a_row_of_pyspark_names_its_delta() -> None:
    tried = {"spark": {"4.2.0": {"delta": "4.4.0", "unit": "300 passed", "date": "today"}}}
    page = rendered("<!-- spark --><!-- end of spark -->", tried)
    assert "| 4.2.0 | 4.4.0 | 300 passed | today |" in page


@pytest.mark.parametrize(
    ("answers", "raised"), [("false", AwayError), ('[ "$3" = download ]', subprocess.CalledProcessError)]
)
def test_a_version_that_cannot_be_had_is_not_a_registry_that_is_away(
    tmp_path: Path, answers: str, raised: type[Exception]
) -> None:
    interpreter = tmp_path / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.write_text(f"#!/bin/sh\n{answers}\n")
    interpreter.chmod(0o755)
    interpreter.with_name("uv").touch()
    with pytest.raises(raised):
        newest("python3", tmp_path)


def test_jars_that_cannot_be_had_are_no_failure_of_a_round(tmp_path: Path) -> None:
    environment = {"ROCKETSHIM_MAVEN_REPOSITORY": "http://127.0.0.1:1", "ROCKETSHIM_CACHE": str(tmp_path)}
    done = CliRunner().invoke(app, ["brokers", "--short", "3.9.2"], env=environment)
    assert done.exit_code == os.EX_TEMPFAIL
    assert "Kafka 3.9.2: NOT TRIED: cannot download" in done.output


def test_a_python_that_only_ends_with_an_error_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    works = tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python3.12"
    for file, command in ((tmp_path / "shims" / "python3.13", "exit 127"), (works, "exit 0")):
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{command}\n")
        file.chmod(0o755)
    assert newest_python() == str(works)
    works.unlink()
    assert newest_python() is None
