"""The page on testing runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)

SHOP = """
    from types import SimpleNamespace
    from rocketshim import PushConsumer

    bank = SimpleNamespace(attempts=0)
    consumer = PushConsumer("kafka.example:9092", group="payments")

    @consumer.listener("orders")
    def charge(message):
        bank.attempts += 1
        raise ConnectionError("the bank does not answer")
"""


def test_the_first_test_and_the_own_fixture_run(pytester: pytest.Pytester) -> None:
    first, fixture, *_ = BLOCKS
    in_namespace = 'def test_namespace(rocketshim_harness):\n    rocketshim_harness.topic("orders")\n'
    pytester.makepyfile(shop=SHOP, test_first=first, test_fixture=f"{fixture}\n{in_namespace}")
    pytester.runpytest_subprocess(
        "-p", "rocketshim.pytest_plugin", "-p", "no:cacheprovider", "--import-mode=prepend"
    ).assert_outcomes(passed=2)


def test_the_other_programs_of_the_page_run_from_top_to_bottom() -> None:
    programs = BLOCKS[2:]
    assert len(programs) == 2
    code = compile("\n".join(programs), str(PAGE), "exec")
    exec(code, {"__name__": "documentation"})  # noqa: S102 - our own page
