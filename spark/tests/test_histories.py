"""Generated histories with planted faults: each planted one is found and named, and nothing else is.

Several histories, each with its own topic and groups, share one schedule topic and one frame: one run of the jobs
judges them all. Records are made by the runtime's own hop functions.
"""

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from rocketshim_spark import events
from rocketshim_spark.jobs import audit, delays, dlq_trend, failures, keys, lineage, replay
from rocketshim_topics import DelayLevels, Message, OutgoingRecord, TopicNames, decode, hops

NAMES = TopicNames()
LEVELS = DelayLevels.default()
START_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
NOW_MS = START_MS + 86_400_000
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
    "headers array<struct<key: string, value: binary>>"
)
GAPS = "found_at timestamp, topic string, topic_id string, partition int, gap_from bigint, gap_to bigint, reason string"
FAULTS = ("lost-retry", "lost-delayed", "missing-attempt", "no-source", "expired-source", "early", "repeated", "stuck")
Place = tuple[str, int]


@dataclass(frozen=True)
class Stored:
    """A record that lies in the log."""

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

    @property
    def where(self) -> str:
        return f"{self.topic()}/{self.number}/{self.at}"


@dataclass
class Log:
    """All partitions; offsets leave holes, as markers of transactions do."""

    source: random.Random
    stored: list[Stored] = field(default_factory=list)
    ends: Counter[Place] = field(default_factory=Counter)
    gaps: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, out: OutgoingRecord, at_ms: int, *, landed: bool = True, partition: int = 0) -> Stored:
        number = partition if out.partition is None else out.partition
        place = (out.topic, number)
        record = Stored(out, number, self.ends[place], at_ms)
        self.ends[place] += 1 + (self.source.random() < 0.1)
        if landed:
            self.stored.append(record)
        return record


@dataclass
class Truth:
    """What was planted, to be found."""

    states: dict[tuple[str, str], str] = field(default_factory=dict)
    residual: set[tuple[str, str, str, bool]] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)
    repeats: int = 0
    copies: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)


