"""`replay plan` and `dlq plan` agree on every dead letter: neither sends what the other one has sent."""

import datetime as dt
import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.admin.redrive import Fetch, Journal
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim_spark import cli_replay, events, redrive_marks
from rocketshim_spark.jobs import replay, replay_send
from rocketshim_spark.small_frames import small_frame
from rocketshim_spark.sources import Cluster, PartitionBounds
from rocketshim_topics import OutgoingRecord, TopicNames
from rocketshim_topics.errors import MalformedRecordError, TopicMissingError
from rocketshim_topics.redrive_log import MarkRecord, RedriveLog, encode_redrive_record, record_digest
from rocketshim_topics.redrive_plan import PlannedLetter, Planner, RedriveRules
from rocketshim_topics.wire import Header

from .histories import GAPS, NOW_MS, Stored, frame

NAMES = TopicNames()
PLANS = {"redriven": "p-sent", "discarded": "p-dropped"}


@dataclass(frozen=True)
class Letter:
    """A dead letter, whether it is chosen, and its mark in the redrive log.

    Attributes:
        headers: headers of the record.
        value: value of the record.
        key: key of the record.
        is_chosen: whether the user chose it.
        state: state of the mark at its coordinates; None: no mark.
        is_another: whether the mark is of another record at the same coordinates.
    """

    headers: tuple[Header, ...]
    value: bytes | None = b"v"
    key: bytes | None = b"k"
    is_chosen: bool = True
    state: str | None = None
    is_another: bool = False

    def stored(self, topic: str, at: int) -> Stored:
        return Stored(OutgoingRecord(topic, at % 2, self.key, self.value, list(self.headers)), at % 2, at // 2, NOW_MS)


TARGETS = frozenset({"orders", NAMES.retry("g")})
is_compacted = "orders".__eq__


def by_dlq_plan(topic: str, letters: list[Letter], rules: RedriveRules, log: RedriveLog) -> dict[str, str]:
    """Return, for the coordinates of each dead letter, its target or the reason why it is skipped."""
    planner, opener = Planner(topic, rules, log, TARGETS, is_compacted=is_compacted), Decoder(NAMES, topic)
    stored = sorted((each.stored(topic, at) for at, each in enumerate(letters)), key=lambda one: one.where)
    chosen = {each.stored(topic, at).where for at, each in enumerate(letters) if each.is_chosen}
    for record in stored:
        letter = opener.open(record)
        if record.where in chosen:
            planner.add(record, letter.envelope, malformed=letter.malformed)
        else:
            planner.pass_over(record, letter.envelope)
    made = planner.plan(cluster_id="c", created_ms=1, choice={})
    sent = {f"{topic}/{each.partition}/{each.offset}": each.target for each in made.letters}
    return {**sent, **{f"{topic}/{each.partition}/{each.offset}": each.reason for each in made.held_back}}


def by_replay_plan(
    spark: SparkSession, stored: list[Stored], chosen: list[str], params: replay.PlanParams
) -> dict[str, str]:
    read = frame(spark, stored)
    event_frame = events.transform(read).cache()
    marks = redrive_marks.settled(read)
    topics = event_frame.select("topic").distinct().withColumn("topic_id", F.lit("id"))
    wanted = spark.createDataFrame([(each,) for each in chosen], "coordinates string")
    rows = replay.plan(
        read, event_frame, topics, params,
        chosen=wanted, settled=marks, existing=TARGETS, is_compacted=is_compacted,
    ).collect()  # fmt: skip
    event_frame.unpersist()
    assert all((row.action == "send") == (row.reason is None) == (row.target is not None) for row in rows)
    return {f"{row.topic}/{row.partition}/{row.offset}": row.reason or row.target for row in rows}


def marks_of(topic: str, letters: list[Letter]) -> list[MarkRecord]:
    return [
        MarkRecord(
            source=topic, plan=PLANS[letter.state], session="s", state=letter.state,  # type: ignore[arg-type]
            letters=((at % 2, at // 2, "0" * 16 if letter.is_another else record_digest(letter.stored(topic, at))),),
        )
        for at, letter in enumerate(letters) if letter.state is not None
    ]  # fmt: skip


def assert_same(spark: SparkSession, worlds: list[list[Letter]], *, to_source: bool, max_replays: int) -> None:
    """Plan many dead-letter topics in one frame with `replay plan`, and each one alone with `dlq plan`."""
    rules = RedriveRules(to_source=to_source, max_replays=max_replays)
    expected: dict[str, str] = {}
    stored: list[Stored] = []
    chosen: list[str] = []
    for number, letters in enumerate(worlds):
        topic = NAMES.dead_letter(f"g{number}")
        marks = marks_of(topic, letters)
        expected |= by_dlq_plan(topic, letters, rules, RedriveLog(topic, marks))
        for at, letter in enumerate(letters):
            stored.append(letter.stored(topic, at))
            chosen += [stored[-1].where] * letter.is_chosen
        for mark in marks:
            out = OutgoingRecord(NAMES.redrive_log, 0, None, encode_redrive_record(mark), [])
            stored.append(Stored(out, 0, len(stored), NOW_MS))
    params = replay.PlanParams(plan_id="p", to_source=to_source, max_replays=max_replays)
    found = by_replay_plan(spark, stored, chosen, params)
    assert set(expected.items()) ^ set(found.items()) == set()


FIELDS: dict[str, list[bytes | None]] = {
    "SHIM": [b"1", b"1", b"1", b"2", None],
    "UNIQ_KEY": [b"m", b"m", b"m", b"other", b"", None],
    "ORIGIN_MESSAGE_ID": [b"orders/0/1", b"orders/0/1", b"orders/0/2", b"", None],
    "CONSUMER_GROUP": [b"g", b"g", b"g", b"a.b", b"\xff", b"", None],
    "RECONSUME_TIMES": [b"17", b"17", b"3", b"x", None],
    "RETRY_TOPIC": [b"orders", b"orders", b"a/b", b"%RETRY%g", b"\xff", None],
    "REPLAY_ID": [None, None, b"r"],
    "REPLAY_COUNT": [None, None, b"1", b"3"],
    "USER.REPLAY_COUNT": [None, None, b"2"],
    "FAIL_CLASS": [b"Timeout", None],
    "FAIL_TEXT": [b"no answer", b"[by reference: sha256=- size_bytes=-] late", b"[by reference: none]"],
}


def usual(**other: bytes | None) -> tuple[Header, ...]:
    fields: dict[str, bytes | None] = {name: values[0] for name, values in FIELDS.items()}
    fields |= other
    return tuple((name, value) for name, value in fields.items() if value is not None)


def some_letter(chance: random.Random) -> Letter:
    """Return a dead letter of the same attempt of the same delivery, with up to two headers changed or invalid."""
    odd = chance.sample(list(FIELDS), chance.randrange(3))
    return Letter(
        usual(**{name: chance.choice(FIELDS[name]) for name in odd}),
        chance.choice([b"v", b"v", b"", None]),
        chance.choice([b"k", b"k", None]),
        is_chosen=chance.random() < 0.8,
        state=chance.choice([None, None, None, *PLANS]),
        is_another=chance.random() < 0.2,
    )


@pytest.mark.parametrize("seed", range(2))
def test_both_plans_treat_each_dead_letter_alike(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 nothing secret
    worlds = [[some_letter(chance) for _ in range(chance.randint(1, 6))] for _ in range(200)]
    assert_same(spark, worlds, to_source=seed % 2 == 1, max_replays=1 + seed % 3)


@pytest.mark.parametrize("to_source", [False, True])
def test_a_repeat_of_a_settled_dead_letter_is_not_sent(spark: SparkSession, to_source: bool) -> None:
    open_one = Letter(usual())
    by_hand: list[Any] = [
        [open_one, Letter(usual(), state="redriven")],
        [Letter(usual(), state="discarded"), open_one],
        [open_one, Letter(usual(), state="discarded", is_chosen=False)],
        [open_one, open_one, Letter(usual(), state="redriven", is_another=True)],
        [Letter(usual(), is_chosen=False), open_one],
        [Letter(usual(REPLAY_COUNT=b"3")), open_one],
        [Letter(usual(RETRY_TOPIC=b"a/b")), open_one],
        [Letter(usual(), key=None), open_one],
    ]
    assert_same(spark, by_hand, to_source=to_source, max_replays=3)


def test_what_may_have_lost_its_mark_before_the_landing_is_not_sent(spark: SparkSession) -> None:
    topic = NAMES.dead_letter("g")
    old = Letter(usual()).stored(topic, 0)
    new = replace(Letter(usual(UNIQ_KEY=b"n")).stored(topic, 2), at_ms=NOW_MS + 120_000)
    mark = OutgoingRecord(NAMES.redrive_log, 0, None, b"{}", [])
    read = frame(spark, [old, new, Stored(mark, 0, 4, NOW_MS - 120_000), Stored(mark, 0, 9, NOW_MS)])
    gap = (dt.datetime.fromtimestamp(0, dt.UTC), NAMES.redrive_log, "id", 0, 5, 8, "expired")
    gaps = small_frame(spark, [gap], GAPS)
    topics = small_frame(spark, [(topic, "id")], "topic string, topic_id string")
    params = replay.PlanParams(plan_id="p")
    rows = replay.plan(read, events.transform(read), topics, params, gaps=gaps).orderBy("offset").collect()
    assert [(row.reason, row.log_end) for row in rows] == [("marks-lost", 10), (None, 10)]
    whole = replay.plan(read, events.transform(read), topics, params).collect()
    assert {row.action for row in whole} == {"send"}


class OneTopic(Cluster):
    """A cluster without brokers that has one topic."""

    def bounds(self, topics: Iterable[str]) -> list[PartitionBounds]:
        for topic in topics:
            if topic != NAMES.retry("a"):
                raise TopicMissingError(f"no such topic: {topic}")
        return [PartitionBounds(topic, 0, "id", 0, 0, 7) for topic in topics]


def test_a_target_that_is_gone_fails_its_own_dead_letters_only(spark: SparkSession) -> None:
    rows = [("send", NAMES.retry("a")), ("send", NAMES.retry("b")), ("skip", None)]
    planned = small_frame(spark, rows, "action string, target string")
    existing = {each.topic for each in cli_replay.target_bounds(planned, OneTopic("none:1"))}
    assert existing == {NAMES.retry("a")}
    for group in ("a", "b"):
        letter = Letter(usual(CONSUMER_GROUP=group.encode())).stored(NAMES.dead_letter(group), 0)
        target = NAMES.retry(group)
        make = replay_send._record_maker(NAMES, letter.topic(), "plan", existing, to_source=False)
        row = PlannedLetter(0, 0, record_digest(letter), target, "Timeout", "m")
        if target in existing:
            made = make(letter, row)
            assert made is not None
            assert made.topic == target
        else:
            with pytest.raises(MalformedRecordError) as caught:
                make(letter, row)
            assert caught.value.reason == f"no-topic:{target}"


def test_a_dry_run_that_would_stop_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    done = replay_send.RunResult(sent=7, settled=0, failed={"gone": 3}, dead_again=0, left=0, is_stopped=True)
    assert cli_replay._facts("p", done, dry_run=True)["stopped_by"] == "failures"
    cli_replay._print_result(done, dry_run=True)
    assert capsys.readouterr().err == "the run would stop: too many would fail (--stop-ratio)\n"


def test_a_plan_reports_repeats_as_one_reason(spark: SparkSession) -> None:
    rows = [("skip", f"repeat-of:0/{at}", None, "Timeout", "late") for at in range(3)]
    planned = small_frame(
        spark, [*rows, ("send", None, "retry", "Timeout", "late")],
        "action string, reason string, target string, fail_class string, fingerprint string",
    )  # fmt: skip
    report = replay.plan_report(planned, "p")
    assert report.verdict == "4 dead letters: 1 to send, 3 skipped"
    assert [(row[1], row[-1]) for row in report.tables[0].rows] == [("repeat-of", 3), (None, 1)]


class Collecting:
    """A redriver that sends nothing: it reads the dead letters and counts them as gone."""

    def __init__(self, _: str, journal: Journal, progress: RedriveProgress, *, fetch: Fetch, **__: object) -> None:
        self._source, self._fetch, self._progress = journal.source, fetch, progress

    def run(self) -> None:
        waiting = {(each.partition, each.offset): each for each in self._progress.resume(lambda _: False)}
        for record in self._fetch(waiting):
            self._progress.fail(waiting[record.partition(), record.offset()], f"read:{self._source}")

    def close(self) -> None:
        pass


def test_a_run_reads_the_lake_once_for_all_topics(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [NAMES.dead_letter(f"g{number}") for number in range(3)]
    stored = [Letter(()).stored(topic, at) for topic in topics for at in range(4)]
    lake = tmp_path / "records"
    frame(spark, stored).write.parquet(str(lake))
    planned = small_frame(
        spark,
        [
            ("send", each.topic(), each.partition(), each.offset(), "d", "t", None, "m", "r", False, 7)
            for each in stored
        ],
        "action string, topic string, partition int, offset bigint, digest string, target string, fail_class string, "
        "msg_id string, redrive string, to_source boolean, log_end bigint",
    )
    landed = replay.landed_letters(planned, spark.read.parquet(str(lake)))

    def delete_lake(*_: object) -> None:
        shutil.rmtree(lake, ignore_errors=True)

    monkeypatch.setattr(Collecting, "close", delete_lake)  # after the first topic
    monkeypatch.setattr(replay_send, "Redriver", Collecting)
    done = replay_send.send("none:1", planned, landed)
    assert done.failed == {f"read:{topic}": 4 for topic in topics}
    assert not landed.is_cached
