"""Generate message histories with planted faults, and the expected results; records come from the runtime's hops.

Several histories, each with its own topic and groups, share one schedule topic and one cluster, so one run of the jobs
covers them all. The `random.Random` of a world decides what happens; it may be Hypothesis's.
"""

import datetime as dt
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from rocketshim_spark import events
from rocketshim_topics import DelayLevels, Message, OutgoingRecord, TopicNames, decode, hops
from rocketshim_topics.coordinates import TopicPartitionKey

NAMES = TopicNames()
LEVELS = DelayLevels.default()
START_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
NOW_MS = START_MS + 86_400_000
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
    "headers array<struct<key: string, value: binary>>"
)
GAPS = "found_at timestamp, topic string, topic_id string, partition int, gap_from bigint, gap_to bigint, reason string"
FATES = ("acknowledged", "retried", "dead", "retrying", "waiting-in-retry", "pending", "scheduled")
FAULTS = (
    *("lost-retry", "lost-delayed", "missing-attempt", "no-source", "expired-source", "early", "repeated", "stuck"),
    *("revived", "revived-later"),
)
PATHS = ("parked", "parked-retry", "redriven", "redriven-dead")


@dataclass(frozen=True)
class Stored:
    """A record in the log, with the methods of `rocketshim_topics.wire.Record`."""

    out: OutgoingRecord
    number: int
    at: int
    at_ms: int

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

    def uid(self) -> str:
        return next(value for name, value in self.headers() if name == "UNIQ_KEY" and value).decode()

    @property
    def where(self) -> str:
        return f"{self.topic()}/{self.number}/{self.at}"


@dataclass
class Log:
    """All partitions of the cluster; offsets have holes, like those of transaction markers."""

    source: random.Random
    stored: list[Stored] = field(default_factory=list)
    ends: Counter[TopicPartitionKey] = field(default_factory=Counter)
    gaps: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, out: OutgoingRecord, at_ms: int, *, landed: bool = True, partition: int = 0) -> Stored:
        number = partition if out.partition is None else out.partition
        record = Stored(out, number, self._next(TopicPartitionKey(out.topic, number)), at_ms)
        if landed:
            self.stored.append(record)
        return record

    def repeat(self, record: Stored) -> Stored:
        return Stored(
            record.out,
            record.number,
            self._next(TopicPartitionKey(record.topic(), record.number)),
            record.at_ms + 1_000,
        )

    def _next(self, key: TopicPartitionKey) -> int:
        offset = self.ends[key]
        self.ends[key] += 1 + (self.source.random() < 0.1)
        return offset


@dataclass
class Truth:
    """The expected results: what was planted."""

    states: dict[tuple[str, str], str] = field(default_factory=dict)
    residual: set[tuple[str, str, str, bool]] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    repeats: int = 0
    copies: Counter[tuple[str | None, str]] = field(default_factory=Counter)
    revived: set[tuple[str, str]] = field(default_factory=set)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    replayed: int = 0
    parked: set[str] = field(default_factory=set)
    sent: Counter[str] = field(default_factory=Counter)
    overtaken: Counter[str] = field(default_factory=Counter)


