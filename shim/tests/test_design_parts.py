"""DESIGN.md agrees with the code: its drawings, its lists of modules, and the names that it says decide something."""

import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

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


def test_a_list_that_misses_a_module_is_written_again(tool: ModuleType) -> None:
    text = tool.DESIGN.read_text(encoding="utf-8")
    old = re.sub(r"^\* `process_queue`: .*\n", "", text, flags=re.MULTILINE)
    assert old != text
    assert tool.made(old) == text


def test_a_list_of_a_folder_that_is_gone_is_an_error(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="shim/gone, which has none"):
        tool.module_list("shim/gone")


def decisions() -> list[str]:
    """Return the names in the table "Where it is decided": a module, and a name in it."""
    section = (TOOL.parents[1] / "DESIGN.md").read_text(encoding="utf-8").partition("## Where it is decided\n")[2]
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [name for row in rows[1:] for name in re.findall(r"`([^`]+)`", row.split("|")[2])]


@pytest.mark.parametrize("name", decisions())
def test_what_is_said_to_decide_exists(name: str) -> None:
    path = name if name.startswith("rocketshim_") else f"rocketshim.{name}"
    assert pkgutil.resolve_name(path) is not None
