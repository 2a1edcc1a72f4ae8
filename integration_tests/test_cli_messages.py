"""`send` from standard input and at a time, and `topic ls`, on a real broker."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, TopicPartition

from rocketshim.cli import main
from rocketshim_local import Broker

Topic = Callable[..., str]


def test_lines_are_sent_and_listed_without_a_group(
    broker: Broker, topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    name, at = topic(1), ["--bootstrap", broker.bootstrap]
    lines = "".join(f"order {number}\n" for number in range(2_500))
    words = ["--key", "k", "--tag", "new", "--timeout", "60"]
    done = subprocess.run(
        [sys.executable, "-m", "rocketshim", "send", name, "--lines", *words, *at],
        input=lines, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "2,500 messages stored\n")
    assert main(["send", name, "paid", "--tag", "paid", "--property", "price=11", "--timeout", "60", *at]) == 0
    capsys.readouterr()

    def listed(*words: str) -> list[str]:
        assert main(["topic", "ls", name, "--json", *words, *at]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [row["body"] for row in rows]

    assert listed("--limit", "2") == ["order 0", "order 1"]
    assert listed("--limit", "3000") == [*(f"order {number}" for number in range(2_500)), "paid"]
    assert listed("--newest", "2") == ["order 2499", "paid"]
    assert listed("--tags", "paid") == listed("--where", "price > 10") == ["paid"]
    assert listed("--key", "k", "--limit", "1") == ["order 0"]
    assert listed("--since", "1h", "--limit", "1") == ["order 0"]
    assert main(["topic", "ls", name, "--newest", "1", *at]) == 0
    assert "paid" in capsys.readouterr().out
    assert main(["topic", "ls", f"{name}-x", *at]) == 1
    assert f"did you mean {name}" in capsys.readouterr().err

    assert main(["group", "ls", "--json", *at]) == 0
    assert "rocketshim-read" not in capsys.readouterr().out, "looking leaves no group behind"


def test_a_line_that_is_too_large_stops_the_command(broker: Broker, topic: Topic) -> None:
    name = topic(1)
    done = subprocess.run(
        [sys.executable, "-m", "rocketshim", "send", name, "--lines", "--bootstrap", broker.bootstrap],
        input="one\n" + "x" * 3_000_000 + "\nthree\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: line 2 was not sent" in done.stderr
    assert "2 messages stored, of which lines 3 come after it" in done.stderr, "line 3 was on its way"
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        assert reader.get_watermark_offsets(TopicPartition(name, 0), timeout=60) == (0, 2)
    finally:
        reader.close()


def test_a_message_is_delivered_at_a_time(
    broker: Broker, topic: Topic, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, at = topic(1), ["--bootstrap", broker.bootstrap, "--namespace", namespace]
    assert main(["init", *at]) == 0

    due = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    later = ["later", "--deliver-at", due.strftime("%Y-%m-%dT%H:%M:%SZ"), "--timeout", "60"]
    assert main(["send", name, *later, *at]) == 0
    capsys.readouterr()
    assert main(["delayed", "ls", "--json", *at]) == 0
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["due_ms"], row["target"]) == (int(due.timestamp() * 1_000), name)
