"""A coordinator is asked about its group by a client that is dropped, whatever it answers."""

import gc
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from rocketshim.kafka.membership import described_groups


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


def group(*members: Any) -> Any:
    return SimpleNamespace(state=ConsumerGroupState.STABLE, members=list(members))


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
