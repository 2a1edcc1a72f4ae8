"""`dead_on` and `retry_on`: which exceptions of a listener are final, in every kind of consumer."""

import asyncio
from typing import Any

import pytest

from rocketshim import DeadLetter, Message, MessageView, PushConsumer, RetryLater
from rocketshim.consumer.listeners import adapt
from rocketshim.consumer.orderly import OrderlyRunner
from rocketshim.core.listener_answers import FailureRules, failure_rules
from rocketshim.core.orderly_queue import OrderlyTask
from rocketshim.core.subscriptions import Subscription
from rocketshim.errors import ConfigError
from rocketshim.harness import Harness
from rocketshim.locks.lease import NO_LOCK
from rocketshim.testing import VirtualClock
from rocketshim_topics import wire

from .conftest import settings_of
from .orderly.test_runner import PartitionStub, Readable


class RefusedError(ValueError):
    """An error whose bases decide."""


class Liar(type):
    """A metaclass that denies everything."""

    def __subclasscheck__(cls, kind: type) -> bool:
        raise OSError("never ask")

    def __eq__(cls, other: object) -> bool:
        raise OSError("never ask")

    __hash__ = None  # type: ignore[assignment]


class LyingError(RefusedError, metaclass=Liar):
    """A subclass of `ValueError` whose class cannot be asked."""


@pytest.mark.parametrize(
    ("dead_on", "retry_on", "kind", "final"),
    [
        ((ValueError,), None, ValueError, True),
        ((ValueError,), None, RefusedError, True),
        ((ValueError,), None, LyingError, True),
        ((ValueError,), None, OSError, False),
        (ValueError, None, RefusedError, True),
        (None, (OSError, TimeoutError), ConnectionError, False),
        (None, (OSError,), ValueError, True),
        (None, OSError, KeyboardInterrupt, True),
        (None, (), OSError, True),
        ((), None, OSError, False),
        ((RefusedError,), (ValueError,), RefusedError, True),
        ((RefusedError,), (ValueError,), ValueError, False),
        ((ValueError,), (RefusedError,), RefusedError, True),
    ],
)
def test_dead_on_counts_first_and_classes_stand_for_their_subclasses(
    dead_on: Any, retry_on: Any, kind: type[BaseException], final: bool
) -> None:
    rules = failure_rules(dead_on, retry_on)
    assert rules is not None
    assert rules.is_final(kind) is final


def test_a_listener_without_rules_has_none() -> None:
    assert failure_rules(None, None) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"dead_on": "ValueError"},
            "dead_on has 'ValueError': give classes of exceptions, as in dead_on=",
        ),
        ({"retry_on": [OSError]}, "retry_on has .<class 'OSError'>.: give classes"),
        ({"retry_on": (int,)}, "retry_on has <class 'int'>: give classes"),
        ({"dead_on": ValueError()}, "dead_on has ValueError.*: give classes"),
        (
            {"dead_on": OSError, "retry_on": (ValueError, OSError)},
            "OSError is in dead_on and in retry_on",
        ),
    ],
)
def test_rules_that_are_not_legal_register_nothing(options: dict[str, Any], text: str) -> None:
    consumer = PushConsumer("localhost:9092", group="payments")
    with pytest.raises(ConfigError, match=text):
        consumer.listener("orders", **options)(lambda message: None)  # noqa: ARG005
    consumer.register_message_listener("orders", lambda message: None)  # noqa: ARG005


def raising(error: BaseException) -> Any:
    def handle(message: MessageView) -> None:
        del message
        raise error

    return handle


@pytest.mark.parametrize("is_async", [False, True])
def test_a_final_exception_makes_a_dead_letter_with_its_class_at_the_first_attempt(is_async: bool) -> None:
    consumer = PushConsumer("localhost:9092", group="payments")
    calls: list[int] = []

    def handle(message: MessageView) -> None:
        calls.append(message.reconsume_times)
        raise RefusedError("no such card") if message.body == b"final" else TimeoutError("later")

    async def await_handle(message: MessageView) -> None:
        await asyncio.sleep(0)
        handle(message)

    consumer.register_message_listener("orders", await_handle if is_async else handle, dead_on=(ValueError,))
    with Harness() as harness:
        harness.run(consumer)
        harness.send(Message("orders", b"final"), Message("orders", b"again"))
        (dead,) = harness.dead("payments")
        assert (dead.body, dead.reconsume_times) == (b"final", 1)
        assert wire.decode(dead.record.headers(), trusted=True).fail_class == "RefusedError"
        assert len(harness.waiting("%RETRY%payments")) == 1
        harness.pass_time("10s")
    assert sorted(calls) == [0, 0, 1]


