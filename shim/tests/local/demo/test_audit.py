"""The demo's figures show faults: each planted fault changes the figure that counts it."""

from rocketshim.admin.record_view import RecordView
from rocketshim_local.demo.audit import Account, Audit
from rocketshim_topics import DelayLevels, Envelope, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

NAMES = TopicNames("demo")
SCHEDULE, SOURCE, RETRY, DEAD = NAMES.schedule, "flights", NAMES.retry("gate"), NAMES.dead_letter("gate")
COMMITTED = {TopicPartitionKey(SOURCE, 0): 100, TopicPartitionKey(RETRY, 0): 100}


def seen(
    topic: str, offset: int, stored_ms: int, *, made_from: RecordView | None = None, failures: int = 0, due_ms: int = 0
) -> RecordView:
    envelope = Envelope(
        uniq_key="m1",
        hop_id=None if made_from is None else made_from.at,
        reconsume_times=failures or None,
        deliver_at_ms=due_ms or None,
    )
    return RecordView(topic, 0, offset, stored_ms, None, None, (), envelope, None)


def audit(*records: RecordView) -> Audit:
    made = Audit(NAMES, DelayLevels.default(), SOURCE, "gate")
    for record in records:
        made.add(record)
    return made


def account(*records: RecordView) -> Account:
    return audit(*records).account(["m1"], COMMITTED)


WAITS = seen(SCHEDULE, 0, 0, due_ms=1_000)
ARRIVES = seen(SOURCE, 0, 1_004, made_from=WAITS)
FAILS = seen(SCHEDULE, 1, 1_010, made_from=ARRIVES, failures=1, due_ms=2_010)
RETURNS = seen(RETRY, 0, 2_030, made_from=FAILS, failures=1)
DIES = seen(DEAD, 0, 2_040, made_from=RETURNS, failures=2)


def test_a_consumed_and_committed_message_is_acknowledged() -> None:
    assert account(WAITS, ARRIVES) == Account(delivered=1, acknowledged=1)
    assert audit(WAITS, ARRIVES).lateness_ms(["m1"]) == [4]


def test_a_message_that_uses_up_its_retries_is_dead() -> None:
    found = account(WAITS, ARRIVES, FAILS, RETURNS, DIES)
    assert found.dead == {"m1"}
    assert found.retried == {1: 1}
    assert (found.duplicates, found.acknowledged) == (0, 0)
    assert audit(WAITS, ARRIVES, FAILS, RETURNS, DIES).lateness_ms(["m1"]) == [4, 20]


def test_a_sent_message_without_a_record_is_lost() -> None:
    assert account().lost == {"m1"}


def test_a_waiting_or_uncommitted_message_is_under_way() -> None:
    assert account(WAITS).under_way == {"m1"}
    assert audit(WAITS, ARRIVES).account(["m1"], {}).under_way == {"m1"}
    assert account(WAITS, ARRIVES, FAILS).under_way == {"m1"}


def test_the_lateness_of_a_delivery_before_its_due_time_is_negative() -> None:
    assert audit(WAITS, seen(SOURCE, 0, 999, made_from=WAITS)).lateness_ms(["m1"]) == [-1]


def test_a_second_record_of_the_same_attempt_is_a_duplicate() -> None:
    assert account(WAITS, ARRIVES, seen(SOURCE, 1, 1_200, made_from=WAITS)).duplicates == 1


def test_the_same_record_read_twice_counts_once() -> None:
    assert account(WAITS, ARRIVES, ARRIVES).duplicates == 0


def test_the_history_of_a_message_is_in_storage_order() -> None:
    steps = audit(DIES, RETURNS, FAILS, ARRIVES, WAITS).history("m1")
    assert [step.at for step in steps] == [each.at for each in (WAITS, ARRIVES, FAILS, RETURNS, DIES)]
