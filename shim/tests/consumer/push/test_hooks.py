"""Hooks see every call and its outcome, can filter messages, and never fail a message by observing it."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
from confluent_kafka import Message

from rocketshim.consumer.concurrent import ConcurrentRunner
from rocketshim.consumer.listeners import adapt
from rocketshim.consumer.push.hooks import ConsumeMessageContext, Hooks
from rocketshim.core.listener_answers import ConsumeOrderlyStatus, ConsumeReturnType, ConsumeStatus, return_type
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.core.subscriptions import Subscription
from rocketshim.testing import VirtualClock
from rocketshim_topics.coordinates import TopicPartitionKey

from ..conftest import settings_of


class Log:
    """Records the calls that it sees."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name = name
        self.lines = lines

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        context.kept[self.name] = len(self.lines)
        self.lines.append(f"{self.name} before {[message.queue_offset for message in context.messages]}")

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        assert context.kept[self.name] < len(self.lines)
        assert context.return_type is not None
        self.lines.append(f"{self.name} after {context.return_type.value} {type(context.error).__name__}")


class Broken:
    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        raise SystemExit(context.group)

    consume_message_after = consume_message_before


def run(hooks: Hooks, listener: Any, count: int = 1, batch_count: int = 1, **subscription: Any) -> list[str]:
    """Run one chunk; return the failures."""
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 0))
    queue.put([Message("orders", 0, offset, value=b"") for offset in range(count)])
    chunk = queue.take(count)
    assert chunk is not None
    mine = Subscription("orders", adapt(listener), **subscription)
    find = hooks.wrap({"orders": mine}.get, awaits=False)
    runner = ConcurrentRunner(settings_of(batch_count), find, VirtualClock())
    return [outcome.failure.exception_class for outcome in runner.run(chunk) or []]


def test_without_hooks_nothing_is_wrapped() -> None:
    found = {"orders": Subscription("orders", adapt(print))}
    assert Hooks(1_000).wrap(found.get, awaits=False)("orders") is found["orders"]


def test_a_replaced_subscription_is_not_kept() -> None:
    hooks = Hooks(1_000)
    hooks.consuming.append(Broken())
    found: dict[str, Subscription] = {}
    find = hooks.wrap(found.get, awaits=False)

    def subscribe() -> weakref.ref[Any]:
        def listener(message: Any, context: Any) -> None:
            del message, context

        found["orders"] = Subscription("orders", listener)
        assert find("orders") is not found["orders"]
        return weakref.ref(listener)

    first, second = subscribe(), subscribe()
    gc.collect()
    assert first() is None
    assert second() is not None


def test_hooks_nest_and_see_the_outcome_of_a_call() -> None:
    lines: list[str] = []
    hooks = Hooks(900_000)
    hooks.consuming += [Log("a", lines), Log("b", lines)]

    def handle(messages: Any) -> Any:
        if messages[0].queue_offset == 0:
            return None
        raise OSError

    assert run(hooks, handle, 3, 2) == ["OSError"]
    assert lines == [
        "a before [0, 1]", "b before [0, 1]", "b after SUCCESS NoneType", "a after SUCCESS NoneType",
        "a before [2]", "b before [2]", "b after EXCEPTION OSError", "a after EXCEPTION OSError",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "count", "label"),
    [
        ([None, ConsumeStatus.CONSUME_SUCCESS], 2, "SUCCESS"),
        ([None, OSError()], 2, "FAILED"),
        ([None], 2, "RETURNNULL"),
        ([None], 1, "RETURNNULL"),  # the listener gets a message, not a list
    ],
)
def test_a_list_of_results_counts_as_its_worst_result(answer: Any, count: int, label: str) -> None:
    lines: list[str] = []
    hooks = Hooks(900_000)
    hooks.consuming.append(Log("a", lines))
    run(hooks, lambda message: answer, count, count)  # noqa: ARG005
    assert lines[1] == f"a after {label} NoneType"


def test_a_hook_that_raises_changes_nothing() -> None:
    lines: list[str] = []
    hooks = Hooks(900_000)
    hooks.consuming += [Broken(), Log("a", lines)]
    assert run(hooks, lambda message: None) == []  # noqa: ARG005
    assert len(lines) == 2


