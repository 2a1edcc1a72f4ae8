"""`rocketshim timers apply`: recurring messages from a file, on the in-memory Kafka with a worker."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketshim import Producer
from rocketshim.cli import main
from rocketshim.harness import Harness
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import TopicNames

NAMES = TopicNames()
HERE = ["--bootstrap", "memory:1"]

FILE = """
[[message]]
topic = "reports"
timer = "daily"
cron = "0 9 * * 1-5"
tz = "Europe/Berlin"
body = "daily"
key = "k"
tag = "t"
keys = ["a", "b"]
properties = { kind = "full" }
max_reconsume_times = 3

[[message]]
topic = "reindex"
timer = "all"
every = "15m"
late = "skip"
body = "all"
"""


MONDAY_NOON_MS = 1_700_481_600_000  # 20 November 2023, 12:00 UTC: the daily message has been sent


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    with Harness(kafka=InMemoryKafka(VirtualClock(start_wall_ms=MONDAY_NOON_MS))) as made:
        for topic in ("reports", "reindex", "orders"):
            made.topic(topic)
        for module in ("kafka.topic_reader", "producer.producer"):
            monkeypatch.setattr(f"rocketshim.{module}.confluent_clients", made.kafka.clients)
        yield made


class Shell:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = folder / "cron.toml"
        self._capsys = capsys
        self.write(FILE)

    def write(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8")

    def apply(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = main(["timers", "apply", str(self.path), *words, *HERE])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def steps(self, *words: str) -> list[dict[str, Any]]:
        code, out, err = self.apply("--json", *words)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    def actions(self, *words: str) -> dict[str, str]:
        return {each["timer"]: each["action"] for each in self.steps(*words)}


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def stored(kafka: InMemoryKafka) -> int:
    return sum(kafka.end_offsets(NAMES.timers).values())


def test_a_dry_run_sends_nothing_and_the_second_apply_neither(harness: Harness, shell: Shell) -> None:
    assert shell.actions("--dry-run") == {"daily": "new", "all": "new"}
    assert stored(harness.kafka) == 0
    first = shell.steps()
    assert [(each["action"], each["recurs"]) for each in first] == [
        ("new", "0 9 * * 1-5 Europe/Berlin"), ("new", "every 15 min"),
    ]  # fmt: skip
    assert all(each["stored_at"].startswith("rmq.timers/") for each in first)
    sent = stored(harness.kafka)
    assert sent == 2
    assert shell.actions() == {"daily": "unchanged", "all": "unchanged"}, "no worker has read them yet"
    assert stored(harness.kafka) == sent
    harness.pass_time("1h")
    sent = stored(harness.kafka)
    steps = shell.steps()
    assert [each["action"] for each in steps] == ["unchanged", "unchanged"], "behind occurrences, too"
    assert stored(harness.kafka) == sent
    assert harness.clock.wall_ms() < steps[1]["next_ms"] <= harness.clock.wall_ms() + 900_000
    assert [record.value() for record in harness.kafka.records("reindex")] == [b"all"] * 4


def test_what_differs_is_named_and_sent_again(harness: Harness, shell: Shell) -> None:
    shell.apply()
    harness.pass_time("20m")
    changes = {
        "body": ('body = "all"', 'body = "ALL"'), "recurrence": ('every = "15m"', 'every = "30m"'),
        "late": ('late = "skip"\n', ""), "tag": ('tag = "t"', 'tag = "u"'), "tz": ("Europe/Berlin", "Asia/Tokyo"),
        "key": ('key = "k"', 'key = "l"'), "keys": ('"a", "b"', '"a"'), "properties": ("full", "short"),
        "max_reconsume_times": ("max_reconsume_times = 3", ""),
    }  # fmt: skip
    for name, (before, after) in changes.items():
        shell.write(FILE.replace(before, after))
        changed = [each for each in shell.steps("--dry-run") if each["action"] != "unchanged"]
        assert [(each["action"], each["differs"]) for each in changed] == [("changed", [name])]
    shell.write(FILE.replace('body = "all"', 'body = "ALL"'))
    code, out, _ = shell.apply()
    assert (code, "changed: body" in out, out.splitlines()[-1]) == (0, True, "1 sent")
    harness.pass_time("16m")
    assert harness.kafka.records("reindex")[-1].value() == b"ALL"
    assert set(shell.actions().values()) == {"unchanged"}


def test_what_the_file_does_not_have_stays_unless_it_is_to_be_removed(harness: Harness, shell: Shell) -> None:
    harness.send("reports", b"x", timer="old", every="1h")
    harness.send("reports", b"x", timer="once", delay="1h")
    harness.send("orders", b"x", timer="other topic", every="1h")
    harness.producer.send("reports", b"x", timer="not read yet", every="1h", timeout_s=60)
    assert shell.actions() == {
        "daily": "new", "all": "new", "not read yet": "not in the file", "old": "not in the file",
    }  # fmt: skip
    assert shell.actions("--remove-others", "--dry-run")["old"] == "remove"
    assert shell.actions()["old"] == "not in the file", "nothing was removed"
    steps = {each["timer"]: each for each in shell.steps("--remove-others")}
    assert [steps[name]["action"] for name in ("old", "not read yet")] == ["remove", "remove"]
    assert steps["old"]["next_ms"] is None
    assert shell.actions("--remove-others") == {"daily": "unchanged", "all": "unchanged"}
    harness.pass_time("61m")
    assert [record.value() for record in harness.kafka.records("reports")] == [b"x"], "the one that does not recur"
    assert len(harness.kafka.records("orders")) == 1
    shell.write('topics = ["orders"]\n' + FILE)
    assert shell.actions("--dry-run")["other topic"] == "not in the file"


def test_a_name_that_waits_for_another_message_is_replaced(harness: Harness, shell: Shell) -> None:
    harness.send("reports", b"x", timer="daily", delay="30m")
    assert shell.actions()["daily"] == "changed"
    harness.pass_time("31m")
    assert harness.kafka.records("reports") == []


def test_a_message_that_the_log_does_not_have_any_more_is_sent_again(harness: Harness, shell: Shell) -> None:
    shell.apply()
    harness.pass_time("1m")
    for number, end in harness.kafka.end_offsets(NAMES.timers).items():
        harness.kafka.truncate(NAMES.timers, number, before_offset=end)
    step = next(each for each in shell.steps() if each["timer"] == "daily")
    assert (step["action"], "the log does not have it" in step["differs"][0]) == ("changed", True)
    assert shell.actions()["daily"] == "unchanged"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ('body = "all"', 'body = "all"\nlatte = "once"',
         "2 in line 14 (reindex/all): latte is not an option; did you mean late?"),
        ('cron = "0 9 * * 1-5"', 'cron = "0 0 31 2 *"', "1 in line 2 (reports/daily): cron is '0 0 31 2 *'"),
        ('cron = "0 9 * * 1-5"', 'cron = "0 9 * *"', "give five fields, minute hour day month weekday"),
        ('cron = "0 9 * * 1-5"', 'cron = "0 99 * * 1-5"', "(reports/daily): cron is '0 99 * * 1-5'"),
        ("Europe/Berlin", "Europe/Berln", "tz is 'Europe/Berln': there is no such time zone"),
        ('every = "15m"', "", '(reindex/all): it does not recur: give cron = "0 9 * * 1-5" or every = "15m"'),
        ('every = "15m"', 'every = "15m"\ncron = "0 9 * * *"', "cron and every are given"),
        ('every = "15m"', 'every = "0.1s"', "every is 100 ms: it is 1 s or more"),
        ('every = "15m"', "every = 15", "(reindex/all): every: Input should be a valid string"),
        ('late = "skip"', 'late = "maybe"', "late is 'maybe': it is once or skip"),
        ('timer = "all"', "", "[[message]] 2 in line 14 (reindex): timer is missing"),
        ('timer = "all"', 'timer = ""', "timer is ''"),
        ('topic = "reindex"', 'topic = "no topic"', "is not a topic name"),
        ('topic = "reindex"', 'topic = "rmq.timers"', "(rmq.timers/all)"),
        ('topic = "reindex"\ntimer = "all"', 'topic = "reports"\ntimer = "daily"',
          "2 in line 14 (reports/daily): the name is declared twice"),
        ("[[message]]", "[[messages]]", "messages is not an option; did you mean message?"),
        (FILE, FILE.replace("[[message]]", "[[timer]]"), "timer is not an option"),
        (FILE, "", "has no [[message]]; to cancel what recurs: rocketshim timers cancel TOPIC NAME"),
        (FILE, 'topics = ["reports"]', "has no [[message]]"),
        (FILE, "message = 3", "message: Input should be a valid list"),
        (FILE, "message = [3]", "[[message]] 1 (without a name): "),
        (FILE, "[[message]", "(at line 1, column 10)"),
        ('topic = "reindex"', 'topic = "reindexx"', "reindexx --partitions N; did you mean reindex?"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_legal_as_a_whole_sends_nothing(
    harness: Harness, shell: Shell, before: str, after: str, text: str
) -> None:
    shell.write(FILE.replace(before, after, 1))
    code, out, err = shell.apply()
    assert (code, out, text in err) == (1, "", True), err
    assert stored(harness.kafka) == 0


def test_the_file_of_the_documentation_is_legal(harness: Harness, shell: Shell) -> None:
    page = (Path(__file__).parents[3] / "docs" / "timers.md").read_text(encoding="utf-8")
    [declared] = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    shell.write(declared)
    assert shell.actions() == {"daily": "new", "reindex-all": "new"}
    harness.pass_time("1d")
    assert len(harness.kafka.records("reindex")) == 24 * 4
    assert len(harness.kafka.records("reports")) < 2, "on working days (shim/tests/docs has the whole week)"


def test_all_errors_of_a_file_are_reported_together(harness: Harness, shell: Shell) -> None:
    shell.write(FILE.replace("Europe/Berlin", "x").replace('every = "15m"', 'every = "soon"'))
    err = " ".join(shell.apply()[2].split())
    assert "[[message]] 1" in err
    assert "[[message]] 2" in err
    assert "Nothing was sent" in err
    assert stored(harness.kafka) == 0


def test_a_file_that_cannot_be_read_is_an_error(harness: Harness, shell: Shell) -> None:
    shell.path.unlink()
    assert "cannot read" in shell.apply()[2]
    shell.path.write_bytes(b"\xff")
    assert "cannot read" in shell.apply()[2]
    assert stored(harness.kafka) == 0


def test_what_was_stored_before_an_error_is_named_and_the_rest_is_sent_the_next_time(
    harness: Harness, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Producer.send

    def fail(self: Producer, message: Any, **options: Any) -> Any:
        harness.kafka.deny(NAMES.timers) if message.timer == "all" else None
        return send(self, message, **options)

    monkeypatch.setattr(Producer, "send", fail)
    code, _, err = shell.apply()
    assert (code, "the message for 'reindex/all'" in err, "Stored before: reports/daily" in err) == (1, True, True), err


def test_a_name_whose_result_the_worker_has_not_stored_yet_is_known_from_the_log(
    harness: Harness, shell: Shell
) -> None:
    """An exactly-once worker may store it a moment after its position."""
    shell.steps()
    harness.pass_time("1s")
    for partition, end in harness.kafka.end_offsets(NAMES.timer_state).items():
        harness.kafka.truncate(NAMES.timer_state, partition, before_offset=end)
    assert shell.actions() == {"daily": "unchanged", "all": "unchanged"}
