"""Share groups whose dead letters Kafka writes (KIP-1191, since 4.4)."""

import time
from collections.abc import Callable

from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, Message, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

_ANSWER_S = 30.0
_MESSAGES_S = 60.0


def set_up_share_group(
    admin: AdminClient, group: str, dead_letters: str, *, copies_records: bool = False, max_deliveries: int = 2
) -> bool:
    """Create a dead-letter topic with two partitions, and configure a group that reads from the first record on.

    Returns:
        False if Kafka is older than 4.4 and has no such setting; then there is no topic.
    """
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": str(max_deliveries),
        "errors.deadletterqueue.topic.name": dead_letters,
        "errors.deadletterqueue.copy.record.enable": str(copies_records).lower(),
    }
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    try:
        admin.incremental_alter_configs([resource])[resource].result(_ANSWER_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.INVALID_CONFIG:
            return False
        raise
    topic = NewTopic(dead_letters, 2, config={"errors.deadletterqueue.group.enable": "true", "retention.ms": "-1"})
    admin.create_topics([topic])[dead_letters].result(_ANSWER_S)
    return True


def consume_shared(
    bootstrap: str, group: str, topic: str, answer: Callable[[Message], AcknowledgeType], *, deliveries: int
) -> list[Message]:
    """Acknowledge a number of deliveries as `answer` says, and return them.

    Raises:
        TimeoutError: they did not arrive within 60 s.
    """
    received: list[Message] = []
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer(settings | {"log_level": 0})  # it logs that it is a preview
    consumer.subscribe([topic])
    deadline = time.monotonic() + _MESSAGES_S
    try:
        while len(received) < deliveries:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(received)} of {deliveries} deliveries of {topic} arrived")
            for message in consumer.poll(1.0):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                consumer.acknowledge(message, answer(message))
                received.append(message)
            consumer.commit_sync(_ANSWER_S)
    finally:
        consumer.close()
    return received
