"""A broker with the topics of named timers, the workers on it, and what lies in its topics."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from proof.chaos.children import start_module
from proof.timers.judge import Arrived
from rocketshim import Message, Producer
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import LocalCluster
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.hops import is_probe
from rocketshim_topics.layout import Layout

__all__ = ["LOOK_S", "NAMES", "TARGET", "Stage", "memory_mib", "most_memory_mib", "open_stage"]

TARGET: Final = "order-timeouts"
NAMES: Final = TopicNames()
LOOK_S: Final = 2.0
_STOP_S: Final = 60.0
_MANY: Final = 1_000  # offsets, of which some are probes and the ends of transactions
_STUCK: Final = b"worker.stuck"


@dataclass
class Stage:
    """One broker, and the workers that a run has started.

    Attributes:
        wrong: workers that did what they should not.
    """

    bootstrap: str
    folder: Path
    exactly_once: bool
    wrong: list[str] = field(default_factory=list)
    _running: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def start_worker(self, place: str = "1") -> "subprocess.Popen[bytes]":
        """Start the worker of a place, which has the same name in its group each time."""
        words = ["worker", "--bootstrap", self.bootstrap, "--allow", TARGET]
        words += ["--exactly-once", "--instance", f"timers-{place}"] if self.exactly_once else []
        worker = self._running[place] = start_module(["rocketshim", *words], self._log(place))
        return worker

    def kill(self, place: str = "1") -> None:
        """`kill -9` of the worker of a place."""
        worker = self._running.pop(place)
        worker.kill()
        worker.wait()

    def replace_ended(self) -> None:
        """Start a worker for each that has ended by itself, as its supervisor does.

        One that was stuck in a call of its Kafka client (librdkafka 5456, 5511) is no failure.
        """
        for place, worker in self.running.items():
            if worker.poll() is not None:
                if _STUCK not in self._log(place).read_bytes():
                    self.wrong.append(f"a worker has ended by itself with {worker.returncode}: {self._log(place)}")
                self.start_worker(place)

    @property
    def running(self) -> "dict[str, subprocess.Popen[bytes]]":
        """The workers that should be running, by place."""
        return dict(self._running)

    def end(self) -> None:
        """Stop the workers in order; one that does not stop is killed."""
        for worker in self._running.values():
            worker.terminate()
        for place, worker in self._running.items():
            try:
                worker.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.wrong.append(f"a worker did not end within {_STOP_S:.0f} s: {self._log(place)}")
                worker.kill()
                worker.wait()
        self._running.clear()

    def _log(self, place: str) -> Path:
        return self.folder / f"worker-{place}.log"

    def wait_ready(self) -> None:
        """Wait until the workers deliver a message with a name."""
        with Producer(self.bootstrap) as producer:
            producer.send(Message(TARGET, b"ready", delay=1.0, timer="ready"))
        self.until(lambda: any(each.body == b"ready" for each in self.arrived()), 120.0, "a first message")

    def until(self, fact: Callable[[], bool], longest_s: float, what: str, look_s: float = 0.5) -> None:
        """Wait until a fact holds.

        Raises:
            TimeoutError: it does not in time.
        """
        end_s = time.monotonic() + longest_s
        while not fact():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{what} did not come within {longest_s:.0f} s; see {self.folder}")
            time.sleep(look_s)

    def unapplied(self) -> int:
        """Return about how many commands no worker has applied for good; 0: every one is."""
        with TopicReader(self.bootstrap) as reader:
            spans = reader.spans([NAMES.timers])
            positions = reader.positions(NAMES.worker_group, spans)
            left = {key: (max(low, positions.get(key, 0)), end) for key, (low, end) in spans.items()}
            behind = sum(end - low for low, end in left.values())
            if behind > _MANY:
                return behind
            return sum(not is_probe(record) for record in reader.read_spans(left))

    def pending(self) -> set[bytes]:
        """Return the digests of the names that are pending by the stored state."""
        live: set[bytes] = set()
        with TopicReader(self.bootstrap) as reader:
            for record in reader.read([NAMES.timer_state]):
                (live.discard if record.value() is None else live.add)(record.key())
        return live

    def arrived(self) -> list[Arrived]:
        """Return what lies on the target."""
        with TopicReader(self.bootstrap) as reader:
            return [Arrived(record.value(), record.timestamp()[1]) for record in reader.read([TARGET])]


@contextmanager
def open_stage(folder: Path, *, exactly_once: bool, jvm_options: Sequence[str] = ()) -> Iterator[Stage]:
    """Run a broker with these topics for as long as the block lasts; workers end with it."""
    folder.mkdir(parents=True)
    with LocalCluster(data_dir=folder / "cluster", report=lambda _: None, jvm_options=jvm_options) as cluster:
        admin: Any = AdminClient({**cluster.client_config()})
        layout = Layout(NAMES, DelayLevels.default())
        provision.ensure_topics(admin, [*layout.shared(), *layout.timers()])
        stamped = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
        admin.create_topics([NewTopic(TARGET, 4, config=stamped)])[TARGET].result(60)
        stage = Stage(cluster.bootstrap, folder, exactly_once)
        stage.until(lambda: TARGET in admin.list_topics(timeout=60).topics, 60.0, "the new topic", look_s=0.1)
        try:
            yield stage
        finally:
            stage.end()


def memory_mib(worker: "subprocess.Popen[bytes]") -> float:
    """Return the resident memory of a process; 0: it has ended."""
    try:
        return float(psutil.Process(worker.pid).memory_info().rss) / 2**20
    except psutil.Error:
        return 0.0


def most_memory_mib(worker: "subprocess.Popen[bytes]") -> float:
    """Return the most resident memory that a process has had."""
    for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**10
    return 0.0
