"""The harness of runs under faults: named points, the choice of faults, and what it counts as wrong."""

import asyncio
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proof.__main__ import main
from proof.chaos import lane_faults
from proof.chaos import proxy as proxy_module
from proof.chaos import stage as stage_module
from proof.chaos.cluster_faults import CLUSTER_FAULTS
from proof.chaos.fault import PointNotReachedError
from proof.chaos.lane_faults import LANE_FAULTS
from proof.chaos.plan import LANES, Lane, Variant
from proof.chaos.points import Points
from proof.chaos.program import Job, _Program
from proof.chaos.proxy import Proxies
from proof.chaos.run import Course, _Hand
from proof.chaos.stage import Running, Stage
from proof.lines import Process
from proof.writer import HistoryWriter

CALLS = """
import sys
from contextlib import suppress
from pathlib import Path
from proof.chaos.points import Points
from rocketshim import dropin  # as in a process of the run
from rocketshim.kafka.clients import confluent_clients

Points(Path(sys.argv[1]), "pay").install()
clients = confluent_clients()
producer = clients.producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "transactional.id": "t"})
consumer = clients.consumer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "group.id": "g"})
with suppress(Exception):
    consumer.commit(asynchronous=True)
with suppress(Exception):
    clients.producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}).produce("orders", b"")
with suppress(Exception):
    producer.send_offsets_to_transaction([], consumer.consumer_group_metadata(), 0.1)
with suppress(Exception):
    producer.commit_transaction(0.1)
print("survived", flush=True)
import os
os._exit(0)
"""


@pytest.mark.parametrize(
    ("point", "is_reached"),
    [
        ("commit-before", True),
        ("produce-before", True),
        ("produce-after", True),
        ("send_offsets_to_transaction-before", True),
        ("commit_transaction-before", True),
        ("listener", False),
    ],
)
def test_a_process_dies_at_the_point_for_which_it_is_armed(tmp_path: Path, point: str, is_reached: bool) -> None:
    (tmp_path / "pay.point").write_text(point)
    command = [sys.executable, "-c", CALLS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    assert (done.returncode, done.stdout) == ((-signal.SIGKILL, "") if is_reached else (0, "survived\n")), done.stderr


def hand(tmp_path: Path, only: str = "", seed: int = 1) -> _Hand:
    course = Course(seed=seed, minutes=1, rate=1, only=frozenset({only}) if only else None)
    stage: Any = None
    return _Hand(stage, course, tmp_path, None, lambda _: None)


def test_a_hand_does_each_kind_once_before_it_chooses_by_weight(tmp_path: Path) -> None:
    first, other = hand(tmp_path), hand(tmp_path, seed=2)
    names = [first._chosen(CLUSTER_FAULTS).kind for _ in CLUSTER_FAULTS]
    assert sorted(names) == sorted(kind.kind for kind in CLUSTER_FAULTS)
    assert names != [other._chosen(CLUSTER_FAULTS).kind for _ in CLUSTER_FAULTS]
    assert first._chosen(CLUSTER_FAULTS) in CLUSTER_FAULTS


def test_a_hand_does_only_the_kinds_that_are_asked_for(tmp_path: Path) -> None:
    only = hand(tmp_path, "kill-9")
    assert [kind.kind for kind in only._wanted(LANE_FAULTS)] == ["kill-9"]
    assert only._wanted(CLUSTER_FAULTS) == []


def test_a_kind_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--only", "kill-9,kill-10", "--folder", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("no such kind: kill-10; there are broker-cut, ")


def test_a_fault_that_fails_makes_the_run_fail_and_a_point_that_is_not_reached_is_a_plain_kill(tmp_path: Path) -> None:
    def fails() -> str:
        raise OSError("no room")

    def misses() -> str:
        raise PointNotReachedError("pay-1")

    one = hand(tmp_path)
    with HistoryWriter(tmp_path, Process(name="harness", role="harness")) as history:
        one.history = history
        one._write("broker-disk-full", fails)
        one._write("kill-9-after-produce", misses)
        one._write("leave", lambda: "pay-2")
    lines = [json.loads(line) for line in (tmp_path / "harness.jsonl").read_text().splitlines()]
    found = [(line["kind"], line["target"]) for line in lines if line["type"] == "fault"]
    assert found == [("broker-disk-full", "cluster"), ("kill-9", "pay-1"), ("leave", "pay-2")]
    assert one.wrong == ["fault broker-disk-full: OSError('no room')"]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(Stage, "_small_disk", lambda *_: None)
    made = Stage(tmp_path, rate=1, messages=1, clocks=False, variant=Variant.of(0))
    yield made
    made.close()


@pytest.fixture
def running(stage: Stage) -> Callable[[str], Running]:
    def start(program: str) -> Running:
        popen = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)  # noqa: S603 - our own
        assert popen.stdout is not None
        with popen.stdout as said:
            said.readline()
        started = Running("pay-1", "consumer", LANES[0], 0, popen)
        stage._running.append(started)
        return started

    return start


