"""Stack traces of exceptions of user code: what a record gets, and that it costs little and says nothing private."""

import linecache
from typing import Any

import pytest

from rocketshim import DeadLetter, Message, MessageView, PushConsumer, RetryLater
from rocketshim.failures import FailureMaker
from rocketshim.harness import Harness
from rocketshim.testing import VirtualClock
from rocketshim_topics.wire import decode


def inner(text: str) -> None:
    raise ConnectionError(text)


def outer(text: str) -> None:
    inner(text)


def chained(text: str) -> None:
    try:
        inner(text)
    except ConnectionError as error:
        raise ValueError(text) from error


def deep(count: int) -> None:
    if count == 0:
        raise RecursionError
    deep(count - 1)


def caught(function: Any, *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 - all of them
        return error
    raise AssertionError("it does not raise")


def trace_of(error: BaseException) -> str:
    return FailureMaker(VirtualClock()).of(error).stack_bytes.decode()


def test_frames_are_there_with_their_source_the_innermost_last_and_no_text_of_the_exception() -> None:
    lines = trace_of(caught(outer, "card 4711")).splitlines()
    assert [line.rpartition(", in ")[2] for line in lines if line.startswith("  File")] == ["caught", "outer", "inner"]
    assert lines[-2:] == ["    raise ConnectionError(text)", "ConnectionError"]
    assert "4711" not in "\n".join(lines)


def test_the_cause_comes_before_the_exception_as_in_python() -> None:
    lines = trace_of(caught(chained, "card 4711")).splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["ConnectionError", "ValueError"]


def test_a_suppressed_context_is_left_out() -> None:
    def hide() -> None:
        try:
            inner("x")
        except ConnectionError:
            raise ValueError from None

    assert "ConnectionError" not in trace_of(caught(hide)).splitlines()


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert trace_of(first).splitlines() == ["KeyError", "ValueError"] * 2


def test_an_endless_recursion_is_cut_to_its_last_frames_and_2_kib() -> None:
    trace = trace_of(caught(deep, 500))
    assert len(trace.encode()) <= 2_048
    assert trace.startswith("  ")
    assert trace.endswith("    raise RecursionError\nRecursionError\n")


def test_an_exception_that_was_never_raised_has_only_its_class() -> None:
    found = FailureMaker(VirtualClock()).of(OSError("x"))
    assert (found.place, found.stack_bytes) == ("", b"OSError\n")


def test_source_is_read_once_for_all_exceptions_of_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    maker = FailureMaker(VirtualClock())
    read = linecache.getline
    monkeypatch.setattr(linecache, "getline", lambda *where: reads.append(where[0]) or read(*where))
    errors = [caught(outer, str(number)) for number in range(50)]
    assert len({maker._path_of(error) for error in errors}) == 1
    assert len(reads) == 3
    assert maker._path_of(caught(inner, "x")) != maker._path_of(errors[0]), "another path to the same line"


def test_the_number_of_paths_that_are_kept_is_bounded() -> None:
    maker = FailureMaker(VirtualClock(), wants_stack=False)
    for count in range(300):
        maker._path_of(caught(deep, count))
    assert len(maker._known) <= 256


def test_a_module_whose_loader_fails_costs_the_trace_and_nothing_else() -> None:
    class Loader:
        def get_source(self, name: str) -> str:
            raise SystemExit(name)

    scope: dict[str, Any] = {"__name__": "odd", "__loader__": Loader()}
    exec(compile("def handle(): raise OSError", "odd.py", "exec"), scope)  # noqa: S102 - of this test
    failure = FailureMaker(VirtualClock()).of(caught(scope["handle"]))
    assert (failure.exception_class, failure.stack_bytes) == ("OSError", b"")


@pytest.mark.parametrize("error", [RetryLater("1s"), DeadLetter("no")])
def test_a_request_has_no_stack_trace(error: Exception) -> None:
    def ask() -> None:
        raise error

    assert FailureMaker(VirtualClock()).of(caught(ask)).stack_bytes == b""


@pytest.mark.parametrize("fail_stack", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_retries_and_dead_letters_have_the_stack_trace_unless_it_is_off(fail_stack: bool, is_async: bool) -> None:
    consumer = PushConsumer("localhost:9092", group="payments", max_reconsume_times=1, fail_stack=fail_stack)

    def handle(message: MessageView) -> None:
        outer(str(message.body))

    async def await_handle(message: MessageView) -> None:
        handle(message)

    consumer.register_message_listener("orders", await_handle if is_async else handle)
    with Harness() as harness:
        harness.run(consumer)
        harness.send(Message("orders", b"o-7", properties={"FAIL": "mine"}))
        scheduled = [dict(record.headers()) for record in harness.kafka.records("SCHEDULE_TOPIC_XXXX", 2)]
        harness.pass_time("10s")
        (dead,) = harness.dead("payments")
    stack = decode(dead.record.headers(), trusted=True).fail_stack
    assert ("FAIL_STACK" in scheduled[0]) is fail_stack
    assert (stack is not None) is fail_stack
    if stack is not None:
        frames = [line.rpartition(", in ")[2] for line in stack.splitlines() if line.startswith("  File")]
        assert frames == [*(["await_handle"] if is_async else []), "handle", "outer", "inner"]
        assert stack.endswith("\nConnectionError\n")
    assert dead.properties == {"FAIL": "mine"}
