"""The worker's log lines."""

import ast
import io
import json
import logging
import os
import re
from pathlib import Path

import pytest

import rocketshim.worker
from rocketshim.worker.log_format import EVENTS, JsonLines, TextLines, configure

DOCUMENT = Path(__file__).parents[3] / "docs" / "worker.md"


def record(**facts: object) -> logging.LogRecord:
    made = logging.LogRecord("rocketshim.worker", logging.WARNING, "", 0, "worker.parked", (), None)
    vars(made).update(facts)
    return made


def test_every_event_that_is_logged_is_in_the_vocabulary_and_in_the_document() -> None:
    logged: set[str] = set()
    sources = [*Path(rocketshim.worker.__path__[0]).glob("*.py")]
    for path in sources:
        if path.name != "log_format.py":
            constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            logged |= {
                text for text in constants if isinstance(text, str) and text.startswith("worker.") and " " not in text
            }
    assert logged <= set(EVENTS)
    document = DOCUMENT.read_text()
    assert all(f"| `{event}` | {meaning} |" in document for event, meaning in EVENTS.items())


def test_facts_of_records_cannot_forge_lines() -> None:
    line = TextLines().format(record(reason="x\nERROR worker.stopped \x1b[31m"))
    assert "\n" not in line
    assert "\x1b" not in line
    shown = json.loads(JsonLines().format(record(reason="x\ny", partition=3)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4}", shown.pop("at"))
    assert (shown.pop("logger"), shown.pop("pid")) == ("rocketshim.worker", os.getpid())
    assert (shown["event"], shown["reason"], shown["partition"]) == ("worker.parked", "x\ny", 3)


def test_the_text_of_an_exception_cannot_forge_lines() -> None:
    made = record()
    made.exc_info = (ValueError, ValueError("no\n2026-01-01 10:00:00,000 ERROR worker.stopped\x1b[31m"), None)
    first, *rest = TextLines().format(made).split("\n")
    assert first.endswith("worker.parked")
    assert all(line.startswith("  ") for line in rest)
    assert "\x1b" not in "".join(rest)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_configure_sends_one_line_a_record_to_the_stream(log_format: str) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        configure(log_format, stream=stream)  # type: ignore[arg-type]
        logging.getLogger("rocketshim.worker").info("worker.started", extra={"topic": "t"})
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert stream.getvalue().count("\n") == 1
    assert "worker.started" in stream.getvalue()
