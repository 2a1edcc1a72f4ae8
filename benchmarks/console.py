"""The console with many dead letters: `python -m benchmarks.console --help`.

* `pages`: how long the overview and the first page of causes take, and how much the latter reads.
* `tab`: resident memory of the console while a tab polls the overview, and now and then opens the causes.
* `idle`: connections to the broker 45 s after the last page.
* `crowd`: the overview, with 1,000 groups, while 45 tabs ask for lists of dead letters; the console's largest memory.
* `plan`: a plan for the rarest cause, one in a hundred dead letters, and how long all of it takes to apply.

The console is the process `rocketshim console`. Each dead letter has a body of 1 KiB (`--body`).
"""

import argparse
import http.client
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from rocketshim_local import any_broker
from rocketshim_topics import DelayLevels, Envelope, Layout, TopicNames, encode, provision

GROUP = "payments"
CAUSES = ["KeyError", *["ConnectionError", "Timeout", "Timeout"] * 33]
PARTITIONS = 4
ROUNDS = 20
IDLE_S = 45.0
DEADLINE_S = 600.0
MOST_PENDING = 50_000
GROUPS = 1_000
READERS = 45
CROWD_S = 60.0


class Tab:
    """A browser's tab: it has logged in, and measures each of its requests."""

    def __init__(self, port: int, login: str) -> None:
        self.refused_as: set[int] = set()  # statuses that are no error
        self._port = port
        self._headers = {"sec-fetch-site": "same-origin"}
        answer, _, _ = self.ask("GET", login)
        self._headers["cookie"] = (answer.getheader("set-cookie") or "").partition(";")[0]

    def ask(self, method: str, path: str, form: str | None = None) -> tuple[http.client.HTTPResponse, str, float]:
        began_s = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        connection.request(method, path, form, self._headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status not in {200, 303, *self.refused_as}:
            raise RuntimeError(f"{path}: {answer.status} {text}")
        return answer, re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text)), (time.perf_counter() - began_s) * 1_000

    def ms(self, path: str) -> float:
        return self.ask("GET", path)[2]


