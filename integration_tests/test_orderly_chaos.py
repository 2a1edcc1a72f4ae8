"""Orderly consumption on a real broker while everything goes wrong together: held against what the sink took."""

import json
import logging
import time
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim import TopicNames
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting
from .conftest import await_led
from .orderly_chaos import Fleet, Sink
from .stepped_broker import SteppedBroker

if TYPE_CHECKING:
    from collections.abc import Callable

GUARD_S = 120.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
STEP_S, _ROUND = 3.0, 20
NAMES = TopicNames()
LAYOUT = Layout(NAMES, DelayLevels.default())
_LOG = logging.getLogger("rocketshim.tests")
TOPIC, GROUP = "orders", "billing"
LOG = NAMES.group_log(GROUP)
MEMBERS, PARTITIONS = 6, 24


class Trouble:
    """What goes wrong, a step every three seconds, in rounds of twenty.

    The clock goes forward at most once in a lease, since each time costs 5 s of the margin of 6 s; and it is back an
    hour when the log is created again, so that the tokens of the new log would be lower by themselves.
    """

    def __init__(self, broker: SteppedBroker, admin: AdminClient, fleet: Fleet) -> None:
        self.broker, self.admin, self.fleet = broker, admin, fleet
        self.truncated = 0
        self.created_again = 0
        self.unreadable = 0
        self.ended = 0
        self._steps: dict[int, Callable[[], object]] = {
            1: self._kill,
            2: self._freeze,
            3: partial(broker.step, hours=1),
            4: self._truncate,
            7: self._freeze,
            8: partial(broker.step, hours=-2),
            9: self._create_again,
            12: self._kill,
            14: partial(broker.step, hours=1),
            15: self._freeze,
            16: self._write_of_tomorrow,
            19: self._kill,
        }

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        step = 0
        while time.monotonic() < until:
            step += 1
            self._steps.get(step % _ROUND, lambda: None)()
            _LOG.info("step %s: %s taken, %s", step, self.fleet.sink.count, self.account)
            deadline = time.monotonic() + STEP_S
            while time.monotonic() < deadline:
                self.fleet.thaw()
                self.ended += self.fleet.replace_ended()
                time.sleep(0.05)

    @property
    def account(self) -> str:
        return (
            f"{self.fleet.kills} killed, {self.fleet.freezes} frozen; the group's log created again "
            f"{self.created_again} times, truncated {self.truncated}, unreadable {self.unreadable}; "
            f"the clock set by an hour or two {len(self.broker.offsets_ms) - 1} times"
        )

    def _kill(self) -> None:
        member = self.fleet.any()
        if member is not None:
            self.fleet.kill(member)

    def _freeze(self) -> None:
        member = self.fleet.any()
        if member is not None:
            self.fleet.freeze(member, 20.0)  # twice the lease; its listeners are inside their calls

    def _create_again(self) -> None:
        self.admin.delete_topics([LOG])[LOG].result(GUARD_S)
        # a broker still shows for a moment what it has just deleted, and what is shown is not created
        wait_until(lambda: LOG not in self.admin.list_topics(timeout=GUARD_S).topics, "the log is gone")
        provision.ensure_topics(self.admin, [LAYOUT.group_log(GROUP)])
        self.created_again += 1

    def _truncate(self) -> None:
        end = self._end_of_log()  # a frozen member has not read all of it
        for future in self.admin.delete_records([TopicPartition(LOG, 0, end)]).values():
            future.result(GUARD_S)
        self.truncated += 1

    def _write_of_tomorrow(self) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        producer.produce(LOG, json.dumps({"v": 99, "kind": "claim"}))
        assert producer.flush(GUARD_S) == 0
        self.unreadable += 1

    def _end_of_log(self) -> int:
        reader = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "reader"})
        try:
            end: int = reader.get_watermark_offsets(TopicPartition(LOG, 0), timeout=GUARD_S)[1]
            return end
        finally:
            reader.close()


class Source(Thread):
    """Writes to every queue ten times a second; `ends` is where each queue ends."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.ends = dict.fromkeys(range(partitions), 0)
        self.over = Event()
        self._address, self._topic = bootstrap, topic

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self._address, "acks": "all", "enable.idempotence": True})
        while not self.over.wait(0.1):
            for partition in self.ends:
                producer.produce(self._topic, None if self.ends[partition] % 2 else b"", partition=partition)
                self.ends[partition] += 1
            producer.poll(0)
        producer.flush()

    def stop(self) -> None:
        self.over.set()
        self.join(GUARD_S)


def chaos(broker: SteppedBroker, logs: Path, *, seconds: float) -> str:
    """Consume while things go wrong; hold the sink's account against the promise and say what happened."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    provision.ensure_topics(admin, LAYOUT.shared())
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(GUARD_S)
    await_led(admin, TOPIC, PARTITIONS)
    sink = Sink()
    fleet = Fleet(broker.bootstrap, "", GROUP, TOPIC, sink=sink, count=MEMBERS, logs=logs)
    source = Source(broker.bootstrap, TOPIC, PARTITIONS)
    trouble = Trouble(broker, admin, fleet)
    source.start()
    try:
        wait_until(lambda: sink.count > PARTITIONS, "the first messages")
        trouble.run(seconds)
        source.stop()
        fleet.thaw(everybody=True)
        deadline = time.monotonic() + GUARD_S
        while not sink.reached(source.ends):
            trouble.ended += fleet.replace_ended()
            assert time.monotonic() < deadline, _missing(sink, source.ends, logs)
            time.sleep(0.1)
    finally:
        source.stop()
        fleet.stop()
        sink.close()
    repeats = sum(sink.queues[queue].check(end) for queue, end in source.ends.items())
    handovers = sum(written.handovers() for written in sink.queues.values())
    refused = sum(len(written.refused) for written in sink.queues.values())
    assert trouble.ended == 0, f"{trouble.ended} members ended by themselves: {_tails(logs)}"
    assert handovers > 0
    return (
        f"{sum(source.ends.values())} messages, {PARTITIONS} queues, {MEMBERS} members, {trouble.account}: "
        f"{handovers} hand-overs, {repeats} repeats, {refused} late writes refused"
    )


def _missing(sink: Sink, ends: dict[int, int], logs: Path) -> str:
    behind = {q: (len(sink.queues[q].accepted), end) for q, end in ends.items() if not sink.reached({q: end})}
    return f"not all came within {GUARD_S} s: {behind}; {_tails(logs)}"


def _tails(logs: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text()[-2_000:]}" for path in sorted(logs.glob("*.log")))


def test_order_holds_while_members_die_and_freeze_the_log_is_lost_and_the_clock_is_set(
    stepped_broker: SteppedBroker, tmp_path: Path
) -> None:
    _LOG.info(chaos(stepped_broker, tmp_path, seconds=60))


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_order_holds_for_ten_minutes(stepped_broker: SteppedBroker, tmp_path: Path) -> None:
    account = chaos(stepped_broker, tmp_path, seconds=600)
    (tmp_path / "account.txt").write_text(account)
    print(account)  # noqa: T201 - for proof/HISTORY.md
