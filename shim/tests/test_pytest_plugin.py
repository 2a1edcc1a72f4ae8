"""The fixtures work in a project that has installed rocketshim, and an installed plugin costs nothing."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PLUGIN = "rocketshim.pytest_plugin"

SIX_LINES = """
    import pytest
    from rocketshim import Message, PushConsumer

    consumer = PushConsumer("localhost:9092", group="payments")

    @consumer.listener("orders")
    def charge(message):
        raise ConnectionError("the bank does not answer")

    @pytest.mark.parametrize("run", [1, 2])
    def test_a_whole_life(rocketshim_harness, rocketshim_kafka, rocketshim_clock, run):
        rocketshim_harness.run(consumer)
        rocketshim_harness.send(Message("orders", b"o-7"))
        assert len(rocketshim_harness.waiting()) == 1
        rocketshim_harness.pass_time("5h")
        assert [letter.body for letter in rocketshim_harness.dead("payments")] == [b"o-7"]
        assert rocketshim_harness.waiting() == []
        assert rocketshim_harness.kafka is rocketshim_kafka
        assert rocketshim_kafka.clock is rocketshim_clock
"""


def test_a_whole_life_in_six_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SIX_LINES)
    pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_the_fixtures_are_listed_with_their_purpose(pytester: pytest.Pytester) -> None:
    lines = pytester.runpytest_subprocess("-p", PLUGIN, "--fixtures", "-p", "no:cacheprovider").outlines
    for fixture in ("rocketshim_harness", "rocketshim_kafka", "rocketshim_clock", "rocketshim_broker"):
        [at] = [at for at, line in enumerate(lines) if line.startswith(fixture)]
        assert "no docstring available" not in lines[at + 1]


def test_an_installed_plugin_imports_no_kafka_client_and_nothing_else_of_ours() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules)\n"
        f"import {PLUGIN}\n"
        "print(*sorted(name for name in set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 - our own program
    table_of_names = "rocketshim._exports"  # imports nothing; the package reads from it where a public name is defined
    assert done.stdout.split() == ["rocketshim", table_of_names, PLUGIN]


def test_the_package_announces_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
    assert any(each.startswith("testcontainers") for each in project["optional-dependencies"]["docker"])
