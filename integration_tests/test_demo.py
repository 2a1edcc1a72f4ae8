"""The figures of the demo match, also when its worker and its consumer are killed in the middle."""

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from rocketshim_local import Broker

from .conftest import delete_topics
from .console_stage import Browser, await_port
from .running import killed_at_last

DAY = Path(__file__).parents[1] / "examples" / "data" / "flights-2013-12-10.csv"
ADDRESS = re.compile(r"http://127\.0\.0\.1:(?P<port>\d+)(?P<login>/login\?token=\S+)")
STARTED = re.compile(r"^(worker|consumer): process (\d+)")


@pytest.fixture
def short_day(tmp_path: Path) -> Path:
    """Every eighth flight of the day."""
    with DAY.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)[::8]
        columns = list(reader.fieldnames or ())
    path = tmp_path / "day.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_killed_worker_and_a_killed_consumer_lose_nothing(
    broker: Broker, admin: AdminClient, short_day: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "rocketshim", "demo", "--data", str(short_day), "--seconds", "12"]
    environment = {**os.environ, "ROCKETSHIM_BOOTSTRAP": broker.bootstrap, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
    killed: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=environment
    ) as demo:
        lines = []
        pids: dict[str, int] = {}
        for line in demo.stdout or ():
            lines.append(line)
            started = STARTED.match(line)
            if started is not None:
                pids[started[1]] = int(started[2])
            # A progress line after the first deliveries: worker and consumer both have messages in flight.
            if line.startswith("sent ") and ", delivered 0," not in line and not killed:
                for name in ("worker", "consumer"):
                    os.kill(pids[name], signal.SIGKILL)
                    killed.append(name)
    shown = "".join(lines)
    assert killed == ["worker", "consumer"], shown
    assert demo.returncode == 0, shown
    assert shown.count("starting it again") == 2, shown
    assert "not match" not in shown
    assert not [line for line in lines if line.startswith("%")], "no line of the clients is printed as it is"
    assert "dead:" in shown, "the history ends in the dead-letter topic"
    flights = len(short_day.read_text().splitlines()) - 1
    verdict = shown.index(f"All {flights} flights are accounted for: 0 lost, 0 early, ")
    assert shown.index("Figures from the records") < verdict < shown.index("Next: rocketshim demo --keep")
    left = [name for name in admin.list_topics(timeout=10).topics if name.startswith("demo-")]
    assert not left, "the demo cleans up after itself"


def test_kept_topics_are_shown_in_the_console_until_ctrl_c(
    broker: Broker, admin: AdminClient, short_day: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "rocketshim", "demo", "--data", str(short_day), "--seconds", "5", "--keep"]
    environment = {**os.environ, "ROCKETSHIM_BOOTSTRAP": broker.bootstrap, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=environment,
        start_new_session=True,
    ) as demo, killed_at_last(demo):  # fmt: skip
        lines: list[str] = []
        for line in demo.stdout or ():
            lines.append(line)
            if address := ADDRESS.search(line):
                break
        else:
            pytest.fail("".join(lines))
        await_port(int(address["port"]))
        browser = Browser(int(address["port"]), address["login"])
        cancelled = sum(row["dep_time"] == "" for row in csv.DictReader(short_day.open(newline="")))
        assert re.search(rf"dead letters \D*{cancelled}\b", browser.get("/").lower()), browser.get("/")
        assert "no worker runs" not in browser.get("/workers")
        groups = [name for name in admin.list_topics(timeout=10).topics if ".rmq.dlq.demo-" in name]
        causes = browser.get(f"/dead/{groups[0]}")
        assert re.search("the flight from (EWR|JFK|LGA) never left", causes), causes
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(60) == 0
    delete_topics(admin, [name for name in admin.list_topics(timeout=10).topics if name.startswith("demo-")])
