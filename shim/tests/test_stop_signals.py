"""What SIGINT and SIGTERM do to work that is to be finished."""

import signal
import subprocess
import sys
import threading

import pytest

from rocketshim.stop_signals import STOP_SIGNALS, StopSignals


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_requests_a_stop_and_earlier_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    with StopSignals() as signals:
        assert not signals.asked
        signal.raise_signal(number)
        assert signals.asked
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_only_a_second_ctrl_c_after_a_second_forces_the_end() -> None:
    now_s = 100.0
    signals = StopSignals(lambda: now_s)
    signals.note(signal.SIGTERM)
    signals.note(signal.SIGINT)
    now_s += 0.9  # a launcher has sent it once more
    signals.note(signal.SIGINT)
    now_s += 60.0
    signals.note(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signals.note(signal.SIGINT)


def test_an_inner_block_copies_the_signals_of_the_outer_one() -> None:
    with StopSignals(lambda: 1.0) as outer:
        outer.note(signal.SIGINT)
        with StopSignals(lambda: 2.0) as inner:
            assert inner.asked
            with pytest.raises(KeyboardInterrupt):
                inner.note(signal.SIGINT)


def test_an_inner_block_passes_on_what_it_has_received() -> None:
    with StopSignals(lambda: 1.0) as outer:
        with StopSignals(lambda: 2.0):
            signal.raise_signal(signal.SIGINT)
        assert (outer.asked, outer.interrupted_s) == (True, 2.0)


def test_outside_of_the_main_thread_no_signal_is_handled() -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    seen: list[bool] = []

    def enter() -> None:
        with StopSignals():
            seen.append([signal.getsignal(each) for each in STOP_SIGNALS] == before)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [True]


FORK = """
import os, signal
from rocketshim.stop_signals import StopSignals
with StopSignals() as signals:
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.{name})
        os._exit(7)
    _, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), signals.asked)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", -signal.SIGTERM), ("SIGINT", 7)])
def test_sigterm_ends_a_forked_child_and_ctrl_c_does_not(name: str, code: int) -> None:
    program = [sys.executable, "-c", FORK.format(name=name)]
    printed = subprocess.run(program, check=True, timeout=60, capture_output=True, text=True).stdout  # noqa: S603
    assert printed.split() == [str(code), "False"]
