"""Half messages in the worker: COMMIT is NOW, ROLLBACK is CANCEL, and without either the producers are asked."""

from typing import Any

import pytest
from confluent_kafka import KafkaError

from rocketshim.worker.timer_state import OwnedTimers
from rocketshim_topics.hops import CHECK_EVERY_MS, MOST_CHECKS
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import timer_partition

NAMES = TopicNames("")
CHECK_AFTER_MS = 6_000
MINE = timer_partition("orders", "tx-1")
CHECKS = NAMES.check("shop")


@pytest.fixture
def shop(sim: Any) -> Any:
    sim.kafka.create_topic(CHECKS, 4)
    return sim


def half(sim: Any, **headers: str) -> None:
    told = {"UNIQ_KEY": "tx-1", "BORN_TIMESTAMP": "7", "TAGS": "a", "TIMER_ASKS": "shop", "mine": "x"} | headers
    pairs = [(name, text.encode()) for name, text in told.items() if text]
    sim.command(timer="tx-1", value=b"paid", delay_ms=CHECK_AFTER_MS, headers=pairs)


def end(sim: Any, command: str) -> None:
    sim.command(command, timer="tx-1", delay_ms=None)


def asked(sim: Any) -> list[int]:
    """Return the numbers of the checks."""
    return sorted(int(dict(record.headers())["TIMER_ASKED"]) for record in sim.delivered(CHECKS))


def test_a_commit_delivers_the_message_as_it_was_sent(shop: Any) -> None:
    worker = shop.worker()
    half(shop)
    shop.run(worker, 1_000)
    assert shop.delivered() == []
    end(shop, "NOW")
    shop.run(worker, 500)
    [record] = shop.delivered()
    assert record.value() == b"paid"
    told = dict(record.headers())
    assert told.pop("HOP_ID") == f"rmq.timers/{MINE}/0".encode()
    assert told == {"UNIQ_KEY": b"tx-1", "BORN_TIMESTAMP": b"7", "TAGS": b"a", "mine": b"x"}
    shop.run(worker, 60_000)
    assert (len(shop.delivered()), asked(shop)) == (1, [])


def test_a_rollback_delivers_nothing_and_nobody_is_asked(shop: Any) -> None:
    worker = shop.worker()
    half(shop)
    end(shop, "CANCEL")
    shop.run(worker, 60_000)
    assert (shop.delivered(), asked(shop)) == ([], [])


def test_a_second_end_of_a_transaction_finds_nothing(shop: Any) -> None:
    worker = shop.worker()
    half(shop)
    for command in ("NOW", "NOW", "CANCEL"):
        end(shop, command)
    shop.run(worker, 60_000)
    assert len(shop.delivered()) == 1
    assert worker.counts.timers[("NOW", False)] == worker.counts.timers[("CANCEL", False)] == 1


def test_without_an_end_the_producers_are_asked_after_six_seconds_and_then_each_thirty(shop: Any) -> None:
    worker = shop.worker()
    half(shop)
    shop.run(worker, CHECK_AFTER_MS - 10)
    assert asked(shop) == []
    shop.run(worker, 2_000)
    assert asked(shop) == [1]
    shop.run(worker, CHECK_EVERY_MS)
    assert asked(shop) == [1, 2]
    first = min(shop.delivered(CHECKS), key=lambda record: record.timestamp())
    told = dict(first.headers())
    assert first.value() == b"paid"
    assert (told.pop("HOP_ID") or b"").startswith(f"rmq.timers/{MINE}/".encode())
    assert told == {
        "SHIM": b"1",
        "UNIQ_KEY": b"tx-1",
        "TAGS": b"a",
        "BORN_TIMESTAMP": b"7",
        "RETRY_TOPIC": b"orders",
        "TIMER_ASKS": b"shop",
        "TIMER_ASKED": b"1",
        "mine": b"x",
    }
    end(shop, "NOW")
    shop.run(worker, 5_000)
    assert [record.value() for record in shop.delivered()] == [b"paid"]
    assert dict(shop.delivered()[0].headers()).keys() == {"UNIQ_KEY", "BORN_TIMESTAMP", "TAGS", "HOP_ID", "mine"}
    shop.run(worker, 10 * CHECK_EVERY_MS)
    assert (len(shop.delivered()), asked(shop)) == (1, [1, 2])


