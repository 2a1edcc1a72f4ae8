"""A client waits as its policy says, and a clock that nobody moves holds nobody up."""

import threading
from typing import Any

from rocketshim.clock import SystemClock
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim.testing.waiting import Waiting


def consumer_of(kafka: InMemoryKafka, **waiting: Any) -> Any:
    consumer = kafka.clients(**waiting).consumer({"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    return consumer


def cluster(**arguments: Any) -> InMemoryKafka:
    kafka = InMemoryKafka(**arguments)
    kafka.create_topic("orders")
    return kafka


def test_the_thread_that_drives_never_waits() -> None:
    kafka = cluster()
    consumer = consumer_of(kafka)
    assert consumer.poll(3_600) is None
    assert consumer.poll() is None
    assert consumer.consume(5, 3_600) == []
    assert kafka.clock.monotonic_ns() == 0


def test_by_default_only_other_threads_wait_on_a_virtual_clock() -> None:
    waiting = Waiting()
    answers = [waiting.blocks(VirtualClock()), waiting.blocks(SystemClock())]
    thread = threading.Thread(target=lambda: answers.append(waiting.blocks(VirtualClock())))
    thread.start()
    thread.join()
    assert answers == [False, True, True]


def test_a_hook_is_called_once_and_then_the_client_looks_again() -> None:
    asked_s: list[float] = []

    def on_wait(timeout_s: float) -> None:
        asked_s.append(timeout_s)
        if len(asked_s) == 2:
            kafka.append("orders", b"x")

    kafka = cluster(on_wait=on_wait)
    consumer = consumer_of(kafka)
    assert consumer.poll(5) is None
    assert consumer.poll(6).value() == b"x"
    assert consumer.poll(0) is None
    assert asked_s == [5, 6]


def test_a_hook_holds_no_lock() -> None:
    def on_wait(_: float) -> None:
        thread = threading.Thread(target=lambda: kafka.append("orders", b"from another thread"))
        thread.start()
        thread.join()

    kafka = cluster(on_wait=on_wait)
    assert consumer_of(kafka).poll(1).value() == b"from another thread"


def test_one_cluster_serves_clients_of_both_kinds() -> None:
    kafka = cluster(clock=VirtualClock(auto_advance=True))
    moved = consumer_of(kafka, on_wait=kafka.clock.sleep)  # type: ignore[attr-defined] # a virtual one
    moved.poll(2)
    assert kafka.clock.monotonic_ns() == 2_000_000_000
    kafka.clients().consumer({"group.id": "h"}).poll(2)
    assert kafka.clock.monotonic_ns() == 2_000_000_000


def test_a_blocked_poll_ends_with_the_next_record() -> None:
    kafka = cluster()
    received: list[Any] = []
    consumer = consumer_of(kafka)
    thread = threading.Thread(target=lambda: received.append(consumer.poll(-1)))
    thread.start()
    kafka.append("orders", b"x")
    thread.join()
    assert [message.value() for message in received] == [b"x"]


def test_a_blocked_poll_ends_with_virtual_time() -> None:
    kafka = cluster()
    consumer = consumer_of(kafka, blocking=True)
    clock = kafka.clock
    assert isinstance(clock, VirtualClock)
    ended = threading.Event()

    def poll() -> None:
        consumer.poll(3_600)
        ended.set()

    thread = threading.Thread(target=poll)
    thread.start()
    while not ended.is_set():
        clock.advance(3_600_000)
    thread.join()
    assert ended.is_set()


def test_a_blocked_poll_ends_with_real_time_where_nobody_moves_the_clock() -> None:
    kafka = cluster()
    consumer = consumer_of(kafka, blocking=True)
    assert consumer.poll(0.01) is None
    assert kafka.clock.monotonic_ns() == 0


def test_on_a_real_clock_a_poll_waits_for_a_record() -> None:
    kafka = cluster(clock=SystemClock())
    consumer = consumer_of(kafka)
    producer = kafka.producer({})
    thread = threading.Thread(target=lambda: producer.produce("orders", b"x"))
    thread.start()
    message = consumer.poll(60)
    thread.join()
    assert message.value() == b"x"
    assert producer.poll(60) == 1
