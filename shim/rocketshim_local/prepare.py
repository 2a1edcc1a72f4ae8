"""Download everything that a local broker needs and try it once (`rocketshim broker fetch`).

The steps are: Java (installed with pip if there is none), the jars, the start-up kit, and a first run of a real broker.
The first run proves that everything works on this machine, and it writes the class-data archive that makes later starts
faster.
"""

import logging
import time
from collections.abc import Callable

from rocketshim.errors import LocalBrokerError
from rocketshim_local.cache import cache_dir, exclusive
from rocketshim_local.cluster import LocalCluster
from rocketshim_local.java import JavaRuntime, find_java, install_java
from rocketshim_local.startup_kit import StartupKit, startup_kit

__all__ = ["prepare"]

_ARCHIVE_TIMEOUT_S = 60.0  # the JVM writes the archive when it ends
_log = logging.getLogger("rocketshim.local")


def prepare(*, report: Callable[[str], None] | None = None) -> StartupKit:
    """Make sure that a broker starts on this machine; steps that were done before are skipped.

    Args:
        report: is called with one line per step; None: the logger `rocketshim.local` at INFO.

    Raises:
        LocalBrokerError: something cannot be downloaded or installed, or the first run failed. The message says what to
            do. Complete downloads are kept.

    Thread-safety: any thread, any number of processes.
    """
    report = _log.info if report is None else report
    java = _java(report)
    kit = startup_kit(java, report=report)
    if not kit.archive.exists():
        with exclusive(cache_dir() / "locks" / f"archive-{kit.archive.name}.lock"):
            if not kit.archive.exists():
                _first_run(kit, java, report)
    return kit


def _java(report: Callable[[str], None]) -> JavaRuntime:
    try:
        return find_java()
    except LocalBrokerError:
        return install_java(report)


def _first_run(kit: StartupKit, java: JavaRuntime, report: Callable[[str], None]) -> None:
    unfinished = kit.archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    started = time.monotonic()
    with LocalCluster(jvm_options=[f"-XX:ArchiveClassesAtExit={unfinished}"], report=report) as cluster:
        cluster.touch_internal_topics()
        cluster.stop(timeout_s=_ARCHIVE_TIMEOUT_S)
    taken_s = time.monotonic() - started
    if unfinished.exists():
        size_bytes = unfinished.stat().st_size
        unfinished.rename(kit.archive)
        report(f"first run: a broker started, served and stopped in {taken_s:.1f} s; archive {size_bytes / 1e6:.0f} MB")
    else:
        # This runtime was built without class-data sharing. Brokers start without an archive.
        report(f"first run: a broker started, served and stopped in {taken_s:.1f} s; this Java writes no archive")
    _log.debug("prepared for Java %s", java.version)
