"""From the causes of dead letters to a plan, ten of them, the verdict, and the rest."""

import html
import json
import os
import re
import resource
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from rocketshim.admin.redrive import read_log
from rocketshim.console.plans import Behind, Verdict
from rocketshim.console.reading import BoundedReading
from rocketshim.console.records import _indented
from rocketshim.console.runs import PlanFiles, PlanRun, PlanRuns
from rocketshim.errors import ConfigError
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka
from rocketshim.testing.partition_result import PartitionResult, named
from rocketshim_topics import DelayLevels, Layout
from rocketshim_topics.redrive_log import MarkRecord, encode_redrive_record
from rocketshim_topics.redrive_plan import RedrivePlan, RedriveRules
from rocketshim_topics.wire import REPLAY_ID, read_headers

from .conftest import DEAD, NAMES, RETRY, Stage, dead_letter

Wait = Callable[[Callable[[], bool]], None]


def text_of(page: str) -> str:
    """Return what a person reads."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))


def make_plan(browser: TestClient, **form: str) -> str:
    answer = browser.post(f"/dead/{DEAD}/plans", data=form)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def state(browser: TestClient, plan: str) -> str:
    return text_of(browser.get(f"{plan}/progress").text)


def apply(browser: TestClient, plan: str, wait_for: Wait, **form: str) -> str:
    answer = browser.post(f"{plan}/apply", data=form)
    assert answer.status_code == 303, answer.text
    wait_for(lambda: "applies it" not in state(browser, plan))
    return state(browser, plan)


def test_causes_are_counted_of_the_newest_and_lead_to_their_letters(stage: Stage) -> None:
    stage.add_dead(30)
    browser = stage.browser()
    page = browser.get(f"/dead/{DEAD}").text
    seen = text_of(page)
    assert "30 dead letters by cause; at most the newest 20,000 are counted" in seen
    assert "20 20 Timeout Timeout of order # 2023-11-14" in seen
    assert "Everything was read (30 records" in seen
    assert "rocketshim dlq stats --bootstrap memory:1 --topic rmq.dlq.payments" in seen
    link = html.unescape(re.findall(r'href="([^"]*letters[^"]*)">KeyError<', page)[0])
    listed = text_of(browser.get(link).text)
    assert listed.count("orders m") == 10
    assert "Timeout of order" not in listed
    assert "dlq ls" in listed


TEXTS = st.sampled_from(
    [
        *("order 1 was cancelled", "order 12 has the currency 'X'", "order 9 has the currency 'X' ", "order ", "7", ""),
        *(
            " after a space",
            "Betrag:\u00a01 000",
            "abc\u200bd of 3",
            "it's a \\ and a %",
            "\n",
            "x" * 130 + "a",
            "x" * 130,
        ),
    ]
)
CLASSES = st.sampled_from(["Refused", "Refused: order", "", "unknown", "a\u200bb", "malformed (x)"])


@given(st.lists(st.tuples(CLASSES, TEXTS), min_size=1, max_size=12))
@settings(max_examples=25, deadline=None)
def test_the_plan_of_a_cause_has_exactly_the_dead_letters_that_its_row_counts(causes: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        for fail_class, fail_text in causes:
            stage.add_dead(1, fail_class=fail_class or None, fail_text=fail_text)
        stage.kafka.append(DEAD, b"x", headers=[("SHIM", b"1"), ("RECONSUME_TIMES", b"many")])
        browser = stage.browser(operate=True)
        page = browser.get(f"/dead/{DEAD}").text
        rows = re.findall(
            r'<tr><td class="number">(\d+)</td>.*?<a href="([^"]*letters[^"]*)">.*?</tr>', page, re.DOTALL
        )
        assert sum(int(count) for count, _ in rows) == len(causes) + 1
        for (count, link), cause in zip(
            rows, re.findall(r'type="hidden" name="cause" value="(\w+)"', page), strict=True
        ):
            for action in ("redrive", "discard"):
                plan = stage.consoles[0].plans.load(make_plan(browser, cause=cause, action=action).rpartition("/")[2])
                assert len(plan.letters) + len(plan.held_back) == int(count)
            assert browser.get(html.unescape(link)).text.count("/message/") == int(count)
        for console in stage.consoles:
            console.close()


def test_the_review_of_a_plan_names_texts_and_counts_by_them(stage: Stage) -> None:
    stage.add_dead(2, fail_class="Refused", fail_text="order 7 was cancelled")
    stage.add_dead(3, fail_class="Refused", fail_text="order 8 has the currency 'X'")
    browser = stage.browser(operate=True)
    seen = text_of(browser.get(make_plan(browser)).text)
    assert "3 failed by Refused: order # has the currency 'X' 2 failed by Refused: order # was cancelled" in seen
    assert "0/0 Refused order # was cancelled rmq.retry.payments m0" in seen


def test_a_plan_selects_what_its_page_has_listed_also_by_invisible_characters(stage: Stage) -> None:
    stage.add_dead(2, tags="a\u00a0b\u200b<")
    browser = stage.browser(operate=True)
    page = browser.get(f"/dead/{DEAD}", params={"tags": "a\u00a0b\u200b<"}).text
    assert "2 dead letters by cause" in text_of(page)
    assert "\u200b" not in page
    tags = re.findall(r'type="hidden" name="tags" value="([^"]+)"', page)[-1]
    assert "Send again 2 records" in text_of(browser.get(make_plan(browser, tags=html.unescape(tags))).text)


def test_a_long_list_says_that_it_is_not_complete_and_goes_on_without_gap_or_repetition(stage: Stage) -> None:
    stage.add_dead(120)
    browser = stage.browser()
    found: list[str] = []
    url = f"/dead/{DEAD}/letters"
    pages = 0
    while url:
        page = browser.get(url).text
        found += re.findall(r"<td class=\"id\">(m\d+)</td>", page)
        more = re.findall(r'<a href="([^"]*)">Older records', page)
        assert ("Not complete" in page) == bool(more)
        url = html.unescape(more[0]) if more else ""
        pages += 1
    assert pages >= 3
    assert sorted(found) == sorted(f"m{number}" for number in range(120))


def test_a_page_of_causes_that_are_all_different_is_cut_and_says_so(stage: Stage) -> None:
    for number in range(210):
        stage.add_dead(1, fail_text=f"no customer {chr(ord('a') + number // 26)}{chr(ord('a') + number % 26)}")
    stage.add_dead(2, fail_class="Refused", fail_text="the most frequent")
    page = stage.browser().get(f"/dead/{DEAD}").text
    seen = text_of(page)
    assert page.count("<tr>") == 1 + 200
    assert "Not complete: 11 rarer causes are not listed" in seen
    assert "212 dead letters by cause" in seen
    assert "the most frequent" in seen


@pytest.mark.parametrize("cursor", ["x", "0:1", "0:1-2-3", "../..", "0:1-2;1:1-2", "9" * 300])
def test_a_cursor_that_we_did_not_make_is_refused(stage: Stage, cursor: str) -> None:
    assert stage.browser().get(f"/dead/{DEAD}/letters", params={"from": cursor}).status_code == 400


def test_a_topic_that_does_not_exist_and_a_broken_filter_are_explained(stage: Stage) -> None:
    browser = stage.browser()
    assert browser.get("/dead/nowhere").status_code == 404
    answer = browser.get(f"/dead/{DEAD}", params={"where": "price >"})
    assert answer.status_code == 400
    assert "a string in single quotes" in answer.text


def test_a_plan_is_reviewed_ten_are_sent_first_judged_and_then_the_rest(stage: Stage, wait_for: Wait) -> None:
    stage.add_dead(60)
    browser = stage.browser(operate=True)
    plan = make_plan(browser, where="FAIL_CLASS = 'Timeout'")
    page = text_of(browser.get(plan).text)
    assert "Send again 40 records" in page
    assert "Not applied yet" in page
    assert "40 go to rmq.retry.payments" in page
    assert "Send 10 first" in page
    assert stage.kafka.records(RETRY) == []

    seen = apply(browser, plan, wait_for, most="10")
    assert "10 of 40 applied" in seen
    assert "Send 10 first" not in seen
    assert "Send the rest" in seen
    assert "None of them has failed again so far" in seen
    assert "Whether payments has read them is not known" in seen
    assert len(stage.kafka.records(RETRY)) == 10

    commit(stage.kafka, "payments", RETRY, {0: 10, 1: 10})
    seen = state(browser, plan)
    assert "✓ None of them failed again: all were handled" in seen
    assert "payments has read everything in rmq.retry.payments" in seen

    refused = browser.post(f"{plan}/apply", data={"count_typed": "40"})
    assert (refused.status_code, "how many these are: 30" in refused.text) == (400, True)
    seen = apply(browser, plan, wait_for, count_typed="30", rate="1000", stop_ratio="0.5")
    assert "Applied" in seen
    assert "by this plan: 40 , by other plans: 0, left: 0" in seen
    sent = [dict(read_headers(record))["UNIQ_KEY"] for record in stage.kafka.records(RETRY)]
    assert len(sent) == len(set(sent)) == 40

    with TopicReader("memory:1", clients=stage.kafka.clients(blocking=False)) as topics:
        begin = read_log(topics, NAMES.redrive_log, DEAD).last_begin
    assert begin is not None
    assert begin.by.startswith("token (console of ")


def test_the_verdict_names_those_that_are_dead_again(stage: Stage, wait_for: Wait) -> None:
    """Whatever the brokers' clock says: here it is years behind this machine's."""
    stage.add_dead(20)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    apply(browser, plan, wait_for, most="10")
    for number, sent in enumerate(stage.kafka.records(RETRY)[:3]):
        headers = [*dead_letter(100 + number), (REPLAY_ID, dict(read_headers(sent))[REPLAY_ID])]
        stage.kafka.append(DEAD, b"again", headers=headers)
    assert "✗ 3 of them are dead letters again" in state(browser, plan)


def test_the_verdict_names_those_that_failed_again_and_wait_for_another_attempt(stage: Stage, wait_for: Wait) -> None:
    stage.add_dead(20)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    apply(browser, plan, wait_for, most="10")
    sent = stage.kafka.records(RETRY)
    for record in sent[:4]:
        again = (REPLAY_ID, dict(read_headers(record))[REPLAY_ID])
        stage.kafka.append(NAMES.schedule, b"x", partition=2, headers=[*dead_letter(1, reconsume_times=1), again])
    commit(stage.kafka, "payments", RETRY, {0: 10, 1: 10})
    seen = state(browser, plan)
    assert "✗ 4 of them failed again, and wait for another attempt: retries of payments" in seen
    assert "has read everything" in seen
    assert "None of them" not in seen
    commit(stage.kafka, NAMES.worker_group, NAMES.schedule, {2: 3})
    assert "✗ 1 of them failed again" in state(browser, plan)
    commit(stage.kafka, NAMES.worker_group, NAMES.schedule, {2: 4})
    assert "✓ None of them failed again" in state(browser, plan)


def without_leader(stage: Stage, topic: str, partition: int) -> Clients:
    """Return clients for which the leader of a partition does not answer requests for offsets."""
    clients = stage.kafka.clients(blocking=False)

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        ask, know = made.offsets_for_times, made.get_watermark_offsets

        def answer(partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
            away = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            return [
                PartitionResult.of(named(each), -1, error=away) if named(each) == (topic, partition) else each
                for each in ask(partitions, timeout)
            ]

        def bounds(asked: TopicPartition, **_: float) -> tuple[int, int]:
            if named(asked) == (topic, partition):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return know(asked)

        made.offsets_for_times = answer  # type: ignore[method-assign]
        made.get_watermark_offsets = bounds  # type: ignore[assignment,method-assign]
        return made

    return replace(clients, consumer=consumer)


def test_a_topic_without_a_leader_does_not_hide_the_dead_letters_of_the_others(stage: Stage) -> None:
    other = NAMES.dead_letter("others")
    stage.kafka.create_topic(other, 1)
    stage.kafka.append(other, b"x")
    stage.add_dead(4)
    seen = text_of(stage.browser(without_leader(stage, DEAD, 1)).get("/dead").text)
    assert f"others {other} 1 payments {DEAD} –" in seen


def test_a_partition_whose_leader_does_not_answer_is_not_taken_for_one_that_was_read(
    stage: Stage, wait_for: Wait
) -> None:
    stage.add_dead(20)
    plan = make_plan(stage.browser(operate=True))
    apply(stage.browser(operate=True), plan, wait_for, count_typed="20")
    commit(stage.kafka, "payments", RETRY, {0: 2**31, 1: 0})
    seen = state(stage.browser(without_leader(stage, RETRY, 1)), plan)
    assert "Whether payments has read them is not known" in seen
    assert "✓" not in seen


def test_the_verdict_knows_a_group_whose_topics_do_not_show_its_name(stage: Stage, wait_for: Wait) -> None:
    group, layout = "pay.v2", Layout(NAMES, DelayLevels.default())
    stage.kafka.create_topics(layout.for_group(group, with_log=False))
    stage.kafka.append(NAMES.dead_letter(group), b"x", headers=dead_letter(1, consumer_group=group))
    browser = stage.browser(operate=True)
    plan = browser.post(f"/dead/{NAMES.dead_letter(group)}/plans").headers["location"]
    apply(browser, plan, wait_for, count_typed="1")
    commit(stage.kafka, group, NAMES.retry(group), {0: 1})
    seen = state(browser, plan)
    assert "✓ None of them failed again" in seen
    assert f"pay.v2 has read everything in {NAMES.retry(group)}" in seen


def test_what_was_sent_is_counted_once_also_if_the_topic_was_made_again(stage: Stage, wait_for: Wait) -> None:
    stage.add_dead(2)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    apply(browser, plan, wait_for, count_typed="2")
    mark = MarkRecord(state="redriven", source=DEAD, plan="other", session="s", letters=((0, 0, "f" * 16),))
    stage.kafka.append(NAMES.redrive_log, encode_redrive_record(mark))
    assert "by this plan: 2 , by other plans: 0, left: 0" in state(browser, plan)


def commit(kafka: InMemoryKafka, group: str, topic: str, positions: dict[int, int]) -> None:
    consumer = kafka.consumer({"bootstrap.servers": "memory:1", "group.id": group})
    offsets = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def test_another_console_knows_what_was_sent_and_sends_the_rest_once(stage: Stage, wait_for: Wait) -> None:
    stage.add_dead(50)
    first = stage.browser(operate=True)
    plan = make_plan(first)
    apply(first, plan, wait_for, most="12")
    other = stage.browser(operate=True)
    assert "12 of 50 applied" in state(other, plan)
    apply(other, plan, wait_for, count_typed="38")
    sent = [dict(read_headers(record))["UNIQ_KEY"] for record in stage.kafka.records(RETRY)]
    assert len(sent) == len(set(sent)) == 50


def test_the_first_ones_are_sent_once_by_two_people_who_see_the_same_page(stage: Stage, wait_for: Wait) -> None:
    stage.add_dead(50)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    button = dict(re.findall(r'type="hidden" name="(most|left)" value="(\d+)"', browser.get(plan).text))
    assert button == {"most": "10", "left": "50"}
    apply(browser, plan, wait_for, **button)
    refused = stage.browser(operate=True).post(f"{plan}/apply", data=button)
    assert (refused.status_code, "40 are left. Look at the plan again" in refused.text) == (400, True)
    assert len(stage.kafka.records(RETRY)) == 10


def test_a_plan_for_which_there_is_no_room_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(ConfigError, match="the plan cannot be stored in"):
            PlanFiles(tmp_path).save(empty_plan(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_was_removed_meanwhile_does_not_hide_the_others(tmp_path: Path) -> None:
    PlanFiles(tmp_path).save(empty_plan(1))
    (tmp_path / f"{'0' * 20}.json").symlink_to(tmp_path / "gone")
    assert [plan.id for plan in PlanFiles(tmp_path).listed()] == [empty_plan(1).id]


def test_the_plans_file_is_the_one_of_the_command_line(stage: Stage) -> None:
    stage.add_dead(5)
    browser = stage.browser(operate=True)
    url = make_plan(browser, tags="")
    answer = browser.get(f"{url}/file")
    plan = RedrivePlan.from_json(answer.text)
    assert url == f"/plans/{plan.id}"
    assert answer.headers["content-disposition"] == f'attachment; filename="plan-{plan.id}.json"'
    assert plan.id in browser.get("/plans").text
    path = stage.folder / f"{plan.id}.json"
    path.write_text(path.read_text().replace("rmq.retry.payments", "somewhere"))
    assert (browser.get(url).status_code, "changed after it was made" in browser.get(url).text) == (400, True)
    assert browser.get("/plans").status_code == 200
    assert browser.post(f"{url}/apply", data={"most": "1"}).status_code == 400


def test_a_plan_in_the_file_of_a_reviewed_one_is_not_applied(stage: Stage) -> None:
    stage.add_dead(4)
    browser = stage.browser(operate=True)
    reviewed, other = (make_plan(browser, group=group) for group in ("payments", "evil"))
    file, swapped = (stage.folder / f"{plan.rpartition('/')[2]}.json" for plan in (reviewed, other))
    file.write_text(swapped.read_text())
    answer = browser.post(f"{reviewed}/apply", data={"most": "4"})
    assert (answer.status_code, "has another plan" in answer.text) == (400, True)
    assert browser.get("/plans").text.count("<td>evil") <= 1


def test_no_file_in_the_folder_of_plans_ends_their_list(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.add_dead(1)
    browser = stage.browser(operate=True)
    plan = make_plan(browser).rpartition("/")[2]
    for number, content in enumerate((b"[" * 200_000, b"\xff", b"", b'{"id": ' + b"9" * 5_000 + b"}", b"null")):
        (stage.folder / f"{number:020}.json").write_bytes(content)
    (stage.folder / f"{7:020}.json").mkdir()
    (stage.folder / f"{8:020}.json").symlink_to("/dev/zero")
    (stage.folder / f"{9:020}.json").symlink_to("nowhere")
    os.mkfifo(stage.folder / f"{10:020}.json")
    shown = browser.get("/plans")
    assert (shown.status_code, plan in shown.text) == (200, True)
    assert browser.get(f"/plans/{0:020}").status_code == 400
    monkeypatch.setattr(Path, "is_file", refuse)
    assert browser.get("/plans").status_code == 200


def refuse(path: Path) -> bool:
    """Behave as a file of another user in a folder that only they may look into."""
    raise PermissionError(path)


@pytest.mark.parametrize("rate", ["1e-320", "0", "-1", "nan", "inf"])
def test_a_rate_that_no_clock_can_keep_sends_nothing(stage: Stage, rate: str) -> None:
    stage.add_dead(4)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    answer = browser.post(f"{plan}/apply", data={"most": "1", "rate": rate})
    assert (answer.status_code, "the rate is" in answer.text) == (400, True)


def test_a_condition_that_would_take_long_is_refused(stage: Stage) -> None:
    browser = stage.browser()
    long = " OR ".join(f"x{number} CONTAINS 'aaaa'" for number in range(900))
    answer = browser.get(f"/dead/{DEAD}/letters", params={"where": long})
    assert (answer.status_code, "use the command line" in answer.text) == (400, True)


@pytest.mark.parametrize("plan", ["0" * 20, "..%2f..%2fetc", "x", "A" * 20])
def test_a_plan_that_is_not_there_is_not_found(stage: Stage, plan: str) -> None:
    assert stage.browser(operate=True).post(f"/plans/{plan}/apply", data={"most": "1"}).status_code == 404


def test_discarded_letters_are_only_marked(stage: Stage, wait_for: Wait) -> None:
    stage.add_dead(6)
    browser = stage.browser(operate=True)
    plan = make_plan(browser, action="discard", where="FAIL_CLASS = 'KeyError'")
    apply(browser, plan, wait_for, count_typed="2")
    assert stage.kafka.records(RETRY) == []
    assert "4 dead letters by cause" in text_of(browser.get(f"/dead/{DEAD}").text)
    assert "6 dead letters by cause" in text_of(browser.get(f"/dead/{DEAD}?all=1").text)


def test_a_run_is_stopped_by_its_button_and_a_second_one_of_the_topic_is_refused(stage: Stage, wait_for: Wait) -> None:
    stage.add_dead(40)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    other = make_plan(browser, where="FAIL_CLASS = 'KeyError'")
    browser.post(f"{plan}/apply", data={"count_typed": "40", "rate": "0.01"})
    refused = browser.post(f"{other}/apply", data={"most": "1"})
    assert (refused.status_code, "stop that run first" in refused.text) == (400, True)
    assert "hx-trigger" in browser.get(f"{plan}/progress").text
    assert browser.post(f"{plan}/stop").status_code == 303
    wait_for(lambda: "applies it" not in state(browser, plan))
    assert "It was stopped" in state(browser, plan)


def empty_plan(number: int = 0) -> RedrivePlan:
    return RedrivePlan(
        source=DEAD, cluster_id="another cluster", created_ms=number, rules=RedriveRules(), choice={}, letters=(),
        held_back=(),
    )  # fmt: skip


def start_run(runs: PlanRuns, plan: RedrivePlan) -> PlanRun:
    return runs.start(plan, by="ada", most=None, rate_per_s=None, stop_ratio=0.1)


def test_a_run_for_which_the_system_has_no_thread_left_keeps_no_other_one_out(
    stage: Stage, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    runs = PlanRuns("memory:1", client={}, clients=stage.kafka.clients(blocking=False))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            start_run(runs, empty_plan())
    wait_for(start_run(runs, empty_plan()).is_over.is_set)
    runs.close()


def test_runs_that_have_ended_are_not_kept_forever(stage: Stage, wait_for: Wait) -> None:
    runs = PlanRuns("memory:1", client={}, clients=stage.kafka.clients(blocking=False))
    plans = [empty_plan(number) for number in range(25)]
    for plan in plans:
        wait_for(start_run(runs, plan).is_over.is_set)
    assert [runs.of(plan.id) is None for plan in plans] == [True] * 4 + [False] * 21
    for plan in (plans[5], *plans[:2]):
        wait_for(start_run(runs, plan).is_over.is_set)
    assert runs.of(plans[5].id) is not None, "a plan that was applied again is as new as its last run"
    runs.close()


class EndsWhileShown(threading.Event):
    """The end of a run that comes between two questions of the same page."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked > 1


