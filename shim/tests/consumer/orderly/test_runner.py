"""What an orderly listener may do without ending its consumer: whatever user code answers, sets, deletes or raises."""

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from rocketshim.consumer.listeners import adapt
from rocketshim.consumer.orderly import OrderlyRunner, TriedMessageView
from rocketshim.core.listener_answers import ConsumeOrderlyStatus, ConsumeStatus, RetryLater
from rocketshim.core.orderly_queue import BatchAnswer, OrderlyTask
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import class_name
from rocketshim.locks.lease import NO_LOCK
from rocketshim.testing import VirtualClock
from rocketshim_topics import DelayLevels, MalformedRecordError
from rocketshim_topics.coordinates import TopicPartitionKey

from ..conftest import Record, settings_of

SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK


class Readable(Record):
    """Without headers."""

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def headers(self) -> Any:
        return None


class Deaf:
    """Nothing of it can be looked at."""

    def __bool__(self) -> bool:
        raise OSError("no")

    __repr__ = __str__ = __bool__  # type: ignore[assignment]


class Seven:
    """A whole number that is no int, as numpy's are."""

    def __index__(self) -> int:
        return 7


class Bare(RetryLater):
    """Forgets its own."""

    def __init__(self) -> None:
        pass


class PartitionStub(SimpleNamespace):
    """As much of an `OrderlyQueue` as a listener thread sees."""

    def __init__(self) -> None:
        super().__init__(key=TopicPartitionKey("orders", 0), epoch=1, suspect_until=-1)


def run(
    listener: Callable[..., Any],
    *messages: Any,
    batch_count: int = 1,
    place: Any = None,
    selects: Any = None,
    key_of: Any = None,
) -> tuple[list[BatchAnswer], OrderlyTask]:
    subscription = Subscription("orders", adapt(listener), selects=selects)
    settings = settings_of(batch_count, delay_levels=DelayLevels.parse("1s 2s"))
    runner = OrderlyRunner(settings, lambda _: subscription, VirtualClock())
    stub: Any = place or PartitionStub()
    task = OrderlyTask(stub, list(messages) or [Readable(0), Readable(1)], {}, key_of)
    task.lease = NO_LOCK
    return runner.run(task), task


def test_the_answer_of_a_concurrent_listener_is_understood() -> None:
    """RocketMQ's clients for Go and Python have one enumeration for both; its success must not block a queue."""
    answers, task = run(lambda _: ConsumeStatus.CONSUME_SUCCESS)
    assert [(answer.msg_count, answer.status, answer.stops) for answer in answers] == [
        (1, ConsumeOrderlyStatus.SUCCESS, False),
        (1, ConsumeOrderlyStatus.SUCCESS, False),
    ]
    answers, task = run(lambda _: ConsumeStatus.RECONSUME_LATER)
    assert answers == [BatchAnswer(1, SUSPEND)]
    assert task.failure is not None
    assert task.failure.exception_class == "Suspended"


def test_any_other_answer_says_what_a_listener_returns() -> None:
    _, task = run(lambda _: "done")
    assert task.failure is not None
    assert task.failure.text == (
        "the listener returned 'done': it returns nothing or a ConsumeOrderlyStatus, and raises to fail"
    )


def test_a_wait_may_be_any_whole_number(caplog: pytest.LogCaptureFixture) -> None:
    def ask(_: Any, context: Any) -> Any:
        context.suspend_current_queue_time_ms = Seven()
        return SUSPEND

    answers, _ = run(ask)
    assert answers == [BatchAnswer(1, SUSPEND, suspend_ms=7)]
    assert not caplog.records


@pytest.mark.parametrize("batch_count", [1, 2])
@pytest.mark.parametrize("name", ["auto_commit", "suspend_current_queue_time_ms"])
def test_a_context_that_lost_an_attribute_does_not_end_its_consumer(name: str, batch_count: int) -> None:
    def delete(_: Any, context: Any) -> None:
        delattr(context, name)

    answers, _ = run(delete, batch_count=batch_count)
    assert [answer.status for answer in answers] in ([SUSPEND], [ConsumeOrderlyStatus.SUCCESS])
    assert answers[0].auto_commit


