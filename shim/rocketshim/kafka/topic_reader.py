"""Reads topics up to their end: for listings, counts and traces, never for consumption.

The reader commits nothing and joins no group. Counts are of records that were read, never of offsets: transaction
markers and compaction leave gaps. The end of each partition is fixed when reading begins, so a listing of a busy topic
ends; with `follow` it continues until the caller stops. The isolation level is `read_committed`: aborted records are
never returned.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from rocketshim.errors import BrokerUnavailableError, NotAuthorizedError, RocketshimError, TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.client_config import PROTECTED_CONSUMER, for_reading, merge
from rocketshim.kafka.clients import Clients, ConsumerClient, LastClientError, confluent_clients, is_fatal
from rocketshim.kafka.lookups import ANSWER_S, AnswerT, ask_patiently, check_answers, in_parts, partition_bounds
from rocketshim.kafka.positions import group_positions
from rocketshim.kafka.queue_lookup import no_such_topics
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import DENIED, MISSING
from rocketshim_topics.limits import INT_MAX
from rocketshim_topics.names import init_command

__all__ = ["LITTLE_AHEAD", "TopicReader"]

LITTLE_AHEAD: Final = {"queued.max.messages.kbytes": 2_048, "fetch.message.max.bytes": 262_144}
"""For readers of a few records of many partitions: what the client fetches ahead costs memory, and time by a quota."""

_DENIED_S: Final = 1.0
_GROUPS_AT_A_TIME: Final = 8  # each has a client: up to 66 file handles on 30 brokers (our measurement)
_POLL_S: Final = 0.2
_FETCH_COUNT: Final = 1_000
_FETCH_WAIT_MS: Final = 50  # a fetch that waits at an end delays the next read (500 by default, measured)


class TopicReader:
    """Reads records of some topics.

    A partition with more records that stays silent for `patience_s` (it has no leader), or for twice that while a quota
    throttles this client, is a BrokerUnavailableError, like a cluster that does not answer.

    Thread-safety: none; one owner thread. A context manager; `close` is idempotent.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client: Mapping[str, Any] | None = None,
        clients: Clients | None = None,
        patience_s: float = 30.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._reading: object = None
        self._paused: set[TopicPartitionKey] = set()
        self._patience_s = patience_s
        noted_s = self._throttled_s = [0.0]  # when a quota last held back an answer; its client refers to no reader

        def throttled(event: Any) -> None:
            if event.throttle_time:
                noted_s[0] = time.monotonic()

        required = {
            **PROTECTED_CONSUMER,
            "bootstrap.servers": bootstrap,
            "group.id": f"rocketshim-read-{uuid.uuid4().hex[:8]}",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        self._clients, self._client = clients or confluent_clients(), for_reading(client or {})
        self._complaints = LastClientError()
        defaults = {
            **self._complaints.settings,
            "throttle_cb": throttled,
            "client.id": "rocketshim-read",
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "queued.max.messages.kbytes": 16_384,
        }
        self._consumer: ConsumerClient = self._clients.consumer(
            merge(self._client, defaults=defaults, required=required)
        )

    def admin(self, complaints: LastClientError) -> Any:
        """Return a new admin client of the same cluster, whose log goes to `complaints`; a Kafka in memory has none."""
        make = self._clients.admin
        defaults = {**complaints.settings, "client.id": "rocketshim-read"}
        required = {"bootstrap.servers": self._bootstrap}
        return None if make is None else make(merge(self._client, defaults=defaults, required=required))

    def topics(self) -> dict[str, int]:
        """Return every visible topic of the cluster, with its number of partitions."""
        return {name: len(topic.partitions) for name, topic in self._metadata().topics.items()}

    def require(self, topic: str) -> str:
        """Return one of the namespace's own topics if it exists; the error names the command that creates it."""
        if not self.topics().get(topic):
            raise TopicMissingError(f"there is no topic {topic}; create it with: {init_command(topic)}. {OR_HIDDEN}")
        return topic

    def cluster_id(self) -> str:
        """Return Kafka's id of the cluster; `""`: the cluster did not give it."""
        return str(getattr(self._metadata(), "cluster_id", None) or "")

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the earliest offset that retention has left, and the end of the partition."""
        if partition > INT_MAX:  # for example in a forged header; the client would raise OverflowError
            raise TopicMissingError(f"there is no partition {topic}/{partition}: Kafka's numbers end at {INT_MAX}")
        return self._ask(lambda: partition_bounds(self._consumer, TopicPartition(topic, partition), ANSWER_S))

    def read(
        self,
        topics: Sequence[str],
        *,
        since_ms: int | None = None,
        follow: bool = False,
        new_only: bool = False,
        poll_s: float = _POLL_S,
    ) -> Generator[Any]:
        """Yield every record of these topics from a time on, as Kafka messages; in order within a partition.

        With `follow` continue forever with new records (with `new_only` begin with them), and yield None after each
        `poll_s` in which none arrived.
        """
        ends = {key: high for key, (low, high) in self._bounds(topics).items() if follow or high > low}
        starts = [TopicPartition(*key, end) for key, end in ends.items()] if new_only else None
        reading = self._begin(self._starts(list(ends), since_ms) if starts is None else starts)
        try:
            yield from self._until(ends, follow=follow, poll_s=poll_s)
        finally:
            self._end(reading)

    def spans(
        self, topics: Sequence[str], *, since_ms: int | None = None, until_ms: int | None = None
    ) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return the offsets of these topics' records from a time up to another; partitions without any are absent."""
        bounds = self._bounds(topics)
        lows, highs = ({key: each[side] for key, each in bounds.items()} for side in (0, 1))
        starts = lows if since_ms is None else highs | self.offsets_at_times(dict.fromkeys(bounds, since_ms))
        ends = highs if until_ms is None else highs | self.offsets_at_times(dict.fromkeys(bounds, until_ms))
        return {key: (starts[key], ends[key]) for key in bounds if starts[key] < ends[key]}

    def bounds_of(self, partitions: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return the bounds of many partitions, in two requests to each leader; absent: its leader did not answer."""
        wanted = list(partitions)
        if not wanted:
            return {}
        lows, ends = (
            {TopicPartitionKey.of(each): each.offset for each in self._ask(request) if each.error is None}
            for request in (partial(self._at_times, dict.fromkeys(wanted, at)) for at in (OFFSET_BEGINNING, OFFSET_END))
        )
        return {key: (low, ends[key]) for key, low in lows.items() if key in ends}

    def bounds_of_existing(self, partitions: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return the bounds of the partitions that exist; one whose leader does not answer is an error."""
        wanted = list(partitions)
        found = self.bounds_of(wanted)
        for key in wanted:
            if key not in found:
                with suppress(TopicMissingError):
                    found[key] = self.bounds(*key)
        return found

    def bounds_of_all(self, partitions: Sequence[TopicPartitionKey]) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return the bounds of all these partitions; one whose leader does not answer is an error, as in `bounds`."""
        found = self.bounds_of(partitions)
        return {key: found.get(key) or self.bounds(*key) for key in partitions}

    def committed(self, group: str, partitions: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, TopicPartition]:
        """Return what a group, which is not joined, has committed: position and metadata; absent: nothing.

        A new client asks, because a client knows the positions of one group only.
        """
        asked = [TopicPartition(*key) for key in partitions]
        if not asked:
            return {}
        required = {"bootstrap.servers": self._bootstrap, "group.id": group, "enable.auto.commit": False}
        defaults = {"client.id": "rocketshim-read"}
        consumer = self._clients.consumer(merge(self._client, defaults=defaults, required=required))
        try:
            found = self._ask(lambda: _positions(consumer, asked))
        finally:
            consumer.close()
        return {TopicPartitionKey.of(each): each for each in found}

    def committed_by_groups(
        self, asked: Mapping[str, Iterable[TopicPartitionKey]]
    ) -> Generator[tuple[str, dict[TopicPartitionKey, TopicPartition] | RocketshimError]]:
        """Yield what each group has committed in its partitions, or the error that `committed` raises.

        Several groups are asked at a time, each in a thread of its own: an answer takes 20 to 50 ms, mostly of waiting.
        Groups that were not asked yet when the caller stops are not asked.
        """
        pool = ThreadPoolExecutor(_GROUPS_AT_A_TIME, "rocketshim-groups")
        try:
            answers = {group: pool.submit(self.committed, group, keys) for group, keys in asked.items()}
            for group, answer in answers.items():
                error = answer.exception()
                if error is not None and not isinstance(error, RocketshimError):
                    raise error
                yield group, answer.result() if error is None else error
        finally:
            pool.shutdown(cancel_futures=True)

    def positions(self, group: str, partitions: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        """Return the committed positions of a group, as `committed`."""
        return {key: each.offset for key, each in self.committed(group, partitions).items()}

    def first_records(
        self,
        spans: Mapping[TopicPartitionKey, tuple[int, int]],
        *,
        most: int = 1,
        skip: Callable[[Any], bool] = lambda _: False,
        denied: set[str] | None = None,
    ) -> dict[TopicPartitionKey, list[Any]]:
        """Return the first records of each span, `most` at most, without those to `skip`; absent: the span has none.

        Topics that the principal may not read are an error, or are added to `denied` and passed over from then on: a
        client reports each only once.
        """
        ends = {key: end for key, (start, end) in spans.items() if start < end and key.topic not in (denied or ())}
        found: dict[TopicPartitionKey, list[Any]] = {}
        reading = self._begin([TopicPartition(*key, spans[key][0]) for key in ends])
        try:
            for message in self._until(ends, follow=False, denied=denied):
                key = TopicPartitionKey(message.topic(), message.partition())
                if not skip(message):
                    found.setdefault(key, []).append(message)
                if len(found.get(key, ())) == most:
                    del ends[key]
                    self._consumer.pause([TopicPartition(*key)])
                    self._paused.add(key)
        finally:
            self._end(reading)
        return found

    def offsets_at_times(self, times: Mapping[TopicPartitionKey, int]) -> dict[TopicPartitionKey, int]:
        """Return the first offset of each partition that is not older than its time; absent: every record is older."""
        found = self._ask(lambda: check_answers(self._at_times(times))) if times else []
        return {TopicPartitionKey.of(each): each.offset for each in found if each.offset >= 0}

    def read_at(self, topic: str, positions: Iterable[tuple[int, int]]) -> Generator[Any]:
        """Yield the records at these positions of a topic that still exist; in order within a partition."""
        wanted: dict[int, set[int]] = defaultdict(set)
        for partition, offset in positions:
            wanted[partition].add(offset)
        spans: dict[TopicPartitionKey, tuple[int, int]] = {}
        for partition, offsets in wanted.items():
            low, high = self.bounds(topic, partition)
            spans[TopicPartitionKey(topic, partition)] = (max(low, min(offsets)), min(high, max(offsets) + 1))
        for message in self.read_spans(spans):
            if message.offset() in wanted[message.partition()]:
                yield message

    def read_spans(
        self, spans: Mapping[TopicPartitionKey, tuple[int, int]], *, follow: bool = False, with_silence: bool = False
    ) -> Generator[Any]:
        """Yield every record from the first offset of a span up to, but not including, the second.

        With `follow` continue forever with new records. Then, or `with_silence`, yield None after each 0.2 s in which
        no record arrived, so that the caller may stop.
        """
        wanted = {key: span for key, span in spans.items() if follow or span[0] < span[1]}
        reading = self._begin([TopicPartition(*key, start) for key, (start, _) in wanted.items()])
        try:
            ends = {key: end for key, (_, end) in wanted.items()}
            yield from self._until(ends, follow=follow, with_silence=with_silence)
        finally:
            self._end(reading)

    def fetch(self, topic: str, partition: int, offset: int) -> Any | None:
        """Return the record at this offset, or None if there is none (any more), also no such topic or partition."""
        try:
            low, high = self.bounds(topic, partition)
        except TopicMissingError:
            return None
        if not low <= offset < high:
            return None
        first = next(self.read_spans({TopicPartitionKey(topic, partition): (offset, offset + 1)}), None)
        return first if first is not None and first.offset() == offset else None

    def close(self) -> None:
        """Close the consumer."""
        self._reading = None
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, starts: list[TopicPartition]) -> object:
        """Assign these partitions; the previous reading stops."""
        self._reading = object()
        self._consumer.assign(starts)
        if self._paused:  # a pause outlasts an assignment
            self._consumer.resume([each for each in starts if TopicPartitionKey.of(each) in self._paused])
            self._paused -= {TopicPartitionKey.of(each) for each in starts}
        return self._reading

    def _end(self, reading: object) -> None:
        """Unassign, unless another reading has begun meanwhile: an abandoned iterator may be closed late."""
        if self._reading is reading:
            self._reading = None
            self._consumer.unassign()

    def _until(
        self,
        ends: dict[TopicPartitionKey, int],
        *,
        follow: bool,
        with_silence: bool = False,
        denied: set[str] | None = None,
        poll_s: float = _POLL_S,
    ) -> Iterator[Any]:
        since_s = time.monotonic()
        while ends or follow:
            batch = self._fetch(poll_s)
            if batch:
                since_s = time.monotonic()
            elif not follow and time.monotonic() - since_s > self._patience_s:
                is_throttled = self._throttled_s[0] > since_s
                if not is_throttled or time.monotonic() - since_s > 2 * self._patience_s:
                    silent = ", ".join(f"{topic}/{number}" for topic, number in sorted(ends))
                    cause = "a quota of this client.id holds it back" if is_throttled else "is a leader unavailable?"
                    raise BrokerUnavailableError(
                        f"no record arrived from {silent} for {time.monotonic() - since_s:.0f} s: {cause}"
                    )
            if not batch and (follow or with_silence):
                yield None
            for message in batch:
                key: Any = (message.topic(), message.partition())  # a plain tuple: one is made per record
                if message.error() is not None:
                    self._take_event(message, {} if follow else ends, denied)
                    continue
                end = ends.get(key)
                if follow or (end is not None and message.offset() < end):
                    yield message
                if not follow and end is not None and message.offset() + 1 >= end:
                    ends.pop(key, None)

    def _fetch(self, poll_s: float) -> list[Any]:
        """Wait for one record or event, and return it with those that are here already."""
        first = self._consumer.poll(poll_s)
        if first is None:
            return []
        return [first, *self._consumer.consume(_FETCH_COUNT - 1, 0)]  # with a timeout it waits for that number

    @staticmethod
    def _take_event(message: Any, ends: dict[TopicPartitionKey, int], denied: set[str] | None) -> None:
        """Remove from `ends` what an event ends: a partition, or a denied topic. Other errors are temporary."""
        error: KafkaError = message.error()
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            if denied is None:
                raise NotAuthorizedError(f"the principal may not read {message.topic()}: grant it Read")
            denied.add(message.topic())
            for each in [each for each in ends if each.topic == message.topic()]:
                del ends[each]
        elif is_fatal(error):
            raise RocketshimError(f"cannot continue reading: {error.str()}")
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - no public spelling
            ends.pop(TopicPartitionKey(message.topic(), message.partition()), None)

    def _metadata(self) -> Any:
        return self._ask(lambda: self._consumer.list_topics(timeout=ANSWER_S))

    def _ask(self, request: Callable[[], AnswerT]) -> AnswerT:
        """Return the answer to a request of `ANSWER_S`; raise a typed error."""
        try:
            return ask_patiently(request, self._consumer, self._complaints)
        except KafkaException as error:
            raise self.typed(error) from error

    def _bounds(self, topics: Sequence[str]) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return the bounds of all partitions of these topics, all of which must exist."""
        known = self.topics()
        missing = [topic for topic in topics if not known.get(topic)]
        if missing:
            raise no_such_topics(missing)
        return self.bounds_of_all(
            [TopicPartitionKey(topic, number) for topic in topics for number in range(known[topic])]
        )

    def _starts(self, partitions: list[TopicPartitionKey], since_ms: int | None) -> list[TopicPartition]:
        if since_ms is None:
            return [TopicPartition(*key, OFFSET_BEGINNING) for key in partitions]
        found = self.offsets_at_times(dict.fromkeys(partitions, since_ms))
        return [TopicPartition(*key, found.get(key, OFFSET_END)) for key in partitions]

    def _at_times(self, times: Mapping[TopicPartitionKey, int]) -> list[TopicPartition]:
        asked = [TopicPartition(*key, at_ms) for key, at_ms in times.items()]
        return in_parts(lambda part: self._consumer.offsets_for_times(part, timeout=ANSWER_S), asked)

    def typed(self, error: KafkaException) -> RocketshimError:
        """Return the typed error for an error of the client, with this cluster's address."""
        cause: KafkaError = error.args[0]
        if cause.code() in DENIED:
            return NotAuthorizedError(
                f"the principal may not do this ({cause.str()}); see: rocketshim acls --role operator"
            )
        if cause.code() in MISSING:
            return TopicMissingError(f"there is no such topic or partition ({cause.str()}). {OR_HIDDEN}")
        text = self._complaints.text(self._consumer)
        return BrokerUnavailableError(f"no broker at {self._bootstrap} answered ({cause.name()}: {cause.str()}){text}")


def _positions(consumer: ConsumerClient, asked: list[TopicPartition]) -> list[TopicPartition]:
    """Return the positions of a consumer's group; the consumer is subscribed to nothing.

    Of a group that the principal may not see, the client asks for the coordinator until the time is over, and only its
    event has the cause (test_a_group_that_may_not_be_seen_is_named_soon).
    """
    try:
        return group_positions(consumer, asked, _DENIED_S)
    except KafkaException as error:
        event = consumer.poll(0)
        cause = None if event is None else event.error()
        if cause is not None and cause.code() in DENIED:
            raise KafkaException(cause) from error
        if error.args[0].code() != KafkaError._TIMED_OUT:  # noqa: SLF001 - no public spelling
            raise
    return group_positions(consumer, asked, ANSWER_S)
