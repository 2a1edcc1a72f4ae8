"""Commands for the owners of orderly queues: what is refused, what is stored, and what the result is called."""

import pytest

from rocketshim.admin.queue_commands import CommandResult, command_owner, is_answer
from rocketshim.observe.snapshot import FailingMessage
from rocketshim.settings import ConnectionSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.group_log import (
    ClaimedQueue,
    ClaimRecord,
    CommandRecord,
    LeaseEntry,
    MemberRecord,
    QueueCommand,
    RenewRecord,
    decode_group_record,
    encode_group_record,
)
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.names import TopicNames

NAMES = TopicNames()
LOG = NAMES.group_log("g")
QUEUE = MessageQueue("orders", queue_id=0)
SETTINGS = ConnectionSettings.make(bootstrap="memory:1")
DEAD_LETTER, TRY_NOW = QueueCommand.DEAD_LETTER, QueueCommand.TRY_NOW


class Log:
    """A group's log whose owner has failed at `orders/0/7`."""

    def __init__(self) -> None:
        self.kafka = InMemoryKafka(VirtualClock())
        self.kafka.create_topics(Layout(NAMES, DelayLevels.default()).for_group("g", with_log=True))
        self.base = self.kafka.clock.wall_ms()
        self.claims = 0
        self.claim("a")

    def claim(self, client_id: str) -> None:
        queues = (ClaimedQueue(topic="orders", queue_id=0),)
        record = ClaimRecord(
            client_id=client_id, incarnation="i", seq=1, lease_ms=30_000, base=self.base, queues=queues
        )
        self.append(record)

    def append(self, record: ClaimRecord | MemberRecord | RenewRecord) -> None:
        self.kafka.append(LOG, encode_group_record(record))

    def renew(self, *counts: tuple[int, int], cause: str = "KeyError: 'x'") -> None:
        entry = LeaseEntry(
            topic="orders", queue_id=0, token=self.base, confirmed_offset=0, next_offset=7, reconsume_counts=counts,
            failing_ms=500, cause=cause, trace="in ship",
        )  # fmt: skip
        self.append(
            RenewRecord(client_id="a", incarnation="i", seq=2, lease_ms=30_000, base=self.base, queues=(entry,))
        )

    def command(
        self, offset: int = 7, do: QueueCommand | None = DEAD_LETTER, *, token: int | None = None, by: str = "ann"
    ) -> CommandResult:
        clients = self.kafka.clients(blocking=False)
        return command_owner(SETTINGS, "g", QUEUE, offset, do, by=by, token=token, wait_s=0, clients=clients)

    @property
    def commands(self) -> list[CommandRecord]:
        records = [decode_group_record(each.value()) for each in self.kafka.records(LOG)]
        return [each for each in records if isinstance(each, CommandRecord)]


def reported(owner: str, token: int, attempts: int) -> FailingMessage:
    return FailingMessage("g", "orders", 0, 7, attempts, owner=owner, token=token)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.renew((7, 4), (9, 1))
    return log


def test_a_command_names_the_record_the_owners_token_and_the_person(log: Log) -> None:
    result = log.command(by="ann\n" + "x" * 500)
    (command,) = log.commands
    assert (command.do, command.queue, command.offset, command.token) == (DEAD_LETTER, QUEUE, 7, log.base)
    assert command.by == ("ann\\n" + "x" * 500)[:300]
    assert result.stored_at == 2
    assert result.before == FailingMessage(
        "g", "orders", 0, 7, 4, result.before.since_ms, "KeyError: 'x'", "a", log.base, "in ship"
    )
    assert result.before.since_ms == log.kafka.records(LOG)[1].timestamp()[1] - 500


def test_nothing_is_stored_without_do_or_for_what_does_not_fail_or_another_owner(log: Log) -> None:
    assert log.command(do=None).before.attempts == 4
    assert "does not fail" in str(log.command(offset=8).why_not)
    assert log.command(token=log.base + 1).stored_at is None
    log.kafka.clock.advance(5_000)  # type: ignore[attr-defined]
    for _ in range(8):  # nobody renews: the lease ends in the time of the log
        log.kafka.clock.advance(5_000)  # type: ignore[attr-defined]
        log.append(MemberRecord(client_id="b", incarnation="i", seq=1, lease_ms=30_000))
    assert "no member holds the lock" in str(log.command().why_not)
    assert log.commands == []


def test_only_the_first_failing_message_has_a_cause(log: Log) -> None:
    second = log.command(offset=9, do=None).before
    assert (second.since_ms, second.cause, second.trace) == (None, None, None)


def test_a_result_is_said_as_the_owner_reports_it() -> None:
    before = reported("a", 100, 4)
    after = reported("a", 100, 5)
    finished = reported("a", 100, 0)
    other = reported("b", 200, 4)
    assert "has not reported it done" in CommandResult(before, 3).text(TRY_NOW)
    assert CommandResult(before, 3, after).text(TRY_NOW) == "orders/0/7 was tried, and has failed 5 times"
    assert "is finished: its queue goes on" in CommandResult(before, 3, finished).text(TRY_NOW)
    assert "as a dead letter unless an attempt had just succeeded" in CommandResult(before, 3, finished).text(
        DEAD_LETTER
    )
    assert "has changed hands, so nothing was done" in CommandResult(before, 3, other).text(DEAD_LETTER)


def test_a_failed_attempt_answers_that_it_was_tried_and_not_that_it_is_a_dead_letter() -> None:
    before, failed = reported("a", 100, 4), reported("a", 100, 5)
    finished, other = reported("a", 100, 0), reported("b", 200, 4)
    assert [is_answer(TRY_NOW, before, now) for now in (before, failed, finished, other)] == [False, True, True, True]
    assert [is_answer(DEAD_LETTER, before, now) for now in (before, failed, finished, other)] == [
        False, False, True, True,
    ]  # fmt: skip
