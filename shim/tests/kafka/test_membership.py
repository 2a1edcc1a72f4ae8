"""A member without partitions is found by what the coordinator answers, and nobody waits for the answer."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicPartition

from rocketshim.kafka.membership import MemberCheck


class Admin:
    """An admin client whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        del request_timeout
        self.asked.append(Future())
        return {groups[0]: self.asked[-1]}


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
    check = MemberCheck(admin, "g")
    assert not check.has_no_partitions("me", 0)
    assert not check.has_no_partitions("me", 10), "there is no answer yet"
    admin.asked[0].set_result(answer)
    assert check.has_no_partitions("me", 20) is found
    assert len(admin.asked) == 1


def test_after_an_error_the_coordinator_is_asked_again_and_after_close_never() -> None:
    admin = Admin()
    check = MemberCheck(admin, "g")
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
