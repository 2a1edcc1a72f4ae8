"""Offsets that an admin client lists."""

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.kafka.positions import EARLIEST, listed_offsets
from rocketshim_topics.coordinates import TopicPartitionKey


class LateAdmin:
    """Never answers: each future raises as after its time limit."""

    def list_topics(self, timeout: float) -> None:
        assert timeout == 10.0

    def list_offsets(self, requested: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        late: Future[Any] = Future()
        late.set_exception(TimeoutError())
        return dict.fromkeys(requested, late)


def test_a_client_that_keeps_no_time_limit_is_kafkas_error() -> None:
    admin: Any = LateAdmin()
    with pytest.raises(KafkaException) as caught:
        listed_offsets(admin, [TopicPartitionKey("orders", 0)], EARLIEST)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
