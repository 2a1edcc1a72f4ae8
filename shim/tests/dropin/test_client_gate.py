"""Who may call the Kafka client now, by the rules of `dropin.client_gate`; no Kafka is needed."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from rocketshim.dropin.client_gate import ClientGate
from rocketshim.errors import SendTimeoutError

GUARD_S = 60.0


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as other:
        yield other


def answer(gate: ClientGate, now: Callable[[], str] = lambda: "now", timeout_s: float = GUARD_S) -> str:
    return gate.ask(now, lambda: "noted", timeout_s)


def test_outside_of_a_call_another_thread_asks_the_client(elsewhere: ThreadPoolExecutor) -> None:
    gate = ClientGate()
    assert elsewhere.submit(answer, gate).result(GUARD_S) == "now"
    gate.begin_poll()
    gate.end_poll()
    assert elsewhere.submit(answer, gate).result(GUARD_S) == "now"
    gate.begin_wait()
    gate.waiting = False
    assert elsewhere.submit(answer, gate).result(GUARD_S) == "now"


def test_during_a_call_that_may_wait_everybody_gets_what_was_noted(elsewhere: ThreadPoolExecutor) -> None:
    gate = ClientGate()
    gate.begin_wait()
    assert elsewhere.submit(answer, gate).result(GUARD_S) == "noted"
    assert answer(gate, timeout_s=0) == "noted"
    gate.waiting = False
    assert elsewhere.submit(answer, gate).result(GUARD_S) == "now"


def test_another_thread_waits_for_a_poll_that_does_not_wait(elsewhere: ThreadPoolExecutor) -> None:
    gate = ClientGate()
    gate.begin_poll()
    asked = elsewhere.submit(answer, gate)
    assert not asked.done()
    assert answer(gate) == "now", "the poll thread itself, in a callback"
    gate.end_poll()
    assert asked.result(GUARD_S) == "now"


def test_a_callback_of_that_poll_lets_the_other_thread_go_on(elsewhere: ThreadPoolExecutor) -> None:
    gate = ClientGate()
    gate.begin_poll()
    asked = elsewhere.submit(answer, gate)
    gate.waiting = True
    assert asked.result(GUARD_S) == "noted", "the callback may wait for that thread"
    gate.waiting = False
    gate.end_poll()


def test_a_poll_that_never_ends_is_not_waited_for_longer_than_asked(elsewhere: ThreadPoolExecutor) -> None:
    gate = ClientGate()
    gate.begin_poll()
    with pytest.raises(SendTimeoutError, match="logger for 10 ms"):
        elsewhere.submit(answer, gate, timeout_s=0.01).result(GUARD_S)


@pytest.mark.parametrize("enter", [ClientGate.begin_poll, ClientGate.begin_wait, ClientGate.close])
def test_the_poll_thread_enters_the_client_only_when_the_other_has_left_it(
    elsewhere: ThreadPoolExecutor, enter: Callable[[ClientGate], object]
) -> None:
    gate, inside, leave = ClientGate(), threading.Event(), threading.Event()
    events: list[str] = []

    def slow() -> str:
        inside.set()
        leave.wait(GUARD_S)
        events.append("left")
        return "now"

    def polls() -> None:
        enter(gate)
        events.append("entered")

    asked: Future[str] = elsewhere.submit(answer, gate, slow)
    assert inside.wait(GUARD_S)
    poll_thread = threading.Thread(target=polls)
    poll_thread.start()
    leave.set()
    poll_thread.join(GUARD_S)
    assert asked.result(GUARD_S) == "now"
    assert events == ["left", "entered"]


def test_after_close_nobody_calls_the_client(elsewhere: ThreadPoolExecutor) -> None:
    gate = ClientGate()
    gate.close()
    assert elsewhere.submit(answer, gate).result(GUARD_S) == "noted"


def test_the_two_threads_are_never_in_the_client_together() -> None:
    gate, stop = ClientGate(), threading.Event()
    inside: list[int] = []
    together: list[str] = []

    def enter(who: int) -> None:
        if inside:
            together.append(f"{who} beside {inside}")
        inside.append(who)
        inside.remove(who)

    def asks() -> str:
        enter(2)
        return ""

    def other() -> None:
        while not stop.is_set():
            gate.ask(asks, str, GUARD_S)

    thread = threading.Thread(target=other)
    thread.start()
    for number in range(20_000):
        if number % 3:
            gate.begin_poll()
            enter(1)
            gate.end_poll()
        else:
            gate.begin_wait()
            enter(1)
            gate.waiting = False
    stop.set()
    thread.join(GUARD_S)
    assert together == []
