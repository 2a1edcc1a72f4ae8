"""The programs in README.md and docs/ run as they stand, on a Kafka in memory.

Only the address becomes that of the cluster in memory, and `...`, where the reader's own code would be, a call. What a
page takes for granted (`charge`, `running`) stands in the test. docs/testing.md is run by its own test, the drop-in's
programs by integration tests.
"""

import asyncio
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketshim import ConsumeFromWhere, DelayLevels, DelayWorker, PushConsumer, WorkerSettings
from rocketshim.filters import SqlFilter
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.layout import Layout
from rocketshim_topics.names import TopicNames

ROOT = Path(__file__).parents[2]
BODIES = [b"order-1", b"order-2"]


def programs(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        re.sub(r"^( +)\.\.\.$", r"\1tell(message.body)", block, flags=re.MULTILINE).replace(
            '"localhost:9092"', "ADDRESS, clients=CLIENTS, clock=CLOCK"
        )
        for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    ]


class Place:
    """A cluster in memory with two paid orders in it, and the names that a program of a page sees."""

    def __init__(self) -> None:
        clock = self.clock = VirtualClock()
        self.kafka = InMemoryKafka(clock)
        self.names = TopicNames("")
        layout = Layout(self.names, DelayLevels.default())
        groups = [spec for group in ("payments", "billing") for spec in layout.for_group(group, with_log=True)]
        self.kafka.create_topics([*layout.shared(), *groups])
        self.kafka.create_topic("orders", 1)
        for body in BODIES:
            self.kafka.append("orders", body, headers=[("TAGS", b"paid"), ("price", b"20"), ("region", b"EU")])
        self.told: list[Any] = []
        self.address: dict[str, Any] = {"clients": self.kafka.clients(), "clock": clock}
        self.scope: dict[str, Any] = {
            "__name__": "documentation",
            "ADDRESS": "in-memory:9092",
            "CLIENTS": self.kafka.clients(),
            "CLOCK": clock,
            "tell": self.tell,
            "asyncio": asyncio,
            "PushConsumer": PushConsumer,
        }

    def run(self, program: str, **names: Any) -> None:
        self.scope.update(names)
        exec(compile(program, "documentation", "exec"), self.scope)  # noqa: S102 - our own pages

    def consumer(self, group: str) -> PushConsumer:
        return PushConsumer(
            "in-memory:9092", group=group, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **self.address
        )

    def tell(self, body: bytes, **_more: Any) -> None:
        """What the reader's own code would be. It ends the program once both orders were handled."""
        self.told.append(body)
        if len(self.told) == len(BODIES):
            self.scope["consumer"].stop()


@pytest.fixture
def place() -> Place:
    return Place()


