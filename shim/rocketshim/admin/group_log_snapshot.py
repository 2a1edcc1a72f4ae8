"""Snapshot of a group's log: read it once from its first record to its current end, and fold it.

`GroupLogReader` may read on, for a person who waits for what a record of theirs does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.errors import BrokerUnavailableError, TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.clients import Clients, ConsumerClient, LastClientError, confluent_clients, is_fatal
from rocketshim.kafka.lookups import ANSWER_S, ask_patiently, partition_bounds
from rocketshim.locks.fold import Folded, GroupLog, LeaseOutcome, Owner
from rocketshim.locks.lease import NO_TROUBLE, Trouble
from rocketshim.locks.log_clients import log_reader_config
from rocketshim.settings import ConnectionSettings
from rocketshim_topics.errors import MalformedRecordError, UnknownVersionError
from rocketshim_topics.group_log import (
    CommandRecord,
    GroupRecord,
    LeaseEntry,
    MemberRecord,
    ReleaseRecord,
    RenewRecord,
    decode_group_record,
)
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.names import TopicNames

__all__ = ["GroupLogReader", "GroupLogStanding", "StoredCommand", "group_log", "read_group_log", "release_record"]

_SILENCE_TIMEOUT_S: Final = 30.0
_OPERATOR_SEQ: Final = 2**63 - 1
_COMMANDS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class StoredCommand:
    """A person's command in a group's log."""

    offset: int  # in the log
    append_ms: int  # epoch ms of the broker's clock
    record: CommandRecord


@dataclass(slots=True)
class GroupLogStanding:
    """The state of a group's log.

    * `last_append_ms`: append time of its last record, epoch ms of the broker's clock; None: it has no record.
    * `confirmed`: offset of the last record that claimed or renewed a queue.
    * `reported`: what the owner of a queue last reported, and the append time.
    * `commands`: the newest ones, the oldest of them first.
    * `heartbeats`: the append time of the first one of each owner that the log still has, and the last one.
    """

    log: GroupLog  # the folded log
    last_append_ms: int | None = None
    leases_ms: dict[Owner, int] = field(default_factory=dict)  # length of the lease that each owner requests, in ms
    confirmed: dict[MessageQueue, int] = field(default_factory=dict)
    reported: dict[MessageQueue, tuple[int, LeaseEntry]] = field(default_factory=dict)
    commands: list[StoredCommand] = field(default_factory=list)
    heartbeats: dict[Owner, tuple[int, MemberRecord]] = field(default_factory=dict)

    def trouble(self, queue: MessageQueue) -> Trouble:
        """Return what holds up a queue, as its owner last reported; times are epoch ms of the broker's clock."""
        at_ms, entry = self.reported.get(queue, (0, None))
        if entry is None:
            return NO_TROUBLE
        lock, found = self.log.lock(queue), NO_TROUBLE
        if entry.reconsume_counts == lock.reconsume_counts:
            since_ms = None if entry.failing_ms is None else at_ms - entry.failing_ms
            found = Trouble(since_ms, entry.cause, entry.trace)
        if lock.owner is None or lock.token != entry.token or entry.call_offset is None or entry.call_ms is None:
            return found
        return found._replace(call=(entry.call_offset, at_ms - entry.call_ms))


def group_log(settings: ConnectionSettings, group: str, clients: Clients | None = None) -> GroupLogStanding:
    """Read and fold the whole log of a group with a new client; errors as of `read_group_log`."""
    with GroupLogReader(settings, group, clients) as reader:
        return reader.standing


class GroupLogReader:
    """Reads a group's log up to its present end when it is entered, and then on. One thread; errors as below."""

    def __init__(self, settings: ConnectionSettings, group: str, clients: Clients | None = None) -> None:
        complaints = LastClientError()
        self._consumer = (clients or confluent_clients()).consumer(
            {**complaints.settings, **log_reader_config(settings, group)}
        )
        self._complaints = complaints
        self.topic = TopicNames(settings.namespace).group_log(group)
        self.standing: GroupLogStanding

    def __enter__(self) -> Self:
        """Read the log up to its present end."""
        try:
            self.standing = read_group_log(self._consumer, self.topic, self._complaints)
        except BaseException:
            self._consumer.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self._consumer.close()

    def read_on(self, is_enough: Callable[[GroupLogStanding], bool], within_s: float) -> None:
        """Read on until it is enough, or the time is over."""
        until_s = time.monotonic() + within_s
        while not is_enough(self.standing) and (left_s := until_s - time.monotonic()) > 0:
            _take(self.standing, self._consumer.poll(left_s), self.topic)


