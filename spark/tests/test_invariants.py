"""Invariants on generated histories with planted faults: exactly the planted faults are found.

The comparison has two steps. Hypothesis compares a naive model (`naive`) with the planted faults, on histories that it
can shrink. Then Spark's transforms are compared with the model, on hundreds of random histories in one frame. Half of
those are also damaged at random, so only the model knows the expected result.
"""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rocketshim_spark import events
from rocketshim_spark.jobs import audit, delays, failures, keys, lineage, replay
from rocketshim_spark.land import find_gaps
from rocketshim_spark.sources import PartitionBounds
from rocketshim_topics import hops
from rocketshim_topics.coordinates import TopicPartitionKey

from . import naive
from .histories import FATES, FAULTS, NAMES, NOW_MS, PATHS, Stored, World, frame, gaps_of, ms

GRACE_MS = 60_000
fates = st.lists(st.sampled_from([*FATES, *FAULTS, *PATHS]), max_size=6)
ordered = st.lists(st.sampled_from(["handled", "dead", "overtaken"]), max_size=6)
levelled = st.lists(st.sampled_from(["kept", "overtaken"]), max_size=6)


@settings(max_examples=150)
@given(st.randoms(use_true_random=False), st.lists(fates, min_size=1, max_size=3), ordered, levelled)
def test_the_naive_model_finds_exactly_the_planted_faults(
    source: random.Random, histories: list[list[str]], in_order: list[str], in_level: list[str]
) -> None:
    world = World(source)
    for number, each in enumerate(histories):
        world.history(f"h{number}", each)
    world.ordered("ordered", in_order)
    world.levelled("level", in_level)
    world.commit()
    assert_truth(world, naive.read(world.log.stored), set(world.names))


def assert_truth(world: World, read: Sequence[naive.Read], names: set[str]) -> None:
    """Assert that the model finds what was planted in the histories with these names."""
    truth, of = world.truth, lambda uid: uid.rpartition("-")[0] in names
    lifecycles = {pair: lifecycle for pair, lifecycle in naive.lifecycles(read, world.committed).items() if of(pair[1])}
    assert {pair: lifecycle.state for pair, lifecycle in lifecycles.items()} == {
        pair: state for pair, state in truth.states.items() if of(pair[1])
    }
    assert {pair: lifecycle.copies for pair, lifecycle in lifecycles.items() if lifecycle.copies} == {
        pair: count for pair, count in truth.copies.items() if of(pair[1])
    }
    assert {pair for pair, lifecycle in lifecycles.items() if lifecycle.revived} == {
        pair for pair in truth.revived if of(pair[1])
    }
    assert naive.residuals(lifecycles, world.log.gaps) == {each for each in truth.residual if of(each[1])}
    uids = {each.stored.where: each.uid for each in read}
    found = naive.outcomes(world.log.stored, world.committed[NAMES.worker_group], now_ms=NOW_MS, grace_ms=GRACE_MS)
    found = {where: each for where, each in found.items() if of(uids[where])}
    for outcome, planted in (("never", truth.never), ("stuck", truth.stuck), ("parked", truth.parked)):
        assert {where for where, each in found.items() if each[0] == outcome} == {
            where for where in planted if of(uids.get(where, ""))
        }
    early = {where for where, (_, late, *_) in found.items() if late is not None and late < 0}
    assert early == {where for where in truth.early if of(uids.get(where, ""))}
    if "level" in names:  # other histories do not control the order of their records
        passed = {where for where, (*_, overtaken) in found.items() if overtaken}
        assert {where for where in passed if uids[where].startswith("level-")} == truth.passed
    assert sum(repeats for *_, repeats, _ in found.values()) == sum(truth.copies[pair] for pair in lifecycles)
    groups = {f"pay-{name}" for name in names}
    assert {pair: count for pair, count in naive.failures(read).items() if pair[0] in groups} == {
        pair: count for pair, count in truth.failures.items() if pair[0] in groups
    }
    letters = [where for where in naive.letters(read, world.log.stored) if of(uids[where])]
    assert len(letters) == sum(count for group, count in truth.letters.items() if group in groups)
    results = naive.overtaken(lifecycles, keys_of(read))
    if "ordered" in names:
        assert results["pay-ordered", b"k"][-1] == truth.overtaken["pay-ordered"]
        assert results["mail-ordered", b"k"][-1] == 0


