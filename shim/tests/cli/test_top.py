"""`rocketshim top`: its tables, its keys by Textual's pilot, and what it prints to a pipe."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import Static, TabbedContent

from rocketshim.cli.top import _print
from rocketshim.cli.top_screen import TopScreen, formatted
from rocketshim.observe.finding import Installation
from rocketshim.observe.snapshot import (
    DelayQueue,
    GroupStanding,
    PartitionStanding,
    Snapshot,
    TopicSnapshot,
    WorkerSnapshot,
)
from rocketshim.observe.tables import summary, tables
from rocketshim_topics import DelayLevels, Layout, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

HERE = Installation("b:9092", Layout(TopicNames(), DelayLevels.default()))
HOSTILE = "rmq.dlq.\x1b[31m[bold]x"


def snapshot() -> Snapshot:
    head = PartitionStanding("SCHEDULE_TOPIC_XXXX", 0, position=2, low=0, end=7, first_unread_ms=90_000)
    return Snapshot(
        at_ms=100_000,
        queues=(DelayQueue(0, 1_000, head), DelayQueue(1, 1_000, replace(head, partition=1, end=3))),
        groups=(
            GroupStanding("mails", partitions=(PartitionStanding("orders", 0, 5, 0, 6, first_unread_ms=99_000),)),
            GroupStanding("payments", partitions=(PartitionStanding("orders", 0, 1, 0, 6, first_unread_ms=40_000),)),
        ),
        dead=(TopicSnapshot(HOSTILE, "payments", 3, 8),),
        parked=TopicSnapshot("rmq.parked", None, 1, 1),
        workers=(
            WorkerSnapshot("http://a:1", "refused"),
            WorkerSnapshot("http://b:1", mode="exactly-once", is_ready=True, queues=32),
        ),
    )


class Watched:
    """A sampler's watch whose snapshots the test gives."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.current = snapshots[0] if snapshots else None

    def newest(self) -> Snapshot | None:
        return self.current


def piloted(watched: Watched, test: Callable[[Any, Any], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        screen = TopScreen(watched, HERE)  # type: ignore[arg-type]
        async with screen.run_test(size=(100, 30)) as pilot:
            await test(screen, pilot)

    asyncio.run(run())


def rows(screen: TopScreen, title: str) -> list[list[str]]:
    table: Any = screen.query_one(f"#{title}-table")
    return [[cell.plain for cell in table.get_row_at(number)] for number in range(table.row_count)]


def text(screen: TopScreen) -> str:
    return str(screen.query_one("#summary", Static).render())


def test_the_tables_have_delay_levels_groups_dead_letters_and_workers() -> None:
    waiting, groups, dead, workers = tables(snapshot())
    assert waiting.rows == ((1.0, 6, 9.0, 0),)
    assert groups.rows == (("mails", "orders", 1, 1.0, 0), ("payments", "orders", 5, 60.0, 0))
    assert dead.rows == (("payments", HOSTILE, 3, 8), ("parked", "rmq.parked", 1, 1))
    assert workers.rows == (
        ("http://a:1", "refused", "", 0, 0.0, 0, 0, 0),
        ("http://b:1", "ready", "exactly-once", 32, 0.0, 0, 0, 0),
    )
    assert summary(snapshot()) == "6 waiting, latest 9.0 s late   6 unread   3 dead   1 parked"


def test_partitions_that_do_not_answer_are_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    partial = replace(snapshot(), unknown=(TopicPartitionKey("orders", 3),))
    assert summary(partial).endswith("   MISSING: 1 partition whose leader does not answer")
    _print(HERE, partial, as_json=True)
    assert json.loads(capsys.readouterr().out)["unknown"] == ["orders/3"]


def test_each_key_chooses_its_table() -> None:
    async def test(screen: TopScreen, pilot: Any) -> None:
        assert screen.query_one(TabbedContent).active == "Waiting"
        assert rows(screen, "Waiting") == [["1.0", "6", "9.0", "0"]]
        for key, title in (("4", "Workers"), ("3", "Dead"), ("2", "Groups"), ("1", "Waiting")):
            await pilot.press(key)
            assert screen.query_one(TabbedContent).active == title

    piloted(Watched(snapshot()), test)


def test_s_sorts_by_each_column_and_then_as_given() -> None:
    async def test(screen: TopScreen, pilot: Any) -> None:
        await pilot.press("2")
        seen = [[row[0] for row in rows(screen, "Groups")]]
        for _ in range(6):
            await pilot.press("s")
            seen.append([row[0] for row in rows(screen, "Groups")])
        up, down = ["mails", "payments"], ["payments", "mails"]
        assert seen == [up, down, up, down, down, up, up]

    piloted(Watched(snapshot()), test)


def test_a_newer_snapshot_is_drawn_unless_the_screen_is_held() -> None:
    watched = Watched()

    async def test(screen: TopScreen, pilot: Any) -> None:
        assert "waiting for the cluster" in text(screen)
        watched.current = snapshot()
        screen.look()
        assert "6 waiting" in text(screen)
        await pilot.press("space")
        watched.current = replace(snapshot(), queues=())
        screen.look()
        assert text(screen).startswith("HELD   6 waiting")
        await pilot.press("space")
        assert text(screen).startswith("0 waiting")

    piloted(watched, test)


def test_a_failed_round_is_shown_and_q_quits() -> None:
    async def test(screen: TopScreen, pilot: Any) -> None:
        assert text(screen) == "OLD VALUES: no broker answered"
        await pilot.press("q")
        assert screen.return_value is None

    piloted(Watched(replace(snapshot(), error="no broker answered")), test)


def test_names_of_topics_control_neither_the_screen_nor_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    async def test(screen: TopScreen, pilot: Any) -> None:
        await pilot.press("3")
        assert rows(screen, "Dead")[0][1] == "rmq.dlq.\\x1b[31m[bold]x"

    piloted(Watched(snapshot()), test)
    _print(HERE, snapshot(), as_json=False)
    assert "\x1b" not in capsys.readouterr().out


def test_what_is_wrong_now_stands_above_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    async def test(screen: TopScreen, pilot: Any) -> None:
        await pilot.pause()
        shown = str(screen.query_one("#findings", Static).render())
        assert (
            shown.splitlines()[0]
            == "warning worker-not-ready  http://a:1: the worker does not answer or is not ready: refused"
        )

    piloted(Watched(snapshot()), test)
    _print(HERE, snapshot(), as_json=False)
    assert capsys.readouterr().out.startswith("warning worker-not-ready  http://a:1\n")


def test_json_has_the_same_tables(capsys: pytest.CaptureFixture[str]) -> None:
    _print(HERE, snapshot(), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["groups"][1] == {"group": "payments", "topic": "orders", "unread": 5, "oldest s": 60.0, "lost": 0}
    assert printed["at_ms"] == 100_000
    assert [each["check"] for each in printed["findings"]] == ["worker-not-ready", "group-behind"]


@pytest.mark.parametrize(("value", "text"), [(0.032, "0.032"), (0.0, "0.0"), (7_200.0, "7200.0"), (75.94, "75.9")])
def test_a_short_delay_is_no_round_zero(value: float, text: str) -> None:
    assert formatted(value) == text
