"""A small model of the system that writes histories: one event after another in simulated time, seeded.

It is no test of the system: it behaves as the guarantees say, with the records that the shim's own functions make. What
it writes are the lines of a history, as JSON objects by file, which tests then doctor.
"""

import heapq
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from proof.history import History
from proof.lines import (
    Commit,
    End,
    Fault,
    Group,
    Invoke,
    Line,
    Process,
    Record,
    Setup,
    digest_of,
    encoded,
    headers_to_json,
    to_json,
)
from proof.reader import read_lines
from rocketshim.core.named_timers import Command, Effect, TimerTable
from rocketshim_topics import DelayLevels, Message, OutgoingRecord, TopicNames, decode, hops
from rocketshim_topics.redrive_log import MarkRecord, encode_redrive_record, record_digest

Files = dict[str, list[dict[str, Any]]]
MS = 1_000_000
S = 1_000 * MS
BEGIN_NS = 5_000 * S
BROKER_MINUS_HOST_NS = 1_767_268_800_000 * MS - BEGIN_NS
LEVELS = "1s 2s 3s 4s 5s 6s 7s 8s"
TOPICS = {"orders": 3, "bills": 2}


@dataclass(frozen=True)
class Kept:
    """A record that lies in the log, with the accessors of a Kafka message."""

    out: OutgoingRecord
    number: int
    at: int
    at_ms: int
    committed: bool

    def topic(self) -> str:
        return self.out.topic

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.out.key

    def value(self) -> bytes | None:
        return self.out.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self.out.headers

    def timestamp(self) -> tuple[int, int]:
        return 2, self.at_ms

    @property
    def where(self) -> str:
        return f"{self.topic()}/{self.number}/{self.at}"

    @property
    def queue(self) -> str:
        return f"{self.topic()}/{self.number}"


