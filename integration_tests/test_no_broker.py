"""Each command against an address where no broker listens: one line says so, and the exit code is 1."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from rocketshim.cli.app import COMMANDS, build

NOWHERE: Final = "127.0.0.1:1"
AT_MOST_S: Final = 120.0
MSG_ID: Final = "84E1F40026C74CFB8F1E0000000000AA"
AT_A_TIME: Final = 8
WORDS: Final = {
    "init": [], "status": [], "doctor": [], "send": ["orders", "x"], "worker": ["--allow", "orders"],
    "top": ["--once"], "delayed ls": [], "delayed show": ["0/0"], "delayed stats": [], "timers ls": [],
    "timers show": ["orders", "o-7"], "timers cancel": ["orders", "o-7"], "timers now": ["orders", "o-7", "--apply"],
    "timers apply": ["cron.toml"], "tx ls": [], "tx show": ["orders", MSG_ID], "tx commit": ["orders", MSG_ID],
    "tx rollback": ["orders", MSG_ID, "--apply"], "parked ls": [], "parked show": ["0/0"], "parked stats": [],
    "parked plan": ["0/0"], "dlq ls": ["--group", "g"], "dlq show": ["X", "--group", "g"],
    "dlq stats": ["--group", "g"], "dlq plan": ["--group", "g"], "dlq discard": ["--group", "g"],
    "dlq export": ["--group", "g"], "retry ls": ["--group", "g"], "retry show": ["X", "--group", "g"],
    "retry stats": ["--group", "g"], "trace": ["X"], "group ls": [], "group lag": ["g"], "group subscriptions": ["g"],
    "group reset": ["g", "--to", "earliest"], "group locks": ["g"], "group members": ["g"],
    "group release": ["g", "orders/0"], "group dead-letter": ["g", "orders/0/0"],
    "group try-now": ["g", "orders/0/0"], "topic ls": ["orders"], "topic show": ["orders/0/0"],
    "run": ["shop:consumer"],
}  # fmt: skip
"""Command to its words. Services log what they wait for before their last line."""
TRIED: Final = (*WORDS.items(), ("trace", ["orders/0/1"]))
SERVICES: Final = {"worker", "run"}
OTHERS: Final = {
    "console", "exporter",  # they serve that no broker answers
    "acls", "healthcheck", "broker run", "broker fetch", "broker info", "dev", "demo",  # they ask no given broker
    "dlq apply",  # its plan names a record that must be read first
}  # fmt: skip
SHOP: Final = """
from rocketshim import PushConsumer

consumer = PushConsumer("127.0.0.1:1", group="g")
consumer.listener("orders")(print)
"""
CRON: Final = """
[[message]]
topic = "reports"
timer = "daily"
cron = "0 9 * * 1-5"
body = "daily"
"""


def leaves(command: Any, path: str) -> Iterator[str]:
    for name, each in getattr(command, "commands", {}).items():
        yield from leaves(each, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path


def test_each_command_is_among_those_that_are_tried() -> None:
    found = {
        path
        for name in COMMANDS
        for path in leaves(get_command(build([name])).commands[name], name)  # type: ignore[attr-defined]
    }
    assert found == WORDS.keys() | OTHERS


def test_a_command_without_a_broker_ends_with_one_line_and_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cron.toml").write_text(CRON)
    (tmp_path / "shop.py").write_text(SHOP)
    where = {"ROCKETSHIM_BOOTSTRAP": NOWHERE, "PYTHONPATH": str(tmp_path)}

    def run(tried: tuple[str, list[str]]) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "rocketshim", *tried[0].split(), *tried[1]]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=AT_MOST_S,
            cwd=tmp_path,
            env=os.environ | where,
        )
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(AT_A_TIME) as several:
        for (name, _), (code, out, shown) in zip(TRIED, several.map(run, TRIED), strict=True):
            lines = shown.splitlines()
            assert (name, code, out) == (name, 1, ""), shown
            assert "Traceback" not in shown, shown
            assert f"{NOWHERE}/bootstrap: Connect to" in lines[-1], (name, shown)
            assert len(lines) == 1 or name in SERVICES, (name, shown)
