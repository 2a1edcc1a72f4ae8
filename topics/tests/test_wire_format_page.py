"""The page of the public protocol says what the code does."""

import re
from pathlib import Path

from rocketshim_topics import DelayLevels, decode
from rocketshim_topics.group_log import (
    CAUSE_CHARS,
    TRACE_CHARS,
    ClaimedQueue,
    ClaimRecord,
    CommandRecord,
    LeaseEntry,
    LeaveRecord,
    MemberRecord,
    QueueCommand,
    ReleaseRecord,
    RenewRecord,
)
from rocketshim_topics.hops import COMMANDS, MAX_FAIL_CLASS_BYTES
from rocketshim_topics.message import MAX_PROPERTIES, MAX_PROPERTIES_BYTES
from rocketshim_topics.partitioner import TIMER_PARTITIONS
from rocketshim_topics.wire import HEADER_ORDER, MAX_SHIM_HEADERS_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")


def test_table_has_every_header_in_the_order_of_writing() -> None:
    table = PAGE.split("## Headers")[1].split("Largest numbers")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(re.findall(r"`([A-Z_]+)`", "".join(first_cells))) == HEADER_ORDER


def test_limits_and_default_table_are_the_code_s() -> None:
    assert f"at most {MAX_SHIM_HEADERS_BYTES // 1024} KiB of headers" in PAGE
    assert f"more than {MAX_PROPERTIES} properties" in PAGE
    assert f"more than {MAX_PROPERTIES_BYTES // 1024} KiB of properties" in PAGE
    assert f"at most {MAX_FAIL_CLASS_BYTES} bytes" in PAGE
    assert f"`{DelayLevels.DEFAULT}`" in PAGE


def test_timer_commands_and_partitions_are_the_code_s() -> None:
    table = PAGE.split("| `TIMER_DO` | other headers |", maxsplit=1)[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([A-Z-]+)` \|", table, flags=re.MULTILINE)) == COMMANDS
    assert f"`rmq.timers` (append time, {TIMER_PARTITIONS} partitions" in PAGE
    assert f"mod {TIMER_PARTITIONS}, however" in PAGE


def test_kinds_and_fields_of_the_group_log_are_the_code_s() -> None:
    section = PAGE.split("## The group log")[1].split("\n## ")[0]
    shown: dict[str, set[str]] = {}
    for line in section.splitlines():
        if line.startswith("| `") and "fields" not in line:
            kinds, fields = (re.findall("`([a-z_]+)`", cell) for cell in line.split("|")[1:3])
            shown |= {kind: set(fields) for kind in kinds}
    common = set(LeaveRecord.model_fields) - {"kind"}
    assert all(f"`{name}`" in section for name in common)
    models = (ClaimRecord, RenewRecord, ReleaseRecord, MemberRecord, LeaveRecord, CommandRecord)
    written = {model.model_fields["kind"].default: set(model.model_fields) - common - {"kind"} for model in models}
    written["claim"] |= set(ClaimedQueue.model_fields)
    for kind in ("renew", "release"):
        written[kind] |= set(LeaseEntry.model_fields)
    assert shown == written
    assert f"`cause`, {CAUSE_CHARS} characters at most" in section
    assert f"`trace`, {TRACE_CHARS:,} characters at most" in section
    assert " or ".join(f"`{each}`" for each in QueueCommand) in section


def test_example_is_well_formed_and_in_the_queue_of_the_rule() -> None:
    example = PAGE.split("```python")[1].split("```")[0]
    headers = [(name, text.encode()) for name, text in re.findall(r'\("([^"]+)", b"([^"]+)"\)', example)]
    envelope = decode(headers, trusted=True)
    assert (envelope.real_topic, envelope.delay_ms, envelope.tags) == ("orders", 45_000, "created")
    assert [name for name, _ in envelope.user] == ["traceparent"]
    partition = re.search(r"partition=([0-9]+)", example)
    assert partition is not None
    assert int(partition[1]) == DelayLevels.default().queue_for(45_000)


def test_story_of_the_example_takes_the_hops_that_the_rule_gives() -> None:
    levels = DelayLevels.default()
    story = PAGE.split("| after | record |")[1]
    rows = re.findall(r"^\| ([0-9]+) s \| `SCHEDULE_TOPIC_XXXX/([0-9]+)/", story, flags=re.MULTILINE)
    now_ms = 0
    for seconds, partition in rows:
        assert int(seconds) * 1_000 == now_ms
        assert levels.queue_for(45_000 - now_ms) == int(partition)
        now_ms += levels.queue_delay_ms(int(partition)) or 0
    assert now_ms == 45_000