def test_an_exception_that_is_not_in_retry_on_is_final_also_on_a_retry() -> None:
    consumer = PushConsumer("localhost:9092", group="payments")

    @consumer.listener("orders", retry_on=TimeoutError)
    def handle(message: MessageView) -> None:
        raise TimeoutError if message.reconsume_times == 0 else KeyError("o-7")

    with Harness() as harness:
        harness.run(consumer)
        harness.send(Message("orders", b"o-7"))
        assert harness.dead("payments") == []
        harness.pass_time("10s")
        (dead,) = harness.dead("payments")
    assert dead.reconsume_times == 2


def test_a_batch_of_answers_is_judged_message_by_message() -> None:
    consumer = PushConsumer("localhost:9092", group="payments", consume_message_batch_max_size=3)

    @consumer.listener("orders", dead_on=ValueError)
    def handle(messages: list[MessageView]) -> list[Exception | None]:
        answers = {b"good": None, b"bad": ValueError("bad"), b"busy": OSError("busy")}
        return [answers[message.body or b""] for message in messages]

    with Harness() as harness:
        harness.run(consumer)
        harness.send(*(Message("orders", body) for body in (b"good", b"bad", b"busy")))
        assert [dead.body for dead in harness.dead("payments")] == [b"bad"]
        assert len(harness.waiting()) == 1


@pytest.mark.parametrize(("error", "dead"), [(RetryLater("1m"), 0), (DeadLetter("no"), 1)])
def test_what_the_listener_asks_for_counts_before_the_rules(error: Exception, dead: int) -> None:
    consumer = PushConsumer("localhost:9092", group="payments")
    consumer.register_message_listener("orders", raising(error), dead_on=RetryLater, retry_on=DeadLetter)
    with Harness() as harness:
        harness.run(consumer)
        harness.send(Message("orders", b"o-7"))
        assert len(harness.dead("payments")) == dead


def test_a_level_that_the_listener_has_set_counts_before_the_rules() -> None:
    consumer = PushConsumer("localhost:9092", group="payments")

    @consumer.listener("orders", dead_on=ValueError)
    def handle(message: MessageView, context: Any) -> None:
        del message
        context.delay_level_when_next_consume = 2
        raise ValueError

    with Harness() as harness:
        harness.run(consumer)
        harness.send(Message("orders", b"o-7"))
        (waiting,) = harness.waiting()
    assert (waiting.due_ms or 0) - waiting.appended_ms == 5_000


def test_a_new_filter_keeps_the_rules_and_a_new_listener_does_not() -> None:
    consumer = PushConsumer("localhost:9092", group="payments")
    consumer.register_message_listener("orders", raising(ValueError()), dead_on=ValueError)
    consumer.subscribe("orders", tags="paid")
    assert consumer._subscriptions.get("orders").rules == FailureRules((ValueError,))  # type: ignore[union-attr]
    consumer.subscribe("orders", raising(ValueError()))
    assert consumer._subscriptions.get("orders").rules is None  # type: ignore[union-attr]


@pytest.mark.parametrize("batch_count", [1, 2])
@pytest.mark.parametrize(("error", "dead"), [(RefusedError("no"), True), (OSError(), False), (RetryLater("1s"), False)])
def test_an_orderly_message_with_a_final_exception_does_not_block_its_queue(
    error: Exception, dead: bool, batch_count: int
) -> None:
    rules = FailureRules((ValueError,))
    mine = Subscription("orders", adapt(raising(error)), orderly=True, rules=rules)
    runner = OrderlyRunner(settings_of(batch_count), {"orders": mine}.get, VirtualClock())
    task: Any = OrderlyTask(PartitionStub(), [Readable(1)], {})  # type: ignore[arg-type]
    task.lease = NO_LOCK
    (answer,) = runner.run(task)
    assert answer.dead_letter is dead
    assert task.failure.exception_class == type(error).__name__
