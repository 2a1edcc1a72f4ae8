"""The group-log thread as it is made from a connection."""

import pytest

from rocketshim.locks.log_clients import log_reader_config
from rocketshim.locks.log_thread import connect_group_log, new_client_id
from rocketshim.settings import ConnectionSettings
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.layout import Layout
from rocketshim_topics.message_queue import MessageQueue


@pytest.mark.parametrize(
    "client",
    [
        {"isolation.level": "read_committed", "auto.offset.reset": "latest", "group.instance.id": "x"},
        {"session.timeout.ms": 6_000},
    ],
)
def test_consumer_settings_of_the_user_do_not_reach_the_reader_of_the_log(client: dict[str, object]) -> None:
    settings = ConnectionSettings.make(bootstrap="b:1", client={**client, "security.protocol": "ssl"})
    config = log_reader_config(settings, "g")
    assert config["isolation.level"] == "read_uncommitted"
    assert config["auto.offset.reset"] == "error"
    assert config["security.protocol"] == "ssl"
    assert "group.instance.id" not in config
    assert "session.timeout.ms" not in config


def test_client_ids_of_one_process_differ() -> None:
    assert new_client_id() != new_client_id()


def test_a_connected_thread_gets_the_queues_it_wants() -> None:
    kafka = InMemoryKafka()
    kafka.create_topics(Layout(TopicNames("pay"), DelayLevels.default()).for_group("g", with_log=True))
    thread = connect_group_log(
        PushConsumerSettings.make(
            bootstrap="b:1", group="g", namespace="pay", client={"linger.ms": 7, "delivery.timeout.ms": 1}
        ),
        topics=lambda: ["orders"],
        clients=kafka.clients(),
        clock=kafka.clock,
    )
    thread.open()
    thread.want([MessageQueue("orders", queue_id=3)])
    for _ in range(4):
        thread.turn(0)
    assert thread.leases.get_nowait().queue.queue_id == 3
