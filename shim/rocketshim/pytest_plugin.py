"""Fixtures for pytest. Installing rocketshim makes them available; nothing needs to be configured.

====================  ================================================================================================
fixture               what a test gets
====================  ================================================================================================
rocketshim_harness    a `rocketshim.harness.Harness`: Kafka in memory, delay worker, a clock that the test moves
rocketshim_kafka      its cluster, a `rocketshim.testing.InMemoryKafka`
rocketshim_clock      the clock of that cluster, a `rocketshim.testing.VirtualClock`
rocketshim_broker     a real Kafka for the whole run, a `rocketshim.local.Broker`: `rocketshim_broker.bootstrap`; the
                      cluster in ROCKETSHIM_BOOTSTRAP if that is set
====================  ================================================================================================

pytest imports this module in every project of the environment, so it imports nothing but pytest before a fixture is
used.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketshim.harness import Harness
    from rocketshim.local import Broker
    from rocketshim.testing import InMemoryKafka, VirtualClock

__all__ = ["rocketshim_broker", "rocketshim_clock", "rocketshim_harness", "rocketshim_kafka"]


@pytest.fixture
def rocketshim_clock() -> "VirtualClock":
    """Return a clock that only the test moves; it starts at the present time."""
    import time  # noqa: PLC0415 - this module imports nothing before a fixture is used

    from rocketshim.testing import VirtualClock  # noqa: PLC0415 - likewise

    return VirtualClock(start_wall_ms=time.time_ns() // 1_000_000)


@pytest.fixture
def rocketshim_kafka(rocketshim_clock: "VirtualClock") -> "InMemoryKafka":
    """Return a Kafka in memory, without topics."""
    from rocketshim.testing import InMemoryKafka  # noqa: PLC0415 - likewise

    return InMemoryKafka(rocketshim_clock)


@pytest.fixture
def rocketshim_harness(rocketshim_kafka: "InMemoryKafka") -> "Iterator[Harness]":
    """Yield a harness on `rocketshim_kafka`, without a namespace and with RocketMQ's delay levels."""
    from rocketshim.harness import Harness  # noqa: PLC0415 - likewise

    with Harness(kafka=rocketshim_kafka) as harness:
        yield harness


@pytest.fixture(scope="session")
def rocketshim_broker(pytestconfig: pytest.Config) -> "Iterator[Broker]":
    """Yield a real Kafka: the one in ROCKETSHIM_BOOTSTRAP if it is set, else one in Docker, else one on local Java.

    Tests that use it write to that cluster. One that was started for the tests runs until they end.
    """
    from rocketshim.local import any_broker  # noqa: PLC0415 - likewise

    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")

    def report(line: str) -> None:
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(line)

    with any_broker(report=report) as broker:
        yield broker
