"""How fast the push consumer is, beside the bare Kafka client: `python -m benchmarks.consumer [row …]`.

RAW is `poll()` and then `consume(999, 0)`, `error()` and `value()` on each message, in one thread. Every side reads the
same topic (4 partitions, 1 KiB and 6 headers) with the same librdkafka and garbage-collector settings, as a process of
its own; rounds are interleaved, round 0 is thrown away, a ratio is taken within its round, the figure is the median of
the ratios with their range. Time counts from the first message to the last; CPU is that of the program's own threads
(librdkafka's do the same work on either side) over that time, and its ratio is the steadier one on a busy machine.
The listener touches the value of every message: an untouched value does not count.

On two cores the broker is slower than either side, which hides what the shim costs. So each no-op row is measured
twice: *steady*, as above, and *prefetched*: librdkafka has fetched everything before the clock starts, and only the
program's own work counts. The second is the harder one, and the one that a reader of ratios means.
"""

import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim import ConsumeFromWhere, PushConsumer
from rocketshim.local import any_broker
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout

CLIENT = {
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.message.max.bytes": 1_048_576,
    "fetch.queue.backoff.ms": 50,
}
PREFETCHED = {**CLIENT, "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 2_000_000}
PREFETCH_S = 6.0
HEADERS: list[tuple[str, str | bytes | None]] = [(f"header-{number}", b"value-%d" % number) for number in range(6)]
PARTITIONS = 4
ROUNDS = 5
SLEEP_S = 0.001


def own_cpu_s() -> float:
    """CPU seconds of all threads that Python knows of."""
    total = 0
    for thread in threading.enumerate():
        with contextlib.suppress(OSError):  # it has ended
            total += int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
    return total / 1e9


class Meter:
    """First and last message, and the CPU between them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0
        self.over = threading.Event()
        self._began = (0.0, 0.0)
        self._ended = (0.0, 0.0)

    def begin(self) -> None:
        self._began = (time.perf_counter(), own_cpu_s())

    def add(self, count: int) -> None:
        if not self.seen:
            self.begin()
        self.seen += count
        if self.seen >= self.count:
            self._ended = (time.perf_counter(), own_cpu_s())
            self.over.set()

    def figures(self) -> dict[str, float]:
        seconds = self._ended[0] - self._began[0]
        cpu = self._ended[1] - self._began[1]
        return {"per_s": self.count / seconds, "cpu_us": cpu / self.count * 1e6, "seconds": seconds}


def raw(bootstrap: str, topic: str, count: int, *, prefetched: bool = False) -> dict[str, float]:
    consumer = raw_consumer(bootstrap, topic, PREFETCHED if prefetched else CLIENT)
    meter = Meter(count)
    while prefetched and not consumer.assignment():
        consumer.poll(0.01)
    time.sleep(PREFETCH_S if prefetched else 0)
    while not meter.over.is_set():
        first = consumer.poll(0.1)
        if first is None:
            continue
        batch = [first, *consumer.consume(999, 0)]
        for message in batch:
            if message.error() is None:
                message.value()
        meter.add(len(batch))
    consumer.close()
    return meter.figures()


def raw_consumer(bootstrap: str, topic: str, client: dict[str, int]) -> Consumer:
    consumer = Consumer(
        {
            **client,
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    return consumer


def executor(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """What is often written by hand: `submit` a message, a lock around the offsets."""
    consumer = raw_consumer(bootstrap, topic, CLIENT)
    meter = Meter(count)
    lock = threading.Lock()
    open_offsets: dict[Any, None] = {}

    def handle(message: Any) -> None:
        message.value()
        with lock:
            del open_offsets[message.topic(), message.partition(), message.offset()]
            meter.add(1)

    with ThreadPoolExecutor(20) as pool:
        while not meter.over.is_set():
            first = consumer.poll(0.1)
            if first is None:
                continue
            for message in (first, *consumer.consume(999, 0)):
                if message.error() is None:
                    with lock:
                        open_offsets[message.topic(), message.partition(), message.offset()] = None
                    pool.submit(handle, message)
            while len(open_offsets) > 10_000:
                time.sleep(0.001)
    consumer.close()
    return meter.figures()


def shim(
    bootstrap: str, topic: str, count: int, *, batch: int, sleeps: bool = False, prefetched: bool = False
) -> dict[str, float]:
    consumer = PushConsumer(
        bootstrap,
        group=uuid.uuid4().hex,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=batch,
        client=PREFETCHED if prefetched else CLIENT,
    )
    meter = Meter(count)
    begun = threading.Event()

    def noop(message: Any) -> None:
        message.body  # noqa: B018 - an untouched value does not count
        if not begun.is_set():
            begun.set()
            meter.begin()

    def noop_batch(messages: Any) -> None:
        for message in messages:
            message.body  # noqa: B018
        if not begun.is_set():
            begun.set()
            meter.begin()

    def sleeping(message: Any) -> None:
        noop(message)
        time.sleep(SLEEP_S)

    consumer.register_message_listener(topic, sleeping if sleeps else noop_batch if batch > 1 else noop)
    consumer.start()
    loop = consumer._loop  # noqa: SLF001 - read from outside, so that the listener need not count under a lock
    assert loop is not None
    if prefetched:  # the poll thread sleeps, librdkafka does not
        consumer.wait_assigned()
        loop.ask(lambda _: time.sleep(PREFETCH_S)).result()
        count -= loop.dispatch.counts.succeeded
        begun.clear()
    base = loop.dispatch.counts.succeeded
    meter.count = count
    begun.wait()
    while loop.dispatch.counts.succeeded - base < count:
        time.sleep(0.002)
    meter.seen = 1
    meter.add(count)
    figures = meter.figures()
    consumer.stop()
    return figures


def sleepers(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """20 threads that sleep 1 ms again and again, and nothing else."""
    del bootstrap, topic
    meter = Meter(count)

    def work() -> None:
        for _ in range(count // 20):
            time.sleep(SLEEP_S)

    threads = [threading.Thread(target=work) for _ in range(20)]
    meter.begin()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meter.seen = 1
    meter.add(count)
    return meter.figures()


SIDES: dict[str, Callable[[str, str, int], dict[str, float]]] = {
    "raw": raw,
    "executor": executor,
    "raw-prefetched": lambda *where: raw(*where, prefetched=True),
    "batch32": lambda *where: shim(*where, batch=32),
    "batch32-prefetched": lambda *where: shim(*where, batch=32, prefetched=True),
    "batch1-prefetched": lambda *where: shim(*where, batch=1, prefetched=True),
    "batch1": lambda *where: shim(*where, batch=1),
    "sleepers": sleepers,
    "sleep1ms": lambda *where: shim(*where, batch=1, sleeps=True),
}

ROWS = {
    "no-op, batches of 32, steady": ("raw", "batch32", 400_000, 0.85),
    "no-op, batch of 1, steady": ("raw", "batch1", 400_000, 0.70),
    "no-op, batches of 32, prefetched": ("raw-prefetched", "batch32-prefetched", 300_000, 0.85),
    "no-op, batch of 1, prefetched": ("raw-prefetched", "batch1-prefetched", 300_000, 0.70),
    "an executor per message": ("raw", "executor", 100_000, None),
    "1 ms of sleep, 20 threads": ("sleepers", "sleep1ms", 60_000, 0.90),
}


def in_process(side: str, bootstrap: str, topic: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.consumer", "--side", side, bootstrap, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def fill(bootstrap: str, count: int) -> str:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
    provision.ensure_topics(admin, Layout(TopicNames(), DelayLevels.default()).shared(), create=True)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
    body = os.urandom(1_024)
    for number in range(count):
        while True:
            try:
                producer.produce(topic, body, partition=number // 500 % PARTITIONS, headers=HEADERS)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    return topic


def main(wanted: list[str] | None = None) -> None:
    rows = {name: row for name, row in ROWS.items() if not wanted or any(word in name for word in wanted)}
    with any_broker(report=print) as broker:
        topic = fill(broker.bootstrap, max(row[2] for row in rows.values()))
        for name, (base, side, count, reach) in rows.items():
            ratios, rates, bases, cpus = [], [], [], []
            for number in range(ROUNDS + 1):
                pair = {}
                for each in (base, side) if number % 2 else (side, base):
                    pair[each] = in_process(each, broker.bootstrap, topic, count)
                if number:
                    ratios.append(pair[side]["per_s"] / pair[base]["per_s"])
                    rates.append(pair[side]["per_s"])
                    bases.append(pair[base]["per_s"])
                    cpus.append(pair[side]["cpu_us"] - pair[base]["cpu_us"])
            wants = "" if reach is None else f" (reach {reach})"
            print(
                f"{name}: {statistics.median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}] x {base}{wants}; "
                f"{statistics.median(rates):,.0f}/s against {statistics.median(bases):,.0f}/s; "
                f"{statistics.median(cpus):+.1f} us CPU a message"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 1_000)
        print(json.dumps(SIDES[sys.argv[2]](sys.argv[3], sys.argv[4], int(sys.argv[5]))))
    else:
        main(sys.argv[1:])
