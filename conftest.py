"""One Spark session for the whole run, and how the tests are shared out among the processes of `make test`.

Starting a session takes seconds, and a JVM takes its jars only once: so all tests with Spark run in one process. It has
the jars for Kafka and Delta when they were fetched (`rocketshim spark fetch`, which `make test` does). The unit tests
need none of them; the integration tests say so and fail, they are never skipped.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.scheduler import LoadScopeScheduling

    from rocketshim.dropin import Consumer

# Tables are as wide as in a pipe, whatever terminal the tests were started in; pytest-xdist hands its width on.
os.environ.pop("COLUMNS", None)

# What hypothesis has chosen (in CI: the same examples in every run), but no test is judged by how fast it was.
settings.register_profile(
    "rocketshim",
    settings(),
    deadline=None,
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("rocketshim")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadScopeScheduling":
    """Tests of one file run in one process, since they share fixtures, and all with Spark in one."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 it is there when this hook is called

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "spark" if "spark" in file else file

    return ByFile(config, log)


class _UnreadableRecord:
    """A record that a Kafka client cannot read the headers of, as confluent_kafka hands it out.

    The first look at headers raises, a second one gives null pointers: to unpack a pair of those ends the process, and
    the test run with it. After `set_headers` both are gone.
    """

    def __init__(self, record: Any) -> None:
        self._record = record
        self._headers: Any = None
        self._looked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def __len__(self) -> int:
        return len(self._record)

    def headers(self) -> Any:
        if not self._looked:
            self._looked, self._headers = True, [_pair(2)]
            raise SystemError("returned a result with an exception set")
        return self._headers

    def set_headers(self, headers: Any) -> None:
        self._looked, self._headers = True, headers


_pair = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_ssize_t)(("PyTuple_New", ctypes.pythonapi))


@pytest.fixture(scope="session")
def unreadable() -> Callable[[Any], Any]:
    """Makes a record one with a header whose name is no UTF-8."""
    return _UnreadableRecord


@pytest.fixture
def at_once() -> "type[Consumer]":
    """A drop-in consumer: once its `waits` is False, its polls are those that do not wait, which a backlog makes."""
    from rocketshim.dropin import Consumer  # noqa: PLC0415 only few tests need a Kafka client here

    class AtOnce(Consumer):
        waits = True

        def _wait(self, *args: Any) -> Any:
            return super()._wait(*args) if self.waits else None

        def poll(self, timeout: float = -1) -> Any:
            self._rocketshim.dirty = self._rocketshim.dirty or not self.waits
            return super().poll(timeout)

    return AtOnce


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session on this machine, two threads, no user interface, everything it writes in a temporary folder."""
    from rocketshim_spark.session import SessionSettings, connector_jars, create  # noqa: PLC0415 the other tests do without Spark

    folder = tmp_path_factory.mktemp("spark")
    session = create(
        SessionSettings(
            app_name="rocketshim tests",
            master="local[2]",
            connector="none" if connector_jars() is None else "cache",
            shuffle_partitions=2,
            conf={
                "spark.ui.showConsoleProgress": "false",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # tests end before C2 pays
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
