"""An installation at one instant: delay queues, consumer groups, dead letters, parked records, workers. Pure data.

`Offsets` is what was looked up. `snapshot_of` derives the `Snapshot` from it, but for the workers. Counts of records
are distances of offsets, and so upper bounds: transaction markers, probes and compaction leave gaps.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any, Final

from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.start_position import decode_metadata, has_same_filter, is_other_filter
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import ConfigError, MalformedRecordError
from rocketshim_topics.hops import due_ms
from rocketshim_topics.levels import DelayLevels, time_in_queue_ms
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import decode, read_headers

__all__ = [
    "HEAD_COUNT",
    "Conflict",
    "DelayQueue",
    "Earlier",
    "FailingMessage",
    "GroupStanding",
    "MissingTarget",
    "Offsets",
    "PartitionStanding",
    "Snapshot",
    "TopicSnapshot",
    "WaitingRecord",
    "WorkerSnapshot",
    "clock_behind_ms",
    "conflicts",
    "groups_of",
    "has_that_group",
    "snapshot_of",
    "target_of",
    "waiting_record",
]

HEAD_COUNT: Final = 5
"""Records at the head and at the end of each delay queue that a round reads."""


@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """A group in one partition. `behind` is a distance in offsets, and so an upper bound.

    * `first_unread_ms`: append time of the first unread record, epoch ms; None: nothing is unread, or it is not known.
    """

    topic: str
    partition: int
    position: int  # the committed position, the offset that is read next
    low: int | None  # the earliest offset that still exists; None: the partition does not exist (any more)
    end: int | None  # end offset for a `read_committed` reader; None: the partition does not exist (any more)
    member: str | None = None  # `client.id@host` of the member that owns it now; None: no member, or not asked for
    metadata: str | None = None  # the metadata of the last commit; None: none, or not asked for
    first_unread_ms: int | None = None

    @property
    def digest(self) -> str | None:
        """Return the digest of the committing consumer's subscription; None if rocketshim did not make the commit."""
        commit = decode_metadata(self.metadata)
        return None if commit is None else commit.digest

    @property
    def subscription(self) -> str | None:
        """Return the subscription as text; None if rocketshim did not make the commit."""
        commit = decode_metadata(self.metadata)
        return None if commit is None else commit.subscription

    @property
    def unread(self) -> tuple[int, int]:
        """Return the first unread offset that still exists, and the end; equal: everything is read."""
        first = max(self.position, self.low or 0)
        return first, max(first, self.end or 0)

    @property
    def behind(self) -> int:
        """Return the number of offsets that still exist and are not read."""
        first, end = self.unread
        return end - first

    @property
    def lost(self) -> int:
        """Return the number of offsets that retention deleted unread; not each of them need be a message."""
        return max(0, (self.low or 0) - self.position)


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """A consumer group.

    * `state`: Kafka's name of its state: `STABLE`, `EMPTY`, `DEAD` (Kafka does not know it) …, or `UNKNOWN`.
    * `operations`: the operations that the principal is allowed on the group; None: not known.
    """

    group: str
    state: str = "UNKNOWN"
    members: tuple[str, ...] | None = None  # `client.id@host` of each member; None: the group was not described
    partitions: tuple[PartitionStanding, ...] = ()  # each partition with a committed position, by topic and number
    operations: frozenset[str] | None = None

    @property
    def behind(self) -> int:
        """Return the number of unread offsets."""
        return sum(each.behind for each in self.partitions)

    @property
    def lost(self) -> int:
        """Return the number of offsets that retention deleted unread; not each of them need be a message."""
        return sum(each.lost for each in self.partitions)

    @property
    def first_unread_ms(self) -> int | None:
        """Return the append time of its oldest unread record, epoch ms; None: nothing is unread, or it is not known."""
        return min((each.first_unread_ms for each in self.partitions if each.first_unread_ms is not None), default=None)

    def topics(self) -> dict[str, "GroupStanding"]:
        """Return the group in each of its topics, by physical name."""
        found: dict[str, list[PartitionStanding]] = {}
        for each in self.partitions:
            found.setdefault(each.topic, []).append(each)
        return {topic: replace(self, partitions=tuple(partitions)) for topic, partitions in found.items()}


