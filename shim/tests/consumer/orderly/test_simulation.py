"""Several orderly members in virtual time while everything goes wrong: who handles what, in which order, how often.

A listener call takes no virtual time here, though its loop may hear of its end much later; so no sink has to refuse
anything: a write under an old token after one under a newer would be a defect of the lock itself.
"""

from collections import defaultdict
from queue import SimpleQueue
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.consumer.dispatch import Result
from rocketshim.locks.lease import Lease, QueueLockSettings
from rocketshim_topics.layout import Layout

from .test_loop import GROUP, LEVELS, NAMES, SUSPEND, Member, Stage

PARTITIONS = 4
STEPS = 400
LOCKS = QueueLockSettings(lock_lease_ms=12_000, lock_hold_ms=3_000, lock_renew_ms=1_000)
"""The margin of 9 s covers one forward step of the leader's clock in a lease: each takes 5 s of it."""


Lane = tuple[int, int]
"""Queue and key: what is to be handled in order. Without `order="key"` all messages have one key."""


class Account:
    """What was handled of each lane, checked as it comes; the messages of a lane are numbered from 0."""

    def __init__(self) -> None:
        self.next_numbers: dict[Lane, int] = defaultdict(int)
        self.last: dict[Lane, tuple[int, int]] = {}
        self.faults: list[str] = []  # kept, since a listener that raises has only failed
        self.handovers = 0
        self.repeats = 0

    def take(self, lane: Lane, number: int, token: int) -> None:
        next_number = self.next_numbers[lane]
        last_number, last_token = self.last.get(lane, (-1, -1))
        if number > next_number:
            self.faults.append(f"{lane}: {number} came when {next_number} was next")
        if token < last_token:
            self.faults.append(f"{lane}: token {token} after {last_token}")
        if token == last_token and number != last_number + 1:
            self.faults.append(f"{lane}: {number} after {last_number} under one token")
        self.handovers += token != last_token
        self.repeats += number < next_number
        self.next_numbers[lane] = max(next_number, number + 1)
        self.last[lane] = (number, token)


class Leases(SimpleQueue[Lease]):
    """The leases that a group log gives its member, all of them, and how often the member has released each."""

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.released: dict[Lease, int] = {}
        self.busy: list[Lease] = []  # released while a listener had a message
        self._member = member
        self._release = member.log.release
        member.log.leases = self
        member.log.release = self.release  # type: ignore[method-assign, assignment]

    def put(self, item: Lease, *_: Any) -> None:
        self.released.setdefault(item, 0)
        super().put(item)

    def release(self, lease: Lease, *progress: Any) -> None:
        self.released[lease] += 1
        tasks: Any = self._member.pool.tasks
        if any(task.lease is lease for task in tasks):
            self.busy.append(lease)
        self._release(lease, *progress)

    def faults(self) -> list[str]:
        once = [f"{lease} was released {count} times" for lease, count in self.released.items() if count > 1]
        kept = [f"{lease} was not released" for lease, count in self.released.items() if lease.stopped and not count]
        return [*once, *kept, *(f"{lease} was released while a listener had a message" for lease in self.busy)]