def keys_of(read: Sequence[naive.Read]) -> dict[str, bytes]:
    return {each.uid: each.stored.key() or b"" for each in read}


def test_spark_agrees_with_the_naive_model_on_hundreds_of_histories(spark: SparkSession) -> None:
    assert_agreement(spark, seed=1, count=250)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 27))
def test_spark_agrees_with_the_naive_model_on_ten_thousand_histories(spark: SparkSession, seed: int) -> None:
    assert_agreement(spark, seed=seed, count=400)


def assert_agreement(spark: SparkSession, *, seed: int, count: int) -> None:
    chance = random.Random(seed)  # noqa: S311 nothing secret
    histories = [
        (chance.choices([*FATES, *FAULTS, *PATHS], k=chance.randrange(7)), chance.random() < 0.5) for _ in range(count)
    ]
    world = World(chance)
    for number, (each, _) in enumerate(histories):
        world.history(f"h{number}", each)
    world.ordered("ordered", ["handled", "dead", "overtaken", "overtaken", "handled"])
    world.levelled("level", ["kept", "overtaken", "overtaken", "kept", "kept", "overtaken"])
    world.commit()
    damaged = {f"h{number}" for number, (_, is_damaged) in enumerate(histories) if is_damaged}
    world.damage(damaged)
    read = naive.read(world.log.stored)
    assert_truth(world, read, set(world.names) - damaged)

    event_frame = events.transform(frame(spark, world.log.stored)).cache()
    lifecycles = lineage.transform(event_frame, lineage.LineageParams(committed=world.committed)).cache()
    expected = naive.lifecycles(read, world.committed)
    rows = lifecycles.collect()
    found = {(row.grp, row.msg_id): _facts(row) for row in rows}
    assert len(found) == len(rows)  # each message is in one state only
    assert found == {pair: _facts(lifecycle) for pair, lifecycle in expected.items()}
    assert {(row.grp, row.msg_id): (row.attempts, row.deliveries, row.took_ms) for row in rows} == {
        pair: (lifecycle.attempts, lifecycle.deliveries, lifecycle.took_ms) for pair, lifecycle in expected.items()
    }

    gaps = gaps_of(spark, world)
    missing = naive.residuals(expected, world.log.gaps)
    listed = audit.residuals(lifecycles, gaps)
    assert {(row.grp, row.msg_id, row.reason, row.explained) for row in listed.collect()} == missing
    account = audit.transform(lifecycles, listed).collect()
    assert all(row.sent == sum(row[state] for state in lineage.STATES) for row in account)
    assert sum(row.sent for row in account) == len(rows)
    assert sum(row.residual + row.expired for row in account) == len(missing)

    params = delays.DelayParams(now=ms(NOW_MS), worker=world.committed[NAMES.worker_group], grace_ms=GRACE_MS)
    waited = delays.outcomes(event_frame, params).cache()
    outcomes = {row.coordinates: (row.outcome, row.late_ms, row.repeats, row.overtaken) for row in waited.collect()}
    assert outcomes == naive.outcomes(world.log.stored, params.worker, now_ms=NOW_MS, grace_ms=GRACE_MS)
    summed = delays.transform(waited).collect()
    names = ("delivered", "hopped", "parked", "voided", "never", "stuck", "waiting")
    assert Counter({name: sum(row[name] for row in summed) for name in names}) == Counter(
        outcome for outcome, *_ in outcomes.values()
    ) + Counter(dict.fromkeys(names, 0))
    assert sum(row.overtaken for row in summed) == sum(overtaken for *_, overtaken in outcomes.values())

    causes = failures.transform(event_frame).collect()
    counted = Counter[tuple[str, str]]()
    for row in causes:
        counted[row.grp, row.fail_class] += row.failures
    assert counted == naive.failures(read)

    results = keys.transform(lifecycles, keys.KeyParams(orderly=("pay-ordered", "mail-ordered"))).collect()
    assert {
        (row.grp, bytes(row.key)): (row.messages, row.failed, row.dead, row.consecutive, row.overtaken)
        for row in results
    } == naive.overtaken(expected, keys_of(read))
    assert {row.grp for row in results if row.violation} == {"pay-ordered"}
    assert all(row.poison == (row.failed >= 3 and 2 * row.failed >= row.messages) for row in results)

    assert_replay_plan(spark, world, event_frame, naive.letters(read, world.log.stored))
    event_frame.unpersist()
    lifecycles.unpersist()
    waited.unpersist()


