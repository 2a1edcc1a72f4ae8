"""Half messages in the worker: COMMIT is NOW, ROLLBACK is CANCEL, and without either the producers are asked."""

from typing import Any

import pytest
from confluent_kafka import KafkaError

from rocketshim.admin.redrive import redriven_parked
from rocketshim.worker.timer_state import OwnedTimers
from rocketshim_topics.hops import CHECK_EVERY_MS, MOST_CHECKS
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import TIMER_PARTITIONS, timer_partition
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.redrive_plan import Planner, RedriveRules
from rocketshim_topics.wire import decode

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
    assert worker.counts.checks == 2
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
            self.value = lambda: b"x" * (1 << 19)
            self.key = lambda: b"x" * (1 << 18)
            self.headers = lambda: [("mine", b"x" * (1 << 18))]

    for offset in range(5):
        owned.keep_half(b"n", Record(offset))
    assert [offset for _, offset in owned.halves] == [2, 3, 4]
    for name, gone in ((b"n", 3), (b"n", 3), (b"n", None), (b"other", 2)):
        owned.drop_half(name, gone)
    owned.keep_half(b"n", Record(5))
    assert [offset for _, offset in owned.halves] == [2, 4, 5]


def recreate_log(sim: Any) -> None:
    sim.kafka.delete_topic(NAMES.timers)
    sim.kafka.create_topic(NAMES.timers, TIMER_PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})


@pytest.mark.parametrize("is_running", [True, False])
def test_a_commit_of_an_earlier_log_delivers_no_half_message_of_the_new_one(shop: Any, is_running: bool) -> None:
    worker = shop.worker()
    half(shop)
    shop.run(worker, 1_000)
    if not is_running:
        worker.close()
    recreate_log(shop)
    if is_running:
        shop.run(worker, 3_000)
    else:
        worker = shop.worker()
    other = next(name for at in range(99) if timer_partition("orders", name := f"x{at}") == MINE)
    told = [("UNIQ_KEY", other.encode()), ("TIMER_ASKS", b"shop")]
    shop.command(timer=other, value=b"not paid", delay_ms=CHECK_AFTER_MS, headers=told)
    shop.run(worker, 1_000)
    end(shop, "NOW")  # of the first one, whose half message was at the same offset
    shop.command("CANCEL", timer=other, delay_ms=None)
    shop.run(worker, 3_000)
    assert shop.delivered() == []
    shop.run(worker, CHECK_EVERY_MS)
    assert [dict(record.headers())["UNIQ_KEY"] for record in shop.delivered(CHECKS)][:1] == [b"tx-1"]


@pytest.mark.parametrize("reason", ["transaction-unanswered", "hop-refused:MSG_SIZE_TOO_LARGE"])
def test_a_parked_half_message_that_is_sent_again_is_asked_about_again(shop: Any, reason: str) -> None:
    worker = shop.worker()
    if reason.startswith("hop"):
        shop.kafka.fail_produce(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), topic=NAMES.schedule, count=1)
    half(shop)
    shop.run(worker, CHECK_AFTER_MS + (MOST_CHECKS + 1) * CHECK_EVERY_MS if reason.startswith("tr") else 5_000)
    [parked] = shop.kafka.records(NAMES.parked)
    assert shop.parked()[0][0] == reason
    before = len(asked(shop))
    end(shop, "NOW")  # too late: it is parked
    again = redriven_parked(parked, NAMES, "plan.0.0")
    shop.kafka.append(again.topic, again.value, partition=again.partition, key=again.key, headers=again.headers)
    shop.run(worker, 3_000)
    assert (shop.delivered(), len(asked(shop))) == ([], before + 1)
    end(shop, "NOW")
    shop.run(worker, 3_000)
    [record] = shop.delivered()
    assert (record.value(), dict(record.headers())["UNIQ_KEY"]) == (b"paid", b"tx-1")
    planner = Planner(NAMES.parked, RedriveRules(), RedriveLog(NAMES.parked), None)
    planner.add(parked, decode(parked.headers(), trusted=True))
    assert [letter.target for letter in planner.plan(cluster_id="", created_ms=0, choice={}).letters] == [NAMES.timers]
