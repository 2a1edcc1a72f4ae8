"""What the exit of an interpreter does with what a program has left open: one clock, one count, one line."""

import gc
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from rocketshim.at_exit import AtExit
from rocketshim.settings.consumer import LitePullConsumerSettings, PushConsumerSettings
from rocketshim.settings.producer import ProducerSettings


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Left:
    """An object that was left open, and takes a time to end."""

    def __init__(self, name: str, events: list[tuple[str, str, float]], clock: Clock, **facts: float) -> None:
        self.exit_timeout_ms = int(facts.get("timeout_ms", 10_000))
        self.takes_s = facts.get("takes_s", 0.0)
        self.unsent = int(facts.get("unsent", 0))
        self.raises: BaseException | None = None
        self._name, self._events, self._clock = name, events, clock

    def begin_exit(self) -> None:
        self._events.append((self._name, "begin", self._clock.now_s))

    def finish_exit(self, until_s: float) -> int:
        self._events.append((self._name, "until", until_s))
        self._clock.now_s = max(self._clock.now_s, min(self._clock.now_s + self.takes_s, until_s))
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        return self.unsent


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events() -> list[tuple[str, str, float]]:
    return []


def test_consumers_end_together_and_before_producers(clock: Clock, events: list[tuple[str, str, float]]) -> None:
    ended = AtExit(clock)
    left = [Left(name, events, clock, takes_s=2.0) for name in ("c1", "c2", "p")]
    ended.add_consumer(left[0])
    ended.add_consumer(left[1])
    ended.add_producer(left[2])
    ended.run()
    assert [what for name, what, _ in events if name != "p"] == ["begin", "begin", "until", "until"]
    assert [name for name, _, _ in events][-2:] == ["p", "p"]


def test_all_of_them_share_one_bound(clock: Clock, events: list[tuple[str, str, float]]) -> None:
    ended = AtExit(clock)
    left = [Left(f"p{number}", events, clock, takes_s=60.0) for number in range(20)]
    for each in left:
        ended.add_producer(each)
    ended.run()
    assert {at_s for _, what, at_s in events if what == "until"} == {110.0}
    assert clock.now_s == 110.0


def test_producers_get_a_second_after_consumers_that_used_the_time(
    clock: Clock, events: list[tuple[str, str, float]]
) -> None:
    ended = AtExit(clock)
    consumer, producers = Left("c", events, clock, takes_s=60.0), [Left("p", events, clock, takes_s=60.0)] * 3
    ended.add_consumer(consumer)
    for each in producers:
        ended.add_producer(each)
    ended.run()
    assert events[-1] == ("p", "until", 111.0)


def test_a_limit_of_zero_waits_for_nothing_but_counts(clock: Clock, events: list[tuple[str, str, float]]) -> None:
    ended = AtExit(clock)
    left = Left("p", events, clock, timeout_ms=0, takes_s=60.0, unsent=3)
    ended.add_producer(left)
    assert ended.run() == 3
    assert clock.now_s == 100.0