def test_the_first_retry(place: Place, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    (_, program) = programs("README.md")
    place.kafka.delete_topic("orders")
    place.kafka.create_topic("orders", 1)
    worker = DelayWorker(
        WorkerSettings.make(bootstrap="in-memory:9092", allow=("orders",)),
        clients=place.kafka.clients(),
        clock=place.clock,
    )
    worker.start()
    place.run(program.replace("consumer.run()", "consumer.start()"))
    printed = ""

    def succeeded() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return printed != ""

    def failures() -> list[logging.LogRecord]:
        return [record for record in caplog.records if getattr(record, "event", "") == "consumer.listener-failed"]

    place.kafka.wait_until(lambda: bool(failures()), driving=lambda: worker.step(0))
    place.clock.advance(10_000 - 100)  # not early
    worker.step(0)
    assert not succeeded()
    place.kafka.wait_until(succeeded, driving=lambda: (place.clock.advance(10), worker.step(0)))
    place.scope["consumer"].stop()
    printed += capsys.readouterr().out
    worker.close()
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{printed}```" in shown
    (failure,) = failures()
    first, *trace = failure.getMessage().replace('"documentation"', '"first.py"').split("\n")
    said = re.compile(re.sub(r"message \S+ |at [\d:]{8}$", ".*", first.replace("(", r"\(").replace(")", r"\)")))
    assert said.search(shown), "the README shows what the log says"
    assert trace[0] in shown
    assert trace[-1] in shown


def test_consuming(place: Place) -> None:
    first, *_ = programs("docs/consumer.md")
    place.run(first)
    assert sorted(place.told) == BODIES, "several threads handle them"


def test_exceptions_that_are_final(place: Place) -> None:
    consumer = place.consumer("payments")
    place.kafka.create_topic("refunds", 1)

    def charge(body: bytes) -> None:
        place.tell(body)
        raise ValueError("no such card")

    place.run(programs("docs/consumer.md")[1], consumer=consumer, charge=charge)
    consumer.run()
    dead = [record.value() or b"" for record in place.kafka.records("rmq.dlq.payments")]
    assert sorted(dead) == sorted(BODIES), "several threads handle them"


def test_typed_bodies(place: Place) -> None:
    consumer = place.consumer("payments")
    for number in (7, 8):
        place.kafka.append("orders", b'{"id": %d}' % number)
    place.run(programs("docs/consumer.md")[2], consumer=consumer, charge=place.tell)
    consumer.run()
    assert sorted(place.told) == [7, 8], "several threads handle them"
    dead = [record.value() or b"" for record in place.kafka.records("rmq.dlq.payments")]
    assert sorted(dead) == sorted(BODIES)


def test_consuming_in_an_event_loop(place: Place) -> None:
    async def charge(body: bytes) -> None:
        place.tell(body)

    program = programs("docs/consumer.md")[3].replace('group="payments"', 'group="payments", **START')
    place.run(program, charge=charge, START={"consume_from_where": ConsumeFromWhere.FIRST_OFFSET})
    assert sorted(place.told) == BODIES


def test_hooks(place: Place) -> None:
    spans: list[Any] = []
    consumer = place.consumer("payments")
    consumer.listener("orders")(lambda message: place.tell(message.body))
    program = programs("docs/consumer.md")[4]
    place.run(program, consumer=consumer, start_span=lambda _: SimpleNamespace(end=lambda *said: spans.append(said)))
    consumer.run()
    assert [said for said, _ in spans] == ["SUCCESS", "SUCCESS"]


def test_an_allocation_strategy_and_broadcasting(place: Place) -> None:
    *_, strategy, broadcasting = programs("docs/consumer.md")
    place.run(strategy)
    place.run(broadcasting)


def test_in_order(place: Place) -> None:
    sending, consuming = programs("docs/orderly.md")
    place.run(sending)
    assert [record.value() for record in place.kafka.records("orders")] == [*BODIES, b"paid", b"shipped"]
    place.run(consuming, ledger=SimpleNamespace(write=place.tell))
    assert place.told[:2] == BODIES


def test_pulling(place: Place) -> None:
    polling, reading, _ = programs("docs/pull.md")
    polling = polling.replace("while running:", "while len(told) < 2:").replace('"reports"', '"reports", **START')
    place.run(
        polling, tell=place.told.append, told=place.told, START={"consume_from_where": ConsumeFromWhere.FIRST_OFFSET}
    )
    assert place.told == BODIES
    place.told.clear()
    place.run(reading)
    assert place.told == BODIES


def test_reading_dead_letters(place: Place) -> None:
    *_, program = programs("docs/pull.md")
    headers = [("RETRY_TOPIC", b"orders"), ("ORIGIN_MESSAGE_ID", b"orders/0/4"), ("RECONSUME_TIMES", b"17")]
    place.kafka.append("rmq.dlq.payments", b"x", headers=headers)
    place.run(
        program.replace("while running:", "while not told:"),
        told=place.told,
        mail=lambda *what: place.told.append(what),
    )
    ((topic, origin, times, body),) = place.told
    assert (topic, str(origin), times, body) == ("orders", "orders/0/4", 17, b"x")


@pytest.mark.parametrize("line", programs("docs/filters.md")[0].splitlines())
def test_each_filter(place: Place, line: str) -> None:
    place.run(f"{line}\ndef handle(message): tell(message.body)", consumer=place.consumer("payments"))


@pytest.mark.parametrize(
    ("condition", "properties", "is_selected"),
    [
        ("a <> 5", [], False),
        ("5 <> a", [], True),
        ("'x' <> a", [], True),
        ("NOT (5 = a)", [], True),
        ("a = b", [], True),
        ("a <> b", [("a", b"1")], True),
        ("NOT (a CONTAINS 'x')", [], True),
        ("a NOT CONTAINS 'x'", [], False),
    ],
)
def test_what_a_missing_property_selects(
    condition: str, properties: list[tuple[str, bytes | None]], *, is_selected: bool
) -> None:
    assert f"`{condition}`" in (ROOT / "docs" / "filters.md").read_text(encoding="utf-8")
    assert SqlFilter(condition).matches_headers(properties) is is_selected
    assert not SqlFilter(f"a IS NOT NULL AND b IS NOT NULL AND ({condition})").matches_headers(properties)


def test_a_script_that_cron_starts_handles_what_there_is(place: Place) -> None:
    (script,) = [each for each in programs("docs/recipes.md") if 'group="reports"' in each]
    until_all_are_sent = "while len(sent()) < 2 and (messages := consumer.poll()):"  # no time passes here by itself
    script = script.replace("while messages := consumer.poll(timeout_ms=10_000):", until_all_are_sent)
    place.kafka.create_topic("invoices", 1)
    place.run(script, sent=lambda: place.kafka.records("invoices"))
    assert [record.value() for record in place.kafka.records("invoices")] == BODIES
