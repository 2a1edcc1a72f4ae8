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

import argparse
import asyncio
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

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from rocketshim import ConsumeFromWhere, LevelTableRetryPolicy, PushConsumer
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.kafka.client_config import CONSUMER_DEFAULTS
from rocketshim_local import any_broker
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout

CLIENT = {name: value for name, value in CONSUMER_DEFAULTS.items() if name != "client.id"}
PREFETCHED = {**CLIENT, "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 2_000_000}
PREFETCH_S = 6.0
OTHERS: list[tuple[str, str | bytes | None]] = [(f"header-{number}", b"value-%d" % number) for number in range(5)]
HEADERS = [("TAGS", b"other"), *OTHERS]
WANTED = [("TAGS", b"wanted"), *OTHERS]  # each tenth message, in fives of a partition
PARTITIONS = 4
ROUNDS = 5
SLEEP_S = 0.001
_SMALL_BYTES = 200


def own_cpu_s() -> float:
    """CPU seconds of all threads that Python knows of."""
    total = 0
    for thread in threading.enumerate():
        with contextlib.suppress(OSError):  # it has ended
            total += int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
    return total / 1e9


def peak_mib() -> float:
    """The most memory this process has had; `getrusage` would count what its parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10


class Meter:
    """First and last message, and the CPU between them."""

    def __init__(self, count: int, cpu_s: Callable[[], float] = own_cpu_s) -> None:
        self.count = count
        self._cpu_s = cpu_s
        self.seen = 0
        self.over = threading.Event()
        self._began = (0.0, 0.0)
        self._ended = (0.0, 0.0)

    def begin(self) -> None:
        self._began = (time.perf_counter(), self._cpu_s())

    def add(self, count: int) -> None:
        if not self.seen:
            self.begin()
        self.seen += count
        if self.seen >= self.count:
            self.end(self.seen)

    def end(self, seen: int) -> None:
        self.seen = seen
        self._ended = (time.perf_counter(), self._cpu_s())
        self.over.set()

    def figures(self) -> dict[str, float]:
        seconds = self._ended[0] - self._began[0]
        cpu = self._ended[1] - self._began[1]
        return {"per_s": self.seen / seconds, "cpu_us": cpu / self.seen * 1e6, "seconds": seconds}


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


def executor(bootstrap: str, topic: str, count: int, *, prefetched: bool = False) -> dict[str, float]:
    """What is often written by hand: `submit` a message, wait for the futures of what was fetched, commit.

    It does less than a push consumer does: no retry, no flow control, and one slow message holds up its whole batch.
    """
    consumer = raw_consumer(bootstrap, topic, PREFETCHED if prefetched else CLIENT)
    meter = Meter(count)
    while prefetched and not consumer.assignment():
        consumer.poll(0.01)
    time.sleep(PREFETCH_S if prefetched else 0)

    def handle(message: Any) -> None:
        message.value()

    with ThreadPoolExecutor(20) as pool:
        while not meter.over.is_set():
            first = consumer.poll(0.1)
            if first is None:
                continue
            if not meter.seen:
                meter.begin()
            fetched: list[Any] = [first, *consumer.consume(999, 0)]
            batch = [message for message in fetched if message.error() is None]
            for future in [pool.submit(handle, message) for message in batch]:
                future.result()
            ends = {(message.topic(), message.partition()): message.offset() + 1 for message in batch}
            consumer.commit(offsets=[TopicPartition(*place, end) for place, end in ends.items()], asynchronous=True)
            meter.seen += len(batch)
            if meter.seen >= count:
                meter.end(meter.seen)
    consumer.close()
    return meter.figures()


def noop(message: Any) -> None:
    message.body  # noqa: B018 - an untouched value does not count


def noop_batch(messages: Any) -> None:
    for message in messages:
        message.body  # noqa: B018


def sleeping(message: Any) -> None:
    message.body  # noqa: B018
    time.sleep(SLEEP_S)


async def awaiting(message: Any) -> None:
    message.body  # noqa: B018
    await asyncio.sleep(SLEEP_S)


def failing(share: int) -> Callable[[Any], None]:
    """This number of 100 messages fails."""

    def handle(message: Any) -> None:
        message.body  # noqa: B018
        if message.queue_offset % 100 < share:
            raise OSError

    return handle


def fetch_later(reader: PartitionReader) -> None:
    """Let the poll thread sleep once before it fetches; return when it has."""
    fetch, slept = reader.fetch, threading.Event()

    def fetch_late(count: int, wait_s: float) -> Any:
        time.sleep(PREFETCH_S)
        reader.fetch = fetch  # type: ignore[method-assign]
        slept.set()
        return fetch(count, wait_s)

    reader.fetch = fetch_late  # type: ignore[method-assign]
    slept.wait()


def shim(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    listener: Callable[..., Any] = noop,
    batch: int = 1,
    prefetched: bool = False,
    tags: str | None = None,
) -> dict[str, float]:
    """The push consumer; what fails is sent back, for two hours."""
    consumer = PushConsumer(
        bootstrap,
        group=uuid.uuid4().hex,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=batch,
        retry_policy=LevelTableRetryPolicy(18),
        async_concurrency=1_000,
        client=PREFETCHED if prefetched else CLIENT,
    )
    consumer.register_message_listener(topic, listener, tags=tags)
    consumer.start()
    loop = consumer._loop  # noqa: SLF001 - read from outside, so that the listener need not count under a lock
    assert loop is not None
    if prefetched:  # the poll thread sleeps, librdkafka does not
        consumer.wait_assigned()
        fetch_later(loop.reader)
    sent_back = loop.dispatch.send_back

    def done() -> int:
        return loop.dispatch.counts.succeeded + sent_back.counts.retried

    while not (before := done()):
        time.sleep(0.0005)
    meter = Meter(count - before)
    meter.begin()
    while done() < count:
        time.sleep(0.002)
    meter.end(done() - before)
    figures = meter.figures() | {"rss_mib": peak_mib()}
    consumer.stop()
    return figures


def sleepers(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """20 threads that sleep 1 ms again and again, and nothing else."""
    del bootstrap, topic
    meter = Meter(count, time.process_time)  # its threads have ended when it is over

    def work() -> None:
        for _ in range(count // 20):
            time.sleep(SLEEP_S)

    threads = [threading.Thread(target=work) for _ in range(20)]
    meter.begin()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meter.end(count)
    return meter.figures()


def async_sleepers(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """1,000 coroutines that sleep 1 ms again and again, and nothing else."""
    del bootstrap, topic
    meter = Meter(count)

    async def work() -> None:
        for _ in range(count // 1_000):
            await asyncio.sleep(SLEEP_S)

    async def all_of_them() -> None:
        await asyncio.gather(*(work() for _ in range(1_000)))

    meter.begin()
    asyncio.run(all_of_them())
    meter.end(count)
    return meter.figures()


def stuck(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """One message never ends, all others do: what is held of its queue, and where the queue's commit stands."""
    consumer = PushConsumer(
        bootstrap, group=uuid.uuid4().hex, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, client=CLIENT,
        persist_consumer_offset_interval_ms=200,
    )  # fmt: skip
    go = threading.Event()

    def handle(message: Any) -> None:
        message.body  # noqa: B018
        if (message.queue_id, message.queue_offset) == (0, 0):
            go.wait()

    consumer.register_message_listener(topic, handle)
    before = peak_mib()
    most_held = most_span = 0
    with consumer:
        loop = consumer._loop  # noqa: SLF001 - as above
        assert loop is not None
        while loop.dispatch.counts.succeeded < count * (PARTITIONS - 1) // PARTITIONS:
            time.sleep(0.05)
            held = [queue for queue in loop.mode.queues if queue.key == (topic, 0)]
            most_held = max(most_held, *(queue.msg_count for queue in held), 0)
            most_span = max(most_span, *(queue.span for queue in held), 0)
        time.sleep(1)
        state = consumer.state
        assert state is not None
        (mine,) = [queue for queue in state.queues if (queue.topic, queue.queue_id) == (topic, 0)]
        go.set()
    return {
        "per_s": 1.0,
        "cpu_us": 0.0,
        "held": most_held,
        "committed": max(0, mine.committed),
        "span": most_span,
        "rss_mib": peak_mib() - before,
    }


SIDES: dict[str, Callable[[str, str, int], dict[str, float]]] = {
    "raw": raw,
    "executor": executor,
    "executor-prefetched": lambda *where: executor(*where, prefetched=True),
    "raw-prefetched": lambda *where: raw(*where, prefetched=True),
    "batch32": lambda *where: shim(*where, listener=noop_batch, batch=32),
    "batch32-prefetched": lambda *where: shim(*where, listener=noop_batch, batch=32, prefetched=True),
    "batch1-prefetched": lambda *where: shim(*where, prefetched=True),
    "batch1": shim,
    "filtered": lambda *where: shim(*where, tags="wanted"),
    "filtered-prefetched": lambda *where: shim(*where, tags="wanted", prefetched=True),
    **{f"fails{share}": lambda *where, share=share: shim(*where, listener=failing(share)) for share in (1, 10, 100)},
    "async-sleepers": async_sleepers,
    "async1ms": lambda *where: shim(*where, listener=awaiting),
    "stuck": stuck,
    "sleepers": sleepers,
    "sleep1ms": lambda *where: shim(*where, listener=sleeping),
}

ROWS = {
    "no-op, batches of 32, steady": ("raw", "batch32", 400_000, 0.85),
    "no-op, batch of 1, steady": ("raw", "batch1", 400_000, 0.70),
    "no-op, batches of 32, prefetched": ("raw-prefetched", "batch32-prefetched", 300_000, 0.85),
    "no-op, batch of 1, prefetched": ("raw-prefetched", "batch1-prefetched", 300_000, 0.70),
    "90 % filtered away by tag, steady": ("raw", "filtered", 400_000, 0.60),
    "90 % filtered away by tag, prefetched": ("raw-prefetched", "filtered-prefetched", 300_000, 0.60),
    "1 % fail once": ("batch1", "fails1", 800_000, 0.90),
    "10 % fail once": ("batch1", "fails10", 400_000, 0.50),
    "100 % fail once": ("batch1", "fails100", 60_000, 0.10),
    "async, 1 ms, 1,000 concurrent": ("async-sleepers", "async1ms", 200_000, None),
    "against an executor per message, steady": ("executor", "batch1", 200_000, 5),
    "against an executor per message, prefetched": ("executor-prefetched", "batch1-prefetched", 200_000, 5),
    "1 ms of sleep, 20 threads": ("sleepers", "sleep1ms", 60_000, 0.90),
}


def in_process(side: str, bootstrap: str, topic: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.consumer", "--side", side, bootstrap, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def fill(bootstrap: str, count: int, size_bytes: int = 1_024) -> str:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
    provision.ensure_topics(admin, Layout(TopicNames(), DelayLevels.default()).shared(), create=True)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
    body = os.urandom(size_bytes)
    many, few = (HEADERS, WANTED) if size_bytes > _SMALL_BYTES else ([], [])
    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic, body, partition=number // 500 % PARTITIONS, headers=many if number % 10 else few
                )
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 100:
            producer.poll(0)
    producer.flush()
    return topic


def ten_million(bootstrap: str, most: int = 10_000_000) -> None:
    """Is a long way slower, a message, than a short one? Of 200 B, batch of 1; takes 3 GB of disk."""
    topic = fill(bootstrap, most, _SMALL_BYTES)
    ratios = []
    for number in range(ROUNDS + 1):
        short = in_process("batch1", bootstrap, topic, most // 10)
        long = in_process("batch1", bootstrap, topic, most)
        if not number:
            continue
        ratios.append(short["per_s"] / long["per_s"])
        print(
            f"  {long['per_s']:,.0f}/s against {short['per_s']:,.0f}/s; CPU {long['cpu_us']:.2f} us a message against "
            f"{short['cpu_us']:.2f}; resident {long['rss_mib']:.0f} MiB against {short['rss_mib']:.0f}",
            flush=True,
        )
    print(f"10 M of 200 B, time a message: {table.spread(ratios)} x that of 1 M (at most 1.1)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*ROWS, "stuck", "ten million")
    shown = ", ".join(f"'{name}'" for name in names).replace("%", "%%")
    parser.add_argument("rows", nargs="*", metavar="row", help=f"part of the name of a row, without any all: {shown}")
    wanted: list[str] = parser.parse_args().rows
    if unknown := [word for word in wanted if not any(word in name for name in names)]:
        parser.error(f"no such row: {', '.join(unknown)}")
    rows = {name: row for name, row in ROWS.items() if not wanted or any(word in name for word in wanted)}
    with any_broker(report=print) as broker:
        topic = fill(broker.bootstrap, max((row[2] for row in rows.values()), default=1))
        for name, (base, side, count, reach) in rows.items():
            ratios, rates, bases, cpus, shares = [], [], [], [], []
            for number in range(ROUNDS + 1):
                pair = {}
                for each in (base, side) if number % 2 else (side, base):
                    pair[each] = in_process(each, broker.bootstrap, topic, count)
                if number:
                    ratios.append(pair[side]["per_s"] / pair[base]["per_s"])
                    rates.append(pair[side]["per_s"])
                    bases.append(pair[base]["per_s"])
                    cpus.append(pair[side]["cpu_us"] - pair[base]["cpu_us"])
                    shares.append(pair[base]["cpu_us"] / pair[side]["cpu_us"])
            wants = "" if reach is None else f" (reach {reach})"
            print(
                f"{name}: {table.spread(ratios)} x {base}{wants}; "
                f"{statistics.median(rates):,.0f}/s against {statistics.median(bases):,.0f}/s; "
                f"{statistics.median(cpus):+.1f} us CPU a message, "
                f"CPU ratio {table.spread(shares)}",
                flush=True,
            )
        if not wanted or "stuck" in wanted:
            small = fill(broker.bootstrap, 1_000_000, _SMALL_BYTES)
            print("one message stuck, a million others:", in_process("stuck", broker.bootstrap, small, 1_000_000))
        if not wanted or "ten million" in wanted:
            ten_million(broker.bootstrap)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 1_000)
        print(json.dumps(SIDES[sys.argv[2]](sys.argv[3], sys.argv[4], int(sys.argv[5]))))
    else:
        main()
