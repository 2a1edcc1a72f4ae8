"""A coordinator is asked about its group by a client that is dropped, whatever it answers."""

import gc
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from rocketshim.kafka.membership import described_groups
from test_support.coordinator import AskedAdmin


def group(*members: Any) -> Any:
    return SimpleNamespace(state=ConsumerGroupState.STABLE, members=list(members))


def test_groups_are_described_by_a_client_that_is_dropped_whatever_it_answers() -> None:
    made: list[Any] = []

    def make() -> AskedAdmin:
        admin = AskedAdmin()
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
