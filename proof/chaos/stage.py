"""The brokers and the processes of a run."""

import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs lack these names
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from proof.chaos.children import start_module
from proof.chaos.clocks import BrokerClocks, ClientClocks
from proof.chaos.plan import LANES, LEVELS, SESSION_S, Lane, Variant
from proof.chaos.program import Job
from proof.chaos.proxy import Proxies
from proof.chaos.sink import Sink
from proof.lines import Process
from proof.transactions.service import GROUP
from proof.writer import HistoryWriter
from rocketshim_local import LocalCluster
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout, TopicSpec
from rocketshim_topics.levels import DelayLevels
from test_support.quota import producer_quota

__all__ = ["BROKERS", "HARNESS", "Running", "Stage"]

BROKERS: Final = 3
SMALL_DISK: Final = 3
"""The node whose disk can be filled up."""
HARNESS: Final = "harness"
_END_S: Final = 60.0
_ABORT_S: Final = 5.0
_LAST_WORDS: Final = 6_000  # characters: the stacks of all threads of a worker
_ANSWER_S: Final = 30.0
_DISK_MIB: Final = 512
_MIB_PER_1000: Final = 3
_APP: Final = "app"
_PROPERTIES: Final = {
    "leader.imbalance.check.interval.seconds": "20",
    "replica.lag.time.max.ms": "6000",
    "metadata.max.idle.interval.ms": "0",  # see integration_tests/stepped_broker.py
    "group.consumer.min.session.timeout.ms": str(int(SESSION_S * 1_000)),
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1_000)),
}


@dataclass(frozen=True, slots=True)
class Running:
    """A process of the run: `place` is its number among those of its role, which its successor takes over."""

    name: str
    role: str
    lane: Lane
    place: int
    popen: "subprocess.Popen[bytes]"


