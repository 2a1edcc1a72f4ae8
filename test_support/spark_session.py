"""The fixture `spark`: one Spark session for the whole run; what a file has cached is dropped after it.

Starting a session takes seconds, and a JVM reads its jars only once. The session has the jars for Kafka and Delta if
they were fetched (`rocketshim spark fetch`, which `make test` does). The unit tests need none of them. The integration
tests fail without them and say so; they are never skipped.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(spark_of_this_run: "SparkSession") -> Iterator["SparkSession"]:
    """The session of this run, without what the file before has cached."""
    yield spark_of_this_run
    spark_of_this_run.catalog.clearCache()


@pytest.fixture(scope="session")
def spark_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session on this machine, two threads, no user interface, everything it writes in a temporary folder."""
    from rocketshim_spark.session import SessionSettings, connector_jars, create

    folder = tmp_path_factory.mktemp("spark")
    session = create(
        SessionSettings(
            app_name="rocketshim tests",
            master="local[2]",
            connector="none" if connector_jars() is None else "cache",
            shuffle_partitions=2,
            driver_memory="2g",  # all tests of a process share it
            conf={
                "spark.ui.showConsoleProgress": "false",
                # A table that is broadcast takes a page, however small it is, until Python and Java have collected all
                # that refers to it. By itself Spark makes pages of 32 MB in this heap, and two dozen of them fill it.
                "spark.buffer.pageSize": "2m",
                # Tests end before C2 pays. Without C2 the code cache is 48 MB, too little for all tests in one process.
                # The serial collector takes a seventh less CPU than G1.
                "spark.driver.extraJavaOptions": (
                    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
                ),
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.local.dir": str(folder / "local"),
            },
        )
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
