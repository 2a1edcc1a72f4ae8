"""The worker's throughput by the shape of its records: `python -m benchmarks.worker_shapes --help`.

The same number of records (1 KiB, all due, four partitions, six headers of the user's) is relayed in six shapes:

* `own`: the headers as our own producer writes them;
* `queue`: the same with `REAL_QID`, the partition that the sender chose;
* `bare`: `REAL_TOPIC` and the user's headers, as a plain Kafka producer in any language writes them;
* `mixed`: the own headers in reverse order, with the user's headers between them;
* `retry`: a failed message on its way to a retry topic, with all headers of its failure;
* `hops`: not due yet, so the worker writes each record to another queue.

Each run is a process of its own, `benchmarks.worker`'s side, which ends when the last record is stored. The runs of one
round follow each other, each round begins with another shape, and the first round is dropped. Printed are the medians,
and the ratios to the own shape *of the same round*: by CPU time of the process, and by the clock. With `--old PATH`,
each run is repeated with the sources of another work tree, and the ratios to that run are printed, too.

The mode `plain loop` shows what the records themselves cost: it moves the same records, unchanged, by the fastest loop
that the client allows in Python. A record with more headers takes longer in every mode.
"""

import argparse
import os
import statistics
import time
import uuid
from collections import defaultdict
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from benchmarks.worker import LEVELS, PARTITIONS, USER_HEADERS, run_side
from rocketshim_local import any_broker
from rocketshim_topics import provision
from rocketshim_topics.hops import Failure, delayed_record, retry
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import Header

SHAPES = ("own", "queue", "bare", "mixed", "retry", "hops")
PLAIN_LOOP = "plain loop"
MODES = {
    PLAIN_LOOP: "plain, callback", "at least once": "worker, at least once", "exactly once": "worker, exactly once",
}  # fmt: skip
GROUP = "g"
HOUR_MS = 3_600_000


class _Fetched:
    """A message that a consumer has fetched and that failed."""

    def __init__(self, headers: list[Header]) -> None:
        self._headers = headers

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return b""

    def headers(self) -> list[Header]:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 2, time.time_ns() // 1_000_000


def headers_of(shape: str, names: TopicNames, target: str, number: int) -> list[Header]:
    """Return the headers of a schedule record."""
    levels, now_ms = DelayLevels.parse(LEVELS), time.time_ns() // 1_000_000
    user: list[Header] = [(name, value) for name, value in USER_HEADERS.items()]
    if shape == "bare":
        return [("REAL_TOPIC", target.encode()), *user]
    uniq_key = f"{number:032X}"
    message = Message(target, b"", key=b"key", delay_level=1, properties=USER_HEADERS)
    own = delayed_record(message, names, levels, uniq_key=uniq_key, born_ms=now_ms, now_ms=now_ms, lane=0).headers
    if shape == "retry":
        failed = _Fetched([("UNIQ_KEY", uniq_key.encode()), ("BORN_TIMESTAMP", b"%d" % now_ms), *user])
        failure = Failure("ValueError", "the card was declined", now_ms)
        return retry(
            failed, names, levels, group=GROUP, trusted=False, failure=failure, reconsume_times=1, level=1,
            delay_ms=None, lane=0,
        ).headers  # fmt: skip
    if shape == "queue":
        return [("REAL_QID", b"%d" % (number % PARTITIONS)), *own]
    if shape == "mixed":
        ours = [header for header in reversed(own) if header[0] not in USER_HEADERS]
        return [header for pair in zip(user, ours, strict=False) for header in pair] + user[len(ours) :] + ours[6:]
    if shape == "hops":
        return [(name, b"%d" % HOUR_MS if name == "DELAY_MS" else value) for name, value in own]
    return own


