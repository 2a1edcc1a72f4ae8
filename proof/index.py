"""What the properties look things up in: records with their headers decoded, who was made from whom, positions, time.

Made once a history. A record's *parent* is the record its `HOP_ID` names, its *children* are the records that name it.
A *reader* is what each message has to reach: a consumer group, or one member of a broadcasting group (`group/client`).
"""

import base64
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from proof.history import Delivery, History, Send, Source
from proof.lines import Commit, Fault, Group, JsonHeaders, Record, encoded
from proof.named import Effect, Told, tell
from rocketshim_topics import wire
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import due_ms
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import Envelope, decode, own_name

__all__ = ["Index", "Stored", "queue_of", "user_headers"]

_NOT_THE_USERS = frozenset({wire.REPLAY_ID, wire.REPLAY_COUNT, wire.HOP_ID})
NS_PER_MS = 1_000_000
MARGIN_MS = 30_000
"""A stamp of a clock that was set back by less than this may lie before the moment when it was set."""


def queue_of(where: str) -> str:
    """The queue of coordinates: `topic/partition`."""
    return where.rpartition("/")[0]


def user_headers(headers: JsonHeaders) -> JsonHeaders:
    """The user's headers of a send or a delivery, under the names by which they are compared."""
    return tuple((_plain_name(name), value) for name, value in headers)


def _plain_name(name: str) -> str:
    while (own := own_name(name)) != name:
        name = own
    return name


@dataclass(slots=True)
class Stored:
    """A record of the dump, decoded.

    Attributes:
        source: its line.
        it: the line.
        topic, partition, offset: its coordinates.
        envelope: its headers; an empty one where they are malformed.
        malformed: why its headers cannot be read; None: they can.
        user: the user's headers, as they are compared.
        children: records that were made from it, in the order of their timestamps.
    """

    source: Source
    it: Record
    topic: str
    partition: int
    offset: int
    envelope: Envelope
    malformed: str | None
    user: JsonHeaders
    children: list["Stored"] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The message's id, as every reader of this record sees it."""
        return self.envelope.uniq_key or self.it.where

    @property
    def attempt(self) -> int:
        """Failed attempts before it, as the record says."""
        return self.envelope.reconsume_times or 0

    def committed_children(self) -> list["Stored"]:
        """Those that `read_committed` shows."""
        return [child for child in self.children if child.it.committed]


