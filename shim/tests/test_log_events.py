"""The vocabulary of log events, against the log calls in the sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketshim
from rocketshim.log_events import EVENTS
from rocketshim.worker.log_format import EVENTS as WORKER_EVENTS

SOURCES = Path(rocketshim.__path__[0])
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
NAME = re.compile(r"[a-z]+\.[a-z]+(-[a-z]+)*")
COMPUTED = {
    "kafka/clients.py",  # librdkafka's own lines
    "logs.py",  # the logger itself
    "worker/state.py",  # alarms; shim/tests/worker/test_log_format.py looks for their names
}
"""Where the name of an event is computed."""


def events_in(path: Path) -> Iterator[str | None]:
    """Yield the event of each log call in a module; None: it is computed."""
    tree = ast.parse(path.read_text())
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_LOG" | "_log"), attr=level), args=[event, *_]) if (
                level in LEVELS
            ):
                value = event.value if isinstance(event, ast.Constant) else None
                name = constants.get(event.id) if isinstance(event, ast.Name) else value
                yield name if isinstance(name, str) else None


def logged() -> dict[str, set[str | None]]:
    return {str(path.relative_to(SOURCES)): set(events_in(path)) for path in SOURCES.rglob("*.py")}


def test_every_log_call_uses_an_event_of_the_vocabulary() -> None:
    unknown = {
        f"{path}: {event}"
        for path, events in logged().items()
        for event in events
        if event not in EVENTS and event not in WORKER_EVENTS and (event is not None or path not in COMPUTED)
    }
    assert not unknown


def test_every_event_of_the_vocabulary_is_logged() -> None:
    texts = {
        node.value
        for path in SOURCES.rglob("*.py")
        if path.name != "log_events.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    }
    assert not {event for event in EVENTS if event not in texts and event.partition(".")[2] not in texts}


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_an_event_has_a_part_a_name_and_one_sentence(name: str) -> None:
    about = EVENTS[name]
    assert NAME.fullmatch(name)
    assert about[0].isupper()
    assert about.endswith(".")
    assert about.count(". ") == 0
