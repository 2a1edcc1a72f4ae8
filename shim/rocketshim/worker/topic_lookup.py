"""Looks up how many partitions topics have, with a separate thread and a separate client.

The worker's loop asks and continues; `answers` returns the answers later. The loop does not use its own consumer: a
request of a client that is fetching waits behind the fetch, half a second each (our measurement). Through another
client it takes 1 ms.

* A few topics are looked up by name, 1 ms each. Many are looked up with one request for all topics of the cluster. It
  costs 2.5 µs of CPU and 0.3 kB for each of the cluster's partitions (measured), so the larger the cluster, the more
  topics are looked up by name. A topic that is not in that answer may exist but be hidden from us, so it counts as
  missing only after a lookup by name.
* The client is a consumer that never subscribes: a producer's request may create the topic that it names
  (test_a_consumer_that_asks_for_a_topic_does_not_create_it_and_a_producer_does).
* An urgent lookup wakes the thread. A refresh waits for up to a second, so that one request serves many topics.
* If the cluster does not answer within 5 s, the partitions of all topics without an answer stay unknown. `TargetTable`
  asks again a second later at the earliest.
* Any other failure, as of a setting that the client refuses, ends the worker (`failure`).

Without a background thread (the in-memory Kafka, which answers immediately) `answers` does the lookups itself. Then one
thread drives everything, and the result is deterministic.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from rocketshim.kafka.clients import ConsumerClient
from rocketshim_topics.kafka_codes import MISSING

__all__ = ["NO_TARGET", "Answer", "TopicLookup"]

_TIMEOUT_S: Final = 5.0
_GATHER_S: Final = 1.0
_CLOSE_S: Final = 1.0
_MOST_BY_NAME: Final = 20
_PARTITIONS_PER_NAME: Final = 400  # in an answer for all topics, these cost as much as one lookup by name

NO_TARGET: Final = MISSING | {KafkaError.TOPIC_EXCEPTION}
"""The topic or partition does not exist, or cannot exist: a record may contain a name that Kafka forbids."""


class Answer(NamedTuple):
    """The result of one lookup."""

    topic: str
    ticket: int
    partitions: int | None  # 0: the topic does not exist; None: unknown at the moment
    error: str = ""  # why the cluster did not answer


class TopicLookup:
    """Looks up how many partitions topics have; `failure` is why it cannot.

    `make_client` is called at the first lookup, in the thread that will own the client. The worker's thread calls the
    methods.
    """

    def __init__(self, make_client: Callable[[], ConsumerClient], *, in_background: bool) -> None:
        self.failure: Exception | None = None
        self._make_client = make_client
        self._client: ConsumerClient | None = None
        self._asked: deque[tuple[str, int]] = deque()
        self._unconfirmed: dict[str, int] = {}  # not among all visible topics; only the looking-up thread uses it
        self._most_by_name = _MOST_BY_NAME  # more are looked up with one request for all topics
        self._answers: deque[Answer] = deque()
        self._wanted = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        if in_background:
            self._thread = threading.Thread(target=self._run, name="rocketshim-topic-lookup", daemon=True)
            self._thread.start()

    def ask(self, topic: str, ticket: int, *, is_urgent: bool) -> None:
        """Request the lookup of a topic; the answer repeats the ticket. It is urgent if records wait for it."""
        self._asked.append((topic, ticket))
        if is_urgent:
            self._wanted.set()

    def answers(self) -> Iterator[Answer]:
        """Yield the answers that have arrived; wait for a broker only if there is no background thread."""
        if self._thread is None and (self._asked or self._unconfirmed):
            self._look_up()
        while self._answers:
            yield self._answers.popleft()

    def close(self) -> None:
        """End the thread and its client. A thread that waits for a broker continues alone and ends within 5 s."""
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
        """Look up the requested topics: all in one request, or a few by name."""
        wanted: dict[str, int] = {}
        while self._asked:
            topic, ticket = self._asked.popleft()
            self._unconfirmed.pop(topic, None)
            wanted[topic] = ticket
        try:
            if self._client is None:
                self._client = self._make_client()
            if len(wanted) > self._most_by_name:
                self._look_up_all(self._client, wanted)
            else:
                self._unconfirmed, wanted = {**wanted, **self._unconfirmed}, {}
            for topic in list(self._unconfirmed)[:_MOST_BY_NAME]:
                found = self._client.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
                self._answers.append(Answer(topic, self._unconfirmed.pop(topic), _partitions(found)))
            self._client.poll(0)  # calls its error callbacks, which nothing needs
        except KafkaException as error:
            for topic, ticket in (wanted | self._unconfirmed).items():
                self._answers.append(Answer(topic, ticket, None, str(error)))
            self._unconfirmed = {}
        except Exception as error:  # noqa: BLE001 - the loop raises it
            self.failure, self._unconfirmed = error, {}

    def _look_up_all(self, client: ConsumerClient, wanted: dict[str, int]) -> None:
        """Answer for topics that are found among all topics; the others are looked up by name later."""
        topics = client.list_topics(timeout=_TIMEOUT_S).topics
        partition_count = sum(len(each.partitions) for each in topics.values())
        self._most_by_name = max(_MOST_BY_NAME, partition_count // _PARTITIONS_PER_NAME)
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
