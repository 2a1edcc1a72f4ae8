"""Clients whose wall clocks are a day off: everything is stored, at the brokers' time, and the clock is named.

Kafka refuses a timestamp that is more than an hour ahead of the broker's clock, where the broker does not stamp itself.
"""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from rocketshim import AllocateMessageQueueAveragely, PushConsumer
from rocketshim_local import Broker
from rocketshim_topics import Layout, Message, TopicNames, provision
from rocketshim_topics.levels import DelayLevels

from . import waiting
from .console_stage import console
from .shifted_clock import ShiftedClock
from .worker_stage import DEADLINE_S, LEVELS, WorkerStage

DAY_S = 86_400
REFUSED = {"message.timestamp.after.max.ms": "3600000"}  # Kafka's own default since 4.0
SENDING = ("send", "send_async", "dropin_send")
CONSUMING = ("consume", "consume_orderly", "dropin_consume", "pull")


@pytest.fixture
def stage(broker: Broker, admin: AdminClient, namespace: str, tmp_path: Path) -> Iterator[WorkerStage]:
    names = TopicNames(namespace)
    layout = Layout(names, DelayLevels.parse(LEVELS))
    provision.ensure_topics(admin, layout.shared())
    for group in ("consume", "dropin_consume"):
        provision.ensure_topics(admin, layout.for_group(group, with_log=False))
    provision.ensure_topics(admin, layout.for_group("consume_orderly", with_log=True))
    made = WorkerStage(broker.bootstrap, names, tmp_path, admin)
    yield made
    made.kill()


