"""The drawings of state machines in DESIGN.md are those of the tables in the code."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "state_diagrams.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("state_diagrams", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawings_are_up_to_date(tool: ModuleType) -> None:
    text = tool.DESIGN.read_text(encoding="utf-8")
    assert tool.drawn(text) == text, "python tools/state_diagrams.py --write"


def test_a_drawing_that_misses_an_arrow_is_drawn_again(tool: ModuleType) -> None:
    text = tool.DESIGN.read_text(encoding="utf-8")
    old = text.replace("    IDLE --> CLAIMING: CLAIM\n", "")
    assert old != text
    assert tool.drawn(old) == text
