"""What the log says about a failed message, in every format, and what it never does."""

import json
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import Message

from rocketshim.core.listener_answers import DeadLetter, RetryLater
from rocketshim.core.next_hop import FailedMessage, HopMaker
from rocketshim.failures import Attempt, FailureLog, FailureMaker
from rocketshim.logs import safe_logger
from rocketshim.testing import VirtualClock
from rocketshim.worker.log_format import JsonLines, TextLines
from rocketshim_topics import DelayLevels, Failure, TopicNames

FAILURE = Failure(
    "ConnectionError", "the bank\ndoes not answer", 0, "shop.py:12", 'Traceback\n  File "shop.py"\nConn\x1b'
)
RULES = HopMaker(TopicNames(), DelayLevels.default(), "payments", limit=16)
AGAIN = Attempt("orders/0/7", "0A1B", 1, 17, 10_000, 3)
DEAD = Attempt("orders/0/7", "0A1B", 17, 17, None, end="it is a dead letter now, in rmq.dlq.payments")


def record_of(caplog: pytest.LogCaptureFixture, attempt: Attempt, failure: Failure = FAILURE) -> logging.LogRecord:
    log = FailureLog(safe_logger("rocketshim.consumer"), RULES)
    log.write(failure, attempt, log.add(failure, 0, is_final=attempt.delay_ms is None))
    return caplog.records[-1]


def test_a_retry_is_a_warning_that_says_which_attempt_failed_why_and_when_it_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = record_of(caplog, AGAIN)
    first, *trace = record.getMessage().split("\n")
    assert record.levelno == logging.WARNING
    assert first.startswith(
        "consumer.listener-failed: attempt 1 of 17 of message 0A1B (orders/0/7) in group payments failed: "
        "ConnectionError: the bank\\ndoes not answer; next attempt in 10 s (level 3), at "
    )
    assert trace == ["  Traceback", '    File "shop.py"', "  Conn\\x1b"], "no line of a trace looks like a log line"


def test_without_a_worker_no_time_is_promised(caplog: pytest.LogCaptureFixture) -> None:
    worker = SimpleNamespace(is_missing=True)
    log = FailureLog(safe_logger("rocketshim.consumer"), RULES, worker=worker)  # type: ignore[arg-type]
    log.write(FAILURE, AGAIN, 1)
    (line, *_) = caplog.records[-1].getMessage().split("\n")
    assert line.endswith("; no worker runs: next attempt when one does, in 10 s at the earliest")
    worker.is_missing = False
    log.write(FAILURE, AGAIN, 1)
    assert "; next attempt in 10 s (level 3), at " in caplog.records[-1].getMessage()


@pytest.mark.parametrize("msg_id", ["A\nERROR forged", "A\x1b[2J", "\udc9a"], ids=["newline", "terminal", "not-utf-8"])
def test_the_id_of_a_message_cannot_forge_lines_nor_break_a_handler(
    caplog: pytest.LogCaptureFixture, msg_id: str
) -> None:
    """A sender chooses it, by the header `UNIQ_KEY`."""
    first, *trace = record_of(caplog, replace(AGAIN, msg_id=msg_id)).getMessage().split("\n")
    assert first.isprintable()
    assert len(trace) == 3
    first.encode()


def test_a_dead_message_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(caplog, DEAD)
    assert record.levelno == logging.ERROR
    assert "attempt 17 of 17" in record.getMessage()
    assert "it is a dead letter now, in rmq.dlq.payments" in record.getMessage()


def test_the_formats_of_processes_show_the_event_and_the_facts(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(caplog, AGAIN)
    line, *trace = TextLines().format(record).split("\n")
    assert " WARNING consumer.listener-failed group=payments record=orders/0/7 msg_id=0A1B attempt=1" in line
    assert len(trace) == 3
    shown = json.loads(JsonLines().format(record))
    assert (shown["event"], shown["attempts"], shown["delay_ms"]) == ("consumer.listener-failed", 17, 10_000)
    assert shown["traceback"].startswith("Traceback")


def test_failures_over_the_limit_become_one_line_with_their_count(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(safe_logger("rocketshim.consumer"), RULES)
    counts = [log.add(FAILURE, 0, is_final=False) for _ in range(1_000)]
    assert counts == [*range(1, 21), *[0] * 980]
    log.turn(59_999)
    assert caplog.records == []
    log.turn(60_000)
    (record,) = caplog.records
    assert "980 more messages of group payments failed within a minute" in record.getMessage()
    assert record.count == 980  # type: ignore[attr-defined]


def test_a_stack_trace_is_taken_for_the_first_of_a_cause_in_a_minute_and_begins_in_the_users_code() -> None:
    clock = VirtualClock()
    maker = FailureMaker(clock)

    def failure() -> Failure:
        with pytest.raises(ConnectionError) as caught:
            raise ConnectionError("no") from KeyError("cause")
        return maker.of(caught.value)

    first, second = failure(), failure()
    assert "KeyError: 'cause'" in first.stack
    assert "ConnectionError: no" in first.stack
    assert first.place == second.place != ""
    assert second.stack == ""
    clock.advance(59_999)
    assert failure().stack == ""
    clock.advance(1)
    assert failure().stack == first.stack
    assert maker.of(RetryLater("5s")).stack == maker.of(DeadLetter("no")).stack == "", "a request is no defect"


def test_paths_that_lead_to_the_same_line_share_one_stack_trace_in_a_minute() -> None:
    maker = FailureMaker(VirtualClock())

    def fail(calls: int) -> None:
        if calls:
            fail(calls - 1)
        else:
            raise ConnectionError

    stacks = []
    for calls in range(3):
        with pytest.raises(ConnectionError) as caught:
            fail(calls)
        stacks.append(maker.of(caught.value).stack)
    assert [bool(stack) for stack in stacks] == [True, False, False]


class HostileError(Exception):
    """An exception that lies about everything."""

    __traceback__ = 7  # type: ignore[assignment]

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise OSError("no")

    def __str__(self) -> str:
        raise SystemExit


def test_no_exception_of_user_code_gets_out_of_its_description() -> None:
    with pytest.raises(HostileError) as caught:
        raise HostileError
    failure = FailureMaker(VirtualClock()).of(caught.value)
    assert failure.exception_class == "HostileError"
    assert "raised SystemExit" in failure.text
    assert failure.stack != ""


def test_a_deep_recursion_is_cut() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError("x" * 100_000)

    with pytest.raises(ValueError, match="xxx") as caught:
        deep(200)
    assert len(FailureMaker(VirtualClock()).of(caught.value).stack) <= 16_384


def test_a_delay_above_the_longest_is_logged_as_the_record_has_it(caplog: pytest.LogCaptureFixture) -> None:
    outcome = FailedMessage(Message("orders", 0, 7, value=b""), FAILURE, asked_delay_ms=41 * 86_400_000)
    log = FailureLog(safe_logger("rocketshim.consumer"), RULES)
    log.hop(RULES.first(outcome, lane=lambda: 0, unit=0.5), 0)
    assert "; next attempt in 40 d, at " in caplog.records[-1].getMessage()
