"""The drawings of DESIGN.md agree with the code, and so do the names that docstrings say take part in a decision."""

import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

from tools.reference.decisions import decisions

TOOL = Path(__file__).parents[2] / "tools" / "design_parts.py"


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


def test_decisions_are_found_in_docstrings() -> None:
    found = {each.question: each for each in decisions()}
    lane = found["Which lane has a record?"]
    assert lane.name == "core.lane_selector.LaneSelector.choose"
    assert lane.answer.startswith("That of its key, also for a retry;")
    assert len(found) > 80, "two entries in one docstring are two decisions"
