"""When the worker delivers, and what it costs to wait: `python -m benchmarks.worker_timing --help`.

* Lateness: messages at a steady rate; late is what lies between *due* (append time of the first schedule record + its
  delay, by the broker's stamps) and *stored* (append time at the target) or *in hand* (the wall clock of a consumer on
  the same machine). A rival beside it reads the same queue and looks at it every 100 ms, as RocketMQ's schedule
  service does. The first two seconds are dropped.
* Any delay: 1.5 s, 7.77 s and 45 s with the default levels; hops and bytes written per message are counted by reading
  the queues afterwards.
* Burst: a hundred thousand sends at one delay, as fast as they can be sent; how late the last one is, against the time
  in which the same worker relays the same records when all of them are due.
* Slow clients: lateness and CPU of the worker while 2,000 clients of its health port send a byte a second and connect
  again five seconds after they were put out, and how long `/ready` takes; in turn with the same without them.
* Backlog: memory, time from the start of the process to its first delivery, and idle CPU, with many records waiting.

The worker is the process `rocketshim worker`; everything else is this process.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from benchmarks import worker as relay
from rocketshim_local import any_broker
from rocketshim_topics import provision
from rocketshim_topics.hops import delayed_record, is_probe
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message
from rocketshim_topics.names import TopicNames
from test_support.ports import free_ports

WARM_UP_S = 2.0
STAMPED = {"message.timestamp.type": "LogAppendTime"}
HAND = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 10, "log_level": 0}


@dataclass
class Stage:
    """One namespace on the broker, with a target for the worker and one for its rival."""

    bootstrap: str
    levels: str
    names: TopicNames = field(default_factory=lambda: TopicNames(f"bench{uuid.uuid4().hex[:8]}"))

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.target, self.rival_target = (f"{self.names.namespace}.{name}" for name in ("target", "rival"))
        provision.ensure_topics(self.admin, Layout(self.names, DelayLevels.parse(self.levels)).shared())
        new = [NewTopic(name, 4, config=STAMPED) for name in (self.target, self.rival_target)]
        for future in self.admin.create_topics(new).values():
            future.result(60)

    def drop(self) -> None:
        topics = [self.names.schedule, self.names.parked, self.target, self.rival_target]
        for future in self.admin.delete_topics(topics).values():
            future.result(60)

    @contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "rocketshim", "worker", "--bootstrap", self.bootstrap, "--namespace",
                self.names.namespace, "--delay-levels", self.levels, "--allow", self.target, *options,
            ],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)

    def record(self, number: int, delay_ms: int, body: bytes) -> Any:
        now_ms = time.time_ns() // 1_000_000
        message = Message(
            self.target, body, key=b"k%d" % number, delay=delay_ms / 1_000, properties={"n": b"%d" % number}
        )
        levels = DelayLevels.parse(self.levels)
        return delayed_record(
            message, self.names, levels, uniq_key=f"{number:032X}", born_ms=now_ms, now_ms=now_ms, lane=0
        )


def send_steadily(stage: Stage, rate: int, seconds: float, delays_ms: list[int], due_ms: dict[int, int]) -> None:
    """Send at a rate; `due_ms` gets when each message is due, by the broker's clock."""
    producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 0, "log_level": 0})
    began = time.monotonic()
    for number in range(round(rate * seconds)):
        delay_ms = delays_ms[number % len(delays_ms)]

        def stored(error: Any, message: Any, number: int = number, delay_ms: int = delay_ms) -> None:
            if error is None:
                due_ms[number] = message.timestamp()[1] + delay_ms

        out = stage.record(number, delay_ms, b"x" * 100)
        producer.produce(out.topic, out.value, out.key, out.partition, on_delivery=stored, headers=out.headers)
        while (left_s := began + (number + 1) / rate - time.monotonic()) > 0:
            producer.poll(left_s)  # ends with each report, so again until it is time
    producer.flush(60)


def rival(bootstrap: str, source: str, partition: str, delay_ms: str, target: str) -> None:
    """A worker that looks at its queue every 100 ms; runs until it is killed."""
    relay.tune()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, **HAND})
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
    consumer.assign([TopicPartition(source, int(partition), 0)])
    waiting: list[Any] = []
    while True:
        time.sleep(0.1)
        waiting += consumer.consume(10_000, 0)
        due_ms = time.time_ns() // 1_000_000 - int(delay_ms)
        ready = [each for each in waiting if each.error() is None and each.timestamp()[1] <= due_ms]
        waiting = waiting[len(ready) :]
        for each in ready:
            if not is_probe(each):
                producer.produce(target, each.value(), each.key(), headers=each.headers())
        producer.flush(10)


