"""Look up how many partitions topics have, in a thread and through a client that do nothing else.

The worker's loop asks and goes on; the answers come later, by `answers`. Its own consumer cannot be asked: a request of
a client that is fetching waits behind the fetch, half a second each (our measurement), and 1 ms through another one.

* Few topics are asked for by name. Many are asked for by one request for all topics of the cluster, which costs 3 µs
  for each of them. A topic that is not in that answer may exist and be hidden from us, so it counts as missing only
  after it was asked for by name.
* The client is a consumer that never subscribes: a producer's request may create the topic that it names.
* What is needed now wakes the thread. What is only to be refreshed waits for up to a second, so that many go together.
* A cluster that does not answer within 5 s does not know any of the topics that were to be asked for; asking goes on
  a second later at the earliest, by `TargetTable`.

Where there is no background thread (the in-memory Kafka, which answers immediately) `answers` asks by itself: driven
from one thread everything is deterministic.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException

from rocketshim_topics.kafka_codes import MISSING

__all__ = ["NO_TARGET", "Answer", "TopicLookup"]

_TIMEOUT_S: Final = 5.0
_GATHER_S: Final = 1.0
_CLOSE_S: Final = 1.0
_MOST_BY_NAME: Final = 20

NO_TARGET: Final = MISSING | {KafkaError.TOPIC_EXCEPTION}
"""There is no such topic or partition, or there cannot be: a name that Kafka forbids comes out of a record."""


class _MetadataClient(Protocol):
    def list_topics(self, topic: Any = ..., timeout: float = ...) -> Any: ...
    def poll(self, timeout: float = ...) -> Any: ...
    def close(self) -> Any: ...


class Answer(NamedTuple):
    """What was found out about one topic.

    Attributes:
        topic: physical name.
        ticket: of the question.
        partitions: how many it has; 0: it is not there; None: that cannot be found out now.
        error: why the cluster did not answer; stands in one answer of those that it concerns.
    """

    topic: str
    ticket: int
    partitions: int | None
    error: str = ""


class TopicLookup:
    """Answers how many partitions topics have.

    Args:
        make_client: makes the consumer to ask with; called in the thread that will own it, at the first question.
        in_background: whether a thread asks; without one, `answers` does.

    Thread-safety: the worker's thread calls all methods.
    """

    def __init__(self, make_client: Callable[[], _MetadataClient], *, in_background: bool) -> None:
        self._make_client = make_client
        self._client: _MetadataClient | None = None
        self._asked: deque[tuple[str, int]] = deque()
        self._unconfirmed: dict[str, int] = {}  # not among all topics; belongs to the thread that asks
        self._answers: deque[Answer] = deque()
        self._wanted = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        if in_background:
            self._thread = threading.Thread(target=self._run, name="rocketshim-topic-lookup", daemon=True)
            self._thread.start()

    def ask(self, topic: str, ticket: int, *, is_urgent: bool) -> None:
        """Ask for a topic.

        Args:
            topic: physical name.
            ticket: stands in the answer.
            is_urgent: records wait for the answer.
        """
        self._asked.append((topic, ticket))
        if is_urgent:
            self._wanted.set()

    def answers(self) -> Iterator[Answer]:
        """Give the answers that are there; waits for a broker only where there is no background thread."""
        if self._thread is None and (self._asked or self._unconfirmed):
            self._look_up()
        while self._answers:
            yield self._answers.popleft()

    def close(self) -> None:
        """End the thread and its client. A thread that waits for a broker is left behind, and ends within 5 s."""
        self._is_closing = True
        self._wanted.set()
        if self._thread is None:
            self._close_client()
        else:
            self._thread.join(_CLOSE_S)

    # --- in the background thread, if there is one -------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            if not self._unconfirmed:
                self._wanted.wait(_GATHER_S)
                self._wanted.clear()
            if self._is_closing:
                break
            if self._asked or self._unconfirmed:
                self._look_up()
        self._close_client()

    def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _look_up(self) -> None:
        """Ask for what is wanted: for everything in one request, or for a few by name."""
        wanted: dict[str, int] = {}
        while self._asked:
            topic, ticket = self._asked.popleft()
            self._unconfirmed.pop(topic, None)
            wanted[topic] = ticket
        try:
            if self._client is None:
                self._client = self._make_client()
            if len(wanted) > _MOST_BY_NAME:
                self._look_up_all(self._client, wanted)
            else:
                self._unconfirmed = {**wanted, **self._unconfirmed}
            for topic in list(self._unconfirmed)[:_MOST_BY_NAME]:
                found = self._client.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
                self._answers.append(Answer(topic, self._unconfirmed.pop(topic), _partitions(found)))
            self._client.poll(0)  # serves its errors, which nobody needs
        except KafkaException as error:
            text = str(error)
            for topic, ticket in (wanted | self._unconfirmed).items():
                self._answers.append(Answer(topic, ticket, None, text))
                text = ""
            self._unconfirmed = {}

    def _look_up_all(self, client: _MetadataClient, wanted: dict[str, int]) -> None:
        """Answer what is found among all topics; the rest is asked for by name later."""
        topics = client.list_topics(timeout=_TIMEOUT_S).topics
        for topic, ticket in list(wanted.items()):
            partitions = _partitions(topics.get(topic))
            if partitions:
                self._answers.append(Answer(topic, ticket, partitions))
            else:
                self._unconfirmed[topic] = ticket
            del wanted[topic]


def _partitions(found: Any) -> int | None:
    if found is None or (found.error is not None and found.error.code() in NO_TARGET):
        return 0
    return len(found.partitions) or None
