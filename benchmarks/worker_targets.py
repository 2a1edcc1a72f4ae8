"""The worker with many targets: `python -m benchmarks.worker_targets --help`.

* `unknown`: a number of targets that the worker has never looked up, one message of 1 s delay to each; in turn with a
  bare producer that sends one record to each of as many new topics in one go. Six rounds warm the broker up, each of
  the next three is a row: on a broker that has just started, both take four times as long.
* `steady`: messages at a rate over all targets in turn, beside the same rate to a single one; then once more with one
  target in the midst of them dead: it exists and takes nothing (`min.insync.replicas` above what there is), is deleted
  while it is written to. A minute of it over all targets warms the broker up: on one that has just started, the first
  seconds are late by seconds.

Late is what lies between *due* (append time of the schedule record + its delay) and *stored* (append time at the
target), by the broker's stamps, as p50 / p99 / max; the first two seconds of a steady rate are dropped. A repeat is a
message that lies at its target twice. The worker is the process `rocketshim worker`; it has delivered one message, to
a topic of its own, before a row begins.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from benchmarks.worker_timing import HAND, STAMPED, WARM_UP_S, percentiles
from rocketshim_local import LocalCluster
from rocketshim_local.startup_kit import FULL_COMPILER
from rocketshim_topics import provision
from rocketshim_topics.hops import delayed_record
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message
from rocketshim_topics.names import TopicNames

LEVELS = DelayLevels.parse("1s 2s 3s 10s")
DELAY_MS = 1_000
PARTITIONS = 2
WARM_UP_ROUNDS, ROUNDS = 6, 3
STEADY_WARM_UP_S = 60.0
AT_ONCE = 100  # topics that are created or deleted by one request
MODES = {"at least once": [], "exactly once": ["--exactly-once"]}


class Stage:
    """A namespace with a number of targets, and one more that the worker begins with."""

    def __init__(self, bootstrap: str, count: int) -> None:
        self.bootstrap = bootstrap
        self.names = TopicNames(f"bench{uuid.uuid4().hex[:8]}")
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.first = f"{self.names.namespace}.first"
        self.targets = [f"{self.names.namespace}.t{number}" for number in range(count)]
        provision.ensure_topics(self.admin, Layout(self.names, LEVELS).shared())
        for chunk in _chunks([self.first, *self.targets]):
            for future in self.admin.create_topics(
                [NewTopic(name, PARTITIONS, config=STAMPED) for name in chunk]
            ).values():
                future.result(60)
        while not {self.first, *self.targets} <= self.admin.list_topics(timeout=60).topics.keys():
            time.sleep(0.5)  # what the controller has confirmed comes to the broker later
        self.due_ms: dict[int, int] = {}

    def drop(self) -> None:
        there = self.admin.list_topics(timeout=60).topics
        for chunk in _chunks([name for name in there if name.startswith(self.names.namespace)]):
            for future in self.admin.delete_topics(chunk).values():
                future.result(60)

    @contextmanager
    def worker(self, mode: str) -> Iterator[Path]:
        """A worker that is up; its log."""
        with tempfile.NamedTemporaryFile(prefix="rocketshim-bench-", suffix=".log") as log:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "rocketshim", "worker", "--bootstrap", self.bootstrap, "--namespace",
                    self.names.namespace, "--delay-levels", str(LEVELS), "--allow", f"{self.names.namespace}.*",
                    "--log-format", "json", *MODES[mode],
                ],
                stderr=log,
            )  # fmt: skip
            try:
                producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
                self.send(producer, self.first, -1)
                producer.flush(60)
                end = time.monotonic() + 60
                while not self.read([self.first]) and time.monotonic() < end:
                    time.sleep(0.5)
                yield Path(log.name)
            finally:
                process.terminate()
                process.wait(60)

    def send(self, producer: Producer, target: str, number: int) -> None:
        """Send one message; `due_ms` gets when it is due."""

        def stored(error: Any, message: Any) -> None:
            if error is None:
                self.due_ms[number] = message.timestamp()[1] + DELAY_MS

        now_ms = time.time_ns() // 1_000_000
        message = Message(
            target, b"x" * 100, key=b"k%d" % number, delay=DELAY_MS / 1_000, properties={"n": str(number)}
        )
        out = delayed_record(
            message, self.names, LEVELS, uniq_key=f"{number & 0xFFFFFFFF:032X}", born_ms=now_ms, now_ms=now_ms, lane=0
        )
        headers: Any = out.headers
        producer.produce(out.topic, out.value, out.key, out.partition or 0, on_delivery=stored, headers=headers)

    def read(self, targets: list[str]) -> list[tuple[int, int]]:
        """Number and append time of each message that lies in these topics."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True, **HAND,
                "queued.max.messages.kbytes": 65_536,
            }
        )  # fmt: skip
        found: list[tuple[int, int]] = []
        for chunk in _chunks(targets):
            consumer.assign([TopicPartition(name, number, 0) for name in chunk for number in range(PARTITIONS)])
            ended = 0
            while ended < len(chunk) * PARTITIONS:
                for message in consumer.consume(1_000, 0.2):
                    if message.error() is not None:
                        ended += 1
                        continue
                    headers: Any = dict(message.headers() or [])
                    found.append((int(headers["n"]), message.timestamp()[1]))
        consumer.close()
        return found

    def read_all(self, targets: list[str], expected: set[int], longest_s: float) -> list[tuple[int, int]]:
        """What lies there once all of it has come, or the time is over."""
        end = time.monotonic() + longest_s
        while True:
            found = self.read(targets)
            if expected <= {number for number, _ in found} or time.monotonic() >= end:
                return found
            time.sleep(1)


def _chunks(names: list[str]) -> list[list[str]]:
    return [names[at : at + AT_ONCE] for at in range(0, len(names), AT_ONCE)]


