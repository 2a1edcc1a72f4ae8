"""Checks of what waits in the delay queues, of the worker that empties them, and of the clocks they go by. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from rocketshim.admin.doctor.facts import Facts, QueueFacts
from rocketshim.admin.doctor.finding import Finding, Severity
from rocketshim.worker.allow_list import NOT_ALLOWED
from rocketshim.worker.assignment import levels_of
from rocketshim_topics.levels import DelayLevels

__all__ = ["backlog", "clocks", "level_table", "open_transactions", "parked", "worker"]

_OVERDUE_MS: Final = 60_000
_SKEW_MS: Final = 1_000
_HELD_MS: Final = 60_000
_SAME_TABLE: Final = (
    "give senders, consumers and worker the same --delay-levels; what waits by the other table is through when its "
    "delay is over: rocketshim delayed stats"
)


def worker(facts: Facts) -> Iterator[Finding]:
    """Somebody delivers what is due, and retention did not overtake them."""
    group = facts.names.worker_group
    standing = facts.standings.get(group)
    if standing is None:
        return
    run = facts.command("worker", "--allow", "TOPIC")
    overdue_ms = max((_overdue_ms(facts, queue) for queue in facts.queues), default=0)
    waiting = sum(queue.behind for queue in facts.queues)
    if not standing.members and waiting:
        yield Finding(
            "worker-missing",
            Severity.ERROR,
            group,
            f"no worker runs, and messages wait ({waiting} offsets)",
            f"delayed and retried messages are not delivered ({_since(overdue_ms)})",
            run,
        )
    elif overdue_ms > _OVERDUE_MS:
        yield Finding(
            "worker-late",
            Severity.ERROR,
            group,
            f"a worker is in the group, and the oldest message should have left {overdue_ms // 1_000} s ago",
            "delayed and retried messages are late; the worker is stuck or too slow",
            f"look at its log and /state; more lanes and workers: {facts.init('--lanes', 'N')}",
        )
    lost = sum(queue.lost for queue in facts.queues)
    if lost:
        yield Finding(
            "retention-overtook",
            Severity.ERROR,
            facts.names.schedule,
            f"retention took {lost} offsets that no worker had read",
            "these messages are gone",
            f"raise retention.ms above the longest outage: {facts.init('--mend')}",
        )


def backlog(facts: Facts) -> Iterator[Finding]:
    """What waits leaves before retention takes it."""
    topic = facts.topics.get(facts.names.schedule)
    text = None if topic is None or topic.config is None else topic.config.get("retention.ms")
    if text is None or not text.isdecimal():
        return  # not readable, or unlimited (-1)
    retention_ms = int(text)
    for queue in facts.queues:
        if not queue.samples:
            continue
        head = queue.samples[0]
        taken_ms = head.appended_ms + retention_ms
        leaves_ms = head.appended_ms + _queue_ms(facts, queue)
        if leaves_ms >= taken_ms or (leaves_ms < facts.now_ms and facts.now_ms - head.appended_ms > retention_ms // 2):
            yield Finding(
                "retention-backlog",
                Severity.ERROR,
                f"{facts.names.schedule}/{queue.partition}",
                f"the oldest message waits since {(facts.now_ms - head.appended_ms) // 1_000} s and leaves "
                f"{_when(leaves_ms, facts.now_ms)}; retention.ms is {retention_ms}",
                f"from {_when(taken_ms, facts.now_ms)} on messages of this queue are deleted undelivered",
                facts.alter(facts.names.schedule, retention_ms=str(max(2 * retention_ms, 7 * 86_400_000))),
            )


def level_table(facts: Facts) -> Iterator[Finding]:
    """The level table is the one that the worker runs with, and the one that the senders of what waits had."""
    yield from _workers_table(facts)
    levels = facts.layout.levels
    removed: set[int] = set()
    for queue in facts.queues:
        level = queue.partition % DelayLevels.STRIDE + 1
        if level > DelayLevels.MAX_LEVELS:
            continue
        if levels.queue_delay_ms(queue.partition) is None:
            removed.add(level)
        else:
            yield from _senders_table(facts, queue, level)
    if removed:
        yield Finding(
            "level-removed",
            Severity.WARNING,
            facts.names.schedule,
            f"messages wait in the queues of levels {_numbers(removed)}, which the table {str(levels)!r} does not have",
            "a worker with this table takes each after 1 s and sends it on by its own DELAY_MS: on time, at the price "
            "of more hops; records of foreign producers without DELAY_MS are delivered after 1 s",
            _SAME_TABLE,
        )


def _workers_table(facts: Facts) -> Iterator[Finding]:
    """How the table differs from those that the workers' commits carry."""
    standing = facts.standings.get(facts.names.worker_group)
    mine = facts.layout.levels
    seen = {each.metadata for each in standing.partitions if each.member or not standing.members} if standing else set()
    for theirs in filter(None, map(levels_of, seen)):
        if theirs == mine:
            continue
        shared = range(1, min(mine.max_level, theirs.max_level) + 1)
        changed = [level for level in shared if mine.delay_ms(level) != theirs.delay_ms(level)]
        said = [
            f"level {level} is {theirs.delay_ms(level)} ms there and {mine.delay_ms(level)} ms here"
            for level in changed
        ]
        if theirs.max_level > mine.max_level:
            said.append(f"levels {_numbers(range(mine.max_level + 1, theirs.max_level + 1))} are removed here")
        if mine.max_level > theirs.max_level:
            said.append(f"levels {_numbers(range(theirs.max_level + 1, mine.max_level + 1))} are added here")
        yield Finding(
            "level-table",
            Severity.WARNING,
            facts.names.worker_group,
            f"the worker runs with the table {str(theirs)!r}, not {str(mine)!r}: {'; '.join(said)}",
            "with the worker's table a level means its delay; senders with another are still never early by their own "
            "DELAY_MS, but late where the worker's queue is longer, and levels it does not know cost hops",
            _SAME_TABLE,
        )


