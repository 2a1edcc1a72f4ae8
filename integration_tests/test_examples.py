"""Every example runs, as its own docstring says, on a real broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketshim.local import Broker

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, broker: Broker, tmp_path: Path) -> None:
    environment = {**os.environ, "ROCKETSHIM_BOOTSTRAP": broker.bootstrap}
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_examples() -> None:
    assert EXAMPLES
