"""A member without partitions is found by what the coordinator answers, and nobody waits for the answer."""

import gc
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicPartition

from rocketshim.kafka.membership import JoinWatch, MemberCheck, described_groups


class Admin:
    """An admin client whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == 3_600, "librdkafka may crash later if this limit is reached"
        asked: dict[str, Future[Any]] = {group: Future() for group in groups}
        self.asked += asked.values()
        return asked

    def poll(self, _: float) -> int:
        return 0

    def __len__(self) -> int:
        return 0  # as a real one: the number of its waiting events


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
    admin = Admin()
    check = MemberCheck(lambda _: admin, {}, "g")
    assert not check.has_no_partitions("me", 0)
    assert not check.has_no_partitions("me", 10), "there is no answer yet"
    admin.asked[0].set_result(answer)
    assert check.has_no_partitions("me", 20) is found
    assert len(admin.asked) == 1


def test_after_an_error_the_coordinator_is_asked_again_and_after_close_never() -> None:
    admin = Admin()
    check = MemberCheck(lambda _: admin, {}, "g")
    check.has_no_partitions("me", 0)
    admin.asked[0].set_exception(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
    assert not check.has_no_partitions("me", 100)
    assert not check.has_no_partitions("me", 499)
    assert len(admin.asked) == 1
    assert not check.has_no_partitions("me", 500)
    admin.asked[1].set_result(group(member("me")))
    assert check.has_no_partitions("me", 600)
    check.close()
    assert not check.has_no_partitions("me", 5_000)
    assert len(admin.asked) == 2


def test_a_client_without_an_answer_for_five_seconds_is_dropped_and_so_is_one_of_a_known_member() -> None:
    made: list[Admin] = []
    check = MemberCheck(lambda _: made.append(Admin()) or made[-1], {}, "g")  # type: ignore[func-returns-value]
    check.has_no_partitions("me", 0)
    check.has_no_partitions("me", 4_999)
    alive = weakref.ref(made.pop())
    assert alive() is not None
    check.has_no_partitions("me", 5_000)
    assert alive() is None
    check.has_no_partitions("me", 5_100)
    alive = weakref.ref(made.pop())
    check.has_no_partitions("me", 5_500, is_known=True)
    assert alive() is None
    check.has_no_partitions("me", 5_600)
    made[0].asked[0].set_result(group(member("other")))
    check.has_no_partitions("me", 5_700)
    check.has_no_partitions("me", 6_200)
    made[0].asked[1].set_result(group(member("me")))
    assert check.has_no_partitions("me", 6_300)
    assert len(made) == 1


def test_groups_are_described_by_a_client_that_is_dropped_whatever_it_answers() -> None:
    made: list[Any] = []

    def make() -> Admin:
        admin = Admin()
        made.append(weakref.ref(admin))
        asked = admin.describe_consumer_groups

        def describe(groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
            futures = asked(groups, request_timeout)
            futures["told"].set_result(group())
            futures["refused"].set_exception(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
            return futures

        admin.describe_consumer_groups = describe  # type: ignore[method-assign]
        return admin

    found = described_groups(make, ["told", "refused", "late"], 0.001)
    assert found["told"].state is ConsumerGroupState.STABLE
    assert found["refused"].args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert found["late"].args[0].code() == KafkaError._TIMED_OUT
    gc.collect()
    assert made[0]() is None
    assert described_groups(make, [], 0.001) == {}


def named(name: str) -> Any:
    return SimpleNamespace(member_id=f"{name}-1", client_id=name, host="/10.0.0.7")


@pytest.mark.parametrize("state", [ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupState.UNKNOWN])
def test_after_five_seconds_of_joining_the_other_members_are_named_once(state: ConsumerGroupState) -> None:
    admin = Admin()
    watch = JoinWatch(lambda _: admin, {}, "g")
    assert watch.others("me-1", 0, is_joining=True) == []
    assert watch.others("me-1", 4_999, is_joining=True) == []
    assert not admin.asked
    assert watch.others("me-1", 5_000, is_joining=True) == []
    admin.asked[0].set_result(group(named("me"), named("shop"), named("api"), state=state))
    assert watch.others("me-1", 5_010, is_joining=True) == ["api@10.0.0.7 (api-1)", "shop@10.0.0.7 (shop-1)"]
    assert watch.others("me-1", 60_000, is_joining=True) == []
    assert len(admin.asked) == 1


def test_a_member_that_has_joined_asks_nothing() -> None:
    admin = Admin()
    watch = JoinWatch(lambda _: admin, {}, "g")
    watch.others("me-1", 0, is_joining=True)
    assert watch.others("me-1", 4_000, is_joining=False) == []
    assert watch.others("me-1", 60_000, is_joining=True) == []
    assert not admin.asked


@pytest.mark.parametrize("answer", [group(named("shop")), group(named("me"), state=ConsumerGroupState.EMPTY)])
def test_a_group_that_waits_for_nobody_is_asked_again(answer: Any) -> None:
    admin = Admin()
    watch = JoinWatch(lambda _: admin, {}, "g")
    watch.others("me-1", 0, is_joining=True)
    watch.others("me-1", 5_000, is_joining=True)
    admin.asked[0].set_result(answer)
    assert watch.others("me-1", 5_010, is_joining=True) == []
    watch.others("me-1", 5_600, is_joining=True)
    assert len(admin.asked) == 2
