"""Logical names become legal physical ones, and no two groups share a topic."""

import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rocketshim_topics import ConfigError, TopicNames, dead_letter_topic, group_of, retry_topic
from rocketshim_topics.names import init_command, is_dead_letter_topic

LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
NAMES = TopicNames()

groups = st.one_of(
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60),
    st.text("ab._-%/", min_size=1, max_size=6),
    st.from_regex(r"\A[ab.]{1,3}-[0-9a-f]{16}\Z"),
    st.text("a.", min_size=140, max_size=250),
).filter(lambda group: group.strip() and len(group.encode()) <= 255 and group != "DEFAULT_CONSUMER")

namespaces = st.one_of(st.just(""), st.text("ab-_mqr", min_size=1, max_size=8)).filter(
    lambda namespace: "rmq" not in namespace.split("_")
)


def test_names_of_the_default_namespace() -> None:
    assert NAMES.schedule == "SCHEDULE_TOPIC_XXXX"
    assert NAMES.parked == "rmq.parked"
    assert NAMES.worker_group == "rmq.sched"
    assert NAMES.retry("payments") == "rmq.retry.payments"
    assert NAMES.dead_letter("payments") == "rmq.dlq.payments"
    assert (NAMES.retry_prefix, NAMES.dead_letter_prefix) == ("rmq.retry.", "rmq.dlq.")
    assert TopicNames("eu").retry_prefix == "eu.rmq.retry."
    assert NAMES.group_log("payments") == "rmq.group.payments"


def test_namespace_stands_before_every_shim_name_and_no_other() -> None:
    names = TopicNames("pay")
    assert names.schedule == "pay.SCHEDULE_TOPIC_XXXX"
    assert names.parked == "pay.rmq.parked"
    assert names.redrive_log == "pay.rmq.redrive"
    assert names.worker_group == "pay.rmq.sched"
    assert names.physical("%RETRY%g") == "pay.rmq.retry.g"
    assert names.physical("%DLQ%g") == "pay.rmq.dlq.g"
    assert names.physical("SCHEDULE_TOPIC_XXXX") == "pay.SCHEDULE_TOPIC_XXXX"
    assert names.physical("orders") == "orders"


def test_logical_names() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dead_letter_topic("g") == "%DLQ%g"
    assert [group_of(name) for name in ("%RETRY%g", "%DLQ%a.b", "orders", "rmq.retry.g")] == ["g", "a.b", None, None]


@pytest.mark.parametrize("group", ["payments", "a", "A-b_c", "x" * 150, "-", "a-0123456789abcde", "0123456789abcdef"])
def test_plain_group_stands_for_itself(group: str) -> None:
    assert NAMES.retry(group) == f"rmq.retry.{group}"


@pytest.mark.parametrize(
    "group",
    ["a.b", "a b", "%", "x" * 151, "é", "a-0123456789abcdef", "a-0123456789ABCDEF", "支付", "a/b", "-" + "0" * 16],
)
def test_every_other_group_is_encoded(group: str) -> None:
    encoded = NAMES.retry(group).removeprefix("rmq.retry.")
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,120}-[0-9a-f]{16}", encoded)
    assert encoded != group


@given(groups, groups)
@example("a.b", "a_b")
@example("a.b", "a-b")
def test_two_groups_never_share_a_topic_even_if_dot_and_underscore_are_equal(one: str, other: str) -> None:
    assume(one != other)
    assert NAMES.retry(one).replace(".", "_") != NAMES.retry(other).replace(".", "_")


@given(groups)
def test_encoding_an_encoded_group_gives_another_name(group: str) -> None:
    encoded = NAMES.retry(group).removeprefix("rmq.retry.")
    assume(encoded != group)
    assert NAMES.retry(encoded) != NAMES.retry(group)


def all_names(names: TopicNames, group: str) -> list[str]:
    return [
        names.schedule,
        names.parked,
        names.redrive_log,
        names.retry(group),
        names.dead_letter(group),
        names.group_log(group),
    ]