def receive(
    stage: Stage, targets: list[str], due_ms: dict[int, int], expected: int, deadline: float
) -> dict[str, dict[int, tuple[int, float]]]:
    """For each target and message: when it was stored and when it was in hand, epoch ms."""
    consumer = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": uuid.uuid4().hex, **HAND})
    consumer.assign([TopicPartition(target, number, 0) for target in targets for number in range(4)])
    found: dict[str, dict[int, tuple[int, float]]] = {target: {} for target in targets}
    while any(len(each) < expected for each in found.values()) and time.monotonic() < deadline:
        first = consumer.poll(0.5)
        if first is None:
            continue
        batch = [first, *consumer.consume(999, 0)]
        now_ms = time.time_ns() / 1e6
        for message in batch:
            if message.error() is None:
                headers: Any = dict(message.headers() or [])
                found[message.topic() or ""].setdefault(int(headers["n"]), (message.timestamp()[1], now_ms))
    consumer.close()
    assert len(due_ms) == expected, f"{len(due_ms)} of {expected} sent"
    return found


def percentiles(values: list[float]) -> str:
    ordered = sorted(values)
    return " / ".join(f"{ordered[min(len(ordered) - 1, int(len(ordered) * share))]:.1f}" for share in (0.5, 0.99, 1.0))


def written(stage: Stage, topic: str) -> tuple[int, int]:
    """Records (probes left out) and bytes in a topic."""
    partitions = stage.admin.list_topics(topic, timeout=30).topics[topic].partitions
    consumer = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": uuid.uuid4().hex, **HAND})
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in partitions}
    consumer.assign([TopicPartition(topic, number, 0) for number, end in ends.items() if end])
    count = size = 0
    silent = 0
    while silent < 5:
        batch = consumer.consume(1_000, 1.0)
        silent = 0 if batch else silent + 1
        for message in batch:
            if message.error() is None and not is_probe(message):
                headers: Any = message.headers() or []
                count += 1
                size += len(message) + len(message.key() or b"") + sum(len(n) + len(v or b"") for n, v in headers)
    consumer.close()
    return count, size


def lateness(
    bootstrap: str, *, mode: str, rate: int, seconds: float, delays_ms: list[int], levels: str, beside: bool = False
) -> str:
    """What was measured: p50 / p99 / max."""
    stage = Stage(bootstrap, levels)
    targets = [stage.target, *([stage.rival_target] if beside else [])]
    expected = round(rate * seconds)
    due_ms: dict[int, int] = {}
    rival_process = None
    if beside:
        arguments = [bootstrap, stage.names.schedule, "0", str(delays_ms[0]), stage.rival_target]
        rival_process = subprocess.Popen([sys.executable, "-m", "benchmarks.worker_timing", "--rival", *arguments])
    try:
        with stage.worker(*(["--exactly-once"] if mode == "exactly-once" else [])):
            time.sleep(5)
            sender = threading.Thread(target=send_steadily, args=(stage, rate, seconds, delays_ms, due_ms))
            sender.start()
            deadline = time.monotonic() + seconds + max(delays_ms) / 1_000 + 60
            found = receive(stage, targets, due_ms, expected, deadline)
            sender.join()
    finally:
        if rival_process is not None:
            rival_process.kill()
            rival_process.wait(30)
    skipped = round(rate * WARM_UP_S)
    medians = []
    parts = []
    for name, target in zip(("worker", "rival, every 100 ms"), targets, strict=False):
        got = {number: at for number, at in found[target].items() if number >= skipped}
        stored = [float(at[0] - due_ms[number]) for number, at in got.items()]
        hand = [at[1] - due_ms[number] for number, at in got.items()]
        early = sum(late < 0 for late in stored)
        medians.append(statistics.median(hand))
        parts.append(
            f"{name}: hand {percentiles(hand)}, stored {percentiles(stored)} ms, early {early}, "
            f"missing {expected - len(found[target])}"
        )
    if beside:
        parts.append(f"rival's p50 in hand {medians[1] / medians[0]:.1f} × the worker's")
    else:
        hops, size = written(stage, stage.names.schedule)
        parts.append(f"{hops / expected:.2f} hops and {size / expected:.0f} bytes written to queues a message")
    stage.drop()
    return "; ".join(parts)


