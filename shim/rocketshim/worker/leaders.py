"""The clocks of the leaders of the schedule topic's partitions, and when to probe them.

One `LeaderClock` a leader; which partition belongs to which leader comes from the cluster's metadata, asked for again
with each round of probes. A probe goes to one partition of each leader that leads a partition of ours, the finest queue
where it leads one: the record is skipped 32 ms later. Until a leader's first probe is confirmed its clock is unknown
and its partitions deliver nothing. One owner thread: the worker's.
"""

from collections.abc import Iterable, Mapping

from rocketshim.core.leader_clock import LeaderClock

__all__ = ["LeaderClocks"]


class LeaderClocks:
    """Which leader leads what, and what their clocks show at least.

    Args:
        interval_ns: time between two rounds of probes, in ns.
        patience_ns: after which a probe that was not confirmed counts as lost, in ns.
    """

    __slots__ = ("_clocks", "_interval_ns", "_leader_of", "_next_ns", "_outstanding", "_patience_ns")

    def __init__(self, interval_ns: int, patience_ns: int) -> None:
        self._interval_ns = interval_ns
        self._patience_ns = patience_ns
        self._clocks: dict[int, LeaderClock] = {}
        self._leader_of: dict[int, int] = {}
        self._outstanding: dict[int, int] = {}  # leader -> when its probe was sent, ns
        self._next_ns = 0

    def learn(self, leader_of: Mapping[int, int]) -> None:
        """Take the leader of each partition from metadata; -1 (none now) keeps what was known."""
        for partition, leader in leader_of.items():
            if leader >= 0:
                self._leader_of[partition] = leader

    def now_ms(self, partition: int, now_ns: int) -> int | None:
        """What the clock of a partition's leader shows at least, epoch ms; None while that is unknown."""
        clock = self._clocks.get(self._leader_of.get(partition, -1))
        return None if clock is None else clock.now_ms(now_ns)

    def observe(self, partition: int, offset: int, append_ms: int, seen_ns: int) -> None:
        """A record was fetched."""
        leader = self._leader_of.get(partition)
        clock = None if leader is None else self._clocks.get(leader)
        if clock is not None and clock.observe(partition, offset, append_ms, seen_ns):
            self._next_ns = 0

    def probed(self, partition: int, offset: int, append_ms: int, *, sent_ns: int, seen_ns: int) -> None:
        """A probe's delivery report is in."""
        leader = self._leader_of.get(partition)
        if leader is None:
            return
        self._outstanding.pop(leader, None)
        self._clocks.setdefault(leader, LeaderClock()).probed(
            partition, offset, append_ms, sent_ns=sent_ns, seen_ns=seen_ns
        )

    def probe_failed(self, partition: int, now_ns: int) -> None:
        """A probe could not be stored: the next round comes a fifth of the interval later."""
        self._outstanding.pop(self._leader_of.get(partition, -1), None)
        self._next_ns = now_ns + self._interval_ns // 5

    def due(self, now_ns: int) -> bool:
        """Whether a round of probes is due."""
        return now_ns >= self._next_ns

    def wait_ns(self, now_ns: int) -> int:
        """How long until the next round, in ns."""
        return max(0, self._next_ns - now_ns)

    def round(self, partitions: Iterable[int], stride: int, now_ns: int) -> list[int]:
        """Begin a round: the partitions to probe, one a leader that has no probe under way."""
        self._next_ns = now_ns + self._interval_ns
        chosen: dict[int, int] = {}
        for partition in partitions:
            leader = self._leader_of.get(partition)
            if leader is None:
                continue
            best = chosen.get(leader)
            if best is None or partition % stride > best % stride:
                chosen[leader] = partition
        probes = []
        for leader, partition in chosen.items():
            sent_ns = self._outstanding.get(leader)
            if sent_ns is None or now_ns - sent_ns > self._patience_ns:
                self._outstanding[leader] = now_ns
                probes.append(partition)
        return probes
