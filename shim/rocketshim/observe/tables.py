"""A snapshot as the tables of `rocketshim top`. Pure."""

from dataclasses import dataclass

from rocketshim.observe.snapshot import DelayQueue, Snapshot

__all__ = ["Table", "levels_table", "summary", "tables"]

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """One table. Times are in seconds; None: not known, or nothing waits."""

    title: str
    columns: tuple[str, ...]  # the names of its columns
    rows: tuple[tuple[Cell, ...], ...]  # its rows


def summary(snapshot: Snapshot) -> str:
    """Return the state of the installation in one line."""
    dead = sum(topic.kept for topic in snapshot.dead)
    parked = 0 if snapshot.parked is None else snapshot.parked.kept
    behind = sum(group.behind for group in snapshot.groups)
    text = f"{snapshot.waiting} waiting, latest {snapshot.late_ms / 1e3:.1f} s late"
    if snapshot.clock_behind_ms:
        text += f" (THIS CLOCK IS {snapshot.clock_behind_ms // 1_000} s OR MORE BEHIND THE BROKERS')"
    text += f"   {behind} unread   {dead} dead   {parked} parked"
    if count := len(snapshot.unknown):
        text += f"   MISSING: {count} partition{'s' * (count != 1)} whose leader does not answer"
    return text if snapshot.error is None else f"OLD VALUES: {snapshot.error}"


def tables(snapshot: Snapshot) -> tuple[Table, ...]:
    """Return the tables: delay levels, consumer groups, dead letters, workers."""
    return levels_table(snapshot), _groups(snapshot), _dead(snapshot), _workers(snapshot)


def levels_table(snapshot: Snapshot) -> Table:
    """Return the delay levels: what waits in their queues, how late they are, and what retention deleted."""
    by_delay: dict[int | None, list[DelayQueue]] = {}
    for queue in snapshot.queues:
        by_delay.setdefault(queue.delay_ms, []).append(queue)
    rows: list[tuple[Cell, ...]] = [
        (
            None if delay_ms is None else delay_ms / 1e3,
            sum(queue.waiting for queue in queues),
            max(queue.late_ms(snapshot.at_ms) for queue in queues) / 1e3,
            sum(queue.standing.lost for queue in queues),
        )
        for delay_ms, queues in sorted(by_delay.items(), key=lambda item: item[0] or 0)
    ]
    if snapshot.timers:
        late_ms = max(each.late_ms(snapshot.at_ms) for each in snapshot.timers)
        lost = sum(each.standing.lost for each in snapshot.timers)
        rows.append(("timer log", sum(each.waiting for each in snapshot.timers), late_ms / 1e3, lost))
    return Table("Waiting", ("delay s", "waiting", "late s", "lost"), tuple(rows))


def _groups(snapshot: Snapshot) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for group in snapshot.groups:
        for topic, part in group.topics().items():
            first_ms = part.first_unread_ms
            age_s = None if first_ms is None else max(0, snapshot.at_ms - first_ms) / 1e3
            rows.append((group.group, topic, part.behind, age_s, part.lost))
    return Table("Groups", ("group", "topic", "unread", "oldest s", "lost"), tuple(rows))


def _dead(snapshot: Snapshot) -> Table:
    topics = (*snapshot.dead, *(() if snapshot.parked is None else (snapshot.parked,)))
    rows = tuple((each.group or "parked", each.topic, each.kept, each.appended) for each in topics)
    return Table("Dead", ("group", "topic", "kept", "ever"), rows)


def _workers(snapshot: Snapshot) -> Table:
    rows = tuple(
        (
            each.url,
            each.trouble or "ready",
            each.mode,
            each.queues,
            each.late_ms / 1e3,
            len(each.avoided),
            each.delivered,
            sum(each.parked.values()),
        )
        for each in snapshot.workers
    )
    return Table("Workers", ("worker", "state", "mode", "queues", "late s", "avoided", "delivered", "parked"), rows)
