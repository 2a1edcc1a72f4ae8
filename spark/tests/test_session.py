"""The settings of a session, and the errors when jars are missing."""

import os
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from rocketshim.errors import LocalBrokerError
from rocketshim_spark import session
from rocketshim_spark.errors import ConnectorMissingError, SessionError
from rocketshim_spark.session import SessionSettings

ROOT: Final = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("version", "delta"),
    [
        ("4.0.0", "delta-spark_2.13:4.0.1"),
        ("4.1.1", "delta-spark_4.1_2.13:4.3.1"),
        ("4.2.1", "delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_the_jar_of_delta_is_the_one_for_the_installed_spark(
    monkeypatch: pytest.MonkeyPatch, version: str, delta: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    assert session.connector_coordinates() == [
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}", f"io.delta:{delta}",
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["3.5.9", "4.3.0", "5.0.0.dev1"])
def test_a_spark_that_no_delta_is_known_for_is_refused_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ConnectorMissingError, match=rf"{version} .*4\.0, 4\.1, 4\.2.*pip install pyspark==4\.2\.0"):
        session.fetch()


@pytest.mark.parametrize(("version", "pinned"), [("4.0.5", "4.0.0"), ("4.1.4", "4.1.1"), ("4.2.1", "4.2.0")])
def test_jars_that_cannot_be_had_are_an_error_that_names_the_version_to_pin(
    monkeypatch: pytest.MonkeyPatch, version: str, pinned: str
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise LocalBrokerError("cannot download")

    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.setattr(session, "fetch_jars", refused)
    with pytest.raises(ConnectorMissingError, match=f"pip install pyspark=={pinned}"):
        session.fetch()


def pyproject() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_extra_allows_the_versions_that_a_delta_is_known_for() -> None:
    first, *_, last = session._DELTA_JARS
    major, minor = last.split(".")
    assert pyproject()["project"]["optional-dependencies"]["spark"] == [f"pyspark>={first},<{major}.{int(minor) + 1}"]


def test_the_newest_tested_version_is_locked_and_the_page_submits_with_its_jars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newest, _ = list(session._DELTA_JARS.values())[-1]
    assert pyproject()["dependency-groups"]["spark"] == [f"pyspark=={newest}"]
    monkeypatch.setattr(pyspark, "__version__", newest)
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert f"--packages {','.join(session.connector_coordinates())} " in page


def test_without_cached_jars_the_error_names_three_solutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETSHIM_CACHE", str(tmp_path))
    with pytest.raises(ConnectorMissingError) as refused:
        session.create(environ={})
    for way in ("rocketshim spark fetch", "packages", "provided"):
        assert way in str(refused.value)


def test_under_spark_submit_no_jars_are_added() -> None:
    conf = session._conf(SessionSettings(), {"PYSPARK_GATEWAY_PORT": "1"})
    assert "spark.jars" not in conf
    assert conf["spark.ui.showConsoleProgress"] == "false"  # stderr is not a terminal here
    assert conf["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"


def test_missing_classes_are_reported_by_artifact() -> None:
    assert session._missing_artifacts(lambda _: True) == []
    assert session._missing_artifacts(lambda name: "delta" in name) == ["spark-sql-kafka-0-10", "kafka-clients"]


def test_spark_resolves_the_packages() -> None:
    conf = session._conf(SessionSettings(connector="packages"), {})
    assert conf["spark.jars.packages"].split(",") == session.connector_coordinates()


def test_settings_that_results_depend_on_cannot_be_overridden() -> None:
    with pytest.raises(SessionError, match="UTC"):
        session._conf(SessionSettings(connector="none", conf={"spark.sql.session.timeZone": "CET"}), {})
    with pytest.raises(ValidationError):
        SessionSettings(shuffle_partitions=0)


def test_jars_that_pyspark_contains_are_left_out() -> None:
    jars = [Path("kafka-clients-3.9.0.jar"), Path("hadoop-client-api-3.3.0.jar"), Path("scala-library-2.13.1.jar")]
    assert session._not_in_pyspark(jars) == jars[:1]


def test_the_running_session_has_the_required_settings(spark: SparkSession) -> None:
    session.require(spark)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.mapKeyDedupPolicy") == "LAST_WIN"
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize(
    ("setting", "value", "needed"),
    [("spark.sql.mapKeyDedupPolicy", "EXCEPTION", "LAST_WIN"), ("spark.sql.session.timeZone", "CET", "UTC")],
)
def test_a_session_without_a_required_setting_is_refused(
    spark: SparkSession, setting: str, value: str, needed: str
) -> None:
    theirs = spark.newSession()
    theirs.conf.set(setting, value)
    with pytest.raises(SessionError, match=f"{setting}={value}, and the jobs need {needed}.*spark.conf.set"):
        session.require(theirs)


def test_changed_settings_are_restored_even_after_an_error(spark: SparkSession) -> None:
    known, new = "spark.sql.parquet.compression.codec", "parquet.enable.dictionary#value"
    before = spark.conf.get(known)
    inside = []

    def fail() -> None:
        with session.conf_set(spark, {known: "zstd", new: "false"}):
            inside.extend([spark.conf.get(known), spark.conf.get(new)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside == ["zstd", "false"]
    assert spark.conf.get(known) == before
    assert spark.conf.get(new, None) is None
