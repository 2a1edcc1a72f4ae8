"""What waits, retries, is parked or unread; and what the doctor found."""

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.admin.doctor import Finding, Severity
from rocketshim.console import context, observed
from rocketshim.console.context import Templates
from rocketshim.console.observed import Sparkline, leaving, sparkline
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.history import EVERY_MS
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.snapshot import DelayQueue, GroupStanding, PartitionStanding, WorkerSnapshot
from rocketshim_topics import DelayLevels
from rocketshim_topics.group_log import ClaimedQueue, ClaimRecord, LeaseEntry, RenewRecord, encode_group_record

from .conftest import NAMES, RETRY, Stage, dead_letter
from .test_dead_letters import apply, text_of

GOLDEN = Path(__file__).parent / "golden"
HEADERS: list[tuple[str, bytes | None]] = [("REAL_TOPIC", b"orders")]


def commit(stage: Stage, group: str, topic: str, partition: int, offset: int) -> None:
    consumer = stage.kafka.consumer({"bootstrap.servers": "memory:1", "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def test_the_console_looks_at_the_cluster_when_it_starts(stage: Stage) -> None:
    with stage.client():  # starts the application, as a server does
        [console] = stage.consoles
        assert console.sampler.is_running
        with console.sampler.watch() as watch:
            assert watch.wait_newer(None, 60.0) is not None
    assert not console.sampler.is_running


def test_the_overview_counts_by_offsets_and_refreshes_itself(stage: Stage) -> None:
    stage.add_dead(7)
    stage.kafka.append(NAMES.schedule, b"x", partition=3, headers=HEADERS)
    stage.kafka.append(NAMES.parked, b"x", headers=[("PARK_REASON", b"forbidden-target")])
    stage.kafka.append(RETRY, b"x", partition=0, headers=dead_letter(1))
    stage.kafka.append(RETRY, b"x", partition=0, headers=dead_letter(2))
    commit(stage, "payments", RETRY, 0, 1)
    browser = stage.browser()
    seen = text_of(browser.get("/").text)
    for expected in ("Waiting 1", "Dead letters 7 0 new in 24 h", "Parked 1", "Groups behind 1 of 1", "As of"):
        assert expected in seen
    tiles = browser.get("/tiles").text
    assert tiles.startswith('<div id="tiles" hx-get="/tiles" hx-trigger="every 5s"')
    assert "<html" not in tiles


def test_the_overview_does_not_wait_for_a_long_first_look_and_asks_again_soon(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, look_up = threading.Event(), OffsetLookup.look_up

    def late(*given: Any) -> Any:
        ends.wait(60)
        return look_up(*given)

    monkeypatch.setattr(OffsetLookup, "look_up", late)
    monkeypatch.setattr(context, "_SOON_S", 0.0)
    browser = stage.browser()
    tiles = browser.get("/tiles").text
    assert "The first look at the cluster has not ended." in tiles
    assert 'hx-trigger="every 1s"' in tiles
    ends.set()
    assert "As of" in browser.get("/groups").text, "this page waits for it"
    assert 'hx-trigger="every 5s"' in browser.get("/tiles").text


def test_the_overview_begins_with_what_is_wrong_now_and_what_helps(stage: Stage) -> None:
    assert "✓ All is well" in text_of(stage.browser().get("/").text)
    stage.kafka.append(NAMES.schedule, b"x", partition=3, headers=[("REAL_TOPIC", b"nowhere")])
    [console] = stage.consoles
    browser = stage.browser()
    with console.sampler.watch() as watch:
        old = watch.newest()
        assert watch.wait_newer(old, 60.0) is not None
    page = browser.get("/").text
    for expected in ("! nowhere the topic does not exist", "rocketshim init --topic nowhere"):
        assert expected in text_of(page)
    assert '<a href="/waiting/records">nowhere</a>' in page


@pytest.mark.parametrize(
    ("check", "subject", "page"),
    [
        ("queue-blocked", "payments on orders/3", "/groups/payments"),
        ("group-behind", "payments", "/groups/payments"),
        ("dead-letters-rising", "payments", f"/dead/{NAMES.dead_letter('payments')}"),
        ("worker-missing", "rmq.sched", "/workers"),
        ("timers-late", "rmq.timers", "/timers"),
        ("parked", "rmq.parked", "/parked"),
        ("in-sync", "orders", None),
    ],
)
def test_a_finding_leads_to_the_page_of_what_it_is_about(
    stage: Stage, check: str, subject: str, page: str | None
) -> None:
    stage.browser()
    [console] = stage.consoles
    assert observed._page_of(console, Finding(check, Severity.ERROR, subject, "", "", "")) == page


def test_the_histogram_counts_by_append_times_without_reading_a_record(stage: Stage) -> None:
    clock = stage.kafka.clock
    queues = []
    for partition, count in ((2, 3), (15, 4)):  # 10 s and 30 min
        delay_ms = DelayLevels.default().queue_delay_ms(partition)
        assert delay_ms is not None
        for _ in range(count):
            stage.kafka.append(NAMES.schedule, b"x", partition=partition, headers=HEADERS)
            clock.advance(4_000)  # type: ignore[attr-defined]
        standing = PartitionStanding(NAMES.schedule, partition, 0, 0, count)
        queues.append(DelayQueue(partition, delay_ms, standing))
    with TopicReader("memory:1", clients=stage.kafka.clients(blocking=False)) as reader:
        bars = leaving(reader, queues, clock.wall_ms())
    assert sum(bars.values()) == 7
    found = {within: count for within, count in bars.items() if count}
    assert found == {"due now": 3, "30 min": 4}
    shown = Templates("", lambda: 0).drawn("histogram", {"due now": 3, "10 s": 0, "later": 4}, 4)
    svg = re.search(r"<svg.*</svg>", shown, flags=re.DOTALL)
    assert svg is not None
    assert svg[0] + "\n" == (GOLDEN / "histogram.svg").read_text()


def test_a_sparkline_is_drawn_to_scale_with_a_gap_where_nobody_watched_and_says_its_numbers() -> None:
    now_ms = 10_000_000
    points = [(now_ms - 3_600_000, 0.0), (now_ms - 3_570_000, 40.0), (now_ms - 60_000, 20.0), (now_ms - 30_000, 4.5)]
    curve = sparkline("a: read a second", points, now_ms)
    assert curve.path == "M0.0 23.0h0L1.0 1.0M118.0 12.0h0L119.0 20.5"
    assert curve.label == "a: read a second, the last 60 min: now 4.5, most 40, least 0"
    assert curve.now == "4.5"
    shown = Templates("", lambda: 0).drawn("spark", curve)
    svg = re.search(r"<svg.*</svg>", shown, flags=re.DOTALL)
    assert svg is not None
    assert svg[0] + "\n" == (GOLDEN / "sparkline.svg").read_text()


def test_a_curve_without_a_change_is_a_line_and_a_single_point_is_a_dot() -> None:
    assert sparkline("x", [(0, 0.0), (30_000, 0.0)], 30_000).path == "M114.0 23.0h0L120.0 23.0"
    assert sparkline("x", [(0, 1_234.0)], 0) == Sparkline(
        "x, the last 1 min: now 1,234, most 1,234, least 1,234", "M120.0 1.0h0", "1,234"
    )
    assert sparkline("x", [], 0) == Sparkline("", "", "–")


def test_what_was_before_a_rest_is_not_called_now() -> None:
    assert "now –, most 7" in sparkline("x", [(0, 7.0), (30_000, 7.0)], 1_200_000).label


def test_the_overview_and_the_pages_of_groups_show_the_last_hour(stage: Stage) -> None:
    stage.kafka.append(RETRY, b"x", partition=0, headers=dead_letter(1))
    commit(stage, "payments", RETRY, 0, 0)
    browser = stage.browser()
    for page in ("/", "/groups", "/groups/payments"):
        seen = browser.get(page).text
        assert "they begin 30 s after the first one" in text_of(seen)
        assert '<svg class="spark"' not in seen
    [console] = stage.consoles
    snapshot = console.snapshot()
    for step in range(1, 4):
        [standing] = snapshot.groups
        moved = replace(standing, partitions=tuple(replace(each, position=30 * step) for each in standing.partitions))
        console.sampler.history.add(replace(snapshot, at_ms=snapshot.at_ms + step * EVERY_MS, groups=(moved,)))
    overview = browser.get("/tiles").text
    assert len(re.findall(r'<svg class="spark" role="img" aria-label="[^"]+: now [^"]+"', overview)) == 6
    assert "Read 1 a second" in text_of(overview)
    assert "they begin" not in overview
    listed = browser.get("/groups").text
    assert 'aria-label="payments: read a second, the last ' in listed
    assert 'aria-label="payments: offsets behind, the last ' in listed
    one = browser.get("/groups/payments").text
    assert one.count('<svg class="spark"') == 4
    assert 'aria-label="payments: retries a minute, the last ' in one


def test_no_more_than_a_hundred_groups_of_a_list_have_curves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "_MOST_CURVES", 0)
    stage.kafka.append(RETRY, b"x", partition=0, headers=dead_letter(1))
    commit(stage, "payments", RETRY, 0, 0)
    seen = text_of(stage.browser().get("/groups").text)
    assert "payments 1 " in seen
    assert "The first 0 groups have curves" in seen


def test_waiting_records_are_listed_by_target_and_condition(stage: Stage) -> None:
    stage.kafka.append(NAMES.schedule, b"done", partition=3, headers=HEADERS)
    stage.kafka.append(NAMES.schedule, b"x", partition=3, headers=[*HEADERS, ("UNIQ_KEY", b"one"), ("TAGS", b"paid")])
    stage.kafka.append(NAMES.schedule, b"x", partition=4, headers=[("REAL_TOPIC", b"bills"), ("UNIQ_KEY", b"two")])
    commit(stage, NAMES.worker_group, NAMES.schedule, 3, 1)
    browser = stage.browser()
    assert "3/1" in text_of(browser.get("/waiting/records").text)
    assert "3/0" not in text_of(browser.get("/waiting/records").text)
    by_target = text_of(browser.get("/waiting/records", params={"target": "bills"}).text)
    assert ("two" in by_target, "one" in by_target) == (True, False)
    by_tag = text_of(browser.get("/waiting/records", params={"tags": "paid"}).text)
    assert ("two" in by_tag, "one" in by_tag) == (False, True)
    page = text_of(browser.get("/waiting").text)
    assert "When waiting records leave their queues" in page
    assert "delayed stats" in page


def test_only_what_waits_is_read_for_a_list(stage: Stage) -> None:
    for _ in range(60):
        stage.kafka.append(NAMES.schedule, b"delivered", partition=3, headers=HEADERS)
    stage.kafka.append(NAMES.schedule, b"x", partition=3, headers=HEADERS)
    commit(stage, NAMES.worker_group, NAMES.schedule, 3, 60)
    assert "Everything was read (1 record," in text_of(stage.browser().get("/waiting/records").text)


def test_delivered_records_are_not_listed_as_waiting_where_the_workers_positions_are_hidden(stage: Stage) -> None:
    stage.kafka.append(NAMES.schedule, b"delivered", partition=3, headers=HEADERS)
    commit(stage, NAMES.worker_group, NAMES.schedule, 3, 1)
    clients = stage.kafka.clients(blocking=False)

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        if settings["group.id"] == NAMES.worker_group:
            made.committed = denied  # type: ignore[method-assign]
        return made

    def denied(*_: object, **__: object) -> Any:
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    browser = stage.browser(replace(clients, consumer=consumer))
    for page in ("/waiting/records", "/retrying/payments"):
        assert browser.get(page).status_code == 403


def test_retries_show_what_waits_and_what_came_back(stage: Stage) -> None:
    stage.kafka.append(NAMES.schedule, b"x", partition=5, headers=dead_letter(1, real_topic="%RETRY%payments"))
    stage.kafka.append(NAMES.schedule, b"x", partition=5, headers=dead_letter(2, consumer_group="other"))
    stage.kafka.append(RETRY, b"x", partition=0, headers=dead_letter(3, reconsume_times=2))
    seen = text_of(stage.browser().get("/retrying/payments").text)
    assert "m1" in seen
    assert "m2" not in seen
    assert "m3" in seen
    assert stage.browser().get("/retrying/unknown").status_code == 404


def test_parked_records_are_counted_by_reason(stage: Stage) -> None:
    for reason in (b"forbidden-target", b"forbidden-target", b"malformed"):
        stage.kafka.append(NAMES.parked, b"x", headers=[("PARK_REASON", reason), ("REAL_TOPIC", b"orders")])
    seen = text_of(stage.browser().get("/parked").text)
    assert "2 forbidden-target" in seen
    assert "1 malformed" in seen


def test_parked_records_are_sent_again_by_a_plan_and_each_once(
    stage: Stage, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    headers: list[tuple[str, bytes | None]] = [("PARK_REASON", b"forbidden-target"), ("UNIQ_KEY", b"m1")]
    stage.kafka.append(NAMES.parked, b"x", headers=[*headers, ("REAL_TOPIC", b"orders")])
    stage.kafka.append(NAMES.parked, b"no target", headers=headers)
    stage.kafka.append(NAMES.parked, b"other", headers=[("PARK_REASON", b"malformed"), ("REAL_TOPIC", b"orders")])
    browser = stage.browser(operate=True)
    assert "PARK_REASON = &#39;forbidden-target&#39;" in browser.get("/parked").text
    where = {"where": "PARK_REASON = 'forbidden-target'"}
    plan = browser.post(f"/dead/{NAMES.parked}/plans", data=where).headers["location"]
    page = text_of(browser.get(plan).text)
    assert "Send again 1 record of rmq.parked ; 1 held back" in page
    assert "1 held back: no-target" in page
    for left in ("1", "0"):
        apply(browser, plan, wait_for, count_typed=left)
    sent = stage.kafka.records(NAMES.schedule)
    assert [record.value() for record in sent] == [b"x"]
    seen = text_of(browser.get(f"{plan}/progress").text)
    assert "Applied" in seen
    assert "failed again" not in seen
    assert "forbidden-target" in browser.get("/parked").text, "the record without a target is still there"


def test_a_group_shows_its_lag_and_its_locks_with_owner_token_and_lease(stage: Stage) -> None:
    stage.kafka.append(RETRY, b"x", partition=0, headers=dead_letter(1))
    commit(stage, "payments", RETRY, 0, 0)
    base = stage.kafka.clock.wall_ms()
    claim = ClaimRecord(
        client_id=f"<b>{'x' * 3}", incarnation="i", seq=1, lease_ms=30_000, base=base,
        queues=(ClaimedQueue(topic="orders", queue_id=4),),
    )  # fmt: skip
    stage.kafka.append(NAMES.group_log("payments"), encode_group_record(claim))
    failing = LeaseEntry(
        topic="orders", queue_id=4, token=base, confirmed_offset=0, next_offset=7, reconsume_counts=((7, 80),)
    )
    renew = RenewRecord(**{**dict(claim), "kind": "renew", "seq": 2, "queues": (failing,)})
    stage.kafka.append(NAMES.group_log("payments"), encode_group_record(renew))
    assert 'href="/message/orders/4/7"' in stage.browser().get("/groups/payments").text
    assert "<b>xxx" not in stage.browser().get("/groups/payments").text
    seen = text_of(stage.browser().get("/groups/payments").text)
    assert f"{RETRY} 0 0 1 1" in seen
    assert f"orders/4 <b>xxx {base} 30 s" in seen
    assert "rocketshim group lag payments" in seen
    assert "Groups with a retry topic" in text_of(stage.browser().get("/groups").text)
    assert stage.browser().get("/groups/unknown").status_code == 404


def test_a_group_that_the_snapshot_does_not_have_shows_what_it_has_committed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = GroupStanding("pay.v2", "STABLE", ("c@h",), (PartitionStanding("orders", 3, 7, 0, 9, "c@h"),))
    monkeypatch.setattr(observed, "_described", lambda *_: (found, None))
    seen = text_of(stage.browser().get("/groups/pay.v2").text)
    assert "orders 3 7 9 2 – 0" in seen
    assert "c@h 1 2" in seen, "a member with its partitions and their lag"
    assert "has committed nothing" not in seen


def test_the_queues_of_workers_with_one_name_are_counted_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rocketshim-worker@10.0.0.1"
    rows = tuple(PartitionStanding(NAMES.schedule, number, 0, 0, 0, name) for number in range(32))
    found = GroupStanding(NAMES.worker_group, "STABLE", (name, name, "other@h"), rows)
    monkeypatch.setattr(observed, "_described", lambda *_: (found, None))
    seen = text_of(stage.browser().get("/workers").text)
    assert "3 members" in seen
    assert f"{name}, 2 members of this name, 32 queues with a position other@h, 0 queues" in seen


def test_a_time_outside_the_calendar_is_shown_as_a_number(stage: Stage) -> None:
    headers: list[tuple[str, bytes | None]] = [*HEADERS, ("DELIVER_AT_MS", b"%d" % 2**62)]
    stage.kafka.append(NAMES.schedule, b"x", partition=3, headers=headers)
    assert f"{2**62} ms after 1970" in stage.browser().get("/waiting/records").text


def test_workers_are_shown_with_what_they_avoid_and_how_late_the_levels_are(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.kafka.append(NAMES.schedule, b"x", partition=3, headers=HEADERS)
    browser = stage.browser()
    assert "No worker is asked." in browser.get("/workers").text
    said = (
        WorkerSnapshot("http://a:1", "Connection refused"),
        WorkerSnapshot(
            "http://b:1", mode="exactly-once", is_ready=True, queues=32, held=3, late_ms=61_000, delivered=1_234,
            avoided={"orders": f"<b>{RETRY}"}, parked={"bad-number": 2, "unknown-topic": 0},
        ),
        WorkerSnapshot("http://c:1", mode="at-least-once"),
    )  # fmt: skip
    monkeypatch.setattr(context, "ask_workers", lambda urls: said if urls else ())
    browser = stage.browser(worker_urls=("http://a:1", "http://b:1", "http://c:1"))
    page = browser.get("/workers").text
    assert f"<b>{RETRY}" not in page
    seen = text_of(page)
    assert "http://a:1 ✗ Connection refused" in seen
    assert "http://b:1 ✓ ready exactly-once 32 3 61.0 s 1,234 bad-number: 2" in seen
    assert "http://c:1 ✗ not ready at-least-once" in seen
    assert f"orders http://b:1 <b>{RETRY}" in seen
    assert re.search(r"30 s 1 \d+\.\d s 0", seen), seen
    assert "32 ms 0 0.0 s 0" in seen


def test_the_doctors_findings_are_kept_for_five_minutes(stage: Stage) -> None:
    browser = stage.browser()
    visits = browser.app.state.doctor  # type: ignore[attr-defined]
    assert browser.get("/doctor").status_code == 400
    visits.found = [Finding("check", Severity.ERROR, "orders", "what <b>", "the cost", "kafka-topics --fix")]
    visits.at_ms = visits.console.now_ms()
    page = browser.get("/doctor").text
    assert "what &lt;b&gt;" in page
    assert "kafka-topics --fix" in page
    visits.at_ms -= 300_001
    assert browser.get("/doctor").status_code == 400


def test_the_sampler_runs_only_after_somebody_looked(stage: Stage) -> None:
    browser = stage.browser()
    browser.get("/plans")
    assert not stage.consoles[-1].sampler.is_running
    browser.get("/")
    assert stage.consoles[-1].sampler.is_running
