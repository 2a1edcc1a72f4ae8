"""Which topics are denied: only those that the cluster names."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from rocketshim.kafka.acls import denied_topics


class Admin:
    """Returns for each topic the answer that the test has set."""

    def __init__(self, said: Any) -> None:
        self._said = said

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        if isinstance(self._said, Exception):
            future.set_exception(self._said)
        else:
            future.set_result(SimpleNamespace(authorized_operations=self._said))
        return dict.fromkeys(topics.topic_names, future)


@pytest.mark.parametrize(
    ("said", "is_denied"),
    [
        ([AclOperation.DESCRIBE, AclOperation.WRITE], False),
        ([AclOperation.DESCRIBE], True),
        (None, False),
        (KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), True),
        (KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT)), False),
    ],
)
def test_a_topic_is_denied_only_if_the_cluster_says_so(said: Any, is_denied: bool) -> None:
    assert denied_topics(Admin(said), ["orders"], lambda *_, **__: None) == ({"orders"} if is_denied else set())
