"""What is wrong in an installation now, by one look at the cluster, worst first. Pure.

`rocketshim status`, `top`, `doctor`, the console's overview and the exporter all show this list, so that no screen is
calm while another one is not. Each finding has its cause, since when, its cost, and the command that helps.

Bounds: a target that does not exist is found among the first and the newest few records of each delay queue; a message
that blocks a queue is known from its owner's report in the group's log; whether a group falls behind needs two looks.
A consumer that its own program has suspended tells the cluster nothing, so its group is only behind.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rocketshim.core.user_values import count_text
from rocketshim.observe.finding import Finding, Installation, Severity
from rocketshim.observe.snapshot import FailingMessage, GroupStanding, Snapshot
from rocketshim_topics.durations import duration_text

__all__ = ["verdict", "worst_first"]

_LATE_MS: Final = 5_000  # longer than a hand-over between workers
_VERY_LATE_MS: Final = 60_000
_BLOCKED_FROM: Final = 3  # failed attempts
_BEHIND_MS: Final = 6_000  # longer than the time between two commits
_LONG_BEHIND_MS: Final = 60_000
_ORDER: Final = list(Severity)


def verdict(at: Installation, look: Snapshot, set_up: Iterable[Finding] = ()) -> list[Finding]:
    """Return what is wrong now, worst first, with what an examination of the set-up has found.

    Decides: What is wrong now? This function, for every screen, metric and exit code; the set-up is examined beside it
        (`admin.doctor.set_up`).
    """
    return worst_first([*(finding for check in _CHECKS for finding in check(at, look)), *set_up])


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by severity; those of the same keep their order."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def _worker(at: Installation, look: Snapshot) -> Iterator[Finding]:
    """Find that no worker runs, or that it does not keep up."""
    group, late_ms = at.names.worker_group, look.late_ms
    if look.worker is None or look.worker.members is None:
        return
    queues = (*look.queues, *look.timers)
    waiting = sum(each.waiting for each in queues if each.standing.first_unread_ms is not None)  # not probes alone
    if not look.worker.members and queues:
        doubt = "" if look.is_clock_sure or late_ms <= _VERY_LATE_MS else ", or this machine's clock is ahead"
        oldest = f"the oldest for {_text(late_ms)}{doubt}" if late_ms else "none is due yet"
        yield Finding(
            "worker-missing",
            Severity.ERROR if waiting else Severity.NOTE,
            group,
            f"no worker is running, and {count_text(waiting, 'offset')} {'waits' if waiting == 1 else 'wait'}"
            if waiting
            else "no worker is running; nothing waits",
            f"delayed and retried messages are not delivered ({oldest})" if waiting else "retries and delays will wait",
            at.worker_command,
            look.at_ms - late_ms if late_ms else None,
        )
    elif look.worker.members and late_ms > _LATE_MS:
        log_late_ms = max((each.late_ms(look.at_ms) for each in look.timers), default=0)
        is_log = late_ms == log_late_ms
        yield Finding(
            "timers-late" if is_log else "worker-late",
            Severity.ERROR if late_ms > _VERY_LATE_MS else Severity.WARNING,
            at.names.timers if is_log else group,
            f"a worker is in the group, but the oldest {'command of a named timer' if is_log else 'message'} should "
            f"have left {_text(late_ms)} ago",
            "messages with names are late, and a cancel has not taken effect"
            if is_log
            else "delayed and retried messages are late: the worker died just now, is stuck, or is too slow"
            + ("" if look.is_clock_sure else ", or this machine's clock is ahead of the brokers'"),
            ("" if look.is_clock_sure else f"compare the clocks: {at.command('doctor', '--probe')}; ")
            + f"look at its log and /state; for more lanes and workers: {at.init('--lanes', 'N')}",
            look.at_ms - late_ms,
        )


def _workers(at: Installation, look: Snapshot) -> Iterator[Finding]:
    """Find what the workers that were asked report of themselves."""
    for each in look.workers:
        if each.trouble:
            yield Finding(
                "worker-not-ready",
                Severity.WARNING,
                each.url,
                f"the worker does not answer or is not ready: {each.trouble}",
                "its part of the delay queues is late until another worker has it",
                f"look at its log; start it again: {at.worker_command}",
            )
        for topic, reason in sorted(each.avoided.items()):
            yield Finding(
                "target-avoided",
                Severity.ERROR,
                topic,
                f"the worker {each.url} does not try this target now: {reason}",
                "its messages wait for half a minute in all, and are parked then",
                "correct the topic or the rights of the worker; then send again what was parked: "
                + at.command("parked", "plan", "--topic", topic, "--out", "FILE"),
            )


def _missing_targets(at: Installation, look: Snapshot) -> Iterator[Finding]:
    for each in look.missing:
        due = "" if each.due_ms is None else f", the first due {_when(each.due_ms, look.at_ms)}"
        yield Finding(
            "target-missing",
            Severity.WARNING,
            each.topic,
            f"the topic does not exist, and waiting messages go to it, {each.count} at least{due}",
            "the worker parks them half a minute after they are due, unless the brokers create topics themselves",
            at.command("init", "--topic", each.topic),
        )


def _blocking(look: Snapshot) -> list[FailingMessage]:
    return [each for each in look.failing if each.attempts >= _BLOCKED_FROM]


def _blocked(at: Installation, look: Snapshot) -> Iterator[Finding]:
    for each in _blocking(look):
        standing = next((one for one in look.groups if one.group == each.group), GroupStanding(each.group))
        ends = [one.end for one in standing.partitions if (one.topic, one.partition) == (each.topic, each.partition)]
        behind = max([0, *((end or 0) - each.offset - 1 for end in ends)])
        since = "" if each.since_ms is None else f" for {_text(look.at_ms - each.since_ms)}"
        cause = f": {each.cause}" if each.cause else "; the consumer's log has the cause"
        yield Finding(
            "queue-blocked",
            Severity.ERROR,
            f"{each.group} on {each.topic}/{each.partition}",
            f"{each.record} has failed {count_text(each.attempts, 'time')}{since}{cause}",
            f"the messages behind it wait, or those with its key: {count_text(behind, 'offset')}",
            f"look at it: {at.command('topic', 'show', each.record)}; correct the cause, and the queue goes on, "
            f"soonest with: {_command(at, 'try-now', each)}; or make the message a dead letter, and the queue goes on: "
            f"{_command(at, 'dead-letter', each)}",
            each.since_ms,
            each.trace,
        )


def _dead(at: Installation, look: Snapshot) -> Iterator[Finding]:
    for each in look.dead:
        if each.new and each.group is not None:
            cause = f", lately most by {each.cause}" if each.cause else ""
            yield Finding(
                "dead-letters-rising",
                Severity.WARNING,
                each.group,
                f"{count_text(each.new, 'new dead letter')} within 15 minutes ({each.recent} within 24 h){cause}",
                "these messages were not handled",
                at.command("dlq", "stats", "--group", each.group, "--since", "15m"),
            )


def _behind(at: Installation, look: Snapshot) -> Iterator[Finding]:
    """Find groups that do not read what is there, or not fast enough; not those that only a found message blocks."""
    blocked = {(each.group, each.topic, each.partition) for each in _blocking(look)}
    for group in look.groups:
        since_ms = group.first_unread_ms
        age_ms = 0 if since_ms is None else look.at_ms - since_ms
        earlier = None if look.earlier is None else look.earlier.behind.get(group.group)
        growth = None if earlier is None else group.behind - earlier
        is_away = group.members == () and not look.log_members.get(group.group)
        unread = [each for each in group.partitions if each.first_unread_ms is not None]
        if not is_away and all((group.group, each.topic, each.partition) in blocked for each in unread):
            continue
        if age_ms < _BEHIND_MS or not (is_away or age_ms >= _LONG_BEHIND_MS or (growth or 0) > 0):
            continue
        trend = "" if growth is None else ", and growing" if growth > 0 else ", and shrinking" if growth < 0 else ""
        topics = ", ".join(dict.fromkeys(each.topic for each in unread))
        what = f"{count_text(group.behind, 'unread offset')} of {topics}, the oldest for {_text(age_ms)}{trend}"
        if is_away:
            what = f"no consumer of the group is running; {what}"
            cost = "nobody handles these messages, and retention eventually deletes them"
            fix = "start its consumers: rocketshim run MODULE:CONSUMER; if the group was renamed or retired: "
            fix += "docs/operations.md, Renaming or retiring a group"
        else:
            cost = "they are handled late: a message is slow or keeps failing, or there are too few consumers"
            fix = "more consumers: rocketshim run MODULE:CONSUMER --processes N; where they are: "
            fix += at.command("group", "lag", group.group)
        yield Finding("group-behind", Severity.WARNING, group.group, what, cost, fix, since_ms)


def _lost(at: Installation, look: Snapshot) -> Iterator[Finding]:
    """Find that retention has deleted offsets before the worker, or a group, read them."""
    for topic, queues in ((at.names.schedule, look.queues), (at.names.timers, look.timers)):
        if lost := sum(each.standing.lost for each in queues):
            yield Finding(
                "retention-overtook",
                Severity.ERROR,
                topic,
                f"retention deleted {count_text(lost, 'offset')} that no worker had read",
                "messages among them are lost; there may be none, if all had been delivered and a transaction ended "
                "then",
                f"raise retention.ms above the longest outage: {at.keep_longer(topic)}",
            )
    for group in look.groups:
        for each in group.partitions:
            if each.lost:
                yield Finding(
                    "retention-overtook",
                    Severity.ERROR,
                    f"{group.group} on {each.topic}/{each.partition}",
                    f"retention deleted {count_text(each.lost, 'offset')} that the group had not read",
                    "messages among them are lost; there may be none, only markers and aborted records of "
                    "transactions: rocketshim's consumers pass these, those of other libraries may not",
                    f"consume faster, or raise the retention: {at.keep_longer(each.topic)}",
                )


def _unknown(at: Installation, look: Snapshot) -> Iterator[Finding]:
    """Find what this look could not see."""
    if look.unknown:
        yield Finding(
            "not-looked-at",
            Severity.NOTE,
            ", ".join(map(str, look.unknown[:3])),
            f"the leaders of {count_text(len(look.unknown), 'partition')} do not answer",
            "what waits there is missing in this report",
            at.command("doctor"),
        )
    for what in look.unread:
        yield Finding(
            "not-looked-at",
            Severity.NOTE,
            "this look",
            what,
            "it is missing in this report",
            f"look as a principal with the rights of: {at.command('acls', '--role', 'viewer')}; if no answer came in "
            "time, look again",
        )
    if look.clock_behind_ms and not look.is_clock_sure:
        yield Finding(
            "clock-skew",
            Severity.WARNING,
            "this machine",
            f"its clock is {_text(look.clock_behind_ms)} or more behind the brokers'",
            "the ages that this report goes by are too small by as much: messages may be late, and retries unread",
            "synchronise the clock of this machine (chrony, ntpd)",
        )


_CHECKS: Final[tuple[Callable[[Installation, Snapshot], Iterator[Finding]], ...]] = (
    _worker,
    _blocked,
    _workers,
    _lost,
    _missing_targets,
    _dead,
    _behind,
    _unknown,
)


def _command(at: Installation, do: str, failing: FailingMessage) -> str:
    return at.command("group", do, failing.group, failing.record, "--apply")


def _text(ms: int) -> str:
    return duration_text(max(0, ms) // 1_000 * 1_000)


def _when(at_ms: int, now_ms: int) -> str:
    return f"in {_text(at_ms - now_ms)}" if at_ms >= now_ms else f"{_text(now_ms - at_ms)} ago"
