"""The support matrix names every setting and method of RocketMQ's clients, and says what is the matter with it."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MATRIX = (HERE.parents[2] / "docs" / "support-matrix.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.+?) \| (same|differs|not here|–) \| ?(.*?) ?\|$")


def names() -> list[tuple[str, str]]:
    """Section and name of everything in the list of RocketMQ's names."""
    found: list[tuple[str, str]] = []
    section = ""
    for line in (HERE / "rocketmq_names.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            found.append((section, line))
    return found


def rows(section: str) -> list[str]:
    """The table rows of the section that begins so."""
    (text,) = [part for part in MATRIX.split("\n## ") if part.startswith(section)]
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| RocketMQ")]


@pytest.mark.parametrize(("section", "name"), names(), ids=lambda value: value.split(" ")[-1])
def test_the_matrix_names_it(section: str, name: str) -> None:
    first_column = [row.split(" | ")[0] for row in rows(section)]
    assert any(re.search(rf"`{name}[`(]", cell) for cell in first_column), f"{name} is not in {section!r}"


@pytest.mark.parametrize("section", dict(names()))
def test_each_row_is_same_differs_or_not_here_with_a_reason(section: str) -> None:
    for row in rows(section):
        match = ROW.match(row)
        assert match is not None, row
        assert match[2] == "same" or match[3], f"no reason: {row}"
