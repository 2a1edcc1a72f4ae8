"""The worker on a broker whose wall clock is set forth and back: never early by that clock, and nothing lost."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim_topics import Message as Outgoing
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

from . import waiting
from .stepped_broker import SteppedBroker
from .worker_stage import DEADLINE_S, LEVELS, STAMPED, WorkerStage, first_of, header

STEPS_H = (1, -1, -1, 1)
EXACTLY_ONCE = "once"
MODES = {"least": [], EXACTLY_ONCE: ["--exactly-once"]}


@pytest.mark.parametrize("rounds", [1, pytest.param(15, marks=[pytest.mark.long, pytest.mark.timeout(2_400)])])
def test_with_a_broker_whose_clock_is_set_nothing_is_early_and_nothing_is_lost(
    stepped_broker: SteppedBroker, tmp_path: Path, rounds: int
) -> None:
    admin = AdminClient({"bootstrap.servers": stepped_broker.bootstrap})
    stages: dict[str, WorkerStage] = {}
    try:
        for mode, options in MODES.items():
            names = TopicNames(mode)
            provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
            admin.create_topics([NewTopic(mode, 2, config=STAMPED)])[mode].result(DEADLINE_S)
            (tmp_path / mode).mkdir()
            stages[mode] = WorkerStage(stepped_broker.bootstrap, names, tmp_path / mode, admin)
            stages[mode].worker("--allow", mode, *options)
        sent: set[bytes] = set()
        for hours in STEPS_H * rounds:
            sent |= send(stages, len(sent))
            stepped_broker.step(hours=hours)
            sent |= send(stages, len(sent))
            await_delivery(stages, {body for body in sent if body.startswith(b"level")})
        # what was between two queues when the clock was set back has an absolute due time: it has come now
        stepped_broker.step(hours=2)
        await_delivery(stages, sent)
        judge(stages, stepped_broker)
    finally:
        for stage in stages.values():
            stage.kill()


def send(stages: dict[str, WorkerStage], first: int) -> set[bytes]:
    """Send messages of every level and of other delays to each stage; stored when this returns."""
    bodies: set[bytes] = set()
    for mode, stage in stages.items():
        with stage.sender() as sender:
            for number in range(first, first + 18):
                level, other = b"level %d" % number, b"delay %d" % number
                sender.send_async(Outgoing(mode, level, delay_level=number % 18 + 1))
                sender.send_async(Outgoing(mode, other, delay=0.1 + number % 29 / 10))
                bodies |= {level, other}
            assert sender.flush(DEADLINE_S) == 0
    return bodies


def await_delivery(stages: dict[str, WorkerStage], bodies: set[bytes]) -> None:
    for mode, stage in stages.items():
        waiting.wait_until(
            lambda stage=stage, mode=mode: bodies <= {record.value() for record in stage.read(mode)},  # type: ignore[misc]
            f"every message in {mode}; logs in {stage.logs}",
            within_s=DEADLINE_S,
        )


def judge(stages: dict[str, WorkerStage], broker: SteppedBroker) -> None:
    """Each delay has passed by the clock as it was set, or else by the clock as it went on."""
    for mode, stage in stages.items():
        schedule = stage.schedule_records()
        delivered = stage.read(mode)
        for record in delivered:
            first, _ = first_of(record, schedule)
            delay_ms = int(header(first, "DELAY_MS") or 0)
            assert delay_ms > 0
            sent_ms, done_ms = first.timestamp()[1], record.timestamp()[1]
            passed_ms = max(done_ms - sent_ms, broker.true_ms(done_ms) - broker.true_ms(sent_ms))
            assert passed_ms >= delay_ms, f"{record.value()!r} in {mode}: {passed_ms} of {delay_ms} ms"
        if mode == EXACTLY_ONCE:
            assert len(delivered) == len({record.value() for record in delivered})
