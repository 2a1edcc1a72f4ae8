"""What grows with queues, groups, consumers, keys, topics and members: `python -m benchmarks.scale [row …]`.

* *queues-1*, *queues-3*: 200 partitions in one orderly group of one or three members: from the start of the members to
  all queues running, messages a second over all of them, CPU and records of the group's log while nothing happens, and
  how long the queues of a member that stops (clean, or `kill -9` with a lease of 6 s) stand still.
* *groups*, *groups-exactly-once*: one worker and the retry topics of 1,000 groups, unknown to it before: 200 retries a
  second with a delay of 1 s over all of them; late is what lies between due and stored, by the broker's stamps.
* *consumers*, *dropin*: 50 push consumers of 50 groups, or 50 drop-in consumers, in one process: threads, sockets,
  memory, time to start, CPU while idle, time to stop all of them one after the other.
* *keys*: 10,000 keys of one partition whose first message fails once, `order="key"`: attempts a second, how far the
  commit is meanwhile, time until all is done, and how long a stop takes while they fail.
* *topics*: a cluster with many topics: the start of a consumer with a pattern, its CPU while idle, and `doctor`.
* *watched*: the retry and dead-letter topics of 1,000 groups, each with a position: what one round of the exporter and
  the console takes, the first and the usual one, the process's threads, file handles and memory, and `doctor`.
* *members*: 100 members of one group, in four processes, that start at the same time.

Each row ends after two minutes, done or not; what was not reached is printed as such. Members are processes of their
own, so that CPU is theirs alone; broker and members share the machine. Every row makes its own topics on one broker.
"""

import argparse
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import table
from benchmarks.worker_timing import STAMPED, percentiles
from rocketshim import ConsumeFromWhere, PushConsumer, dropin
from rocketshim.observe.look_up import OffsetLookup
from rocketshim_local import LocalCluster
from rocketshim_topics import DelayLevels, TopicNames, hops, provision
from rocketshim_topics.layout import Layout

PARTITIONS = 200
MESSAGES = 100_000
GROUPS = 1_000
RETRIES = 6_000
RETRIES_A_SECOND = 200
CONSUMERS = 50
KEYS = 10_000
TOPICS = 10_000
MEMBERS = 100
PROCESSES = 4
IDLE_S = 20.0
LIMIT_S = 120.0
SHORT_LEASE: dict[str, Any] = {"lock_lease_ms": 6_000, "lock_hold_ms": 3_000, "lock_renew_ms": 1_000}


# --- processes ------------------------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resources(pid: int) -> dict[str, int]:
    """Threads, sockets and resident MiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    sockets = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets += entry.readlink().name.startswith("socket:")
        except OSError:  # closed meanwhile
            continue
    return {
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "sockets": sockets,
        "resident_mib": int(resident.split()[1]) // 1_024,
    }


def member(options: dict[str, Any]) -> None:
    """Run consumers until SIGTERM; print a line of JSON whenever what they hold or have done changes."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())

    def say(**facts: Any) -> None:
        print(json.dumps({"at": time.monotonic(), **facts}), flush=True)

    consumers: list[Any] = []
    began = time.monotonic()
    for number in range(options["count"]):
        consumers.append(made(options, number))
        if options["dropin"]:
            consumers[-1].subscribe([options["topic"]])
        else:
            consumers[-1].start()
    say(started_s=time.monotonic() - began)
    last: dict[str, Any] = {}
    while not over.wait(0.1 if last.get("queues", 0) and options["dropin"] else 0.02):
        facts = {"queues": held(consumers, options), "done": done(consumers)}
        if facts != last:
            last = facts
            say(**facts)
    began = time.monotonic()
    for consumer in consumers:
        consumer.close() if options["dropin"] else consumer.stop()
    say(stopped_s=time.monotonic() - began)


def made(options: dict[str, Any], number: int) -> Any:
    group = options["group"] + (f"-{number}" if options["own_groups"] else "")
    if options["dropin"]:
        return dropin.Consumer(
            {
                "bootstrap.servers": options["bootstrap"],
                "group.id": group,
                "auto.offset.reset": "earliest",
                "rocketshim.retry.enable": True,
            }
        )
    consumer = PushConsumer(
        options["bootstrap"], group=group, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **options["settings"]
    )
    consumer.register_message_listener(options["topic"], lambda _: None, orderly=options["orderly"])
    return consumer


