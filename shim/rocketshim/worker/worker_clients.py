"""The worker's Kafka clients and their settings, and what it asks the cluster with an admin client."""

import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rocketshim.core.clock import Clock
from rocketshim.core.send_pace import SendPace, cost
from rocketshim.errors import NotAuthorizedError, TopicMissingError
from rocketshim.kafka.acls import denied_topics
from rocketshim.kafka.client_config import PROTECTED_CONSUMER, PROTECTED_PRODUCER, WORKER_SESSION_MS, client_settings
from rocketshim.kafka.clients import (
    Clients,
    ConsumerClient,
    LastClientError,
    ProducerClient,
    answer_time_s,
    close_producer,
    explained,
    purge_producer,
)
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.logs import safe_logger
from rocketshim.settings.worker import WorkerSettings
from rocketshim_topics.layout import Layout

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

__all__ = ["MEMBER", "WorkerClients"]

_LOG = safe_logger("rocketshim.worker")
MEMBER: Final[dict[str, Any]] = {"group.protocol": "classic", "session.timeout.ms": WORKER_SESSION_MS}
"""How the worker is a member of its group; a user may set another session time-out."""
_NS: Final = 1_000_000
_MOST_UNPOLLED_MS: Final = 5_000  # added to the session time-out; a blocked loop then loses its partitions


