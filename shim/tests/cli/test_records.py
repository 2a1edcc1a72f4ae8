"""Listings: filters, untrusted text, limits and progress."""

import json
import re
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message as Record
from rich.console import Console

from rocketshim.admin.cause_counts import CauseCount
from rocketshim.admin.group_reset import ResetPlan
from rocketshim.admin.record_filter import RecordFilter, selecting
from rocketshim.admin.record_view import RecordView, time_text
from rocketshim.admin.timer_view import FoundTimer
from rocketshim.admin.trace import message_at, own_topics
from rocketshim.cli import group, main
from rocketshim.cli import records as letters
from rocketshim.cli.group import _lag_findings, _lag_rows
from rocketshim.cli.kinds import DEAD, DELAYED, PARKED, RETRY, TOPIC, Kind, Records
from rocketshim.cli.records import CELLS, counting, echo_safe, label_of, show_causes, show_one, show_rows
from rocketshim.cli.table import show_table
from rocketshim.cli.trace import _show
from rocketshim.cli.tx import _FoundTransaction
from rocketshim.core.named_timers import Command, Effect
from rocketshim.core.timer_history import TimerEvent, TimerHistory
from rocketshim.core.user_values import one_line, printable_lines
from rocketshim.errors import ConfigError, FilterSyntaxError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.delay_queues import DelayedReader
from rocketshim.observe.groups import GroupReader
from rocketshim.observe.snapshot import GroupStanding, PartitionStanding, WaitingRecord
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import Envelope, TopicNames

CREATED = [("TAGS", b"created"), ("price", b"11")]
CHEAP = [("TAGS", b"created"), ("price", b"9")]
PAID = [("TAGS", b"paid"), ("price", b"11")]


@pytest.mark.parametrize(
    ("where", "tags", "selected"),
    [
        (None, None, [CREATED, CHEAP, PAID, None]),
        (None, "created", [CREATED, CHEAP]),
        (None, "created || paid", [CREATED, CHEAP, PAID]),
        ("price > 10", None, [CREATED, PAID]),
        ("price > 10", "created", [CREATED]),
        ("TAGS IS NULL", None, [None]),
    ],
)
def test_both_filters_select_as_a_subscription_does(where: str | None, tags: str | None, selected: object) -> None:
    selects = selecting(where, tags)
    assert [headers for headers in (CREATED, CHEAP, PAID, None) if selects(headers)] == selected


@pytest.mark.parametrize("given", [("price >", None), (None, "||")])
def test_a_broken_expression_is_refused_before_anything_is_read(given: tuple[str | None, str | None]) -> None:
    with pytest.raises(FilterSyntaxError):
        selecting(*given)


def _entry(*names: str) -> Any:
    return SimpleNamespace(properties=tuple((name, b"x") for name in names))


def test_the_hint_lists_names_that_no_examined_record_has() -> None:
    choice = RecordFilter(where="cause = 'Timeout' AND price > 10")
    assert choice.misnamed() is None
    choice.wants(_entry("FAIL_CLASS"))
    assert "no record here has a header cause, price; the cause is FAIL_CLASS" in (choice.misnamed() or "")
    choice.wants(_entry("price", "cause"))
    assert choice.misnamed() is None


def test_without_a_condition_there_is_no_hint() -> None:
    choice = RecordFilter(tags="paid")
    choice.wants(_entry("TAGS"))
    assert choice.misnamed() is None


def test_a_key_that_is_not_utf_8_is_found_as_it_was_typed() -> None:
    choice = RecordFilter(key="\udcff")
    assert [choice.wants(replace(_letter(0), key=key)) for key in (b"\xff", b"\\udcff", None)] == [True, False, False]


