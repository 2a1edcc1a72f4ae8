"""`async def` listeners: concurrency, the outcome of each message, cancellation. Tests wait for signals, not time."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from rocketshim.consumer.concurrent import AsyncPool, ConcurrentRunner
from rocketshim.consumer.listeners import adapt, is_async
from rocketshim.core.listener_answers import DEAD_LETTER_LEVEL, ConsumeStatus, DeadLetter
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import class_name
from rocketshim.errors import ConfigError
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.coordinates import TopicPartitionKey

from ..conftest import consumer_of, dispatch_of, settings_of

GUARD_S = 60.0
Pools = Callable[..., AsyncPool]


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pools]:
    """Make a pool: `pools(listener, size=2)`; all are stopped after the test, which takes as long as it needs."""
    monkeypatch.setattr("rocketshim.consumer.concurrent._CANCEL_GRACE_S", GUARD_S)
    made: list[AsyncPool] = []

    def make(listener: Callable[..., Any], size: int = 100, batch_count: int = 1, **subscription: Any) -> AsyncPool:
        mine = Subscription("orders", adapt(listener), **subscription)
        runner = ConcurrentRunner(settings_of(batch_count), {"orders": mine}.get, VirtualClock())
        pool = AsyncPool(runner, size, "test")
        made.append(pool)
        return pool

    yield make
    for pool in made:
        assert pool.stop(0)


def queue_of(count: int, topic: str = "orders") -> ProcessQueue:
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey(topic, 0))
    queue.put([Message(topic, 0, offset, value=b"") for offset in range(count)])
    return queue


def submit(pool: AsyncPool, queue: ProcessQueue, limit: int = 16) -> list[Chunk]:
    chunks = []
    while (chunk := queue.take(limit)) is not None:
        chunks.append(chunk)
        pool.submit(chunk)
    return chunks


def settle(pool: AsyncPool, chunks: list[Chunk]) -> dict[int, str]:
    """Collect the results of these chunks; map the offset of each failed message to its failure."""
    failed: dict[int, str] = {}
    for _ in chunks:
        result = pool.wait(GUARD_S, 0)
        assert result.died is None
        outcomes = result.outcomes or []
        failed.update({outcome.message.offset(): outcome.failure.exception_class for outcome in outcomes})
        for message in result.chunk.queue.report(result.chunk, [outcome.message for outcome in outcomes]):
            result.chunk.queue.stored(result.chunk, [message])
    return failed


def test_is_async_detects_coroutine_functions() -> None:
    class Callable_:  # noqa: N801
        async def __call__(self, message: Any) -> None: ...

    async def function(message: Any) -> None: ...

    assert is_async(function)
    assert is_async(Callable_())
    assert not is_async(print)
    assert not is_async(lambda message: [function(message)])


def test_every_message_is_handled_once_within_the_concurrency_limit(pools: Pools) -> None:
    seen: list[int] = []
    now: list[int] = []
    most: list[int] = []

    async def handle(message: Any) -> None:
        now.append(1)
        most.append(len(now))
        await asyncio.sleep(0)
        now.pop()
        seen.append(message.queue_offset)

    pool, queue = pools(handle, size=7), queue_of(500)
    assert settle(pool, submit(pool, queue)) == {}
    assert sorted(seen) == list(range(500))
    assert max(most) == 7
    assert queue.next_offset == 500


def test_a_call_that_never_returns_blocks_only_its_chunk(pools: Pools) -> None:
    async def handle(message: Any) -> None:
        if message.queue_offset == 0:
            await asyncio.Event().wait()

    pool, queue = pools(handle, size=2), queue_of(100)
    chunks = submit(pool, queue, 10)
    settle(pool, chunks[1:])
    assert queue.next_offset is None
    assert queue.msg_count == 10
    with pytest.raises(Empty):
        pool.wait(0, 0)


@pytest.mark.parametrize("batch_count", [1, 4])
def test_results_of_a_listener(pools: Pools, batch_count: int) -> None:
    async def handle(messages: Any, context: Any) -> Any:
        first = messages[0] if batch_count > 1 else messages
        await asyncio.sleep(0)
        match first.queue_offset // 4:
            case 0:
                return None
            case 1:
                return ConsumeStatus.RECONSUME_LATER
            case 2:
                raise OSError
            case 3:
                raise asyncio.CancelledError
            case 4:
                raise DeadLetter
            case 5:
                context.ack_index = 1 if batch_count > 1 else -1
                return ConsumeStatus.CONSUME_SUCCESS
            case _:
                return "nonsense"

    pool = pools(handle, batch_count=batch_count)
    failed = settle(pool, submit(pool, queue_of(28)))
    names = ["ReconsumeLater", "OSError", "CancelledError", "DeadLetter"]
    expected = {4 + 4 * number + at: name for number, name in enumerate(names) for at in range(4)}
    expected |= dict.fromkeys((22, 23) if batch_count > 1 else range(20, 24), "ReconsumeLater")
    expected |= dict.fromkeys(range(24, 28), "ReturnedNoStatus")
    assert failed == expected


def test_filtered_messages_and_messages_without_a_listener_are_not_delivered(pools: Pools) -> None:
    seen: list[int] = []

    async def handle(message: Any) -> None:
        seen.append(message.queue_offset)

    def selects(view: Any) -> bool:
        if view.queue_offset == 3:
            raise OSError
        return bool(view.queue_offset % 2)

    pool = pools(handle, selects=selects)
    assert settle(pool, submit(pool, queue_of(6))) == {3: "OSError"}
    assert seen == [1, 5]
    unheard = queue_of(2, "bills")
    pool.submit(chunk := unheard.take(2))  # type: ignore[arg-type]
    assert chunk is not None
    outcomes = pool.wait(GUARD_S, 0).outcomes or []
    assert [outcome.asked_level for outcome in outcomes] == [DEAD_LETTER_LEVEL] * 2


def test_only_the_call_that_takes_too_long_times_out(pools: Pools) -> None:
    held, go = threading.Event(), threading.Event()

    async def handle(message: Any) -> None:
        if message.queue_offset == 1:
            held.set()
            await asyncio.to_thread(go.wait, GUARD_S)

    pool, queue = pools(handle), queue_of(3)
    chunks = submit(pool, queue)
    assert held.wait(GUARD_S)
    while len(chunks[0].calls) > 1:  # the third has ended
        threading.Event().wait(0.001)
    assert queue.expire(0, 100) == []
    assert queue.oldest_in_work_ms(60) == 60
    assert [message.offset() for _, message in queue.expire(100, 100)] == [1]
    assert queue.expire(200, 100) == []
    go.set()
    late = chunks[0].messages[1]
    result = pool.wait(GUARD_S, 0)
    assert queue.report(result.chunk) == []
    assert queue.oldest_in_work_ms(300) == 0
    assert queue.next_offset == 1
    queue.stored(result.chunk, [late])
    assert queue.next_offset == 3


def test_finished_messages_of_a_shared_chunk_are_reported_when_one_call_times_out(pools: Pools) -> None:
    held, go = threading.Event(), threading.Event()

    async def handle(message: Any) -> None:
        if message.queue_offset == 3:
            raise OSError
        if message.queue_offset == 1:
            held.set()
            await asyncio.to_thread(go.wait, GUARD_S)
            raise OSError

    pool, queue = pools(handle), queue_of(6)
    sent_back: list[int] = []
    sink: Any = SimpleNamespace(
        send=lambda _, outcome: sent_back.append(outcome.message.offset()), outstanding=0, turn=lambda _: None
    )
    dispatch = dispatch_of(pool, sink)
    (chunk,) = submit(pool, queue)
    dispatch.in_flight = len(chunk.messages)
    assert held.wait(GUARD_S)
    while len(chunk.calls) > 1:  # the others have ended
        threading.Event().wait(0.001)
    assert not queue.late
    queue.expire(0, 100)
    ((_, late),) = queue.expire(100, 100)
    for _ in range(2):  # the second time there is nothing new
        for each in queue.late:
            pool.report_part(each)
        dispatch.wait(GUARD_S if not sent_back else 0)
    assert (sent_back, dispatch.in_flight, queue.next_offset) == ([3], 1, 1)
    queue.stored(chunk, [late])
    assert queue.next_offset == 3
    go.set()
    while dispatch.in_flight:
        dispatch.wait(GUARD_S)
    assert sent_back == [3]  # the failure of the call itself comes too late, and does not count beside its time-out
    assert (dispatch.counts.succeeded, dispatch.counts.failed, queue.msg_count) == (4, 1, 1)


def test_withdrawn_messages_are_not_delivered_and_the_others_are_reported(pools: Pools) -> None:
    held, go = threading.Event(), threading.Event()
    seen: list[int] = []

    async def handle(message: Any) -> None:
        seen.append(message.queue_offset)
        held.set()
        await asyncio.to_thread(go.wait, GUARD_S)

    pool, queue = pools(handle, size=1), queue_of(9)
    chunks = submit(pool, queue, 3)
    assert held.wait(GUARD_S)
    assert queue.withhold() == 8
    go.set()
    assert settle(pool, chunks) == {}
    assert seen == [0]
    assert (queue.next_offset, queue.is_drained) == (1, True)


def test_the_limit_can_change_while_it_runs(pools: Pools) -> None:
    seen: list[int] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        seen.append(message.queue_offset)

    pool = pools(handle, size=50)
    for size in (1, 20, 2):
        pool.resize(size)
        settle(pool, submit(pool, queue_of(200)))
    assert len(seen) == 600


def test_stop_cancels_calls_that_take_too_long() -> None:
    cancelled, held = threading.Event(), threading.Event()

    async def handle(message: Any) -> None:
        del message
        held.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    runner = ConcurrentRunner(settings_of(), {"orders": Subscription("orders", adapt(handle))}.get, VirtualClock())
    pool = AsyncPool(runner, 3, "test")
    submit(pool, queue_of(30))
    assert held.wait(GUARD_S)
    assert pool.stop(0)
    assert cancelled.is_set()
    assert pool.stop(0)


# --- listeners that affect their task, their context or their loop ---------------------------------------------------


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def cancel_itself_at_last() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def raise_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("end", [cancel_itself, cancel_itself_at_last, raise_cancelled])
def test_only_the_cancelled_call_fails(pools: Pools, end: Callable[..., Any]) -> None:
    async def handle(message: Any) -> None:
        if message.queue_offset < 4:
            await end()
        await asyncio.sleep(0)

    pool, queue = pools(handle, size=2), queue_of(40)
    assert settle(pool, submit(pool, queue)) == dict.fromkeys(range(4), "CancelledError")
    assert queue.next_offset == 40


def test_a_cancelled_call_can_choose_its_retry_delay(pools: Pools) -> None:
    async def handle(message: Any, context: Any) -> None:
        del message
        context.delay_level_when_next_consume = 7
        await cancel_itself()

    pool = pools(handle)
    submit(pool, queue_of(1))
    (outcome,) = pool.wait(GUARD_S, 0).outcomes or []
    assert outcome.asked_level == 7


def test_cancelling_every_task_fails_only_the_calls_in_progress(pools: Pools) -> None:
    async def handle(message: Any) -> None:
        if message.queue_offset == 0:
            for task in asyncio.all_tasks():  # the other tasks have not started yet
                task.cancel()
        await asyncio.sleep(0)

    pool = pools(handle, size=5)
    assert settle(pool, submit(pool, queue_of(40))) == dict.fromkeys(range(5), "CancelledError")


def test_a_finished_call_cannot_be_cancelled(pools: Pools) -> None:
    before: list[Any] = []

    async def handle(message: Any) -> None:
        del message
        for task in before:
            task.cancel()
        before.append(asyncio.current_task())
        await asyncio.sleep(0)

    pool = pools(handle, size=1)
    assert settle(pool, submit(pool, queue_of(20))) == {}
    assert len(set(before)) == 20


def test_context_variables_of_a_call_do_not_reach_other_calls(pools: Pools) -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("of the program")
    seen: list[str] = []

    def selects(view: Any) -> bool:
        seen.append(variable.get())
        variable.set(f"of the filter of {view.queue_offset}")
        return True

    async def handle(message: Any) -> None:
        assert variable.get() == f"of the filter of {message.queue_offset}"
        variable.set("of a listener")
        await asyncio.sleep(0)
        assert variable.get() == "of a listener"

    pool = pools(handle, size=3, selects=selects)
    variable.set("set after the start")
    assert settle(pool, submit(pool, queue_of(30))) == {}
    assert seen == ["of the program"] * 30


def test_timeouts_and_task_groups_end_only_their_own_call(pools: Pools) -> None:
    async def fail() -> None:
        raise OSError

    async def handle(message: Any) -> None:
        match message.queue_offset % 4:
            case 0:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            case 1:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    group.create_task(asyncio.Event().wait())
            case 2:
                await asyncio.wait_for(asyncio.Event().wait(), 0)
            case _:
                await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    pool = pools(handle, size=2)
    failed = settle(pool, submit(pool, queue_of(12)))
    assert failed == {
        offset: ("TimeoutError", "ExceptionGroup", "TimeoutError")[offset % 4] for offset in range(12) if offset % 4 < 3
    }


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("waits", [False, True])
def test_system_exit_and_keyboard_interrupt_fail_the_message(
    pools: Pools, error: type[BaseException], waits: bool
) -> None:
    async def handle(message: Any) -> None:
        if waits:
            await asyncio.sleep(0)
        if message.queue_offset % 2:
            raise error

    pool = pools(handle, size=2)
    assert settle(pool, submit(pool, queue_of(20))) == dict.fromkeys(range(1, 20, 2), error.__name__)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exception_of_a_leftover_task_does_not_end_the_loop(pools: Pools, error: type[BaseException]) -> None:
    left: list[Any] = []

    async def end() -> None:
        raise error

    async def handle(message: Any) -> None:
        if message.queue_offset == 0:
            left.append(asyncio.create_task(end()))
        if message.queue_offset == 1:
            asyncio.get_running_loop().stop()
        await asyncio.sleep(0)

    pool = pools(handle, size=2)
    assert settle(pool, submit(pool, queue_of(40))) == {}
    assert isinstance(left[0].exception(), error)


@pytest.mark.usefixtures("broken_logging")
def test_a_raising_callback_does_not_end_the_loop_even_if_logging_raises(pools: Pools) -> None:
    asyncio_logger = logging.getLogger("asyncio")
    raising = logging.getLogger("rocketshim.consumer")

    def refuse(record: Any) -> bool:
        raise OSError(record)

    async def handle(message: Any) -> None:
        del message
        asyncio.get_running_loop().call_soon(raising.setLevel, object())  # type: ignore[arg-type]
        await asyncio.sleep(0)

    asyncio_logger.addFilter(refuse)
    try:
        pool = pools(handle, size=2)
        assert settle(pool, submit(pool, queue_of(40))) == {}
    finally:
        asyncio_logger.removeFilter(refuse)


@pytest.mark.usefixtures("broken_logging")
def test_an_unreadable_exception_fails_only_its_message(pools: Pools, hostile: BaseException) -> None:
    async def handle(message: Any) -> None:
        if message.queue_offset == 1:
            raise hostile

    pool = pools(handle, size=2)
    assert settle(pool, submit(pool, queue_of(20))) == {1: class_name(hostile)}


def test_a_dead_loop_is_reported_for_every_chunk() -> None:
    def refuse(timeout: float | None) -> None:
        raise OSError(timeout)

    async def handle(message: Any) -> None:
        del message
        loop: Any = asyncio.get_running_loop()
        loop._selector.select = refuse

    runner = ConcurrentRunner(settings_of(), {"orders": Subscription("orders", adapt(handle))}.get, VirtualClock())
    pool = AsyncPool(runner, 1, "test")
    for count in (6, 2):  # the second time it is dead already
        died = [pool.wait(GUARD_S, 0).died for _ in submit(pool, queue_of(count), 2)]
        assert {type(error) for error in died} == {OSError}
    pool.stop(0)


def test_stop_cancels_leftover_tasks_and_cancelled_calls_are_delivered_again() -> None:
    cancelled: list[str] = []
    held = threading.Event()
    left: list[Any] = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(name)

    async def handle(message: Any) -> None:
        if message.queue_offset == 0:
            left.append(asyncio.create_task(forever("left behind")))
            return
        held.set()
        await forever("in progress")

    runner = ConcurrentRunner(settings_of(), {"orders": Subscription("orders", adapt(handle))}.get, VirtualClock())
    pool = AsyncPool(runner, 3, "test")
    submit(pool, queue_of(2))
    assert held.wait(GUARD_S)
    assert pool.stop(0)
    assert sorted(cancelled) == ["in progress", "left behind"]
    with pytest.raises(Empty):
        pool.wait(0, 0)


# --- the whole consumer -------------------------------------------------------------------------------------------


def test_plain_and_async_listeners_do_not_mix(live: InMemoryKafka) -> None:
    async def handle(message: Any) -> None: ...

    consumer = consumer_of(live)
    with pytest.raises(ConfigError, match="plain function"):
        consumer.register_message_listener("orders", handle, orderly=True)
    consumer.register_message_listener("orders", handle)
    with pytest.raises(ConfigError, match="all plain functions"):
        consumer.register_message_listener("bills", print)


def test_a_consumer_with_an_async_listener_handles_retries_and_commits(live: InMemoryKafka) -> None:
    done = threading.Event()
    seen: list[int] = []
    consumer = consumer_of(live)

    @consumer.listener("orders")
    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        seen.append(message.queue_offset)
        if len(seen) == 50:
            done.set()
        if message.queue_offset == 3:
            raise OSError

    for _ in range(50):
        live.append("orders", b"")
    with consumer:
        assert done.wait(GUARD_S)
    assert sorted(seen) == list(range(50))
    assert live.committed("g")["orders", 0] == 50
    assert len(live.records("SCHEDULE_TOPIC_XXXX")) == 1


@pytest.mark.parametrize("in_own_loop", [True, False])
def test_calls_that_cancel_themselves_are_retried_and_the_others_are_delivered(
    live: InMemoryKafka, in_own_loop: bool
) -> None:
    seen: list[int] = []
    variable: ContextVar[str] = ContextVar("variable", default="")
    consumer = consumer_of(live, async_concurrency=2)

    @consumer.listener("orders")
    async def handle(message: Any) -> None:
        assert variable.get() == "of the program"
        variable.set("of a listener")
        seen.append(message.queue_offset)
        if message.queue_offset < 4:
            await cancel_itself()
        await asyncio.sleep(0)

    for _ in range(50):
        live.append("orders", b"")

    def is_done() -> bool:
        return len(seen) == 50 and len(live.records("SCHEDULE_TOPIC_XXXX")) == 4

    async def main() -> None:
        variable.set("of the program")
        running = asyncio.create_task(consumer.run_async())
        await asyncio.to_thread(live.wait_until, is_done, guard_s=GUARD_S)
        await asyncio.to_thread(consumer.stop)
        await running

    if in_own_loop:
        variable.set("of the program")
        with consumer:
            live.wait_until(is_done, guard_s=GUARD_S)
    else:
        asyncio.run(main())
    assert sorted(seen) == list(range(50))
    assert live.committed("g")["orders", 0] == 50


def test_run_async_calls_listeners_in_the_loop_of_the_caller(live: InMemoryKafka) -> None:
    live.append("orders", b"")
    loops: list[Any] = []
    consumer = consumer_of(live)

    @consumer.listener("orders")
    async def handle(message: Any) -> None:
        del message
        loops.append(asyncio.get_running_loop())
        consumer.stop()

    async def main() -> Any:
        await asyncio.wait_for(consumer.run_async(), GUARD_S)
        return asyncio.get_running_loop()

    mine = asyncio.run(main())
    assert loops == [mine]
    assert live.committed("g")["orders", 0] == 1


def test_cancelling_run_async_stops_the_consumer(live: InMemoryKafka) -> None:
    consumer = consumer_of(live)

    @consumer.listener("orders")
    async def handle(message: Any) -> None: ...

    async def main() -> None:
        running = asyncio.create_task(consumer.run_async())
        await asyncio.sleep(0)  # it is starting
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert live.members("g") == []


def test_run_async_raises_if_the_consumer_cannot_start(live: InMemoryKafka) -> None:
    with pytest.raises(ConfigError, match="listener"):
        asyncio.run(consumer_of(live).run_async())