def test_one_line_says_how_many_messages_are_not_stored(
    clock: Clock, events: list[tuple[str, str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    ended = AtExit(clock)
    left = [Left("p", events, clock, unsent=count, takes_s=10.0) for count in (0, 17, 4)]
    for each in left:
        ended.add_producer(each)
    assert ended.run() == 21
    (line,) = caplog.records
    assert (line.levelno, vars(line)["event"]) == (logging.ERROR, "producer.not-stored-at-exit")
    assert (vars(line)["messages"], vars(line)["waited_s"]) == (21, 10.0)
    assert "close()" in line.getMessage()


def test_a_second_run_does_nothing(clock: Clock, events: list[tuple[str, str, float]]) -> None:
    ended = AtExit(clock)
    left = Left("p", events, clock, unsent=1)
    ended.add_producer(left)
    assert (ended.run(), ended.run()) == (1, 0)


def test_one_that_fails_is_logged_and_keeps_no_other_from_its_end(
    clock: Clock, events: list[tuple[str, str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    ended = AtExit(clock)
    left = [Left(f"c{number}", events, clock) for number in range(3)]
    for each in left:
        each.raises = ValueError("broken")
        ended.add_consumer(each)
    ended.run()
    assert [what for _, what, _ in events].count("until") == 3
    assert {vars(line)["event"] for line in caplog.records} == {"client.exit-failed"}


def test_ctrl_c_ends_the_wait_and_the_messages_are_counted(
    clock: Clock, events: list[tuple[str, str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    ended = AtExit(clock)
    consumer, producer = Left("c", events, clock), Left("p", events, clock, unsent=5, takes_s=60.0)
    consumer.raises = KeyboardInterrupt()
    ended.add_consumer(consumer)
    ended.add_producer(producer)
    assert ended.run() == 5
    assert clock.now_s == 100.0
    assert "messages=5" in caplog.text


def test_a_forced_end_stops_no_consumer_and_waits_for_no_producer(
    clock: Clock, events: list[tuple[str, str, float]]
) -> None:
    ended = AtExit(clock)
    consumer, producer = Left("c", events, clock), Left("p", events, clock, unsent=5, takes_s=60.0)
    ended.add_consumer(consumer)
    ended.add_producer(producer)
    ended.abandon()
    assert ended.run() == 5
    assert (clock.now_s, {name for name, _, _ in events}) == (100.0, {"p"})


def test_a_second_ctrl_c_to_a_command_forces_the_end() -> None:
    program = """
import sys
from rocketshim.at_exit import at_exit
from rocketshim.stop_signals import StopSignals
import signal
now_s = 0.0
signals = StopSignals(lambda: now_s)

class Left:
    exit_timeout_ms = 60_000
    def begin_exit(self): print("asked")
    def finish_exit(self, until_s): return 0

left = Left()
at_exit.add_consumer(left)
signals.note(signal.SIGINT)
now_s = 5.0
try:
    signals.note(signal.SIGINT)
except KeyboardInterrupt:
    print("forced")
"""
    assert _output(program) == "forced\n"


def test_what_the_program_has_dropped_is_not_kept(clock: Clock, events: list[tuple[str, str, float]]) -> None:
    ended = AtExit(clock)
    ended.add_producer(Left("p", events, clock, unsent=1))
    gc.collect()
    assert ended.run() == 0


ENDING = """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor
from rocketshim.at_exit import at_exit

class Left:
    exit_timeout_ms = 60_000
    def __init__(self, name): self.name = name
    def begin_exit(self): pass
    def finish_exit(self, until_s):
        print(self.name, end=" ", flush=True)
        return 0

executor = ThreadPoolExecutor(1)
executor.submit(print, end="").result()
consumer, producer = Left("consumer"), Left("producer")
at_exit.add_consumer(consumer)
at_exit.add_producer(producer)
atexit.register(lambda: print("atexit", end=" "))
"""


def test_consumers_end_before_the_functions_of_atexit_and_producers_after_them() -> None:
    assert _output(ENDING) == "consumer atexit producer "


def test_a_thread_that_keeps_the_program_alive_keeps_its_consumers() -> None:
    thread = """
def serve():
    threading.main_thread().join()
    print("served", end=" ")
threading.Thread(target=serve).start()
"""
    assert _output(ENDING + thread) == "served atexit consumer producer "


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_waits_for_nothing_of_its_parent() -> None:
    program = """
import os, sys
from rocketshim.at_exit import at_exit

class Left:
    exit_timeout_ms = 60_000
    def begin_exit(self): pass
    def finish_exit(self, until_s):
        print("awaited by", "child" if os.getpid() != parent else "parent", flush=True)
        return 0

parent, left = os.getpid(), Left()
at_exit.add_producer(left)
child = os.fork()
if child:
    os.waitpid(child, 0)
"""
    assert _output(program) == "awaited by parent\n"


@pytest.mark.parametrize("library", ["multiprocessing", "billiard"])
def test_a_child_of_multiprocessing_waits_for_its_own(library: str) -> None:
    pytest.importorskip(library)
    program = """
import LIBRARY as multiprocessing
from multiprocessing import util
from rocketshim.at_exit import at_exit

class Left:
    exit_timeout_ms = 60_000
    def begin_exit(self): pass
    def finish_exit(self, until_s):
        print("awaited", self.name, flush=True)
        return 0

def work():
    global left, other
    left, other = Left(), Left()
    left.name = other.name = "in the child"
    at_exit.add_producer(left)
    at_exit.add_producer(other)
    print(sum(each._callback == at_exit.run for each in util._finalizer_registry.values()), "finalizer", flush=True)

if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
"""
    assert _output(program.replace("LIBRARY", library)) == "1 finalizer\n" + 2 * "awaited in the child\n"


def test_a_process_of_celerys_pool_waits_for_its_own_at_the_signal_of_its_end() -> None:
    pytest.importorskip("billiard")
    program = """
import os, sys, types
from billiard.pool import Pool
from rocketshim.at_exit import at_exit

class Signal:
    def __init__(self): self.receivers = []
    def connect(self, receiver, weak): self.receivers.append(receiver)
    def send(self, pid, exitcode):  # as Celery's does
        for receiver in self.receivers: receiver(signal=self, sender=None, pid=pid, exitcode=exitcode)

class Left:
    exit_timeout_ms = 60_000
    def begin_exit(self): pass
    def finish_exit(self, until_s):
        os.write(1, b"awaited in the child")
        return 0

def work():
    global left
    left = Left()
    at_exit.add_producer(left)

celery = sys.modules["celery.signals"] = types.ModuleType("celery.signals")
celery.worker_process_shutdown = Signal()
pool = Pool(1, on_process_exit=celery.worker_process_shutdown.send)
pool.apply(work)
pool.close()
pool.join()
"""
    assert _output(program) == "awaited in the child"


def _output(program: str) -> str:
    command = [sys.executable, "-c", program]
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}  # it warns
    ran = subprocess.run(  # noqa: S603 - our own
        command, capture_output=True, text=True, check=True, timeout=120, env=unmeasured
    )
    assert not ran.stderr
    return ran.stdout


@pytest.mark.parametrize("settings", [ProducerSettings, PushConsumerSettings, LitePullConsumerSettings])
def test_the_exit_waits_ten_seconds_by_default(settings: type[Any]) -> None:
    values = {} if settings is ProducerSettings else {"group": "g"}
    assert settings.make(bootstrap="b:1", **values).exit_timeout_ms == 10_000