async def crowd(port: int, count: int) -> None:
    """Clients that send a byte a second; runs until it is killed."""

    async def client() -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                for byte in b"GET /ready HTTP/1.1\r\nX: " + b"x" * 600:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(1)
            except OSError:
                await asyncio.sleep(5)

    await asyncio.gather(*(client() for _ in range(count)))


def slow_clients(bootstrap: str, *, mode: str, seconds: float, count: int) -> str:
    """Return what was measured with and without the clients."""
    rate, delay_ms = 200, 1_000
    stage, expected = Stage(bootstrap, "1s"), round(rate * seconds)
    (port,), due_ms, answers_ms = free_ports(1), dict[int, int](), list[float]()
    here = [sys.executable, "-m", "benchmarks.worker_timing", "--crowd", str(port), str(count)]
    clients: subprocess.Popen[bytes] | None = None
    refused = 0
    with stage.worker(
        "--health", f"127.0.0.1:{port}", *(["--exactly-once"] if mode == "exactly-once" else [])
    ) as worker:
        time.sleep(5)
        try:
            if count:
                clients = subprocess.Popen(here)
                time.sleep(5)
            began, cpu_began = time.monotonic(), _cpu_s(worker.pid)
            sender = threading.Thread(target=send_steadily, args=(stage, rate, seconds, [delay_ms], due_ms))
            sender.start()
            while sender.is_alive():
                asked = time.monotonic()
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=30):
                        answers_ms.append((time.monotonic() - asked) * 1_000)
                except OSError:
                    refused += 1
                time.sleep(0.1)
            cpu = (_cpu_s(worker.pid) - cpu_began) / (time.monotonic() - began)
            found = receive(stage, [stage.target], due_ms, expected, time.monotonic() + 60)[stage.target]
        finally:
            if clients is not None:
                clients.kill()
                clients.wait(30)
    stage.drop()
    late = [float(stored_ms - due_ms[number]) for number, (stored_ms, _) in found.items() if number >= rate * WARM_UP_S]
    return (
        f"{count:,} clients: stored {percentiles(late)} ms late, missing {expected - len(found)}, {cpu:.2f} of a core; "
        f"/ready {percentiles(answers_ms)} ms, {refused} of {refused + len(answers_ms)} without an answer"
    )


def burst(bootstrap: str, count: int) -> str:
    """A hundred thousand messages that are due together."""
    delay_ms = 10_000
    stage = Stage(bootstrap, "10s 10s 10s 10s")
    with stage.worker():
        time.sleep(5)
        began = time.monotonic()
        relay.fill(bootstrap, stage.names, stage.target, count, "10s 10s 10s 10s")
        filled_s = time.monotonic() - began
        last_due_ms = _latest_ms(stage, stage.names.schedule, 4) + delay_ms
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, **HAND})
        end = time.monotonic() + 300
        while (stored := _count(consumer, stage.target)) < count and time.monotonic() < end:
            time.sleep(0.2)
        consumer.close()
        last_ms = _latest_ms(stage, stage.target, 4)
    again = relay.run_side("worker, at least once", bootstrap, stage.names.namespace, stage.target, count)
    stage.drop()
    late_s, bound_s = (last_ms - last_due_ms) / 1_000, again["seconds"] + 0.1
    return (
        f"{stored} of {count}, sent in {filled_s:.1f} s: the last one {late_s:.2f} s late; {bound_s:.2f} s is allowed "
        f"(all relayed together in {again['seconds']:.2f} s, + 0.1 s)"
    )


def _count(consumer: Consumer, topic: str) -> int:
    return sum(consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in range(4))


def _latest_ms(stage: Stage, topic: str, partitions: int) -> int:
    """Append time of the last record."""
    consumer = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": uuid.uuid4().hex, **HAND})
    latest = 0
    for number in range(partitions):
        place = TopicPartition(topic, number)
        place.offset = max(0, consumer.get_watermark_offsets(place, 30)[1] - 1)
        consumer.assign([place])
        message = consumer.poll(10)
        if message is not None and message.error() is None:
            latest = max(latest, message.timestamp()[1])
    consumer.close()
    return latest


