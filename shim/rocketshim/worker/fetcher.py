"""Fetches records of the schedule topic and puts them into the queues of their partitions."""

import time
from collections.abc import Callable
from itertools import groupby
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.core.clock import Clock
from rocketshim.errors import NotAuthorizedError, TopicMissingError
from rocketshim.kafka.clients import ConsumerClient, is_fatal
from rocketshim.worker.assignment import AssignedPartition, Assignment
from rocketshim.worker.router import Router
from rocketshim.worker.state import Alarms
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.hops import is_probe
from rocketshim_topics.names import init_command
from rocketshim_topics.wire import headers_shown

__all__ = ["Fetcher"]

_NS: Final = 1_000_000
_FETCH_COUNT: Final = 1_000
_MISSING_NS: Final = 30_000 * _NS  # a broker may not know a topic for a moment; the client reports that once
_OF_TIMERS: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED})
_HEADER_BYTES: Final = 40  # memory of a header in addition to its name and value


class Fetcher:
    """Fetches records; `failure` is why the consumer cannot continue."""

    def __init__(
        self,
        assignment: Assignment,
        router: Router,
        *,
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
        prefetch_bytes: int,
        alarm: Alarms,
    ) -> None:
        self.failure: Exception | None = None
        self._assignment = assignment
        self._router = router
        self._counts = alarm.counts
        self._clock = clock
        self._sleep = sleep
        self._prefetch_bytes = prefetch_bytes
        self._alarm = alarm
        self._mean_bytes = 0  # mean size of a record of the last fetch
        self._missing_ns: int | None = None  # from when on the topic counts as missing; None: every broker knows it

    def fetch(self, consumer: ConsumerClient, wait_ns: int) -> bool:
        """Fetch records into their queues; return whether the batch was full, so that more may be ready."""
        self._look_for_topic()
        whole_ms = wait_ns // _NS
        if whole_ms == 0 and wait_ns > 0:
            self._sleep(wait_ns / 1e9)
        try:
            first = consumer.poll(whole_ms / 1_000)
            if first is None:
                return False
            count = self._fetch_count(first)
            batch = [first, *consumer.consume(count - 1, 0)] if count > 1 else [first]
        except KafkaException as error:  # a failure of the consumer itself, which cannot continue
            self.failure = error
            return False
        is_more = len(batch) == count
        seen_ns = self._clock.monotonic_ns()
        errors = [message for message in batch if message.error() is not None]
        if errors:
            batch = [message for message in batch if message.error() is None]
        for topic, of_topic in groupby(batch, methodcaller("topic")):
            for number, messages in groupby(of_topic, methodcaller("partition")):
                assigned = self._assignment.held.get(TopicPartitionKey(topic, number))
                if assigned is not None:
                    self.offer(assigned, list(messages), seen_ns)
        for each in errors:
            self._client_error(each)
        return is_more

    def _look_for_topic(self) -> None:
        """Fail if the topic has been missing for long."""
        if self._missing_ns is not None and self._clock.monotonic_ns() >= self._missing_ns:
            self._missing_ns = None
            if all(key.topic != self._assignment.topic for key in self._assignment.held):
                self.failure = TopicMissingError(
                    f"the topic {self._assignment.topic} does not exist; create it with: "
                    f"{init_command(self._assignment.topic)}"
                )

    def _fetch_count(self, first: Any) -> int:
        """Return the maximum size of one fetched batch; the headers of each message become Python objects."""
        # 0.25 MB on the wire became 2 MB and more (test_large_records_are_fetched_a_few_at_a_time,
        # test_headers_count_towards_the_bytes_in_flight)
        mean_bytes = self._mean_bytes
        if first.error() is None:
            mean_bytes = max(mean_bytes, len(first) + self._beyond_value(first))
        return min(_FETCH_COUNT, 1 + self._prefetch_bytes // (mean_bytes + 1))

    def offer(self, assigned: AssignedPartition, run: list[Any], seen_ns: int) -> None:
        """Put fetched records of a partition into its queue, and mark those without an append time for parking.

        The time of a sender cannot be trusted. Such records were written before the topic stamped append times. If they
        are the last of the partition, they leave after a probe; if the probe has no append time either, the worker ends
        with an error.
        """
        # a probe has no value, and a message without a value is falsy, so the length is tested
        if 0 in map(len, run):
            probes = {message.offset() for message in run if len(message) == 0 and is_probe(message)}
            if probes:
                run = [message for message in run if message.offset() not in probes]
                assigned.skipped_to = max(probes) + 1
                self._counts.skipped += len(probes)
        extra_bytes = self._beyond_values(run)
        self._mean_bytes = extra_bytes + len(run[-1]) if run else 0
        try:
            unstamped = assigned.queue.offer(run, seen_ns, extra_bytes)
        except ValueError:  # the run may begin with records of the old log
            last_fall = max((at for at in range(1, len(run)) if run[at].offset() <= run[at - 1].offset()), default=0)
            self.offer(self._assignment.restarted(assigned), run[last_fall:], seen_ns)
            return
        for message in unstamped:
            self._router.refusals.park(message, "no-append-time")
        if not assigned.queue.has_due(seen_ns):  # otherwise the router looks the targets up when the records leave
            self._router.expect(run, seen_ns)

    def _beyond_values(self, run: list[Any]) -> int:
        """Return the mean bytes of key and headers of a record, from three samples: reading each record costs time."""
        return sum(map(self._beyond_value, (run[0], run[len(run) // 2], run[-1]))) // 3 if run else 0

    def _beyond_value(self, message: Any) -> int:
        """Return the bytes of key and headers of a record."""
        headers = sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers_shown(message))
        return len(message.key() or b"") + headers

    def _client_error(self, message: Any) -> None:
        error: KafkaError = message.error()
        if is_fatal(error):
            self.failure = KafkaException(error)
        elif message.topic() not in {None, self._assignment.topic} and error.code() in _OF_TIMERS:
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:  # if it is missing, no named timers are used
                self._alarm.client_error(error, message.topic())
        elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._missing_ns = self._missing_ns or self._clock.monotonic_ns() + _MISSING_NS
            self._alarm.client_error(error, message.topic())
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:  # reported once; nothing is read from now on
            self.failure = NotAuthorizedError(
                f"the worker may not read {self._assignment.topic}: grant it Read, see: rocketshim acls --role worker"
            )
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - no public spelling
            self._assignment.overtaken(TopicPartitionKey(message.topic(), message.partition()))
        else:
            self._alarm.client_error(error, message.topic())