@pytest.mark.parametrize("wrong", [Deaf(), "ten", None, 1.5])
def test_a_wait_that_is_not_a_number_is_logged_and_ignored(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    def ask(_: Any, context: Any) -> Any:
        context.suspend_current_queue_time_ms = wrong
        return SUSPEND

    answers, _ = run(ask)
    assert answers == [BatchAnswer(1, SUSPEND)]
    assert [record.__dict__["event"] for record in caplog.records] == ["consumer.suspend-time-ignored"]


def test_an_exception_of_our_own_that_was_made_without_its_parts_asks_for_nothing() -> None:
    def fail(_: Any) -> None:
        raise Bare

    answers, _ = run(fail)
    assert answers == [BatchAnswer(1, SUSPEND)]


def test_what_a_listener_returns_need_not_be_fit_to_be_shown() -> None:
    answers, task = run(lambda _: Deaf())
    assert answers == [BatchAnswer(1, SUSPEND)]
    assert task.failure is not None
    assert "Deaf" in task.failure.text


def test_a_selector_whose_answer_cannot_be_told_fails_its_message() -> None:
    answers, task = run(lambda _: None, selects=lambda _: Deaf())
    assert answers == [BatchAnswer(1, SUSPEND, skipped=True)]
    assert task.failure is not None
    assert task.failure.exception_class == "OSError"


@pytest.mark.parametrize("answer", [SUSPEND, "nothing"])
def test_unreadable_headers_that_a_listener_has_swallowed_are_never_looked_at_again(
    unreadable: Callable[[Any], Any], answer: Any
) -> None:
    def swallow(message: Any, context: Any) -> Any:
        context.auto_commit = False
        with pytest.raises(MalformedRecordError):
            _ = message.tag
        return answer

    answers, task = run(swallow, unreadable(Readable(0)))
    assert answers == [BatchAnswer(1, SUSPEND, auto_commit=False, dead_letter=True)]
    assert task.malformed == "bad-header-key"


def test_what_a_listener_rolls_back_comes_again_before_the_unreadable_message_is_parked(
    unreadable: Callable[[Any], Any],
) -> None:
    def roll_back(message: Any, context: Any) -> Any:
        context.auto_commit = False
        try:
            _ = message.tag
        except MalformedRecordError:
            return ROLLBACK
        return None

    place, bad = PartitionStub(), unreadable(Readable(1))
    answers, _ = run(roll_back, Readable(0), bad, place=place)
    assert answers == [BatchAnswer(1, auto_commit=False), BatchAnswer(1, ROLLBACK, auto_commit=False)]
    answers, _ = run(roll_back, Readable(0), bad, place=place)
    assert answers == [BatchAnswer(1, auto_commit=False)]
    answers, task = run(roll_back, bad, place=place)
    assert answers == [BatchAnswer(1, SUSPEND, dead_letter=True, skipped=True)]
    assert task.malformed == "bad-header-key"


def test_of_a_batch_with_unreadable_headers_the_next_attempt_takes_that_message_alone(
    unreadable: Callable[[Any], Any],
) -> None:
    def swallow(messages: Any) -> Any:
        for message in messages:
            try:
                _ = message.tag
            except MalformedRecordError:
                return SUSPEND
        return None

    place = PartitionStub()
    messages = [Readable(0), unreadable(Readable(1)), Readable(2)]
    answers, task = run(swallow, *messages, batch_count=3, place=place)
    assert answers == [BatchAnswer(3, SUSPEND)]
    assert task.malformed is None
    answers, _ = run(swallow, *messages, batch_count=3, place=place)
    assert answers == [BatchAnswer(1)]
    answers, task = run(swallow, *messages[1:], batch_count=3, place=place)
    assert answers == [BatchAnswer(1, SUSPEND, dead_letter=True, skipped=True)]
    assert task.malformed == "bad-header-key"


class Keyed(Readable):
    """Without headers, with a key."""

    def __init__(self, offset: int, key: bytes) -> None:
        super().__init__(offset)
        self._key = key

    def key(self) -> Any:
        return self._key


def keyed(keys: str) -> list[Keyed]:
    return [Keyed(offset, key.encode()) for offset, key in enumerate(keys)]


def test_by_key_a_run_goes_on_behind_a_failure_with_the_other_keys() -> None:
    called: list[int] = []

    def fail(message: Any) -> None:
        called.append(message.queue_offset)
        if message.queue_offset in (0, 3):
            raise ValueError(message.queue_offset)

    answers, task = run(fail, *keyed("abacbca"), key_of=lambda message: message.key())
    assert called == [0, 1, 3, 4]
    failed = BatchAnswer(1, SUSPEND)
    assert answers == [failed, BatchAnswer(1), failed, BatchAnswer(1)]
    assert [message.offset() for message in task.messages] == [0, 1, 3, 4, 2, 5, 6]
    assert [str(task.why(message)[0] and task.why(message)[0].text) for message in task.messages[:3:2]] == ["0", "3"]
    assert task.failure is None


def test_by_key_a_listener_that_commits_by_itself_ends_its_run_by_a_failure() -> None:
    def fail(message: Any, context: Any) -> None:
        context.auto_commit = False
        if message.queue_offset:
            raise ValueError

    answers, _ = run(fail, *keyed("abc"), key_of=lambda message: message.key())
    assert answers == [BatchAnswer(1, auto_commit=False), BatchAnswer(1, SUSPEND, auto_commit=False)]


def test_by_key_what_the_filter_skips_is_answered_first_and_the_rest_behind_it() -> None:
    def fail(message: Any) -> None:
        if message.queue_offset == 1:
            raise ValueError

    messages = keyed("xaxab")
    answers, task = run(
        fail, *messages, key_of=lambda message: message.key(), selects=lambda m: m.queue_offset not in (0, 2)
    )
    assert answers == [BatchAnswer(2, skipped=True), BatchAnswer(1, SUSPEND), BatchAnswer(1)]
    assert [message.offset() for message in task.messages] == [0, 2, 1, 4, 3]


@pytest.mark.parametrize("batch_count", [1, 2])
def test_an_exception_that_cannot_be_read_is_a_failure_like_any_other(hostile: BaseException, batch_count: int) -> None:
    def refuse(_: Any) -> None:
        raise hostile

    answers, task = run(refuse, batch_count=batch_count)
    assert answers == [BatchAnswer(batch_count, SUSPEND)]
    failure = task.failure
    assert failure is not None
    assert failure.exception_class == class_name(hostile)
    assert (type(failure.exception_class), type(failure.text)) == (str, str)
    assert len(failure.text) <= 4_096


@pytest.mark.parametrize(("again", "called"), [(None, [1, 2]), (lambda headers: dict(headers)["a"] == b"1", [1])])
def test_redriven_messages_are_filtered_again_only_if_configured(again: Any, called: list[int]) -> None:
    headers = [("RETRY_TOPIC", b"orders"), ("RECONSUME_TIMES", b"1")]
    messages = [
        Message("rmq.retry.g", 0, number, value=b"", headers=[*headers, ("a", b"%d" % number)]) for number in (1, 2)
    ]
    stub: Any = PartitionStub()
    stub.key = TopicPartitionKey("rmq.retry.g", 0)
    seen: list[int] = []
    mine = Subscription("orders", adapt(lambda message: seen.append(message.queue_offset)), matches_retry=again)
    runner = OrderlyRunner(settings_of(), {"orders": mine}.get, VirtualClock())
    task = OrderlyTask(stub, messages, {})
    task.lease = NO_LOCK
    answers = runner.run(task)
    assert seen == called
    assert [(answer.status, answer.skipped) for answer in answers] == [
        (ConsumeOrderlyStatus.SUCCESS, message.offset() not in called) for message in messages
    ]


def test_a_message_that_has_failed_keeps_its_failures_in_another_process() -> None:
    record = Message(topic="orders", partition=0, offset=7, value=b"v")
    view = pickle.loads(pickle.dumps(TriedMessageView(record, trusted=False, times=3)))  # noqa: S301
    assert (view.reconsume_times, view.queue_offset, view.body) == (3, 7, b"v")


def test_a_run_without_a_lease_calls_nobody() -> None:
    """The dispatch gives each run the lease of its queue; a run that it forgot must not count as one without a lock."""
    runner = OrderlyRunner(settings_of(), lambda _: Subscription("orders", adapt(lambda _: None)), VirtualClock())
    stub: Any = PartitionStub()
    assert runner.run(OrderlyTask(stub, [Readable(0)], {})) == []
