"""How soon messages are delivered again after a worker is killed or frozen, or its broker is restarted.

Not in CI: a bound in seconds is no fact on a machine that is busy. By the broker's stamps.
"""

import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim_local import LocalCluster
from rocketshim_topics import Message, provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

from .worker_stage import DEADLINE_S, LEVELS, STAMPED, WorkerStage, recovery_s

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SESSION_S = 6.0
MODES = {"at-least-once": [], "exactly-once": ["--exactly-once"]}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(1, data_dir=tmp_path / "data") as running:
        running.touch_internal_topics()
        yield running


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("event", ["kill", "freeze", "restart"])
def test_liveness_is_back_within_the_session_and_ten_seconds(
    cluster: LocalCluster, tmp_path: Path, event: str, mode: str
) -> None:
    admin = AdminClient(cluster.client_config())
    names = TopicNames("recovery")
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
    admin.create_topics([NewTopic("target", 2, config=STAMPED)])["target"].result(DEADLINE_S)
    stage = WorkerStage(cluster.bootstrap, names, tmp_path, admin)
    try:
        options = ["--allow", "target", "--client", f"session.timeout.ms={SESSION_S * 1_000:.0f}", *MODES[mode]]
        first = stage.worker(*options)
        sent = 0
        with stage.sender() as sender:

            def send(seconds: float) -> int:
                count, end = 0, time.monotonic() + seconds
                while time.monotonic() < end:
                    number = sent + count
                    message = Message("target", b"%d" % number, delay_level=number % 18 + 1)
                    sender.send(message, timeout_s=DEADLINE_S)
                    count += 1
                    time.sleep(0.01)  # a stream, not a burst
                return count

            sent += send(3)
            stage.read_until("target", 1)
            if event == "restart":
                cluster.kill(1)
                cluster.restart(1)
            else:
                second = stage.worker(*options)
                while "worker.assigned" not in (tmp_path / "worker-1.log").read_text():
                    sent += send(0.5)
                assert second.poll() is None
                first.send_signal(signal.SIGKILL if event == "kill" else signal.SIGSTOP)
            since_ms = time.time_ns() // 1_000_000
            sent += send(12)
        delivered = stage.read_until("target", sent)
        took_s = recovery_s(delivered, stage.schedule_records(), since_ms)
        logging.getLogger(__name__).warning("%s, %s: %d messages, %.1f s", event, mode, sent, took_s)  # pytest -rP
        assert took_s <= SESSION_S + 10
        if mode == "exactly-once":
            assert len(delivered) == sent
    finally:
        stage.kill()