def test_a_plan_that_is_applied_is_not_read_from_its_file_for_each_look(stage: Stage, wait_for: Wait) -> None:
    """The page looks once a second, and parsing the file of 100,000 dead letters takes that long."""
    stage.add_dead(3)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    apply(browser, plan, wait_for, most="1")
    (stage.folder / f"{plan.rpartition('/')[2]}.json").unlink()
    assert "1 of 3 applied" in state(browser, plan)


def test_the_plans_of_a_list_are_read_one_after_the_other(stage: Stage) -> None:
    """A hundred plans of 10,000 dead letters would take 800 MiB."""
    files = PlanFiles(stage.folder)
    for number in range(2):
        files.save(empty_plan(number))
    plans = files.listed()
    next(plans)
    for path in stage.folder.iterdir():
        path.unlink()
    assert list(plans) == []


@pytest.mark.parametrize("page", ["", "/progress"])
def test_a_run_that_ends_while_its_page_is_made_is_shown_as_running(stage: Stage, wait_for: Wait, page: str) -> None:
    stage.add_dead(3)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    apply(browser, plan, wait_for, most="1")
    run = stage.consoles[0].runs.of(plan.rpartition("/")[2])
    run.is_over = EndsWhileShown()
    assert "applies it" in browser.get(plan + page).text


