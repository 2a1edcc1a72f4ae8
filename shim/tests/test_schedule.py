"""How `make test` divides the tests among its processes, when one of them dies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SINGLE = """
import os, pytest

@pytest.mark.parametrize("number", range(40))
def test_one(number):
    if number == {dies_at}:
        os._exit(1)
"""
SHARED = """
import pytest

@pytest.fixture(scope="module")
def shared():
    return 1

@pytest.mark.parametrize("number", range(10))
def test_one(number, shared): ...
"""


@pytest.mark.parametrize("dies_at", [5, 39])
def test_a_test_that_ends_its_process_fails_alone(tmp_path: Path, dies_at: int) -> None:
    """As pytest-xdist 3.8.0 does it, the other processes wait forever."""
    folder = tmp_path / "integration_tests"
    folder.mkdir()
    (folder / "test_single.py").write_text(SINGLE.format(dies_at=dies_at))
    (folder / "test_shared.py").write_text(SHARED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "test_support.schedule", "-n", "2", "--dist", "loadscope"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    ran = subprocess.run(  # noqa: S603
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "1 failed, 49 passed" in ran.stdout, ran.stdout + ran.stderr
    assert f"test_one[{dies_at}]" in ran.stdout