def held(consumers: list[Any], options: dict[str, Any]) -> int:
    """How many queues are read."""
    if options["dropin"]:
        for consumer in consumers:
            consumer.poll(0)
        return sum(len(consumer.assignment()) for consumer in consumers)
    loops = [consumer._loop for consumer in consumers]  # noqa: SLF001 - what it holds this instant
    return sum(queue.key.topic == options["topic"] for loop in loops for queue in loop.mode.queues)


def done(consumers: list[Any]) -> int:
    """How many messages listeners have finished."""
    loops = [getattr(consumer, "_loop", None) for consumer in consumers]
    return sum(loop.dispatch.counts.succeeded for loop in loops if loop is not None)


class Member:
    """A process that runs consumers."""

    def __init__(self, **options: Any) -> None:
        options = {"count": 1, "orderly": False, "dropin": False, "own_groups": False, "settings": {}} | options
        command = [sys.executable, "-m", "benchmarks.scale", "--member", json.dumps(options)]
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.facts: dict[str, Any] = {"queues": 0, "done": 0}
        self.at: dict[str, float] = {}
        """When a fact was reported last."""
        self.first_done: tuple[float, int] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            facts = json.loads(line)
            at = facts.pop("at")
            for name, value in facts.items():
                if self.facts.get(name) != value:
                    self.at[name] = at
            if self.first_done is None and facts.get("done"):
                self.first_done = (at, facts["done"])
            self.facts |= facts

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        self.process.wait(60)
        self._reader.join(10)
        self.facts["queues"] = 0

    @property
    def pid(self) -> int:
        return self.process.pid


class Row:
    """One row: its members, and the instant at which it gives up."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.until = time.monotonic() + LIMIT_S
        self.members: list[Member] = []
        self.group = f"scale-{uuid.uuid4().hex[:8]}"
        self.topic = f"scale-{uuid.uuid4().hex[:8]}"

    def create(self, partitions: int) -> None:
        self.admin.create_topics([NewTopic(self.topic, partitions)])[self.topic].result(60)
        provision.ensure_topics(self.admin, Layout(TopicNames(), DelayLevels.default()).shared(), create=True)

    def start(self, **options: Any) -> Member:
        started = Member(bootstrap=self.bootstrap, group=self.group, topic=self.topic, **options)
        self.members.append(started)
        return started

    def wait(self, reached: Callable[[], bool]) -> bool:
        """Whether it was reached in time."""
        while not reached():
            if time.monotonic() >= self.until:
                return False
            time.sleep(0.01)
        return True

    def sum(self, fact: str, members: list[Member] | None = None) -> int:
        return sum(each.facts.get(fact, 0) for each in members or self.members)

    def held_s(self, members: list[Member], since: float, count: int = PARTITIONS) -> str:
        """Seconds from an instant until these members hold a number of queues together."""
        if not self.wait(lambda: self.sum("queues", members) == count):
            return f"not reached: {self.sum('queues', members)} of {count}"
        return f"{max(each.at.get('queues', since) for each in members) - since:.1f} s"

    def fill(self, count: int, partitions: int, size_bytes: int = 200) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20})
        body = os.urandom(size_bytes)
        for number in range(count):
            while True:
                try:
                    producer.produce(self.topic, body, partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
            if not number % 100:
                producer.poll(0)
        producer.flush(60)

    def idle_cpu(self, members: list[Member], seconds: float = IDLE_S) -> str:
        """Per cent of a core that each member takes while nothing happens."""
        before = {each.pid: cpu_s(each.pid) for each in members}
        time.sleep(seconds)
        used = [(cpu_s(each.pid) - before[each.pid]) / seconds * 100 for each in members]
        return f"{statistics.mean(used):.1f} % of a core"

    def log_size(self) -> tuple[int, int]:
        """Records and bytes of values in the group's log."""
        return log_size(self.bootstrap, TopicNames().group_log(self.group))

    def end(self) -> None:
        for each in self.members:
            if each.process.poll() is None:
                each.process.kill()
                each.process.wait(30)


