"""What a user may get wrong, on a real broker: each a typed error with the value, the rule and the way out."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim import DelayWorker, Message, Producer, PushConsumer, WorkerSettings
from rocketshim.cli import main
from rocketshim.errors import (
    BrokerUnavailableError,
    MessageTooLargeError,
    NotAuthorizedError,
    SendTimeoutError,
    TopicMismatchError,
    TopicMissingError,
)
from rocketshim_local import Broker, LocalCluster
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there


def listener(message: object, context: object) -> None:
    del message, context


def worker(bootstrap: str, namespace: str = "") -> DelayWorker:
    return DelayWorker(WorkerSettings.make(bootstrap=bootstrap, namespace=namespace, allow=("*",)))


# --- no broker -----------------------------------------------------------------------------------------------------


def test_no_broker_is_said_with_its_address_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dlq", "stats", "--group", "g", "--bootstrap", NOBODY]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert NOBODY in shown
    assert shown.count("\n") == 1, "one line, no traceback"


def test_a_send_to_nobody_ends_in_time_and_says_that_nobody_knows() -> None:
    with Producer(NOBODY) as producer:
        with pytest.raises(SendTimeoutError, match="may or may not be stored"):
            producer.send(Message("orders", b"x"), timeout_s=1.0)
        producer.close(timeout_s=0.1)


def test_a_consumer_without_a_broker_does_not_start() -> None:
    consumer = PushConsumer(NOBODY, group="g")
    consumer.register_message_listener("orders", listener)
    with pytest.raises(BrokerUnavailableError):
        consumer.start()
    consumer.stop()


# --- topics --------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(broker: Broker, admin: AdminClient, namespace: str) -> str:
    """A namespace whose shared topics exist."""
    del broker
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared())
    return namespace


def test_a_topic_that_nobody_made_is_named(broker: Broker, shared: str, group: Callable[..., str]) -> None:
    consumer = PushConsumer(broker.bootstrap, group=group(), namespace=shared)
    consumer.register_message_listener("no-such-topic", listener)
    with pytest.raises(TopicMissingError, match=r"missing: no-such-topic.*rocketshim init --topic no-such-topic"):
        consumer.start()
    with Producer(broker.bootstrap, namespace=shared) as producer, pytest.raises(TopicMissingError, match="create it"):
        producer.send(Message("no-such-topic", b"x"), timeout_s=30)


def test_without_a_schedule_topic_consumer_and_delayed_send_say_init(
    broker: Broker, namespace: str, group: Callable[..., str], topic: Callable[..., str]
) -> None:
    name = topic()
    consumer = PushConsumer(broker.bootstrap, group=group(), namespace=namespace)
    consumer.register_message_listener(name, listener)
    with pytest.raises(TopicMissingError, match="rocketshim init"):
        consumer.start()
    with Producer(broker.bootstrap, namespace=namespace) as producer:
        with pytest.raises(TopicMissingError, match="rocketshim init"):
            producer.send(Message(name, b"x", delay="5s"))
        assert producer.send(Message(name, b"x"), timeout_s=30).queue_offset == 0, "nothing of the delayed one was sent"


def test_a_schedule_topic_stamped_by_senders_is_refused(broker: Broker, admin: AdminClient, namespace: str) -> None:
    name = TopicNames(namespace).schedule
    admin.create_topics([NewTopic(name, 32)])[name].result(30)
    with pytest.raises(TopicMismatchError, match=r"message\.timestamp\.type"):
        worker(broker.bootstrap, namespace).start()


def test_a_body_the_topic_does_not_take_is_refused(broker: Broker, topic: Callable[..., str]) -> None:
    name = topic(config={"max.message.bytes": "2000"})
    with Producer(broker.bootstrap) as producer:
        with pytest.raises(MessageTooLargeError, match=r"raise max\.message\.bytes"):
            producer.send(Message(name, b"x" * 4_000), timeout_s=30)
        assert producer.send(Message(name, b"x"), timeout_s=30).queue_offset == 0


# --- rights --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalCluster]:
    """A broker with an authorizer and a user `plain` who may do nothing."""
    with LocalCluster(1, users={"admin": "admin-secret", "plain": "plain-secret"}) as cluster:
        admin = AdminClient(cluster.client_config())
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(30)
        provision.ensure_topics(admin, Layout(TopicNames(), DelayLevels.default()).shared())
        yield cluster


def test_a_sender_without_rights_is_told_so(guarded: LocalCluster) -> None:
    config = guarded.client_config("plain")
    bootstrap = config.pop("bootstrap.servers")
    with Producer(bootstrap, client=config) as producer, pytest.raises(NotAuthorizedError, match="grant it Write"):
        producer.send(Message("orders", b"x"), timeout_s=30)


def test_a_consumer_without_rights_does_not_start(guarded: LocalCluster) -> None:
    config = guarded.client_config("plain")
    bootstrap = config.pop("bootstrap.servers")
    consumer = PushConsumer(bootstrap, group="g", client=config)
    consumer.register_message_listener("orders", listener)
    with pytest.raises((NotAuthorizedError, TopicMissingError)) as caught:
        consumer.start()
    assert "plain-secret" not in str(caught.value)


def test_a_worker_without_rights_does_not_start(guarded: LocalCluster) -> None:
    config = guarded.client_config("plain")
    bootstrap = config.pop("bootstrap.servers")
    with pytest.raises((NotAuthorizedError, TopicMissingError)):
        DelayWorker(WorkerSettings.make(bootstrap=bootstrap, allow=("*",), client=config)).start()
