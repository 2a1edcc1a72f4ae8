"""Cached files that let a local broker start in one second instead of four.

* `bootstrap.checkpoint`: the feature levels with which this Kafka version formats a new cluster, as `kafka-storage
  format` writes them. The file contains nothing that depends on the cluster, so each new cluster gets a copy and needs
  no JVM for formatting (1.2 s per node).
* `broker-java<release>-<build>.jsa`: a class-data archive, written by a broker that has started, served and stopped.
  With it a JVM loads Kafka's classes already parsed (start in 0.87 s instead of 1.55 s, half the processor time). A JVM
  that cannot write or use an archive starts without it. `rocketshim broker fetch` writes the archive.

The JVM options are: serial garbage collector; only the first compiler tier (faster start, one core less busy; to
measure throughput use `jvm_options=["-XX:TieredStopAtLevel=4"]`); and exit on out-of-memory, so that no broker stays
half dead.
"""

import hashlib
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocketshim.errors import LocalBrokerError
from rocketshim_local.cache import FileSet, cache_dir, exclusive
from rocketshim_local.jars import KAFKA_COORDINATES, KAFKA_VERSION, cached_jars, fetch_jars
from rocketshim_local.java import JavaRuntime
from rocketshim_local.server_properties import NodeAddress, render_properties, server_properties

__all__ = ["StartupKit", "startup_kit"]

_FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError")

_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:rocketshim.logs}/server.log
appender.file.filePattern = ${sys:rocketshim.logs}/server.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %p [%t] %c{1}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20 MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""

_log = logging.getLogger("rocketshim.local")


@dataclass(frozen=True, slots=True)
class StartupKit:
    """The start-up files for one Kafka version and one Java.

    Attributes:
        jars: Kafka's jars.
        folder: the folder of the kit.
        archive: path of the class-data archive, which may not exist.
    """

    jars: FileSet
    folder: Path
    archive: Path

    @property
    def bootstrap_checkpoint(self) -> Path:
        """Path of the file with the feature levels of a new cluster."""
        return self.folder / "bootstrap.checkpoint"

    @property
    def class_path(self) -> str:
        """The jars, in the order that they had when the archive was written."""
        return ":".join(str(self.jars.path / name) for name in self.jars.files)

    def jvm_options(self, heap_mb: int, logs: Path) -> list[str]:
        """Return the JVM options of a broker, including the class path, with `heap_mb` MiB of heap."""
        options = [*_FAST_START, f"-Xmx{heap_mb}m", f"-Xms{heap_mb // 2}m", "-Djava.awt.headless=true"]
        options += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", f"-Drocketshim.logs={logs}"]
        if self.archive.exists():
            options += [f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto"]
        return [*options, "-cp", self.class_path]


def startup_kit(java: JavaRuntime, *, report: Callable[[str], None] | None = None) -> StartupKit:
    """Return the kit for this Java; download the jars and format a sample folder if that was not done before.

    Args:
        java: the Java that will run the broker.
        report: is called with one line per step; None: the logger `rocketshim.local` at INFO.

    Raises:
        LocalBrokerError: the jars cannot be downloaded, or this Java cannot run Kafka's formatter.

    Thread-safety: any thread, any number of processes.
    """
    report = _log.info if report is None else report
    fetched_anew = cached_jars(KAFKA_COORDINATES) is None
    jars = fetch_jars(KAFKA_COORDINATES, report=report)
    folder = cache_dir() / "startup" / jars.path.name
    if fetched_anew:
        shutil.rmtree(folder, ignore_errors=True)  # an archive is bound to the modification times of its jars
    # One archive per JVM build: a JVM does not accept the archive of another build.
    build = hashlib.sha256(f"{java.executable.resolve()} {java.version}".encode()).hexdigest()[:8]
    kit = StartupKit(jars, folder, folder / f"broker-java{java.feature}-{build}.jsa")
    if not kit.bootstrap_checkpoint.exists():
        with exclusive(cache_dir() / "locks" / f"startup-{folder.name}.lock"):
            if not kit.bootstrap_checkpoint.exists():
                _prepare(kit, java)
    return kit


def _prepare(kit: StartupKit, java: JavaRuntime) -> None:
    kit.folder.mkdir(parents=True, exist_ok=True)
    (kit.folder / "log4j2.properties").write_text(_LOG4J, encoding="ascii")
    with tempfile.TemporaryDirectory(prefix=".sample.", dir=kit.folder) as sample:
        data = Path(sample) / "data"
        node = NodeAddress(1, 1, 2)
        properties = server_properties(1, (node,), data_folder=str(data), overrides={})
        file = Path(sample) / "server.properties"
        file.write_text(render_properties(properties), encoding="ascii")
        command = [str(java.executable), *kit.jvm_options(256, Path(sample)), "kafka.tools.StorageTool", "format"]
        command += ["--cluster-id", "rocketshimSampleCluste", "--config", str(file)]
        run = subprocess.run(  # noqa: S603 the user's own Java
            command, capture_output=True, text=True, check=False
        )
        if run.returncode != 0 or not (data / "bootstrap.checkpoint").exists():
            last = "\n".join((run.stdout + run.stderr).strip().splitlines()[-5:])
            raise LocalBrokerError(f"{java.executable} cannot format a folder for Kafka {KAFKA_VERSION}:\n{last}")
        shutil.copyfile(data / "bootstrap.checkpoint", Path(sample) / "checkpoint")
        (Path(sample) / "checkpoint").rename(kit.bootstrap_checkpoint)