def _senders_table(facts: Facts, queue: QueueFacts, level: int) -> Iterator[Finding]:
    """What the records of one queue say about the table of their senders, each thing once."""
    wanted_ms = facts.layout.levels.delay_ms(level)
    found = {sample.delay_ms for sample in queue.samples if sample.level is not None and sample.delay_ms is not None}
    for delay_ms in sorted(found - {wanted_ms}):
        late_ms = wanted_ms - delay_ms
        hops = "what waits there leaves sooner and hops on by its DELAY_MS: on time, at the price of more hops"
        yield Finding(
            "level-changed",
            Severity.ERROR if late_ms > 0 else Severity.WARNING,
            f"{facts.names.schedule}/{queue.partition}",
            f"level {level} was {delay_ms} ms to its senders and is {wanted_ms} ms in the table "
            f"{str(facts.layout.levels)!r}",
            f"what waits there leaves by the queue's new delay: {late_ms} ms late" if late_ms > 0 else hops,
            _SAME_TABLE,
        )


def parked(facts: Facts) -> Iterator[Finding]:
    """Nothing lies in the parking topic."""
    others = (facts.parked or 0) - facts.parked_not_allowed
    if others:
        yield Finding(
            "parked",
            Severity.WARNING,
            facts.names.parked,
            f"{others} records were parked within a day: malformed, forbidden, or refused by their target",
            "they were not delivered, and retention deletes them",
            facts.command("parked", "ls"),
        )
    if facts.parked_not_allowed:
        yield Finding(
            "parked-not-allowed",
            Severity.WARNING,
            facts.names.parked,
            f"{facts.parked_not_allowed} records were parked within a day because no worker that had them may write to "
            "their target",
            "they were not delivered; the target is missing on allow-lists, or the workers' lists differ",
            "start all workers with the same --allow list, then "
            + facts.command("parked", "redrive", "--reason", NOT_ALLOWED),
        )


def clocks(facts: Facts) -> Iterator[Finding]:
    """The leaders' clocks agree with each other and with this machine's."""
    for node, ahead_ms in sorted(facts.clocks_ms.items()):
        if abs(ahead_ms) > _SKEW_MS:
            yield Finding(
                "clock-skew",
                Severity.WARNING,
                f"broker {node}",
                f"its clock is {abs(ahead_ms)} ms {'ahead of' if ahead_ms > 0 else 'behind'} this machine's",
                "messages with a time (deliver_at) come by the broker's clock, that much early or late for their "
                "senders; delays are not touched, they are counted on one clock",
                "synchronise the clocks of brokers and senders (chrony, ntpd)",
            )


def open_transactions(facts: Facts) -> Iterator[Finding]:
    """No transaction holds back what was written after it."""
    for place, age_ms in sorted(facts.open_transactions_ms.items()):
        if age_ms > _HELD_MS:
            yield Finding(
                "open-transaction",
                Severity.ERROR,
                place,
                f"a transaction is open there since {age_ms // 1_000} s",
                "readers see nothing that was written behind it: on the schedule topic that holds up the whole queue",
                "find it with kafka-transactions.sh find-hanging, end it with kafka-transactions.sh abort",
            )


def _queue_ms(facts: Facts, queue: QueueFacts) -> int:
    delay_ms = facts.layout.levels.queue_delay_ms(queue.partition)
    return DelayLevels.UNKNOWN_LEVEL_MS if delay_ms is None else delay_ms


def _overdue_ms(facts: Facts, queue: QueueFacts) -> int:
    return facts.now_ms - queue.samples[0].appended_ms - _queue_ms(facts, queue) if queue.samples else 0


def _since(overdue_ms: int) -> str:
    return f"the oldest for {overdue_ms // 1_000} s" if overdue_ms > 0 else "none is due yet"


def _when(at_ms: int, now_ms: int) -> str:
    return f"in {(at_ms - now_ms) // 1_000} s" if at_ms >= now_ms else f"since {(now_ms - at_ms) // 1_000} s"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