class Simulation:
    """A group of members that freeze, die and come back, over a log that is cut, recreated and stamped wrongly."""

    def __init__(self, seed: int, *, by_key: bool) -> None:
        self.by_key = by_key
        self.random = Random(seed)  # noqa: S311 - a repeatable one
        self.stage = Stage()
        self.stage.topic(PARTITIONS)
        self.account = Account()
        self.sent: dict[int, list[tuple[Lane, int]]] = {queue: [] for queue in range(PARTITIONS)}  # by offset
        self.ends: dict[Lane, int] = defaultdict(int)
        self.frozen_until: dict[str, int] = {}
        self.number = 0
        self.span = self.random.choice([8, 100, 10_000]) if by_key else None
        self.next_step_ms = 0
        self.broker_back_ms: int | None = None
        self.late: list[tuple[int, Member, Result]] = []  # listeners that have returned, and from when on that is heard
        self.failing = True
        self.leases: dict[str, Leases] = {}
        for _ in range(3):
            self.join()

    def handle(self, message: Any, context: Any) -> Any:
        if self.failing and self.random.random() < 0.03:
            return SUSPEND
        lane, number = self.sent[message.queue_id][message.queue_offset]
        self.account.take(lane, number, context.fencing_token)
        return None

    def join(self) -> None:
        self.number += 1
        member = self.stage.join(f"m{self.number}", self.handle, locks=LOCKS, by_key=self.by_key, span=self.span)
        self.leases[f"m{self.number}"] = Leases(member)
        answers = member.lookups.offsets_for_times

        def bounds(places: Any, **options: Any) -> Any:  # where queues begin
            if self.failing and self.random.random() < 0.1:
                self.stage.clock.advance(self.random.choice([0, 1_000, 4_000]))
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            if self.failing and self.random.random() < 0.1:
                self.stage.clock.advance(4_000)
            return answers(places, **options)

        member.lookups.offsets_for_times = bounds

        def stop(timeout_s: float) -> bool:
            del timeout_s
            if self.random.random() < 0.5:
                self.hear([late for late in self.late if late[1] is member])
            return True

        member.pool.stop = stop  # type: ignore[method-assign]

    def produce(self) -> None:
        for queue in range(PARTITIONS):
            for _ in range(self.random.randrange(3)):
                lane = queue, self.random.randrange(3) if self.by_key else 0
                self.sent[queue].append((lane, self.ends[lane]))
                self.ends[lane] += 1
                self.stage.fill(1, queue, key=b"%d" % lane[1])

    def turn(self, ms: int) -> None:
        self.stage.clock.advance(ms)
        now = self.now_ms
        if self.broker_back_ms is not None and now >= self.broker_back_ms:
            self.broker_back_ms = None
            self.stage.kafka.start_broker()
        for name in [name for name, until in self.frozen_until.items() if until <= now]:
            del self.frozen_until[name]
            if name in self.stage.members:
                self.stage.members[name].pool.work_all()  # its listener threads wake first, with what they had
        self.hear([late for late in self.late if late[0] <= now])
        names = [name for name in self.stage.members if name not in self.frozen_until]
        self.random.shuffle(names)
        for name in names:
            member = self.stage.members[name]
            acts = [self.turn_log, self.turn_loop, self.work]
            self.random.shuffle(acts)  # three threads: the first one to wake differs
            for act in acts:
                act(member)

    def turn_log(self, member: Member) -> None:
        member.log.turn(0)

    def turn_loop(self, member: Member) -> None:
        member.loop.turn()

    def work(self, member: Member) -> None:
        for _ in range(self.random.randrange(len(member.pool.tasks) + 1)):
            task: Any = member.pool.tasks.popleft()
            result = Result(task, member.runner.run(task), 0)
            late_ms = self.random.choice([500, 5_000, 15_000]) if self.failing and self.random.random() < 0.1 else 0
            if late_ms:
                self.late.append((self.now_ms + late_ms, member, result))
            else:
                member.pool.results.put(result)

    def hear(self, late: list[tuple[int, Member, Result]]) -> None:
        for each in late:
            self.late.remove(each)
            each[1].pool.results.put(each[2])

    def trouble(self) -> None:
        awake = [name for name in self.stage.members if name not in self.frozen_until]
        match self.random.randrange(60):
            case 0 | 1 | 7 | 8 if awake:
                self.freeze(self.random.choice(awake))
            case 2 if len(awake) > 1:
                self.kill(self.random.choice(awake))
                self.join()
            case 3 if len(awake) > 1:
                self.stage.leave(self.random.choice(awake))
                self.join()
            case number:
                self.trouble_of_the_broker(number)

    def trouble_of_the_broker(self, number: int) -> None:
        kafka, log = self.stage.kafka, NAMES.group_log(GROUP)
        match number:
            case 4:
                kafka.delete_topic(log)
                kafka.create_topics(Layout(NAMES, LEVELS).for_group(GROUP, with_log=True))
            case 5:
                records = kafka.records(log)
                if records:
                    kafka.truncate(log, before_offset=(records[-1].offset() or 0) + 1)
            case 6 if self.now_ms >= self.next_step_ms:
                self.next_step_ms = self.now_ms + LOCKS.lock_lease_ms
                kafka.set_leader_clock(self.random.choice([-3_600_000, 0, 3_600_000]))
            case 9 if self.broker_back_ms is None:
                self.broker_back_ms = self.now_ms + self.random.choice([200, 2_000, 10_000])
                kafka.stop_broker()
            case 10:
                kafka.fail_commits(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS), count=3)
            case 11:
                kafka.append(log, b'{"v":99}')

    def freeze(self, name: str) -> None:
        for _ in range(3):  # with messages handed out and not begun
            self.produce()
            self.turn_loop(self.stage.members[name])
        ms = self.random.choice([1_000, 4_000, 30_000, 30_000])
        self.frozen_until[name] = self.now_ms + ms
        if ms > 6_000:  # longer than its session
            self.stage.kafka.evict(self.stage.members[name].consumers[0])

    def kill(self, name: str) -> None:
        member: Member = self.stage.members.pop(name)
        self.stage.kafka.kill(member.consumers[0])

    @property
    def now_ms(self) -> int:
        return self.stage.clock.monotonic_ns() // 1_000_000

    @property
    def done(self) -> bool:
        return all(self.account.next_numbers[lane] == end for lane, end in self.ends.items())


def simulate(seed: int) -> Account:
    simulation = Simulation(seed, by_key=seed % 3 == 2)
    for _ in range(STEPS):
        simulation.produce()
        simulation.trouble()
        simulation.turn(simulation.random.choice([0, 20, 100, 400, 1_500]))
    simulation.failing = False
    for _ in range(3_000):
        if simulation.done:
            break
        simulation.turn(100)
    assert not simulation.account.faults
    assert simulation.done, (simulation.ends, dict(simulation.account.next_numbers))
    while simulation.late or simulation.frozen_until:
        simulation.turn(100)
    for _ in range(10):
        simulation.turn(100)
    assert not [fault for name in simulation.stage.members for fault in simulation.leases[name].faults()]
    assert not [member.loop.error for member in simulation.stage.members.values() if member.loop.error]
    return simulation.account


def test_each_queue_is_handled_in_order_by_one_at_a_time_whatever_happens() -> None:
    accounts = [simulate(seed) for seed in range(10)]
    assert sum(account.handovers for account in accounts) > 20
    assert sum(account.repeats for account in accounts) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 110))
def test_each_queue_is_handled_in_order_also_by_a_hundred_other_ways(seed: int) -> None:
    simulate(seed)
