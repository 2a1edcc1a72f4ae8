"""A day of a real group on a real broker, landed, and asked every question by the commands a person types."""

import json
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from pyspark.sql import SparkSession

from rocketshim import ConsumeFromWhere, DeadLetter, Producer, PushConsumer
from rocketshim.cli import main as rocketshim
from rocketshim_local import Broker
from rocketshim_spark import cli_replay
from rocketshim_spark.cli import main
from rocketshim_spark.jobs import replay, replay_send
from rocketshim_spark.running import find_published, local_folder, open_lake
from rocketshim_spark.sources import Cluster
from rocketshim_topics import DelayLevels, Message, TopicNames, provision
from rocketshim_topics.layout import Layout

from . import waiting
from .running import patient_worker
from .test_documented_commands import commands

pytestmark = pytest.mark.usefixtures("interpreted")

LEVELS = "1s 1s 1s 1s"
GUARD_S = 120.0


@dataclass(frozen=True)
class Day:
    """What happened, and where it was landed.

    Commands run in the folder of the lake, and name it by a relative path; Java's working directory is another one.
    """

    bootstrap: str
    namespace: str
    topic: str
    group: str
    lake: str
    ids: dict[int, str]

    @property
    def letters(self) -> str:
        return TopicNames(self.namespace).dead_letter(self.group)

    def ask(self, *words: str) -> int:
        with chdir(self.folder.parent):
            return main([*words, "--lake", f"./{self.folder.name}", "--namespace", self.namespace])

    @property
    def folder(self) -> Path:
        found = local_folder(self.lake)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def day(
    spark: SparkSession, broker: Broker, admin: AdminClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Day]:
    """24 messages: 0 to 3 die immediately, 4 to 7 fail twice, 8 to 11 are sent with a delay, the others just work."""
    del spark  # the one that the commands will find
    unique = uuid.uuid4().hex[:10]
    namespace, topic, group = f"ns{unique}", f"orders-{unique}", f"pay-{unique}"
    names = TopicNames(namespace)
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(GUARD_S)
    worker = patient_worker(broker.bootstrap, namespace, LEVELS, allow=(topic,), client={"session.timeout.ms": 45_000})
    thread = threading.Thread(target=worker.run)
    thread.start()
    consumer = PushConsumer(
        broker.bootstrap, group=group, namespace=namespace, delay_levels=LEVELS,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )  # fmt: skip
    done = threading.Event()
    seen: set[tuple[int, int]] = set()

    def handle(message: object, context: object) -> None:
        del context
        number, times = int(message.body), message.reconsume_times  # type: ignore[attr-defined]
        seen.add((number, times))
        if len(seen) == 24 + 2 * 4:
            done.set()
        if number < 4:
            raise DeadLetter(f"customer {number} is gone")
        if number < 8 and times < 2:
            raise TimeoutError(f"no answer after {number}00 ms")

    consumer.register_message_listener(topic, handle)
    consumer.start()
    ids = {}
    with Producer(broker.bootstrap, namespace=namespace, delay_levels=LEVELS) as producer:
        for number in range(24):
            message = Message(
                topic, str(number).encode(), key=f"k{number % 4}", delay="1s" if 8 <= number < 12 else None
            )
            ids[number] = producer.send(message, timeout_s=GUARD_S).msg_id
    assert done.wait(GUARD_S)
    consumer.stop()
    worker.stop()
    thread.join()
    lake = (tmp_path_factory.mktemp("day") / "lake").as_uri()
    made = Day(broker.bootstrap, namespace, topic, group, lake, ids)
    assert made.ask("land", topic, "--bootstrap", broker.bootstrap) == 0
    yield made
    assert list(made.folder.parent.iterdir()) == [made.folder], "no command has written beside the lake"
    ours = [name for name in admin.list_topics(timeout=GUARD_S).topics if unique in name]
    for future in admin.delete_topics(ours).values():
        future.result(GUARD_S)


