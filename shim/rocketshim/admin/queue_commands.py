"""Have the owner of an orderly queue act on one failing message: try it now, or make it a dead letter.

The command is a record in the group's log, with the person and the token of the owner that the log names now. Only that
owner obeys, while its lease holds. If the queue changes hands first, nothing happens, and the result says so. Whether
the owner has obeyed is read from what it reports next.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from rocketshim.admin.group_log_snapshot import GroupLogReader, GroupLogStanding
from rocketshim.core.user_values import count_text, one_line
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.reports import store_command
from rocketshim.settings import ConnectionSettings
from rocketshim_topics.group_log import (
    BY_CHARS,
    CommandRecord,
    GroupRecord,
    QueueCommand,
    encode_group_record,
)
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["CommandResult", "FailingRecord", "command_owner", "failing_records", "is_answer", "store_group_record"]


@dataclass(frozen=True, slots=True)
class FailingRecord:
    """A message of an orderly queue as its owner last reported it, and who the owner is."""

    queue: MessageQueue
    offset: int
    owner: str | None = None  # client id; None: the log names nobody
    token: int | None = None
    attempts: int = 0  # failed ones; 0: it does not fail, or is finished
    since_ms: int | None = None  # since when it fails there, epoch ms; None: not known
    cause: str | None = None  # class and text of its last failure; None: not known

    @classmethod
    def of(cls, standing: GroupLogStanding, queue: MessageQueue, offset: int) -> Self:
        """Return what the log says about a message."""
        lock = standing.log.lock(queue)
        owner = lock.owner.client_id if lock.owner is not None and lock.known else None
        counts = dict(lock.reconsume_counts)
        is_first = next(iter(counts), None) == offset
        trouble = standing.trouble(queue) if is_first else (None, None)
        return cls(queue, offset, owner, lock.token, counts.get(offset, 0), *trouble)

    @property
    def address(self) -> str:
        """Return where the message is."""
        return f"{self.queue.topic}/{self.queue.queue_id}/{self.offset}"

    def outcome(self, token: int) -> str:
        """Return what has become of the message since a command for the owner with a token."""
        if self.attempts:
            changed = "the queue has changed hands since, and " if self.token != token else ""
            return f"{changed}it has failed {count_text(self.attempts, 'time')}, as last reported"
        return "it does not fail any more"

    @property
    def why_not(self) -> str | None:
        """Return why a command for it would do nothing; None: its owner may obey."""
        if self.owner is None:
            return f"no member holds the lock of {self.queue.topic}/{self.queue.queue_id}, so nobody could obey"
        if not self.attempts:
            return f"{self.address} does not fail, as its owner last reported; see: rocketshim group locks"
        return None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command did."""

    before: FailingRecord
    stored_at: int | None = None  # offset in the group's log; None: it was not stored
    after: FailingRecord | None = None  # what the owner reported then; None: it has not reported within the time

    def text(self, do: QueueCommand) -> str:
        """Return it in a sentence."""
        address, after = self.before.address, self.after
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


def failing_records(standing: GroupLogStanding) -> Iterator[FailingRecord]:
    """Yield what fails in a group's orderly queues, as the owners last reported: in each queue the first one first."""
    for lock in standing.log.locks:
        for offset, _ in lock.reconsume_counts:
            yield FailingRecord.of(standing, lock.queue, offset)


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

    Nothing is stored if the command would do nothing (`FailingRecord.why_not`), or if the owner's token is not this
    `token` (None: any).

    Raises:
        TopicMissingError, BrokerUnavailableError: the log cannot be read.
        SendError: it is not known whether the command is stored. It may be repeated.
    """
    with GroupLogReader(settings, group, clients) as reader:
        before = FailingRecord.of(reader.standing, queue, offset)
        if do is None or before.why_not is not None or token not in {None, before.token}:
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
            return is_answer(do, before, FailingRecord.of(standing, queue, offset))

        reader.read_on(has_reported, wait_s)
        after = FailingRecord.of(reader.standing, queue, offset) if has_reported(reader.standing) else None
        return CommandResult(before, stored_at, after)


def is_answer(do: QueueCommand, before: FailingRecord, now: FailingRecord) -> bool:
    """Return whether a later report says what a command did. Another failed attempt is no dead letter yet."""
    has_changed = now.attempts != before.attempts and (not now.attempts or do is QueueCommand.TRY_NOW)
    return now.token != before.token or has_changed


def store_group_record(
    settings: ConnectionSettings, topic: str, record: GroupRecord | CommandRecord, clients: Clients | None = None
) -> int:
    """Store a record of an operator in a group's log; return its offset. Raises SendError: not surely stored."""
    value = encode_group_record(record)
    return store_command(settings.client, settings.bootstrap, clients, topic, value, partition=0)