class World:
    """The cluster, its clock, and everybody's files."""

    def __init__(self, seed: int, *, exactly_once: bool = False) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - which event comes next, no secret
        self.exactly_once = exactly_once
        self.names = TopicNames("proof")
        self.levels = DelayLevels.parse(LEVELS)
        self.now_ns = BEGIN_NS
        self.files: Files = {}
        self.groups: list[Group] = []
        self.logs: dict[str, list[Kept]] = defaultdict(list)
        self.watchers: dict[str, list[Callable[[Kept], None]]] = defaultdict(list)
        self._ends: Counter[str] = Counter()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._ops: Counter[str] = Counter()
        self._turns = itertools.count()
        self.process("dump", "harness")
        self.process("faults", "harness")

    # --- time --------------------------------------------------------------------------------------------------------

    def after(self, delay_ns: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self._turns), event))

    def at(self, second: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (BEGIN_NS + int(second * S), next(self._turns), event))

    def every(self, period_ns: int, event: Callable[[], None], until_s: float) -> None:
        def again() -> None:
            event()
            if self.now_ns < BEGIN_NS + until_s * S:
                self.after(period_ns, again)

        self.after(period_ns, again)

    def jitter_ms(self, lowest: int, highest: int) -> int:
        return self.dice.randint(lowest, highest) * MS + self.dice.randrange(MS)

    def run(self) -> Files:
        while self._events:
            self.now_ns, _, event = heapq.heappop(self._events)
            event()
        setup = Setup(
            namespace=self.names.namespace, levels=LEVELS, groups=tuple(self.groups), allow=("orders", "bill*"),
            exactly_once=self.exactly_once, recovery_ms=10_000, broker_minus_host_ns=BROKER_MINUS_HOST_NS,
        )  # fmt: skip
        self.files["dump"].insert(1, as_json(setup))
        return self.files

    @property
    def broker_ms(self) -> int:
        return (self.now_ns + BROKER_MINUS_HOST_NS) // MS

    # --- lines -------------------------------------------------------------------------------------------------------

    def process(self, name: str, role: Any, group: str | None = None, client_id: str | None = None) -> str:
        self.files[name] = [as_json(Process(name=name, role=role, group=group, client_id=client_id))]
        return name

    def line(self, process: str, line: Line) -> None:
        self.files[process].append(as_json(line))

    def invoke(self, process: str, f: Any, **fields: Any) -> int:
        self._ops[process] += 1
        self.line(process, Invoke(op=self._ops[process], f=f, at_ns=self.now_ns, **fields))
        return self._ops[process]

    def end(self, process: str, op: int, kind: Any = "ok", **fields: Any) -> None:
        self.line(process, End(type=kind, op=op, at_ns=self.now_ns, **fields))

    def fault(self, kind: str, target: str, seconds: float) -> None:
        end_ns = self.now_ns + int(seconds * S)
        self.line("faults", Fault(kind=kind, target=target, begin_ns=self.now_ns, end_ns=end_ns))

    # --- the cluster -------------------------------------------------------------------------------------------------

    def append(self, out: OutgoingRecord, *, committed: bool = True) -> Kept:
        partition = out.partition
        if partition is None:
            count = TOPICS.get(out.topic, 1)
            partition = (sum(out.key) if out.key else self.dice.randrange(count)) % count
        queue = f"{out.topic}/{partition}"
        kept = Kept(out, partition, self._ends[queue], self.broker_ms, committed)
        is_group_log = out.topic.startswith(self.names.prefix + "rmq.group")
        self._ends[queue] += 1 + (not is_group_log and self.dice.random() < 0.1)  # transactions leave holes
        has_value = is_group_log or out.topic == self.names.redrive_log
        self.line(
            "dump",
            Record(
                where=kept.where, ms=kept.at_ms, stamp="append", key=encoded(out.key), digest=digest_of(out.value),
                headers=headers_to_json(out.headers), committed=committed,
                value=encoded(out.value) if has_value else None,
            ),
        )  # fmt: skip
        if committed:
            self.logs[queue].append(kept)
            for watcher in self.watchers[out.topic]:
                watcher(kept)
        return kept

    def commit(self, group: str, queue: str, position: int) -> None:
        self.line("dump", Commit(group=group, queue=queue, position=position, ms=self.broker_ms))

    # --- senders -----------------------------------------------------------------------------------------------------

    def send(self, sender: str, message: Message, *, outcome: str = "ok") -> None:
        """Send; `info` means stored, and not acknowledged; `fail` means neither."""
        op = self.invoke(
            sender, "send", topic=message.topic, key=encoded(message.key_bytes), digest=digest_of(message.body),
            headers=headers_to_json(message.headers), delay_ms=self._delay_ms(message),
            deliver_at_ms=message.deliver_at_ms, timer=message.timer, command="SET" if message.timer else None,
        )  # fmt: skip
        if outcome == "fail":
            self.after(self.jitter_ms(1, 5), lambda: self.end(sender, op, "fail"))
            return
        uid = f"{sender}-{op}"

        def store() -> None:
            now = self.broker_ms
            out = hops.delayed_record(message, self.names, self.levels, uniq_key=uid, born_ms=now, now_ms=now, lane=0)
            kept = self.append(out)
            answer: dict[str, Any] = {"where": kept.where, "id": uid} if outcome == "ok" else {}
            self.after(self.jitter_ms(0, 3), lambda: self.end(sender, op, outcome, **answer))

        self.after(self.jitter_ms(0, 4), store)

    def command(self, sender: str, command: Any, topic: str, timer: str) -> None:
        """Send a command for a name."""
        key = encoded(f"{topic}/{timer}".encode())
        op = self.invoke(sender, "send", topic=topic, key=key, timer=timer, command=command)
        uid = f"{sender}-{op}"
        out = hops.timer_command(self.names, topic, timer, command, uniq_key=uid, born_ms=self.broker_ms)
        kept = self.append(out)
        self.after(self.jitter_ms(0, 3), lambda: self.end(sender, op, where=kept.where, id=uid))

    def _delay_ms(self, message: Message) -> int | None:
        if message.delay_level:
            return self.levels.delay_ms(self.levels.clamp(message.delay_level))
        return message.delay_ms

    # --- redrive -----------------------------------------------------------------------------------------------------

    def redrive(self, group: str, name: str) -> None:
        """Send every letter of the group again, each with a mark, in one transaction."""
        self.process(name, "redrive")
        source = self.names.dead_letter(group)
        marks = []
        for letter in list(self.logs[f"{source}/0"]):
            replay = f"{name}.{letter.number}.{letter.at}"
            self.append(hops.redriven(letter, self.names, replay_id=replay), committed=False)  # a first try, aborted
            self.append(hops.redriven(letter, self.names, replay_id=replay))
            marks.append((letter.number, letter.at, record_digest(letter)))
        mark = MarkRecord(source=source, plan=name, session=name, state="redriven", letters=tuple(marks))
        self.append(OutgoingRecord(self.names.redrive_log, 0, None, encode_redrive_record(mark), []))