class Index:
    """A history, indexed. Nothing in it changes after it is made."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.setup = history.setup
        self.names = TopicNames(history.setup.namespace)
        self.levels = DelayLevels.parse(history.setup.levels)
        self.faults: list[tuple[Source, Fault]] = [(seen.source, seen.it) for seen in history.faults]
        self.calls = [each for each in history.deliveries if not self.is_fleeting(each.where)]
        groups = [group.name for group in history.setup.groups]
        self.group_logs = {self.names.group_log(name): name for name in groups}
        self.retry_topics = {self.names.retry(name): name for name in groups}
        self.dead_letter_topics = {self.names.dead_letter(name): name for name in groups}
        self.waiting = frozenset({self.names.schedule, self.names.timers})
        self._check_prefix = f"{self.names.prefix}rmq.check."
        self._trusted = {*self.waiting, *self.retry_topics, *self.dead_letter_topics}
        self.records: dict[str, Stored] = {}
        self.queues: dict[str, list[Stored]] = defaultdict(list)
        self.lost_logs: dict[str, dict[int, list[Stored]]] = defaultdict(lambda: defaultdict(list))
        for seen in history.records:
            if not self.is_fleeting(seen.it.where):
                self._add(self._decoded(seen.source, seen.it))
        for queue in self.queues.values():
            queue.sort(key=lambda record: record.offset)
        for record in self.records.values():
            parent = self.records.get(record.envelope.hop_id or "")
            if parent is not None:
                parent.children.append(record)
        for record in self.records.values():
            record.children.sort(key=lambda child: (child.it.ms, child.topic, child.partition, child.offset))
        self.deliveries: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        for delivery in sorted(self.calls, key=lambda each: each.begin_ns):
            self.deliveries[self.reader_of(delivery), delivery.where].append(delivery)
        self.positions: dict[tuple[str, str], tuple[int, Source]] = {}
        for commit in history.commits:
            self.positions[commit.it.group, commit.it.queue] = commit.it.position, commit.source

    def _add(self, stored: Stored) -> None:
        if stored.it.lost:
            self.lost_logs[stored.topic][stored.it.lost].append(stored)
            return
        self.records[stored.it.where] = stored
        self.queues[queue_of(stored.it.where)].append(stored)

    def _decoded(self, source: Source, record: Record) -> Stored:
        topic, partition, offset = record.where.rsplit("/", 2)
        raw = [(name, None if value is None else base64.b64decode(value)) for name, value in record.headers]
        malformed = None
        if topic == self.names.parked:
            envelope = _of_parked(raw)
        else:
            try:
                envelope = decode(raw, trusted=topic in self._trusted or self.is_check(topic))
            except MalformedRecordError as error:
                envelope, malformed = Envelope(), error.reason
        user = tuple(
            (plain, encoded(value))
            for name, value in envelope.user
            if (plain := _plain_name(name)) not in _NOT_THE_USERS
        )
        return Stored(source, record, topic, int(partition), int(offset), envelope, malformed, user)

    def is_fleeting(self, where: str | None) -> bool:
        """Whether coordinates lie in a topic that faults delete or empty."""
        return where is not None and where.rsplit("/", 2)[0] in self.setup.fleeting

    def has_fleeting_target(self, record: Stored) -> bool:
        """Whether a schedule record goes to a topic that faults delete or empty."""
        return record.envelope.real_topic in self.setup.fleeting

    # --- what a record is --------------------------------------------------------------------------------------------

    def messages(self) -> Iterator[Stored]:
        """All records that are messages or commands for them: no probes, no records that hold state."""
        for record in self.records.values():
            if self.is_message(record):
                yield record

    def is_message(self, record: Stored) -> bool:
        """Whether a record is a message."""
        if record.topic in {self.names.redrive_log, self.names.timer_state} or record.topic in self.group_logs:
            return False
        return record.envelope.clock is None

    def due_ms(self, record: Stored) -> int:
        """When a schedule record is due, in epoch ms on its broker's clock."""
        queue_delay_ms = self.levels.queue_delay_ms(record.partition) or 0
        return due_ms(record.envelope, record.it.ms, queue_delay_ms)

    @cached_property
    def sends_by_record(self) -> dict[str, Send]:
        """The send that made each root record, by coordinates: by its delivery report, else by the value alone."""
        found: dict[str, Send] = {}
        by_content: dict[tuple[str | None, ...], list[Send]] = defaultdict(list)
        by_id: dict[str, Send] = {}
        for send in sorted(self.history.sends, key=lambda send: send.outcome == "fail"):  # made no record, perhaps
            if send.id is None or send.digest is not None:
                by_content[send.topic, send.digest, send.timer, send.command].append(send)
            if send.where is not None:
                found[send.where] = send
            if send.id is not None:
                by_id[send.id] = send
        for record in self.messages():
            if record.envelope.hop_id is None and record.it.where not in found:
                target = record.envelope.real_topic or record.topic
                envelope = record.envelope
                name = None if envelope.timer_asks is not None else envelope.timer  # a half message's is its id
                alike = by_content[target, record.it.digest, name, envelope.timer_do]
                if (send_of := by_id.get(record.id)) is not None:
                    found[record.it.where] = send_of
                elif alike:  # commands without a body may have the same content
                    found[record.it.where] = alike.pop(0) if len(alike) > 1 else alike[0]
        return found

    @cached_property
    def named(self) -> list[Told]:
        """What each command of the timer log does."""
        return list(tell(map(self._commands, self._queues_of(self.names.timers)), self._is_refused))

    def _commands(self, queue: str) -> list[Stored]:
        return [record for record in self.queues[queue] if record.it.committed and self.is_message(record)]

    def _queues_of(self, topic: str) -> list[str]:
        return [queue for queue in self.queues if queue.rpartition("/")[0] == topic]

    def _is_refused(self, record: Stored) -> bool:
        """Whether the message of a SET is, or has to be, parked: no worker may ever deliver it, or it cannot wait."""
        return self.names.is_ours(record.envelope.real_topic or "") or any(
            child.topic == self.names.parked for child in record.committed_children()
        )

    def effect_of(self, child: Stored) -> Effect:
        """What was done by making this record from a command."""
        if child.topic == self.names.timers:
            return "forwarded"
        if child.topic == self.names.parked:
            return "parked"
        if self.is_check(child.topic):
            return "asks"
        return "delivered" if child.topic != self.names.schedule or child.envelope.timer is None else "waits"

    def is_check(self, topic: str) -> bool:
        """Whether a topic has questions to producers."""
        return topic.startswith(self._check_prefix)

    def relays(self, record: Stored) -> list[list[Stored]]:
        """What the worker made of a record, apart by what may be there once: a NOW delivers a message that waits."""
        children = record.committed_children()
        if record.topic == self.names.schedule:
            return [children]
        apart: dict[str, list[Stored]] = defaultdict(list)
        for child in children:
            effect = self.effect_of(child)
            apart[effect if effect in {"waits", "asks"} else ""].append(child)
        return [*apart.values()]

    def is_allowed(self, topic: str) -> bool:
        """Whether the allow-list has a topic."""
        return any(
            topic == entry or (entry.endswith("*") and topic.startswith(entry[:-1]) and not self.names.is_ours(topic))
            for entry in self.setup.allow
        )

    # --- who reads ---------------------------------------------------------------------------------------------------

    def reader_of(self, delivery: Delivery) -> str:
        """Whom a delivery reached."""
        group = self.history.group(delivery.group)
        if group is None or group.mode != "broadcasting":
            return delivery.group
        return f"{delivery.group}/{self.client_of(delivery.process)}"

    def client_of(self, process: str) -> str:
        """The client id of a process; its name where it has none."""
        known = self.history.processes.get(process)
        return process if known is None or known.client_id is None else known.client_id

    def readers(self, group: Group) -> list[str]:
        """Everyone a message of the group's topics has to reach."""
        if group.mode != "broadcasting":
            return [group.name]
        members = {self.client_of(p.name) for p in self.history.processes.values() if p.group == group.name}
        return sorted(f"{group.name}/{member}" for member in members)

    def read_by(self, group: Group) -> Iterator[Stored]:
        """The committed messages that lie where the group reads: its topics and its retry topic."""
        topics = {*group.topics, self.names.retry(group.name)}
        for queue, records in self.queues.items():
            if queue.rpartition("/")[0] in topics:
                yield from (record for record in records if record.it.committed and self.is_message(record))

    def next_records(self, group: str, record: Stored) -> list[Stored]:
        """The committed records that a group's member made from one that failed: retry, dead letter, or parked."""
        parked = self.names.parked
        return [
            child
            for child in record.committed_children()
            if child.envelope.consumer_group == group or child.topic == parked
        ]

    # --- time --------------------------------------------------------------------------------------------------------

    def host_ns(self, broker_ms: int) -> int | None:
        """A broker's time on the host's monotonic clock; None: not known."""
        offset_ns = self.setup.broker_minus_host_ns
        return None if offset_ns is None else broker_ms * NS_PER_MS - offset_ns

    def is_comparable(self, ms: int) -> bool:
        """Whether a timestamp was made before a fault has set a clock, and so compares with the others of that time."""
        if not self._step_ms:
            return True
        first_ms, step_ms = self._step_ms
        return first_ms - MARGIN_MS <= ms < step_ms - MARGIN_MS

    @cached_property
    def _step_ms(self) -> tuple[float, float] | None:
        """When the run began, and when a clock was set first, by the broker's clock; None: no clock was set."""
        steps = [fault.begin_ns for _, fault in self.faults if fault.kind.startswith("clock-")]
        offset_ns = self.setup.broker_minus_host_ns
        if not steps:
            return None
        if offset_ns is None:
            return math.inf, -math.inf
        begin_ns = min((send.begin_ns for send in self.history.sends), default=min(steps))
        return (begin_ns + offset_ns) / NS_PER_MS, (min(steps) + offset_ns) / NS_PER_MS

    @cached_property
    def commits_by_queue(self) -> dict[tuple[str, str], list[tuple[Source, Commit]]]:
        """Stored commits by group and queue, in order."""
        found: dict[tuple[str, str], list[tuple[Source, Commit]]] = defaultdict(list)
        for seen in self.history.commits:
            found[seen.it.group, seen.it.queue].append((seen.source, seen.it))
        return found


def _of_parked(raw: list[tuple[str, bytes | None]]) -> Envelope:
    """The few headers of a parked record that count: parking keeps malformed headers, so nothing is decoded."""
    first: dict[str, str] = {}
    user: list[tuple[str, bytes | None]] = []
    for name, value in raw:
        if name not in wire.RESERVED:
            user.append((name, value))
        elif value is not None:
            first.setdefault(name, value.decode("utf-8", "surrogateescape"))
    return Envelope(
        uniq_key=first.get(wire.UNIQ_KEY),
        hop_id=first.get(wire.HOP_ID),
        consumer_group=first.get(wire.CONSUMER_GROUP),
        park_reason=first.get(wire.PARK_REASON),
        park_from=first.get(wire.PARK_FROM),
        user=tuple(user),
    )