class Stage:
    """A group with dead letters, and a console."""

    def __init__(self, bootstrap: str, count: int, body_bytes: int) -> None:
        self.bootstrap = bootstrap
        self.names = TopicNames(f"bench{uuid.uuid4().hex[:8]}")
        self.topic = self.names.dead_letter(GROUP)
        layout = Layout(self.names, DelayLevels.default(), dead_letter_partitions=PARTITIONS)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        provision.ensure_topics(admin, [*layout.shared(), *layout.for_group(GROUP, with_log=False)])
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
        for number in range(count):
            cause = CAUSES[number % len(CAUSES)]
            envelope = Envelope(
                shim=1, uniq_key=f"{number:032X}", retry_topic="orders", origin_message_id=f"orders/0/{number}",
                reconsume_times=16, consumer_group=GROUP, fail_class=cause, fail_text=f"{cause} of order {number}",
                fail_at_ms=1,
            )  # fmt: skip
            headers: Any = encode(envelope)
            while len(producer) >= MOST_PENDING:
                producer.poll(0.1)
            producer.produce(self.topic, b"x" * body_bytes, b"k%d" % number, headers=headers)
        producer.flush(DEADLINE_S)

    @contextmanager
    def console(self) -> Iterator[tuple[int, Tab]]:
        """The id of a console's process, and a tab."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory(prefix="rocketshim-bench-") as folder:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "rocketshim", "console", "--operate", "--listen", str(port), "--state-dir",
                    folder, "--namespace", self.names.namespace, "--bootstrap", self.bootstrap,
                ],
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                login = re.search(r"/login\?token=\S+", process.stderr.readline() if process.stderr else "")
                if login is None:
                    raise RuntimeError("the console has not started")
                yield process.pid, _open_tab(port, login[0])
            finally:
                process.terminate()
                process.wait(60)


def _open_tab(port: int, login: str) -> Tab:
    deadline_s = time.monotonic() + 60
    while True:
        with suppress(ConnectionError):
            return Tab(port, login)
        if time.monotonic() > deadline_s:
            raise TimeoutError("the console does not listen")
        time.sleep(0.05)


def resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1_024  # type: ignore[index]


def connections(pid: int, bootstrap: str) -> int:
    """How many connections of a process to the broker are open."""
    port = int(bootstrap.rpartition(":")[2])
    ours = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        int(line[2].partition(":")[2], 16) == port and line[3] == "01" and f"socket:[{line[9]}]" in ours
        for line in lines
    )


def pages(stage: Stage) -> None:
    with stage.console() as (_, tab):
        first_ms = tab.ms("/")
        time.sleep(6)  # the first snapshot
        for path, reach in (
            ("/", "≤ 300 ms"),
            ("/tiles", "≤ 300 ms"),
            (f"/dead/{stage.topic}", "≤ 2,000 ms, ≤ 32 MiB"),
        ):
            times, text = [], ""
            for _ in range(ROUNDS):
                _, text, ms = tab.ask("GET", path)
                times.append(ms)
            read = re.search(r"\(([\d,]+ records, [^,]+, \d+ % of the offsets)", text)
            shown = f"p50 {statistics.median(times):.0f} ms, max {max(times):.0f}" + (f"; {read[1]}" if read else "")
            table.say(f"`{path.replace(stage.topic, 'TOPIC')}`", reach, shown)
        table.say("`/`, as the console's first page", "≤ 300 ms", f"{first_ms:.0f} ms")


def tab(stage: Stage, seconds: float) -> None:
    with stage.console() as (pid, opened):
        opened.ask("GET", "/")
        end_s = time.monotonic() + seconds
        sizes: list[float] = []
        while time.monotonic() < end_s:
            opened.ask("GET", "/tiles")
            if len(sizes) % 12 == 0:
                opened.ask("GET", f"/dead/{stage.topic}")
            sizes.append(resident_mib(pid))
            time.sleep(5)
        warm = sizes[len(sizes) // 10 :]
        shown = f"{warm[0]:.0f} MiB after a tenth of it, then {min(warm):.0f} to {max(warm):.0f}, last {warm[-1]:.0f}"
        table.say(f"memory, a tab that polls for {seconds / 60:.0f} minutes", "± 16 MiB", shown)


def idle(stage: Stage) -> None:
    with stage.console() as (pid, opened):
        opened.ask("GET", "/")
        opened.ask("GET", f"/dead/{stage.topic}")
        time.sleep(2)
        before = connections(pid, stage.bootstrap)
        time.sleep(IDLE_S)
        shown = f"{before} with a tab, {connections(pid, stage.bootstrap)} {IDLE_S:.0f} s after the last page"
        table.say("connections to the broker", "0 without a tab", shown)


def crowd(stage: Stage) -> None:
    _make_groups(stage)
    with stage.console() as (pid, opened):
        opened.ask("GET", "/")
        time.sleep(20)  # the first snapshots
        opened.refused_as.add(503)
        end_s = time.monotonic() + CROWD_S
        statuses: list[int] = []

        def read() -> None:
            while time.monotonic() < end_s:
                statuses.append(opened.ask("GET", f"/dead/{stage.topic}")[0].status)

        readers = [threading.Thread(target=read) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        times, sizes = [], []
        while time.monotonic() < end_s:
            times.append(opened.ms("/"))
            sizes.append(resident_mib(pid))
            time.sleep(0.2)
        for reader in readers:
            reader.join()
    shown = f"p50 {statistics.median(times):.0f} ms, max {max(times):.0f}, {max(sizes):.0f} MiB"
    table.say(
        f"`/` with {GROUPS:,} groups beside {READERS} readers", "≤ 300 ms, ≤ 256 MiB",
        f"{shown}; {statuses.count(200)} lists read, {statuses.count(503)} times busy",
    )  # fmt: skip


def _make_groups(stage: Stage) -> None:
    """Groups of the shim, each with a position."""
    names, admin = stage.names, AdminClient({"bootstrap.servers": stage.bootstrap})
    orders, groups = f"{names.namespace}.orders", [f"group-{number}" for number in range(GROUPS)]
    topics = [orders, *(names.retry(group) for group in groups)]
    for at in range(0, len(topics), 100):
        for future in admin.create_topics([NewTopic(topic, 1) for topic in topics[at : at + 100]]).values():
            future.result(120)
    for group in groups:
        consumer = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": group, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition(orders, 0, 0)], asynchronous=False)
        consumer.close()


def plan(stage: Stage) -> None:
    with stage.console() as (_, opened):
        form = urlencode({"where": "FAIL_CLASS = 'KeyError'"})
        answer, _, made_ms = opened.ask("POST", f"/dead/{stage.topic}/plans", form)
        path = answer.getheader("location") or ""
        size = re.search(r"Send again ([\d,]+) records", opened.ask("GET", path)[1])
        number = size[1].replace(",", "") if size else ""
        began_s = time.perf_counter()
        opened.ask("POST", f"{path}/apply", urlencode({"count_typed": number}))
        while "left: 0" not in (text := opened.ask("GET", f"{path}/progress")[1]):
            if time.perf_counter() - began_s > DEADLINE_S:
                raise TimeoutError(text)
            time.sleep(0.2)
        applied_s = time.perf_counter() - began_s
        table.say(f"a plan of {number} letters", "–", f"made in {made_ms:.0f} ms, applied in {applied_s:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="pages, tab, idle, crowd, plan; default all of them")
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=1_024, help="bytes of each dead letter's body")
    parser.add_argument("--seconds", type=float, default=600, help="how long the tab polls")
    chosen = parser.parse_args()
    with any_broker() as broker:
        stage = Stage(broker.bootstrap, chosen.letters, chosen.body)
        rows = {
            "pages": lambda: pages(stage),
            "tab": lambda: tab(stage, chosen.seconds),
            "idle": lambda: idle(stage),
            "crowd": lambda: crowd(stage),
            "plan": lambda: plan(stage),
        }
        print(f"{chosen.letters:,} dead letters of {chosen.body} bytes")
        table.head()
        for row in chosen.rows or rows:
            rows[row]()


if __name__ == "__main__":
    main()
