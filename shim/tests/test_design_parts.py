"""DESIGN.md agrees with the code; and every name exists that comments and docstrings give of a test or a decision."""

import importlib.util
import pkgutil
import re
from types import ModuleType

import pytest

from tools.reference.decisions import decisions
from tools.reference.files import PACKAGES, ROOT

TOOL = ROOT / "tools" / "design_parts.py"
TESTS = ("topics/tests", "shim/tests", "spark/tests", "integration_tests", "proof")
_REFERENCE = re.compile(r"[(;]\s*(?:# )?(test_\w+(?:,\s+(?:# )?test_\w+)*)\)")


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("design_parts", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_parts_are_up_to_date(tool: ModuleType) -> None:
    text = tool.DESIGN.read_text(encoding="utf-8")
    assert tool.made(text) == text, "python tools/design_parts.py --write"


def test_a_drawing_that_misses_an_arrow_is_drawn_again(tool: ModuleType) -> None:
    text = tool.DESIGN.read_text(encoding="utf-8")
    old = text.replace("    IDLE --> CLAIMING: CLAIM\n", "")
    assert old != text
    assert tool.made(old) == text


def named() -> set[str]:
    """Return every dotted name that an entry `Decides:` of a docstring names."""
    texts = (f"{each.name} `{each.name}` {each.answer}" for each in decisions())
    return {name for text in texts for name in re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`", text)}


@pytest.mark.parametrize("name", sorted(named()))
def test_what_decides_exists(name: str) -> None:
    path = name if name.startswith("rocketshim_") else f"rocketshim.{name}"
    assert pkgutil.resolve_name(path) is not None


def test_each_decision_has_an_answer() -> None:
    assert [each.question for each in decisions() if not each.answer] == []


def test_decisions_are_found_in_docstrings() -> None:
    found = {each.question: each for each in decisions()}
    lane = found["Which lane has a record?"]
    assert lane.name == "kafka.lanes.lane_of"
    assert lane.answer.startswith("That of its key, also for a retry;")
    assert len(found) > 80, "two entries in one docstring are two decisions"


def references() -> dict[str, list[str]]:
    """Return the tests that comments and docstrings name, as `(test_a, test_b)`, and the modules that name each."""
    found: dict[str, list[str]] = {}
    for path in (each for package in PACKAGES for each in (ROOT / package).rglob("*.py")):
        for listed in _REFERENCE.findall(path.read_text(encoding="utf-8")):
            for name in re.findall(r"test_\w+", listed):
                found.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    return found


def names_of_tests() -> set[str]:
    """Return the names of all tests."""
    paths = (path for folder in TESTS for path in (ROOT / folder).rglob("test_*.py"))
    return {name for path in paths for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))}


def test_each_test_that_a_comment_names_exists() -> None:
    named_tests = references()
    assert len(named_tests) > 50
    known = names_of_tests()
    assert {name: paths for name, paths in named_tests.items() if name not in known} == {}


def test_the_design_can_be_read_in_one_sitting(tool: ModuleType) -> None:
    assert len(tool.DESIGN.read_text(encoding="utf-8").splitlines()) <= 300
