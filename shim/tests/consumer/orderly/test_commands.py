"""Commands of a person in the group's log: its owner obeys them, and nobody else does, on the in-memory Kafka."""

from typing import Any

import pytest

from rocketshim.locks.lease import QueueLockSettings
from rocketshim_topics.group_log import (
    CommandRecord,
    QueueCommand,
    RenewRecord,
    decode_group_record,
    encode_group_record,
)

from .test_loop import GROUP, NAMES, SUSPEND, Stage

DEAD_LETTER, TRY_NOW = QueueCommand.DEAD_LETTER, QueueCommand.TRY_NOW


@pytest.fixture
def stage() -> Stage:
    """A queue with four messages, the second of which keeps failing."""
    stage = Stage()
    stage.topic()
    stage.fill(4)

    def fail(message: Any) -> Any:
        if message.queue_offset == 1:
            stage.contexts[-1].suspend_current_queue_time_ms = 20_000
            raise ConnectionError("warehouse 7 does not answer")

    stage.answer = fail
    return stage


def command(stage: Stage, do: QueueCommand, offset: int = 1, *, token: int | None = None, partition: int = 0) -> None:
    found = stage.contexts[-1].fencing_token if token is None else token
    assert found is not None
    record = CommandRecord(do=do, topic="orders", queue_id=partition, token=found, offset=offset, by="ann@ops1")
    stage.kafka.append(NAMES.group_log(GROUP), encode_group_record(record))


def reported(stage: Stage) -> tuple[tuple[int, int], ...]:
    """Return the failed attempts in the last renewal."""
    records = [decode_group_record(each.value()) for each in stage.kafka.records(NAMES.group_log(GROUP))]
    renewal = next(each for each in reversed(records) if isinstance(each, RenewRecord))
    return next(each.reconsume_counts for each in renewal.queues if each.topic == "orders")


