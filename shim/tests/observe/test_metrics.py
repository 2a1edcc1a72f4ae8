"""The exporter's metrics say what is now; what is gone or not known has no series."""

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from rocketshim.admin.doctor import Finding, Severity
from rocketshim.metrics import metrics_text
from rocketshim.observe.exporter import ExporterState
from rocketshim.observe.snapshot import DelayQueue, GroupStanding, PartitionStanding, Snapshot, TopicSnapshot
from rocketshim_topics.coordinates import TopicPartitionKey

NOW_MS = 1_700_000_000_000
SNAPSHOT = Snapshot(
    at_ms=NOW_MS,
    queues=(DelayQueue(3, 10_000, PartitionStanding("S", 3, 4, 0, 9, first_unread_ms=NOW_MS - 12_000)),),
    groups=(
        GroupStanding(
            "pay",
            partitions=(
                PartitionStanding("orders", 0, 5, 0, 9, first_unread_ms=NOW_MS - 60_000),
                PartitionStanding("orders", 1, 2, 4, 6, first_unread_ms=NOW_MS - 5_000),
                PartitionStanding("bills", 0, 7, 0, 7),
                PartitionStanding("notes", 0, 1, 0, 7),
            ),
        ),
    ),
    dead=(TopicSnapshot("rmq.dlq.pay", "pay", kept=3, appended=17),),
    parked=TopicSnapshot("rmq.parked", None, kept=0, appended=2),
)
STATE = ExporterState(at_ns=0, every_ns=15_000_000_000, snapshot=SNAPSHOT)


def values(state: ExporterState) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and its labels' values."""
    return {
        (sample.name.removeprefix("rocketshim_"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics_text(state.metrics()))
        for sample in family.samples
    }


def test_a_snapshot_is_exported_by_queue_group_and_topic() -> None:
    assert values(STATE) == {
        ("exporter_up",): 1,
        ("exporter_round_timestamp_seconds",): NOW_MS / 1_000,
        ("exporter_clock_behind_seconds",): 0,
        ("doctor_up",): 0,
        ("schedule_waiting_offsets", "3"): 5,
        ("schedule_head_late_seconds", "3"): 2,
        ("schedule_lost_offsets", "3"): 0,
        ("dead_letters_appended_total", "pay"): 17,
        ("dead_letters_kept_offsets", "pay"): 3,
        ("parked_appended_total",): 2,
        ("parked_kept_offsets",): 0,
        ("group_behind_offsets", "pay", "orders"): 6,
        ("group_behind_offsets", "pay", "bills"): 0,
        ("group_behind_offsets", "pay", "notes"): 6,
        ("group_lost_offsets", "pay", "orders"): 2,
        ("group_lost_offsets", "pay", "bills"): 0,
        ("group_lost_offsets", "pay", "notes"): 0,
        ("group_oldest_unread_seconds", "pay", "orders"): 60,
        ("group_oldest_unread_seconds", "pay", "bills"): 0,
    }


def test_a_clock_that_is_behind_is_named_and_leaves_no_age_that_looks_like_in_time() -> None:
    found = values(replace(STATE, snapshot=replace(SNAPSHOT, clock_behind_ms=86_400_000)))
    assert found["exporter_clock_behind_seconds",] == 86_400
    ages = {key for key in found if key[0] in {"schedule_head_late_seconds", "group_oldest_unread_seconds"}}
    assert ages == {("group_oldest_unread_seconds", "pay", "bills")}, "where everything is read"


def test_a_timer_log_that_no_worker_reads_shows_how_long_its_commands_have_waited() -> None:
    standing = PartitionStanding("rmq.timers", 2, 5, 0, 9, first_unread_ms=NOW_MS - 3_000)
    found = values(replace(STATE, snapshot=replace(SNAPSHOT, timers=(DelayQueue(2, 0, standing),))))
    assert {key: value for key, value in found.items() if key[0].startswith("timer_log")} == {
        ("timer_log_waiting_offsets", "2"): 4,
        ("timer_log_late_seconds", "2"): 3,
        ("timer_log_lost_offsets", "2"): 0,
    }


def test_a_round_that_failed_leaves_no_value_that_looks_like_a_new_one() -> None:
    assert values(replace(STATE, snapshot=replace(SNAPSHOT, error="no broker answered"))) == {
        ("exporter_up",): 0,
        ("doctor_up",): 0,
    }


def test_a_topic_with_a_partition_that_does_not_answer_has_no_value_so_that_no_counter_goes_back() -> None:
    """`increase` would take the return of the partition for as many new dead letters as the partition has ever had."""
    unknown = (TopicPartitionKey("rmq.dlq.pay", 1), TopicPartitionKey("rmq.parked", 0))
    found = values(replace(STATE, snapshot=replace(SNAPSHOT, unknown=unknown)))
    assert not [key for key in found if key[0].startswith(("dead_letters", "parked"))]
    assert found["group_behind_offsets", "pay", "orders"] == 6


def test_a_group_does_not_count_as_done_with_a_topic_that_answers_in_part() -> None:
    unknown = (TopicPartitionKey("bills", 1), TopicPartitionKey("orders", 2))
    found = values(replace(STATE, snapshot=replace(SNAPSHOT, unknown=unknown)))
    ages = {key[1:]: value for key, value in found.items() if key[0] == "group_oldest_unread_seconds"}
    assert ages == {("pay", "orders"): 60}


def test_findings_are_counted_by_check_and_severity_and_vanish_when_fixed() -> None:
    def finding(check: str) -> Finding:
        return Finding(check, Severity.WARNING, "subject", "what", "cost", "fix")

    found = values(
        replace(STATE, findings=(finding("copies"), finding("copies"), finding("leaders")), is_examined=True)
    )
    assert {key[1:] for key in found if key[0] == "finding"} == {
        ("copies", "warning", "subject"),
        ("leaders", "warning", "subject"),
    }
    counted = {key[1:]: value for key, value in found.items() if key[0] == "doctor_findings"}
    assert counted == {("copies", "warning"): 2, ("leaders", "warning"): 1}
    well = values(replace(STATE, findings=(), is_examined=True))
    assert not [key for key in well if key[0] == "doctor_findings"]
    assert well["doctor_up",] == 1


def test_metrics_of_a_namespace_name_it() -> None:
    text = metrics_text(replace(STATE, namespace="shop").metrics())
    assert 'rocketshim_dead_letters_appended_total{group="pay",namespace="shop"} 17.0' in text


def test_ready_while_the_cluster_answers_and_live_while_rounds_are_made() -> None:
    assert (STATE.is_live(75_000_000_000), STATE.is_live(75_000_000_001)) == (True, False)
    failed = replace(STATE, snapshot=replace(SNAPSHOT, error="no broker answered"))
    assert (STATE.is_ready(0), failed.is_ready(0), failed.is_live(0)) == (True, False, True)
    shown: dict[str, Any] = STATE.shown(0)
    assert (shown["ready"], shown["findings"], shown["dead"][0]["appended"]) == (True, [], 17)