class Worker:
    """The delay worker: it relays what is due, and commits once a second."""

    def __init__(self, world: World, until_s: float) -> None:
        self._world = world
        self._runs = 0
        self._name = ""
        self._down = False
        self._relayed: dict[str, set[int]] = defaultdict(set)
        self._committed: Counter[str] = Counter()
        self._began()
        self._tables: dict[str, TimerTable] = defaultdict(TimerTable)
        world.watchers[world.names.schedule].append(self._wait)
        world.watchers[world.names.timers].append(self._apply)
        world.every(S, self.commit, until_s)

    @property
    def name(self) -> str:
        return self._name

    def _began(self) -> None:
        self._runs += 1
        self._name = self._world.process(f"worker-{self._runs}", "worker", self._world.names.worker_group)
        self._down = False

    def _wait(self, record: Kept) -> None:
        delay_ms = self._world.levels.queue_delay_ms(record.number) or 0
        self._world.after(delay_ms * MS + self._world.jitter_ms(1, 20), lambda: self._relay(record))

    def _relay(self, record: Kept) -> None:
        if self._down:
            self._world.after(S, lambda: self._relay(record))
            return
        if record.at in self._relayed[record.queue]:
            return
        world, names = self._world, self._world.names
        envelope = decode(record.headers(), trusted=True)
        due_ms = hops.due_ms(envelope, record.at_ms, world.levels.queue_delay_ms(record.number) or 0)
        if envelope.real_topic == "secret":
            out = hops.parked(record, names, "forbidden")
        elif due_ms > world.broker_ms:
            partition = world.levels.queue_for(due_ms - world.broker_ms)
            out = hops.hopped(record, envelope, names, deliver_at_ms=due_ms, partition=partition)
        elif envelope.timer is not None:
            out = hops.fire(record, envelope, names)
        else:
            out = hops.delivered(record, envelope, names)
        self._store(record, out)

    def _apply(self, record: Kept) -> None:
        """Do what a command for a name asks for."""
        world, names, envelope = self._world, self._world.names, decode(record.headers(), trusted=True)
        name = hops.timer_digest(envelope.real_topic or "", envelope.timer or "")
        due_ms = hops.due_ms(envelope, record.at_ms, 0)
        change = self._tables[record.queue].apply(
            record.at, Command(envelope.timer_do), name, generation=envelope.timer_set_at, due_ms=due_ms
        )
        out: OutgoingRecord | None = None
        if change.effect is Effect.SCHEDULE:
            partition = world.levels.queue_for(due_ms - world.broker_ms)
            out = hops.scheduled_timer(record, envelope, names, due_ms=due_ms, partition=partition)
        elif change.effect is Effect.DELIVER:
            out = hops.delivered(record, envelope, names)
        elif change.effect is Effect.DELIVER_PENDING:
            pending = next(each for each in world.logs[record.queue] if each.at == change.before)
            out = hops.delivered(pending, decode(pending.headers(), trusted=True), names)
        world.after(world.jitter_ms(1, 5), lambda: self._store(record, out))

    def _store(self, record: Kept, out: OutgoingRecord | None) -> None:
        world = self._world
        if out is not None:
            self._append(out)
        self._relayed[record.queue].add(record.at)
        if world.exactly_once:
            self.commit()

    def _append(self, out: OutgoingRecord) -> None:
        world = self._world
        if world.exactly_once and world.dice.random() < 0.1:
            world.append(out, committed=False)
        world.append(out)

    def commit(self) -> None:
        if self._down:
            return
        for queue, records in self._world.logs.items():
            if queue.rpartition("/")[0] in {self._world.names.schedule, self._world.names.timers}:
                position = first_unfinished(records, self._relayed[queue])
                if position > self._committed[queue]:
                    self._committed[queue] = position
                    self._world.commit(self._world.names.worker_group, queue, position)

    def kill(self) -> None:
        """`kill -9`; another run takes over after its session, and repeats what was not committed."""
        self._world.fault("kill-9", self._name, 0.2)
        self._down = True
        self._world.after(3 * S, self._take_over)

    def _take_over(self) -> None:
        self._began()
        for queue, records in self._world.logs.items():
            if queue.startswith(self._world.names.schedule):
                again = [r for r in records if r.at >= self._committed[queue] and r.at in self._relayed[queue]]
                self._relayed[queue] -= {record.at for record in again}
                for record in again:
                    self._world.after(self._world.jitter_ms(1, 20), partial(self._relay, record))


def first_unfinished(records: list[Kept], finished: set[int]) -> int:
    """The position behind the longest finished prefix."""
    position = 0
    for record in records:
        if record.at not in finished:
            break
        position = record.at + 1
    return position


def as_json(line: Line) -> dict[str, Any]:
    return dict(json.loads(to_json(line)))


def parsed(files: Files) -> History:
    """The history that these files hold."""
    return read_lines({f"{name}.jsonl": [json.dumps(line).encode() for line in lines] for name, lines in files.items()})