class Stage:
    """A cluster behind proxies, with the topics of a run, its processes, and the sink.

    Args:
        run: folder of the run; the histories of the lanes lie in folders of it.
        rate: messages a second that are sent in all.
        messages: how many will be sent at most, for the size of the small disk.
        clocks: whether the clocks of the brokers can be set.
        variant: in what ways the groups consume.

    Attributes:
        bad_endings: processes that did not end in order after SIGTERM.

    Thread-safety: what starts and ends processes, from any thread; `cluster`, from one.
    """

    def __init__(self, run: Path, *, rate: float, messages: float, clocks: bool, variant: Variant) -> None:
        self._run = run
        self._rate = rate
        self._variant = variant
        self._stack = ExitStack()
        self._lock = threading.RLock()
        self._numbers: Counter[str] = Counter()
        self._plans = itertools.count(1)
        self._running: list[Running] = []
        self.bad_endings: list[str] = []
        for folder in ("logs", "control", *(lane.name for lane in LANES)):
            (run / folder).mkdir()
        self.proxies = Proxies(BROKERS)
        self.clocks = BrokerClocks(run) if clocks else None
        self.client_clocks = ClientClocks(run / "control")
        home = run / "cluster"
        self.disk = self._small_disk(home / f"node-{SMALL_DISK}", messages)
        self.cluster = LocalCluster(
            BROKERS, data_dir=home, report=lambda _: None, properties=_PROPERTIES,
            users={"admin": "admin-secret", _APP: "app-secret"}, advertised_ports=self.proxies.ports,
            jvm_options=() if self.clocks is None else self.clocks.jvm_options,
        )  # fmt: skip
        self.sink = Sink(run / LANES[0].name, LANES[0].group("orderly").name)

    def _small_disk(self, folder: Path, messages: float) -> Path | None:
        """Mount a small disk for one node; None: there is no right to mount."""
        folder.mkdir(parents=True, exist_ok=True)
        size = f"size={_DISK_MIB + messages / 1_000 * _MIB_PER_1000:.0f}m"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
        if os.geteuid() != 0 or not _succeeds(*mount):
            return None
        self._stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=False)
        return folder

    def open(self) -> None:
        """Start the brokers and make the topics."""
        self.proxies.aim({})
        self._start_cluster()
        self.admin = AdminClient({**self.cluster.client_config(), "client.id": HARNESS})
        self.allow_everything()
        levels = DelayLevels.parse(LEVELS)
        stamped = {"message.timestamp.type": "LogAppendTime"}
        for lane in LANES:
            layout = Layout(lane.names, levels)
            specs = [TopicSpec(topic, partitions, config=stamped) for topic, partitions in lane.topics.items()]
            specs += [*layout.shared(), *layout.timers(), layout.check(GROUP)]
            for group in lane.groups:
                if group.mode != "broadcasting":
                    specs += layout.for_group(group.name, with_log=group.mode == "orderly")
            provision.ensure_topics(self.admin, specs)

    def _start_cluster(self) -> None:
        """Start it while the proxies do not know the nodes' ports yet: they learn them as soon as they are chosen."""
        ended = threading.Event()

        def aim() -> None:
            while not ended.wait(0.05):
                ports = node_ports(self._run / "cluster")
                if len(ports) == BROKERS:
                    self.proxies.aim(ports)

        thread = threading.Thread(target=aim)
        thread.start()
        try:
            self.cluster.start()
            self.cluster.touch_internal_topics()
        finally:
            ended.set()
            thread.join()

    @property
    def bootstrap(self) -> str:
        """The addresses for clients: the proxies."""
        return ",".join(f"127.0.0.1:{port}" for port in self.proxies.ports.values())

    @property
    def client(self) -> dict[str, str]:
        """Settings of the clients of the run."""
        config = self.cluster.client_config(_APP)
        return {name: value for name, value in config.items() if name != "bootstrap.servers"}

    # --- rights and quotas -------------------------------------------------------------------------------------------

    def allow_everything(self) -> None:
        """Give the processes of the run every right."""
        kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        self._await(self.admin.create_acls([_right(kind, "*", AclPermissionType.ALLOW) for kind in kinds]))
        cluster = _right(ResourceType.BROKER, "kafka-cluster", AclPermissionType.ALLOW)
        self._await(self.admin.create_acls([cluster]))

    @contextmanager
    def denied(self, kind: Any, name: str, operation: Any) -> Iterator[None]:
        """Take a right away for the time of the block."""
        right = _right(kind, name, AclPermissionType.DENY, operation)
        self._await(self.admin.create_acls([right]))
        try:
            yield
        finally:
            wanted = AclBindingFilter(
                right.restype, right.name, right.resource_pattern_type, right.principal, right.host, right.operation,
                right.permission_type,
            )  # fmt: skip
            self._await(self.admin.delete_acls([wanted]))

    def quota(self, client_id: str, bytes_per_s: int) -> AbstractContextManager[None]:
        """Limit what the producers of a process write to each broker, for the time of the block."""
        config = self.cluster.client_config()
        login = config["sasl.username"], config["sasl.password"]
        return producer_quota(config["bootstrap.servers"], client_id, bytes_per_s, login)

    def _await(self, futures: Any) -> None:
        for future in futures.values():
            future.result(_ANSWER_S)

    # --- processes ---------------------------------------------------------------------------------------------------

    def start(self, lane: Lane, role: str, place: int, *, is_former: bool = False) -> Running:
        """Start a process of a role; a member of a group may be of the former version."""
        with self._lock:
            self._numbers[role] += 1
            name = f"{role}.{lane.name}.{self._numbers[role]}"
            share = self._rate / len(LANES)
            job = Job(
                role=role, lane=lane.name, place=place, name=name, run=str(self._run), bootstrap=self.bootstrap,
                client={**self.client, "client.id": name}, rate=share, port=self.sink.port,
                kip_848=lane is self._variant.kip_848, by_key=self._variant.by_key,
                is_former=is_former,
            )  # fmt: skip
            running = Running(name, role, lane, place, self._popen(name, "proof.chaos.program", job.to_json()))
            self._running.append(running)
            return running

    def _popen(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        return start_module(command, self._run / "logs" / f"{name}.log", self.client_clocks.env(name))

    def of(self, lane: Lane, *roles: str) -> list[Running]:
        """The processes of these roles of a lane that should be running; of no role: all of the lane."""
        with self._lock:
            return [each for each in self._running if each.lane is lane and (not roles or each.role in roles)]

    @property
    def running(self) -> list[Running]:
        """All processes that should be running."""
        with self._lock:
            return list(self._running)

    def ended_by_themselves(self, lane: Lane) -> list[Running]:
        """Processes of a lane that nobody ended, and that are gone."""
        return [running for running in self.of(lane) if running.popen.poll() is not None]

    def was_stuck(self, running: Running) -> bool:
        """Whether a worker has ended itself since a call of its Kafka client did not return (librdkafka 5456, 5511)."""
        return running.popen.poll() == 1 and "worker.stuck" in self._last_words(running.name)

    def release(self, running: Running) -> None:
        """Expect that a process ends by itself."""
        with self._lock:
            self._running.remove(running)

    def kill(self, running: Running) -> None:
        """`kill -9`."""
        self.release(running)
        running.popen.kill()
        running.popen.wait()

    def end(self, running: Running) -> None:
        """End a process in order (SIGTERM); if that takes too long, it is aborted, and writes where its threads are.

        One that has just started may not hear the signal yet, and dies by it.
        """
        self.release(running)
        running.popen.send_signal(signal.SIGTERM)
        try:
            code = running.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            running.popen.send_signal(signal.SIGABRT)  # its faulthandler writes the stacks to its log
            with suppress(subprocess.TimeoutExpired):
                running.popen.wait(_ABORT_S)
            running.popen.kill()
            running.popen.wait()
            self.bad_endings.append(
                f"{running.name} did not end within {_END_S:.0f} s of SIGTERM{self._last_words(running.name)}"
            )
        else:
            if code not in {0, -signal.SIGTERM} and not self.was_stuck(running):
                self.bad_endings.append(f"{running.name} ended with {code} after SIGTERM")

    def _last_words(self, name: str) -> str:
        log = self._run / "logs" / f"{name}.log"
        return f":\n{log.read_text(errors='replace')[-_LAST_WORDS:]}" if log.exists() else ""

    def control(self, running: Running, what: str) -> Path:
        """The file by which the harness controls a process."""
        return self._run / "control" / f"{running.name}.{what}"

    # --- redrives ----------------------------------------------------------------------------------------------------

    def plan_redrive(self, lane: Lane, group: str) -> Path:
        """Plan to send the group's dead letters again."""
        path = self._run / f"plan-{next(self._plans)}.json"
        words = ["dlq", "plan", "--group", group, "--out", str(path), "--namespace", lane.name, *self._options()]
        self._popen("command", "rocketshim", *words).wait(_END_S)
        return path

    def apply_redrive(self, lane: Lane, plan: Path, *, kill_after_s: float | None) -> str:
        """Apply a plan, perhaps not to its end; returns the name of the process."""
        with self._lock:
            self._numbers["redrive"] += 1
            name = f"redrive.{lane.name}.{self._numbers['redrive']}"
        with HistoryWriter(self._run / lane.name, Process(name=name, role="redrive")):
            pass
        if plan.exists():
            process = self._popen(name, "rocketshim", "dlq", "apply", str(plan), *self._options())
            if kill_after_s is not None:
                time.sleep(kill_after_s)
                process.kill()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return name

    def _options(self) -> list[str]:
        settings = (part for name, value in self.client.items() for part in ("--client", f"{name}={value}"))
        return ["--bootstrap", self.bootstrap, *settings]

    def close(self) -> None:
        """End everything; the brokers' data are removed, their logs stay."""
        for running in self.running:
            running.popen.send_signal(signal.SIGCONT)
            self.kill(running)
        self.sink.close()
        self.cluster.stop(timeout_s=1.0)
        self.proxies.close()
        for data in (self._run / "cluster").glob("node-*/data"):
            shutil.rmtree(data, ignore_errors=True)
        self._stack.close()


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 - our own


def node_ports(home: Path) -> dict[int, int]:
    """Read the nodes' own ports from their configuration, by node id; those that are not written yet are missing."""
    ports: dict[int, int] = {}
    for path in home.glob("node-*/server.properties"):
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith("listeners="):
                ports[int(path.parent.name.removeprefix("node-"))] = int(line.partition(",")[0].rpartition(":")[2])
    return ports


def _right(kind: Any, name: str, permission: Any, operation: Any = AclOperation.ALL) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{_APP}", "*", operation, permission)
