"""The triage notebook, executed as Jupyter does it, in a kernel and a Spark session of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    executed = tmp_path / "executed.ipynb"
    environment = {
        **os.environ,
        "ROCKETSHIM_BOOTSTRAP": broker.bootstrap,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # the notebook ends before C2 pays
    }
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(executed)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = printed(executed)
    assert "audit: residual 0; 0 parked; 0 malformed" in shown
    assert "11 failures of 2 causes: 11 ended dead" in shown
    assert "|customer-3|       6|     6|  true|" in shown
    assert " CHF|" in shown


def test_the_notebook_is_stored_without_its_outputs() -> None:
    assert printed(NOTEBOOK) == ""


def printed(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    return "".join("".join(output["text"]) for output in outputs if output.get("name") == "stdout")
