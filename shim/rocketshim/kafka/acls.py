"""Which topics a principal may not write to: looked up when a refused transaction does not name the denied topic.

A transaction that may not write to one of its topics fails as a whole (`TOPIC_AUTHORIZATION_FAILED`). Its other records
get the same report as those of the denied topic (measured). The cluster knows which topic it was.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection

__all__ = ["OR_HIDDEN", "denied_topics"]

OR_HIDDEN: Final = "It may also exist but be hidden from you: see rocketshim acls --role operator"
"""Sentence for errors about something missing: Kafka gives a principal without rights the same answer."""

_TIMEOUT_S: Final = 5.0


def denied_topics(admin: Any, topics: Iterable[str], alarm: Callable[..., None]) -> set[str]:
    """Return the topics among these that the principal may not write to, by the cluster's answers within 5 s.

    An answer without any rights (the cluster was not asked for them, or is too old to answer) denies nothing: a
    principal that may describe a topic has at least that right. `describe_acls` is no help: it returns an empty list to
    a principal that may not ask (test_a_topic_is_denied_only_if_the_cluster_says_so).
    """
    from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined] # noqa: PLC0415 - seldom needed

    denied: set[str] = set()
    asked = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=_TIMEOUT_S
    )
    for topic, future in asked.items():
        problem: BaseException | None
        try:
            problem = future.exception(_TIMEOUT_S)  # not raised: its traceback would keep the client alive
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
