"""How long a program waits for a cluster: slow brokers have half a minute, and an unreachable cluster is known soon."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.kafka import clients
from rocketshim.kafka.clients import LastClientError, answer_time_s


def admin_of(answer: "Future[Any]") -> Any:
    return SimpleNamespace(describe_cluster=lambda **_: answer, poll=lambda _: 0)


def failed_connections() -> LastClientError:
    complaints = LastClientError()
    complaints.settings["error_cb"](KafkaError(KafkaError._TRANSPORT, "connection refused"))
    return complaints


def test_brokers_that_have_answered_get_half_a_minute_for_each_answer() -> None:
    answer: Future[Any] = Future()
    answer.set_result(SimpleNamespace(nodes=[]))
    assert answer_time_s(admin_of(answer), failed_connections()) == 30


def test_a_cluster_that_cannot_be_reached_is_given_up_after_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_REACH_S", 0)
    assert answer_time_s(admin_of(Future()), failed_connections()) == 1


def test_a_cluster_without_failed_connections_is_slow_for_half_a_minute_and_then_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "_REACH_S", 0)
    monkeypatch.setattr(clients, "_ANSWER_S", 0.05)
    assert answer_time_s(admin_of(Future()), LastClientError()) == 1


@pytest.mark.parametrize(
    ("code", "answer_s"), [(KafkaError._TIMED_OUT, 1), (KafkaError.CLUSTER_AUTHORIZATION_FAILED, 30)]
)
def test_a_refusal_is_an_answer_and_a_time_out_is_none(code: int, answer_s: int) -> None:
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(code)))
    assert answer_time_s(admin_of(answer), LastClientError()) == answer_s