def test_a_run_that_fails_says_why(stage: Stage, wait_for: Wait) -> None:
    stage.add_dead(3)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    stage.kafka.delete_topic(RETRY)
    assert "no longer exist: rmq.retry.payments" in apply(browser, plan, wait_for, most="1")


@pytest.mark.parametrize(
    ("verdict", "every"),
    [
        (Verdict(1, 0, 0, 1, behind=(Behind("g", "t", 3),), dead_again=2), 5),
        (Verdict(1, 0, 0, 1, behind=(Behind("g", "t", 0),), failing=1), 30),
        (Verdict(1, 0, 0, 1, behind=(Behind("g", "t", 0),), dead_again=2), None),
        (Verdict(1, 0, 0, 1, behind=(Behind("g", "t", None),)), None),
    ],
)
def test_the_verdict_is_looked_up_again_until_nothing_can_change_any_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, every: int | None
) -> None:
    """Also after the first failure: what was read by then is not the last word."""
    stage.add_dead(1)
    browser = stage.browser(operate=True)
    plan = make_plan(browser)
    read = BoundedReading(None, {})  # type: ignore[arg-type]  # nothing is left to read
    list(read)
    monkeypatch.setattr("rocketshim.console.plans.verdict", lambda *_: replace(verdict, read=read, at_ms=1))
    page = browser.get(f"{plan}/progress").text
    assert re.findall(r'hx-trigger="every (\d+)s"', page) == ([] if every is None else [str(every)])
    assert "As of (UTC) 1970-01-01 00:00:00" in text_of(page)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
)


@given(JSON_VALUES, st.booleans())
def test_json_is_indented_without_a_change_but_of_blanks(value: Any, ascii_only: bool) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only)
    shown = _indented(written)
    if shown is not None:
        assert json.dumps(json.loads(shown), ensure_ascii=ascii_only) == written
        assert shown == (written if not value else json.dumps(value, ensure_ascii=ascii_only, indent=2))


def test_numbers_and_repeated_names_of_a_json_body_stay_as_they_are_written() -> None:
    assert _indented('{"a":1.000000000000000001,"a": 1E400}') == '{\n  "a": 1.000000000000000001,\n  "a": 1E400\n}'
    assert [_indented(text) for text in ("7", "{}", "not json", "[" * 99 + "]" * 99, "[" * 60_000)] == [None] * 5
