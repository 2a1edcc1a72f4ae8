"""Calling user code: whatever it returns, raises or leaves in its context is an outcome, never an end."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Message

from rocketshim.codecs import UnansweredCodec
from rocketshim.consumer.concurrent import ConcurrentRunner
from rocketshim.consumer.listeners import adapt
from rocketshim.core.listener_answers import DEAD_LETTER_LEVEL, ConsumeStatus, DeadLetter, RetryLater
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import as_int, class_name, safe_text
from rocketshim.filters import TagFilter
from rocketshim.testing import VirtualClock
from rocketshim_topics import MessageView
from rocketshim_topics.coordinates import TopicPartitionKey

from ..conftest import settings_of


def run(listener: Callable[..., Any], count: int = 3, batch_count: int = 1, **subscription: Any) -> list[FailedMessage]:
    """Run one chunk through a listener; what did not succeed."""
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 0), 7)
    queue.put([Message("orders", 0, offset, value=b"%d" % offset) for offset in range(count)])
    chunk: Chunk | None = queue.take(count)
    assert chunk is not None
    mine = Subscription("orders", adapt(listener), **subscription)
    runner = ConcurrentRunner(settings_of(batch_count), {"orders": mine}.get, VirtualClock())
    outcomes = runner.run(chunk) or []
    queue.report(chunk, [outcome.message for outcome in outcomes])
    return outcomes


class Mute(Exception):  # noqa: N818
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise OSError("no text")

    __repr__ = __str__


class Odd:
    """A value none of whose methods works."""

    def __bool__(self) -> bool:
        raise OSError

    def __repr__(self) -> str:
        raise OSError

    def __lt__(self, other: object) -> bool:
        raise OSError

    def __eq__(self, other: object) -> bool:
        raise OSError

    def __hash__(self) -> int:
        raise OSError

    def __index__(self) -> int:
        raise OSError


@pytest.mark.parametrize("batch_count", [1, 3])
@pytest.mark.parametrize("error", [Mute(), OSError("\ud800"), OSError("x" * 100_000), GeneratorExit(), SystemExit(3)])
def test_any_exception_of_a_listener_fails_its_messages(error: BaseException, batch_count: int) -> None:
    def handle(message: Any) -> None:
        del message
        raise error

    outcomes = run(handle, batch_count=batch_count)
    assert [outcome.failure.exception_class for outcome in outcomes] == [type(error).__name__] * 3
    assert {outcome.asked_level for outcome in outcomes} == {0}


def test_an_error_without_readable_text_is_reported_as_such() -> None:
    def handle(message: Any) -> None:
        del message
        raise Mute

    assert run(handle, 1)[0].failure.text == "(str() of a Mute raised OSError)"


@pytest.mark.parametrize("answer", [True, 0, 1, "SUCCESS", Odd(), float("nan"), [None]])
@pytest.mark.parametrize("batch_count", [1, 3])
def test_a_value_that_is_not_a_status_is_a_failure(answer: object, batch_count: int) -> None:
    outcomes = run(lambda message: answer, batch_count=batch_count)  # noqa: ARG005
    assert [outcome.failure.exception_class for outcome in outcomes] == ["ReturnedNoStatus"] * 3


@pytest.mark.parametrize("ack_index", ["1", None, 1.5, Odd(), [1]])
@pytest.mark.parametrize("batch_count", [1, 3])
def test_an_ack_index_that_is_not_an_integer_fails_the_call(ack_index: Any, batch_count: int) -> None:
    def handle(message: Any, context: Any) -> None:
        del message
        context.ack_index = ack_index

    outcomes = run(handle, batch_count=batch_count)
    assert [outcome.failure.exception_class for outcome in outcomes] == ["AckIndexError"] * 3


def test_an_ack_index_that_was_deleted_fails_the_call() -> None:
    def handle(message: Any, context: Any) -> None:
        del message, context.ack_index, context.delay_level_when_next_consume

    assert len(run(handle)) == 3


@pytest.mark.parametrize(
    ("ack_index", "failed"), [(-1, [0, 1, 2]), (0, [1, 2]), (True, [2]), (2, []), (99, []), (-(10**30), [0, 1, 2])]
)
def test_messages_after_the_ack_index_have_failed(ack_index: int, failed: list[int]) -> None:
    def handle(messages: Any, context: Any) -> None:
        del messages
        context.ack_index = ack_index

    assert [outcome.message.offset() for outcome in run(handle, batch_count=3)] == failed


def test_a_list_has_one_answer_for_each_message_of_a_batch() -> None:
    """And so the others of its batch are not repeated."""
    answers: list[Any] = [
        None,
        ConsumeStatus.CONSUME_SUCCESS,
        ConsumeStatus.RECONSUME_LATER,
        OSError("no"),
        RetryLater(level=7),
        RetryLater("30s"),
        DeadLetter("never"),
        "nonsense",
    ]

    def handle(messages: Any, context: Any) -> Any:
        context.delay_level_when_next_consume = 2
        context.ack_index = 0  # the list says it all
        return [answers[message.queue_offset] for message in messages]

    found = [
        (outcome.message.offset(), outcome.failure.exception_class, outcome.asked_level, outcome.asked_delay_ms)
        for outcome in run(handle, count=8, batch_count=8)
    ]
    assert found == [
        (2, "ReconsumeLater", 2, None),
        (3, "OSError", 2, None),
        (4, "RetryLater", 7, None),
        (5, "RetryLater", 2, 30_000),
        (6, "DeadLetter", -1, None),
        (7, "ReturnedNoStatus", 2, None),
    ]


@pytest.mark.parametrize(("answers", "batch_count"), [([None, None], 3), ([], 3), ((None, None, None), 3), ([None], 1)])
def test_a_list_that_is_not_one_answer_for_each_message_is_a_failure(answers: Any, batch_count: int) -> None:
    assert len(run(lambda messages: answers, batch_count=batch_count)) == 3  # noqa: ARG005


def test_the_ack_index_of_a_failed_call_is_ignored() -> None:
    def handle(messages: Any, context: Any) -> ConsumeStatus:
        del messages
        context.ack_index = "nonsense"
        return ConsumeStatus.RECONSUME_LATER

    assert {outcome.failure.exception_class for outcome in run(handle, batch_count=3)} == {"ReconsumeLater"}


@pytest.mark.parametrize(("asked", "level"), [("3", 0), (None, 0), (2.0, 0), (Odd(), 0), (5, 5), (-1, -1), (True, 1)])
def test_an_invalid_level_counts_as_not_requested(asked: Any, level: int) -> None:
    def raises(message: Any, context: Any) -> None:
        context.delay_level_when_next_consume = asked
        raise OSError(message)

    def answers(message: Any, context: Any) -> ConsumeStatus:
        del message
        context.delay_level_when_next_consume = asked
        return ConsumeStatus.RECONSUME_LATER

    for listener in (raises, answers):
        assert [outcome.asked_level for outcome in run(listener)] == [level] * 3


def test_an_invalid_level_changes_nothing_if_the_call_succeeds() -> None:
    def handle(message: Any, context: Any) -> None:
        del message
        context.delay_level_when_next_consume = "text"

    assert run(handle) == []


def test_context_settings_count_for_one_call_only() -> None:
    def handle(message: Any, context: Any) -> ConsumeStatus:
        if message.queue_offset == 0:
            context.delay_level_when_next_consume = 9
        return ConsumeStatus.RECONSUME_LATER

    assert [outcome.asked_level for outcome in run(handle)] == [9, 0, 0]


def test_a_retry_later_with_damaged_attributes_is_retried_by_the_policy() -> None:
    def handle(message: Any) -> None:
        del message
        later = RetryLater("3s")
        later.delay_ms = later.level = "soon"  # type: ignore[assignment]
        raise later

    assert [(one.asked_level, one.asked_delay_ms) for one in run(handle)] == [(0, None)] * 3


def test_exceptions_of_a_listener_with_a_meaning() -> None:
    asked = {0: RetryLater("3s"), 1: RetryLater(level=4), 2: DeadLetter("why")}

    def handle(message: Any) -> None:
        raise asked[message.queue_offset]

    outcomes = run(handle)
    assert [(one.asked_level, one.asked_delay_ms) for one in outcomes] == [
        (0, 3_000), (4, None), (DEAD_LETTER_LEVEL, None),
    ]  # fmt: skip


@pytest.mark.parametrize("error", [RetryLater("3s"), RetryLater(level=4), DeadLetter("why"), UnansweredCodec("no")])
def test_what_a_listener_raises_in_a_process_pool_arrives_as_it_was_raised(error: Exception) -> None:
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_a_second_parameter_with_a_default_keeps_it_unless_it_is_none() -> None:
    seen: list[Any] = []

    def handle(message: Any, times: int = 3) -> None:
        seen.append((message.queue_offset, times))

    def look(message: Any, ctx: Any = None) -> None:
        seen.append((message.queue_offset, ctx.group))

    def forward(*given: Any, **named: Any) -> None:
        handle(given[0], **named)
        seen.append(len(given))

    assert not any(run(listener, count=1) for listener in (handle, look, forward, partial(handle, times=5)))
    assert seen == [(0, 3), (0, "g"), (0, 3), 2, (0, 5)]


@pytest.mark.parametrize("batch_count", [1, 3])
def test_a_filter_that_raises_fails_only_its_message(batch_count: int) -> None:
    def selects(view: Any) -> bool:
        if view.queue_offset == 1:
            raise Mute
        return True

    outcomes = run(lambda message: None, batch_count=batch_count, selects=selects)  # noqa: ARG005
    assert [outcome.message.offset() for outcome in outcomes] == [1]


def test_safe_text_and_as_int_never_raise() -> None:
    assert safe_text("text") == "text"
    assert safe_text(Odd(), repr) == "(repr() of a Odd raised OSError)"
    assert [as_int(value) for value in (3, True, "3", 3.0, None, Odd())] == [3, 1, None, None, None, None]


@pytest.mark.parametrize(("again", "called"), [(None, [1, 2]), (lambda headers: dict(headers)["a"] == b"1", [1])])
def test_retried_messages_are_filtered_again_only_if_configured(again: Any, called: list[int]) -> None:
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey("rmq.retry.g", 0))
    headers = [("RETRY_TOPIC", b"orders"), ("RECONSUME_TIMES", b"1")]
    queue.put(
        [Message("rmq.retry.g", 0, number, value=b"", headers=[*headers, ("a", b"%d" % number)]) for number in (1, 2)]
    )
    chunk = queue.take(2)
    assert chunk is not None
    seen: list[int] = []
    mine = Subscription(
        "orders", adapt(lambda message: seen.append(message.queue_offset)), lambda _: False, matches_retry=again
    )
    runner = ConcurrentRunner(settings_of(), {"orders": mine}.get, VirtualClock())
    assert runner.run(chunk) is None
    assert seen == called


@pytest.mark.parametrize("batch_count", [1, 2])
@pytest.mark.parametrize("sieve", [None, TagFilter("a").sieve])
def test_only_the_record_that_the_filter_cannot_read_fails(
    unreadable: Callable[[Any], Any], sieve: Any, batch_count: int
) -> None:
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 0))
    tagged = [
        Message("orders", 0, offset, value=b"", headers=[("TAGS", b"ab"[offset % 2 :][:1])]) for offset in range(6)
    ]
    queue.put([*tagged[:3], unreadable(tagged[3]), *tagged[4:]])
    chunk = queue.take(6)
    assert chunk is not None
    seen: list[int] = []

    def listen(messages: Any, context: Any) -> None:
        seen.extend(each.queue_offset for each in (messages if batch_count > 1 else [messages]))
        context.delay_level_when_next_consume = 7

    mine = Subscription("orders", adapt(listen), TagFilter("a").matches_headers, sieve=sieve)
    outcomes = ConcurrentRunner(settings_of(batch_count), {"orders": mine}.get, VirtualClock()).run(chunk)
    assert seen == [0, 2, 4]
    assert outcomes is not None
    failed = [(each.message.offset(), each.failure.exception_class, each.asked_level) for each in outcomes]
    assert failed == [(3, "MalformedRecordError", 0)], "what a listener asked for does not count for another message"


@pytest.mark.parametrize("batch_count", [1, 2])
def test_a_listener_gets_views_that_it_cannot_change(batch_count: int) -> None:
    views: list[Any] = []
    assert run(lambda given: views.extend(given if batch_count > 1 else [given]), 2, batch_count) == []
    assert [(view.body, view.trusted, view.reconsume_times, view.queue_offset) for view in views] == [
        (b"0", False, 0, 0),
        (b"1", False, 0, 1),
    ]
    assert all(isinstance(view, MessageView) for view in views)
    for name in ("body", "topic", "trusted", "properties", "new"):
        with pytest.raises(AttributeError):
            setattr(views[0], name, b"")


@pytest.mark.parametrize("batch_count", [1, 3])
def test_an_exception_that_cannot_be_read_is_a_failure_like_any_other(hostile: BaseException, batch_count: int) -> None:
    def handle(message: Any) -> None:
        del message
        raise hostile

    outcomes = run(handle, batch_count=batch_count)
    assert len(outcomes) == 3
    for outcome in outcomes:
        failure = outcome.failure
        assert (outcome.asked_level, outcome.asked_delay_ms) == (0, None)
        assert failure.exception_class == class_name(hostile)
        assert (type(failure.exception_class), type(failure.text)) == (str, str)
        assert len(failure.text) <= 4_096


def test_an_answer_that_cannot_be_read_fails_its_message_alone(hostile: BaseException) -> None:
    outcomes = run(lambda messages: [None, hostile, None], batch_count=3)  # noqa: ARG005
    assert [outcome.message.offset() for outcome in outcomes] == [1]
    assert outcomes[0].failure.exception_class == class_name(hostile)
