"""How benchmarks print: under which conditions they were taken, and one row a figure."""

import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Sequence

import confluent_kafka

from rocketshim_local.jars import KAFKA_VERSION


def conditions() -> str:
    """The machine, the versions and the time."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{time.strftime('%d %B %Y %H:%M')}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}, "
        f"rocketshim {importlib.metadata.version('rocketshim')}, "
        f"confluent-kafka {confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}, "
        f"Kafka {KAFKA_VERSION} (a broker on this machine, unless one is named)"
    )


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median and the range."""
    return f"{statistics.median(values):{form}} [{min(values):{form}} to {max(values):{form}}]"


def say(figure: str, reach: str, measured: str) -> None:
    """Print one row."""
    print(f"| {figure} | {reach} | {measured} | {os.getloadavg()[0]:.1f} |", flush=True)


def head() -> None:
    """Print what stands above the rows."""
    print("| figure | reach | measured | load |\n|---|---|---|---|", flush=True)