def log_size(bootstrap: str, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    consumer.assign([TopicPartition(topic, 0, low)])
    count = size = 0
    while low + count < high:
        for message in consumer.consume(1_000, 1.0):
            if message.error() is None:
                count += 1
                size += len(message)
    consumer.close()
    return count, size


@contextmanager
def row(bootstrap: str) -> Iterator[Row]:
    made_row = Row(bootstrap)
    try:
        yield made_row
    finally:
        made_row.end()


# --- queues ---------------------------------------------------------------------------------------------------------


def queues(bootstrap: str, member_count: int) -> None:
    name = f"{PARTITIONS} queues in order, {member_count} member{'s' if member_count > 1 else ''}"
    with row(bootstrap) as now:
        now.create(PARTITIONS)
        now.fill(MESSAGES, PARTITIONS)
        options: dict[str, Any] = {"orderly": True, "settings": SHORT_LEASE}
        members = [now.start(**options) for _ in range(member_count)]
        table.say(f"{name}: start to all running", "–", now.held_s(members, members[0].began))
        reached = now.wait(lambda: now.sum("done") >= MESSAGES)
        first = min(each.first_done or (0.0, 0) for each in members)
        seconds = max(each.at.get("done", 0.0) for each in members) - first[0]
        rate = f"{(now.sum('done') - first[1]) / seconds:,.0f}/s"
        table.say(f"{name}: messages", "–", rate if reached else f"{now.sum('done'):,} of {MESSAGES:,} in time")
        time.sleep(6)  # until the last commit
        before, began = now.log_size(), time.monotonic()
        cpu = now.idle_cpu(members)
        after, seconds = now.log_size(), time.monotonic() - began
        table.say(f"{name}: idle, a member (renewals each second)", "–", cpu)
        table.say(
            f"{name}: group log while idle",
            "–",
            f"{(after[0] - before[0]) / seconds:.1f} records/s, {(after[1] - before[1]) / seconds / 1_024:.1f} KiB/s",
        )
        if member_count > 1:
            hand_over(now, name, members, options)
        began = time.monotonic()
        for each in members:
            each.end()
        table.say(f"{name}: stop of all, one after the other", "–", f"{time.monotonic() - began:.1f} s")


def hand_over(now: Row, name: str, members: list[Member], options: dict[str, Any]) -> None:
    for how, number in (("clean stop", signal.SIGTERM), ("kill -9, lease 6 s", signal.SIGKILL)):
        leaver = members.pop()
        records = now.log_size()[0]
        began = time.monotonic()
        leaver.end(number)
        took = now.held_s(members, began)
        written = now.log_size()[0] - records
        table.say(f"{name}: {how}, until the others have all", "–", f"{took}; {written} records in the group's log")
        members.append(now.start(**options))
        whole = now.wait(lambda: bool(members[-1].facts["queues"]))
        took = now.held_s(members, members[-1].began)
        table.say(f"{name}: one joins, until all run again", "–", took if whole else "it gets nothing")


# --- groups ---------------------------------------------------------------------------------------------------------


def groups(bootstrap: str, *, exactly_once: bool) -> None:
    name = f"retries of {GROUPS:,} groups, {'exactly once' if exactly_once else 'at least once'}"
    with row(bootstrap) as now:
        names = TopicNames(f"scale{uuid.uuid4().hex[:6]}")
        levels = DelayLevels.default()
        now.create(1)
        provision.ensure_topics(now.admin, Layout(names, levels).shared(), create=True)
        known = [f"g{number}" for number in range(GROUPS)]
        new = [NewTopic(names.retry(group), 1, config=STAMPED) for group in known]
        for future in now.admin.create_topics(new, operation_timeout=60).values():
            future.result(60)
        now.wait(lambda: knows_groups(now))  # a broker that still makes the logs of these topics delays everything
        now.until = time.monotonic() + LIMIT_S
        command = [sys.executable, "-m", "rocketshim", "worker", "--bootstrap", bootstrap]
        command += ["--namespace", names.namespace, "--allow", now.topic]
        with subprocess.Popen(
            [*command, *(["--exactly-once"] if exactly_once else [])], stderr=subprocess.DEVNULL
        ) as it:
            try:
                time.sleep(5)
                late, repeats = relayed(now, names, levels, known)
            finally:
                it.terminate()
                it.wait(60)
        text = f"late {percentiles(late)} ms; {repeats} repeats; {RETRIES - len(late)} of {RETRIES:,} not in time"
        table.say(f"{name}: p50 / p99 / max", "–", text)


def relayed(now: Row, names: TopicNames, levels: DelayLevels, known: list[str]) -> tuple[list[float], int]:
    """How late each retry was stored in its group's retry topic, in ms, and how many came twice."""
    producer = Producer({"bootstrap.servers": now.bootstrap, "linger.ms": 0, "log_level": 0})
    producer.produce(now.topic, b"x" * 100, key=b"k", partition=0)
    producer.flush(30)
    reader = Consumer(
        {"bootstrap.servers": now.bootstrap, "group.id": now.group, "enable.auto.commit": False, "log_level": 0}
    )
    reader.assign([TopicPartition(now.topic, 0, 0)])
    failed: Any = reader.poll(30)
    reader.assign([TopicPartition(names.retry(group), 0, 0) for group in known])
    due_ms: dict[tuple[str, int], int] = {}

    def send() -> None:
        began = time.monotonic()
        for number in range(RETRIES):
            group = known[number % len(known)]
            out: Any = hops.retry(
                failed, names, levels, group=group, trusted=False, failure=hops.Failure("E", "no", 0),
                reconsume_times=1 + number // len(known), level=1, delay_ms=None, lane=0,
            )  # fmt: skip

            def stored(error: Any, message: Any, place: tuple[str, int] = (group, number // len(known))) -> None:
                if error is None:
                    due_ms[place] = message.timestamp()[1] + levels.delay_ms(1)

            producer.produce(out.topic, out.value, out.key, out.partition, on_delivery=stored, headers=out.headers)
            while (left_s := began + (number + 1) / RETRIES_A_SECOND - time.monotonic()) > 0:
                producer.poll(left_s)  # ends with each report, so again until it is time
        producer.flush(30)

    sender = threading.Thread(target=send)
    sender.start()
    stored_ms: dict[tuple[str, int], int] = {}
    repeats = 0
    while len(stored_ms) < RETRIES and time.monotonic() < now.until:
        for message in reader.consume(1_000, 0.1):
            if message.error() is None:
                headers: Any = dict(message.headers() or [])
                place = (headers["CONSUMER_GROUP"].decode(), int(headers["RECONSUME_TIMES"]) - 1)
                repeats += place in stored_ms
                stored_ms.setdefault(place, message.timestamp()[1])
    sender.join()
    reader.close()
    return [float(at_ms - due_ms[place]) for place, at_ms in stored_ms.items()], repeats


# --- consumers ------------------------------------------------------------------------------------------------------


def consumers(bootstrap: str, *, is_dropin: bool) -> None:
    name = f"{CONSUMERS} {'drop-in' if is_dropin else 'push'} consumers in one process"
    with row(bootstrap) as now:
        now.create(1)
        process = now.start(count=CONSUMERS, dropin=is_dropin, own_groups=True)
        now.wait(lambda: "started_s" in process.facts)
        table.say(f"{name}: start of all, one after the other", "–", f"{process.facts.get('started_s', 0):.1f} s")
        whole = now.wait(lambda: process.facts["queues"] >= CONSUMERS)
        at = process.at.get("queues", 0.0) - process.began
        table.say(f"{name}: until each has its queue", "–", f"{at:.1f} s" if whole else f"{process.facts['queues']}")
        time.sleep(3)
        facts = resources(process.pid)
        table.say(
            f"{name}: what it takes",
            "–",
            f"{facts['threads']} threads, {facts['sockets']} sockets, {facts['resident_mib']} MiB resident",
        )
        table.say(f"{name}: idle", "–", now.idle_cpu([process]))
        process.end()
        table.say(f"{name}: stop of all, one after the other", "–", f"{process.facts.get('stopped_s', 0):.1f} s")


# --- keys -----------------------------------------------------------------------------------------------------------


def keys(bootstrap: str) -> None:
    name = f"{KEYS:,} failing keys in one queue"
    with row(bootstrap) as now:
        now.create(1)
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
        for turn in range(2):
            for number in range(KEYS):
                producer.produce(now.topic, b"%d" % turn, key=b"k%d" % number)
                producer.poll(0)
        producer.flush(60)
        attempts = 0
        fails = True

        def listener(message: Any) -> None:
            nonlocal attempts
            attempts += 1
            if fails and message.body == b"0":
                raise ValueError("no")

        def consumer_of(group: str) -> PushConsumer:
            made_one = PushConsumer(
                bootstrap,
                group=group,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                order="key",
                pull_threshold_for_queue=65_535,  # all of them are to be here; by default reading ends at 1,000
            )
            made_one.register_message_listener(now.topic, listener, orderly=True)
            made_one.start()
            return made_one

        consumer = consumer_of(now.group)
        now.wait(lambda: attempts > 0)
        began, cpu = time.monotonic(), cpu_s(os.getpid())
        now.wait(lambda: attempts >= KEYS)
        table.say(
            f"{name}: first attempts",
            "–",
            f"{attempts / (time.monotonic() - began):,.0f}/s, {(cpu_s(os.getpid()) - cpu) / attempts * 1e6:.0f} µs CPU",
        )
        began, before, cpu = time.monotonic(), attempts, cpu_s(os.getpid())
        time.sleep(10)
        seconds = time.monotonic() - began
        table.say(
            f"{name}: all fail again and again (each once a second)",
            "–",
            f"{(attempts - before) / seconds:,.0f} attempts/s, {(cpu_s(os.getpid()) - cpu) / seconds * 100:.0f} % of a "
            f"core, {resources(os.getpid())['resident_mib']} MiB resident",
        )
        began = time.monotonic()
        consumer.stop()
        table.say(f"{name}: stop while they fail", "–", f"{time.monotonic() - began:.2f} s")
        table.say(f"{name}: committed by then", "0", str(committed(now)))
        consumer = consumer_of(now.group)
        loop: Any = consumer._loop  # noqa: SLF001 - counted outside the listener
        now.wait(lambda: loop.dispatch.counts.failed >= KEYS)
        fails, began = False, time.monotonic()
        whole = now.wait(lambda: loop.dispatch.counts.succeeded >= 2 * KEYS)
        took = f"{time.monotonic() - began:.1f} s" if whole else f"{loop.dispatch.counts.succeeded:,} in time"
        table.say(f"{name}: none fails any more: until all {2 * KEYS:,} are done", "–", took)
        consumer.stop()
        table.say(f"{name}: committed at the end", f"{2 * KEYS:,}", str(committed(now)))


def committed(now: Row) -> int:
    asking = Consumer({"bootstrap.servers": now.bootstrap, "group.id": now.group, "enable.auto.commit": False})
    (found,) = asking.committed([TopicPartition(now.topic, 0)], timeout=30)
    asking.close()
    return int(found.offset)


# --- topics ---------------------------------------------------------------------------------------------------------


def topics(bootstrap: str) -> None:
    with row(bootstrap) as now:
        provision.ensure_topics(now.admin, Layout(TopicNames(), DelayLevels.default()).shared(), create=True)
        count, began = 0, time.monotonic()
        for begin in range(0, TOPICS, 500):
            new = [NewTopic(f"{now.topic}.{number}", 1) for number in range(begin, min(begin + 500, TOPICS))]
            for future in now.admin.create_topics(new, operation_timeout=60).values():
                future.result(120)
            count += len(new)
            if time.monotonic() >= now.until:
                break
        name = f"{count:,} topics"
        table.say(f"{name}: created", "–", f"{time.monotonic() - began:.1f} s")
        began, now.until = time.monotonic(), time.monotonic() + LIMIT_S
        whole = now.wait(lambda: knows_groups(now))  # a broker that still makes logs does not know of any group yet
        took = f"{time.monotonic() - began:.1f} s" if whole else "not in time"
        table.say(f"{name}: until the broker answers about a group", "–", took)
        now.until = time.monotonic() + LIMIT_S
        for matching, pattern in ((10, f"^{now.topic}\\.99.$"), (1_000, f"^{now.topic}\\.9...$")):
            pattern_row(now, name, matching, pattern)
        began = time.monotonic()
        command = [sys.executable, "-m", "rocketshim", "doctor", "--bootstrap", bootstrap, "--group", now.group]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        table.say(f"{name}: doctor", "–", f"{time.monotonic() - began:.1f} s")


def knows_groups(now: Row) -> bool:
    """Whether the broker answers about a group; it makes the topic of their positions when it is asked first."""
    try:
        now.admin.describe_consumer_groups([now.group], request_timeout=5)[now.group].result(10)
    except KafkaException:
        return False
    return True


def pattern_row(now: Row, name: str, matching: int, pattern: str) -> None:
    counted: dict[str, Any] = {"queues": 0}
    consumer = PushConsumer(
        now.bootstrap, group=f"{now.group}-{matching}", consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.register_message_listener(pattern, lambda _: None)
    began = time.monotonic()
    consumer.start()
    loop: Any = consumer._loop  # noqa: SLF001 - what it holds this instant
    whole = now.wait(lambda: len(loop.mode.queues) > matching)
    counted["queues"] = len(loop.mode.queues)
    took = f"{time.monotonic() - began:.1f} s" if whole else f"{counted['queues']} in time"
    before = cpu_s(os.getpid())
    time.sleep(IDLE_S)
    used = (cpu_s(os.getpid()) - before) / IDLE_S * 100
    table.say(f"{name}: pattern of {matching:,}, until all are read; then idle", "–", f"{took}; {used:.1f} % of a core")
    began = time.monotonic()
    consumer.stop()
    table.say(f"{name}: pattern of {matching:,}, stop", "–", f"{time.monotonic() - began:.1f} s")


# --- watched --------------------------------------------------------------------------------------------------------


def watched(bootstrap: str) -> None:
    names, layout = TopicNames(), Layout(TopicNames(), DelayLevels.default())
    with row(bootstrap) as now:
        known = [f"g{number}" for number in range(GROUPS)]
        for begin in range(0, GROUPS, 100):
            specs = [spec for group in known[begin : begin + 100] for spec in layout.for_group(group, with_log=False)]
            provision.ensure_topics(now.admin, [*layout.shared(), *specs], create=True)
        now.wait(lambda: knows_groups(now))
        for group in known:
            consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
            consumer.commit(offsets=[TopicPartition(names.retry(group), 0, 0)], asynchronous=False)
            consumer.close()
        name = f"{GROUPS:,} groups"
        lookup = OffsetLookup(bootstrap, names)
        for which in ("the first round", "the next round", "the one after"):
            began, before = time.monotonic(), cpu_s(os.getpid())
            found = sum(bool(each.partitions) for each in lookup.look_up().standings.values())
            took = f"{time.monotonic() - began:.1f} s, {cpu_s(os.getpid()) - before:.1f} s of CPU, {found:,} found"
            table.say(f"{name}: {which}", "–", took)
        now_used = resources(os.getpid())
        handles = len(list(Path("/proc/self/fd").iterdir()))
        table.say(
            f"{name}: threads, file handles, memory", "≤ 500 handles",
            f"{now_used['threads']}, {handles}, {now_used['resident_mib']} MiB",
        )  # fmt: skip
        lookup.close()
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "rocketshim", "doctor", "--bootstrap", bootstrap],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        table.say(f"{name}: doctor", "–", f"{time.monotonic() - began:.1f} s")


# --- members --------------------------------------------------------------------------------------------------------


def members(bootstrap: str, *, orderly: bool) -> None:
    name = f"{MEMBERS} members of one {'orderly ' if orderly else ''}group, {PROCESSES} processes"
    with row(bootstrap) as now:
        now.create(MEMBERS)
        each = MEMBERS // PROCESSES
        processes = [
            now.start(count=each, orderly=orderly, settings={"consume_thread_min": 2}) for _ in range(PROCESSES)
        ]
        began = processes[0].began
        now.wait(lambda: all("started_s" in process.facts for process in processes))
        started = max(process.facts.get("started_s", 0) for process in processes)
        table.say(f"{name}: start() of all", "–", f"{started:.1f} s")
        table.say(f"{name}: until all {MEMBERS} queues run", "–", now.held_s(processes, began, MEMBERS))
        table.say(f"{name}: idle, a process of {each}", "–", now.idle_cpu(processes, 10))


# --- all ------------------------------------------------------------------------------------------------------------

ROWS: dict[str, Callable[[str], None]] = {
    "queues-1": lambda bootstrap: queues(bootstrap, 1),
    "queues-3": lambda bootstrap: queues(bootstrap, 3),
    "groups": lambda bootstrap: groups(bootstrap, exactly_once=False),
    "groups-exactly-once": lambda bootstrap: groups(bootstrap, exactly_once=True),
    "consumers": lambda bootstrap: consumers(bootstrap, is_dropin=False),
    "dropin": lambda bootstrap: consumers(bootstrap, is_dropin=True),
    "keys": keys,
    "topics": topics,
    "watched": watched,
    "members": lambda bootstrap: members(bootstrap, orderly=False),
    "members-in-order": lambda bootstrap: members(bootstrap, orderly=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("row", nargs="*", help=f"{', '.join(ROWS)}; all by default")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        member(json.loads(options.member))
        return
    logging.disable(logging.ERROR)  # our ten thousand failures are not news
    unknown = sorted(set(options.row) - ROWS.keys())
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    table.head()
    for name in options.row or ROWS:
        with LocalCluster(heap_mb=1_024) as cluster:  # of its own: what one row leaves would slow the next one down
            ROWS[name](cluster.bootstrap)


if __name__ == "__main__":
    main()
