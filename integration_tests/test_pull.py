"""Pull consumers on a real broker: what the in-memory Kafka cannot vouch for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from rocketshim import (
    ConsumeFromWhere,
    LitePullConsumer,
    MessageQueue,
    MessageSelector,
    PullConsumer,
    PullStatus,
)
from rocketshim_local import Broker

from .waiting import await_ends_of_transactions

GUARD_S = 180.0


def fill(broker: Broker, topic: str, count: int, partitions: int = 1) -> None:
    """`count` messages a partition, tagged even and odd in turn."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        for partition in range(partitions):
            tag = b"odd" if number % 2 else b"even"
            producer.produce(topic, str(number).encode(), partition=partition, headers=[("TAGS", tag)])
    assert producer.flush(GUARD_S) == 0


def poll_for(count: int, *consumers: LitePullConsumer) -> list[Any]:
    """Poll the consumers in turn until they have found a number of messages."""
    found: list[Any] = []
    end = time.monotonic() + GUARD_S
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count}"
        for consumer in consumers:
            found += consumer.poll(200)
    return found


def offsets_of(messages: list[Any]) -> list[tuple[int, int]]:
    return sorted((message.queue_id, message.queue_offset) for message in messages)


def test_with_the_new_group_protocol_a_member_without_queues_knows_that_it_has_joined(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    """Kafka's client is silent then; a member that seems to be joining would wait for its group when it stops."""
    orders, mine = topic(1), group("idle848")
    client = {"group.protocol": "consumer"}
    members = [LitePullConsumer(broker.bootstrap, group=mine, client=client) for _ in range(2)]
    for member in members:
        member.subscribe(orders)
        member.start()
    readers = [member._partitions.reader for member in members]
    end = time.monotonic() + GUARD_S
    while any(reader.is_joining or not reader.joining.is_member for reader in readers):
        assert time.monotonic() < end, "a member still waits for its queues"
        for member in members:
            member.poll(200)
    assert sorted(len(member.assignment()) for member in members) == [0, 1]
    for member in members:
        member.stop()


def test_a_group_shares_the_queues_and_goes_on_where_it_was(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    orders, mine = topic(4), group()
    fill(broker, orders, 25, 4)

    def member() -> LitePullConsumer:
        one = LitePullConsumer(
            broker.bootstrap,
            group=mine,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            auto_commit_interval_ms=3_600_000,  # a commit refused while the group rebalances may cost the queues
        )
        one.subscribe(orders)
        one.start()
        return one

    one = member()
    first = poll_for(30, one)
    one.commit_sync()
    two = member()
    end = time.monotonic() + GUARD_S
    second: list[Any] = []
    while len(one.assignment()) != 2 or len(two.assignment()) != 2:
        assert time.monotonic() < end
        second += one.poll(100) + two.poll(100)
    assert not one.assignment() & two.assignment()
    while set(offsets_of(first + second)) != {(queue, offset) for queue in range(4) for offset in range(25)}:
        assert time.monotonic() < end
        second += one.poll(200) + two.poll(200)
    one.commit_sync()
    two.commit_sync()
    one.stop()
    two.stop()
    fill(broker, orders, 1, 4)
    with member() as three:
        assert offsets_of(poll_for(4, three)) == [(queue, 25) for queue in range(4)]


MEMBER = """
import sys
from rocketshim import ConsumeFromWhere, LitePullConsumer

consumer = LitePullConsumer(
    sys.argv[1], group=sys.argv[2], consume_from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit_interval_ms=1_000,
    client={"session.timeout.ms": 6_000},
)
consumer.subscribe(sys.argv[3])
with consumer:
    while True:
        for message in consumer.poll():
            print(message.queue_id, message.queue_offset, flush=True)
"""


def test_killed_again_and_again_it_misses_nothing(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    orders, mine = topic(2), group()
    fill(broker, orders, 1_000, 2)
    wanted = {f"{queue} {offset}" for queue in range(2) for offset in range(1_000)}
    heard: set[str] = set()
    rounds = 0
    while heard != wanted:
        rounds += 1
        assert rounds <= 20
        child = subprocess.Popen(
            [sys.executable, "-c", MEMBER, broker.bootstrap, mine, orders], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for count, line in enumerate(child.stdout, 1):
            heard.add(line.strip())
            if heard == wanted or (rounds < 3 and count >= 300):
                break
        os.kill(child.pid, signal.SIGKILL)
        child.stdout.close()
        child.wait(GUARD_S)


def test_seek_pause_and_filters_of_assigned_queues(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    orders, mine = topic(2), group()
    fill(broker, orders, 100, 2)
    q0, q1 = MessageQueue(orders, queue_id=0), MessageQueue(orders, queue_id=1)
    with LitePullConsumer(broker.bootstrap, group=mine, auto_commit=False) as consumer:
        assert consumer.fetch_message_queues(orders) == [q0, q1]
        consumer.assign([q0, q1])
        consumer.set_sub_expression_for_assign(orders, MessageSelector.by_tag("even"))
        consumer.seek_to_begin(q0)
        assert [m.queue_offset for m in poll_for(50, consumer)] == list(range(0, 100, 2))  # q1 began at the end
        consumer.pause([q0])
        consumer.seek(q0, 40)
        consumer.seek(q1, 90)
        assert offsets_of(poll_for(5, consumer)) == [(1, offset) for offset in range(90, 100, 2)]
        assert consumer.poll(300) == []
        consumer.resume([q0])
        assert offsets_of(poll_for(30, consumer)) == [(0, offset) for offset in range(40, 100, 2)]
        consumer.commit_sync()
        assert (consumer.committed(q0), consumer.committed(q1)) == (100, 100)
        consumer.seek(q0, 10)
        consumer.commit_sync()
        assert consumer.committed(q0) == 10
        first = consumer.poll(0) or consumer.poll(60_000)
        moment_ms = first[0].store_timestamp_ms
        assert 0 <= consumer.offset_for_timestamp(q0, moment_ms) <= 10
        assert consumer.offset_for_timestamp(q0, moment_ms + 86_400_000) == 100


def test_pulling_finds_every_message_and_passes_over_transactions(
    broker: Broker, admin: AdminClient, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    orders = topic(2)
    fill(broker, orders, 50, 2)
    transactional = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": group("tx")})
    transactional.init_transactions(GUARD_S)
    for commits in (True, False):
        transactional.begin_transaction()
        transactional.produce(orders, b"in a transaction", partition=0)
        if commits:
            transactional.commit_transaction(GUARD_S)
        else:
            transactional.flush(GUARD_S)
            transactional.abort_transaction(GUARD_S)
    await_ends_of_transactions(admin)
    q0, q1 = MessageQueue(orders, queue_id=0), MessageQueue(orders, queue_id=1)
    with PullConsumer(broker.bootstrap, group=group(), consumer_pull_timeout_ms=60_000) as consumer:
        found: dict[MessageQueue, list[int]] = {q0: [], q1: []}
        offsets, ended = dict.fromkeys(found, 0), set()
        while len(ended) < 2:  # in turn, as programs that pull do
            for queue, seen in found.items():
                result = consumer.pull(queue, None, offsets[queue], 7)
                assert result.next_begin_offset >= offsets[queue]
                offsets[queue] = result.next_begin_offset
                seen += [message.queue_offset for message in result.messages]
                if result.status is PullStatus.NO_NEW_MSG:
                    ended.add(queue)
        assert found == {q0: list(range(51)), q1: list(range(50))}
        assert offsets == {q0: 54, q1: 50}  # a message, a marker, an aborted message, a marker
        assert consumer.pull(q0, "never", 0).status is PullStatus.NO_MATCHED_MSG
        illegal = consumer.pull(q0, None, 1_000)
        assert (illegal.status, illegal.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 54)
        fill(broker, orders, 1)
        assert consumer.pull(q0, None, 54).status is PullStatus.FOUND  # stored before the call: found by it
        consumer.update_consume_offset(q0, 55)
        assert consumer.fetch_consume_offset(q0) == 55
        assert consumer.fetch_consume_offset(q1) is None
