"""Overload of the brokers is a fault of both lanes, whichever lane's look-up shows it."""

from typing import Any

from proof.chaos.plan import LANES
from proof.chaos.sampling import _sample
from proof.lines import Fault


class Writer:
    """A history whose clock moves on by two seconds whenever it is asked."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self._now_ns = 0

    def clock_ns(self) -> int:
        self._now_ns += 2_000_000_000
        return self._now_ns

    def write(self, line: Any) -> None:
        self.lines.append(line)


class Quiet:
    """A stage without processes, and lags of no group."""

    def of(self, lane: Any) -> Any:
        del lane
        return {}


def test_overload_is_written_into_both_histories() -> None:
    writers: Any = {lane.name: Writer() for lane in LANES}
    stage: Any = Quiet()
    _sample(stage, LANES[0], stage, writers)
    for writer in writers.values():
        (fault,) = writer.lines
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.begin_ns, fault.end_ns) == ("overload", 2_000_000_000, 4_000_000_000)
