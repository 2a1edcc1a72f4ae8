"""What a node is started with: Java, Kafka's jars, the options of the JVM, and two files of this package.

* `bootstrap.checkpoint`: the feature levels of a new cluster, as `kafka-storage format` of `KAFKA_VERSION` writes them.
  The file contains nothing that depends on the cluster, so a new cluster gets a copy and needs no JVM for formatting. A
  test compares it with what Kafka's formatter writes.
* `log4j2.properties`: the broker logs to `server.log`.

A class-data archive beside the jars makes a start faster (0.87 s instead of 1.55 s, half the processor time):
`rocketshim broker fetch` writes it. An archive belongs to one JVM build. A JVM that cannot use it starts without it.

The JVM options are: serial garbage collector; only the first compiler tier (faster start, one core less busy; to
measure throughput use `jvm_options=[FULL_COMPILER]`); and exit on out-of-memory, so that no broker stays
half dead.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocketshim_local.cache import FileSet
from rocketshim_local.jars import KAFKA_COORDINATES, fetch_jars
from rocketshim_local.java import JavaRuntime, ready_java

__all__ = ["BOOTSTRAP_CHECKPOINT", "FULL_COMPILER", "StartupKit", "startup_kit"]

FULL_COMPILER = "-XX:TieredStopAtLevel=4"  # as in production
BOOTSTRAP_CHECKPOINT = Path(__file__).with_name("bootstrap.checkpoint")
_LOG4J = Path(__file__).with_name("log4j2.properties")
_FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError")


@dataclass(frozen=True, slots=True)
class StartupKit:
    """What nodes of one Kafka version are started with, on one Java."""

    java: JavaRuntime
    jars: FileSet

    @property
    def archive(self) -> Path:
        """Path of the class-data archive, which may not exist."""
        build = hashlib.sha256(f"{self.java.executable.resolve()} {self.java.version}".encode()).hexdigest()[:8]
        return self.jars.path / f"broker-java{self.java.feature}-{build}.jsa"

    @property
    def class_path(self) -> str:
        """The jars, in the order that they had when the archive was written."""
        return ":".join(str(self.jars.path / name) for name in self.jars.files)

    def java_command(self, heap_mb: int, logs: Path) -> list[str]:
        """Return the command of a JVM with `heap_mb` MiB of heap and the class path, without the class to run."""
        command = [str(self.java.executable), *_FAST_START, f"-Xmx{heap_mb}m", f"-Xms{heap_mb // 2}m"]
        command += ["-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={_LOG4J}", f"-Drocketshim.logs={logs}"]
        if self.archive.exists():
            command += [f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto"]
        return [*command, "-cp", self.class_path]


def startup_kit(*, report: Callable[[str], None] | None = None) -> StartupKit:
    """Find Java, or install it, and download the jars if they are not cached; as `install_java` and `fetch_jars`."""
    return StartupKit(ready_java(report=report), fetch_jars(KAFKA_COORDINATES, report=report))
