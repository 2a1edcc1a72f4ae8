"""The demo's figures show faults: each planted fault changes the figure that counts it."""

from rocketshim_local.demo.audit import Audit, Seen, TopicKind
from rocketshim_topics import Envelope
from rocketshim_topics.coordinates import TopicPartitionKey

COMMITTED = {TopicPartitionKey("flights", 0): 100, TopicPartitionKey("retry", 0): 100}
TOPIC = {TopicKind.SCHEDULE: "schedule", TopicKind.SOURCE: "flights", TopicKind.RETRY: "retry", TopicKind.DEAD: "dead"}


def seen(
    place: TopicKind, offset: int, stored_ms: int, *, made_from: Seen | None = None, failures: int = 0, due_ms: int = 0
) -> Seen:
    envelope = Envelope(
        uniq_key="m1",
        hop_id=None if made_from is None else made_from.at,
        reconsume_times=failures or None,
        deliver_at_ms=due_ms or None,
    )
    return Seen(place, TOPIC[place], 0, offset, stored_ms, envelope)


def ledger(*records: Seen) -> Audit:
    made = Audit()
    for record in records:
        made.add(record)
    return made


WAITS = seen(TopicKind.SCHEDULE, 0, 0, due_ms=1_000)
ARRIVES = seen(TopicKind.SOURCE, 0, 1_004, made_from=WAITS)
FAILS = seen(TopicKind.SCHEDULE, 1, 1_010, made_from=ARRIVES, failures=1, due_ms=2_010)
RETURNS = seen(TopicKind.RETRY, 0, 2_030, made_from=FAILS, failures=1)
DIES = seen(TopicKind.DEAD, 0, 2_040, made_from=RETURNS, failures=2)


def test_a_consumed_and_committed_message_is_acknowledged() -> None:
    account = ledger(WAITS, ARRIVES).account(["m1"], COMMITTED)
    assert (account.sent, account.delivered, account.acknowledged) == (1, 1, 1)
    assert not account.lost | account.dead | account.under_way
    assert account.lateness_ms == [4]


def test_a_message_that_uses_up_its_retries_is_dead() -> None:
    account = ledger(WAITS, ARRIVES, FAILS, RETURNS, DIES).account(["m1"], COMMITTED)
    assert account.dead == {"m1"}
    assert account.retried == {1: 1}
    assert account.lateness_ms == [4, 20]
    assert (account.early, account.duplicates, account.acknowledged) == (0, 0, 0)


def test_a_sent_message_without_a_record_is_lost() -> None:
    assert ledger().account(["m1"], COMMITTED).lost == {"m1"}


def test_a_waiting_or_uncommitted_message_is_under_way() -> None:
    assert ledger(WAITS).account(["m1"], COMMITTED).under_way == {"m1"}
    assert ledger(WAITS, ARRIVES).account(["m1"], {}).under_way == {"m1"}
    assert ledger(WAITS, ARRIVES, FAILS).account(["m1"], COMMITTED).under_way == {"m1"}


def test_a_delivery_before_its_due_time_is_early() -> None:
    hasty = seen(TopicKind.SOURCE, 0, 999, made_from=WAITS)
    assert ledger(WAITS, hasty).account(["m1"], COMMITTED).early == 1


def test_a_second_record_of_the_same_attempt_is_a_duplicate() -> None:
    again = seen(TopicKind.SOURCE, 1, 1_200, made_from=WAITS)
    assert ledger(WAITS, ARRIVES, again).account(["m1"], COMMITTED).duplicates == 1


def test_the_same_record_read_twice_counts_once() -> None:
    assert ledger(WAITS, ARRIVES, ARRIVES).account(["m1"], COMMITTED).duplicates == 0


def test_the_history_of_a_message_is_in_storage_order() -> None:
    assert ledger(DIES, RETURNS, FAILS, ARRIVES, WAITS).biography("m1") == [WAITS, ARRIVES, FAILS, RETURNS, DIES]


def test_a_percentile_without_deliveries_is_zero() -> None:
    assert ledger().account([], {}).percentile_ms(0.99) == 0
