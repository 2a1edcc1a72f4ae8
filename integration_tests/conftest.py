"""One real broker for the whole run (one in each process of it), and names that no two tests share.

The broker is started once per session by the order of choice of `rocketshim_local.any_broker`. When it cannot be
started the tests fail; they are never skipped, since a suite that tests nothing must not look green.
"""

import gc
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim_local import Broker
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

from .shifted_clock import ShiftedClock
from .stepped_broker import SteppedBroker, stepped_broker_in
from .worker_stage import LEVELS, WorkerStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEADLINE_S = 60.0
_KEPT = {"retention.ms": "-1"}
_ADMIN = pytest.StashKey[AdminClient]()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Programs of the tests obey Ctrl-C, also when a script runs the tests in its background (`&` ignores SIGINT)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A file leaves no Kafka client in a cycle, since each has threads and calls its broker on, and no topic."""
    before = user_topics(request.config)
    yield
    gc.collect()
    left = user_topics(request.config) - before
    if left:
        delete_topics(request.config.stash[_ADMIN], sorted(left))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def broker(rocketshim_broker: Broker) -> Broker:
    """A real Kafka for the whole session, by the fixture that users have; `broker.bootstrap` is its address."""
    return rocketshim_broker


@pytest.fixture(scope="session")
def admin(broker: Broker, pytestconfig: pytest.Config) -> AdminClient:
    """An admin client of the session's broker; silent, since it outlives the broker at the end of the session."""
    pytestconfig.stash[_ADMIN] = made = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    return made


@pytest.fixture
def topic(admin: AdminClient) -> Iterator[Callable[..., str]]:
    """Make a topic: `topic(partitions=1, config=None, name="t")` returns its unique name; deleted after the test.

    Its records stay: records with times of long ago would be deleted when Kafka looks for old ones, every five minutes.
    """
    made: list[str] = []

    def make(partitions: int = 1, config: dict[str, str] | None = None, name: str = "t") -> str:
        unique = f"{name}-{uuid.uuid4().hex[:10]}"
        futures = admin.create_topics([NewTopic(unique, num_partitions=partitions, config=_KEPT | (config or {}))])
        futures[unique].result(_DEADLINE_S)
        made.append(unique)
        await_led(admin, unique, partitions)
        return unique

    yield make
    delete_topics(admin, made)


@pytest.fixture
def group() -> Callable[..., str]:
    """Make a consumer group name that nothing else uses: `group("payments")`."""
    return lambda name="g": f"{name}-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def namespace(admin: AdminClient) -> Iterator[str]:
    """A namespace of this test alone; every topic whose name begins with it is deleted after the test."""
    unique = f"ns{uuid.uuid4().hex[:10]}"
    yield unique
    delete_topics(admin, [name for name in admin.list_topics(timeout=_DEADLINE_S).topics if name.startswith(unique)])


@pytest.fixture
def stage(broker: Broker, admin: AdminClient, namespace: str, tmp_path: Path) -> Iterator[WorkerStage]:
    """A namespace with the shared topics, where a test runs workers as processes; they are killed after it."""
    names = TopicNames(namespace)
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
    made = WorkerStage(broker.bootstrap, names, tmp_path, admin)
    yield made
    made.kill()


@pytest.fixture
def interpreted(spark: "SparkSession") -> Iterator[None]:
    """Spark without compiled code, a third cheaper for a handful of rows.

    Compiled is what the unit tests of the jobs run, and the year of flights among the long tests.
    """
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


@pytest.fixture(scope="session")
def shifted_clock(tmp_path_factory: pytest.TempPathFactory) -> ShiftedClock:
    """Environments of processes whose wall clock is wrong: `shifted_clock.env(86_400)`."""
    return ShiftedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def stepped_broker(tmp_path: Path) -> Iterator[SteppedBroker]:
    """A broker of this test alone, whose wall clock is set by `stepped_broker.step(hours=1)`."""
    with stepped_broker_in(tmp_path) as running:
        yield running


def await_led(admin: AdminClient, name: str, partitions: int) -> None:
    """Wait until the broker knows a topic that it has just confirmed, with a leader for each partition."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        found = admin.list_topics(name, timeout=_DEADLINE_S).topics[name]
        led = [part for part in found.partitions.values() if part.leader >= 0 and part.error is None]
        if found.error is None and len(led) == partitions:
            return
    raise TimeoutError(f"{name} has no leaders after {_DEADLINE_S} s")


def user_topics(config: pytest.Config) -> set[str]:
    """The topics of the session's broker, without Kafka's own; none before a test has used the broker."""
    admin = config.stash.get(_ADMIN, None)
    found = () if admin is None else admin.list_topics(timeout=_DEADLINE_S).topics
    return {name for name in found if not name.startswith("__")}


def delete_topics(admin: AdminClient, names: list[str]) -> None:
    """Delete topics; one that the test has deleted itself is no error."""
    if not names:
        return
    for future in admin.delete_topics(names).values():
        try:
            future.result(_DEADLINE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
