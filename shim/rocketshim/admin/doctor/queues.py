"""Checks of what waits: delay queues, the worker that delivers from them, their clocks, and consumer groups. Pure."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Final

from rocketshim.admin.doctor.facts import Facts
from rocketshim.core.user_values import count_text
from rocketshim.core.worker_notes import NOT_ALLOWED, clock_ahead_ms_of, levels_of
from rocketshim.observe.finding import Finding, Severity
from rocketshim.observe.snapshot import DelayQueue, conflicts
from rocketshim_topics.levels import DelayLevels, time_in_queue_ms

__all__ = [
    "backlog",
    "clocks",
    "level_table",
    "lost_marks",
    "open_transactions",
    "parked",
    "partitioner",
    "subscriptions",
    "transactions",
]

_MIN_KEYS: Final = 10
_MAX_MISPLACED_SHARE: Final = 0.1


def subscriptions(facts: Facts) -> Iterator[Finding]:
    """Check that all members of a group have the same subscription."""
    standings = facts.standings
    for group in facts.groups:
        standing = standings.get(group)
        if standing is None:
            continue
        for conflict in conflicts(standing, retry_topic=facts.names.retry(group)):
            if not conflict.loses_messages:
                yield Finding(
                    "topics-differ",
                    Severity.NOTE,
                    f"{group} on {conflict.topic}",
                    "commits carry subscriptions to different topics, or other filters of other topics: "
                    + "; ".join(conflict.partitions),
                    "normal in a rolling deployment: nothing of this topic is lost. With an allocation strategy, "
                    "queues of a topic that a member lacks are not read",
                    "finish the deployment: docs/rolling-deployments.md; "
                    + facts.command("group", "subscriptions", group),
                )
                continue
            yield Finding(
                "subscriptions-differ",
                Severity.ERROR,
                f"{group} on {conflict.topic}",
                "commits carry different subscriptions: " + "; ".join(conflict.partitions),
                "each member skips and commits messages that only the other one wants: the group loses these messages",
                "deploy the same listener everywhere; if you already have, the next commit of each partition clears "
                "this: " + facts.command("group", "subscriptions", group),
            )


def partitioner(facts: Facts) -> Iterator[Finding]:
    """Check that keys are in the partitions that the Java client's partitioner, and so rocketshim, chooses."""
    for name, (count, elsewhere) in sorted(facts.keys.items()):
        if count >= _MIN_KEYS and elsewhere > count * _MAX_MISPLACED_SHARE:
            yield Finding(
                "partitioner",
                Severity.WARNING,
                name,
                f"{elsewhere} of {count} keys are in another partition than murmur2 chooses",
                "delayed and immediate messages with the same key go to different partitions: their order is lost, "
                "and two consumers may process them at the same time",
                "set partitioner=murmur2_random in each librdkafka producer of this topic (it is not the default); "
                "a topic whose partitions were increased shows this for its old records",
            )


_MAX_SKEW_MS: Final = 1_000
_MAX_AHEAD_MS: Final = 60_000
_MAX_TRANSACTION_AGE_MS: Final = 60_000


def backlog(facts: Facts) -> Iterator[Finding]:
    """Check that waiting messages leave their queue before retention deletes them."""
    topic = facts.topics.get(facts.names.schedule)
    text = None if topic is None or topic.config is None else topic.config.get("retention.ms")
    if text is None or not text.isdecimal():
        return  # not readable, or unlimited (-1)
    retention_ms = int(text)
    for queue in facts.queues:
        head = queue.head[0]
        deleted_ms = head.appended_ms + retention_ms
        leaves_ms = head.appended_ms + time_in_queue_ms(facts.layout.levels, queue.partition)
        if leaves_ms >= deleted_ms or (
            leaves_ms < facts.now_ms and facts.now_ms - head.appended_ms > retention_ms // 2
        ):
            yield Finding(
                "retention-backlog",
                Severity.ERROR,
                f"{facts.names.schedule}/{queue.partition}",
                f"the oldest message has waited for {(facts.now_ms - head.appended_ms) // 1_000} s and is due to leave "
                f"{_when(leaves_ms, facts.now_ms)}; retention.ms is {retention_ms}",
                f"retention may delete undelivered messages of this queue from {_when(deleted_ms, facts.now_ms)} on",
                facts.keep_longer(facts.names.schedule),
            )


def level_table(facts: Facts) -> Iterator[Finding]:
    """Check that the level table equals the worker's, and that of the senders of waiting messages."""
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
            "a worker with this table takes each message after 1 s and forwards it by its DELAY_MS: on time, but with "
            "more hops; records of other producers without DELAY_MS are delivered after 1 s",
            _same_table(facts),
        )


