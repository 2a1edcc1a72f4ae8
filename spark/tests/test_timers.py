"""Named timers in the jobs: random commands, decided by the rules of the runtime, and faults of the worker."""

import random
from collections import Counter
from dataclasses import replace

from pyspark.sql import SparkSession

from rocketshim.core.named_timers import Command, Effect, TimerTable
from rocketshim_spark import events
from rocketshim_spark.jobs import audit, delays, lineage
from rocketshim_spark.small_frames import small_frame
from rocketshim_spark.timers import fates
from rocketshim_topics import Message, decode, hops
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.hops.timers import checks_left, fire, scheduled_timer, timer_command, timer_digest

from .histories import GAPS, LEVELS, NAMES, START_MS, Log, Stored, frame, ms

TOPIC = "orders"
SET, ABSENT, CANCEL, NOW = "SET", "SET-IF-ABSENT", "CANCEL", "NOW"


class Names:
    """A log of timers whose commands have the effects that `TimerTable` decides, and what became of each message."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.log = Log(source)
        self.tables: dict[int, TimerTable] = {}
        self.waiting: dict[tuple[str, int], Stored] = {}  # by name and generation
        self.ids: dict[tuple[str, int], str] = {}
        self.states: dict[str, tuple[str, str | None]] = {}
        self.outcomes: dict[str, str] = {}
        self.passed: set[TopicPartitionKey] = set()
        self.at = START_MS

    def command(
        self, name: str, command: str, *, recurs: bool = False, parked: bool = False, asks: str | None = None
    ) -> None:
        self.at += 1_000
        uid = f"{name}#{self.at}"
        if command in {CANCEL, NOW}:
            out = timer_command(NAMES, TOPIC, name, command, uniq_key=uid, born_ms=self.at)
        else:
            repeat = {"every": "1m"} if recurs else {"delay": "1m"}
            message = Message(TOPIC, uid.encode(), timer=name, if_absent=command == ABSENT, **repeat)  # type: ignore[arg-type]
            out = hops.delayed_record(message, NAMES, LEVELS, uniq_key=uid, born_ms=self.at, now_ms=self.at, lane=0)
        if asks is not None:
            out.headers = [*out.headers, ("TIMER_ASKS", asks.encode())]
        record = self.log.add(out, self.at)
        if parked:
            self.log.add(hops.parked(record, NAMES, "forbidden-target:internal"), self.at)
            self.states[uid] = ("parked", None)
        else:
            self.decide(record, name, recurs=recurs)

    def decide(self, record: Stored, name: str, *, recurs: bool = False, misses: bool = False) -> None:
        """Do what the log says for a command."""
        envelope = decode(record.headers(), trusted=True)
        table = self.tables.setdefault(record.partition(), TimerTable())
        change = table.apply(
            record.offset(), Command(envelope.timer_do), timer_digest(TOPIC, name),
            generation=envelope.timer_set_at, due_ms=self.at + 60_000, recurs=recurs, checks_left=checks_left(envelope),
        )  # fmt: skip
        if change.before is not None and change.effect is not Effect.NOTHING:
            self.end(name, change.before, change.effect, recurs=change.after is not None and record is not None)
        if change.effect is Effect.DELIVER and not misses:
            self.deliver(record, f".{envelope.deliver_at_ms}" if recurs else "")
        if change.effect is Effect.DELIVER_PENDING:
            began = next(
                each for each in self.log.stored
                if (each.topic(), each.partition(), each.offset()) == (NAMES.timers, record.partition(), change.before)
            )  # fmt: skip
            repeats = decode(began.headers(), trusted=True).timer_repeat is not None
            self.deliver(began, f".{record.offset()}" if repeats else "")
        if change.after == record.offset():
            out = scheduled_timer(
                record, envelope, NAMES, due_ms=self.at + 60_000, partition=31 + 32 * len(self.waiting)
            )
            waits = self.log.add(out, self.at)
            self.waiting[name, change.after] = waits
            self.ids[name, change.after] = waits.uid()
            self.states[waits.uid()] = ("scheduled", None)
            self.outcomes[waits.where] = "waiting"
        elif change.effect is Effect.NOTHING and envelope.timer_do == ABSENT:
            self.states[record.uid()] = ("voided", "dropped")

    def end(self, name: str, generation: int, effect: Effect, *, recurs: bool) -> None:
        waits, uid = self.waiting[name, generation], self.ids[name, generation]
        if effect is Effect.FORGET:
            self.states[uid], self.outcomes[waits.where] = ("voided", "cancelled"), "voided"
        elif effect is Effect.SCHEDULE:
            self.states[uid], self.outcomes[waits.where] = ("voided", "replaced"), "voided"
        elif effect is Effect.ASK:
            self.outcomes[waits.where] = "hopped"
        elif effect is Effect.DELIVER:
            self.outcomes[waits.where] = "delivered"
            if not recurs:
                self.states[uid] = ("open", None)
        elif not recurs:
            self.states[uid], self.outcomes[waits.where] = ("open", None), "voided"

    def deliver(self, record: Stored, occurrence: str) -> None:
        envelope = decode(record.headers(), trusted=True)
        if occurrence:
            envelope = replace(envelope, uniq_key=f"{envelope.uniq_key}{occurrence}")
            self.states[envelope.uniq_key or ""] = ("open", None)
        self.log.add(hops.delivered(record, envelope, NAMES), self.at)

    def fire(self, name: str, generation: int, *, lost: bool = False) -> None:
        """Append the FIRE of a message that is due, perhaps for the second time; the worker may lose its delivery."""
        waits = self.waiting[name, generation]
        envelope = decode(waits.headers(), trusted=True)
        self.passed.add(TopicPartitionKey(waits.topic(), waits.partition()))
        self.at = max(self.at, (envelope.deliver_at_ms or 0)) + 10
        record = self.log.add(fire(waits, envelope, NAMES), self.at)
        before = dict(self.outcomes)
        self.decide(record, name, recurs=envelope.timer_repeat is not None, misses=lost)
        if lost and before.get(waits.where) == "waiting" and self.outcomes[waits.where] == "delivered":
            self.outcomes[waits.where] = "never"
            if envelope.timer_repeat is None:
                self.states[waits.uid()] = ("lost", None)

    def commit(self) -> dict[str, dict[TopicPartitionKey, int]]:
        done = {key: end for key, end in self.log.ends.items() if key.topic == NAMES.timers or key in self.passed}
        return {NAMES.worker_group: done}


def test_the_jobs_find_what_the_log_decided_of_random_commands(spark: SparkSession) -> None:
    chance = random.Random(1)  # noqa: S311 nothing secret
    world = Names(chance)
    for number in range(300):
        name = f"n{number}"
        for _ in range(chance.randrange(8)):
            known = [generation for of, generation in world.waiting if of == name]
            match chance.choice(
                ["SET", "SET", "SET-IF-ABSENT", "CANCEL", "NOW", "fire", "fire", "fire", "parked", "half"]
            ):
                case "fire":
                    if known:
                        world.fire(name, chance.choice(known), lost=chance.random() < 0.4)
                case "parked":
                    world.command(name, SET, parked=True)
                case "half":
                    world.command(name, SET, asks="shop")
                case word:
                    world.command(name, word, recurs=chance.random() < 0.3)
    read = events.transform(frame(spark, world.log.stored)).cache()
    committed = world.commit()
    lifecycles = lineage.transform(read, lineage.LineageParams(committed=committed)).cache()
    found = {row.msg_id: (row.state, row.last_reason) for row in lifecycles.collect()}
    assert {uid: state for uid, (state, _) in found.items()} == {uid: state for uid, (state, _) in world.states.items()}
    voided = {uid: reason for uid, (state, reason) in world.states.items() if state == "voided"}
    assert {uid: found[uid][1] for uid in voided} == voided
    assert {state for state, _ in found.values()} == {"voided", "scheduled", "open", "lost", "parked"}
    assert not lifecycles.filter("copies > 0").count()

    params = delays.DelayParams(now=ms(START_MS), worker=committed[NAMES.worker_group])
    outcomes = delays.outcomes(read, params).cache()
    rows = outcomes.collect()
    assert {row.coordinates: row.outcome for row in rows} == world.outcomes
    assert len(rows) == len(world.outcomes)
    assert not any(row.repeats or row.overtaken for row in rows)
    assert Counter(row.fate for row in fates(read).collect()).keys() >= {"dropped", "recurs", "delivered-now", "fired"}
    missing = audit.residuals(lifecycles, small_frame(spark, [], GAPS))
    assert {row.reason for row in missing.collect()} == {"lost"}
    for each in (read, lifecycles, outcomes):
        each.unpersist()