class Source:
    """Schedule records of one shape in a namespace of their own."""

    def __init__(self, bootstrap: str, shape: str, count: int) -> None:
        self.shape = shape
        self.count = count
        self.names = TopicNames(f"bench{uuid.uuid4().hex[:6]}")
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.target = f"{self.names.namespace}.target"
        self.physical = self.names.retry(GROUP) if shape == "retry" else self.target
        provision.ensure_topics(self.admin, Layout(self.names, DelayLevels.parse(LEVELS)).shared())
        self.admin.create_topics([NewTopic(self.physical, PARTITIONS)])[self.physical].result(30)
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
        body = os.urandom(1_024)
        for number in range(count):
            headers: Any = headers_of(shape, self.names, self.target, number)
            producer.produce(
                self.names.schedule, body, b"key-%d" % number, number % PARTITIONS, headers=headers
            )  # the first four partitions are the four levels
            if number % 1_000 == 999:
                producer.poll(0)
                while len(producer) > 50_000:
                    producer.poll(0.05)
        producer.flush(60)

    def drop(self) -> None:
        topics = [self.names.schedule, self.names.parked, self.physical]
        for future in self.admin.delete_topics(topics).values():
            future.result(30)


class Measured(NamedTuple):
    """One run: CPU time of the whole process in µs a record, and the rate in k/s."""

    cpu_us: float
    rate: float


def run(bootstrap: str, source: Source, mode: str, tree: str | None) -> Measured:
    """Measure a run with the sources of a work tree; None: those of this process."""
    target = source.physical if mode == PLAIN_LOOP else source.target
    used = run_side(MODES[mode], bootstrap, source.names.namespace, target, source.count, tree=tree)
    return Measured(used["cpu_s"] / source.count * 1e6, source.count / used["seconds"] / 1_000)


def measure(bootstrap: str, mode: str, chosen: argparse.Namespace) -> None:
    """Print a row for each shape."""
    sources = {shape: Source(bootstrap, shape, chosen.count) for shape in chosen.shapes}
    trees = [None, chosen.old] if chosen.old else [None]
    runs: dict[tuple[str, str | None], list[Measured]] = defaultdict(list)
    for number in range(chosen.rounds + 1):
        turn = number % len(sources)
        for shape in [*chosen.shapes, *chosen.shapes][turn : turn + len(sources)]:
            for tree in trees if number % 2 else reversed(trees):
                source = sources[shape]
                if shape == "hops" and mode != PLAIN_LOOP:  # relayed, they lie there twice
                    source.drop()
                    source = sources[shape] = Source(bootstrap, shape, chosen.count)
                measured = run(bootstrap, source, mode, tree)
                if number:
                    runs[shape, tree].append(measured)
    for source in sources.values():
        source.drop()
    for shape in chosen.shapes:
        now, own = runs[shape, None], runs["own", None]
        cpu_us, rates = [each.cpu_us for each in now], [each.rate for each in now]
        text = (
            f"CPU {table.spread(cpu_us, '.1f')} µs a record, {statistics.median(rates):.0f} k/s; "
            f"ratio to own {_ratios(now, own)}"
        )
        if chosen.old:
            text += f", to the old code {_ratios(now, runs[shape, chosen.old])}"
        reach = "–" if mode == PLAIN_LOOP else "≥ 0.90 × own"
        table.say(f"{mode}, {shape}: {chosen.count:,} records", reach, text)


def _ratios(some: list[Measured], others: list[Measured]) -> str:
    if not some or not others:
        return "–"
    by_cpu = [other.cpu_us / one.cpu_us for one, other in zip(some, others, strict=True)]
    by_rate = [one.rate / other.rate for one, other in zip(some, others, strict=True)]
    return f"by CPU {table.spread(by_cpu)}, by the clock {table.spread(by_rate)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=80_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--old", metavar="PATH", help="a work tree whose worker is measured beside this one")
    chosen = parser.parse_args()
    table.head()
    with any_broker() as broker:
        for mode in chosen.modes:
            measure(broker.bootstrap, mode, chosen)


if __name__ == "__main__":
    main()
