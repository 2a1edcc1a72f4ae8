"""The programs of the how-to pages run, on a Kafka in memory. What a page leaves to the reader stands in the test."""

import asyncio
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rocketshim import DelayLevels, Layout, Message, Producer, TopicNames
from rocketshim.harness import Harness

ROOT = Path(__file__).parents[3]
IN_MEMORY = ("retry_ladder", "order_timeout", "debounce", "nightly_report", "filters", "typed_bodies")


def programs(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def harness() -> Iterator[Harness]:
    with Harness() as harness:
        yield harness


def run(program: str, **names: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "documentation", **names}
    exec(compile(program, "documentation", "exec"), scope)  # noqa: S102 - our own pages
    return scope


def recipes() -> dict[str, str]:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return {
        name: program
        for name, section in sections
        for program in re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    }


def test_sending(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    first, ways, in_asyncio, typed, later, selector = programs("sending.md")
    harness.topic("orders", partitions=4)
    clients = 'Producer("localhost:9092", clients=CLIENTS, clock=CLOCK)'
    seam = {"CLIENTS": harness.kafka.clients(), "CLOCK": harness.clock}
    run(first.replace('Producer("localhost:9092")', clients), **seam)
    assert "orders/" in capsys.readouterr().out
    names = {"producer": harness.producer, "Message": Message}
    scope = run(ways, **names)
    assert [result.message_queue.topic for result in scope["results"]] == ["orders", "orders"]
    scope = run(in_asyncio.replace('9092")', '9092", clients=CLIENTS, clock=CLOCK)'), **seam)
    asyncio.run(scope["place_orders"]([b"async"]))
    harness.topic("audit")
    run(
        typed.replace("codec=PydanticCodec", "clients=CLIENTS, clock=CLOCK, codec=PydanticCodec"),
        Producer=Producer,
        **names,
        **seam,
    )
    bodies = {record.value() for topic in ("orders", "audit") for record in harness.kafka.records(topic)}
    assert bodies >= {b"async", b'{"id":7}', b'{"order":7}', b"raw"}
    run(later, **names)
    assert len(harness.waiting("orders")) == 3
    run(selector, **names)
    assert [record.partition() for record in harness.kafka.records("orders") if record.value() == b"6"] == [1]


def test_named_timers(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    cancel, ways, recall, recurring, outcome = programs("timers.md")
    topics = ("order-timeouts", "reminders", "reports", "reindex")
    for topic in topics:
        harness.topic(topic)

    def received() -> list[list[bytes | None]]:
        return [[record.value() for record in harness.kafka.records(topic)] for topic in topics]

    clients = 'Producer("localhost:9092", clients=CLIENTS, clock=CLOCK)'
    run(cancel.replace('Producer("localhost:9092")', clients), CLIENTS=harness.kafka.clients(), CLOCK=harness.clock)
    run(ways, producer=harness.producer)
    harness.pass_time("31m")
    assert received() == [[], [], [b"started by node 1"], [b"product 17"]]
    harness.send_now("reminders", timer="meeting-3")
    assert received()[1] == [b"Tuesday"]
    run(recall, producer=harness.producer)
    run(recurring, producer=harness.producer)
    harness.pass_time("7d")  # whatever day it is
    assert received()[1] == [b"Tuesday"]
    assert received()[2].count(b"daily") == 5
    assert received()[3].count(b"all") == 7 * 24 * 4
    harness.send("order-timeouts", b"o-7", delay="1m", timer="o-7")
    harness.pass_time("2m")
    run(outcome, producer=harness.producer)
    shown = capsys.readouterr().out
    assert shown.startswith("cancelled\ncancelled\n"), shown
    too_late = r"the cancel came too late: .* at \d{13}\npending and due at \d{13}\n"
    assert re.fullmatch(too_late, shown.removeprefix("cancelled\ncancelled\n")), shown


def test_transactions(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block, shape = programs("transactions.md")
    harness.topic("orders")
    harness.kafka.create_topics([Layout(TopicNames(), DelayLevels.default()).check("shop")])

    def here(program: str) -> Any:
        given = "clients=CLIENTS, clock=CLOCK, group="
        return run(program.replace("group=", given), CLIENTS=harness.kafka.clients(), CLOCK=harness.clock)

    here(block)
    here(shape)
    harness.pass_time("1s")
    assert sorted(record.value() for record in harness.kafka.records("orders")) == [b"o-7 is paid", b"o-8 is paid"]


def test_the_functions_of_the_order_time_out_are_those_of_the_example() -> None:
    example = (ROOT / "examples" / "order_timeout.py").read_text(encoding="utf-8")
    assert [program in example for program in programs("order-timeout.md")] == [True] * 3


def test_idempotent_listeners() -> None:
    state, ledger, fencing = programs("idempotent.md")
    scope = run(f"{state}\n{ledger}\n{fencing}")
    database = scope["database"]
    for _ in range(2):
        scope["mark_paid"]("o-7")
        scope["book"](SimpleNamespace(msg_id="1", key=b"o-7", body=b"20"))
    assert database.execute("SELECT * FROM orders").fetchall() == [("o-7", "paid")]
    assert database.execute("SELECT * FROM ledger").fetchall() == [("o-7", 20)]
    step = SimpleNamespace(key=b"o-7", body=b"shipped")
    for token in (5, 5, 6):
        scope["ship"](step, SimpleNamespace(fencing_token=token))
    with pytest.raises(RuntimeError, match="a later owner"):
        scope["ship"](step, SimpleNamespace(fencing_token=5))


def test_fastapi(harness: Harness) -> None:
    scope = run(recipes()["FastAPI"])
    harness.topic("orders")
    harness.connect(scope["producer"])
    with TestClient(scope["app"]) as client:
        assert client.post("/orders", content=b"o-7").json()["id"]
    assert [record.value() for record in harness.kafka.records("orders")] == [b"o-7"]


def test_a_function_of_lambda_sends_once_for_each_name(harness: Harness) -> None:
    scope = run(recipes()["AWS Lambda and other functions"])
    harness.topic("orders")
    harness.connect(scope["producer"])
    for body in ("first", "second"):
        assert scope["handler"]({"id": "o-7", "body": body}, None)["id"]
    harness.pass_time("1h")
    assert [record.value() for record in harness.kafka.records("orders")] == [b"second"]


def test_the_shop_to_copy_has_charges_retries_and_dead_letters(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "localhost:9092")
    shop = runpy.run_path(str(ROOT / "examples" / "shop.py"))
    harness.topic("orders")
    harness.run(shop["consumer"])
    producer = Producer("localhost:9092")
    harness.connect(producer)
    for number in range(1, 21):
        shop["place"](producer, number)
    harness.pass_time("1m")
    assert sorted(message.key for message in harness.dead("payments")) == [b"o-14", b"o-7"]
    charged = [record.args for record in caplog.records if record.name == "shop"]
    assert len(charged) == 18
    assert (200, 20) in charged, "a retry has succeeded"


def test_the_functions_of_the_django_recipe_are_those_of_the_example() -> None:
    section = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").partition("## Django\n")[2]
    programs = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)
    for program, module in zip(programs, ("listeners", "views"), strict=True):
        source = ROOT / "examples" / "django_shop" / "orders" / f"{module}.py"
        assert program in source.read_text(encoding="utf-8")


def test_error_reports(harness: Harness) -> None:
    reported: list[BaseException] = []
    scope = run(recipes()["Sentry and other error reports"], capture_exception=reported.append)
    scope["consumer"].listener("orders")(lambda message: int(message.body))
    harness.run(scope["consumer"])
    harness.send(Message("orders", b"x"), Message("orders", b"1"))
    assert [type(error) for error in reported] == [ValueError]


def test_the_id_of_a_message_in_log_lines(harness: Harness) -> None:
    bound: list[str | None] = []
    scope: dict[str, Any] = run(
        recipes()["Your own logging, structlog"], charge=lambda _: bound.append(scope["message_id"].get())
    )
    harness.run(scope["consumer"])
    (sent,) = harness.send(Message("orders", b"x"))
    assert bound == [sent.msg_id]


@pytest.mark.parametrize("example", IN_MEMORY)
def test_an_example_in_memory_runs(example: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / f"{example}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    assert done.returncode == 0, done.stdout + done.stderr
    if example == "order_timeout":
        assert f"```text\n{done.stdout}```" in (ROOT / "docs" / "order-timeout.md").read_text(encoding="utf-8")
