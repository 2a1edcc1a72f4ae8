"""The worker's throughput on a real broker: `python -m benchmarks.worker --help`; its timing: `worker_timing`; other
shapes of records: `worker_shapes`.

The same schedule records (1 KiB, the shim's six headers as a sender writes them and six of the
user's, four partitions, all due) are moved to a topic of four partitions

* by plain loops, the fastest kinds that Python allows: `consume(1000)`, `produce` with the record's headers as they
  are, positions committed ten times a second and only after the reports; with a counting callback, and with no callback
  and a `flush` before each commit;
* by the worker, in each of its modes.

Each side is a process of its own with the same settings of the garbage collector; the plain loops linger for 20 ms, the
worker for 1. Rounds are interleaved and begin with another side each time; the first round is dropped. The clock runs
from the first record in hand to the last report. Printed are medians with their spread, CPU per record (of the process,
and of the thread that calls Kafka, start included: a figure that other work on the machine moves less), and the ratio
to the faster plain loop *of the same round*.
"""

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.worker import DelayWorker
from rocketshim_local import any_broker
from rocketshim_topics import provision
from rocketshim_topics.hops import delayed_record
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message
from rocketshim_topics.names import TopicNames

LEVELS = "1s 1s 1s 1s"
USER_HEADERS = {f"header-{number}": b"value of this header" for number in range(6)}
PARTITIONS = 4


def tune() -> None:
    """As `rocketshim worker` does."""
    gc.freeze()
    gc.set_threshold(500_000, 50, 1_000)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def report(count: int, began: float, cpu_began: float) -> None:
    used = {"cpu_s": cpu_s() - cpu_began, "thread_s": time.thread_time()}
    print(json.dumps({"count": count, "seconds": time.monotonic() - began, **used}))


