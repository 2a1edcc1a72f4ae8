"""The three partition assignors of classic consumer groups that librdkafka supports. Pure.

Each is a pure function of (members in the order of their ids, each with its topics; partition counts; present owners),
so it gives the same result for the same group. `cooperative_sticky` leaves a partition with its owner if balance
allows. The coordinator makes sure that the new owner of a moved partition gets it only one generation later.
"""

from collections.abc import Mapping, Sequence

__all__ = ["Partition", "cooperative_sticky", "range_", "roundrobin"]

Partition = tuple[str, int]
Wanted = Mapping[str, Sequence[str]]
Shares = dict[str, list[Partition]]


def range_(wanted: Wanted, partition_counts: Mapping[str, int]) -> Shares:
    """Assign contiguous partitions per topic; the first members get one more (Kafka's `RangeAssignor`)."""
    shares: Shares = {member: [] for member in wanted}
    for topic in sorted({topic for topics in wanted.values() for topic in topics}):
        takers = sorted(member for member, topics in wanted.items() if topic in topics)
        size, more = divmod(partition_counts.get(topic, 0), len(takers))
        start = 0
        for index, member in enumerate(takers):
            end = start + size + (index < more)
            shares[member].extend((topic, partition) for partition in range(start, end))
            start = end
    return shares


def roundrobin(wanted: Wanted, partition_counts: Mapping[str, int]) -> Shares:
    """Assign one partition after another to one member after another (Kafka's `RoundRobinAssignor`)."""
    shares: Shares = {member: [] for member in wanted}
    members = sorted(wanted)
    turn = 0
    for partition in _all_partitions(wanted, partition_counts):
        while partition[0] not in wanted[members[turn % len(members)]]:
            turn += 1
        shares[members[turn % len(members)]].append(partition)
        turn += 1
    return shares


def cooperative_sticky(
    wanted: Wanted, partition_counts: Mapping[str, int], owned: Mapping[str, Sequence[Partition]]
) -> Shares:
    """Assign balanced shares and move as few partitions as possible (as Kafka's `CooperativeStickyAssignor`)."""
    everything = _all_partitions(wanted, partition_counts)
    shares: Shares = {member: [] for member in sorted(wanted)}
    free = set(everything)
    for member in shares:
        for partition in sorted(owned.get(member, ())):
            if partition in free and partition[0] in wanted[member]:
                shares[member].append(partition)
                free.remove(partition)
    for partition in sorted(free):
        takers = [member for member in shares if partition[0] in wanted[member]]
        shares[min(takers, key=lambda member: (len(shares[member]), member))].append(partition)
    while _move_one(wanted, shares):
        pass
    return {member: sorted(share) for member, share in shares.items()}


def _move_one(wanted: Wanted, shares: Shares) -> bool:
    """Move one partition to a member with at least two fewer; return False if the shares are balanced."""
    for giver in sorted(shares, key=lambda member: (-len(shares[member]), member)):
        for partition in sorted(shares[giver], reverse=True):
            takers = [member for member in shares if partition[0] in wanted[member]]
            taker = min(takers, key=lambda member: (len(shares[member]), member))
            if len(shares[taker]) + 1 < len(shares[giver]):
                shares[giver].remove(partition)
                shares[taker].append(partition)
                return True
    return False


def _all_partitions(wanted: Wanted, partition_counts: Mapping[str, int]) -> list[Partition]:
    topics = sorted({topic for topics in wanted.values() for topic in topics})
    return [(topic, partition) for topic in topics for partition in range(partition_counts.get(topic, 0))]