@pytest.mark.parametrize("number", ["9" * 5_000, "٣", "+1", "1_0", "x"])
@pytest.mark.parametrize(
    "words",
    [
        ("parked plan 0/{}", "write PARTITION/OFFSET, as `rocketshim parked ls` shows it"),
        ("group release payments orders/{}", "write TOPIC/PARTITION, as `rocketshim group locks` shows it"),
        ("group reset payments --topic orders/{} --to 0", "is not a topic name"),
        ("topic ls orders/{}", "is not a topic name"),
        ("group reset payments --to={}", "a duration before now"),
    ],
)
def test_what_is_no_number_of_kafka_is_refused_before_a_broker_is_asked(
    words: tuple[str, str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, told = words
    assert main([*command.format(number).split(" "), "--bootstrap", "127.0.0.1:1"]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("every", ["0s", "200000d"])
def test_an_interval_that_no_clock_waits_for_is_refused(every: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["group", "lag", "g", "--follow", "--every", every, "--bootstrap", "127.0.0.1:1"]) == 1
    assert "--every" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["parked", "delayed", "topic", "retry", "dlq"])
def test_a_record_that_does_not_exist_is_told_from_a_topic_that_does_not(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = InMemoryKafka()
    for topic in (TopicNames().parked, TopicNames().schedule, "rmq.retry.g", "rmq.dlq.g", "orders"):
        kafka.create_topic(topic, 1)
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", lambda: kafka.clients(blocking=False))
    where = {"topic": ["orders"], "retry": ["--group", "g"], "dlq": ["--group", "g"]}.get(command, [])
    show = [command, "show", *where, "--bootstrap", "memory:1"]
    assert [main([*show, what]) for what in ("0/0", "7/0", "m1")] == [2, 2, 2]
    assert main([*(word.replace("orders", "order") for word in show), "0/0", "--namespace", "nobodys"]) == 1
    assert "no topic " in capsys.readouterr().err


def test_a_group_that_is_not_known_is_compared_with_groups_and_not_with_their_topics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = InMemoryKafka()
    for topic in ("rmq.dlq.payments", "rmq.dlq.shipping", "payment"):
        kafka.create_topic(topic, 1)
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", lambda: kafka.clients(blocking=False))
    assert main(["dlq", "stats", "--group", "paiments", "--bootstrap", "memory:1"]) == 1
    assert "; did you mean payments?" in capsys.readouterr().err
    assert main(["dlq", "stats", "--group", "nosuch", "--bootstrap", "memory:1"]) == 1
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["ls", "stats", "export"])
def test_a_share_groups_dead_letters_are_selected_by_the_headers_of_their_source(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = InMemoryKafka()
    for topic in ("orders", "share-dlq"):
        kafka.create_topic(topic, 1)
    for offset, colour in enumerate((b"red", b"blue")):
        kafka.append("orders", b"body", headers=[("colour", colour)])
        source = [("topic", b"orders"), ("partition", b"0"), ("offset", b"%d" % offset)]
        kafka.append("share-dlq", None, headers=[(f"__dlq.errors.{name}", value) for name, value in source])
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", lambda: kafka.clients(blocking=False))
    words = ["--topic", "share-dlq", "--where", "colour = 'red'", "--bootstrap", "memory:1"]
    assert main(["dlq", command, *words, *(["--json"] if command != "export" else [])]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 1 if command != "stats" else json.loads(shown)[0]["count"] == 1


def test_a_cause_is_planned_and_discarded_by_the_id_that_stats_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = InMemoryKafka()
    for topic in ("rmq.dlq.g", "rmq.retry.g"):
        kafka.create_topic(topic, 1)
    for number, text in enumerate(["order 1 was cancelled", "order 2 has no price", "order 3 was cancelled"]):
        cause = [("FAIL_CLASS", b"ValueError"), ("FAIL_TEXT", text.encode()), ("CONSUMER_GROUP", b"g")]
        kafka.append("rmq.dlq.g", b"x", headers=[("SHIM", b"1"), ("UNIQ_KEY", b"m%d" % number), *cause])
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", lambda: kafka.clients(blocking=False))
    of_group = ["--group", "g", "--bootstrap", "memory:1"]

    def run(command: str, *words: str) -> str:
        assert main(["dlq", command, *of_group, *words]) == 0
        return capsys.readouterr().out

    first = json.loads(run("stats", "--json"))[0]
    assert (first["text"], first["count"]) == ("order # was cancelled", 2)
    assert first["cause_id"] in run("stats")
    for command in ("plan", "discard"):
        made = json.loads(run(command, "--cause", first["cause_id"], "--json"))
        assert [letter[1] for letter in made["letters"]] == [0, 2]
        assert "2 ValueError: order # was cancelled\n" in run(command, "--cause", first["cause_id"])
    assert "m1" not in run("ls", "--cause", first["cause_id"])

    assert main(["dlq", "plan", *of_group, "--cause", "0" * 12]) == 0
    assert "no record here has the cause 000000000000" in capsys.readouterr().err
    assert main(["dlq", "plan", *of_group, "--cause", "ValueError"]) == 1
    assert "--cause 'ValueError': write the id of a cause" in capsys.readouterr().err


def test_the_oldest_unread_records_of_all_partitions_are_read_together() -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic("orders", 3)
    times = []
    for partition in (0, 0, 1, 2):
        kafka.append("orders", b"x", partition=partition)
        times.append(clock.wall_ms())
        clock.advance(1_000)
    ends, positions = (2, 1, 1), (1, 0, 1)
    partitions = [PartitionStanding("orders", n, positions[n], low=0, end=ends[n], member=None) for n in range(3)]
    with TopicReader("memory:1", clients=kafka.clients(blocking=False)) as reader:
        reader.bounds = None  # type: ignore[assignment,method-assign]  # that would be two requests for each partition
        standing = GroupReader(reader).timed(GroupStanding("g", "EMPTY", (), tuple(partitions)))
        rows = _lag_rows(reader, standing, exact=False)
    assert [row["oldest_ms"] for row in rows] == [times[1], times[2], None]


def test_what_retention_took_is_reported_for_each_partition() -> None:
    rows = [
        {"topic": "orders", "partition": number, "lost": lost, "behind": 4} for number, lost in enumerate((0, 7, 2))
    ]
    assert _lag_findings(rows, 10, counted="behind") == [
        "orders/1: retention deleted 7 offsets before the group read them; messages may be lost",
        "orders/2: retention deleted 2 offsets before the group read them; messages may be lost",
        "the lag is 12, above --max-lag 10",
    ]


@pytest.mark.parametrize("what", ["0/0", "rmq.dlq.g/0/0", "m0"])
def test_a_record_is_found_by_its_coordinates_or_id(what: str) -> None:
    found = _found(what)
    assert found is not None
    assert found.at == "rmq.dlq.g/0/0"


@pytest.mark.parametrize("what", ["0/1", "1/0", "2147483648/0", "0/9223372036854775808", f"0/{'9' * 5_000}", "0/٣", ""])
def test_a_record_that_does_not_exist_is_not_found(what: str) -> None:
    assert _found(what) is None


def _found(what: str) -> RecordView | None:
    kafka = InMemoryKafka()
    kafka.create_topic("rmq.dlq.g", 1)
    kafka.append("rmq.dlq.g", b"x", headers=[("SHIM", b"1"), ("UNIQ_KEY", b"m0")])
    with TopicReader("memory:1", clients=kafka.clients(blocking=False)) as reader:
        return Records(reader, "rmq.dlq.g", RecordView.of).find(what)


def test_coordinates_without_a_topic_are_refused_with_the_expected_form() -> None:
    with pytest.raises(ConfigError, match=r"'0/18' names no topic: .* such as rmq\.dlq\.GROUP/0/18"):
        message_at(None, TopicNames(), "0/18")  # type: ignore[arg-type]  # nothing is read


def test_untrusted_text_is_printed_literally(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["text"], [["see [/var/log] of [payments]"]])
    assert "see [/var/log] of [payments]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("grün", "grün"),
        ("\x1b[2J\x1b]0;mine\x07", "\\x1b[2J\\x1b]0;mine\\x07"),
        ("\udcff", "\\udcff"),
        ("\u202eabc", "\\u202eabc"),
        ("two\n\tlines\r", "two\\n\\tlines\\r"),
    ],
)
def test_untrusted_text_cannot_control_the_terminal(
    text: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one_line(text) == shown
    monkeypatch.setenv("COLUMNS", "100")
    show_table(["id", "of"], [[text, ":x:"]])
    echo_safe(text)
    printed = capsys.readouterr().out
    assert ":x:" in printed
    assert printed.endswith(f"{shown}\n")
    assert not set(printed) & {"\x1b", "\x07", "\u202e", "\udcff"}


FORGED = "no money\r\n0/1  1970-01-01  dead  0  forged\x7f\t\x1b[2J"


@pytest.mark.parametrize("follow", [True, False])
def test_a_failure_text_cannot_add_lines_to_a_listing(
    follow: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    letter = replace(_letter(7), envelope=Envelope(fail_class="Time\nout", fail_text=FORGED, uniq_key="u\n1"))
    _list([letter], limit=9, follow=follow)
    out = capsys.readouterr().out
    assert len(out.splitlines()) == (1 if follow else 2), "one line per letter, and the header of the table"
    assert r"no money\r\n0/1" in out
    assert not set(out) & set("\r\t\x7f\x1b")


def test_a_failure_text_survives_json(capsys: pytest.CaptureFixture[str]) -> None:
    letter = replace(_letter(7), envelope=Envelope(fail_class="Timeout", fail_text=FORGED))
    _list([letter], limit=9, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert FORGED in json.loads(line).values()


def test_further_lines_of_a_text_are_indented_in_a_single_dead_letter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    letter = replace(
        _letter(7), headers=(("na\nme", b"x"),),
        envelope=Envelope(fail_class="Timeout", fail_text=FORGED, user=(("na\nme", b"x"),)),
    )  # fmt: skip
    show_one(letter, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert r"header na\nme" in " ".join(lines)
    labels = {line.split(" ")[0] for line in lines}
    assert not labels & {"0/1"}, "a further line of a value is indented"
    assert any(line.startswith(" ") and "0/1  1970" in line for line in lines)


STACK = '  File "shop.py", line 7, in charge\nOSError\x1b[2J\r\n0/1  1970-01-01  dead\n'


def test_a_stack_trace_of_a_dead_letter_is_shown_in_lines_and_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    letter = replace(_letter(7), envelope=Envelope(fail_class="OSError", fail_stack=STACK))
    show_one(letter, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("stack trace "))
    assert [line.strip() for line in lines[start : start + 3]] == [
        'stack trace  File "shop.py", line 7, in charge'.replace("trace ", "trace   "),
        r"OSError\x1b[2J\r",
        "0/1  1970-01-01  dead",
    ]
    assert all(line.startswith(" ") for line in lines[start + 1 : start + 3])
    show_one(letter, as_json=True)
    assert json.loads(capsys.readouterr().out)["stack_trace"] == STACK


def test_a_trace_ends_with_the_stack_trace_of_the_last_failure(capsys: pytest.CaptureFixture[str]) -> None:
    first = replace(_letter(7), envelope=Envelope(fail_class="OSError", fail_stack="first\n"))
    last = replace(_letter(8), envelope=Envelope(fail_class="OSError", fail_stack=STACK))
    delivered = replace(_letter(9), envelope=Envelope())
    _show("id", [first, last, delivered], TopicNames())
    *_, title, frame, name, forged = capsys.readouterr().out.splitlines()
    assert title == "stack trace of the last failure, from t/0/8:"
    assert (frame, name, forged) == (
        '    File "shop.py", line 7, in charge',
        r"  OSError\x1b[2J\r",
        "  0/1  1970-01-01  dead",
    )


def test_an_error_with_untrusted_text_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dlq", "plan", "--group", "a\x1b[2Jb", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "\x1b" not in capsys.readouterr().err
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


def test_the_name_of_a_member_cannot_add_lines_to_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    group._show(ResetPlan("g", (FORGED,), (), f"group g has 1 running member ({FORGED})"), is_applied=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(r"cannot be applied now: group g has 1 running member (no money\r\n0/1")


@pytest.mark.parametrize("at_ms", [2**63 - 1, -(2**63)])
def test_a_time_outside_the_calendar_is_shown_as_a_number(at_ms: int) -> None:
    assert time_text(at_ms) == f"{at_ms} ms after 1970"


def _list(entries: list[RecordView], **how: Any) -> None:
    rows = ((entry.as_json(), [CELLS[name](entry) for name in DEAD.columns]) for entry in entries)
    show_rows(DEAD.columns, rows, **{"as_json": False, **how})


def _letter(offset: int) -> RecordView:
    return RecordView("t", 0, offset, 1, None, b"", (), Envelope(fail_class="Timeout"), None)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_limited_listing_reports_that_there_is_more(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    for count, hint in ((2, ""), (3, "the first 2; --limit shows more\n")):
        _list([_letter(offset) for offset in range(count)], limit=2, as_json=as_json)
        out, err = capsys.readouterr()
        assert (err, [f"t/0/{offset}" in out for offset in range(3)]) == (hint, [True, True, False])


def test_a_binary_file_is_not_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(b"\xff\xfe\x00plan")
    assert main(["dlq", "apply", str(file), "--bootstrap", "127.0.0.1:1"]) == 1
    assert f"error: {file}: cannot read the plan" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setattr(letters, "_COUNT_EVERY", 10)
    out = Console(file=StringIO(), force_terminal=is_terminal, width=80)
    assert list(counting(range(25), out)) == list(range(25))
    printed = out.file.getvalue()  # type: ignore[attr-defined]
    assert ("read 20 records" in printed) is is_terminal


def test_a_field_has_one_name_in_json_in_lists_and_in_each_show(capsys: pytest.CaptureFixture[str]) -> None:
    types = {name: str(of) for name, of in Envelope.__annotations__.items() if name != "user"}
    values: dict[str, Any] = {
        name: number if "int" in of else f"x{number}" for number, (name, of) in enumerate(types.items(), 2)
    }
    envelope = Envelope(**values)
    full = replace(
        _letter(7),
        envelope=envelope,
        key=b"k",
        value=b"vvv" * 99,
        state="dead",
        plan="p",
        dialect="d",
        due_ms=77_000,
        malformed="m",
    )
    show_one(full, as_json=True)
    fields = json.loads(capsys.readouterr().out)
    assert None not in fields.values()
    values_shown = [json.dumps(value) for value in fields.values()]
    assert len(set(values_shown)) == len(values_shown), "no field has the value of another one"
    printed = _printed(full, capsys)
    in_another_way = ("topic", "partition", "offset", "headers", "size_bytes")
    assert list(printed) == [label_of(name) for name in fields if name not in in_another_way]

    composed = {"partition/offset", "bytes", "trouble"}
    alone = replace(full, malformed=None, envelope=replace(envelope, park_reason=None))  # `cause` has these if it is so
    shown = {"park reason": printed["park reason"], **_printed(alone, capsys)}
    for heading in CELLS.keys() - composed:
        cell = CELLS[heading](full if heading == "park reason" else alone)
        assert cell, heading
        assert shown[heading.removesuffix(" (UTC)")].startswith(cell), heading


def _printed(entry: RecordView, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    show_one(entry, as_json=False)
    lines = [line.partition("  ") for line in capsys.readouterr().out.splitlines()]
    return {label: value.strip() for label, _, value in lines}


def test_a_cause_has_one_name_for_each_field_in_json_and_in_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    count = CauseCount("Timeout", "no answer", 3, {"m1", "m2"}, 86_400_000, 172_800_000, "t/0/8")
    show_causes([count], "t", "dead letter", as_json=True)
    (fields,) = json.loads(capsys.readouterr().out)
    show_causes([count], "t", "dead letter", as_json=False)
    _, head, row = (re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines())
    cells = {heading.removesuffix(" (UTC)"): cell for heading, cell in zip(head, row, strict=True)}
    assert cells.keys() == {label_of(name) for name in fields}
    assert cells == {
        label_of(name): time_text(value)[:-4] if name.endswith("_ms") else str(value).removeprefix("t/")
        for name, value in fields.items()
    }


def test_what_became_of_a_name_has_the_names_of_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(_letter(7), as_json=True)
    fields = json.loads(capsys.readouterr().out)
    event = TimerEvent(0, 1, Command.SET, Effect.SCHEDULE, None, 0, due_ms=1, msg_id="m1", asks="shop")
    history = TimerHistory((event,), is_certain=True)
    timer, transaction = (kind("orders", "o-7", history).facts() for kind in (FoundTimer, _FoundTransaction))
    for shared, found in (({"target", "timer", "due_ms", "partition"}, timer), ({"target", "id"}, transaction)):
        assert shared <= fields.keys() & found.keys()
        assert not {"topic", "name"} & found.keys(), "the topic of the record in the log is another one"
        assert {"offset", "stored_ms", "due_ms", "id"} == fields.keys() & found["history"][0].keys()
    assert timer.keys() - transaction.keys() == {"timer", "due_ms"}
    assert transaction.keys() - timer.keys() == {"id", "producer_group", "asked", "next_check_ms"}


def test_missing_parts_of_a_record_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(replace(_letter(7), envelope=Envelope(), value=None, headers=()), as_json=False)
    labels = [line.split(maxsplit=1)[0] for line in capsys.readouterr().out.splitlines()]
    assert labels == ["id", "at", "stored", "failures", "body"]


def test_a_malformed_record_is_shown_with_its_headers_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    headers: list[tuple[str, bytes | None]] = [("REAL_TOPIC", b"orders"), ("DELAY_MS", b"soon"), ("PARK_FROM", None)]
    broken = Record(topic="rmq.parked", partition=0, offset=7, value=b"x", headers=headers, timestamp=(2, 1_000))
    show_one(RecordView.of(broken), as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["header", "DELAY_MS", "soon"] in lines
    assert ["target", "orders"] in lines
    assert ["malformed", "bad-number:DELAY_MS"] in lines


@pytest.mark.parametrize("kind", [DEAD, RETRY, DELAYED, PARKED, TOPIC], ids=lambda kind: kind.command)
def test_each_kind_lists_and_shows_its_records(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, kafka = TopicNames(), InMemoryKafka()
    topics = {"dlq": "rmq.dlq.g", "retry": "rmq.retry.g", "delayed": names.schedule, "parked": names.parked}
    topic = topics.get(kind.command, "orders")
    kafka.create_topic(topic, 18)
    headers: list[tuple[str, bytes | None]] = [("SHIM", b"1"), ("UNIQ_KEY", b"m1"), ("REAL_TOPIC", b"other")]
    kafka.append(topic, b"body 1", headers=headers if topic != "orders" else headers[:2])
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", lambda: kafka.clients(blocking=False))
    where = {"topic": ["orders"], "retry": ["--group", "g"], "dlq": ["--group", "g"]}.get(kind.command, [])
    there = [*where, "--bootstrap", "memory:1"]
    assert main([kind.command, "ls", *there, "--json"]) == 0
    (listed,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (listed["topic"], listed["id"], "body" in listed) == (topic, "m1", kind is TOPIC)
    assert (listed["due_ms"] is not None) == (kind is DELAYED)
    for what in ("0/0", f"{topic}/0/0", "m1"):
        assert main([kind.command, "show", *there, what, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown == {**listed, "body": "body 1"}
    assert main([kind.command, "ls", *there]) == 0
    assert capsys.readouterr().out.splitlines()[0].split("  ")[0] == "partition/offset"
    if kind.has_causes:
        assert main([kind.command, "stats", *there]) == 0
        assert capsys.readouterr().out.startswith(f"1 {kind.noun} in {topic}\n")


def test_a_search_for_a_message_does_not_read_the_logs() -> None:
    kafka = InMemoryKafka(VirtualClock())
    with_messages = ["SCHEDULE_TOPIC_XXXX", "rmq.parked", "rmq.retry.g", "rmq.dlq.g"]
    for topic in [*with_messages, "rmq.group.g", "rmq.redrive", "pay.rmq.dlq.g", "rmq.dlq.of.others", "orders"]:
        kafka.create_topic(topic, 1)
    with TopicReader("memory:1", clients=kafka.clients()) as reader:
        assert sorted(own_topics(reader, TopicNames())) == sorted(with_messages)
        assert own_topics(reader, TopicNames("pay")) == ["pay.rmq.dlq.g"]


@pytest.mark.parametrize(
    ("target", "topic", "is_chosen"),
    [
        ("%RETRY%g", "%RETRY%g", True),
        ("%RETRY%g", "pay.rmq.retry.g", True),
        ("%RETRY%g", "rmq.retry.g", False),
        ("orders", "orders", True),
        ("no topic\n", "orders", False),
        (None, "orders", False),
        (None, None, True),
    ],
)
def test_a_parked_record_is_chosen_by_the_logical_or_physical_name_of_its_target(
    target: str | None, topic: str | None, is_chosen: bool
) -> None:
    choice = RecordFilter().going_to(topic, TopicNames("pay"))
    assert choice.wants(replace(_letter(0), envelope=Envelope(real_topic=target))) == is_chosen


def test_what_becomes_due_while_all_waiting_records_are_read_is_not_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind a quota that takes minutes."""
    now_ms = 1_700_000_000_000
    head = WaitingRecord("0/0", appended_ms=now_ms, target="orders")  # it leaves after 1 s

    def counted(*_: object) -> dict[int, tuple[int, WaitingRecord]]:
        nonlocal now_ms
        now_ms += 300_000
        return {0: (1, head)}

    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    monkeypatch.setattr(DelayedReader, "counted", counted)
    monkeypatch.setattr(DelayedReader, "timer_log", lambda *_: [])
    assert main(["delayed", "stats", "--bootstrap", "127.0.0.1:1"]) == 0, capsys.readouterr().err
    assert main(["delayed", "stats", "--bootstrap", "127.0.0.1:1"]) == 2
    shown = capsys.readouterr().err
    now_ms -= 86_400_000
    assert main(["delayed", "stats", "--bootstrap", "127.0.0.1:1"]) == 2
    assert "this machine's clock is 85500 s or more behind" in capsys.readouterr().err
    assert "299 s ago: is a worker running, and the clock of this machine right?" in shown


def test_stats_of_what_waits_count_commands_of_timers_that_no_worker_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = InMemoryKafka(VirtualClock())  # its records are old for this machine's clock
    for topic, count in ((TopicNames().schedule, 32), (TopicNames().timers, 8)):
        kafka.create_topic(topic, count)
    kafka.append(TopicNames().timers, b"x", partition=3, headers=[("REAL_TOPIC", b"orders")])
    monkeypatch.setattr("rocketshim.kafka.topic_reader.confluent_clients", lambda: kafka.clients(blocking=False))
    assert main(["delayed", "stats", "--bootstrap", "memory:1", "--json"]) == 2
    out, err = capsys.readouterr()
    [row] = json.loads(out)
    assert (row["partition"], row["topic"], row["waiting"]) == (3, "rmq.timers", 1)
    assert "the oldest should have left" in err
    assert main(["delayed", "stats", "--bootstrap", "memory:1"]) == 2
    assert "timer log" in capsys.readouterr().out