def fill(bootstrap: str, names: TopicNames, target: str, count: int, levels_text: str = LEVELS) -> None:
    """Write the schedule records, as a sender does."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    levels = DelayLevels.parse(levels_text)
    body = os.urandom(1_024)
    for number in range(count):
        level = number % PARTITIONS + 1
        message = Message(target, body, key=b"key-%d" % number, delay_level=level, properties=USER_HEADERS)
        now_ms = time.time_ns() // 1_000_000
        out = delayed_record(message, names, levels, uniq_key=f"{number:032X}", born_ms=now_ms, now_ms=now_ms, lane=0)
        headers: Any = out.headers
        producer.produce(out.topic, out.value, out.key, out.partition or 0, headers=headers)
        if number % 1_000 == 999:
            producer.poll(0)
            while len(producer) > 50_000:
                producer.poll(0.05)
    producer.flush(60)


# --- the sides, each in a process of its own -------------------------------------------------------------------------


def plain(bootstrap: str, source: str, target: str, count: int, *, callback: bool) -> None:  # noqa: C901 - one loop
    """The fastest plain loops: with a counting callback, or with a flush before each commit."""
    tune()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": f"bench-{uuid.uuid4().hex}", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "queued.min.messages": 5_000, "queued.max.messages.kbytes": 16_384,
            "fetch.queue.backoff.ms": 10,
        }
    )  # fmt: skip
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random",
            "linger.ms": 20,  # the fastest of 1, 5, 20 and 50; the worker has 1, or its messages would be late
            "topic.metadata.refresh.interval.ms": 300_000,
        }
    )  # fmt: skip
    producer.list_topics(target, timeout=10)
    consumer.assign([TopicPartition(source, number, 0) for number in range(PARTITIONS)])
    acked = 0

    def reported(error: Any, message: Any) -> None:
        nonlocal acked
        del error, message
        acked += 1

    on_delivery = reported if callback else None
    sent, began, cpu_began = 0, 0.0, 0.0
    positions: dict[int, int] = {}
    marks: list[tuple[int, dict[int, int]]] = []
    commit_at = 0.0
    while sent < count or acked < sent:
        batch = consumer.consume(1_000, 0.05 if sent == 0 else 0.001)
        if not began and batch:
            began, cpu_began = time.monotonic(), cpu_s()
        for message in batch:
            while True:
                try:
                    producer.produce(
                        target, message.value(), message.key(), on_delivery=on_delivery, headers=message.headers()
                    )
                except BufferError:
                    producer.poll(0.05)
                else:
                    break
            positions[message.partition() or 0] = (message.offset() or 0) + 1
        sent += len(batch)
        producer.poll(0)
        now = time.monotonic()
        if callback:
            marks.append((sent, dict(positions)))
        if now >= commit_at or sent == count:
            commit_at = now + 0.1
            if callback:
                done = None
                while marks and marks[0][0] <= acked:
                    done = marks.pop(0)[1]
            else:
                producer.flush()
                acked, done = sent, positions
            if done:
                consumer.commit(
                    offsets=[TopicPartition(source, number, at) for number, at in done.items()], asynchronous=True
                )
    report(count, began, cpu_began)
    consumer.close()


def worker(bootstrap: str, namespace: str, target: str, count: int, *, exactly_once: bool) -> None:
    """The worker itself, until it has delivered everything."""
    tune()
    began, cpu_began = 0.0, 0.0

    def point(name: str) -> None:
        nonlocal began, cpu_began
        if not began and name == "before-produce":
            began, cpu_began = time.monotonic(), cpu_s()

    process = DelayWorker(
        WorkerSettings.make(
            bootstrap=bootstrap, namespace=namespace, allow=(target,), delay_levels=LEVELS,
            group=f"bench-{uuid.uuid4().hex}", replay_everything=True, create_topics=False,
            **({"exactly_once": True} if exactly_once else {}),
        ),
        on_point=point,
    )  # fmt: skip
    process.start()
    while process.counts.delivered + process.counts.hopped < count:
        process.step()
    report(count, began, cpu_began)
    process.close()


SIDES: dict[str, Callable[..., None]] = {
    "plain, callback": lambda *a: plain(a[0], TopicNames(a[1]).schedule, a[2], a[3], callback=True),
    "plain, flush": lambda *a: plain(a[0], TopicNames(a[1]).schedule, a[2], a[3], callback=False),
    "worker, at least once": lambda *a: worker(*a, exactly_once=False),
    "worker, exactly once": lambda *a: worker(*a, exactly_once=True),
}


def run_side(side: str, *arguments: object, tree: str | None = None) -> dict[str, float]:
    """Run a side in a process of its own, with the sources of a work tree; None: those of this process."""
    environment = dict(os.environ)
    if tree is not None:
        paths = [str(Path(tree) / part) for part in ("topics", "shim")]
        environment["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker", "--side", side, *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        timeout=300,
        env=environment,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def stage(bootstrap: str, count: int) -> tuple[str, str]:
    """Return a namespace with records that are due, and their target."""
    names = TopicNames(f"bench{uuid.uuid4().hex[:6]}")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
    target = f"{names.namespace}.target"
    admin.create_topics([NewTopic(target, PARTITIONS)])[target].result(30)
    fill(bootstrap, names, target, count)
    time.sleep(2)
    return names.namespace, target


def throughput(bootstrap: str, *, count: int, rounds: int, sides: list[str]) -> None:
    namespace, target = stage(bootstrap, count)
    rates: dict[str, list[float]] = {side: [] for side in sides}
    cpu_us: dict[str, list[float]] = {side: [] for side in sides}
    thread_us: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        turn = number % len(sides)
        for side in sides[turn:] + sides[:turn]:
            found = run_side(side, bootstrap, namespace, target, count)
            if number:
                rates[side].append(count / found["seconds"] / 1_000)
                cpu_us[side].append(found["cpu_s"] / count * 1e6)
                thread_us[side].append(found["thread_s"] / count * 1e6)
    topics = [TopicNames(namespace).schedule, TopicNames(namespace).parked, target]
    for future in AdminClient({"bootstrap.servers": bootstrap}).delete_topics(topics).values():
        future.result(30)
    best_plain = [max(pair) for pair in zip(*(rates[side] for side in sides if side.startswith("plain")), strict=True)]
    reach = {"worker, at least once": "≥ 0.80 × the fastest plain loop", "worker, exactly once": "≥ 0.70 × it"}
    for side in sides:
        ratios = [rate / best for rate, best in zip(rates[side], best_plain, strict=True)]
        table.say(
            f"{side}: {count:,} records of 1 KiB and 6 + 6 headers, all due",
            reach.get(side, "–"),
            f"ratio {table.spread(ratios)}, {table.spread(rates[side], '.0f')} k/s, CPU "
            f"{statistics.median(cpu_us[side]):.1f} µs a record, {statistics.median(thread_us[side]):.1f} of its loop",
        )


def compared(bootstrap: str, *, count: int, rounds: int, sides: list[str], trees: list[str]) -> None:
    """Print what the second tree costs, against the first: CPU, of the whole process and of its loop's thread."""
    namespace, target = stage(bootstrap, count)
    for side in sides:
        ratios: list[tuple[float, float]] = []
        for number in range(rounds + 1):
            order = trees if number % 2 else trees[::-1]
            found = {tree: run_side(side, bootstrap, namespace, target, count, tree=tree) for tree in order}
            before, now = (found[tree] for tree in trees)
            ratios.append((before["cpu_s"] / now["cpu_s"], before["thread_s"] / now["thread_s"]))
        process, thread = zip(*ratios[1:], strict=True)
        table.say(
            f"{side}: {Path(trees[1]).name} against {Path(trees[0]).name}, {count:,} records",
            "≥ 0.95",
            f"CPU {table.spread(process)}, of its loop {table.spread(thread)}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sides", nargs="*", default=list(SIDES))
    parser.add_argument("--side", nargs=5, metavar=("SIDE", "BOOTSTRAP", "NAMESPACE", "TARGET", "COUNT"))
    parser.add_argument("--trees", nargs=2, metavar=("BEFORE", "NOW"), help="compare the worker of two checkouts")
    chosen = parser.parse_args()
    if chosen.side:
        side, bootstrap, namespace, target, count = chosen.side
        SIDES[side](bootstrap, namespace, target, int(count))
        return
    table.head()
    given = {"count": chosen.count, "rounds": chosen.rounds}
    with any_broker() as broker:
        if chosen.trees:
            sides, trees = list(SIDES)[2:], [str(Path(tree).resolve()) for tree in chosen.trees]
            compared(broker.bootstrap, **given, sides=sides, trees=trees)
        else:
            throughput(broker.bootstrap, **given, sides=chosen.sides)


if __name__ == "__main__":
    main()
