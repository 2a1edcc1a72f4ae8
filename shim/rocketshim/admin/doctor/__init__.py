"""`rocketshim doctor`: check the set-up and find each problem, its impact and the command that fixes it.

`gather` reads the cluster; it is the only module here that does. It returns `Facts`. Each check is a pure function from
facts to findings: `topics`, `queues` (and groups), `clients` (and their ACLs). `set_up` runs all of them, and `examine`
also finds what is wrong now, by the verdict of every other screen.

The doctor changes nothing on the cluster. Only with `probe` it writes one record to each leader, which every reader of
rocketshim skips, and measures what the cluster can do on a topic and groups that it deletes again.
"""

from collections.abc import Callable, Iterator
from typing import Final

from rocketshim.admin.doctor import clients, queues, topics
from rocketshim.admin.doctor.facts import Facts
from rocketshim.observe.finding import Finding, Severity
from rocketshim.observe.verdict import verdict, worst_first

__all__ = ["CHECKS", "Facts", "Finding", "Severity", "examine", "set_up"]

Check = Callable[[Facts], Iterator[Finding]]


def _unread(facts: Facts) -> Iterator[Finding]:
    for what in facts.unread:
        yield Finding(
            "not-looked-at",
            Severity.NOTE,
            "doctor",
            what,
            "the checks that need it were skipped",
            "run the doctor as a principal with the ACLs that `rocketshim acls --role operator` prints; if no answer "
            "came in time, run it again: a broker is away or slow, or a quota slows this client down",
        )


CHECKS: Final[tuple[Check, ...]] = (
    topics.missing_topics,
    topics.settings,
    topics.partition_counts,
    topics.leaders,
    topics.copies,
    topics.user_topics,
    topics.offsets_retention,
    topics.auto_creation,
    queues.backlog,
    queues.level_table,
    queues.transactions,
    queues.parked,
    queues.lost_marks,
    queues.clocks,
    queues.open_transactions,
    queues.subscriptions,
    queues.partitioner,
    clients.client_settings,
    clients.poll_interval,
    clients.session_timeouts,
    clients.transaction_timeout,
    clients.capabilities,
    clients.rights,
    _unread,
)


def examine(facts: Facts) -> list[Finding]:
    """Return what is wrong now and in the set-up, the most severe first."""
    now = [] if facts.look is None else verdict(facts, facts.look)
    return worst_first([*now, *set_up(facts)])


def set_up(facts: Facts) -> list[Finding]:
    """Return what is wrong in the set-up, the most severe first."""
    return worst_first(finding for check in CHECKS for finding in check(facts))