@given(namespaces, namespaces, groups, groups)
@example("", "a", "a_rmq_retry_b", "b")
@example("a_b", "a", "g", "b_rmq_retry_g")
def test_no_two_names_of_any_namespaces_are_equal(one: str, other: str, group: str, other_group: str) -> None:
    assume((one, group) != (other, other_group))
    left = [name.replace(".", "_") for name in all_names(TopicNames(one), group)]
    right = [name.replace(".", "_") for name in all_names(TopicNames(other), other_group)]
    shared = set(left) & set(right)
    same_namespace = set(left[:3]) if one == other else set()
    if group == other_group and one == other:
        same_namespace = set(left)
    assert shared == same_namespace


@given(namespaces, groups)
def test_every_physical_name_is_legal_and_recognised_as_ours(namespace: str, group: str) -> None:
    for name in all_names(TopicNames(namespace), group):
        assert LEGAL.fullmatch(name)
        assert NAMES.is_ours(name)
        assert TopicNames("other").is_ours(name)
        assert NAMES.is_ours(f"eu-1.{name}"), "as MirrorMaker 2 names its copy"
        assert NAMES.is_ours(f"us.eu-1.{name}")


@given(namespaces, groups)
def test_only_retry_and_dead_letter_topics_have_failures_in_every_namespace(namespace: str, group: str) -> None:
    names = TopicNames(namespace)
    for name in all_names(names, group):
        assert NAMES.has_failures(name) is (name in {names.retry(group), names.dead_letter(group)})
        assert (
            is_dead_letter_topic(f"mirror.{name}") is is_dead_letter_topic(name) is (name == names.dead_letter(group))
        )
    assert not NAMES.has_failures("orders")
    assert not is_dead_letter_topic("armq.dlq.orders")


@pytest.mark.parametrize(
    "topic", ["orders", "rmq.retry", "rmq.retry.", "SCHEDULE_TOPIC_XXXX2", "rmq.parkedx", "rmq.redrive.x", "a.b.c"]
)
def test_ordinary_topic_is_not_ours_and_passes_unchanged(topic: str) -> None:
    assert not NAMES.is_ours(topic)
    assert NAMES.physical(topic) == topic


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "x" * 250, "%OTHER%g", "é", "a\n", "%retry%g", "a\x00"])
def test_illegal_topic_is_refused(topic: str) -> None:
    with pytest.raises(ConfigError, match="not a topic name"):
        NAMES.physical(topic)


@pytest.mark.parametrize("group", ["", "a\x00b", "a\n", "x" * 256, "é" * 128, "DEFAULT_CONSUMER", "\ud800", None, 7])
def test_illegal_group_is_refused(group: Any) -> None:
    for make in (NAMES.retry, NAMES.dead_letter, NAMES.group_log, retry_topic, dead_letter_topic):
        with pytest.raises(ConfigError, match="not a group name"):
            make(group)
    if isinstance(group, str):
        with pytest.raises(ConfigError):
            NAMES.physical(f"%RETRY%{group}")


@pytest.mark.parametrize("namespace", ["a.b", "a b", "é", "x" * 65, "rmq", "a_rmq_b", "a\n", None, 1])
def test_illegal_namespace_is_refused(namespace: Any) -> None:
    with pytest.raises(ConfigError, match="not a namespace"):
        TopicNames(namespace)


def test_longest_names_are_within_kafka_s_limit() -> None:
    names = TopicNames("n" * 64)
    assert max(len(name) for name in all_names(names, "g" * 150)) <= 249


@pytest.mark.parametrize(
    ("topic", "command"),
    [
        ("SCHEDULE_TOPIC_XXXX", "rocketshim init"),
        ("pay.rmq.parked", "rocketshim init --namespace pay"),
        ("rmq.retry.g", "rocketshim init --group g"),
        ("pay.rmq.group.g", "rocketshim init --namespace pay --group g --with-log"),
        (TopicNames("").retry("pay ments"), "rocketshim init --group GROUP"),
        ("orders", "rocketshim init --topic orders --partitions N"),
        ("east.pay.rmq.dlq.g", "rocketshim init --topic east.pay.rmq.dlq.g --partitions N"),
    ],
)
def test_the_command_that_creates_a_topic_has_its_namespace_and_group(topic: str, command: str) -> None:
    assert init_command(topic) == command