Printed = Callable[[], str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return lambda: capsys.readouterr().out


def test_failures_names_both_causes_and_is_a_finding(day: Day, printed: Printed) -> None:
    assert day.ask("failures", "--group", day.group) == 2
    out = printed()
    assert out.startswith("failures: 12 failures of 2 causes: 4 ended dead")
    assert "customer # is gone" in out
    assert "no answer after # ms" in out
    page = (day.folder / "reports" / "failures.html").read_text()
    assert "customer # is gone" in page
    assert "<svg" in page
    assert "<script" not in page


def test_a_relative_out_begins_in_the_working_directory(day: Day, tmp_path: Path) -> None:
    with chdir(tmp_path):
        assert main(["keys", "--lake", day.lake, "--namespace", day.namespace, "--out", "out"]) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["keys", "keys.html"]


def test_the_commands_of_the_page_run_as_they_stand(
    day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """From an empty folder, in their order, but for those that download or go on until Ctrl-C."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCKETSHIM_NAMESPACE", day.namespace)
    page = Path(__file__).parents[1] / "docs" / "spark.md"
    found = [each for each in commands(page.read_text(encoding="utf-8")) if each.startswith("spark ")]
    here = {"orders": day.topic, "localhost:9092": day.bootstrap}
    ran = dict[str, list[str]]()
    for command in dict.fromkeys(found):
        words = [here.get(word, word) for word in command.split()[1:]]
        if words[0] != "fetch" and "--follow" not in words and "…" not in command:
            code, out = main(words), printed()
            assert code in {0, 2}, (command, out)
            ran.setdefault(words[0], out.splitlines())
    assert {"report", "land", "audit", "repair"} <= set(ran)
    assert re.match("landed [1-9][0-9]* new records", ran["report"][0])
    assert ran["report"][1] == "report: findings in failures"


def test_one_command_lands_and_answers_every_question_on_one_page(day: Day, tmp_path: Path, printed: Printed) -> None:
    at = ("--land", day.topic, "--bootstrap", day.bootstrap)
    out = tmp_path / "out"
    assert day.ask("report", *at, "--out", str(out), "--console", "http://console:8080/", "--json") == 2
    answers = json.loads(printed())
    jobs = ("audit", "failures", "delays", "dlq-trend", "keys", "lineage")
    assert sorted(page.name for page in out.glob("*.html")) == sorted(["index.html", *(f"{job}.html" for job in jobs)])
    index = (out / "index.html").read_text()
    for job in jobs:
        assert f'<a href="{job}.html">' in index
        assert f'<a href="{job}.html" aria-current="page">' in (out / f"{job}.html").read_text()
    for chart in ("failures by hour and cause", "lateness by hour of the due time", "dead letters by day"):
        assert f"<h2>{chart}" in index
    assert "customer # is gone" in index
    assert f'<a href="http://console:8080/groups/{day.group}">' in (out / "failures.html").read_text()
    assert [(each["job"], each["fine"]) for each in answers["reports"]] == [(job, job != "failures") for job in jobs]
    assert day.ask("audit", "--out", str(out)) == 0  # a page that is written again keeps its navigation
    assert '<a href="index.html">overview</a>' in (out / "audit.html").read_text()


def test_the_sql_of_the_docs_runs_and_a_compacted_lake_is_landed_on(
    day: Day, spark: SparkSession, printed: Printed, tmp_path: Path
) -> None:
    for job in ("failures", "delays", "dlq-trend"):
        assert day.ask(job) in {0, 2}
    page = (Path(__file__).parents[1] / "docs" / "spark.md").read_text()
    blocks = re.findall("```sql\n(.*?)```", page, re.DOTALL)
    statements = [each for block in blocks for each in re.sub("--.*", "", block).split(";") if each.strip()]
    assert len(statements) == 6
    for statement in statements:
        here = statement.replace("/data/lake", str(local_folder(day.lake))).replace("/data/parquet", str(tmp_path))
        spark.sql(here).collect()
    exported = spark.read.parquet(str(tmp_path / "failures"))
    assert exported.exceptAll(spark.read.format("delta").load(f"{day.lake}/reports/failures")).isEmpty()
    assert exported.count() > 0
    found = spark.sql("SELECT * FROM causes ORDER BY failures").collect()
    assert [(row.failures, row.dead) for row in found] == [(4, 4), (8, 0)]
    assert spark.sql("SELECT * FROM lateness WHERE not_delivered > 0").isEmpty()
    printed()
    assert day.ask("land", day.topic, "--bootstrap", day.bootstrap) == 0
    assert printed().startswith("landed 0 new records")


def as_object(day: Day, printed: Printed, *words: str, code: int = 0) -> dict[str, Any]:
    """What a command answers with --json: one object, by the same names for all."""
    assert day.ask(*words, "--json") == code
    report: dict[str, Any] = json.loads(printed())
    assert set(report) - {"subject"} == {"job", "verdict", "fine", "tables", "notes"}
    assert report["fine"] is (code == 0)
    assert all(isinstance(row, dict) for table in report["tables"] for row in table["rows"])
    return report


def test_nothing_is_lost_and_every_message_is_in_one_state(day: Day, spark: SparkSession, printed: Printed) -> None:
    verdict = as_object(day, printed, "audit")["verdict"]
    assert verdict.startswith("residual 0; 0 parked; 0 malformed; at most 0 deleted")
    (row,) = spark.read.format("delta").load(f"{day.lake}/reports/audit").collect()
    assert (row.topic, row.grp, row.sent, row.residual) == (day.topic, day.group, 24, 0)
    assert (row.acknowledged, row.dead, row.pending, row.retrying) == (20, 4, 0, 0)


def test_the_lifecycle_of_a_message_lists_every_attempt(day: Day, printed: Printed) -> None:
    assert day.ask("lineage", "--id", day.ids[5]) == 0
    lines = printed().splitlines()
    assert lines[0].startswith(f"{day.ids[5]} in group {day.group}: acknowledged (inferred)")
    assert [line.split()[2] for line in lines[1:]] == ["source", "schedule", "retry", "schedule", "retry"]
    assert day.ask("lineage", "--id", "nobody") == 2
    printed()
    assert as_object(day, printed, "lineage")["verdict"].startswith("24 lifecycles: 0 lost")


def test_delays_were_kept_and_none_came_early(day: Day, printed: Printed) -> None:
    verdict = as_object(day, printed, "delays")["verdict"]
    assert verdict.startswith("12 delivered: 0 early, 0 never delivered, 0 stuck, 0 parked, 0 overtaken")


def test_failures_and_keys_are_json_objects_too(day: Day, printed: Printed) -> None:
    of_a_day = ("failures", "--since", "1d", "--until", "2100-01-01")
    assert as_object(day, printed, *of_a_day, code=2)["verdict"].startswith("12 failures of 2 causes: 4 ended dead")
    assert as_object(day, printed, "keys")["verdict"].startswith("4 keys: ")


def test_a_lifecycle_a_landing_a_plan_and_a_run_are_one_json_object(day: Day, printed: Printed) -> None:
    at = ("--bootstrap", day.bootstrap)
    assert day.ask("lineage", "--id", day.ids[5], "--json") == 0
    lifecycle = json.loads(printed())
    assert (lifecycle["msg_id"], lifecycle["state"], len(lifecycle["history"])) == (day.ids[5], "acknowledged", 5)
    planned = as_object(day, printed, "replay", "plan", "--plan", "dry")
    assert (planned["subject"], planned["verdict"]) == ("dry", "4 dead letters: 4 to send, 0 skipped")
    assert day.ask("replay", "run", *at, "--plan", "dry", "--dry-run", "--json") == 0
    run = json.loads(printed())
    assert (run["plan"], run["planned"], run["sent"], run["left"], run["dry_run"]) == ("dry", 4, 0, 4, True)
    assert day.ask("land", day.topic, *at, "--json") == 0
    assert set(json.loads(printed())) == {"lake", "topics", "version", "rows", "gaps", "open_transactions"}


def test_the_brokers_say_when_they_delete_letters(day: Day, admin: AdminClient, printed: Printed) -> None:
    hour = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, day.letters, incremental_configs=[hour])
    (changed,) = admin.incremental_alter_configs([resource]).values()
    changed.result(GUARD_S)
    cluster = Cluster(day.bootstrap)
    waiting.wait_until(
        lambda: cluster.retention_ms([day.letters, "not-there"]) == {day.letters: 3_600_000}, within_s=GUARD_S
    )
    verdict = as_object(day, printed, "dlq-trend", "--bootstrap", day.bootstrap, code=2)["verdict"]
    assert verdict.startswith("4 dead letters are left; 1 group loses some within 24 hours")


def test_a_folder_that_nothing_was_landed_in_and_a_version_that_is_not_there_are_errors(
    day: Day, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--lake", f"{day.lake}-not"]) == 1
    assert main(["audit", "--lake", f"{day.lake}-not", "--version", "0"]) == 1
    assert capsys.readouterr().err.count("run `rocketshim spark land") == 2
    assert day.ask("audit", "--version", "99") == 1
    assert "has no version 99: its newest is " in capsys.readouterr().err


def test_what_was_mistyped_is_an_error_and_not_fine(
    day: Day, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def said(*words: str) -> str:
        assert main([*words, "--lake", day.lake]) == 1
        return capsys.readouterr().err

    for job in ("audit", "failures"):  # in the wrong namespace nothing ever failed
        assert f"but {day.namespace}." in said(job)
    here = ("--namespace", day.namespace)
    for words in (
        ("failures", "--group", "typo"),
        ("keys", "--orderly", "typo"),
        ("replay", "plan", "--plan", "p", "--group", "typo"),
    ):
        message = said(*words, *here)
        assert "holds no position and no failure of group typo" in message
        assert f"groups with positions: {day.group}\n" in message
    file = tmp_path / "file"
    file.touch()
    assert main(["land", day.topic, "--lake", str(file), "--bootstrap", day.bootstrap, *here]) == 1
    err = capsys.readouterr().err
    assert "error: Spark failed: " in err
    assert str(file) in err
    assert "Traceback" not in err
    assert "no failure can match" in said("failures", "--since", "2026-01-02", "--until", "2026-01-01T23:00", *here)


def test_positions_of_one_group_are_noted_with_the_workers(
    day: Day, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, at = str(tmp_path), ("--bootstrap", day.bootstrap, "--namespace", day.namespace)
    assert main(["land", day.topic, "--group", day.group, "--lake", lake, *at]) == 0
    assert "check --namespace" not in capsys.readouterr().err
    view = open_lake(spark, lake, namespace=day.namespace)
    assert set(view.snapshot.committed) == {day.group, TopicNames(day.namespace).worker_group}
    assert view.caveats == ()
    assert day.topic in view.landed
    mistyped = f"{day.namespace}x"
    assert main(["land", day.topic, "--lake", f"{lake}/x", "--bootstrap", day.bootstrap, "--namespace", mistyped]) == 0
    assert f"found no shim topic in namespace {mistyped!r}" in capsys.readouterr().err


def test_replay_and_dlq_apply_send_each_letter_once_between_them(
    day: Day, spark: SparkSession, admin: AdminClient, printed: Printed, tmp_path: Path
) -> None:
    at = ("--bootstrap", day.bootstrap)
    assert day.ask("replay", "plan", "--plan", "monday", "--where", "FAIL_CLASS = 'DeadLetter'") == 0
    assert printed().startswith("replay-plan monday: 4 dead letters: 4 to send, 0 skipped")

    # One is redriven and one discarded beside it, which the lake does not know.
    dlq = ("--group", day.group, "--namespace", day.namespace, *at)
    everything = str(tmp_path / "everything.json")
    assert rocketshim(["dlq", "plan", *dlq, "--out", everything]) == 0
    assert "send 4 of 4 dead letters" in printed()
    for number, verb in ((0, "plan"), (1, "discard")):
        file = str(tmp_path / f"{verb}.json")
        assert rocketshim(["dlq", verb, *dlq, "--where", f"UNIQ_KEY = '{day.ids[number]}'", "--out", file]) == 0
        assert rocketshim(["dlq", "apply", file, *at]) == 0
    printed()

    # Killed behind its first letter, and run again.
    with pytest.raises(Interrupted):
        interrupted_run(day, spark, point="produced", nth=2)
    assert day.ask("replay", "run", *at, "--plan", "monday", "--dry-run") == 0
    assert printed() == "would send 1 dead letter; already sent or discarded: 3\n"
    assert day.ask("replay", "run", *at, "--plan", "monday") == 0
    assert printed() == "sent 1 dead letter; already sent or discarded: 3\n"
    waiting.await_ends_of_transactions(admin)
    assert day.ask("replay", "verify", *at, "--plan", "monday") == 0
    assert printed().startswith("replay-verify monday: 4 planned: 2 there, 0 missing, 0 twice, 0 altered, 2 by others")

    # The other way round, there is nothing left to do either.
    assert rocketshim(["dlq", "apply", everything, *at]) == 0
    assert "sent: 0, before this run: 4" in printed()
    assert day.ask("land", day.topic, *at) == 0
    assert day.ask("replay", "plan", "--plan", "tuesday") == 0
    out = printed()
    assert "replay-plan tuesday: 4 dead letters: 0 to send, 4 skipped" in out
    assert out.count("redriven-by:") + out.count("discarded-by:") == 3  # of three plans
    assert day.ask("dlq-trend") == 0
    assert printed().startswith("dlq-trend: 0 dead letters are left")

    lifecycles = open_lake(spark, day.lake, namespace=day.namespace).lifecycles().select("state", "copies").collect()
    assert Counter(lifecycle.state for lifecycle in lifecycles) == {
        "acknowledged": 20,
        "retrying": 3,
        "dead": 1,
    }  # 3 wait for a second run
    assert not any(lifecycle.copies for lifecycle in lifecycles)  # each was sent once
    assert day.ask("keys") == 0
    assert "keys: 4 keys: 0 poison" in printed()


class Interrupted(BaseException):
    pass


def interrupted_run(day: Day, spark: SparkSession, *, point: str, nth: int) -> None:
    """What `replay run --plan monday` does, one letter a transaction, until it is stopped in the midst of one."""
    lake = open_lake(spark, day.lake, namespace=day.namespace)
    planned = find_published(lake, "replay-monday")
    assert planned is not None
    passed = 0

    def stop(_topic: str, _progress: object, step: str) -> None:
        nonlocal passed
        passed += step == point
        if passed == nth:
            raise Interrupted

    landed = replay.landed_letters(planned, lake.records)
    cli_replay.record_target_ends(lake, "monday", cli_replay.target_bounds(planned, Cluster(day.bootstrap)))
    replay_send.send(day.bootstrap, planned, landed, namespace=day.namespace, max_per_second=1.0, report=stop)
