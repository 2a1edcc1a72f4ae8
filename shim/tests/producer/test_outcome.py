"""What became of a name, as a program asks for it: on the in-memory Kafka, with a worker and a virtual clock."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rocketshim import MessageQueue, Producer, SendResult
from rocketshim.aio import AsyncProducer
from rocketshim.errors import BrokerUnavailableError, MessageError, TopicMissingError
from rocketshim.harness import Harness
from rocketshim.kafka import timer_log
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim.timers import TimerFate, TimerOutcome
from rocketshim_topics import DelayLevels, Layout, TopicNames
from rocketshim_topics.partitioner import timer_partition

TIMERS = "rmq.timers"
WAIT_S = 60.0
MINUTE_MS = 60_000
PARTITION = timer_partition("orders", "o-7")
OTHERS = [name for name in (f"x-{n}" for n in range(200)) if timer_partition("orders", name) == PARTITION]


@pytest.fixture
def harness() -> Iterator[Harness]:
    with Harness() as made:
        made.topic("orders")
        yield made


def outcome(harness: Harness, name: str = "o-7", of: SendResult | None = None) -> TimerOutcome:
    return harness.producer.outcome("orders", timer=name, of=of, timeout_s=WAIT_S)


def send(harness: Harness, name: str = "o-7", **options: Any) -> SendResult:
    [sent] = harness.send("orders", b"x", **{"delay": "30m", "timer": name, **options})
    return sent


def command(harness: Harness, kind: str, name: str = "o-7") -> SendResult:
    send = harness.producer.cancel if kind == "cancel" else harness.producer.send_now
    result = send("orders", timer=name, timeout_s=WAIT_S)
    harness.pass_time(0.0)
    return result


def test_a_name_is_pending_with_its_due_time_and_then_fired(harness: Harness) -> None:
    sent_ms = harness.clock.wall_ms()
    sent = send(harness)
    found = outcome(harness)
    assert (found.fate, found.set_at, found.decided_ms) == (TimerFate.PENDING, sent.queue_offset, None)
    assert found.due_ms is not None
    assert sent_ms <= found.due_ms - 30 * MINUTE_MS <= harness.clock.wall_ms()
    harness.pass_time("31m")
    found = outcome(harness)
    assert (found.fate, found.is_cancel_late, found.log_begins_ms) == (TimerFate.FIRED, False, None)
    assert found.due_ms is not None
    assert found.decided_ms is not None
    assert found.due_ms <= found.decided_ms


def test_the_result_of_a_cancel_tells_whether_it_was_in_time(harness: Harness) -> None:
    send(harness)
    in_time = command(harness, "cancel")
    send(harness, delay="1m")
    harness.pass_time("2m")
    too_late = command(harness, "cancel")
    again = send(harness)
    found = outcome(harness, of=in_time)
    assert (found.fate, found.is_cancel_late) == (TimerFate.CANCELLED, False)
    found = outcome(harness, of=too_late)
    assert (found.fate, found.is_cancel_late) == (TimerFate.FIRED, True)
    assert outcome(harness, of=again) == outcome(harness)
    assert outcome(harness).fate is TimerFate.PENDING


def test_a_cancel_without_an_object_tells_what_became_of_the_message_before(harness: Harness) -> None:
    sent = send(harness)
    command(harness, "cancel")
    second = command(harness, "cancel")
    found = outcome(harness, of=second)
    assert (found.fate, found.set_at) == (TimerFate.CANCELLED, sent.queue_offset)
    nothing = command(harness, "cancel", "never sent")
    assert outcome(harness, "never sent", of=nothing).fate is TimerFate.UNKNOWN


def test_the_result_of_a_send_tells_whether_its_message_was_replaced_or_dropped(harness: Harness) -> None:
    first, second = send(harness), send(harness)
    dropped = send(harness, if_absent=True)
    assert outcome(harness, of=first).fate is TimerFate.REPLACED
    assert outcome(harness, of=dropped).fate is TimerFate.DROPPED
    found = outcome(harness)
    assert (found.fate, found.set_at) == (TimerFate.PENDING, second.queue_offset)
    assert outcome(harness, of=second) == found


def test_a_message_that_is_delivered_now_says_so(harness: Harness) -> None:
    sent = send(harness)
    now = command(harness, "now")
    assert outcome(harness, of=now).fate is outcome(harness, of=sent).fate is TimerFate.DELIVERED_NOW
    assert outcome(harness).due_ms is not None
    command(harness, "cancel")
    assert outcome(harness).is_cancel_late


def test_a_recurring_message_is_pending_with_its_next_occurrence(harness: Harness) -> None:
    sent = send(harness, delay=None, every="10m")
    first = outcome(harness)
    harness.pass_time("25m")
    now = command(harness, "now")
    found = outcome(harness)
    assert found == outcome(harness, of=sent) == outcome(harness, of=now)
    assert (found.fate, first.due_ms is not None and first.due_ms + 20 * MINUTE_MS) == (TimerFate.PENDING, found.due_ms)
    cancelled = command(harness, "cancel")
    assert outcome(harness, of=cancelled).fate is outcome(harness, of=sent).fate is TimerFate.CANCELLED


def test_a_recallable_message_has_the_name_of_its_id(harness: Harness) -> None:
    [sent] = harness.send("orders", b"x", delay="1h", recallable=True)
    recalled = harness.producer.recall("orders", sent.recall_handle, timeout_s=WAIT_S)
    assert outcome(harness, sent.msg_id, of=recalled).fate is TimerFate.CANCELLED


def test_the_log_decides_also_while_no_worker_runs() -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topics(Layout(TopicNames(), DelayLevels.default()).timers())
    with Producer("memory:1", clients=kafka.clients()) as producer:
        sent = producer.send("orders", b"x", delay="1h", timer="o-7", timeout_s=WAIT_S)
        assert producer.outcome("orders", timer="o-7").fate is TimerFate.PENDING
        cancelled = producer.cancel("orders", timer="o-7", timeout_s=WAIT_S)
        assert producer.outcome("orders", timer="o-7", of=cancelled).fate is TimerFate.CANCELLED
        assert producer.outcome("orders", timer="o-7", of=sent).fate is TimerFate.CANCELLED

    async def asked() -> TimerOutcome:
        async with AsyncProducer("memory:1", clients=kafka.clients()) as producer:
            return await producer.outcome("orders", timer="o-7", of=cancelled, timeout_s=WAIT_S)

    assert asyncio.run(asked()).fate is TimerFate.CANCELLED


def test_a_cancel_that_a_transaction_of_the_worker_hides_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topics(Layout(TopicNames(), DelayLevels.default()).timers())
    worker = kafka.producer({"bootstrap.servers": "memory:1", "transactional.id": "w"})
    worker.init_transactions(10)
    with Producer("memory:1", clients=kafka.clients()) as producer:
        producer.send("orders", b"x", delay="1h", timer="o-7", timeout_s=WAIT_S)
        worker.begin_transaction()
        worker.produce(TIMERS, b"x", partition=PARTITION)
        worker.flush(10)
        cancelled = producer.cancel("orders", timer="o-7", timeout_s=WAIT_S)
        assert producer.outcome("orders", timer="o-7", timeout_s=WAIT_S).fate is TimerFate.PENDING, "it is hidden"
        ends = SimpleNamespace(sleep=lambda _: worker.commit_transaction(10), monotonic=time.monotonic)
        monkeypatch.setattr(timer_log, "time", ends)
        assert producer.outcome("orders", timer="o-7", of=cancelled, timeout_s=WAIT_S).fate is TimerFate.CANCELLED


def test_what_retention_has_deleted_is_unknown_and_says_since_when_but_not_what_is_pending(harness: Harness) -> None:
    old = send(harness)
    waits = send(harness, OTHERS[0], delay="30d")
    harness.pass_time("31m")
    newer = send(harness, OTHERS[1])
    harness.kafka.truncate(TIMERS, PARTITION, before_offset=newer.queue_offset)
    for of in (None, old):
        found = outcome(harness, of=of)
        assert (found.fate, found.due_ms, found.log_begins_ms is None) == (TimerFate.UNKNOWN, None, False)
    for of in (None, waits):
        found = outcome(harness, OTHERS[0], of=of)
        assert (found.fate, found.set_at) == (TimerFate.PENDING, waits.queue_offset)
        assert found.due_ms is not None
    assert outcome(harness, OTHERS[1]).fate is TimerFate.PENDING


@pytest.mark.parametrize("near", [1, 2, 10_000])
def test_how_far_the_first_look_goes_back_changes_no_answer(
    harness: Harness, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_log, "_NEAR_COUNT", near)
    sent = [send(harness), send(harness), send(harness, if_absent=True)]
    for name in OTHERS[:20]:
        send(harness, name, delay="1m")
    cancelled = command(harness, "cancel")
    for name in OTHERS[:20]:
        send(harness, name, delay="1m")
    harness.pass_time("5m")
    fates = [outcome(harness, of=each).fate for each in (*sent, cancelled, None)]
    assert fates == [
        TimerFate.REPLACED, TimerFate.CANCELLED, TimerFate.DROPPED, TimerFate.CANCELLED, TimerFate.CANCELLED,
    ]  # fmt: skip
    assert {outcome(harness, name).fate for name in OTHERS[:20]} == {TimerFate.FIRED}


def test_a_stored_state_that_is_behind_does_not_hide_what_the_log_has(harness: Harness) -> None:
    """The worker has stored the name as pending, and has not read the two cancels."""
    send(harness)
    send(harness, OTHERS[0])
    cancelled = [harness.producer.cancel("orders", timer="o-7", timeout_s=WAIT_S) for _ in range(2)]
    assert [outcome(harness, of=of).fate for of in (None, *cancelled)] == [TimerFate.CANCELLED] * 3


def test_what_can_have_no_outcome_is_refused(harness: Harness) -> None:
    other = send(harness, OTHERS[0])
    plain = harness.producer.send("orders", b"x", delay="1h", timeout_s=WAIT_S)
    far = SendResult(other.status, "x", "x", MessageQueue(TIMERS, queue_id=PARTITION), 99)
    for of, text in ((other, "is no command for 'o-7'"), (plain, "is not the result of")):
        with pytest.raises(MessageError, match=text):
            outcome(harness, of=of)
    with pytest.raises(MessageError, match="more than 255"):
        outcome(harness, "x" * 256)
    with pytest.raises(MessageError, match="is not a topic name"):
        harness.producer.outcome("no topic", timer="o-7")
    with pytest.raises(MessageError, match="timeout_s"):
        harness.producer.outcome("orders", timer="o-7", timeout_s=-1)
    with pytest.raises(BrokerUnavailableError, match="shows no record 99"):
        harness.producer.outcome("orders", timer="o-7", of=far, timeout_s=0.5)
    with pytest.raises(BrokerUnavailableError, match=r"was not found in time, after .* records: give it a longer"):
        harness.producer.outcome("orders", timer="o-7", timeout_s=0)


def test_settings_that_run_code_are_accepted_where_the_producer_may_have_them() -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topics(Layout(TopicNames(), DelayLevels.default()).timers())
    client = {"sasl.oauthbearer.token.endpoint.url": "https://idp"}
    with Producer("memory:1", clients=kafka.clients(), client=client, allow_code_settings=True) as producer:
        assert producer.outcome("orders", timer="o-7").fate is TimerFate.UNKNOWN


def test_without_the_topics_the_error_says_how_to_create_them() -> None:
    kafka = InMemoryKafka(VirtualClock())
    with (
        Producer("memory:1", clients=kafka.clients()) as producer,
        pytest.raises(TopicMissingError, match="rocketshim init"),
    ):
        producer.outcome("orders", timer="o-7")