def result(stage: Stage, found: list[tuple[int, int]], numbers: set[int], log: Path) -> str:
    """One row's figures, and what the worker's log says of trouble."""
    late = [float(at - stage.due_ms[number]) for number, at in found if number in numbers]
    times = Counter(number for number, _ in found)
    events = Counter(json.loads(line)["event"] for line in log.read_text().splitlines() if line.startswith("{"))
    trouble = {event: count for event, count in sorted(events.items()) if not event.endswith(("started", "assigned"))}
    return (
        f"late {percentiles(late) if late else '-'} ms, early {sum(each < 0 for each in late)}, "
        f"missing {len(numbers - times.keys())}, repeats {sum(count - 1 for count in times.values())}"
        + (f"; logged {trouble}" if trouble else "")
    )


def unknown(bootstrap: str, mode: str, count: int) -> str:
    stage = Stage(bootstrap, count)
    with stage.worker(mode) as log:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        for number, target in enumerate(stage.targets):
            stage.send(producer, target, number)
        producer.flush(60)
        time.sleep(DELAY_MS / 1_000 + 1)
        numbers = set(range(count))
        row = result(stage, stage.read_all(stage.targets, numbers, 60), numbers, log)
    stage.drop()
    return row


def bare(bootstrap: str, mode: str, count: int) -> str:
    """What a producer alone takes for one record to each of a number of new topics; exactly once, in a transaction."""
    stage = Stage(bootstrap, count)
    transactional = {"transactional.id": stage.names.namespace} if mode == "exactly once" else {}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0, **transactional})
    stamps: list[int] = []

    def stored(_: Any, message: Any) -> None:
        stamps.append(message.timestamp()[1])

    def send(topics: list[str]) -> None:
        if transactional:
            producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, b"x" * 100, b"k", on_delivery=stored)
        producer.flush(60)
        if transactional:
            producer.commit_transaction()

    if transactional:
        producer.init_transactions()
    send([stage.first])
    stamps.clear()
    began_ms = time.time_ns() // 1_000_000
    send(stage.targets)
    stage.drop()
    return percentiles([float(at - began_ms) for at in stamps])


def unknown_rows(bootstrap: str, mode: str, count: int) -> None:
    """Print a row for each round with unknown targets, once the broker is warm."""
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        alone = bare(bootstrap, mode, count)
        measured = f"{unknown(bootstrap, mode, count)}; bare producer {alone} ms"
        if number >= WARM_UP_ROUNDS:
            table.say(f"{mode}: {count} unknown targets", "p50 ≤ 100, max ≤ 500 ms; 0 repeats", measured)


def steady(bootstrap: str, mode: str, count: int, *, rate: int, seconds: float, dead: str = "") -> str:
    """A steady rate over a number of targets."""
    stage = Stage(bootstrap, count)
    total, bad = round(rate * seconds), count // 2 if dead else -1
    with stage.worker(mode) as log:
        if dead == "takes nothing":
            _make_dead(stage, stage.targets[bad])
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        began = time.monotonic()
        for number in range(total):
            stage.send(producer, stage.targets[number % count], number)
            while (left_s := began + (number + 1) / rate - time.monotonic()) > 0:
                producer.poll(left_s)  # ends with each report, so again until it is time
            if dead == "deleted" and number == total // 3:
                stage.admin.delete_topics([stage.targets[bad]])
        producer.flush(60)
        time.sleep(DELAY_MS / 1_000 + 1)
        numbers = {number for number in range(total) if number % count != bad}
        targets = [target for at, target in enumerate(stage.targets) if at != bad]
        found = stage.read_all(targets, numbers, 60)
        row = result(stage, found, {number for number in numbers if number >= rate * WARM_UP_S}, log)
    stage.drop()
    return row


def _make_dead(stage: Stage, target: str) -> None:
    stage.admin.delete_topics([target])[target].result(60)
    time.sleep(1)
    config = {**STAMPED, "min.insync.replicas": "2"}
    stage.admin.create_topics([NewTopic(target, PARTITIONS, config=config)])[target].result(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="unknown, single, steady, takes-nothing, deleted; default all of them")
    parser.add_argument("--bootstrap", help="a broker that runs already; default a local one")
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--unknown", type=int, default=200, help="targets that were not looked up before")
    parser.add_argument("--targets", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120)
    chosen = parser.parse_args()
    steadily = {"single": (1, ""), "steady": (chosen.targets, ""), "takes-nothing": (chosen.targets, "takes nothing")}
    steadily["deleted"] = (chosen.targets, "deleted")
    rows = chosen.rows or ["unknown", *steadily]
    table.head()

    def run(bootstrap: str) -> None:
        if steadily.keys() & set(rows):
            steady(bootstrap, chosen.modes[0], chosen.targets, rate=chosen.rate, seconds=STEADY_WARM_UP_S)
        for row in rows:
            for mode in chosen.modes:
                if row == "unknown":
                    unknown_rows(bootstrap, mode, chosen.unknown)
                    continue
                count, dead = steadily[row]
                figure = f"{chosen.rate}/s over {count:,} targets for {chosen.seconds:.0f} s"
                figure += f", one {dead}" if dead else ""
                reach = "p50 ≤ 10, p99 ≤ 100 ms; 0 repeats" if mode == "at least once" else "2 × a single target's"
                measured = steady(bootstrap, mode, count, rate=chosen.rate, seconds=chosen.seconds, dead=dead)
                table.say(f"{mode}: {figure}", reach, measured)

    if chosen.bootstrap:
        run(chosen.bootstrap)
        return
    with LocalCluster(jvm_options=[FULL_COMPILER]) as broker:
        run(broker.bootstrap)


if __name__ == "__main__":
    main()
