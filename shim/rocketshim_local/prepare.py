"""Download everything that a local broker needs and try it once (`rocketshim broker fetch`).

The first run of a real broker proves that everything works on this machine, and it writes the class-data archive that
makes later starts faster.
"""

import logging
import time
from collections.abc import Callable

from rocketshim_local.cache import exclusive
from rocketshim_local.cluster import LocalCluster
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
    kit = startup_kit(report=report)
    if not kit.archive.exists():
        with exclusive(f"archive-{kit.archive.name}"):
            if not kit.archive.exists():
                _first_run(kit, report)
    return kit


def _first_run(kit: StartupKit, report: Callable[[str], None]) -> None:
    unfinished = kit.archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    started = time.monotonic()
    with LocalCluster(jvm_options=[f"-XX:ArchiveClassesAtExit={unfinished}"], report=report) as cluster:
        cluster.touch_internal_topics()
        cluster.stop(timeout_s=_ARCHIVE_TIMEOUT_S)
    if unfinished.exists():  # not with a Java that was built without class-data sharing
        unfinished.rename(kit.archive)
    report(
        f"tried once, so that it also works later: a broker started and stopped in {time.monotonic() - started:.1f} s"
    )
