"""Have the owner of an orderly queue act on one failing message: try it now, or make it a dead letter.

The command is a record in the group's log, with the person and the token of the owner that the log names now. Only that
owner obeys, while its lease holds. If the queue changes hands first, nothing happens, and the result says so. Whether
the owner has obeyed is read from what it reports next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rocketshim.admin.group_log_snapshot import GroupLogReader, GroupLogStanding
from rocketshim.core.user_values import count_text, one_line
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.reports import store_command
from rocketshim.locks.lease import NO_TROUBLE
from rocketshim.observe.snapshot import FailingMessage
from rocketshim.settings import ConnectionSettings
from rocketshim_topics.group_log import (
    BY_CHARS,
    CommandRecord,
    GroupRecord,
    QueueCommand,
    encode_group_record,
)
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "CommandResult", "command_owner", "failing_message", "failing_messages", "is_answer", "outcome",
    "store_group_record",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command did."""

    before: FailingMessage
    stored_at: int | None = None  # offset in the group's log; None: it was not stored
    after: FailingMessage | None = None  # what the owner reported then; None: it has not reported within the time

    @property
    def why_not(self) -> str | None:
        """Return why the command would do nothing; None: the owner may obey."""
        before = self.before
        if before.owner is None:
            return f"no member holds the lock of {before.topic}/{before.partition}, so nobody could obey"
        if not before.attempts:
            return f"{before.record} does not fail, as its owner last reported; see: rocketshim group locks"
        return None

    def text(self, do: QueueCommand) -> str:
        """Return it in a sentence."""
        address, after = self.before.record, self.after
        if after is None:
            return (
                f"{address}: stored at {self.stored_at}, and the owner {self.before.owner} has not reported it done. "
                "Its listener may be in a call, or it may run a version without commands; see: rocketshim group locks"
            )
        if after.token != self.before.token:
            return f"{address}: the queue has changed hands, so nothing was done; look again, and repeat the command"
        if after.attempts:
            return f"{address} was tried, and has failed {count_text(after.attempts, 'time')}"
        if do is QueueCommand.TRY_NOW:
            return f"{address} was tried, and is finished: its queue goes on"
        return f"{address} is finished, as a dead letter unless an attempt had just succeeded: its queue goes on"


def failing_message(group: str, standing: GroupLogStanding, queue: MessageQueue, offset: int) -> FailingMessage:
    """Return what a group's log says about a message of an orderly queue, whether it fails or not."""
    lock = standing.log.lock(queue)
    owner = lock.owner.client_id if lock.owner is not None and lock.known else None
    counts = dict(lock.reconsume_counts)
    is_first = next(iter(counts), None) == offset
    attempts, (since_ms, cause, trace, _) = counts.get(offset, 0), standing.trouble(queue) if is_first else NO_TROUBLE
    return FailingMessage(
        group, queue.topic, queue.queue_id, offset, attempts, since_ms, cause, owner, lock.token, trace
    )


def failing_messages(group: str, standing: GroupLogStanding) -> Iterator[FailingMessage]:
    """Yield what fails in a group's orderly queues, as the owners last reported: in each queue the first one first."""
    for lock in standing.log.locks:
        for offset, _ in lock.reconsume_counts:
            yield failing_message(group, standing, lock.queue, offset)


def outcome(message: FailingMessage, token: int) -> str:
    """Return what has become of a message since a command for the owner with this token."""
    if message.attempts:
        changed = "the queue has changed hands since, and " if message.token != token else ""
        return f"{changed}it has failed {count_text(message.attempts, 'time')}, as last reported"
    return "it does not fail any more"


def command_owner(
    settings: ConnectionSettings,
    group: str,
    queue: MessageQueue,
    offset: int,
    do: QueueCommand | None,
    *,
    by: str,
    token: int | None = None,
    wait_s: float,
    clients: Clients | None = None,
) -> CommandResult:
    """Store a command for the owner of a queue and wait for what it reports; without `do`, only look.

    Nothing is stored if the command would do nothing (`CommandResult.why_not`), or if the owner's token is not this
    `token` (None: any).

    Raises:
        TopicMissingError, BrokerUnavailableError: the log cannot be read.
        SendError: it is not known whether the command is stored. It may be repeated.
    """
    with GroupLogReader(settings, group, clients) as reader:
        before = failing_message(group, reader.standing, queue, offset)
        if do is None or CommandResult(before).why_not is not None or token not in {None, before.token}:
            return CommandResult(before)
        record = CommandRecord(
            do=do,
            topic=queue.topic,
            queue_id=queue.queue_id,
            token=before.token or 0,
            offset=offset,
            by=one_line(by)[:BY_CHARS] or "unknown",
        )
        stored_at = store_group_record(settings, reader.topic, record, clients)

        def has_reported(standing: GroupLogStanding) -> bool:
            return is_answer(do, before, failing_message(group, standing, queue, offset))

        reader.read_on(has_reported, wait_s)
        after = failing_message(group, reader.standing, queue, offset) if has_reported(reader.standing) else None
        return CommandResult(before, stored_at, after)


def is_answer(do: QueueCommand, before: FailingMessage, now: FailingMessage) -> bool:
    """Return whether a later report says what a command did. Another failed attempt is no dead letter yet."""
    has_changed = now.attempts != before.attempts and (not now.attempts or do is QueueCommand.TRY_NOW)
    return now.token != before.token or has_changed


def store_group_record(
    settings: ConnectionSettings, topic: str, record: GroupRecord | CommandRecord, clients: Clients | None = None
) -> int:
    """Store a record of an operator in a group's log; return its offset. Raises SendError: not surely stored."""
    value = encode_group_record(record)
    return store_command(settings.client, settings.bootstrap, clients, topic, value, partition=0)
