"""Releasing the lock of a queue by hand: when the command says that it is done."""

import pytest

from rocketshim.cli.group import _store
from rocketshim.cli.options import Connection
from rocketshim.errors import SendError
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka


def test_a_release_that_is_reported_without_an_offset_is_not_called_done() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("rmq.group.g")
    at = Connection(bootstrap="memory:1", client={}, clients=Clients(kafka.consumer, kafka.producer))
    kafka.fail_produce(None)
    with pytest.raises(SendError, match=r"without an offset.*run the command again"):
        _store(at, "rmq.group.g", b"x")
    _store(at, "rmq.group.g", b"x")
    assert [record.value() for record in kafka.records("rmq.group.g")] == [b"x"]
