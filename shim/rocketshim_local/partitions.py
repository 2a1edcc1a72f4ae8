"""What the partitions of a local cluster are doing: their leaders and replicas, and the internal topics."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rocketshim.errors import LocalBrokerError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["await_in_sync", "leader", "touch_internal_topics"]

_POLL_S = 0.05


def leader(config: Mapping[str, str], topic: str, partition: int) -> int:
    """Return the id of the node that leads a partition; see `LocalCluster.leader`."""
    described = _admin(config).list_topics(topic, timeout=10.0).topics[topic].partitions.get(partition)
    if described is None or described.leader < 1:
        raise LocalBrokerError(f"partition {partition} of {topic!r} does not exist or has no leader")
    return int(described.leader)


def touch_internal_topics(config: Mapping[str, str], timeout_s: float) -> None:
    """Create the internal topics by using them; see `LocalCluster.touch_internal_topics`."""
    import confluent_kafka as kafka  # noqa: PLC0415 `broker fetch` and `info` do not need it

    deadline = time.monotonic() + timeout_s
    name = f"rocketshim-touch-{uuid.uuid4().hex[:8]}"
    consumer = kafka.Consumer({**config, "log_level": "0", "group.id": name})
    producer = kafka.Producer({**config, "log_level": "0", "transactional.id": name})
    pending: list[Callable[[], object]] = [
        lambda: consumer.committed([kafka.TopicPartition("rocketshim-touch", 0)], timeout=timeout_s),
        lambda: producer.init_transactions(timeout_s),
    ]
    try:
        while pending:
            try:
                pending[0]()
                pending.pop(0)
            except kafka.KafkaException as error:
                # A topic that is being created answers with NOT_COORDINATOR and similar errors.
                if time.monotonic() > deadline:
                    raise LocalBrokerError(
                        f"the internal topics were not ready within {timeout_s:.0f} s: {error}"
                    ) from error
                time.sleep(_POLL_S)
    finally:
        consumer.close()
    await_in_sync(config, timeout_s)


def await_in_sync(config: Mapping[str, str], timeout_s: float) -> None:
    """Wait until all replicas of every partition are in sync; see `LocalCluster.await_in_sync`."""
    deadline = time.monotonic() + timeout_s
    admin = _admin(config)
    while True:
        lagging = [
            f"{topic.topic}-{partition.id}"
            for topic in admin.list_topics(timeout=10.0).topics.values()
            for partition in topic.partitions.values()
            if partition.leader < 1 or len(partition.isrs) < len(partition.replicas)
        ]
        if not lagging:
            return
        if time.monotonic() > deadline:
            raise LocalBrokerError(f"partitions not in sync after {timeout_s:.0f} s: {', '.join(sorted(lagging)[:10])}")
        time.sleep(_POLL_S)


def _admin(config: Mapping[str, str]) -> "AdminClient":
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 likewise

    settings: dict[str, Any] = {**config, "log_level": 0, "reconnect.backoff.max.ms": 250}
    return AdminClient(settings, logger=logging.getLogger("rocketshim.local.client"))