def read_group_log(consumer: ConsumerClient, topic: str, complaints: LastClientError) -> GroupLogStanding:
    """Read and fold the whole log by a consumer of `log_reader_config`, whose assignment is replaced."""
    try:
        topics = ask_patiently(lambda: consumer.list_topics(topic, timeout=ANSWER_S).topics, consumer, complaints)
        found = topics.get(topic)
        if found is None or not found.partitions:
            raise TopicMissingError(
                f"missing: {topic}. The group has no log: it never consumed in order or with an allocation strategy. "
                f"{OR_HIDDEN}"
            )
        log = TopicPartition(topic, 0)
        low, high = ask_patiently(lambda: partition_bounds(consumer, log, ANSWER_S), consumer, complaints)
    except KafkaException as error:
        cause = error.args[0]
        raise BrokerUnavailableError(
            f"cannot read {topic} ({cause.name()}: {cause.str()}){complaints.text(consumer)}"
        ) from error
    standing = GroupLogStanding(GroupLog(low))
    consumer.assign([TopicPartition(topic, 0, low)])
    while standing.log.next_offset < high:
        message = consumer.poll(_SILENCE_TIMEOUT_S)
        if message is None:
            raise BrokerUnavailableError(
                f"{topic}: received nothing for {_SILENCE_TIMEOUT_S:g} s at offset {standing.log.next_offset}"
            )
        _take(standing, message, topic)
    return standing


def _take(standing: GroupLogStanding, message: Any, topic: str) -> None:
    if message is None:
        return
    if message.error() is None:
        _fold(standing, message.offset(), message.timestamp()[1], message.value())
    elif is_fatal(message.error()):
        raise BrokerUnavailableError(f"cannot read {topic}: {message.error()}")


def _fold(standing: GroupLogStanding, offset: int, append_ms: int, value: bytes | None) -> None:
    standing.last_append_ms = append_ms
    try:
        record = decode_group_record(value)
    except UnknownVersionError:
        standing.log.unreadable(offset, append_ms)
    except MalformedRecordError:
        standing.log.skip(offset, append_ms)
    else:
        if isinstance(record, CommandRecord):
            standing.log.skip(offset, append_ms)
            standing.commands = [*standing.commands, StoredCommand(offset, append_ms, record)][-_COMMANDS_SHOWN:]
            return
        _note(standing, standing.log.fold(offset, append_ms, record), append_ms, record)


def _note(standing: GroupLogStanding, folded: Folded, append_ms: int, record: GroupRecord) -> None:
    """Note what the fold does not keep of a record."""
    owner = Owner(record.client_id, record.incarnation)
    standing.leases_ms[owner] = record.lease_ms
    if isinstance(record, MemberRecord):
        standing.heartbeats[owner] = standing.heartbeats.get(owner, (append_ms, record))[0], record
    for effect in folded.effects:
        if effect.outcome in {LeaseOutcome.GRANTED, LeaseOutcome.RENEWED}:
            standing.confirmed[effect.queue] = folded.offset
    if isinstance(record, RenewRecord | ReleaseRecord):
        for effect, entry in zip(folded.effects, record.queues, strict=True):
            if effect.outcome in {LeaseOutcome.RENEWED, LeaseOutcome.RELEASED}:
                standing.reported[effect.queue] = append_ms, entry


def release_record(standing: GroupLogStanding, queue: MessageQueue) -> ReleaseRecord | None:
    """Return the release that the owner of a queue would write; None if no known owner holds the queue.

    Position and retry counts are kept for the next owner. An owner that is still running stops the queue when it reads
    the release.
    """
    lock = standing.log.lock(queue)
    base = standing.log.base
    if lock.owner is None or lock.token is None or base is None or queue not in standing.confirmed:
        return None
    lease = LeaseEntry(
        topic=queue.topic,
        queue_id=queue.queue_id,
        token=lock.token,
        confirmed_offset=standing.confirmed[queue],
        next_offset=lock.next_offset,
        reconsume_counts=lock.reconsume_counts,
    )
    return ReleaseRecord(
        client_id=lock.owner.client_id,
        incarnation=lock.owner.incarnation,
        seq=_OPERATOR_SEQ,
        lease_ms=standing.leases_ms[lock.owner],
        base=base,
        queues=(lease,),
    )
