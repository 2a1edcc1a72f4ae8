"""The layout says how topics have to be; the comparison says what is missing, and what would lose messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim_topics import ConfigError, DelayLevels, Layout, TopicNames, TopicSpec, TopicState
from rocketshim_topics.layout import HEADROOM_BYTES, compare

DAY_MS = 86_400_000
LAYOUT = Layout(TopicNames(), DelayLevels.default())


def state_of(spec: TopicSpec, **changes: str) -> TopicState:
    return TopicState(spec.partitions, {**spec.config, "unrelated": "x", **changes})


def test_schedule_topic() -> None:
    spec = Layout(TopicNames("pay"), DelayLevels.default(), lanes=3).schedule()
    assert (spec.name, spec.partitions, spec.partition_step) == ("pay.SCHEDULE_TOPIC_XXXX", 96, 32)
    assert spec.config == {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(2 * 7_200_000 + 7 * DAY_MS),
        "retention.bytes": "-1",
        "max.message.bytes": str(1_048_588 + 65_536),
    }
    assert spec.init_command == "rocketshim init --namespace pay --lanes 3"


def test_retention_of_the_schedule_topic_grows_with_the_longest_level_and_the_outage_budget() -> None:
    layout = Layout(TopicNames(), DelayLevels.parse("40d 1s"), outage_budget_ms=DAY_MS)
    assert layout.schedule().config["retention.ms"] == str(81 * DAY_MS)
    endless = Layout(TopicNames(), DelayLevels((2**63 - 1,)))
    assert endless.schedule().config["retention.ms"] == str(2**63 - 1)


def test_topics_of_a_group() -> None:
    retry, letters, log = LAYOUT.for_group("pay ments", with_log=True)
    assert [spec.name.split("pay-ments")[0] for spec in (retry, letters, log)] == [
        "rmq.retry.",
        "rmq.dlq.",
        "rmq.group.",
    ]
    assert [spec.partitions for spec in (retry, letters, log)] == [1, 1, 1]
    assert (retry.config["retention.ms"], letters.config["retention.ms"]) == (str(7 * DAY_MS), str(30 * DAY_MS))
    assert log.config == {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(DAY_MS),
        "segment.ms": "600000",
    }
    assert {spec.init_command for spec in (retry, letters)} == {"rocketshim init --group 'pay ments'"}
    assert log.init_command == "rocketshim init --group 'pay ments' --with-log"
    assert LAYOUT.for_group("g", with_log=False) == (LAYOUT.retry("g"), LAYOUT.dead_letter("g"))


def test_shared_topics() -> None:
    schedule, parked = LAYOUT.shared()
    assert (schedule.name, parked.name, parked.partitions) == ("SCHEDULE_TOPIC_XXXX", "rmq.parked", 1)


def test_every_topic_that_takes_a_hop_has_headroom_over_the_largest_source() -> None:
    layout = Layout(TopicNames(), DelayLevels.default(), max_message_bytes=5_000_000)
    for spec in (*layout.shared(), *layout.for_group("g", with_log=False)):
        assert spec.config["max.message.bytes"] == str(5_000_000 + HEADROOM_BYTES)
        assert spec.config["cleanup.policy"] == "delete"


@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": 0},
        {"max_message_bytes": 0},
        {"max_message_bytes": 2**31 - 1},
        {"retry_partitions": 0},
        {"dead_letter_partitions": -1},
        {"replication_factor": 0},
        {"outage_budget_ms": -1},
    ],
)
def test_impossible_layout_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Layout(TopicNames(), DelayLevels.default(), **wrong)


def test_what_is_not_there_is_missing_and_nothing_else() -> None:
    specs = (*LAYOUT.shared(), *LAYOUT.timers(), *LAYOUT.for_group("g", with_log=True))
    plan = compare(specs, {specs[1].name: state_of(specs[1])})
    assert [spec.name for spec in plan.missing] == [spec.name for spec in specs if spec is not specs[1]]
    assert not plan.differences
    assert not plan.is_done


def test_what_is_there_as_specified_leaves_nothing_to_do() -> None:
    specs = (*LAYOUT.shared(), *LAYOUT.timers(), *LAYOUT.for_group("g", with_log=True))
    plan = compare(specs, {spec.name: state_of(spec) for spec in specs}, grow=True, fix=True)
    assert plan.is_done
    assert not plan.fatal
    assert plan.lines()[0] == "exists  SCHEDULE_TOPIC_XXXX (delay queues)"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", "9999999999999"),
        ("max.message.bytes", "99999999"),
        ("retention.bytes", "-1"),
    ],
)
def test_more_than_specified_is_fine(setting: str, value: str) -> None:
    spec = LAYOUT.schedule()
    assert not compare([spec], {spec.name: state_of(spec, **{setting: value})}).differences


@pytest.mark.parametrize(
    ("setting", "value", "fatal"),
    [
        ("retention.ms", "1000", False),
        ("retention.bytes", "1000000", False),
        ("max.message.bytes", "1048588", False),
        ("max.message.bytes", "many", False),
        ("message.timestamp.type", "CreateTime", True),
        ("cleanup.policy", "compact", True),
        ("cleanup.policy", "compact,delete", True),
    ],
)
def test_less_than_specified_is_a_difference(setting: str, value: str, fatal: bool) -> None:
    spec = LAYOUT.schedule()
    plan = compare([spec], {spec.name: state_of(spec, **{setting: value})})
    (difference,) = plan.differences
    assert (difference.setting, difference.found, difference.wanted) == (setting, value, spec.config[setting])
    assert (difference.fatal, difference.will_change, bool(plan.fatal)) == (fatal, False, fatal)
    assert plan.is_done, "nothing that exists is changed without `fix`"
    fixing = compare([spec], {spec.name: state_of(spec, **{setting: value})}, fix=True)
    assert fixing.differences[0].will_change
    assert not fixing.is_done
    assert not fixing.fatal


def test_setting_that_is_absent_is_a_difference() -> None:
    spec = LAYOUT.group_log("g")
    plan = compare([spec], {spec.name: TopicState(1, {})})
    assert {difference.found for difference in plan.differences} == {"unset"}
    assert len(plan.differences) == len(spec.config)


@pytest.mark.parametrize(("value", "fine"), [("600000", True), ("1000", True), ("604800000", False)])
def test_segments_of_the_group_log_may_be_shorter_but_not_longer(value: str, fine: bool) -> None:
    spec = LAYOUT.group_log("g")
    assert (not compare([spec], {spec.name: state_of(spec, **{"segment.ms": value})}).differences) == fine


@pytest.mark.parametrize(
    ("lanes", "partitions", "wanted", "fatal"),
    [(1, 18, 32, True), (1, 40, 64, True), (2, 32, 64, False), (2, 48, 64, True), (1, 1, 32, True)],
)
def test_schedule_topic_of_other_than_whole_lanes_is_fatal_and_fewer_lanes_are_not(
    lanes: int, partitions: int, wanted: int, fatal: bool
) -> None:
    spec = Layout(TopicNames(), DelayLevels.default(), lanes=lanes).schedule()
    found = {spec.name: TopicState(partitions, spec.config)}
    (difference,) = compare([spec], found).differences
    assert (difference.setting, difference.wanted, difference.fatal) == ("partitions", str(wanted), fatal)
    assert not difference.will_change
    grown = compare([spec], found, grow=True)
    assert grown.differences[0].will_change
    assert not grown.fatal


@pytest.mark.parametrize(("partitions", "wanted"), [(18, 32), (33, 64)])
def test_lanes_that_are_not_whole_are_completed_by_fixing(partitions: int, wanted: int) -> None:
    spec = LAYOUT.schedule()
    plan = compare([spec], {spec.name: TopicState(partitions, spec.config)}, fix=True)
    assert [(each.wanted, each.will_change) for each in plan.differences] == [(str(wanted), True)]
    assert not plan.fatal


@pytest.mark.parametrize("number", [0, 1])
def test_timer_topics_with_fewer_partitions_than_names_use_are_fatal_and_fixing_adds_them(number: int) -> None:
    """A broker that creates a topic by itself gives it one partition: sends to the names of others fail."""
    spec = LAYOUT.timers()[number]
    (difference,) = compare([spec], {spec.name: TopicState(1, spec.config)}).differences
    assert (difference.setting, difference.wanted, difference.fatal) == ("partitions", "8", True)
    (fixed,) = compare([spec], {spec.name: TopicState(1, spec.config)}, fix=True).differences
    assert fixed.will_change
    assert not compare([spec], {spec.name: TopicState(12, spec.config)}).differences, "names use the first eight"


def test_timer_state_is_compacted_and_its_tombstones_may_stay_longer() -> None:
    _, state = LAYOUT.timers()
    longer = {"delete.retention.ms": str(10**12)}
    assert not compare([state], {state.name: state_of(state, **longer)}).differences
    (difference,) = compare(
        [state], {state.name: state_of(state, **{"cleanup.policy": "delete"})}, fix=True
    ).differences
    assert (difference.wanted, difference.fatal, difference.will_change) == ("compact", True, True)


@pytest.mark.parametrize("partitions", [32, 64, 320])
def test_more_whole_lanes_are_fine(partitions: int) -> None:
    spec = LAYOUT.schedule()
    assert not compare([spec], {spec.name: TopicState(partitions, spec.config)}).differences


def test_settings_that_may_not_be_read_are_not_compared_but_partitions_are() -> None:
    spec = LAYOUT.schedule()
    plan = compare([spec], {spec.name: TopicState(18, None)})
    assert plan.unread == (spec.name,)
    assert [difference.setting for difference in plan.differences] == ["partitions"]
    assert "no right to read" in plan.lines()[-1]


def test_plan_is_said_in_lines() -> None:
    schedule, parked = Layout(TopicNames(), DelayLevels.default(), replication_factor=3).shared()
    lines = compare([schedule, parked], {parked.name: state_of(parked, **{"retention.ms": "5"})}, fix=True).lines()
    assert lines[0].startswith(
        "create  SCHEDULE_TOPIC_XXXX (delay queues): 32 partitions, 3 replicas, cleanup.policy=delete"
    )
    assert lines[1] == "exists  rmq.parked (parked records)"
    assert lines[2] == "change  rmq.parked: retention.ms is 5, should be 2592000000"
    assert (
        compare([parked], {parked.name: state_of(parked, **{"retention.ms": "5"})}).lines()[1].startswith("differs  ")
    )


@given(st.integers(1, 400), st.integers(1, 8), st.booleans())
def test_partitions_asked_for_are_whole_lanes_never_fewer_than_there_are(
    partitions: int, lanes: int, grow: bool
) -> None:
    spec = Layout(TopicNames(), DelayLevels.default(), lanes=lanes).schedule()
    differences = compare([spec], {spec.name: TopicState(partitions, spec.config)}, grow=grow).differences
    for difference in differences:
        assert int(difference.wanted) % 32 == 0
        assert int(difference.wanted) > partitions
    assert (not differences) == (partitions % 32 == 0 and partitions >= 32 * lanes)


def test_a_topic_to_create_is_shown_with_its_counts_and_settings() -> None:
    specs = (
        TopicSpec("orders", 1, purpose="yours", replication_factor=3),
        TopicSpec("bills", 3, {"retention.ms": "5", "cleanup.policy": "delete"}, purpose="yours"),
    )
    assert compare(specs, {}).lines() == (
        "create  orders (yours): 1 partition, 3 replicas",
        "create  bills (yours): 3 partitions, cleanup.policy=delete retention.ms=5",
    )