class WorkerClients:
    """Creates the worker's Kafka clients; `errors` are those that the loop has not read yet.

    Thread-safety: the worker's thread, except `lookup_consumer`. librdkafka's callbacks append to `errors`.
    """

    def __init__(
        self,
        clients: Clients,
        settings: WorkerSettings,
        group: str,
        *,
        on_commit: Callable[..., None],
        alarm: Callable[..., None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self.errors: deque[KafkaError] = deque(maxlen=100)
        self.make_producer = clients.producer
        self._clients = clients
        self._settings = settings
        instance = settings.instance or f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        self.transactional_id = f"{group}.{instance}"
        self._group = group
        self._on_commit = on_commit
        self._alarm = alarm

    @property
    def is_in_memory(self) -> bool:
        """Whether this is the in-memory Kafka, which has no admin client and answers immediately."""
        return self._clients.admin is None

    def discard(self, producer: ProducerClient, longest_s: float) -> None:
        """Close a producer, but wait only for a time: that blocks while the transaction of the producer cannot begin.

        librdkafka asks for it again and again, and closes the producer only after the answer (2.16.1, our measurement).
        """
        if self.is_in_memory:
            close_producer(producer, longest_s)
            return
        purge_producer(producer, longest_s)  # here, since the loop's thread owns what its callbacks change
        closing = threading.Thread(target=close_producer, args=(producer, 0.0), name="rocketshim-close", daemon=True)
        closing.start()
        closing.join(longest_s)

    def denied(self, topics: set[str]) -> set[str]:
        """Return which of these topics the worker may not write to, as far as the cluster shows."""
        if self._clients.admin is None:
            return set()
        return denied_topics(self._clients.admin(self._connection({})), topics, self._alarm)

    def ensure_topics(self, layout: Layout) -> None:
        """Create the topics of the layout if they are missing, or check them; log settings that differ.

        Those of named timers are created, too, but they are not needed where no timer has a name.
        """
        if self._clients.admin is None:
            return
        from rocketshim_topics import provision  # noqa: PLC0415 - the one module of that package that loads Kafka

        creates = self._settings.create_topics
        complaints = LastClientError()
        admin = self._clients.admin(self._connection({}, complaints.settings))
        with explained(complaints, admin):
            timeout_s = answer_time_s(admin, complaints)
            found = [*provision.ensure_topics(admin, layout.shared(), create=creates, timeout_s=timeout_s).differences]
            if creates:
                with suppress(
                    NotAuthorizedError, TopicMissingError
                ):  # no right to create or see them: only timers with names need them
                    found += provision.ensure_topics(admin, layout.timers(), timeout_s=timeout_s).differences
        for difference in found:
            _LOG.warning("worker.settings-differ", extra={"difference": str(difference)})

    def _connection(self, required: dict[str, Any], defaults: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._settings.client_config({"error_cb": self.errors.append, **required}, defaults)

    def consumer(self) -> ConsumerClient:
        """Return the consumer of the schedule topic."""
        required = {
            "error_cb": self.errors.append,
            "auto.offset.reset": "error",  # the worker seeks to the earliest record itself, and logs an alarm
            "partition.assignment.strategy": "cooperative-sticky",
            "on_commit": self._on_commit,
        }
        return self._clients.consumer(self._consumer_config(required, {}))

    def lookup_consumer(self) -> ConsumerClient:
        """Return the consumer that looks up targets; it never joins the group.

        It has the settings of the other consumer, so that the same settings of the user are legal for both.
        """
        return self._clients.consumer(self._consumer_config({}, LastClientError().settings))

    def timer_reader(self) -> TopicReader:
        """Return a reader of the timer log and of its state."""
        settings = self._settings
        own = client_settings((), allow_code_settings=settings.allow_code_settings)
        own |= {name: value for name, value in settings.client.items() if name not in MEMBER}
        return TopicReader(settings.bootstrap, client=own, clients=self._clients)

    def _consumer_config(self, required: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
        session_ms = int((MEMBER | self._settings.client)["session.timeout.ms"])
        longest_ms = self._settings.transaction_timeout_ms if self._settings.exactly_once else 0
        required = {
            **PROTECTED_CONSUMER,
            "group.id": self._group,
            "group.protocol": MEMBER["group.protocol"],
            **required,
        }
        defaults = {
            **defaults,
            "client.id": "rocketshim-worker",
            "queued.min.messages": 5_000,
            "queued.max.messages.kbytes": 16_384,
            "fetch.message.max.bytes": 1_048_576,
            "fetch.max.bytes": 16_777_216,  # an answer stays in memory until its last record is read
            "fetch.queue.backoff.ms": 10,
            "session.timeout.ms": session_ms,
            "max.poll.interval.ms": max(session_ms + _MOST_UNPOLLED_MS, longest_ms),
            "heartbeat.interval.ms": 2_000,
            # Bounds the time to notice new lanes and re-created topics. A refresh that is answered while the consumer
            # joins makes it join again: with 5 s it never joined on a link of 3 s.
            "topic.metadata.refresh.interval.ms": 10_000,
        }
        return self._settings.client_config(required, defaults)

    @property
    def longest_ms(self) -> int:
        """Time after which a producer abandons a record; exactly once a call, below the transaction's time-out."""
        settings = self._settings
        return settings.transaction_timeout_ms * 2 // 3 if settings.exactly_once else settings.hop_timeout_ms

    def pace(self) -> SendPace:
        """Return the pace of the producers that share it."""
        settings = self._settings
        return SendPace(
            patience_ns=settings.target_patience_ms * _NS,
            longest_ns=self.longest_ms * _NS,
            most=cost(settings.max_in_flight_count, settings.max_in_flight_bytes),
        )

    def producer_config(self, pace: SendPace) -> dict[str, Any]:
        """Return the settings of a producer of hops; it passes throttle times to `pace` and to the user's callback."""
        defaults = {
            "client.id": "rocketshim-worker",
            "linger.ms": 1,
            "message.max.bytes": 100_000_000,
            "topic.metadata.propagation.max.ms": self._settings.target_patience_ms,
        }
        required = {**PROTECTED_PRODUCER, "delivery.timeout.ms": self._settings.hop_timeout_ms}
        return paced(self._connection(required, defaults), pace, self._clock)

    def transactional_config(self, pace: SendPace) -> dict[str, Any]:
        """Return the settings of a transactional producer of hops."""
        timeout_ms = self._settings.transaction_timeout_ms
        return {
            **self.producer_config(pace),
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "delivery.timeout.ms": timeout_ms,
            # The coordinator refuses librdkafka's first request of a transaction while it finishes the last one.
            # librdkafka then waits for its back-off. With the default of 100 ms a transaction takes 104 ms, with 1 ms
            # it takes 6 ms (measured).
            "retry.backoff.ms": 1,
            "retry.backoff.max.ms": 100,
        }


def paced(config: Mapping[str, Any], pace: SendPace, clock: Clock) -> dict[str, Any]:
    """Return the settings of a producer that passes throttle times to `pace` and to the user's callback, if any."""
    users = config.get("throttle_cb")

    def throttled(event: Any) -> None:
        pace.throttled(clock.monotonic_ns(), round(event.throttle_time * 1e9))
        if users is not None:
            users(event)

    return {**config, "throttle_cb": throttled}
