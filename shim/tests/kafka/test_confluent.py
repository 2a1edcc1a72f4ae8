"""Our clients of confluent_kafka: `list_topics` inside a callback does not end the process."""

import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.kafka.clients import confluent_clients
from rocketshim.kafka.confluent import in_own_thread
from rocketshim.testing import InMemoryKafka

PROGRAM = """
from confluent_kafka import KafkaException
from rocketshim.kafka.clients import confluent_clients

def on_error(error):
    errors.append(error)
    try:
        client.list_topics(timeout=0)
    except KafkaException:
        pass

errors = []
addresses = {"bootstrap.servers": "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "error_cb": on_error}
client = confluent_clients().producer(addresses)
while len(errors) < 6:
    client.poll(1.0)
"""


def test_a_callback_of_a_producer_may_list_topics() -> None:
    """The process is one of its own: a client that forgets the state of its `poll` ends it with SIGABRT."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=60, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("method", ["list_topics", "poll", "consume"])
def test_the_kafka_in_memory_refuses_what_ends_the_process_of_a_real_consumer(method: str) -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("orders")
    consumer = kafka.consumer({"group.id": "payments"})

    def on_assign(client: Any, _: Any) -> None:
        getattr(client, method)(timeout=0)

    consumer.subscribe(["orders"], on_assign=on_assign)
    with pytest.raises(AssertionError, match="inside a callback"):
        consumer.poll(10)


def test_an_error_of_a_call_in_its_own_thread_reaches_the_caller() -> None:
    client = confluent_clients().producer({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0)
    with pytest.raises(ZeroDivisionError):
        in_own_thread(lambda: 1 // 0)
    assert in_own_thread(max, 1, 3) == 3


def test_an_error_that_is_compared_with_none_raises_later() -> None:
    """The comparison leaves an exception behind. If a new version of confluent_kafka does not, this rule may go."""
    error = KafkaError(KafkaError._TIMED_OUT)
    with pytest.raises((TypeError, SystemError)):
        assert [error, error].count(None) == int("0")