def _workers_table(facts: Facts) -> Iterator[Finding]:
    """Return how the table differs from those that the workers' commits carry."""
    standing = facts.standings.get(facts.names.worker_group)
    given = facts.layout.levels
    seen = {each.metadata for each in standing.partitions if each.member or not standing.members} if standing else set()
    for workers in filter(None, map(levels_of, seen)):
        if workers == given:
            continue
        shared = range(1, min(given.max_level, workers.max_level) + 1)
        changed = [level for level in shared if given.delay_ms(level) != workers.delay_ms(level)]
        differences = [
            f"level {level} is {workers.delay_ms(level)} ms there and {given.delay_ms(level)} ms here"
            for level in changed
        ]
        if workers.max_level > given.max_level:
            differences.append(f"levels {_numbers(range(given.max_level + 1, workers.max_level + 1))} are removed here")
        if given.max_level > workers.max_level:
            differences.append(f"levels {_numbers(range(workers.max_level + 1, given.max_level + 1))} are added here")
        yield Finding(
            "level-table",
            Severity.WARNING,
            facts.names.worker_group,
            f"the worker runs with the table {str(workers)!r}, not {str(given)!r}: {'; '.join(differences)}",
            "the worker's table decides the delay of a level; messages of senders with another table are never early "
            "by their DELAY_MS, but late where the worker's queue is longer, and unknown levels cost more hops",
            _same_table(facts),
        )


def _senders_table(facts: Facts, queue: DelayQueue, level: int) -> Iterator[Finding]:
    """Return the differences from the senders' table, as the records of one queue show them, each difference once."""
    wanted_ms = facts.layout.levels.delay_ms(level)
    found = {sample.delay_ms for sample in queue.head if sample.delay_level is not None and sample.delay_ms is not None}
    for delay_ms in sorted(found - {wanted_ms}):
        late_ms = wanted_ms - delay_ms
        more_hops = "waiting messages leave sooner and are forwarded by their DELAY_MS: on time, but with more hops"
        yield Finding(
            "level-changed",
            Severity.ERROR if late_ms > 0 else Severity.WARNING,
            f"{facts.names.schedule}/{queue.partition}",
            f"level {level} was {delay_ms} ms for its senders but is {wanted_ms} ms in the table "
            f"{str(facts.layout.levels)!r}",
            f"waiting messages leave by the queue's new delay: {late_ms} ms late" if late_ms > 0 else more_hops,
            _same_table(facts),
        )


def transactions(facts: Facts) -> Iterator[Finding]:
    """Check that the producers of half messages answer, and that the topic exists through which they are asked."""
    for group, (waiting, often) in sorted(facts.transactions.items()):
        checks = facts.names.check(group)
        if checks not in facts.topics:
            yield Finding(
                "topic-missing",
                Severity.ERROR,
                checks,
                f"{count_text(waiting, 'message')} of the producers {group} {'waits' if waiting == 1 else 'wait'} for "
                "the outcome of a transaction, and the topic for checks does not exist, or the principal may not see "
                "it",
                "nobody is asked; after 15 checks the messages are parked",
                facts.init(f"--producer-group={group}"),
            )
        elif often:
            yield Finding(
                "transactions-unanswered",
                Severity.WARNING,
                group,
                f"the producers were asked three times or more about {count_text(often, 'message')}, and have not told "
                "the outcome",
                "the messages are not delivered; after 15 checks they are parked",
                "start a producer of the group, or look at the log of one (producer.transaction-unknown): "
                + facts.command("tx", "ls", "--producer-group", group),
            )


def parked(facts: Facts) -> Iterator[Finding]:
    """Check that no record was parked within the last day."""
    others = (facts.parked or 0) - facts.parked_not_allowed
    if others:
        yield Finding(
            "parked",
            Severity.WARNING,
            facts.names.parked,
            f"{count_text(others, 'record')} parked within the last day and not sent again: malformed, forbidden, "
            "refused by their target, or of a transaction that no producer has answered for",
            "they were not delivered, and retention deletes them",
            facts.command("parked", "ls"),
        )
    if facts.parked_not_allowed:
        yield Finding(
            "parked-not-allowed",
            Severity.WARNING,
            facts.names.parked,
            f"{count_text(facts.parked_not_allowed, 'record')} parked within the last day and not sent again, because "
            "no worker that had them may write to their target",
            "they were not delivered; their target is missing from the allow-lists, or the workers' lists differ",
            "start all workers with the same --allow list, then "
            + facts.command("parked", "plan", "--reason", NOT_ALLOWED, "--out", "FILE")
            + f"; {_apply(facts)}",
        )


