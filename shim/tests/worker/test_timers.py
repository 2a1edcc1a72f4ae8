"""Named timers in the worker: commands of the log become messages, or nothing."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from rocketshim.admin.redrive import redriven_parked
from rocketshim.errors import MessageError
from rocketshim.metrics import metrics_text
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import TIMER_PARTITIONS, timer_partition
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.redrive_plan import Planner, RedriveRules
from rocketshim_topics.wire import decode
from test_support.mutated_records import mutated

NAMES = TopicNames("")
MINE = timer_partition("orders", "o-7")


def bodies(sim: Any, topic: str = "orders") -> list[bytes]:
    return [record.value() for record in sim.delivered(topic)]


def commands(sim: Any) -> list[str]:
    """Return what the log has, in order."""
    told = [dict(record.headers()).get("TIMER_DO") for record in sim.kafka.records(NAMES.timers)]
    return [each.decode() for each in told if each is not None]


def pending(worker: Any) -> int:
    return sum(len(each.timers.table) for each in worker._assignment.held.values() if each.timers is not None)


def position(sim: Any, partition: int = MINE) -> int | None:
    committed: int | None = sim.kafka.committed(NAMES.worker_group).get((NAMES.timers, partition))
    return committed


def settle(sim: Any, worker: Any, partition: int = MINE) -> None:
    """Run until the position is behind the log."""
    end = sim.kafka.end_offsets(NAMES.timers)[partition]
    sim.until(worker, lambda: position(sim, partition) == end, 20_000)


def forget_state(sim: Any) -> None:
    sim.kafka.delete_topic(NAMES.timer_state)
    sim.kafka.create_topic(NAMES.timer_state, TIMER_PARTITIONS, config={"cleanup.policy": "compact"})


def test_a_timer_fires_once_and_not_before_it_is_due(sim: Any) -> None:
    worker = sim.worker()
    sim.command(delay_ms=1_500)
    sim.run(worker, 1_490)
    assert bodies(sim) == []
    sim.run(worker, 5_000)
    [record] = sim.delivered()
    assert record.value() == b"body"
    assert {name for name, _ in record.headers()} == {"UNIQ_KEY", "BORN_TIMESTAMP", "HOP_ID"}
    assert commands(sim) == ["SET", "FIRE"]
    assert pending(worker) == 0
    assert worker.counts.timers == {("SET", True): 1, ("FIRE", True): 1}


def test_settings_that_run_code_reach_the_reader_of_the_state_too(sim: Any) -> None:
    worker = sim.worker(client={"sasl.oauthbearer.token.endpoint.url": "https://idp"}, allow_code_settings=True)
    sim.command()
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"body"]


def test_a_cancelled_timer_never_comes(sim: Any) -> None:
    worker = sim.worker()
    sim.command()
    sim.run(worker, 500)
    assert pending(worker) == 1
    sim.command("CANCEL")
    sim.run(worker, 10_000)
    assert bodies(sim) == []
    assert commands(sim) == ["SET", "CANCEL", "FIRE"]
    assert worker.counts.timers[("FIRE", False)] == 1


def test_a_cancel_that_is_stored_behind_the_fire_comes_too_late(sim: Any) -> None:
    worker = sim.worker()
    sim.command()
    sim.until(worker, lambda: "FIRE" in commands(sim), 5_000)
    sim.command("CANCEL")
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"body"]
    assert worker.counts.timers[("CANCEL", False)] == 1


def test_a_name_that_is_set_again_has_the_new_message_at_the_new_time(sim: Any) -> None:
    worker = sim.worker()
    sim.command(value=b"first")
    sim.run(worker, 500)
    sim.command(value=b"second", delay_ms=3_000)
    sim.run(worker, 2_000)
    assert bodies(sim) == []
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"second"]


def test_the_state_shows_names_commands_and_a_log_that_is_not_read_on(sim: Any) -> None:
    worker = sim.worker()
    for _ in range(2):
        sim.command(delay_ms=60_000)
    sim.command("SET-IF-ABSENT", delay_ms=60_000)
    sim.run(worker, 1_500)
    state = worker.state
    found = {
        (family.name.removeprefix("rocketshim_worker_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics_text(state.metrics()))
        for sample in family.samples
        if sample.name.endswith("_total") or family.type == "gauge"
    }
    assert found["pending_timers",] == 1
    assert found["timers_replaced",] == 1
    assert (found["timer_commands", "SET", "true"], found["timer_commands", "SET-IF-ABSENT", "false"]) == (2, 1)
    assert found["timer_commands", "FIRE", "true"] == 0, "a series exists before its first event"
    assert found["timer_log_backlog_records", str(MINE)] == 0
    assert [each.partition for each in state.timer_queues] == list(range(TIMER_PARTITIONS))
    stuck = replace(state.timer_queues[0], next_due_in_ms=-90_000)
    assert replace(state, timer_queues=(stuck,)).oldest_due_ms == 90_000


def test_set_if_absent_is_a_unique_job(sim: Any) -> None:
    worker = sim.worker()
    for number in range(3):
        sim.command("SET-IF-ABSENT", value=b"%d" % number)
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"0"]
    sim.command("SET-IF-ABSENT", value=b"again")
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"0", b"again"]


def test_names_of_other_targets_and_other_names_are_not_touched(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    worker = sim.worker()
    sim.command(value=b"a")
    sim.command(value=b"b", timer="o-8")
    sim.command(value=b"c", topic="audit")
    sim.command("CANCEL")
    sim.run(worker, 5_000)
    assert (bodies(sim), bodies(sim, "audit")) == ([b"b"], [b"c"])


def test_now_delivers_the_message_that_waits_and_its_time_passes_silently(sim: Any) -> None:
    worker = sim.worker()
    sim.command(value=b"old")
    sim.command(value=b"new", delay_ms=3_000)
    sim.run(worker, 500)
    sim.command("NOW")
    sim.run(worker, 200)
    assert bodies(sim) == [b"new"]
    sim.run(worker, 10_000)
    assert bodies(sim) == [b"new"]
    assert pending(worker) == 0


def test_now_and_what_follows_it_in_the_log_keep_their_order(sim: Any) -> None:
    worker = sim.worker()
    sim.command(value=b"first", delay_ms=60_000)
    sim.command("NOW")
    sim.command(value=b"second")
    sim.command("NOW")
    sim.command("NOW")
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"first", b"second"]


def test_a_message_that_the_log_has_lost_is_not_delivered_now_but_at_its_time(sim: Any) -> None:
    worker = sim.worker()
    sim.command(delay_ms=3_000)
    sim.run(worker, 500)
    sim.kafka.truncate(NAMES.timers, MINE, before_offset=1)
    sim.command("NOW")
    sim.run(worker, 1_000)
    assert bodies(sim) == []
    assert worker.counts.alarms["worker.timer-not-now"] == 1
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"body"]


def test_a_debounce_comes_at_the_latest_after_at_most(sim: Any) -> None:
    worker = sim.worker()
    for number in range(6):
        sim.command(value=b"%d" % number, delay_ms=1_000, headers=[("TIMER_AT_MOST_MS", b"2500")])
        sim.run(worker, 600)
        worker.close()
        worker = sim.worker()  # the limit outlives its owner
    assert bodies(sim) == [b"4"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"timer": ""}, "bad-name:TIMER"),
        ({"what": "set"}, "bad-command:TIMER_DO"),
        ({"delay_ms": None}, "missing-header:DELIVER_AT_MS"),
        ({"value": None}, "timer-without-body"),
        ({"what": "FIRE"}, "missing-header:TIMER_SET_AT"),
        ({"topic": "rmq.parked"}, "forbidden-target:shim-topic"),
        ({"topic": "%RETRY%g"}, "forbidden-target:retry-topic"),
        ({"delay_ms": 41 * 86_400_000}, "due-too-late"),
        ({"headers": [("DELIVER_AT_MS", b"x")]}, "bad-number:DELIVER_AT_MS"),
        ({"headers": [("TIMER", b"again")]}, "duplicate-header:TIMER"),
    ],
)
def test_what_is_no_command_is_parked_and_the_partition_goes_on(sim: Any, given: dict[str, Any], reason: str) -> None:
    worker = sim.worker()
    sim.command(partition=MINE, **{"what": "SET", **given})
    sim.command()
    sim.run(worker, 5_000)
    assert [why for why, _ in sim.parked()] == [reason]
    assert bodies(sim) == [b"body"]


def test_a_fire_of_a_stranger_delivers_nothing_that_is_not_pending(sim: Any) -> None:
    worker = sim.worker()
    sim.command("FIRE", generation=0)
    sim.command(delay_ms=60_000)
    sim.command("FIRE", generation=0)
    sim.command("FIRE", generation=7)
    sim.run(worker, 5_000)
    assert bodies(sim) == []
    assert pending(worker) == 1


def test_a_fire_of_a_stranger_that_comes_too_early_waits(sim: Any) -> None:
    worker = sim.worker()
    due_ms = sim.clock.wall_ms() + 90_000
    sim.command(delay_ms=None, headers=[("DELIVER_AT_MS", b"%d" % due_ms)])
    sim.command("FIRE", generation=0, headers=[("DELIVER_AT_MS", b"%d" % due_ms)])
    sim.run(worker, 80_000)
    assert bodies(sim) == []
    sim.run(worker, 20_000)
    assert bodies(sim) == [b"body"]


def test_commands_in_other_partitions_find_their_name(sim: Any) -> None:
    worker = sim.worker()
    other = (MINE + 3) % TIMER_PARTITIONS
    sim.command(partition=other, delay_ms=2_000)
    sim.run(worker, 500)
    sim.command("CANCEL", timer="o-9", partition=other)
    sim.command("SET-IF-ABSENT", value=b"refused")
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"body"]
    assert pending(worker) == 0


def test_a_successor_knows_what_is_pending_what_was_cancelled_and_what_was_replaced(sim: Any) -> None:
    first = sim.worker()
    sim.command(timer="stays", value=b"stays", delay_ms=3_000)
    sim.command(timer="goes", value=b"goes", delay_ms=3_000)
    sim.command(timer="changes", value=b"old", delay_ms=3_000)
    sim.run(first, 500)
    sim.command("CANCEL", timer="goes")
    sim.command(timer="changes", value=b"new", delay_ms=3_000)
    sim.run(first, 500)
    first.close()
    for partition, end in sim.kafka.end_offsets(NAMES.timers).items():
        sim.kafka.truncate(NAMES.timers, partition, before_offset=end)  # the state alone has to know
    sim.kafka.compact(NAMES.timer_state)
    second = sim.worker()
    sim.command("SET-IF-ABSENT", timer="stays", value=b"refused")
    sim.run(second, 10_000)
    assert sorted(bodies(sim)) == [b"new", b"stays"]
    assert second.counts.timers[("SET-IF-ABSENT", False)] == 1


def test_a_state_whose_key_is_no_digest_is_passed_over(sim: Any) -> None:
    first = sim.worker()
    sim.command(value=b"stays", delay_ms=3_000)
    sim.run(first, 500)
    first.close()
    stored = sim.kafka.records(NAMES.timer_state, MINE)[0]
    sim.kafka.append(NAMES.timer_state, stored.value(), key=b"mine", partition=MINE, headers=list(stored.headers()))
    second = sim.worker()
    sim.run(second, 500)
    assert pending(second) == 1
    sim.run(second, 10_000)
    assert bodies(sim) == [b"stays"]


def test_a_state_that_was_lost_is_made_from_the_log(sim: Any) -> None:
    first = sim.worker()
    sim.command(timer="stays", value=b"stays", delay_ms=3_000)
    sim.command(timer="goes", value=b"goes", delay_ms=3_000)
    sim.command("CANCEL", timer="goes")
    sim.run(first, 1_000)
    first.close()
    forget_state(sim)
    sim.run(sim.worker(), 10_000)
    assert bodies(sim) == [b"stays"]


def test_a_worker_says_which_names_are_gone_if_state_and_log_of_them_are_lost(sim: Any) -> None:
    first = sim.worker()
    sim.command(delay_ms=60_000)
    sim.run(first, 1_000)
    first.close()
    sim.kafka.truncate(NAMES.timers, MINE, before_offset=sim.kafka.end_offsets(NAMES.timers)[MINE])
    untroubled = sim.worker()
    sim.run(untroubled, 1_000)
    assert "worker.timers-state-lost" not in untroubled.counts.alarms
    untroubled.close()
    forget_state(sim)
    second = sim.worker()
    sim.command(timer="later", value=b"later", partition=MINE, delay_ms=3_000)
    sim.run(second, 80_000)
    assert second.counts.alarms["worker.timers-state-lost"] == 1
    assert b"body" not in bodies(sim)


def test_a_name_of_a_log_that_was_created_again_fires_though_the_state_was_lost(sim: Any) -> None:
    first = sim.worker()
    sim.command(value=b"first log", delay_ms=100_000)
    sim.run(first, 1_000)
    first.close()
    sim.kafka.delete_topic(NAMES.timers)
    sim.kafka.create_topic(NAMES.timers, TIMER_PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})
    second = sim.worker()
    sim.run(second, 1_000)
    assert second.counts.alarms["worker.timers-begin-again"] == 1
    sim.command(value=b"second log", delay_ms=3_000)
    sim.run(second, 1_000)
    second.close()
    forget_state(sim)
    sim.run(sim.worker(), 10_000)
    assert bodies(sim) == [b"second log"]


def test_positions_that_were_lost_repeat_no_command_that_the_state_knows(sim: Any) -> None:
    first = sim.worker()
    sim.command(value=b"fired", delay_ms=100)
    sim.run(first, 2_000)
    sim.command(value=b"waits", delay_ms=3_000)
    sim.run(first, 500)
    first.close()
    sim.run(sim.worker(group="another", replay_everything=True), 10_000)
    assert [body for body in bodies(sim) if body == b"waits"] == [b"waits"]
    assert commands(sim).count("SET") == 2


def test_a_timer_whose_target_refuses_waits_for_it_like_any_message(sim: Any) -> None:
    worker = sim.worker()
    sim.command(topic="audit-new", delay_ms=500)
    sim.run(worker, 8_000)
    assert worker.counts.re_appended > 0
    sim.kafka.create_topic("audit-new", 1)
    sim.run(worker, 60_000)
    assert bodies(sim, "audit-new") == [b"body"]
    assert pending(worker) == 0


def test_the_position_is_behind_every_command_and_the_state_is_behind_none(sim: Any) -> None:
    worker = sim.worker()
    for number in range(50):
        sim.command(timer=f"o-{number}", value=b"%d" % number, delay_ms=200 + number)
    sim.run(worker, 10_000)
    assert len(bodies(sim)) == 50
    for partition in range(TIMER_PARTITIONS):
        settle(sim, worker, partition)
    worker.close()
    assert pending(sim.worker()) == 0


def test_without_the_topics_the_worker_delivers_all_that_has_no_name(sim: Any) -> None:
    sim.kafka.delete_topic(NAMES.timers)
    sim.kafka.delete_topic(NAMES.timer_state)
    worker = sim.worker()
    sim.schedule()
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"body"]


def test_topics_that_are_created_later_are_used(sim: Any) -> None:
    sim.kafka.delete_topic(NAMES.timers)
    worker = sim.worker()
    sim.run(worker, 1_000)
    sim.kafka.create_topic(NAMES.timers, TIMER_PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})
    sim.command()
    sim.run(worker, 30_000)
    assert bodies(sim) == [b"body"]


def test_two_workers_share_the_partitions_and_a_name_has_one_owner(sim: Any) -> None:
    first, second = sim.worker(), sim.worker()
    for _ in range(100):
        sim.run(first, 50)
        sim.run(second, 50)
    owned = [{key for key, each in worker._assignment.held.items() if each.timers} for worker in (first, second)]
    assert not owned[0] & owned[1]
    assert len(owned[0] | owned[1]) == TIMER_PARTITIONS
    for number in range(20):
        sim.command(timer=f"o-{number}", value=b"%d" % number)
    for number in range(0, 20, 2):
        sim.command("CANCEL", timer=f"o-{number}")
    for _ in range(100):
        sim.run(first, 30)
        sim.run(second, 30)
    assert sorted(bodies(sim)) == sorted(b"%d" % number for number in range(1, 20, 2))


HOUR_MS = 3_600_000


def every(line: str, late: str | None = None, tz: str | None = None) -> dict[str, Any]:
    told: list[tuple[str, bytes | None]] = [("TIMER_REPEAT", line.encode()), ("UNIQ_KEY", b"daily")]
    told += [("TIMER_LATE", late.encode())] if late else []
    return {"delay_ms": None, "headers": told + ([("TIMER_TZ", tz.encode())] if tz else [])}


def times_s(sim: Any) -> list[int]:
    """Return when messages came, in whole seconds of the run."""
    return sorted((record.timestamp()[1] - 1_700_000_000_000) // 1_000 for record in sim.delivered())


def test_a_message_that_recurs_comes_at_each_time_with_an_id_of_its_own(sim: Any) -> None:
    worker = sim.worker()
    sim.command(**every("10s"))
    sim.run(worker, 35_000)
    assert times_s(sim) == [10, 20, 30]
    ids = sorted(dict(record.headers())["UNIQ_KEY"] for record in sim.delivered())
    assert ids == [b"daily.%d" % (1_700_000_000_000 + at_ms) for at_ms in (10_000, 20_000, 30_000)]
    assert pending(worker) == 1
    sim.command("CANCEL")
    sim.run(worker, 30_000)
    assert len(sim.delivered()) == 3
    assert pending(worker) == 0


def test_what_recurs_goes_on_with_each_successor_and_misses_nothing(sim: Any) -> None:
    sim.command(**every("10s"))
    for _ in range(7):
        worker = sim.worker()
        sim.run(worker, 13_000)
        worker.close()
    assert times_s(sim) == [10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_what_was_missed_comes_once_or_not(sim: Any) -> None:
    worker = sim.worker()
    sim.command(timer="once", value=b"once", **every("10s"))
    sim.command(timer="skip", value=b"skip", **every("10s", late="skip"))
    sim.run(worker, 15_000)
    worker.close()
    sim.clock.advance(100_000)
    sim.run(sim.worker(), 11_000)
    assert sorted(bodies(sim)) == [b"once"] * 3 + [b"skip"] * 2


def test_a_new_line_replaces_the_old_one_and_now_is_an_extra_occurrence(sim: Any) -> None:
    worker = sim.worker()
    sim.command(value=b"old", **every("10s"))
    sim.run(worker, 15_000)
    sim.command("NOW")
    sim.run(worker, 1_000)
    assert bodies(sim) == [b"old", b"old"]
    sim.command(value=b"new", **every("30s"))
    sim.run(worker, 40_000)
    assert bodies(sim) == [b"old", b"old", b"new"]
    assert len({dict(record.headers())["UNIQ_KEY"] for record in sim.delivered()}) == 3


def test_a_line_of_cron_follows_its_time_zone_over_both_changes_of_its_clock(sim: Any) -> None:
    worker = sim.worker()
    sim.clock.advance(1_774_656_000_000 - sim.clock.wall_ms())  # 28 March 2026, 00:00 UTC
    sim.command(**every("30 2 * * *", tz="Europe/Berlin"))
    for _ in range(4 * 24 * 2):
        sim.clock.advance(HOUR_MS / 2 - 2_000)
        sim.run(worker, 2_000)
    dues_ms = sorted(int(dict(record.headers())["UNIQ_KEY"].split(b".")[1]) for record in sim.delivered())
    # 02:30 is 01:30 UTC; on the 29th it does not exist, and comes when the clock is set: at 01:00 UTC; then 00:30 UTC
    assert [(due_ms - 1_774_656_000_000) / HOUR_MS for due_ms in dues_ms] == [1.5, 25, 48.5, 72.5]


def test_a_recurrence_that_cannot_be_read_is_parked(sim: Any) -> None:
    worker = sim.worker()
    for line in ("soon", "61 * * * *", "0 0 31 2 *", "10ms"):
        sim.command(**every(line))
    sim.command(**every("0 9 * * *", tz="Mars/Olympus"))
    sim.run(worker, 3_000)
    assert [why for why, _ in sim.parked()] == ["bad-recurrence:TIMER_REPEAT"] * 5


@pytest.mark.only("at-least-once")
def test_the_state_is_stored_behind_every_effect_of_its_run_and_before_the_next_run(sim: Any) -> None:
    worker = sim.worker()
    sim.command(delay_ms=100)
    sim.run(worker, 50)
    written = len(sim.kafka.records(NAMES.timer_state))
    sim.kafka.hold_sends("orders")
    sim.until(worker, lambda: "FIRE" in commands(sim), 5_000)
    sim.run(worker, 500)
    sim.command("CANCEL")
    sim.command(value=b"next", delay_ms=60_000)
    sim.run(worker, 500)
    assert len(sim.kafka.records(NAMES.timer_state)) == written
    sim.kafka.release("orders")
    sim.run(worker, 1_000)
    assert bodies(sim) == [b"body"]
    assert [record.value() for record in sim.kafka.records(NAMES.timer_state)[written:]] == [None, b""]


def recreate(sim: Any, *topics: str) -> None:
    for topic in topics:
        sim.kafka.delete_topic(topic)
        policy = "compact" if topic == NAMES.timer_state else "delete"
        config = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": policy}
        sim.kafka.create_topic(topic, TIMER_PARTITIONS, config=config)


def others(count: int) -> list[str]:
    """Return names with the partition of `o-7`."""
    return [name for number in range(40 * count) if timer_partition("orders", name := f"x{number}") == MINE][:count]


def test_a_message_of_an_earlier_log_does_not_fire_for_one_with_its_offset(sim: Any) -> None:
    worker = sim.worker()
    sim.command(value=b"old", delay_ms=20_000)
    sim.run(worker, 1_000)
    worker.close()
    recreate(sim, NAMES.timers)
    worker = sim.worker()
    sim.command(value=b"new", delay_ms=40_000)  # at the same offset, under the same name
    sim.run(worker, 30_000)
    assert bodies(sim) == []
    sim.run(worker, 30_000)
    assert bodies(sim) == [b"new"]


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("before", ["another", "o-7"])
def test_a_log_that_is_created_again_loses_no_name_that_is_pending(sim: Any, is_running: bool, before: str) -> None:
    worker = sim.worker()
    for _ in range(6):
        sim.command(timer=others(1)[0] if before == "another" else before, value=b"old", delay_ms=60_000)
    sim.run(worker, 3_000)
    if not is_running:
        worker.close()
    recreate(sim, NAMES.timers)
    worker = worker if is_running else sim.worker()
    sim.run(worker, 100)
    sim.command(value=b"new", delay_ms=500)
    sim.run(worker, 40_000)
    assert bodies(sim) == [b"new"]
    worker.close()
    worker = sim.worker()
    sim.command("SET-IF-ABSENT", value=b"again", delay_ms=500)
    sim.run(worker, 100_000)
    assert sorted(bodies(sim)) == [b"again", b"new", *([b"old"] if before == "another" else [])]
    assert pending(worker) == 0


def test_a_now_that_found_no_message_forgets_no_name_when_its_log_is_read_again(sim: Any) -> None:
    worker = sim.worker()
    sim.command(delay_ms=8_000)
    sim.run(worker, 500)
    sim.kafka.truncate(NAMES.timers, MINE, before_offset=1)
    sim.command("NOW")
    sim.run(worker, 1_000)
    worker.close()
    sim.run(sim.worker(), 20_000)
    assert bodies(sim) == [b"body"]


@pytest.mark.only("at-least-once")
def test_of_a_name_only_the_last_state_of_a_run_is_written(sim: Any) -> None:
    """Otherwise one that is written again, or a NOW that waited for its message, would come behind a later one."""
    worker = sim.worker()
    sim.command(value=b"first", delay_ms=60_000)
    sim.run(worker, 500)
    sim.kafka.fail_produce(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), topic=NAMES.timer_state, count=1)
    sim.command("NOW")
    sim.command(value=b"second", delay_ms=20_000)
    sim.run(worker, 3_000)
    sim.command(timer=others(1)[0], delay_ms=6_000_000)  # the state of the name is not the newest of the partition
    sim.run(worker, 1_000)
    worker.close()
    sim.kafka.compact(NAMES.timer_state)
    sim.run(sim.worker(), 60_000)
    assert sorted(bodies(sim)) == [b"first", b"second"]


def test_a_message_whose_target_is_not_allowed_any_more_leaves_its_name_free(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    worker = sim.worker()
    sim.command(topic="audit", delay_ms=2_000)
    sim.run(worker, 500)
    worker.close()
    worker = sim.worker(allow=("orders",))
    sim.run(worker, 400_000)
    assert [why for why, _ in sim.parked()] == ["forbidden-target:not-allowed"]
    assert pending(worker) == 0


@pytest.mark.parametrize("headers", [[], [("TIMER_SET_AT", b"x")]])
def test_a_state_record_of_another_program_changes_nothing(sim: Any, headers: list[tuple[str, bytes]]) -> None:
    sim.kafka.append(NAMES.timer_state, b"", key=b"k", partition=MINE, headers=headers)
    worker = sim.worker()
    sim.command()
    sim.run(worker, 10_000)
    assert bodies(sim) == [b"body"]


def test_without_the_topic_of_states_only_named_messages_wait(sim: Any) -> None:
    sim.kafka.delete_topic(NAMES.timer_state)
    worker = sim.worker()
    sim.command(value=b"named")
    sim.schedule(value=b"plain")
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"plain"]
    assert worker.counts.alarms["worker.timers-unknown"] > 0
    config = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"}
    sim.kafka.create_topic(NAMES.timer_state, TIMER_PARTITIONS, config=config)
    sim.run(worker, 5_000)
    assert sorted(bodies(sim)) == [b"named", b"plain"]


def test_a_command_beyond_the_partitions_of_names_is_forwarded(sim: Any) -> None:
    sim.kafka.add_partitions(NAMES.timers, 12)
    worker = sim.worker()
    sim.command(partition=10)
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"body"]


def test_a_command_without_an_append_time_is_not_applied(sim: Any) -> None:
    sim.kafka.delete_topic(NAMES.timers)
    sim.kafka.create_topic(NAMES.timers, TIMER_PARTITIONS)
    worker = sim.worker()
    sim.command(delay_ms=3_000)
    sim.kafka._topic(NAMES.timers).config["message.timestamp.type"] = "LogAppendTime"
    sim.run(worker, 20_000)
    assert bodies(sim) == []
    assert [reason for reason, _ in sim.parked()] == ["no-append-time"]


def restart(sim: Any, worker: Any) -> Any:
    """Let one name be pending, so that the state is ahead of the others; then begin again with a new worker."""
    sim.command(timer=others(2)[1], value=b"other", delay_ms=6_000_000)
    sim.run(worker, 2_000)
    settle(sim, worker)
    worker.close()
    return sim.worker()


TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


@pytest.mark.parametrize("aborted", [False, True])
def test_a_refused_message_voids_the_one_before_also_after_a_restart(sim: Any, *, aborted: bool) -> None:
    worker = sim.worker()
    sim.command(value=b"replaced", delay_ms=40_000)
    sim.run(worker, 1_500)
    sim.kafka.fail_produce(TOO_LARGE, topic=NAMES.schedule, count=1)
    if aborted:  # once more, after the record was marked
        sim.kafka.fail_produce(TOO_LARGE, topic=NAMES.parked, count=1)
    sim.command(value=b"refused", delay_ms=60_000)
    sim.run(worker, 10_000)
    assert [why for why, _ in sim.parked()] == ["hop-refused:MSG_SIZE_TOO_LARGE"]
    worker = restart(sim, worker)
    sim.run(worker, 100_000)
    assert bodies(sim) == []
    assert pending(worker) == 1


def test_a_message_that_its_target_refuses_leaves_its_name_free_also_after_a_restart(sim: Any) -> None:
    worker = sim.worker()
    sim.kafka.fail_produce(TOO_LARGE, topic="orders", count=3)
    sim.command(value=b"refused", delay_ms=500)
    sim.run(worker, 30_000)
    assert [why for why, _ in sim.parked()] == ["target-refused:MSG_SIZE_TOO_LARGE"]
    worker = restart(sim, worker)
    sim.command("SET-IF-ABSENT", value=b"again", delay_ms=500)
    sim.run(worker, 20_000)
    assert bodies(sim) == [b"again"]


def test_a_message_that_its_target_refuses_now_is_parked_with_its_body(sim: Any) -> None:
    worker = sim.worker()
    sim.command(value=b"refused", delay_ms=8_000)
    sim.run(worker, 500)
    sim.kafka.fail_produce(TOO_LARGE, topic="orders", count=50)
    sim.command("NOW")
    sim.run(worker, 20_000)
    assert [record.value() for record in sim.kafka.records(NAMES.parked)] == [b"refused"]


@pytest.mark.parametrize(("then", "comes"), [("CANCEL", []), ("SET-IF-ABSENT", [b"old"]), ("NOW", [b"old"])])
def test_what_follows_a_now_without_a_message_has_its_effect(sim: Any, then: str, comes: list[bytes]) -> None:
    worker = sim.worker()
    sim.command(value=b"old", delay_ms=8_000)
    sim.run(worker, 500)
    sim.kafka.truncate(NAMES.timers, MINE, before_offset=1)
    sim.command("NOW")
    sim.command(then, value=b"new" if then == "SET-IF-ABSENT" else None)
    sim.run(worker, 20_000)
    assert bodies(sim) == comes


def test_without_the_log_a_due_message_is_parked_and_its_queue_goes_on(sim: Any) -> None:
    for topic in (NAMES.timers, NAMES.timer_state):
        sim.kafka.delete_topic(topic)
    worker = sim.worker()
    sim.schedule(headers=[("TIMER", b"x"), ("TIMER_SET_AT", b"0")], value=b"named")
    sim.schedule(value=b"first")
    sim.run(worker, 10_000)
    sim.schedule(value=b"second")
    sim.run(worker, 60_000)
    assert bodies(sim) == [b"first", b"second"]
    assert [why for why, _ in sim.parked()] == [f"unknown-topic:{NAMES.timers}"]


def test_each_message_is_delivered_by_a_worker_that_may(sim: Any) -> None:
    sim.kafka.create_topic("audit", 1)
    workers = [sim.worker(allow=("orders",)), sim.worker(allow=("audit",))]

    def run(times: int, ms: float) -> None:
        for _ in range(times):
            for worker in workers:
                sim.run(worker, ms)

    run(60, 50)
    for topic in ("orders", "audit"):
        for number in range(8):
            sim.command(topic=topic, timer=f"n{number}", value=b"%d" % number, delay_ms=3_500)
    began_ms = sim.clock.wall_ms()
    run(1_200, 100)
    for topic in ("orders", "audit"):
        assert sorted(bodies(sim, topic)) == [b"%d" % number for number in range(8)]
        assert min(record.timestamp()[1] for record in sim.delivered(topic)) >= began_ms + 3_500
    assert sim.parked() == []


def test_positions_that_are_lost_repeat_nothing_even_if_the_next_worker_ends_midway(sim: Any) -> None:
    worker = sim.worker()
    for number in range(40):
        sim.command(timer=others(5)[number % 5], value=b"%d" % number, delay_ms=60_000)
        sim.command("NOW", timer=others(5)[number % 5])
    sim.run(worker, 5_000)
    restart(sim, worker).close()
    sim.kafka.compact(NAMES.timer_state)
    for at in (0, 30):  # lost, and then as after an end midway
        tool = sim.kafka.consumer({"bootstrap.servers": "memory", "group.id": NAMES.worker_group})
        tool.commit(offsets=[TopicPartition(NAMES.timers, MINE, at)], asynchronous=False)
        tool.close()
        worker = sim.worker()
        sim.run(worker, 5_000)
        settle(sim, worker)
        worker.close()
    assert Counter(bodies(sim)) == Counter(b"%d" % number for number in range(40))


def test_a_cancel_behind_one_without_an_object_is_stored(sim: Any) -> None:
    worker = sim.worker()
    sim.command(delay_ms=60_000)
    sim.run(worker, 500)
    sim.command("CANCEL", timer=others(1)[0])
    sim.command("CANCEL")
    sim.run(worker, 500)
    worker = restart(sim, worker)
    sim.run(worker, 500)
    assert pending(worker) == 1
    sim.run(worker, 100_000)
    assert bodies(sim) == []


def test_nothing_in_the_two_topics_blocks_a_partition(sim: Any) -> None:
    draw = random.Random(19)  # noqa: S311 - the same records in each run
    for number, headers in zip(range(1_000), mutated(draw), strict=False):
        topic, value = (NAMES.timers, NAMES.timer_state)[number % 2], draw.choice([None, b"", b"{}", b"x" * 2_000])
        sim.kafka.append(topic, value, key=b"k", partition=draw.randrange(TIMER_PARTITIONS), headers=headers)
    worker = sim.worker()
    sim.command(delay_ms=500)
    sim.run(worker, 5_000)
    assert b"body" in bodies(sim)
    for partition in range(TIMER_PARTITIONS):
        settle(sim, worker, partition)


class DiedError(Exception):
    """The process of the worker ends."""


def by_the_log(sim: Any) -> set[bytes]:
    """Return the ids of the messages that are delivered by the log alone, told once more and slowly."""
    delivered: set[bytes] = set()
    for partition in range(TIMER_PARTITIONS):
        live: dict[bytes, tuple[int, bytes, bool]] = {}  # generation, id, whether it recurs
        for record in sim.kafka.records(NAMES.timers, partition):
            headers = dict(record.headers())
            name, what, offset = headers.get("TIMER") or b"", headers.get("TIMER_DO"), record.offset()
            generation, uniq, recurs = live.get(name, (None, b"", False))
            if what == b"SET" or (what == b"SET-IF-ABSENT" and generation is None):
                live[name] = offset, headers["UNIQ_KEY"], "TIMER_REPEAT" in headers
            elif what == b"CANCEL":
                live.pop(name, None)
            elif what == b"NOW" and generation is not None:
                delivered.add(b"%b.%d" % (uniq, offset) if recurs else uniq)
                live = {each: told for each, told in live.items() if recurs or each != name}
            elif what == b"FIRE" and headers.get("TIMER_SET_AT") == b"%d" % (-1 if generation is None else generation):
                delivered.add(b"%b.%b" % (uniq, headers["DELIVER_AT_MS"]) if recurs else uniq)
                live.pop(name)
                if recurs:
                    live[name] = offset, uniq, True
    return delivered


@pytest.mark.parametrize("seed", range(12))
def test_whatever_dies_and_when_the_log_alone_says_what_is_delivered(sim: Any, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - the same program in each run
    deaths = 0

    def die(_: str) -> None:
        nonlocal deaths
        if deaths < 12 and dice.random() < 0.03:
            deaths += 1
            raise DiedError

    worker = sim.worker(on_point=die)

    def run(ms: float) -> None:
        nonlocal worker
        try:
            sim.run(worker, ms)
        except DiedError:
            sim.kill(worker)
            worker = sim.worker(on_point=die)

    for number in range(120):
        what = dice.choices(["SET", "SET-IF-ABSENT", "CANCEL", "NOW"], [4, 2, 2, 1])[0]
        headers: list[tuple[str, bytes | None]] = [("UNIQ_KEY", b"%d" % number)]
        recurs = number % 10 == 0
        headers += [("TIMER_REPEAT", b"%ds" % dice.randint(1, 4))] if recurs else []
        delay_ms = None if recurs else dice.randint(0, 2_500)
        sim.command(what, timer=f"n{dice.randrange(5)}", delay_ms=delay_ms, headers=headers)
        run(dice.choice([0, 5, 30, 300, 1_500]))
    for _ in range(20):
        run(2_500)
    for name in range(5):
        sim.command("CANCEL", timer=f"n{name}")
    for _ in range(20):
        run(2_500)
    assert deaths > 1
    deaths = 12
    run(2_500)
    counts = Counter(dict(record.headers())["UNIQ_KEY"] for record in sim.delivered())
    assert set(counts) == by_the_log(sim)
    if sim.exactly_once:
        assert set(counts.values()) == {1}
    assert pending(worker) == 0


@pytest.mark.parametrize("refusing", [NAMES.schedule, "orders"])
def test_a_message_that_was_parked_in_the_log_is_delivered_when_it_is_sent_again(sim: Any, refusing: str) -> None:
    worker = sim.worker()
    sim.kafka.fail_produce(TOO_LARGE, topic=refusing, count=2)
    sim.command(delay_ms=500)
    sim.until(worker, sim.parked, 10_000)
    [parked] = sim.kafka.records(NAMES.parked)
    again = redriven_parked(parked, NAMES, "plan.0.0")
    sim.kafka.append(again.topic, again.value, partition=again.partition, key=again.key, headers=again.headers)
    sim.run(worker, 5_000)
    assert bodies(sim) == [b"body"]


@pytest.mark.parametrize("what", ["CANCEL", "NOW"])
def test_a_command_that_was_parked_is_no_message_to_send_again(sim: Any, what: str) -> None:
    worker = sim.worker()
    sim.command(what, timer="")
    sim.until(worker, sim.parked, 20_000)
    [parked] = sim.kafka.records(NAMES.parked)
    with pytest.raises(MessageError, match="has no message"):
        redriven_parked(parked, NAMES, "plan.0.0")
    planner = Planner(NAMES.parked, RedriveRules(), RedriveLog(NAMES.parked), None)
    planner.add(parked, decode(parked.headers(), trusted=True))
    held_back = planner.plan(cluster_id="", created_ms=0, choice={}).held_back
    assert [each.reason for each in held_back] == ["no-message"]
