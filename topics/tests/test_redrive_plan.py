"""Facts about `rocketshim_topics.redrive_plan`: a plan is frozen, says why not, and is itself again after its file."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketshim_topics import ConfigError, Envelope, OutgoingRecord, decode, encode
from rocketshim_topics.redrive_log import MarkRecord, RedriveLog, record_digest
from rocketshim_topics.redrive_plan import HeldBack, Planner, RedrivePlan, RedriveRules, redrive_id, redriven_record

SOURCE = "rmq.dlq.g"
RULES = RedriveRules(group="g")
TOPICS = {"rmq.retry.g", "orders", SOURCE}


def letter(store: Any, offset: int = 0, **fields: Any) -> Any:
    envelope = Envelope(
        shim=1, uniq_key=f"m{offset}", consumer_group="g", retry_topic="orders",
        origin_message_id=f"orders/0/{offset}", reconsume_times=17, fail_class="Timeout",
    )  # fmt: skip
    for name, value in fields.items():
        setattr(envelope, name, value)
    return store(OutgoingRecord(SOURCE, 0, b"k", b"v", encode(envelope)), offset=offset)


class Stored:
    """A record with an append time, which the contract does not need otherwise."""

    def __init__(self, record: Any, at_ms: int) -> None:
        self._record, self._at_ms = record, at_ms

    def timestamp(self) -> tuple[int, int]:
        return 2, self._at_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


def planned(records: list[Any], rules: RedriveRules = RULES, log: RedriveLog | None = None) -> RedrivePlan:
    planner = Planner(SOURCE, rules, log or RedriveLog(SOURCE), TOPICS)
    for record in records:
        planner.add(record, decode(record.headers(), trusted=True))
    return planner.plan(cluster_id="c", created_ms=1, choice={"where": "a = 'é'"})


def reasons(plan: RedrivePlan) -> list[str]:
    return [each.reason for each in plan.held_back]


def test_a_record_without_a_key_is_held_back_from_a_compacted_topic(store: Any) -> None:
    keyed, keyless = letter(store), store(OutgoingRecord(SOURCE, 0, None, b"v", letter(store, 1).headers()), offset=1)
    asked: list[str] = []

    def is_compacted(topic: str) -> bool:
        asked.append(topic)
        return topic == "orders"

    for rules, held_back in ((RedriveRules(to_source=True), ["no-key:orders"]), (RULES, [])):
        planner = Planner(SOURCE, rules, RedriveLog(SOURCE), TOPICS, is_compacted=is_compacted)
        for record in (keyed, keyless):
            planner.add(record, decode(record.headers(), trusted=True))
        assert reasons(planner.plan(cluster_id="c", created_ms=1, choice={})) == held_back
    assert asked == ["orders", "rmq.retry.g"], "only for the one without a key"


def test_a_parked_record_without_a_key_is_held_back_if_its_target_is_compacted(store: Any) -> None:
    planner = Planner("rmq.parked", RedriveRules(), RedriveLog("rmq.parked"), None, is_compacted="orders".__eq__)
    for offset, target in enumerate(("orders", "reports", "no topic")):
        headers = encode(Envelope(shim=1, real_topic=target, uniq_key=target, park_reason="target-refused"))
        record = store(OutgoingRecord("rmq.parked", 0, None, b"v", headers), offset=offset)
        planner.add(record, decode(record.headers(), trusted=True))
    plan = planner.plan(cluster_id="c", created_ms=1, choice={})
    assert [(each.offset, each.reason) for each in plan.held_back] == [(0, "no-key:orders")]
    assert len(plan.letters) == 2


def test_a_plan_freezes_place_digest_and_target(store: Any) -> None:
    record = letter(store, 7, fail_text="order 7 timed out")
    plan = planned([record])
    assert plan.letters == ((0, 7, record_digest(record), "rmq.retry.g", "Timeout", "m7", "order # timed out"),)
    assert planned([record], RedriveRules(to_source=True)).letters[0].target == "orders"
    assert planned([record], RedriveRules(action="discard")).letters[0].target == ""


def test_a_plan_from_before_plans_had_texts_keeps_its_id(store: Any) -> None:
    plan = planned([letter(store, 7)])
    old = {**json.loads(plan.to_json()), "id": "119271576028e48919c3"}
    assert [len(row) for row in old["letters"]] == [6]
    assert RedrivePlan.from_json(json.dumps(old)).letters == plan.letters


@pytest.mark.parametrize(
    ("fields", "rules", "reason"),
    [
        ({"replay_count": 3}, RULES, "replayed-too-often"),
        ({"replay_count": 0}, RedriveRules(group="g", max_replays=0), "replayed-too-often"),
        ({}, RedriveRules(group="nobody"), "no-topic:rmq.retry.nobody"),
        ({"consumer_group": None}, RedriveRules(), "missing-header:CONSUMER_GROUP"),
        ({"retry_topic": None}, RedriveRules(to_source=True), "missing-header:RETRY_TOPIC"),
        ({"retry_topic": "a/b"}, RedriveRules(to_source=True), "bad-name:RETRY_TOPIC"),
    ],
)
def test_what_would_not_be_sent_says_why(store: Any, fields: dict[str, Any], rules: RedriveRules, reason: str) -> None:
    plan = planned([letter(store, **fields)], rules)
    assert plan.letters == ()
    assert plan.held_back == (HeldBack(0, 0, reason, "Timeout"),)


def test_what_may_have_lost_its_mark_is_held_back_unless_it_is_asked_for_or_only_discarded(store: Any) -> None:
    log = RedriveLog(SOURCE)
    log.end, log.lost_until_ms = 12, 5_000
    old, new = (Stored(letter(store, offset), at_ms) for offset, at_ms in ((1, 4_999), (2, 5_000)))
    plan = planned([old, new], log=log)
    assert ([each.offset for each in plan.letters], reasons(plan), plan.log_end) == ([2], ["marks-lost"], 12)
    for rules in (RedriveRules(group="g", again=True), RedriveRules(action="discard")):
        assert len(planned([old, new], rules, log).letters) == 2
    assert RedrivePlan.from_json(plan.to_json()) == plan


def test_the_log_may_have_lost_marks_of_what_is_older_than_its_first_record_by_any_clock(store: Any) -> None:
    log = RedriveLog(SOURCE)
    record = Stored(letter(store), 100_000)
    assert not log.may_have_lost(record)
    log.lost_before(40_001)
    assert log.may_have_lost(record)
    log.lost_before(40_000)
    assert not log.may_have_lost(record)
    log.lost_before(None)
    assert log.may_have_lost(record)


def test_what_a_caller_knows_to_be_settled_is_held_back_with_its_repeats(store: Any) -> None:
    duplicates = [letter(store, offset, uniq_key="m", origin_message_id="orders/0/1") for offset in (1, 2)]
    for rules, expected in ((RULES, ["replayed-already", "repeat-of:0/1"]), (RedriveRules(group="g", again=True), [])):
        planner = Planner(SOURCE, rules, RedriveLog(SOURCE), None)
        for record, known in zip(duplicates, ("replayed-already", None), strict=True):
            planner.add(record, decode(record.headers(), trusted=True), known=known)
        assert reasons(planner.plan(cluster_id="c", created_ms=1, choice={}))[: len(expected)] == expected


def test_the_end_of_the_log_is_a_part_of_a_plan_and_a_plan_without_one_keeps_its_id(store: Any) -> None:
    plan = planned([letter(store)])
    without = {name: value for name, value in json.loads(plan.to_json()).items() if name != "log_end"}
    assert RedrivePlan.from_json(json.dumps(without)).id == plan.id
    assert plan.model_copy(update={"log_end": 3}).model_dump_json() != plan.model_dump_json()
    log = RedriveLog(SOURCE)
    log.end = 3
    assert planned([letter(store)], log=log).id != plan.id


def test_a_repeat_of_one_attempt_is_held_back_and_another_attempt_is_not(store: Any) -> None:
    one = letter(store, 1)
    repeat = letter(store, 2, uniq_key="m1", origin_message_id="orders/0/1")
    replayed = letter(store, 3, uniq_key="m1", origin_message_id="orders/0/1", replay_id="r", replay_count=1)
    plan = planned([one, repeat, replayed])
    assert [each.offset for each in plan.letters] == [1, 3]
    assert reasons(plan) == ["repeat-of:0/1"]


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("settled", [1, 2])
def test_a_repeat_of_what_was_settled_before_is_held_back(store: Any, settled: int, chosen: bool) -> None:
    duplicates = {offset: letter(store, offset, uniq_key="m", origin_message_id="orders/0/1") for offset in (1, 2)}
    digest = record_digest(duplicates[settled])
    mark = MarkRecord(source=SOURCE, plan="p", session="s", state="redriven", letters=((0, settled, digest),))
    log = RedriveLog(SOURCE, [mark])
    planner = Planner(SOURCE, RULES, log, TOPICS)
    for offset, record in duplicates.items():
        if chosen or offset != settled:
            planner.add(record, decode(record.headers(), trusted=True))
        else:
            planner.pass_over(record, decode(record.headers(), trusted=True))
    plan = planner.plan(cluster_id="c", created_ms=1, choice={})
    assert plan.letters == ()
    assert f"repeat-of:0/{settled}" in reasons(plan)
    assert len(planned(list(duplicates.values()), RedriveRules(group="g", again=True), log).letters) == 1


def test_a_letter_passed_over_that_is_not_settled_holds_nothing_back(store: Any) -> None:
    planner = Planner(SOURCE, RULES, RedriveLog(SOURCE), TOPICS)
    for offset, show in ((1, planner.pass_over), (2, planner.add)):
        record = letter(store, offset, uniq_key="m", origin_message_id="orders/0/1")
        show(record, decode(record.headers(), trusted=True))
    assert [each.offset for each in planner.plan(cluster_id="c", created_ms=1, choice={}).letters] == [2]


@pytest.mark.parametrize("state", ["redriven", "discarded"])
def test_what_was_settled_is_held_back_unless_asked_for(store: Any, state: Any) -> None:
    record = letter(store)
    mark = MarkRecord(source=SOURCE, plan="p", session="s", state=state, letters=((0, 0, record_digest(record)),))
    log = RedriveLog(SOURCE, [mark])
    assert reasons(planned([record], log=log)) == [f"{state}-by:p"]
    assert reasons(planned([record], RedriveRules(group="g", again=True), log=log)) == []
    assert reasons(planned([letter(store, fail_class="Other")], log=log)) == [], "another record at the same place"


def test_a_malformed_letter_cannot_be_sent_but_discarded(store: Any) -> None:
    record = store(OutgoingRecord(SOURCE, 0, b"k", b"v", [("RECONSUME_TIMES", b"x")]))
    for rules, expected in ((RULES, ["malformed:bad-number:RECONSUME_TIMES"]), (RedriveRules(action="discard"), [])):
        planner = Planner(SOURCE, rules, RedriveLog(SOURCE), TOPICS)
        planner.add(record, Envelope(), malformed="bad-number:RECONSUME_TIMES")
        assert reasons(planner.plan(cluster_id="", created_ms=0, choice={})) == expected


def test_an_id_names_the_letter_and_its_plan(store: Any) -> None:
    plan = planned([letter(store, 7)])
    made = redriven_record(letter(store, 7), None, plan.rules, replay_id=redrive_id(plan.id, 0, 7))
    envelope = decode(made.headers, trusted=True)
    assert envelope.replay_id == f"{plan.id}.0.7"
    assert len(redrive_id("f" * 20, 2**31 - 1, 2**63 - 1)) <= 64
    assert (envelope.reconsume_times, envelope.uniq_key, envelope.hop_id) == (0, "m7", "rmq.dlq.g/0/7")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)  # the fixture is a pure function
@given(
    offsets=st.lists(st.integers(0, 30), unique=True, max_size=8),
    counts=st.lists(st.integers(0, 5), min_size=8, max_size=8),
)
def test_a_plan_read_from_its_file_is_the_same_and_every_chosen_letter_is_in_it_once(
    store: Any, offsets: list[int], counts: list[int]
) -> None:
    plan = planned([letter(store, at, replay_count=count) for at, count in zip(offsets, counts, strict=False)])
    assert RedrivePlan.from_json(plan.to_json()) == plan
    places = [each.offset for each in plan.letters] + [each.offset for each in plan.held_back]
    assert sorted(places) == sorted(offsets)
    summary = json.loads(plan.to_json())["summary"]
    assert summary["letters"] == len(plan.letters) == sum(summary["by_cause"].values())
    assert sum(summary["held_back"].values()) == len(plan.held_back)


def test_texts_that_are_not_utf_8_are_escaped_in_a_plan(store: Any) -> None:
    record = letter(store, uniq_key="m\udcff", fail_class="\udcfe")
    planner = Planner(SOURCE, RULES, RedriveLog(SOURCE), TOPICS)
    planner.add(record, decode(record.headers(), trusted=True))
    plan = planner.plan(cluster_id="c", created_ms=1, choice={"key": "\udcff"})
    assert RedrivePlan.from_json(plan.to_json()) == plan
    assert (plan.letters[0].id, plan.letters[0].cause, plan.choice) == (r"m\udcff", r"\udcfe", {"key": r"\udcff"})


def test_one_letter_stands_on_one_line(store: Any) -> None:
    text = planned([letter(store, offset) for offset in range(3)]).to_json()
    assert sum('"rmq.retry.g", "Timeout"' in line for line in text.splitlines()) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"Timeout"', '"Other"'),
        lambda text: text.replace('"rmq.retry.g", "Timeout"', '"orders", "Timeout"'),
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"id"', '"di"'),
        lambda text: text[:-10],
        lambda _text: "[]",
        lambda _text: "",
    ],
)
def test_a_plan_that_was_changed_is_refused(store: Any, change: Any) -> None:
    with pytest.raises(ConfigError):
        RedrivePlan.from_json(change(planned([letter(store)]).to_json()))
