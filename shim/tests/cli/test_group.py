"""Releasing the lock of a queue by hand: when the command says that it is done."""

import pytest

from rocketshim.admin.queue_commands import store_group_record
from rocketshim.errors import SendError
from rocketshim.kafka.clients import Clients
from rocketshim.settings import ConnectionSettings
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.group_log import LeaveRecord, decode_group_record


def test_a_release_that_is_reported_without_an_offset_is_not_called_done() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("rmq.group.g")
    settings = ConnectionSettings.make(bootstrap="memory:1")
    clients, record = (
        Clients(kafka.consumer, kafka.producer),
        LeaveRecord(client_id="a", incarnation="b", seq=1, lease_ms=1),
    )
    kafka.fail_produce(None)
    with pytest.raises(SendError, match=r"without an offset.*run the command again"):
        store_group_record(settings, "rmq.group.g", record, clients)
    assert store_group_record(settings, "rmq.group.g", record, clients) == 0
    assert [decode_group_record(each.value()) for each in kafka.records("rmq.group.g")] == [record]
