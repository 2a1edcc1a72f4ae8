"""Every example runs, as its own docstring says, on a real broker."""

import ast
import difflib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim_local import Broker

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.fixture
def orders(admin: AdminClient) -> Iterator[None]:
    """The topic of `shop.py`, which `rocketshim dev` creates as it is used."""
    admin.create_topics([NewTopic("orders", num_partitions=1)])["orders"].result(60)
    yield
    admin.delete_topics(["orders"])["orders"].result(60)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, broker: Broker, tmp_path: Path) -> None:
    environment = {**os.environ, "ROCKETSHIM_BOOTSTRAP": broker.bootstrap}
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_examples() -> None:
    assert EXAMPLES


def test_a_plain_loop_becomes_one_with_retries_in_five_changed_lines() -> None:
    tree = ast.parse((Path(__file__).parents[1] / "examples" / "dropin.py").read_text(encoding="utf-8"))
    loops = {node.name: node.body[1:] for node in tree.body if isinstance(node, ast.FunctionDef)}
    before, after = (
        [line for each in loops[name] for line in ast.unparse(each).splitlines()]
        for name in ("plain_loop", "retrying_loop")
    )
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = sum(max(b - a, d - c) for kind, a, b, c, d in opcodes if kind != "equal")
    assert changed == 5
