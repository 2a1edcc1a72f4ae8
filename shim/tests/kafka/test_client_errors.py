"""Errors that keep a consumer out of its group: the setting, the limit and the way out, in one line."""

import pytest
from confluent_kafka import KafkaError

from rocketshim.kafka.client_errors import ErrorLines, explained_error


@pytest.mark.parametrize(
    ("error", "settings", "words"),
    [
        (
            KafkaError(KafkaError.INCONSISTENT_GROUP_PROTOCOL),
            {},
            ["group 'g' has members with another assignment strategy", "Stop those members", "group.protocol"],
        ),
        (KafkaError(KafkaError.INCONSISTENT_GROUP_PROTOCOL), {"group.protocol": "classic"}, ["Stop those members"]),
        (
            KafkaError(KafkaError.INVALID_SESSION_TIMEOUT),
            {"session.timeout.ms": 100},
            ["session.timeout.ms=100", "group.min.session.timeout.ms", "group.max.session.timeout.ms", "set it within"],
        ),
        (KafkaError(KafkaError.INVALID_SESSION_TIMEOUT), {}, ["session.timeout.ms=45000"]),
        (KafkaError(KafkaError.GROUP_MAX_SIZE_REACHED), {}, ["group.max.size", "stop one, or raise it"]),
        (KafkaError(112), {}, ["group.remote.assignor", "leave it out"]),
        (
            KafkaError(KafkaError._FATAL, "Static consumer fenced by other consumer with same group.instance.id"),
            {"group.instance.id": "shop"},
            ["group.instance.id=shop", "give each process its own"],
        ),
        (KafkaError(KafkaError.FENCED_INSTANCE_ID), {"group.instance.id": "shop"}, ["group.instance.id=shop"]),
    ],
    ids=lambda value: value.name() if isinstance(value, KafkaError) else "",
)
def test_the_cause_the_limit_and_the_way_out_are_named(
    error: KafkaError, settings: dict[str, object], words: list[str]
) -> None:
    text = explained_error(error, "g", settings)
    assert [word for word in words if word not in text] == []


def test_what_is_not_known_is_not_explained() -> None:
    assert not explained_error(KafkaError(KafkaError._TRANSPORT), "g", {})
    assert not explained_error(KafkaError(KafkaError._FATAL, "something else"), "g", {"group.instance.id": "shop"})


def test_an_error_that_repeats_gets_one_line_with_its_hint_and_later_a_count() -> None:
    lines = ErrorLines("g", {})
    error = KafkaError(KafkaError.INVALID_SESSION_TIMEOUT)
    first = lines.facts(error, None, 0)
    assert first is not None
    assert "hint" in first
    assert lines.facts(error, None, 1_000) is None
    assert lines.facts(error, None, 2_000) is None
    assert lines.facts(error, None, 60_000) == {"error": str(error), "topic": None, "count": 3}


def test_errors_of_other_topics_have_lines_of_their_own() -> None:
    lines = ErrorLines("g", {})
    error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert lines.facts(error, "a", 0) == {"error": str(error), "topic": "a"}
    assert lines.facts(error, "b", 0) == {"error": str(error), "topic": "b"}