@dataclass(frozen=True, slots=True)
class Offsets:
    """What one round of look-ups found.

    * `bounds`: first offset and end of each partition of interest; absent: its leader did not answer.
    * `standings`: the worker's group and the others whose positions could be had, where leaders answered.
    * `groups`: the consumer groups of interest, with the groups of the visible dead-letter and retry topics.
    * `day_ago`: first offset of the last 24 h, for partitions with dead letters or parked records; absent: it has none.
    * `unknown`: the other partitions of interest.
    * `read_ms`: when the round ended, epoch ms of this machine; None: not known.
    * `lately`: as `day_ago`, of the last 15 minutes.
    * `waiting`: the first and the newest few records of each delay queue, as Kafka messages, by offset.
    * `missing`: their targets that surely do not exist, physical names.
    * `causes`: the most frequent cause of the newest few records of dead-letter topics that grow.
    * `log_members`: number of the members that a group's log knows, of groups that have one.
    * `unread`: which groups and topics could not be read, and why.
    """

    topics: Mapping[str, int] = field(default_factory=dict)  # every visible topic with its number of partitions
    bounds: Mapping[TopicPartitionKey, tuple[int, int]] = field(default_factory=dict)
    standings: Mapping[str, GroupStanding] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    day_ago: Mapping[TopicPartitionKey, int] = field(default_factory=dict)
    unknown: tuple[TopicPartitionKey, ...] = ()
    read_ms: int | None = None
    lately: Mapping[TopicPartitionKey, int] = field(default_factory=dict)
    waiting: Mapping[TopicPartitionKey, tuple[Any, ...]] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    causes: Mapping[str, str] = field(default_factory=dict)
    failing: tuple["FailingMessage", ...] = ()
    log_members: Mapping[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """A waiting record, as it is displayed.

    * `due_ms`: when it is due, epoch ms on the broker's clock; None: it is malformed and will be parked.
    * `delay_ms`: that level's delay by the sender's table; None: it has hopped already, or requests a delivery time.
    * `failed_ms`: when it failed, by the clock of the consumer that sent it back, epoch ms; None: it is not a retry.
    """

    place: str  # `partition/offset` in the schedule topic
    appended_ms: int  # when it was appended, epoch ms on the broker's clock
    due_ms: int | None = None
    target: str | None = None  # its target topic; None: it names none
    uniq_key: str | None = None  # its id, if it has one yet
    group: str | None = None  # the group that gets it as a retry; None: it is not a retry
    reconsume_times: int | None = None  # failed attempts so far; None: it is not a retry
    trouble: str | None = None  # why it will be parked; None: it has no problem
    delay_level: int | None = None  # the level that its sender requested; None: none
    delay_ms: int | None = None
    failed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FailingMessage:
    """A message that keeps failing, and that its orderly queue or its key waits for: as its owner last reported."""

    group: str
    topic: str  # physical name
    partition: int
    offset: int
    attempts: int  # failed ones; 0: it does not fail, or is finished
    since_ms: int | None = None  # since when it fails there, epoch ms of the broker's clock; None: not known
    cause: str | None = None  # class and text of the last failure; None: not known
    owner: str | None = None  # client id; None: the log names nobody
    token: int | None = None  # of the owner's lease
    trace: str | None = None  # stack trace of the last failure; None: there is none, or it was left out

    @property
    def record(self) -> str:
        """Return its address."""
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class MissingTarget:
    """A topic that waiting messages go to and that does not exist, as far as the records that were read show."""

    topic: str  # physical name
    count: int  # number of these records
    due_ms: int | None  # when the first of them is due, epoch ms; None: not known


def waiting_record(record: Any, levels: DelayLevels) -> WaitingRecord:
    """Describe a record of the schedule topic."""
    appended_ms = record.timestamp()[1]
    place = f"{record.partition()}/{record.offset()}"
    try:
        envelope = decode(read_headers(record), trusted=True)
    except MalformedRecordError as error:
        return WaitingRecord(place, appended_ms, trouble=error.reason)
    is_timed_later = (
        envelope.timer_repeat is not None and envelope.deliver_at_ms is None
    )  # a worker sets its first time
    return WaitingRecord(
        place,
        appended_ms,
        None if is_timed_later else due_ms(envelope, appended_ms, time_in_queue_ms(levels, record.partition())),
        envelope.real_topic,
        envelope.uniq_key,
        envelope.consumer_group,
        envelope.reconsume_times,
        None if envelope.real_topic else "missing-header:REAL_TOPIC",
        envelope.delay_level,
        envelope.delay_ms,
        envelope.fail_at_ms,
    )


@dataclass(frozen=True, slots=True)
class DelayQueue:
    """One partition of the schedule topic."""

    partition: int
    delay_ms: int | None  # the queue's delay; None: the table has no such level
    standing: PartitionStanding  # the worker's group in this partition
    head: tuple[WaitingRecord, ...] = ()  # the records that leave next, if they were asked for

    @property
    def waiting(self) -> int:
        """Return the number of waiting offsets, probes included."""
        return self.standing.behind

    @property
    def due_ms(self) -> int | None:
        """Return when the head leaves, epoch ms on the broker's clock; None: nothing waits, or it is not known."""
        first_ms = self.standing.first_unread_ms
        return None if first_ms is None or self.delay_ms is None else first_ms + self.delay_ms

    def late_ms(self, now_ms: int) -> int:
        """Return for how long the head has been due, in ms; 0: it is not."""
        return 0 if self.due_ms is None else max(0, now_ms - self.due_ms)


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic of dead letters or parked records.

    * `appended`: sum of the end offsets: what was ever appended. It is too low while a partition is in
      `Snapshot.unknown`.
    """

    topic: str
    group: str | None  # the group whose dead letters it has; None: it has parked records
    kept: int  # number of offsets that still exist
    appended: int
    recent: int = 0  # number of offsets appended within the last 24 h
    new: int = 0  # number of offsets appended within the last 15 minutes
    cause: str = ""  # the most frequent cause of the newest few, if some are new; `""`: not known


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """What a worker reports of itself."""

    url: str  # address of its health server
    error: str | None = None  # why it did not answer; everything else is then empty. None: it answered.
    mode: str = ""  # `at-least-once` or `exactly-once`
    is_ready: bool = False  # whether it does its work
    queues: int = 0  # number of partitions of the schedule topic that it serves
    held: int = 0  # records in its memory
    late_ms: int = 0  # for how long its oldest due record has been due, in ms; 0: none is due
    avoided: Mapping[str, str] = field(default_factory=dict)  # targets that it does not try now, with the reason
    delivered: int = 0  # records delivered since it started
    parked: Mapping[str, int] = field(default_factory=dict)  # parked records since it started, by reason
    alarms: Mapping[str, int] = field(default_factory=dict)  # alarms since it started, by event

    @property
    def trouble(self) -> str:
        """Return why this worker does not do its work; `""`: it does."""
        return self.error or ("" if self.is_ready else "not ready")


@dataclass(frozen=True, slots=True)
class Earlier:
    """How far behind groups were at an earlier instant."""

    at_ms: int
    behind: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An installation at one instant.

    * `error`: why the round failed; everything else is then that of the last good round. None: it succeeded.
    """

    at_ms: int  # when its round began, epoch ms of this machine: what a slow round finds is not late because of it
    queues: tuple[DelayQueue, ...] = ()  # the delay queues, by partition
    groups: tuple[GroupStanding, ...] = ()  # the consumer groups, by name; the worker's group is not among them
    timers: tuple[DelayQueue, ...] = ()  # the partitions of the timer log, without a delay: what waits there is due
    worker: GroupStanding | None = None  # state and members of the worker's group; its partitions are the queues
    dead: tuple[TopicSnapshot, ...] = ()  # the dead-letter topics, by name
    parked: TopicSnapshot | None = None  # the parking topic; None: it does not exist
    workers: tuple[WorkerSnapshot, ...] = ()  # the workers that were asked
    clock_behind_ms: int = 0  # how far this machine's clock is surely behind the brokers'; 0: a minute or less
    unknown: tuple[TopicPartitionKey, ...] = ()  # partitions whose leader did not answer; they are missing in the rest
    error: str | None = None
    missing: tuple[MissingTarget, ...] = ()  # targets of waiting messages that do not exist
    failing: tuple[FailingMessage, ...] = ()  # messages that block their orderly queue or key
    log_members: Mapping[str, int] = field(default_factory=dict)  # as `Offsets.log_members`
    unread: tuple[str, ...] = ()  # which groups and topics could not be read, and why
    is_clock_sure: bool = False  # whether `at_ms` is the brokers' time
    earlier: "Earlier | None" = None  # how far behind groups were before; None: nothing is known of before

    @property
    def standings(self) -> dict[str, GroupStanding]:
        """Return all groups, the worker's with its partitions included."""
        worker = (
            ()
            if self.worker is None
            else (replace(self.worker, partitions=tuple(each.standing for each in (*self.queues, *self.timers))),)
        )
        return {each.group: each for each in (*worker, *self.groups)}

    @property
    def waiting(self) -> int:
        """Return the number of waiting offsets of all queues."""
        return sum(queue.waiting for queue in self.queues)

    @property
    def late_ms(self) -> int:
        """Return for how long the head has been due that is due longest, in ms; 0: none is due."""
        return max((queue.late_ms(self.at_ms) for queue in (*self.queues, *self.timers)), default=0)


def groups_of(names: TopicNames, visible: Mapping[str, int], known: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the groups that have a retry or dead-letter topic, by their dead-letter topic, whether it exists or not.

    An encoded group cannot be read from its topic's name. It has its real name if it is known, else the encoded one.
    """
    found = {names.dead_letter(group): group for group in known}
    dead, retry = names.dead_letter_prefix, names.retry_prefix
    for topic in sorted(visible):
        for prefix in (dead, retry):
            if topic.startswith(prefix):
                found.setdefault(dead + topic.removeprefix(prefix), topic.removeprefix(prefix))
    return found


def has_that_group(names: TopicNames, dead_letter_topic: str, group: str) -> bool:
    """Return whether a group is the real name of a dead-letter topic's group, and not its encoded form."""
    try:
        return names.dead_letter(group) == dead_letter_topic
    except ConfigError:  # another program's topic, whose last part is not a group name
        return False


def clock_behind_ms(stamped_ms: int, read_ms: int | None) -> int:
    """Return how far the clock that showed `read_ms` is behind a broker that had stamped a record; 0: a minute or less.

    Decides: What does a reader say of lateness when its own clock is behind? Not that nothing is late, but that its
        clock is wrong. A clock that is ahead leaves no trace: then the question for the worker asks for it, too.
    """
    behind_ms = 0 if read_ms is None else stamped_ms - read_ms
    return behind_ms if behind_ms > BrokerClock.WRONG_MS else 0


def snapshot_of(at_ms: int, names: TopicNames, levels: DelayLevels, offsets: Offsets) -> Snapshot:
    """Derive the snapshot from what was looked up."""
    groups = groups_of(names, offsets.topics, offsets.groups)
    dead = (_topic(offsets, topic, group) for topic, group in sorted(groups.items()) if topic in offsets.topics)
    worker = offsets.standings.get(names.worker_group, GroupStanding(names.worker_group))
    stamped_ms = max((each.first_unread_ms or 0 for each in worker.partitions), default=0)
    return Snapshot(
        at_ms=at_ms,
        queues=tuple(
            DelayQueue(each.partition, levels.queue_delay_ms(each.partition), each, _head(offsets, each, levels))
            for each in worker.partitions
            if each.topic == names.schedule
        ),
        timers=tuple(DelayQueue(each.partition, 0, each) for each in worker.partitions if each.topic == names.timers),
        groups=tuple(standing for group, standing in sorted(offsets.standings.items()) if group in offsets.groups),
        worker=None if worker.members is None else replace(worker, partitions=()),
        dead=tuple(dead),
        parked=_topic(offsets, names.parked, None) if names.parked in offsets.topics else None,
        clock_behind_ms=clock_behind_ms(stamped_ms, offsets.read_ms),
        unknown=offsets.unknown,
        missing=_missing(offsets, names, levels),
        failing=offsets.failing,
        log_members=offsets.log_members,
        unread=offsets.unread,
    )


def _head(offsets: Offsets, queue: PartitionStanding, levels: DelayLevels) -> tuple[WaitingRecord, ...]:
    records = offsets.waiting.get(TopicPartitionKey.of(queue), ())
    return tuple(waiting_record(each, levels) for each in records[:HEAD_COUNT])


def _missing(offsets: Offsets, names: TopicNames, levels: DelayLevels) -> tuple[MissingTarget, ...]:
    due: dict[str, list[int | None]] = defaultdict(list)
    for records in offsets.waiting.values() if offsets.missing else ():
        for each in (waiting_record(record, levels) for record in records):
            target = target_of(each.target, names)
            if target in offsets.missing:
                due[target].append(each.due_ms)
    return tuple(
        MissingTarget(topic, len(all_ms), min((at_ms for at_ms in all_ms if at_ms is not None), default=None))
        for topic, all_ms in sorted(due.items())
    )


def target_of(logical: str | None, names: TopicNames) -> str:
    """Return the physical name of a record's target; `""`: it names none that may exist."""
    try:
        return "" if logical is None else names.physical(logical)
    except ConfigError:
        return ""


def _topic(offsets: Offsets, topic: str, group: str | None) -> TopicSnapshot:
    keys = [TopicPartitionKey(topic, number) for number in range(offsets.topics[topic])]
    bounds = {key: offsets.bounds[key] for key in keys if key in offsets.bounds}
    recent, new = (
        sum(max(0, end - since.get(key, end)) for key, (_, end) in bounds.items())
        for since in (offsets.day_ago, offsets.lately)
    )
    kept, ever = sum(end - low for low, end in bounds.values()), sum(end for _, end in bounds.values())
    return TopicSnapshot(topic, group, kept, ever, recent, new, offsets.causes.get(topic, ""))


@dataclass(frozen=True, slots=True)
class Conflict:
    """Different subscriptions in one group. With different filters, each member skips what only another one wants.

    * `partitions`: subscription to the partitions whose last commit carries it, most partitions first; none: only a
      commit of the retry topic does.
    * `loses_messages`: the filters of this topic differ, or may; False: only other topics or their filters do, as in a
      rolling deployment.
    """

    topic: str
    partitions: dict[str, tuple[int, ...]]
    loses_messages: bool = True


def conflicts(standing: GroupStanding, *, retry_topic: str | None = None) -> list[Conflict]:
    """Return the topics whose last commits carry different subscriptions. Pure.

    A member without a partition of a topic may have one of the `retry_topic`: its commits there count for each topic.
    """
    by_topic: dict[str, dict[str, list[PartitionStanding]]] = defaultdict(lambda: defaultdict(list))
    retries: dict[str, PartitionStanding] = {}
    for each in standing.partitions:
        if each.digest and each.topic == retry_topic:
            retries[each.digest] = each
        elif each.digest:
            by_topic[each.topic][each.digest].append(each)
    for (mine, retry), (topic, digests) in product(retries.items(), by_topic.items()):
        others = [same[0].subscription or "" for digest, same in digests.items() if digest != mine]
        if any(is_other_filter(topic, other, retry.subscription or "") for other in others):
            digests[mine].append(retry)
    found = []
    for topic, digests in sorted(by_topic.items()):
        if len(digests) > 1:
            most_first = sorted(digests.items(), key=lambda item: (-len(item[1]), item[0]))
            named: dict[str, tuple[int, ...]] = {}
            for digest, same in most_first:
                text = same[0].subscription or digest  # a long one is cut, so that several may look the same
                named[f"{text} ({digest})" if text in named else text] = tuple(
                    each.partition for each in same if each.topic == topic
                )
            texts = [same[0].subscription or "" for _, same in most_first]
            differ = any(not has_same_filter(topic, *pair) for pair in combinations(texts, 2))
            found.append(Conflict(topic, named, loses_messages=differ))
    return found