def test_a_half_message_that_nobody_answers_for_is_parked_after_fifteen_checks(shop: Any) -> None:
    worker = shop.worker()
    half(shop)
    shop.run(worker, CHECK_AFTER_MS + MOST_CHECKS * CHECK_EVERY_MS - 1_000)
    assert (asked(shop), shop.parked()) == ([*range(1, MOST_CHECKS + 1)], [])
    shop.run(worker, 20_000)
    assert [reason for reason, _ in shop.parked()] == ["transaction-unanswered"]
    end(shop, "NOW")  # comes too late
    shop.run(worker, 2 * CHECK_EVERY_MS)
    assert (len(asked(shop)), shop.delivered()) == (MOST_CHECKS, [])


def test_the_count_of_checks_outlives_the_worker(shop: Any) -> None:
    first = shop.worker()
    half(shop)
    shop.run(first, CHECK_AFTER_MS + 2_000)
    first.close()
    second = shop.worker()
    shop.run(second, CHECK_EVERY_MS + 20_000)
    assert asked(shop) == [1, 2]
    end(shop, "CANCEL")
    shop.run(second, 3 * CHECK_EVERY_MS)
    assert (asked(shop), shop.delivered()) == ([1, 2], [])


def test_checks_for_a_topic_that_does_not_exist_are_left_out_and_the_partition_goes_on(sim: Any) -> None:
    worker = sim.worker()
    half(sim)
    sim.run(worker, CHECK_AFTER_MS + 2_000)
    assert worker.counts.timers[("FIRE", True)] == 1
    sim.kafka.create_topic(CHECKS, 4)
    sim.run(worker, CHECK_EVERY_MS)
    assert (asked(sim), sim.parked()) == ([2], [])


def test_a_check_that_its_topic_refuses_is_left_out_and_the_half_message_stays(shop: Any) -> None:
    worker = shop.worker()
    shop.kafka.fail_produce(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), topic=CHECKS, count=20)
    half(shop)
    shop.run(worker, CHECK_AFTER_MS + 5_000)
    assert (asked(shop), shop.parked()) == ([], [])
    end(shop, "NOW")
    shop.run(worker, 2_000)
    assert [record.value() for record in shop.delivered()] == [b"paid"]


@pytest.mark.parametrize(
    "headers",
    [
        {"TIMER_ASKS": " "},
        {"TIMER_ASKS": "DEFAULT_CONSUMER"},
        {"UNIQ_KEY": "another"},
        {"UNIQ_KEY": ""},
        {"TIMER_REPEAT": "15m"},
    ],
)
def test_a_half_message_that_breaks_a_rule_is_parked(shop: Any, headers: dict[str, str]) -> None:
    worker = shop.worker()
    half(shop, **headers)
    shop.run(worker, 2_000)
    assert [reason for reason, _ in shop.parked()] == ["bad-transaction:TIMER_ASKS"]


@pytest.mark.parametrize(("most_bytes", "comes"), [(4 << 20, [b"paid"]), (0, [])])
def test_a_half_message_is_kept_for_its_commit_as_far_as_there_is_room(
    shop: Any, monkeypatch: pytest.MonkeyPatch, most_bytes: int, comes: list[bytes]
) -> None:
    monkeypatch.setattr("rocketshim.worker.timer_state._HALVES_BYTES", most_bytes)
    worker = shop.worker()
    half(shop)
    shop.run(worker, 1_000)
    shop.kafka.truncate(NAMES.timers, MINE, before_offset=1)  # so that it cannot be read
    end(shop, "NOW")
    shop.run(worker, 1_000)
    assert [record.value() for record in shop.delivered()] == comes


def test_the_newest_half_messages_are_kept_and_those_that_have_ended_are_not() -> None:
    owned = OwnedTimers("orders", one_run=False)

    class Record:
        def __init__(self, offset: int) -> None:
            self.offset = lambda: offset
            self.value = lambda: b"x" * (1 << 20)

    for offset in range(5):
        owned.keep_half(Record(offset))
    assert [*owned.halves] == [2, 3, 4]
    owned.drop_half(3)
    owned.drop_half(3)
    owned.drop_half(None)
    owned.keep_half(Record(5))
    assert [*owned.halves] == [2, 4, 5]