def _apply(facts: Facts) -> str:
    return shlex.join(["rocketshim", "dlq", "apply", "FILE", "--bootstrap", facts.bootstrap])


def lost_marks(facts: Facts) -> Iterator[Finding]:
    """Check that the redrive log has all marks that records which may still be sent again could have."""
    groups = {facts.names.dead_letter(group): group for group in facts.groups}
    for topic, count in sorted(facts.marks_lost.items()):
        if topic == facts.names.parked:
            again = facts.command("parked", "plan", "PARTITION/OFFSET", "--again", "--out", "FILE")
            ways_out = [facts.command("parked", "ls"), f"send those that are still wanted: {again}", _apply(facts)]
        else:
            only = [f"--group={groups[topic]}", "--out", "FILE"]
            apply = _apply(facts)
            ways_out = [
                f"send what is newer: {facts.command('dlq', 'plan', *only)}",
                apply,
                f"then mark the rest as not to be sent: {facts.command('dlq', 'discard', *only)}",
                f"{apply} (or send it nevertheless, which may repeat some: dlq plan --again)",
            ]
        yield Finding(
            "marks-lost",
            Severity.WARNING,
            topic,
            f"{facts.names.redrive_log} has lost its first records, and {count_text(count, 'record')} here may have "
            "had a mark there",
            "whether they were sent again is not known: plans hold them back, and older plans are refused",
            "; ".join(ways_out),
        )


def clocks(facts: Facts) -> Iterator[Finding]:
    """Check that the leaders' clocks agree with this machine's, and those of workers and consumers with theirs."""
    found: dict[str, int] = {}
    for node, ahead_ms in sorted(facts.clocks_ms.items()):
        if abs(ahead_ms) > _MAX_SKEW_MS:
            yield Finding(
                "clock-skew",
                Severity.WARNING,
                f"broker {node}",
                f"its clock is {abs(ahead_ms)} ms {'ahead of' if ahead_ms > 0 else 'behind'} this machine's",
                "messages with a delivery time (deliver_at) follow the broker's clock, so their senders see them early "
                "or late by this difference; delays are not affected, because one clock counts them",
                "synchronise the clocks of brokers and senders (chrony, ntpd)",
            )
    standing = facts.standings.get(facts.names.worker_group)
    for each in standing.partitions if standing else ():
        if each.member and clock_ahead_ms_of(each.metadata):
            found[each.member] = clock_ahead_ms_of(each.metadata)
    for queue in facts.queues:
        for sample in queue.head:
            if sample.failed_ms is not None and sample.failed_ms - sample.appended_ms > _MAX_AHEAD_MS:
                found[f"a consumer of {sample.group or 'a group'}"] = sample.failed_ms - sample.appended_ms
    for client, ahead_ms in sorted(found.items()):
        yield Finding(
            "clock-skew",
            Severity.WARNING,
            client,
            f"its clock is {abs(ahead_ms) // 1_000} s {'ahead of' if ahead_ms > 0 else 'behind'} the brokers'",
            "it stores records at the brokers' time, so nothing is early or lost; but it is not ready, its log has the "
            "wrong time, and brokers may refuse what other programs on its machine send (INVALID_TIMESTAMP)",
            "synchronise the clock of that machine (chrony, ntpd)",
        )


def open_transactions(facts: Facts) -> Iterator[Finding]:
    """Check that no open transaction hides the records written after it."""
    for partition, age_ms in sorted(facts.open_transactions_ms.items()):
        if age_ms > _MAX_TRANSACTION_AGE_MS:
            yield Finding(
                "open-transaction",
                Severity.ERROR,
                partition,
                f"a transaction has been open for {age_ms // 1_000} s",
                "consumers see no record written after its start; on the schedule topic this stops the whole queue",
                "find it with kafka-transactions.sh find-hanging, end it with kafka-transactions.sh abort",
            )


def _same_table(facts: Facts) -> str:
    return (
        "give senders, consumers and worker the same --delay-levels; messages that wait by the other table are gone "
        f"once their delay is over: {facts.command('delayed', 'stats')}"
    )


def _when(at_ms: int, now_ms: int) -> str:
    return f"in {(at_ms - now_ms) // 1_000} s" if at_ms >= now_ms else f"since {(now_ms - at_ms) // 1_000} s"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
