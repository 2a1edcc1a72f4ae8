"""Each Kafka error of a send or a lookup becomes the typed error that tells what to do."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.errors import (
    BrokerUnavailableError,
    ConsumerError,
    MessageTooLargeError,
    NotAuthorizedError,
    RocketshimError,
    SendError,
    SendTimeoutError,
    TopicMissingError,
)
from rocketshim.kafka.queue_lookup import cluster_errors
from rocketshim.kafka.send_errors import send_error
from rocketshim_topics.kafka_codes import AWAY, DENIED, MISSING, NO_LOGIN, TOO_LARGE

UNCERTAIN = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._DESTROY,
    KafkaError._DESTROY_BROKER,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._PURGE_QUEUE,
    KafkaError.UNKNOWN,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
}
OF_A_SEND = [
    *((code, TopicMissingError) for code in MISSING),
    *((code, NotAuthorizedError) for code in DENIED | NO_LOGIN),
    *((code, MessageTooLargeError) for code in TOO_LARGE),
    *((code, SendTimeoutError) for code in UNCERTAIN),
    *((code, BrokerUnavailableError) for code in AWAY - UNCERTAIN),
    (KafkaError.INVALID_MSG, SendError),
    (KafkaError._FATAL, SendError),
]
OF_A_QUESTION = [
    *((code, TopicMissingError) for code in MISSING),
    *((code, NotAuthorizedError) for code in DENIED | NO_LOGIN),
    *((code, BrokerUnavailableError) for code in AWAY),
    (KafkaError.INVALID_MSG, ConsumerError),
]


@pytest.mark.parametrize(("code", "kind"), OF_A_SEND)
def test_the_error_of_a_failed_send_tells_what_to_do(code: int, kind: type[RocketshimError]) -> None:
    error = send_error(KafkaError(code), "orders")
    assert type(error) is kind
    assert "'orders'" in str(error)


def test_the_error_of_a_refused_time_names_the_clock() -> None:
    error = send_error(KafkaError(KafkaError.INVALID_TIMESTAMP), "orders")
    assert type(error) is SendError
    assert "this machine's clock is ahead of the broker's" in str(error)


@pytest.mark.parametrize(("code", "kind"), OF_A_QUESTION)
def test_the_error_of_a_failed_lookup_names_the_lookup(code: int, kind: type[RocketshimError]) -> None:
    with pytest.raises(kind, match="the queues of orders") as caught, cluster_errors("the queues of orders"):
        raise KafkaException(KafkaError(code))
    assert type(caught.value) is kind
