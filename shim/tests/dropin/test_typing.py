"""A program written for confluent_kafka passes mypy strict before and after its import is changed."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("typed_program.txt").read_text(encoding="utf-8")
ROOT = Path(__file__).parents[3]
WRONG = """

def wrong(consumer: Consumer, message: Message) -> None:
    consumer.poll("soon")
    consumer.subscribe("orders")
    consumer.commit(message=message, asynchronous=False).decode()
    Producer([])
"""
NEW = """

def new(consumer: Consumer, producer: Producer, message: Message, error: Exception) -> tuple[int, str, str | None]:
    consumer.reconsume_later(message, error, level=3)
    consumer.reconsume_later(message, delay="90s")
    consumer.dead_letter(message, "no such customer")
    producer.produce("orders", b"x", delay_level=3, tag="a", keys=["o-7"])
    producer.produce("orders", b"x", delay="90s", deliver_at=None)
    number = consumer.reconsume_times(message) + consumer.origin(message).offset
    return number, consumer.uniq_key(message), consumer.tag(message)
"""


def checked(program: str, folder: Path) -> list[str]:
    """What mypy says of a program: line, error code."""
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--hide-error-context",
         f"--cache-dir={folder / 'cache'}", str(path)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=800,
        env={**os.environ, "MYPYPATH": os.pathsep.join(str(ROOT / part) for part in ("topics", "shim"))},
    )  # fmt: skip
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if "program.py" in line]


def test_the_types_are_those_of_the_original(tmp_path: Path) -> None:
    ours = PROGRAM.replace("from confluent_kafka import", "from rocketshim.dropin import")
    assert ours != PROGRAM
    assert checked(PROGRAM, tmp_path) == []
    assert checked(ours + NEW, tmp_path) == []
    before, after = (
        [
            (line.split(":")[1], line.rpartition("[")[2])
            for line in checked(program + WRONG, tmp_path)
            if "error" in line
        ]
        for program in (PROGRAM, ours)
    )
    assert before == after
    assert len(before) == 4
