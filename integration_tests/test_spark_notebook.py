"""The triage notebook, executed as Jupyter does it, in a kernel and a Spark session of its own.

It is stored with what its cells print, so that it can be read where it does not run.
`python integration_tests/test_spark_notebook.py` writes that again.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rocketshim.local import any_broker
from rocketshim_local import Broker

NOTEBOOK = Path(__file__).parents[1] / "examples" / "spark" / "triage.ipynb"
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=1_200, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.timeout(1_800)
def test_the_triage_notebook_finds_the_causes_and_the_customers(broker: Broker, tmp_path: Path) -> None:
    shown = printed(execute(broker.bootstrap, tmp_path))
    assert "audit: residual 0; 0 parked; 0 malformed" in shown
    assert "11 failures of 2 causes: 11 ended dead" in shown
    assert "|customer-3|       6|     6|  true|" in shown
    assert " CHF|" in shown
    assert lasting(shown) == lasting(printed(cells_of(NOTEBOOK))), "write what it prints again, as this file says above"


def test_only_what_cells_print_is_stored() -> None:
    outputs = [output for cell in cells_of(NOTEBOOK) for output in cell.get("outputs", ())]
    assert {output.get("name") for output in outputs} == {"stdout"}


def execute(bootstrap: str, folder: Path) -> list[Any]:
    """Return the cells with what they have put out."""
    executed = folder / "executed.ipynb"
    environment = {
        **os.environ,
        "ROCKETSHIM_BOOTSTRAP": bootstrap,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # the notebook ends before C2 pays
    }
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(executed)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return cells_of(executed)


def cells_of(notebook: Path) -> list[Any]:
    cells: list[Any] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return cells


def printed(cells: list[Any]) -> str:
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    return "".join("".join(output["text"]) for output in outputs if output.get("name") == "stdout")


def lasting(text: str) -> str:
    """What each run prints, without names, times and offsets of one run, and so without the widths of columns."""
    text = re.sub(r"triage[0-9a-f]{6}|\d{4}-\d\d-\d\d [\d:.]+|/\d+/\d+", "…", text)
    return re.sub(r" ?\| ?", "|", re.sub(r"[ -]+", " ", text))


def write_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with any_broker() as broker, tempfile.TemporaryDirectory() as folder:
        executed = execute(broker.bootstrap, Path(folder))
    for cell, done in zip(notebook["cells"], executed, strict=True):
        if cell["cell_type"] == "code":
            cell["execution_count"] = done["execution_count"]
            cell["outputs"] = [output for output in done["outputs"] if output.get("name") == "stdout"]
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False)
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_outputs()