def at_sigterm(act: str) -> str:
    return f"import signal, sys\nsignal.signal(15, lambda *_: {act})\nprint(flush=True)\nwhile True: signal.pause()"


@pytest.mark.parametrize(
    ("act", "wrong"),
    [
        ("sys.exit(0)", []),
        ("sys.exit(3)", ["pay-1 ended with 3 after SIGTERM"]),
        ("None", ["pay-1 did not end within 1 s of SIGTERM"]),
    ],
)
def test_a_process_that_does_not_end_in_order_is_noted(
    stage: Stage, running: Callable[[str], Running], monkeypatch: pytest.MonkeyPatch, act: str, wrong: list[str]
) -> None:
    monkeypatch.setattr(stage_module, "_END_S", 1.0)
    stage.end(running(at_sigterm(act)))
    assert stage.bad_endings == wrong
    assert stage.running == []


def test_a_worker_whose_client_does_not_return_ends_itself_and_that_is_not_wrong(
    stage: Stage, running: Callable[[str], Running], tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "pay-1.log"
    for text, wrong in (("worker.stuck\n", []), ("", ["pay-1 ended with 1 after SIGTERM"])):
        log.write_text(text)
        stage.end(running(at_sigterm("sys.exit(1)")))
        assert stage.bad_endings == wrong


def test_a_process_that_never_ends_says_where_its_threads_are(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "logs" / "pay-1.log"
    program = f"import faulthandler, signal, sys\nfaulthandler.enable()\n{at_sigterm('None')}"
    with log.open("wb") as said:
        command = [sys.executable, "-c", program]
        popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)  # noqa: S603 - our own
    assert popen.stdout is not None
    with popen.stdout as ready:
        ready.readline()
    running = Running("pay-1", "consumer", LANES[0], 0, popen)
    stage._running.append(running)
    monkeypatch.setattr(stage_module, "_END_S", 1.0)
    stage.end(running)
    [wrong] = stage.bad_endings
    assert wrong.startswith("pay-1 did not end within 1 s of SIGTERM:\nFatal Python error: Aborted")
    assert 'File "<string>", line 6 in <module>' in wrong


class Deployment:
    """A stage that only notes who ends and starts, and which quotas are set."""

    def __init__(self, *members: Running) -> None:
        self.members = list(members)
        self.noted: list[tuple[str, str | int, bool]] = []

    def of(self, lane: Lane, *roles: str) -> list[Running]:
        return [each for each in self.members if each.lane is lane and each.role in roles]

    def end(self, running: Running) -> None:
        self.members.remove(running)
        self.noted.append(("end", running.place, "former" in running.name))

    def start(self, lane: Lane, role: str, place: int, *, is_former: bool = False) -> None:
        self.members.append(member(lane, role, place, "former" if is_former else "new"))
        self.noted.append(("start", place, is_former))

    @contextmanager
    def quota(self, client_id: str, bytes_per_s: int) -> Iterator[None]:
        self.noted.append((client_id, bytes_per_s, True))
        yield
        self.noted.append((client_id, bytes_per_s, False))


def member(lane: Lane, role: str, place: int, version: str = "new") -> Running:
    popen: Any = None
    return Running(f"{role}-{place}-{version}", role, lane, place, popen)


def do(kind: str, stage: Any, running: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(lane_faults, "time", SimpleNamespace(sleep=lambda _: None))
    return next(each for each in LANE_FAULTS if each.kind == kind).do(stage, random.Random(1), running)  # noqa: S311


@pytest.mark.parametrize(("role", "group"), [("consumer", "pay"), ("orderly", "bill")])
def test_members_change_their_listeners_one_after_the_other_and_change_back(
    monkeypatch: pytest.MonkeyPatch, role: str, group: str
) -> None:
    first = member(LANES[0], role, 0)
    stage = Deployment(first, member(LANES[0], role, 1), member(LANES[0], "worker", 0), member(LANES[1], role, 0))
    assert do("listeners-changed", stage, first, monkeypatch) == f"group:{group}"
    assert stage.noted == [
        ("end", 0, False), ("start", 0, True), ("end", 1, False), ("start", 1, True),
        ("end", 0, True), ("start", 0, False), ("end", 1, True), ("start", 1, False),
    ]  # fmt: skip


def test_a_quota_is_below_what_the_process_writes_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Deployment()
    for role in ("sender", "worker"):
        do("quota", stage, member(LANES[0], role, 0), monkeypatch)
    assert stage.noted == [
        ("sender-0-new", 10_000, True), ("sender-0-new", 10_000, False),
        ("worker-0-new", 1_000, True), ("worker-0-new", 1_000, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lane", "role", "topics"),
    [
        (LANES[0], "consumer", ["orders", "returns"]),
        (LANES[0], "orderly", ["bills", "returns"]),
        (LANES[1], "consumer", ["claims", "notices"]),
        (LANES[1], "dropin", ["parcels", "notices"]),
    ],
)
@pytest.mark.parametrize("is_former", [False, True])
def test_a_member_of_the_former_version_has_no_listener_for_the_last_topic(
    tmp_path: Path, lane: Lane, role: str, topics: list[str], is_former: bool
) -> None:
    job = Job(
        role=role, lane=lane.name, place=0, name="m", run=str(tmp_path), bootstrap="", client={}, rate=1, port=1,
        kip_848=False, by_key=False, is_former=is_former,
    )  # fmt: skip
    history: Any = None
    program = _Program(Job(**json.loads(job.to_json())), history, Points(tmp_path, "m"))
    assert list(program._topics(lane.group_of(role))) == topics[: len(topics) - is_former]


LATE_S = 0.2


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.transport.abort()


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxies]:
    monkeypatch.setattr(proxy_module, "_LATE_S", LATE_S)
    made = Proxies(1)
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(echo, "127.0.0.1", 0), made._loop).result()
    made.aim({1: server.sockets[0].getsockname()[1]})
    yield made
    made._loop.call_soon_threadsafe(server.close)
    made.close()


def test_replies_to_one_process_are_late_and_none_overtakes_another(proxies: Proxies) -> None:
    header = struct.pack(">ihhih", 13, 0, 0, 0, 5) + b"pay-1"
    with socket.create_connection(("127.0.0.1", proxies.ports[1])) as connection, connection.makefile("rb") as replies:
        connection.sendall(header)
        assert replies.read(len(header)) == header
        with proxies.fault("replies-late", lambda link: link.client == "pay-1"):
            began_s = time.monotonic()
            connection.sendall(b"late")
            connection.sendall(b"later")
            assert replies.read(9) == b"latelater"
            assert time.monotonic() - began_s >= LATE_S
            connection.sendall(b"one")
        connection.sendall(b"two")
        assert replies.read(6) == b"onetwo"
        with proxies.fault("replies-late", lambda link: link.client == "pay-2"):
            connection.sendall(b"in time")
            assert replies.read(7) == b"in time"


def test_a_process_that_ended_before_anyone_ended_it_is_found(stage: Stage, running: Callable[[str], Running]) -> None:
    ended = running("print(flush=True)")
    ended.popen.wait()
    assert stage.ended_by_themselves(LANES[0]) == [ended]
