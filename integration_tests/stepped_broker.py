"""A real broker whose wall clock a test can set: the fixture `stepped_broker`.

Kafka reads its wall clock by one class, `org.apache.kafka.common.utils.SystemTime`; append times come from there. The
broker is started with our own class in front of it (`SystemTime.java`, compiled here), which adds an offset that the
test writes into a file mapped by both. Only the wall clock is stepped: the monotonic one, by which Kafka times sessions
and requests, goes on as on a machine whose clock somebody sets.
"""

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketshim_local import LocalCluster

from .java_classes import options_with

__all__ = ["SteppedBroker", "stepped_broker_in"]

_PROPERTIES = {"metadata.max.idle.interval.ms": "0"}
"""No empty records in the cluster's own log, by default two a second: when the clock is set back within the 25 ms in
which the controller waits for more after a record, it writes nothing before the clock is again where it was."""


class SteppedBroker:
    """A broker and its clock.

    Attributes:
        cluster: the broker, a cluster of one node.
        bootstrap: its address.
        offsets_ms: every offset that was ever in force, the present one last.
    """

    def __init__(self, cluster: LocalCluster, offset: mmap.mmap) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap
        self.offsets_ms = [0]
        self._offset = offset

    def step(self, *, hours: float = 0.0, seconds: float = 0.0) -> None:
        """Set the broker's wall clock forward, or back if negative, from where it is; in force when this returns."""
        self.offsets_ms.append(self.offsets_ms[-1] + round(hours * 3_600_000 + seconds * 1_000))
        self._offset[:8] = self.offsets_ms[-1].to_bytes(8, "little", signed=True)

    def true_ms(self, stamp_ms: int) -> int:
        """When, on this machine's wall clock, the broker wrote a stamp.

        Only where the offsets differ by more than the time since the broker was started: else it cannot be known.
        """
        now_ms = time.time_ns() // 1_000_000
        return max(stamp_ms - offset_ms for offset_ms in self.offsets_ms if stamp_ms - offset_ms <= now_ms)


@contextmanager
def stepped_broker_in(folder: Path) -> Iterator[SteppedBroker]:
    """Run such a broker for the length of the block; its class and its offset lie in `folder`."""
    offset_file = folder / "offset"
    offset_file.write_bytes(bytes(8))
    options = [f"-Drocketshim.clock.offset={offset_file}", *options_with("SystemTime", folder)]
    with (
        offset_file.open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as offset,
        LocalCluster(properties=_PROPERTIES, jvm_options=options) as cluster,
    ):
        yield SteppedBroker(cluster, offset)