@pytest.mark.parametrize("batch_count", [1, 3])
def test_filter_hooks_run_after_the_filter_and_all_must_accept_a_message(batch_count: int) -> None:
    asked: list[int] = []
    seen: list[int] = []

    class Wants:
        def __init__(self, divisor: int) -> None:
            self.divisor = divisor

        def filter_message(self, message: Any) -> bool:
            asked.append(message.queue_offset)
            return bool(message.queue_offset % self.divisor)

    def handle(messages: Any) -> None:
        seen.extend(one.queue_offset for one in ([messages] if batch_count == 1 else messages))

    hooks = Hooks(900_000)
    hooks.filtering += [Wants(2), Wants(3)]
    assert run(hooks, handle, 8, batch_count, selects=lambda view: view.queue_offset < 6) == []
    assert seen == [1, 5]
    assert max(asked) == 5


def test_a_message_whose_filter_hook_raises_is_retried() -> None:
    class Breaks:
        def filter_message(self, message: Any) -> bool:
            raise OSError(message)

    hooks = Hooks(900_000)
    hooks.filtering.append(Breaks())
    assert run(hooks, lambda message: None, 2) == ["OSError", "OSError"]  # noqa: ARG005


@pytest.mark.parametrize("answer", [None, 1, "yes", []])
def test_a_message_whose_filter_hook_answers_neither_true_nor_false_is_retried(answer: Any) -> None:
    """A hook that forgets to return would otherwise let each message count as handled."""

    class Forgets:
        def filter_message(self, message: Any) -> Any:
            del message
            return answer

    hooks = Hooks(900_000)
    hooks.filtering.append(Forgets())
    assert run(hooks, lambda message: None, 2) == ["FilterEvaluationError"] * 2  # noqa: ARG005


def test_an_async_listener_has_hooks_too() -> None:
    lines: list[str] = []
    hooks = Hooks(900_000)
    hooks.consuming.append(Log("a", lines))

    async def handle(message: Any) -> ConsumeStatus:
        await asyncio.sleep(0)
        return ConsumeStatus.RECONSUME_LATER if message.queue_offset else ConsumeStatus.CONSUME_SUCCESS

    class Context:
        group, message_queue = "g", None

    class One:
        queue_offset = 1

    found = hooks.wrap({"orders": Subscription("orders", adapt(handle))}.get, awaits=True)("orders")
    assert found is not None
    assert asyncio.run(found.listener(One(), Context())) is ConsumeStatus.RECONSUME_LATER  # type: ignore[arg-type]
    assert lines == ["a before [1]", "a after FAILED NoneType"]


@pytest.mark.parametrize(
    ("status", "raised", "elapsed_ms", "expected"),
    [
        (None, False, 1, "SUCCESS"),
        (ConsumeStatus.CONSUME_SUCCESS, False, 1, "SUCCESS"),
        (ConsumeStatus.RECONSUME_LATER, False, 1, "FAILED"),
        (ConsumeOrderlyStatus.SUCCESS, False, 1, "SUCCESS"),
        (ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, False, 1, "FAILED"),
        (None, False, 10, "TIME_OUT"),
        (ConsumeStatus.RECONSUME_LATER, False, 11, "TIME_OUT"),
        (None, True, 11, "EXCEPTION"),
        ("nonsense", False, 11, "RETURNNULL"),
        (0, False, 1, "RETURNNULL"),
    ],
)
def test_the_label_of_a_call(status: object, raised: bool, elapsed_ms: int, expected: str) -> None:
    found = return_type(status, raised=raised, elapsed_ms=elapsed_ms, timeout_ms=10)
    assert found is ConsumeReturnType(expected)


@pytest.mark.usefixtures("broken_logging")
def test_a_raising_hook_fails_nothing_even_if_logging_raises() -> None:
    hooks = Hooks(1_000)
    hooks.consuming.append(Broken())
    assert run(hooks, lambda message: None, count=2) == []  # noqa: ARG005
