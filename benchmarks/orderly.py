"""What order costs, and how fast queues change hands: `python -m benchmarks.orderly [--rounds N] [row …]`.

* *throughput*: the orderly consumer beside the concurrent one, same topic (4 partitions, 1 KiB, 6 headers), no-op
  listener, each side a process of its own, rounds interleaved, round 0 thrown away, the ratio taken within its round.
* *key*: `order="key"` with one message that fails four times, a second apart, beside a run in which none fails: time
  from the first message to the last of the others. 1,000 keys; the same rounds.
* *claim*: from `want` to the lease of a free queue, beside one `acks=all` produce of the same run, one at a time.
* *takeover*: from the stop of a member (clean, or `kill -9` with a lease of 6 s) to the first message of its queues at
  the other member, which was there before.
"""

import argparse
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from benchmarks.consumer import CLIENT, HEADERS, Meter, shim
from rocketshim import ConsumeFromWhere, PushConsumer
from rocketshim.clock import SystemClock
from rocketshim.kafka.clients import confluent_clients
from rocketshim.locks.lease import Lease
from rocketshim.locks.log_thread import GroupLogThread, connect_group_log
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_local import any_broker
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.message_queue import MessageQueue

PARTITIONS = 4
COUNT = 200_000
KEYS = 1_000
ROUNDS = 5
ROWS = ("throughput", "key", "claim", "takeover")
CLAIMS = 300
TAKEOVERS = 5
SHORT: dict[str, Any] = {"lock_lease_ms": 6_000, "lock_hold_ms": 3_000, "lock_renew_ms": 1_000}

MEMBER = """
import sys
from rocketshim import ConsumeFromWhere, PushConsumer
bootstrap, group, topic = sys.argv[1:]
consumer = PushConsumer(bootstrap, group=group, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, lock_lease_ms=6_000,
                        lock_hold_ms=3_000, lock_renew_ms=1_000)
consumer.register_message_listener(topic, lambda message, context: print("x", flush=True), orderly=True)
consumer.run()
"""


def orderly(
    bootstrap: str, topic: str, count: int, *, order: Literal["queue", "key"] = "queue", failing: bool = False
) -> dict[str, float]:
    consumer = PushConsumer(
        bootstrap,
        group=uuid.uuid4().hex,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        order=order,
        client=CLIENT,
    )
    meter = Meter(count)
    begun, failed = threading.Event(), threading.Event()

    def noop(message: Any) -> None:
        message.body  # noqa: B018 - an untouched value does not count
        if not begun.is_set():
            begun.set()
            meter.begin()

    attempts = 4 if failing else 0

    def failing_once(message: Any) -> None:  # of both sides, since it costs more than what is compared
        noop(message)
        if message.queue_id == 0 and message.queue_offset == 100 and message.reconsume_times < attempts:
            failed.set()
            raise ValueError("no")

    consumer.register_message_listener(topic, failing_once if order == "key" else noop, orderly=True)
    consumer.start()
    loop = consumer._loop  # noqa: SLF001 - read from outside, so that the listener need not count under a lock
    assert loop is not None
    begun.wait()
    waiting = count // KEYS + 1 if failing else 0  # the failing message's key; the others are what is timed
    while loop.dispatch.counts.succeeded < count - waiting:
        time.sleep(0.002)
    meter.seen = 1
    meter.add(count)
    figures = meter.figures()
    assert failed.is_set() or not failing
    consumer.stop()
    return figures


SIDES: dict[str, Callable[[str, str, int], dict[str, float]]] = {
    "concurrent": lambda *where: shim(*where, batch=1),
    "orderly": orderly,
    "key": lambda *where: orderly(*where, order="key"),
    "key-failing": lambda *where: orderly(*where, order="key", failing=True),
}


def in_process(side: str, bootstrap: str, topic: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.orderly", "--side", side, bootstrap, topic, str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(bootstrap: str, topic: str, sides: tuple[str, str], reach: float, rounds: int) -> None:
    base, side = sides
    ratios, rates, bases = [], [], []
    for number in range(rounds + 1):
        pair = {each: in_process(each, bootstrap, topic) for each in ((base, side) if number % 2 else (side, base))}
        if number:
            ratios.append(pair[side]["per_s"] / pair[base]["per_s"])
            rates.append(pair[side]["per_s"])
            bases.append(pair[base]["per_s"])
    print(
        f"{side}: {table.spread(ratios)} x {base} (reach {reach}; "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}); "
        f"{statistics.median(rates):,.0f}/s against {statistics.median(bases):,.0f}/s",
        flush=True,
    )


def new_topic(bootstrap: str, partitions: int = PARTITIONS) -> str:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
    provision.ensure_topics(admin, Layout(TopicNames(), DelayLevels.default()).shared(), create=True)
    return topic


