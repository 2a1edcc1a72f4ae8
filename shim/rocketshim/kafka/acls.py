"""Which topics a principal has no right to write to: asked when a transaction was refused without naming its topic.

A transaction that may not write to one of its topics fails as a whole (`TOPIC_AUTHORIZATION_FAILED`), and its other
records are reported like those of the denied topic (measured). The cluster says which it was.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection

__all__ = ["OR_HIDDEN", "denied_topics"]

OR_HIDDEN: Final = "Kafka says the same to who may not see it: rocketshim acls --role operator"
"""What is to be said where something is not there: a principal without rights is told nothing else."""

_TIMEOUT_S: Final = 5.0


def denied_topics(admin: Any, topics: Iterable[str], alarm: Callable[..., None]) -> set[str]:
    """The topics among these that may not be written to, as far as the cluster says so within 5 s.

    One that names no rights at all (it was not asked to, or is too old to) denies nothing: whoever may describe a topic
    has at least that right.

    Args:
        admin: a `confluent_kafka.admin.AdminClient` with the rights of the producer.
        topics: physical names.
        alarm: told an event and its facts.
    """
    from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined] # noqa: PLC0415 - seldom needed

    denied: set[str] = set()
    asked = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=_TIMEOUT_S
    )
    for topic, future in asked.items():
        problem: BaseException | None
        try:
            problem = future.exception(_TIMEOUT_S)  # asked for: raised, it would keep the client in its frames
        except TimeoutError as late:
            problem = late
        if problem is None:
            allowed = future.result().authorized_operations
            if allowed is not None and AclOperation.WRITE not in allowed:
                denied.add(topic)
        elif isinstance(problem, KafkaException) and problem.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            denied.add(topic)
        else:
            alarm("worker.metadata-failed", topic=topic, error=str(problem))
    return denied