def backlog(bootstrap: str, counts: list[int], rounds: int) -> None:
    """Memory, start and idle CPU with a number of records waiting."""
    stages = {count: Stage(bootstrap, "1s " + " ".join(["2h"] * 14)) for count in counts}
    for count, stage in stages.items():
        _fill_far(stage, count)
    figures: dict[int, list[tuple[float, float, float]]] = {count: [] for count in counts}
    for turn in range(rounds):
        for count, stage in stages.items():
            figures[count].append(_start_once(stage, turn))
    for count, found in figures.items():
        columns = list(zip(*found, strict=True))
        rss, first, idle = (statistics.median(column) for column in columns)
        table.say(
            f"{count:,} records not yet due",
            "resident within 64 MiB of each other, start within 1.3 ×, idle ≤ 2 %",
            f"{rss:.1f} MiB resident, first delivery after {first:.2f} s ({min(columns[1]):.2f} to "
            f"{max(columns[1]):.2f}), idle with 32 partitions {idle:.2f} % of a core",
        )
    for stage in stages.values():
        stage.drop()


def _fill_far(stage: Stage, count: int) -> None:
    producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 20, "compression.type": "none"})
    body = os.urandom(1_024)
    out = stage.record(0, 7_200_000, body)
    for number in range(count):
        producer.produce(out.topic, body, out.key, 1 + number % 14, headers=out.headers)
        if number % 1_000 == 999:
            producer.poll(0)
            while len(producer) > 50_000:
                producer.poll(0.05)
    assert producer.flush(600) == 0


def _start_once(stage: Stage, turn: int) -> tuple[float, float, float]:
    producer = Producer({"bootstrap.servers": stage.bootstrap})
    out = stage.record(turn, 1_000, b"due")
    producer.produce(out.topic, out.value, out.key, 0, headers=out.headers)
    producer.flush(30)
    time.sleep(2)  # due, and the group of the worker before is empty
    began_ms = time.time_ns() // 1_000_000
    with stage.worker("--client", "session.timeout.ms=6000") as process:
        consumer = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": uuid.uuid4().hex, **HAND})
        end = time.monotonic() + 120
        while _count(consumer, stage.target) <= turn and time.monotonic() < end:
            time.sleep(0.02)
        consumer.close()
        first_ms = _latest_ms(stage, stage.target, 4)
        time.sleep(5)
        before = _cpu_s(process.pid)
        time.sleep(20)
        idle = (_cpu_s(process.pid) - before) / 20 * 100
        rss = next(
            int(line.split()[1]) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )  # fmt: skip
    return rss / 1_024, (first_ms - began_ms) / 1_000, idle


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


ROWS = ("steady", "any", "burst", "slow", "backlog")


def main() -> None:  # noqa: C901 - a row after the other
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=ROWS, choices=ROWS)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--burst", type=int, default=100_000)
    parser.add_argument("--backlog", type=int, nargs="*", default=[0, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--crowd", nargs=2, type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.crowd:
        asyncio.run(crowd(*chosen.crowd))
        return
    if chosen.rival:
        rival(*chosen.rival)
        return
    default = str(DelayLevels.default())
    table.head()
    with any_broker() as broker:
        at = broker.bootstrap
        if "steady" in chosen.rows:
            for mode, reach in (
                ("at-least-once", "hand: p50 ≤ 5, p99 ≤ 60 ms; ≥ 8 × better than the rival"),
                ("exactly-once", "hand: p50 ≤ 20, p99 ≤ 200 ms"),
            ):
                found = lateness(
                    at, mode=mode, rate=500, seconds=chosen.seconds, delays_ms=[1_000], levels="1s", beside=True
                )
                table.say(f"lateness at 500/s, {mode}", reach, found)
        if "any" in chosen.rows:
            for delay_ms in (1_500, 7_770, 45_000):
                found = lateness(
                    at, mode="at-least-once", rate=200, seconds=chosen.seconds, delays_ms=[delay_ms], levels=default
                )
                reach = "0 early; p50 ≤ 50, p99 ≤ 120 ms"
                table.say(f"a delay of {delay_ms / 1_000:g} s, 200/s, at-least-once", reach, found)
        if "burst" in chosen.rows:
            table.say(f"{chosen.burst:,} sends due together", "time to relay them + 100 ms", burst(at, chosen.burst))
        if "slow" in chosen.rows:
            for mode in ("at-least-once", "exactly-once"):
                turns = [slow_clients(at, mode=mode, seconds=chosen.seconds, count=count) for count in (0, 2_000) * 2]
                table.say(f"slow clients at the health port, 200/s, {mode}", "as without them", "; ".join(turns))
        if "backlog" in chosen.rows:
            backlog(at, chosen.backlog, chosen.rounds)


if __name__ == "__main__":
    main()
