"""A member without partitions is found by what the coordinator answers, and so are those that it waits for."""

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.joining import Joining
from rocketshim.kafka.membership import GroupQuestion
from test_support.coordinator import AskedAdmin


def member(name: str, *partitions: int, target: tuple[int, ...] | None = None) -> Any:
    def assignment(numbers: tuple[int, ...]) -> Any:
        return SimpleNamespace(topic_partitions=[TopicPartition("orders", number) for number in numbers])

    return SimpleNamespace(
        member_id=name,
        assignment=assignment(partitions),
        target_assignment=None if target is None else assignment(target),
    )


def group(*members: Any, state: ConsumerGroupState = ConsumerGroupState.STABLE) -> Any:
    return SimpleNamespace(state=state, members=list(members))


def joining(make_admin: Callable[[Any], Any], **settings: str) -> Joining:
    """A consumer of the new group protocol, unless the settings name another one."""
    return Joining("g", {"group.protocol": "consumer", **settings}, GroupQuestion(make_admin, {}, "g"))


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (group(member("me"), member("other", 0)), True),
        (group(member("me", 1), member("other", 0)), False),
        (group(member("me", target=(1,)), member("other", 0)), False),
        (group(member("me"), state=ConsumerGroupState.PREPARING_REBALANCING), False),
        (group(member("other", 0)), False),
    ],
    ids=["no partitions", "has some", "will get some", "not stable", "not a member yet"],
)
def test_only_a_stable_group_without_partitions_for_the_member_counts(answer: Any, *, found: bool) -> None:
    admin = AskedAdmin()
    check = joining(lambda _: admin)
    assert not check.look("me", 0, is_joining=True)
    assert not check.look("me", 10, is_joining=True), "there is no answer yet"
    admin.asked[0].set_result(answer)
    assert check.look("me", 20, is_joining=True) is found
    assert len(admin.asked) == 1


def test_after_an_error_the_coordinator_is_asked_again() -> None:
    admin = AskedAdmin()
    check = joining(lambda _: admin)
    check.look("me", 0, is_joining=True)
    admin.asked[0].set_exception(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
    assert not check.look("me", 100, is_joining=True)
    assert not check.look("me", 499, is_joining=True)
    assert len(admin.asked) == 1
    assert not check.look("me", 500, is_joining=True)
    admin.asked[1].set_result(group(member("me")))
    assert check.look("me", 600, is_joining=True)


def test_a_client_without_an_answer_for_five_seconds_is_dropped_and_so_is_one_of_a_known_member() -> None:
    made: list[AskedAdmin] = []
    check = joining(lambda _: made.append(AskedAdmin()) or made[-1])  # type: ignore[func-returns-value]
    check.look("me", 0, is_joining=True)
    check.look("me", 4_999, is_joining=True)
    alive = weakref.ref(made.pop())
    assert alive() is not None
    check.look("me", 5_000, is_joining=True)
    assert alive() is None
    check.look("me", 5_100, is_joining=True)
    alive = weakref.ref(made.pop())
    check.joined()
    check.look("me", 5_500, is_joining=False)
    assert alive() is None
    check.is_member = False
    check.look("me", 5_600, is_joining=True)
    made[0].asked[0].set_result(group(member("other")))
    check.look("me", 5_700, is_joining=True)
    check.look("me", 6_200, is_joining=True)
    made[0].asked[1].set_result(group(member("me")))
    assert check.look("me", 6_300, is_joining=True)
    assert len(made) == 1


def named(name: str) -> Any:
    return SimpleNamespace(member_id=f"{name}-1", client_id=name, host="/10.0.0.7")


def awaited(caplog: pytest.LogCaptureFixture) -> list[list[str]]:
    return [record.members for record in caplog.records if record.event == "consumer.group-awaited"]  # type: ignore[attr-defined]


def classic(admin: AskedAdmin) -> Callable[..., bool]:
    """Return what lets a member of the classic protocol look: its client calls back without partitions."""
    watch = joining(lambda _: admin, **{"group.protocol": "classic"})
    return lambda now_ms, is_joining=True: watch.look("me-1", now_ms, is_joining=is_joining)


@pytest.mark.parametrize("state", [ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupState.UNKNOWN])
def test_after_five_seconds_of_joining_the_other_members_are_named_once(
    state: ConsumerGroupState, caplog: pytest.LogCaptureFixture
) -> None:
    admin = AskedAdmin()
    look = classic(admin)
    look(0)
    look(4_999)
    assert not admin.asked
    look(5_000)
    admin.asked[0].set_result(group(named("me"), named("shop"), named("api"), state=state))
    look(5_010)
    assert awaited(caplog) == [["api@10.0.0.7 (api-1)", "shop@10.0.0.7 (shop-1)"]]
    look(60_000)
    assert len(admin.asked) == len(awaited(caplog)) == 1


def test_a_member_that_has_joined_asks_nothing() -> None:
    admin = AskedAdmin()
    look = classic(admin)
    look(0)
    look(4_000, is_joining=False)
    look(60_000)
    assert not admin.asked


@pytest.mark.parametrize("answer", [group(named("shop")), group(named("me"), state=ConsumerGroupState.EMPTY)])
def test_a_group_that_waits_for_nobody_is_asked_again(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    admin = AskedAdmin()
    look = classic(admin)
    look(0)
    look(5_000)
    admin.asked[0].set_result(answer)
    look(5_010)
    look(5_600)
    assert len(admin.asked) == 2
    assert not awaited(caplog)


@pytest.mark.parametrize(("protocol", "count"), [("consumer", 1), ("classic", 0)])
def test_brokers_that_do_not_know_the_new_protocol_are_said_once(
    caplog: pytest.LogCaptureFixture, protocol: str, count: int
) -> None:
    """They answer nothing at all (Kafka 3.3, librdkafka 2.16)."""
    asked = joining(lambda _: AskedAdmin(), **{"group.protocol": protocol})
    for now_ms in (0, 29_999, 30_000, 60_000):
        asked.look(None, now_ms, is_joining=True)
        events = [getattr(record, "event", None) for record in caplog.records]
        assert events.count("consumer.not-joined") == (count if now_ms >= 30_000 else 0)


def test_a_consumer_that_has_joined_is_not_said_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    asked = joining(lambda _: AskedAdmin())
    asked.joined()
    asked.look("me", 0, is_joining=False)
    asked.look("me", 60_000, is_joining=True)
    assert [record for record in caplog.records if getattr(record, "event", None) == "consumer.not-joined"] == []