class World:
    """Several histories in one cluster: first what is handled, then the groups commit, then what is still pending."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.log = Log(self.source)
        self.truth = Truth()
        self.names: list[str] = []
        self.later: list[Iterator[None]] = []
        self.lost: list[tuple[str, str, str]] = []
        self.committed: dict[str, dict[TopicPartitionKey, int]] = {}

    def history(self, name: str, fates: Sequence[str]) -> None:
        """Add messages with these fates on `orders-NAME` for groups `pay-NAME` and `mail-NAME`; `mail` never fails."""
        self.names.append(name)
        for number, fate in enumerate(fates):
            steps = self.message(name, f"{name}-{number}", fate)
            next(steps, None)
            self.later.append(steps)

    def ordered(self, name: str, fates: Sequence[str]) -> None:
        """Add an orderly group that handles its messages in order, except for the fate `overtaken`."""
        group, topic = f"pay-{name}", f"orders-{name}"
        self.names.append(name)
        for number, fate in enumerate([*fates, "handled"]):
            uid, at = f"{name}-{number}", START_MS + number * 10
            message = Message(topic, uid.encode(), key="k")
            first = self.log.add(hops.source_record(message, NAMES, uniq_key=uid, born_ms=at), at)
            self.truth.sent[name] += 1
            self.truth.states[f"mail-{name}", uid] = "acknowledged"
            self.truth.states[group, uid] = "acknowledged"
            if fate == "handled":
                continue
            failure = hops.Failure("Timeout", "no 1", at + 5)
            self.truth.failures[group, "Timeout"] += 1
            if fate == "dead":  # it was retried in place, so its dead letter is its only record
                letter = hops.dead_letter(first, NAMES, group=group, trusted=False, failure=failure, reconsume_times=3)
                self.log.add(letter, at + 25)
                self.truth.letters[group] += 1
                self.truth.states[group, uid] = "dead"
                continue
            self.truth.overtaken[group] += 1
            out = hops.retry(
                first, NAMES, LEVELS, group=group, trusted=False, failure=failure, reconsume_times=1,
                level=None, delay_ms=None, lane=0,
            )  # fmt: skip
            self.deliver(self.log.add(out, at + 6))

    def levelled(self, name: str, fates: Sequence[str]) -> None:
        """Add messages of one delay level, delivered in order; an `overtaken` one follows the next `kept` one."""
        self.names.append(name)
        held: list[Stored] = []
        for number, fate in enumerate([*fates, "kept"]):
            uid, at = f"{name}-{number}", START_MS + number * 10
            message = Message(f"orders-{name}", uid.encode(), key="k", delay_level=2)
            out = hops.delayed_record(message, NAMES, LEVELS, uniq_key=uid, born_ms=at, now_ms=at, lane=0)
            held.append(self.log.add(out, at))
            self.truth.sent[name] += 1
            self.truth.states[f"pay-{name}", uid] = self.truth.states[f"mail-{name}", uid] = "acknowledged"
            if fate == "overtaken":
                self.truth.passed.add(held[-1].where)
                continue
            for waited in reversed(held):
                self.deliver(waited, straight=True)
            held = []

    def commit(self) -> None:
        """Let every group commit all records so far, then continue the pending histories."""
        for name in self.names:
            for group in (f"pay-{name}", f"mail-{name}"):
                keys = [TopicPartitionKey(f"orders-{name}", number) for number in range(3)]
                keys.append(TopicPartitionKey(NAMES.retry(group), 0))
                self.committed[group] = {key: self.log.ends[key] for key in keys}
        self.committed[NAMES.worker_group] = {p: end for p, end in self.log.ends.items() if p[0] == NAMES.schedule}
        for steps in self.later:
            for _ in steps:
                pass
        with_gaps = {topic for topic, *_ in self.log.gaps}
        self.truth.residual |= {(group, uid, "lost", topic in with_gaps) for group, uid, topic in self.lost}

    def damage(self, names: Collection[str]) -> None:
        """Lose, repeat and damage records of these histories at random; the expected results do not hold for them."""
        damaged: list[Stored] = []
        for record in list(self.log.stored):
            if record.uid().rpartition("-")[0] not in names:
                damaged.append(record)
                continue
            chance = self.source.random()
            if chance < 0.1:
                continue
            damaged.append(record)
            if chance < 0.2:
                damaged.append(self.log.repeat(record))
            elif chance < 0.25 and record.topic() != NAMES.parked:  # parked records are never checked for their format
                damaged[-1] = replace(record, out=copy(record.out))
                damaged[-1].out.headers = [*record.headers(), *[("CONSUMER_GROUP", b"twice")] * 2]
        self.log.stored = damaged

    def message(self, name: str, uid: str, fate: str) -> Iterator[None]:  # noqa: C901, PLR0912 one branch a fate
        """Generate the records of one message; at `yield` the groups commit."""
        pick, truth, topic, group = self.source, self.truth, f"orders-{name}", f"pay-{name}"
        at = START_MS + pick.randrange(3_600_000)
        delayed = fate in {"scheduled", "lost-delayed", "stuck", "parked"} or pick.random() < 0.3
        message = Message(
            topic, uid.encode(), key=f"k{pick.randrange(5)}", delay_level=pick.randint(1, 6) if delayed else None
        )
        truth.sent[name] += 1
        both = [(group, uid), (f"mail-{name}", uid)]
        for pair in both:
            truth.states[pair] = {"pending": "pending", "scheduled": "scheduled", "stuck": "scheduled"}.get(
                fate, "acknowledged"
            )
        if fate in {"pending", "scheduled", "stuck"}:
            yield
        landed = fate not in {"no-source", "expired-source"}
        if delayed:
            waiting = hops.delayed_record(message, NAMES, LEVELS, uniq_key=uid, born_ms=at, now_ms=at, lane=0)
            if fate == "scheduled":
                at = NOW_MS - 10
            waited = self.log.add(waiting, at, landed=landed)
            if fate == "stuck":
                truth.stuck.add(waited.where)
            if fate in {"scheduled", "stuck"}:
                return
            if fate == "parked":
                self.park(waited, both)
                return
            if fate == "lost-delayed":
                truth.never.add(waited.where)
                for pair in both:
                    truth.states[pair] = "lost"
                    self.lost.append((*pair, topic))
                return
            first = self.deliver(waited, landed=landed)
        else:
            out = hops.source_record(message, NAMES, uniq_key=uid, born_ms=at)
            first = self.log.add(out, at, partition=pick.randrange(3), landed=landed)
        if fate in {"acknowledged", "pending"}:
            return
        if not landed:
            del truth.states[both[1]]  # the other group has no record of it
            truth.residual.add((group, uid, "no-source-record", fate == "expired-source"))
            if fate == "expired-source":
                self.log.gaps.append((first.topic(), first.partition(), first.offset()))
        yield from self.failing(first, fate, group, uid)

    def failing(self, first: Stored, fate: str, group: str, uid: str) -> Iterator[None]:  # noqa: C901, PLR0912 likewise
        truth, record = self.truth, first
        times = 3 if fate == "missing-attempt" else self.source.randint(1, 4)
        for count in range(1, times + 1):
            reason = hops.Failure(self.source.choice(["Timeout", "KeyError"]), f"no {count * 17}", record.at_ms + 5)
            last = count == times
            hidden = fate == "missing-attempt" and count == 2
            if not hidden:
                truth.failures[(group, reason.exception_class)] += 1
            trusted = record.topic() == NAMES.retry(group)
            if fate in {"dead", "redriven", "redriven-dead"} and last:
                dead = hops.dead_letter(
                    record, NAMES, group=group, trusted=trusted, failure=reason, reconsume_times=count
                )
                self.add_dead_letter(self.log.add(dead, record.at_ms + 6), fate, (group, uid))
                return
            if (last and fate == "revived") or (
                count == 1 and fate == "revived-later"
            ):  # and the message continues anyway
                dead = hops.dead_letter(
                    record, NAMES, group=group, trusted=trusted, failure=reason, reconsume_times=count
                )
                self.log.add(dead, record.at_ms + 6)
                truth.letters[group] += 1
                truth.revived.add((group, uid))
                if last:
                    truth.states[group, uid] = "dead"
            if last and fate == "retrying":
                truth.states[(group, uid)] = "retrying"
                yield
            out = hops.retry(
                record, NAMES, LEVELS, group=group, trusted=trusted, failure=reason, reconsume_times=count,
                level=None, delay_ms=None, lane=0,
            )  # fmt: skip
            unfinished = last and fate == "retrying"
            waited = self.log.add(out, NOW_MS - 5 if unfinished else record.at_ms + 6, landed=not hidden)
            if unfinished:
                return
            if last and fate == "parked-retry":
                self.park(waited, [(group, uid)])
                return
            if last and fate == "lost-retry":
                truth.never.add(waited.where)
                truth.states[(group, uid)] = "lost"
                truth.residual.add((group, uid, "lost", False))
                return
            if last and fate == "waiting-in-retry":
                truth.states[(group, uid)] = "retrying"
                yield
            early = last and fate == "early"
            straight = early or (last and fate == "repeated")
            record = self.deliver(waited, landed=not hidden, early=early, straight=straight)
            if early:
                truth.early.add(waited.where)
            if last and fate == "repeated":
                self.deliver(waited, straight=True)
                truth.repeats += 1
                truth.copies[(group, uid)] += 1
        if fate == "missing-attempt":
            truth.residual.add((group, uid, "missing-attempt", False))

    def add_dead_letter(self, letter: Stored, fate: str, pair: tuple[str, str]) -> None:
        """Record a dead letter, and replay it for some fates; the replay succeeds or fails."""
        truth, (group, _) = self.truth, pair
        truth.states[pair] = "dead"
        truth.letters[group] += 1
        if fate == "dead":
            return
        truth.replayed += 1
        again = self.log.add(hops.redriven(letter, NAMES, replay_id=f"again-{letter.at}"), letter.at_ms + 1_000)
        truth.states[pair] = "acknowledged"
        if fate == "redriven-dead":
            failure = hops.Failure("KeyError", "no 4", again.at_ms + 5)
            out = hops.dead_letter(again, NAMES, group=group, trusted=True, failure=failure, reconsume_times=1)
            self.log.add(out, again.at_ms + 6)
            truth.states[pair] = "dead"
            truth.letters[group] += 1
            truth.failures[group, "KeyError"] += 1

    def park(self, waited: Stored, pairs: Sequence[tuple[str, str]]) -> None:
        """Park a record, as the worker does when it cannot deliver it."""
        self.log.add(hops.parked(waited, NAMES, "target-missing"), waited.at_ms + 10_000)
        self.truth.parked.add(waited.where)
        for pair in pairs:
            self.truth.states[pair] = "parked"

    def deliver(self, waited: Stored, *, landed: bool = True, early: bool = False, straight: bool = False) -> Stored:
        """Deliver a record as the worker does, sometimes through another queue, and early only if `early` is set."""
        envelope = decode(waited.headers(), trusted=True)
        due = hops.due_ms(envelope, waited.at_ms, 0)
        if not straight and self.source.random() < 0.3:
            out = hops.hopped(waited, envelope, NAMES, deliver_at_ms=due, partition=31)
            waited = self.log.add(out, due - 20, landed=landed)
            envelope = decode(waited.headers(), trusted=True)
        late = -self.source.randint(1, 500) if early else self.source.randint(0, 40)
        return self.log.add(hops.delivered(waited, envelope, NAMES), due + late, landed=landed)


def frame(spark: SparkSession, stored: Sequence[Stored]) -> DataFrame:
    """Return the records in the columns of Spark's Kafka source."""
    rows = [(r.key(), r.value(), r.topic(), r.number, r.at, ms(r.at_ms), 1, r.headers()) for r in stored]
    return spark.createDataFrame(rows, SCHEMA)


def events_of(spark: SparkSession, stored: Sequence[Stored]) -> DataFrame:
    """Decode the records once; what is made of the events plans nothing of that again, which takes most of the time."""
    return events.transform(frame(spark, stored)).localCheckpoint()


def gaps_of(spark: SparkSession, world: World) -> DataFrame:
    """Return the gaps table of a world."""
    rows = [(ms(NOW_MS), topic, "id", number, at, at + 1, "expired") for topic, number, at in world.log.gaps]
    return spark.createDataFrame(rows, GAPS)


def ms(at_ms: int) -> Any:
    return dt.datetime.fromtimestamp(at_ms / 1_000, dt.UTC)