def _facts(lifecycle: Any) -> tuple[Any, ...]:
    return lifecycle.state, lifecycle.copies, lifecycle.rooted, lifecycle.broken, lifecycle.revived, lifecycle.origin


def assert_replay_plan(
    spark: SparkSession, world: World, event_frame: "events.DataFrame", letters: dict[str, str | None]
) -> None:
    """Assert that planned = sent + skipped, and that each lost, repeated and changed record is found."""
    topics = event_frame.select("topic").distinct().withColumn("topic_id", F.lit("id"))
    params = replay.PlanParams(plan_id="monday")
    planned = replay.plan(frame(spark, world.log.stored), event_frame, topics, params).cache()
    rows = planned.collect()
    read = {f"{row.topic}/{row.partition}/{row.offset}": row for row in rows}
    assert {where: row.reason for where, row in read.items() if where in letters} == letters
    malformed = {(row.reason or "").partition(":")[0] for where, row in read.items() if where not in letters}
    assert malformed <= {"malformed", "replayed-already"}
    assert len({row.replay_id for row in rows}) == len(rows)
    stored = {record.where: record for record in world.log.stored}
    sent: list[Any] = []
    expected = {}
    for where, row in read.items():
        if row.action == "skip":
            continue
        out = hops.redriven(stored[where], NAMES, replay_id=row.replay_id)
        assert out.topic == row.target
        fate = world.source.choice(["there", "there", "missing", "twice", "altered"])
        expected[row.replay_id] = fate
        if fate == "altered":
            out.value = b"other"
        times = {"missing": 0, "twice": 2}.get(fate, 1)
        sent += [Stored(out, 0, 10_000 + len(sent) + copy, NOW_MS) for copy in range(times)]
    checked = replay.check(planned, frame(spark, sent)).collect()
    assert {row.replay_id: row.outcome for row in checked} == expected
    planned.unpersist()


class Landing(RuleBasedStateMachine):
    """A partition that grows, and loses records to retention, while landings run; some landings are killed."""

    @initialize(expired=st.integers(0, 3))
    def begin(self, expired: int) -> None:
        self.earliest = self.end = expired
        self.landed: list[tuple[int, int]] = []
        self.position: int | None = None
        self.gaps: list[tuple[int, int]] = []

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.end += count

    @rule(count=st.integers(1, 5))
    def expire(self, count: int) -> None:
        self.earliest = min(self.end, self.earliest + count)

    @rule(is_killed=st.booleans())
    def land(self, is_killed: bool) -> None:
        bounds = PartitionBounds("t", 0, "id", self.earliest, self.earliest, self.end)
        landed = {} if self.position is None else {TopicPartitionKey("t", 0): self.position}
        found = find_gaps([bounds], landed, {TopicPartitionKey("t", 0): self.gaps})
        assert len(found) <= 1
        self.gaps += [(gap.gap_from, gap.gap_to) for gap in found]
        if not is_killed:  # a killed landing has recorded its gaps, but landed nothing
            start = max(self.position or 0, self.earliest)
            if start < self.end:
                self.landed.append((start, self.end))
            self.position = max(self.position or 0, self.end)

    @precondition(lambda self: self.position is not None)
    @invariant()
    def ranges_and_gaps_cover_each_offset_once(self) -> None:
        covered = sorted([*self.landed, *self.gaps])
        assert all(low < high for low, high in covered)
        assert all(before[1] == after[0] for before, after in pairwise(covered))
        assert not covered or covered[0][0] == 0
        assert max([high for _, high in covered], default=0) >= (self.position or 0)


TestLanding = Landing.TestCase
TestLanding.settings = settings(max_examples=300, stateful_step_count=25)