@pytest.mark.parametrize("ahead_s", [-DAY_S, 7_200, DAY_S])
@pytest.mark.parametrize("mode", [[], ["--exactly-once"]], ids=["at-least-once", "exactly-once"])
def test_a_worker_delivers_and_parks_at_the_brokers_time_and_is_not_ready(
    stage: WorkerStage, topic: Callable[..., str], shifted_clock: ShiftedClock, mode: list[str], ahead_s: int
) -> None:
    target = topic(1, REFUSED)
    stage.worker("--allow", target, "--health", "127.0.0.1:0", *mode, env=shifted_clock.env(ahead_s))
    began_ms = _now_ms()
    with stage.sender() as sender:
        for number in range(20):
            sender.send_async(Message(target, b"%d" % number, delay=0.1 + number * 0.17))
        sender.send_async(Message("missing", b"nowhere", delay_level=1))
        assert sender.flush(DEADLINE_S) == 0
    found = stage.read_until(target, 20)
    (parked,) = stage.read_until(stage.names.parked, 1)
    assert len(found) == 20, "none twice"
    for record in (*found, parked):
        assert began_ms <= record.timestamp()[1] <= _now_ms() + 1_000
    waiting.wait_until(lambda: "worker.clock-differs" in _log(stage), "the log names the clock", within_s=DEADLINE_S)
    lines = [json.loads(line) for line in _log(stage).splitlines() if "worker.clock-differs" in line]
    assert [round(line["ahead_ms"] / 10_000) for line in lines] == [ahead_s // 10], "one line"
    assert not re.search("hop-not-stored|re-appended|aborted", _log(stage))
    port = next(json.loads(line)["port"] for line in _log(stage).splitlines() if "health.listening" in line)
    waiting.wait_until(lambda: _status(port, "ready") == 503, "/ready is 503", within_s=DEADLINE_S)
    assert _status(port, "live") == 200
    waiting.wait_until(lambda: "clock-skew" in _command(stage, None, "doctor").stdout, "found", within_s=DEADLINE_S)
    assert f'rocketshim_worker_clock_ahead_seconds{{namespace="{stage.names.namespace}"}} ' in _get(port, "metrics")


@pytest.mark.parametrize("ahead_s", [-DAY_S, DAY_S])
def test_every_other_part_works_with_a_clock_that_is_a_day_off(
    stage: WorkerStage, topic: Callable[..., str], shifted_clock: ShiftedClock, ahead_s: int, tmp_path: Path
) -> None:
    """Only an immediate send is refused, as by every client of Kafka, and its error names the clock."""
    names = stage.names
    sent_to, consumed = topic(1, REFUSED), topic(1, REFUSED)
    stage.worker("--allow", sent_to, "--allow", consumed)
    began_ms = _now_ms()
    with stage.sender() as sender:
        for body in (b"retry", b"fails", b"dead"):
            sender.send(Message(consumed, body), timeout_s=DEADLINE_S)
    env = shifted_clock.env(ahead_s)
    parts = {name: _start(stage, name, sent_to, env) for name in SENDING}
    parts |= {name: _start(stage, name, consumed, env) for name in CONSUMING}
    came = {name: json.loads(process.communicate(timeout=DEADLINE_S)[0] or "null") for name, process in parts.items()}
    assert all(process.returncode == 0 for process in parts.values()), came
    for name in SENDING:
        assert ("clock" in came[name]["error"] or came[name]["error"] == "INVALID_TIMESTAMP") == (ahead_s > 0), came
    arrived = {record.value().decode() for record in stage.read_until(sent_to, 3 if ahead_s > 0 else 6)}
    assert {f"{name}: delayed" for name in SENDING} <= arrived
    for group in ("consume", "consume_orderly"):
        assert came[group]["handled"] == {"retry": 2, "fails": 2, "dead": 1}
        assert came[group]["not_stored"] <= 2
        assert len(stage.read_until(names.dead_letter(group), 2)) == 2
    assert came["consume"]["ready"] is False
    assert came["dropin_consume"]["handled"]["dead"] == 1
    assert came["pull"] == {"bodies": ["retry", "fails", "dead"], "max_offset": 3}
    if ahead_s > 0:  # a clock that is behind is not refused, so a first dead letter has the time of this machine
        for record in (*stage.read(names.dead_letter("consume")), *stage.read(names.dead_letter("dropin_consume"))):
            assert began_ms <= record.timestamp()[1] <= _now_ms() + 1_000
    _redrive(stage, env, tmp_path, consumed)


def test_a_reset_with_a_clock_that_is_ahead_sees_that_members_of_the_group_log_run(
    stage: WorkerStage, topic: Callable[..., str], shifted_clock: ShiftedClock
) -> None:
    """They are no members of Kafka's group, so only the time since their last record tells that they run."""
    consumed = topic(1)
    consumer = PushConsumer(
        stage.bootstrap, group="consume_orderly", namespace=stage.names.namespace, delay_levels=LEVELS,
        allocate_message_queue_strategy=AllocateMessageQueueAveragely(),
    )  # fmt: skip
    consumer.listener(consumed)(print)
    consumer.start()
    try:
        words = ["group", "reset", "consume_orderly", "--topic", consumed, "--to", "earliest"]
        for ahead_s in (-DAY_S, 0, DAY_S):
            done = _command(stage, shifted_clock.env(ahead_s), *words)
            assert "stop them first" in done.stdout + done.stderr, done
    finally:
        consumer.stop()


@pytest.mark.parametrize("ahead_s", [-DAY_S, DAY_S])
def test_what_operators_see_by_a_clock_that_is_a_day_off_names_the_clock(
    broker: Broker, stage: WorkerStage, shifted_clock: ShiftedClock, ahead_s: int, tmp_path: Path
) -> None:
    """One message waits, due in a second. By a clock that is behind nothing would ever be late."""
    with stage.sender() as sender:
        sender.send(Message("orders", b"x", delay_level=1), timeout_s=DEADLINE_S)
    env = shifted_clock.env(ahead_s)
    stats = _command(stage, env, "delayed", "stats")
    assert stats.returncode == 2
    doctor = _command(stage, env, "doctor").stdout
    overview = _command(stage, env, "top", "--once").stdout
    with console(broker, stage.names.namespace, tmp_path, env=env) as (_, browser):
        tiles = browser.get("/tiles")
    if ahead_s > 0:
        assert "and the clock of this machine right?" in stats.stderr
        assert "or this machine's clock is ahead" in tiles
        assert re.search(r"clock-skew +this machine", doctor) is None
    else:
        assert re.search(r"this machine's clock is 8\d{4} s or more behind the brokers'", stats.stderr)
        assert re.search(r"The clock of the console's machine is 8\d,\d{3} s or more behind the brokers'", tiles)
        assert "none is late" not in tiles
        assert re.search(r"clock-skew +this machine", doctor)
        assert re.search(r"THIS CLOCK IS 8\d{4} s OR MORE BEHIND", overview)
    probed = _command(stage, env, "doctor", "--probe").stdout
    assert re.search(r"clock-skew +broker", probed)


def _redrive(stage: WorkerStage, env: dict[str, str], tmp_path: Path, target: str) -> None:
    """Dead letters and parked records are sent again by commands with the wrong clock."""
    began_ms, before = _now_ms(), len(stage.read(stage.names.retry("consume")))
    plan = tmp_path / "plan.json"
    scope = ["--group", "consume", "--out", str(plan)]
    assert _command(stage, env, "dlq", "plan", *scope).returncode == 0
    done = _command(stage, env, "dlq", "apply", str(plan), namespace=False)
    assert done.returncode == 0, done.stdout + done.stderr
    again = stage.read_until(stage.names.retry("consume"), 2)[before:]
    assert len(again) == 2
    for record in again:
        assert began_ms <= record.timestamp()[1] <= _now_ms() + 1_000
    with stage.sender() as sender:
        sender.send(Message("missing", b"nowhere", delay_level=1), timeout_s=DEADLINE_S)
    stage.read_until(stage.names.parked, 1)
    assert _command(stage, env, "parked", "plan", "--topic", "missing", "--out", str(plan)).returncode == 0
    assert _command(stage, env, "dlq", "apply", str(plan), namespace=False).returncode == 0
    waiting.wait_until(lambda: len(stage.read(stage.names.parked)) == 2, "it is parked again", within_s=DEADLINE_S)
    del target


def _command(stage: WorkerStage, env: dict[str, str] | None, *words: str, namespace: bool = True) -> Any:
    where = ["--bootstrap", stage.bootstrap, *(["--namespace", stage.names.namespace] if namespace else [])]
    command = [sys.executable, "-m", "rocketshim", *words, *where]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def _start(stage: WorkerStage, part: str, topic: str, env: dict[str, str]) -> "subprocess.Popen[str]":
    where = [stage.bootstrap, stage.names.namespace, topic]
    command = [sys.executable, "-m", "integration_tests.clock_parts", part, *where]
    folder = Path(__file__).parents[1]
    return subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _log(stage: WorkerStage) -> str:
    return (stage.logs / "worker-0.log").read_text()


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=DEADLINE_S) as answer:
        return str(answer.read().decode())


def _status(port: int, path: str) -> int:
    try:
        _get(port, path)
    except urllib.error.HTTPError as error:
        return error.code
    return 200