class World:
    """Several histories in one cluster. Everything settled comes first, then the groups commit, then the rest."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)  # noqa: S311 nothing secret
        self.log = Log(self.source)
        self.truth = Truth()
        self.later: list[Iterator[None]] = []
        self.committed: dict[str, dict[Place, int]] = {}

    def history(self, name: str, faults: tuple[str, ...], count: int) -> None:
        fates = ["acknowledged", "retried", "dead", "retrying", "waiting-in-retry", "pending", "scheduled"]
        plan = [self.source.choice(fates) for _ in range(count)] + [*fates, *faults]
        self.source.shuffle(plan)
        for number, fate in enumerate(plan):
            steps = self.message(name, f"{name}-{number}", fate)
            next(steps, None)
            self.later.append(steps)

    def commit(self, groups: dict[str, str]) -> None:
        """Every group has handled all there is; then what is still to happen happens."""
        for group, topic in groups.items():
            for name in ("pay", "mail"):
                self.committed[f"{name}-{group}"] = {
                    place: end
                    for place, end in self.log.ends.items()
                    if place[0] in {topic, NAMES.retry(f"{name}-{group}")}
                }
        self.committed[NAMES.worker_group] = {p: end for p, end in self.log.ends.items() if p[0] == NAMES.schedule}
        for steps in self.later:
            for _ in steps:
                pass

    def message(self, name: str, uid: str, fate: str) -> Iterator[None]:  # noqa: C901 one branch a fate
        """The life of one message; at `yield` the groups commit."""
        pick, truth, topic, group = self.source, self.truth, f"orders-{name}", f"pay-{name}"
        at = START_MS + pick.randrange(3_600_000)
        delayed = fate in {"scheduled", "lost-delayed", "stuck"} or pick.random() < 0.3
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
            if fate == "lost-delayed":
                truth.never.add(waited.where)
                for pair in both:
                    truth.states[pair] = "lost"
                    truth.residual.add((*pair, "lost", False))
                return
            first = self.relay(waited, landed=landed)
        else:
            out = hops.source_record(message, NAMES, uniq_key=uid, born_ms=at)
            first = self.log.add(out, at, partition=pick.randrange(3), landed=landed)
        if fate in {"acknowledged", "pending"}:
            return
        if not landed:
            del truth.states[both[1]]  # nothing at all is known of it in the other group
            truth.residual.add((group, uid, "no-source-record", fate == "expired-source"))
            if fate == "expired-source":
                self.log.gaps.append((first.topic(), first.partition(), first.offset()))
        yield from self.failing(first, fate, group, uid)

    def failing(self, first: Stored, fate: str, group: str, uid: str) -> Iterator[None]:  # noqa: C901 likewise
        truth, record = self.truth, first
        times = 3 if fate == "missing-attempt" else self.source.randint(1, 4)
        for count in range(1, times + 1):
            reason = hops.Failure(self.source.choice(["Timeout", "KeyError"]), f"no {count * 17}", record.at_ms + 5)
            last = count == times
            hidden = fate == "missing-attempt" and count == 2
            if not hidden:
                truth.failures[(group, reason.exception_class)] += 1
            trusted = record.topic() == NAMES.retry(group)
            if fate == "dead" and last:
                dead = hops.dead_letter(
                    record, NAMES, group=group, trusted=trusted, failure=reason, reconsume_times=count
                )
                self.log.add(dead, record.at_ms + 6)
                truth.states[(group, uid)] = "dead"
                return
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
            if last and fate == "lost-retry":
                truth.never.add(waited.where)
                truth.states[(group, uid)] = "lost"
                truth.residual.add((group, uid, "lost", False))
                return
            if last and fate == "waiting-in-retry":
                truth.states[(group, uid)] = "retrying"
                yield
            early = last and fate == "early"
            record = self.relay(waited, landed=not hidden, early=early)
            if early:
                truth.early.add(waited.where)
            if last and fate == "repeated":
                self.relay(waited)
                truth.repeats += 1
                truth.copies[(group, uid)] += 1
        if fate == "missing-attempt":
            truth.residual.add((group, uid, "missing-attempt", False))

    def relay(self, waited: Stored, *, landed: bool = True, early: bool = False) -> Stored:
        """What the worker does: by way of another queue sometimes, and never early but when told so."""
        envelope = decode(waited.headers(), trusted=True)
        due = hops.due_ms(envelope, waited.at_ms, 0)
        if self.source.random() < 0.3 and not early and not self.truth.early:
            out = hops.hopped(waited, envelope, NAMES, deliver_at_ms=due, partition=31)
            waited = self.log.add(out, due - 20, landed=landed)
            envelope = decode(waited.headers(), trusted=True)
        late = -self.source.randint(1, 500) if early else self.source.randint(0, 40)
        return self.log.add(hops.delivered(waited, envelope, NAMES), due + late, landed=landed)


@pytest.fixture(scope="module")
def world() -> World:
    made = World(seed=7)
    made.history("clean", (), 40)
    for name in ("a", "b", "c"):
        made.history(name, FAULTS, 25)
    made.commit({name: f"orders-{name}" for name in ("clean", "a", "b", "c")})
    return made


def frame(spark: SparkSession, stored: list[Stored]) -> DataFrame:
    rows = [(r.key(), r.value(), r.topic(), r.number, r.at, ms(r.at_ms), 1, r.headers()) for r in stored]
    return spark.createDataFrame(rows, SCHEMA)


def ms(at_ms: int) -> Any:
    return dt.datetime.fromtimestamp(at_ms / 1_000, dt.UTC)


@pytest.fixture(scope="module")
def told(spark: SparkSession, world: World) -> DataFrame:
    return events.transform(frame(spark, world.log.stored)).cache()


@pytest.fixture(scope="module")
def lives(told: DataFrame, world: World) -> DataFrame:
    return lineage.transform(told, lineage.LineageParams(committed=world.committed)).cache()


@pytest.fixture(scope="module")
def gaps(spark: SparkSession, world: World) -> DataFrame:
    rows = [(ms(NOW_MS), topic, "id", number, at, at + 1, "expired") for topic, number, at in world.log.gaps]
    return spark.createDataFrame(rows, GAPS)


def test_every_message_is_in_its_state_and_in_one_only(lives: DataFrame, world: World) -> None:
    rows = lives.collect()
    assert len({(row.grp, row.msg_id) for row in rows}) == len(rows)
    assert {(row.grp, row.msg_id): row.state for row in rows} == world.truth.states
    copies = {(row.grp, row.msg_id): row.copies for row in rows if row.copies}
    assert copies == world.truth.copies
    assert sorted(row.state for row in rows if row.inferred) == sorted(
        state for state in world.truth.states.values() if state in {"acknowledged", "pending"}
    )


def test_each_planted_loss_is_listed_with_its_reason_and_nothing_else(
    lives: DataFrame, gaps: DataFrame, world: World
) -> None:
    found = {(row.grp, row.msg_id, row.reason, row.explained) for row in audit.residuals(lives, gaps).collect()}
    assert found == world.truth.residual
    account = audit.transform(lives, gaps).collect()
    for row in account:
        assert row.sent == sum(row[state] for state in lineage.STATES)
        name = row.topic.removeprefix("orders-")
        planted = [each for each in world.truth.residual if each[0] == row.grp]
        assert row.residual == sum(not explained for *_, explained in planted)
        assert row.expired == sum(explained for *_, explained in planted)
        if row.grp == f"pay-{name}":
            assert row.sent == world.truth.sent[name]
    clean = {row.grp: (row.residual, row.expired, row.copies) for row in account if row.topic == "orders-clean"}
    assert clean == {"pay-clean": (0, 0, 0), "mail-clean": (0, 0, 0)}
    assert sum(row.sent for row in account) == lives.count()


def test_delays_find_the_early_the_forgotten_and_the_stuck(told: DataFrame, world: World) -> None:
    params = delays.DelayParams(now=ms(NOW_MS), worker=world.committed[NAMES.worker_group])
    found = delays.outcomes(told, params).cache()
    rows = found.collect()
    by_outcome: dict[str, set[str]] = {}
    for row in rows:
        by_outcome.setdefault(row.outcome, set()).add(row.coordinates)
    assert by_outcome["never"] == world.truth.never
    assert by_outcome["stuck"] == world.truth.stuck
    assert {row.coordinates for row in rows if row.early} == world.truth.early
    assert sum(row.repeats for row in rows) == world.truth.repeats
    late = [row.late_ms for row in rows if row.outcome == "delivered" and not row.early]
    assert late
    assert min(late) >= 0
    assert max(late) <= 40
    summed = delays.transform(found).collect()
    assert sum(row.delivered + row.hopped + row.parked + row.never + row.stuck + row.waiting for row in summed) == len(
        rows
    )
    report = delays.report(found, delays.transform(found))
    assert not report.fine
    assert f"{len(world.truth.early)} early, {len(world.truth.never)} never delivered" in report.verdict


def test_failures_are_counted_once_whatever_records_tell_of_them(told: DataFrame, world: World) -> None:
    found = failures.transform(told).cache()
    rows = found.collect()
    counted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counted[(row.grp, row.fail_class)] += row.failures
    assert counted == world.truth.failures
    assert {row.fingerprint for row in rows} == {"no #"}
    dead = sum(state == "dead" for state in world.truth.states.values())
    assert sum(row.dead for row in rows) == dead
    assert f"{sum(counted.values())} failures of" in failures.report(found).verdict


def test_reports_say_what_is_wrong_in_their_first_line(lives: DataFrame, gaps: DataFrame, world: World) -> None:
    report = audit.report(audit.transform(lives, gaps), audit.residuals(lives, gaps), gaps)
    unexplained = sum(not explained for *_, explained in world.truth.residual)
    assert report.verdict.startswith(f"residual {unexplained};")
    assert not report.fine
    assert not lineage.report(lives).fine
    clean = lives.filter("topic = 'orders-clean'")
    assert lineage.report(clean).fine
    life = lineage.biography(clean, "clean-0")[0]
    assert lineage.story(life).startswith(f"clean-0 in group {life.grp}: {life.state}")


def test_keys_are_judged_as_a_plain_loop_over_the_lives_judges_them(lives: DataFrame) -> None:
    rows = lives.collect()
    found = {(row.grp, row.key and bytes(row.key)): row for row in keys.transform(lives).collect()}
    by_key: dict[tuple[str, bytes], list[Row]] = {}
    for row in rows:
        by_key.setdefault((row.grp, bytes(row.key)), []).append(row)
    assert found.keys() == by_key.keys()
    for place, messages in by_key.items():
        failed = [row for row in messages if any(each.attempt > 0 for each in row.history)]
        consecutive = overtaken = 0
        for _, same in groupby(sorted(messages, key=at), key=lambda row: at(row)[:-1]):
            in_order, run = list(same), 0
            for number, row in enumerate(in_order):
                run = run + 1 if row in failed else 0
                consecutive = max(consecutive, run)
                overtaken += row in failed and any(
                    later.state == "acknowledged" and began(later) < row.last_at for later in in_order[number + 1 :]
                )
        row = found[place]
        assert (row.messages, row.failed, row.consecutive) == (len(messages), len(failed), consecutive)
        assert row.overtaken == overtaken
        assert row.dead == sum(each.state == "dead" for each in messages)
        assert row.poison == (len(failed) >= 3 and 2 * len(failed) >= len(messages))
    assert sum(row.overtaken for row in found.values()) > 0
    strict = keys.transform(lives, keys.KeyParams(orderly=("pay-a",)))
    assert not keys.report(strict).fine
    assert {row.grp for row in strict.filter("violation").collect()} == {"pay-a"}


def at(row: Row) -> tuple[str, int, int]:
    topic, number, offset = (row.origin or "//").split("/")
    return topic, int(number or -1), int(offset or -1)


def began(row: Row) -> Any:
    return next((each["at"] for each in row.history if each["step"] == 2), row.first_sent)


def test_dead_letters_are_planned_once_each_and_a_second_plan_is_the_same(
    spark: SparkSession, told: DataFrame, world: World
) -> None:
    topics = spark.range(1).selectExpr("'rmq.dlq.pay-a' AS topic", "'topic-id' AS topic_id")
    params = replay.PlanParams(plan_id="monday")
    planned = replay.with_targets(replay.plan(told, topics, params), params).cache()
    rows = planned.collect()
    dead = [pair for pair, state in world.truth.states.items() if state == "dead"]
    assert sorted((row.grp, row.msg_id) for row in rows) == sorted(dead)
    assert {(row.action, row.target == NAMES.retry(row.grp)) for row in rows} == {("send", True)}
    assert len({row.replay_id for row in rows}) == len(rows)
    again = {row.replay_id for row in replay.plan(told, topics, params).collect()}
    assert again == {row.replay_id for row in rows}
    few = replay.PlanParams(plan_id="tuesday", group="pay-a", max_messages=2)
    some = replay.plan(told, topics, few).collect()
    assert {row.grp for row in some} == {"pay-a"}
    assert sum(row.action == "send" for row in some) == 2
    assert {row.reason for row in some if row.action == "skip"} <= {"beyond-max"}
    assert not again & {row.replay_id for row in some}
    there_check(spark, planned, world)


def there_check(spark: SparkSession, planned: DataFrame, world: World) -> None:
    """Of the planned letters: the first goes missing, the second comes twice, the third altered, the others well."""
    rows = sorted(planned.collect(), key=lambda row: row.replay_id)
    stored = {record.where: record for record in world.log.stored}
    sent: list[Stored] = []
    for number, row in enumerate(rows):
        out = hops.redriven(stored[f"{row.topic}/{row.partition}/{row.offset}"], NAMES, replay_id=row.replay_id)
        if number == 2:
            out.value = b"other"
        times = 0 if number == 0 else 2 if number == 1 else 1
        sent += [Stored(out, 0, 1_000 + number * 2 + copy, NOW_MS) for copy in range(times)]
    checked = replay.check(planned, frame(spark, sent))
    found = [row.outcome for row in checked.orderBy("replay_id").collect()]
    assert found == ["missing", "twice", "altered", *["there"] * (len(rows) - 3)]
    report = replay.verify_report(checked)
    assert report.verdict.startswith(f"{len(rows)} planned: {len(rows) - 3} there, 1 missing, 1 twice, 1 altered")
    assert not report.fine


def test_the_trend_counts_what_came_what_went_and_the_hours_left(told: DataFrame, world: World) -> None:
    params = dlq_trend.TrendParams(now=ms(NOW_MS), retention_ms=30 * 86_400_000)
    letters = dlq_trend.letters(told)
    left = dlq_trend.open_letters(letters, params).collect()
    dead = Counter(group for (group, _), state in world.truth.states.items() if state == "dead")
    assert {row.grp: row.depth for row in left} == dead
    assert all(29 * 24 - 1 < row.hours_left < 29 * 24 + 4 for row in left)
    days = dlq_trend.transform(letters)
    assert sum(row.arrived for row in days.collect()) == dead.total()
    assert dlq_trend.report(days, dlq_trend.open_letters(letters, params), params).fine
    soon = dlq_trend.TrendParams(now=ms(NOW_MS), retention_ms=86_400_000)
    assert not dlq_trend.report(days, dlq_trend.open_letters(letters, soon), soon).fine