def effects(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    lines = [each.__dict__ for each in caplog.records if getattr(each, "event", None) == "consumer.commanded"]
    return [(each["record"], each["by"], each["effect"]) for each in lines]


def test_a_failing_message_becomes_a_dead_letter_and_the_rest_goes_on_in_order(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rocketshim.consumer")
    stage.join("a")
    stage.turn()
    assert stage.offsets == [(0, 0), (0, 1)]
    command(stage, DEAD_LETTER)
    stage.turn()
    assert stage.offsets == [(0, 0), (0, 1), (0, 2), (0, 3)], "no further attempt, and nothing else is left out"
    (dead,) = stage.dead()
    headers = dict(dead.headers())
    assert headers["FAIL_CLASS"] == b"ConnectionError"
    assert headers["FAIL_TEXT"] == b"[given up by ann@ops1] warehouse 7 does not answer"
    assert (headers["RECONSUME_TIMES"], headers["ORIGIN_MESSAGE_ID"]) == (b"1", b"orders/0/1")
    assert dead.value() == b""
    stage.wait(1_000)
    assert stage.committed() == 4
    assert effects(caplog) == [("orders/0/1", "ann@ops1", "accepted")]


def test_the_position_does_not_pass_it_before_its_dead_letter_is_stored(stage: Stage) -> None:
    member = stage.join("a")
    stage.turn()
    sent: list[Any] = []
    member.loop.dispatch.send_back.send = lambda chunk, outcome: sent.append((chunk, outcome))  # type: ignore[method-assign]
    command(stage, DEAD_LETTER)
    stage.wait(2_000)
    assert len(sent) == 1
    assert stage.offsets == [(0, 0), (0, 1)]
    assert stage.committed() == 1
    chunk, outcome = sent[0]
    member.loop.dispatch._stored(chunk, [outcome.message])
    stage.wait(2_000)
    assert stage.offsets == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert stage.committed() == 4


def test_a_message_is_tried_now_and_the_result_is_reported_soon(stage: Stage) -> None:
    stage.join("a")
    stage.turn()
    stage.wait(1_500)
    assert stage.offsets == [(0, 0), (0, 1)]
    command(stage, TRY_NOW)
    stage.turn()
    assert stage.offsets == [(0, 0), (0, 1), (0, 1)]
    stage.wait(1_000)
    assert reported(stage) == ((1, 2),)
    stage.answer = lambda _: None
    command(stage, TRY_NOW)
    stage.turn()
    assert stage.offsets[2:] == [(0, 1), (0, 1), (0, 2), (0, 3)]
    assert stage.dead() == []


def test_what_a_command_did_is_in_the_log_before_the_next_renewal_is_due(stage: Stage) -> None:
    stage.join("a", locks=QueueLockSettings())  # it renews after 20 s
    stage.turn()
    stage.wait(21_000)
    assert reported(stage) == ((1, 1),)
    command(stage, DEAD_LETTER)
    stage.wait(2_000)
    assert reported(stage) == ()


@pytest.mark.parametrize("offset", [0, 2, 3, 17])
def test_a_command_for_a_message_that_does_not_fail_does_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    caplog.set_level("INFO", "rocketshim.consumer")
    stage.join("a")
    stage.turn()
    for do in (DEAD_LETTER, TRY_NOW):
        command(stage, do, offset)
    stage.wait(1_000)
    assert stage.offsets == [(0, 0), (0, 1)]
    assert stage.dead() == []
    assert {effect for _, _, effect in effects(caplog)} == {"nothing: it does not wait"}


def test_a_repeated_command_makes_one_dead_letter(stage: Stage) -> None:
    stage.join("a")
    stage.turn()
    for _ in range(3):
        command(stage, DEAD_LETTER)
    stage.turn()
    command(stage, DEAD_LETTER)
    stage.wait(1_000)
    assert len(stage.dead()) == 1
    assert stage.offsets == [(0, 0), (0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("change", [-1, 1])
def test_a_command_with_another_token_does_nothing(stage: Stage, change: int) -> None:
    stage.join("a")
    stage.turn()
    token = stage.contexts[-1].fencing_token
    assert token is not None
    command(stage, DEAD_LETTER, token=token + change)
    stage.wait(1_000)
    assert stage.dead() == []


def test_a_command_for_an_owner_that_is_gone_is_not_obeyed_by_the_next_one(stage: Stage) -> None:
    stage.join("a")
    stage.turn()
    stage.leave("a")
    command(stage, DEAD_LETTER)
    stage.join("b")
    stage.turn()
    stage.wait(3_000)
    assert stage.offsets == [(0, 0), (0, 1), (0, 1)]
    assert stage.dead() == []
    command(stage, DEAD_LETTER)  # the token is that of the new owner
    stage.turn()
    assert len(stage.dead()) == 1


def test_an_owner_whose_lease_has_ended_does_not_obey(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rocketshim.consumer")
    member = stage.join("a")
    stage.turn()
    command(stage, DEAD_LETTER)
    member.log.turn(0)  # it reads the command in time, and the poll thread is frozen
    assert member.log.commanded.qsize() == 1
    stage.clock.advance(3_000)
    member.loop.turn()
    assert member.log.commanded.qsize() == 0
    assert stage.dead() == []
    assert effects(caplog) == []


def test_a_command_that_is_read_late_finds_no_lease(stage: Stage) -> None:
    member = stage.join("a")
    stage.turn()
    command(stage, DEAD_LETTER)
    stage.clock.advance(3_000)  # the group-log thread is frozen, too
    member.log.turn(0)
    assert member.log.commanded.qsize() == 0


def test_a_member_that_is_not_the_owner_ignores_a_command_and_its_fold_is_unchanged(stage: Stage) -> None:
    stage.join("a")
    stage.turn()
    b = stage.join("b")
    stage.turn()
    before = b.log._log.locks
    command(stage, DEAD_LETTER)
    b.log.turn(0)
    assert b.log._log.locks == before
    assert b.log.commanded.qsize() == 0


def test_by_key_a_key_is_unblocked_and_the_others_were_never_blocked() -> None:
    stage = Stage()
    stage.topic()
    for key in b"abab":
        stage.kafka.append("orders", b"x", key=bytes([key]))
    stage.answer = lambda m: SUSPEND if m.key == b"a" and m.queue_offset == 0 else None
    stage.join("a", by_key=True)
    stage.turn()
    assert stage.offsets == [(0, 0), (0, 1), (0, 3)]
    command(stage, DEAD_LETTER, 0)
    stage.turn()
    assert stage.offsets == [(0, 0), (0, 1), (0, 3), (0, 2)]
    (dead,) = stage.dead()
    assert dict(dead.headers())["FAIL_TEXT"] == b"[given up by ann@ops1] the listener asked for it"
    stage.wait(1_000)
    assert stage.committed() == 4