def fill(bootstrap: str) -> str:
    topic = new_topic(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
    body = os.urandom(1_024)
    for number in range(COUNT):
        while True:
            try:
                key = b"%d" % (number // PARTITIONS % KEYS)
                producer.produce(topic, body, key=key, partition=number % PARTITIONS, headers=HEADERS)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    return topic


# --- claims -------------------------------------------------------------------------------------------------------


def granted(log: GroupLogThread) -> Lease:
    while True:
        lease = log.leases.get(timeout=60)
        if lease.stopped is None:
            return lease


def claims(bootstrap: str) -> None:
    group = uuid.uuid4().hex
    admin = AdminClient({"bootstrap.servers": bootstrap})
    provision.ensure_topics(admin, Layout(TopicNames(), DelayLevels.default()).for_group(group, with_log=True))
    log = connect_group_log(
        PushConsumerSettings.make(bootstrap=bootstrap, group=group, client_id="bench"),
        topics=list,
        clients=confluent_clients(),
        clock=SystemClock(),
        admin=admin,
    )
    plain = new_topic(bootstrap, 1)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 0})
    queue = MessageQueue("orders", queue_id=0)
    log.start()
    log.want([queue])
    lease = granted(log)
    claimed, produced = [], []
    for _ in range(CLAIMS):
        log.want([])
        log.release(lease, 0, ())
        time.sleep(0.02)
        began = time.perf_counter()
        log.want([queue])
        lease = granted(log)
        claimed.append((time.perf_counter() - began) * 1_000)
        began = time.perf_counter()
        producer.produce(plain, b"x" * 200)
        producer.flush()
        produced.append((time.perf_counter() - began) * 1_000)
    log.stop(5)
    p99 = statistics.quantiles(claimed, n=100)[98]
    ratio = statistics.median(claimed) / statistics.median(produced)
    print(
        f"claim: p50 {statistics.median(claimed):.1f} ms, p99 {p99:.0f} ms; acks=all produce p50 "
        f"{statistics.median(produced):.1f} ms: {ratio:.1f} x (reach 3)",
        flush=True,
    )


# --- takeovers ----------------------------------------------------------------------------------------------------


class Flow(threading.Thread):
    """Writes a message to every queue each 10 ms."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic = topic

    def run(self) -> None:
        while not self.over.wait(0.01):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"x", partition=partition)
            self._producer.poll(0)
        self._producer.flush()


def takeover(bootstrap: str, number: int) -> float:
    """Seconds from the end of a member by this signal to the first message of the last of its queues."""
    topic, group = new_topic(bootstrap), uuid.uuid4().hex
    last: dict[int, float] = {}
    first_after: dict[int, float] = {}
    stopped_at: list[float] = []

    def note(message: Any) -> None:
        now = time.monotonic()
        last[message.queue_id] = now
        if stopped_at:
            first_after.setdefault(message.queue_id, now)

    flow = Flow(bootstrap, topic)
    flow.start()
    stay = PushConsumer(bootstrap, group=group, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **SHORT)
    stay.register_message_listener(topic, note, orderly=True)
    stay.start()
    command = [sys.executable, "-c", MEMBER, bootstrap, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as goes:
        assert goes.stdout is not None
        for _ in range(50):
            goes.stdout.readline()
        threading.Thread(target=goes.stdout.read, daemon=True).start()
        loop = stay._loop  # noqa: SLF001 - how many queues it holds
        assert loop is not None
        while len(loop.mode.queues) > 3:
            time.sleep(0.01)
        time.sleep(1)
        stopped_at.append(time.monotonic())
        first_after.clear()
        os.kill(goes.pid, number)
        while len(first_after) < PARTITIONS:
            time.sleep(0.005)
        goes.wait()
    took = max(first_after.values()) - stopped_at[0]
    flow.over.set()
    flow.join()
    stay.stop()
    return took


def takeovers(bootstrap: str) -> None:
    for name, number, reach in (("clean stop", signal.SIGTERM, "1"), ("kill -9", signal.SIGKILL, "lease 6 + 3")):
        took = [takeover(bootstrap, number) for _ in range(TAKEOVERS)]
        print(
            f"takeover after {name}: {table.spread(took)} s (reach {reach} s)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"of {', '.join(ROWS)}; without any, all")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of throughput and key")
    given = parser.parse_args()
    rows, rounds = given.rows or ROWS, given.rounds
    if unknown := set(rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    with any_broker(report=print) as broker:
        topic = fill(broker.bootstrap) if {"throughput", "key"} & set(rows) else ""
        if "throughput" in rows:
            compare(broker.bootstrap, topic, ("concurrent", "orderly"), 0.70, rounds)
        if "key" in rows:
            compare(broker.bootstrap, topic, ("key", "key-failing"), 0.90, rounds)
        if "claim" in rows:
            claims(broker.bootstrap)
        if "takeover" in rows:
            takeovers(broker.bootstrap)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 1_000)
        print(json.dumps(SIDES[sys.argv[2]](sys.argv[3], sys.argv[4], int(sys.argv[5]))))
    else:
        main()
