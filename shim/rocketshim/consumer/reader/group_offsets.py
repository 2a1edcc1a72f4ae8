"""The offsets of a group: where each partition starts, and the commits of one consumer. Owned by the poll thread.

*Starts.* `core.start_position` makes the decision. `StartOffsets` asks Kafka for its input: committed offsets and their
metadata of *all* partitions of the topic, the end of a log, the offset of a time. A start that was resolved, and not
committed before, is committed immediately, before the first message is handed out. Otherwise, after a crash before the
first commit, the group would start at the new end of the log and lose the messages in between
(test_the_start_is_committed_before_the_first_message_is_handed_out).

*Commits.* `core.partition` decides which offsets may be sent. A failed commit does not end the consumer, because the
next commit covers it, unless the client can do nothing more (`fatal`). The refusal of one partition does not count for
the others (`kafka.lookups.stored_among`). Under leases, positions that do not move are committed again each hour
(`core.clock.RENEWAL_MS`). A position is also committed again if its metadata has changed (`core.process_deaths`): soon,
because a call may wait for it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.local_offsets import LocalOffsetStore
from rocketshim.core.clock import RENEWAL_MS, Interval
from rocketshim.core.partition import Partition
from rocketshim.core.process_deaths import CarefulStart, Handling
from rocketshim.core.start_position import (
    Commit,
    CommitMetadata,
    ConsumeFromWhere,
    Start,
    StartRules,
    decode_metadata,
    digest_conflict,
    encode_metadata,
    has_same_filter,
    is_other_filter,
    latest_offset,
    led_by,
    resolve_starts,
    topics_of,
)
from rocketshim.kafka.clients import ConsumerClient, LookupClient, is_fatal
from rocketshim.kafka.lookups import check_answers, in_parts, offsets_at, partitions_of, stored_among
from rocketshim.locks.lease import Ownership
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Committer", "StartOffsets", "commit_now"]

_LOG = safe_logger("rocketshim.consumer")
_AGAIN_MS = 500  # until a refused commit is repeated for its metadata
_CAREFUL_MS = 200  # time between two commits of positions while a partition is read with care


def commit_now(store: ConsumerClient | LocalOffsetStore, offsets: list[TopicPartition]) -> None:
    """Commit offsets, and return when they are stored. Raises KafkaException: some were refused, or not answered."""
    check_answers(in_parts(lambda part: store.commit(offsets=part, asynchronous=False), offsets))


class Committer:
    """Commits of one consumer, to Kafka, or synchronously to a `store`. `as_offsets` adds what a commit carries."""

    def __init__(
        self,
        client: Callable[[], ConsumerClient],
        now_ms: Callable[[], int],
        as_offsets: Callable[[Mapping[TopicPartitionKey, int]], list[TopicPartition]],
        ownership: Ownership,
        partitions: Mapping[TopicPartitionKey, Partition],
        *,
        store: LocalOffsetStore | None = None,
        care: CarefulStart | None = None,
    ) -> None:
        self._client = client
        self._now_ms = now_ms
        self._as_offsets = as_offsets
        self._ownership = ownership
        self._store = store
        self._care = care or CarefulStart()
        self._sent_handlings: dict[TopicPartitionKey, Handling | None] = {}
        self._not_before_ms = self._last_ms = 0
        self._partitions = partitions
        self._renewal = Interval(RENEWAL_MS, now_ms() + RENEWAL_MS)
        self._again: set[TopicPartitionKey] = set()  # to commit, even if their offsets have not moved
        self.outstanding = 0  # commits without an answer yet; librdkafka may repeat one after a later one: none follows
        self.failed = 0  # number of commits refused since the start
        self.failing_since_ms: int | None = None
        self.fatal: KafkaException | None = None

    def commit(self, partitions: Iterable[Partition], *, asynchronous: bool) -> None:
        """Commit the finished offsets of these partitions, and again those that were refused.

        If not `asynchronous`, also commit again those that were sent without an answer.
        """
        asynchronous = asynchronous and self._store is None
        if asynchronous and self.outstanding:
            return
        if asynchronous and self._ownership.needs_lease and self._renewal.is_due(self._now_ms()):
            self.commit_again(self._partitions)
        self._again = {key for key in self._again | self._care.dirty if self._has_begun(key)}
        if not self._again and not self.outstanding:
            self.failing_since_ms = None  # this consumer no longer reads what was refused
        due: dict[TopicPartitionKey, int] = {}
        for partition in partitions:
            offset = None if partition.queue is None else partition.queue.next_offset
            if offset is not None and partition.may_send(offset, again=not asynchronous):
                due[partition.key] = offset
            elif partition.key in self._again:
                due[partition.key] = partition.sent
        self._send(due, asynchronous=asynchronous)

    def _has_begun(self, key: TopicPartitionKey) -> bool:
        return key in self._partitions and self._partitions[key].sent >= 0

    def is_urgent(self) -> bool:
        """Return whether a commit is to be made before the next interval, for the care of a partition."""
        if self.outstanding or not (self._care.dirty or self._care.is_active):
            return False
        now_ms = self._now_ms()
        if self._care.dirty:
            return now_ms >= self._not_before_ms
        return now_ms >= max(self._not_before_ms, self._last_ms + _CAREFUL_MS)

    def commit_again(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Have the next commit contain these partitions, unless offsets are not stored in Kafka."""
        if self._store is None:
            self._again.update(keys)

    def _send(self, positions: dict[TopicPartitionKey, int], *, asynchronous: bool) -> None:
        owned = {key: offset for key, offset in positions.items() if self._ownership.owns(key)}
        if not owned:
            return
        self._last_ms = self._now_ms()
        self._sent_handlings = {key: self._care.handling(key) for key in owned}
        offsets = self._as_offsets(owned)
        for key, offset in owned.items():
            self._partitions[key].sent = offset
        self._again.difference_update(owned)
        try:
            if asynchronous:
                self._client().commit(offsets=offsets, asynchronous=True)
                self.outstanding += 1
            else:
                self._take(None, (self._store or self._client()).commit(offsets=offsets, asynchronous=False))
        except KafkaException as error:
            self._take(error.args[0], offsets)

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Process the answer to an asynchronous commit (librdkafka's `on_commit`). Never raises."""
        self.outstanding = max(0, self.outstanding - 1)
        self._take(error, partitions)

    def _take(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        errors = [error] if error is not None else [item.error for item in partitions if item.error is not None]
        stored = stored_among(self._client(), partitions, error) if error and self._store is None else ()
        for item in partitions:
            key = TopicPartitionKey.of(item)
            if (partition := self._partitions.get(key)) is None:
                continue  # revoked meanwhile
            if (error is None and item.error is None) or key in stored:
                partition.confirm(item.offset)
                self._care.stored(key, self._sent_handlings.get(key))  # a refusal of another partition does not count
            elif partition.is_last_sent(item.offset):
                self._again.add(key)
        if errors:
            self._refused(errors)
        else:
            self.failing_since_ms = None

    def _refused(self, errors: list[KafkaError]) -> None:
        self.failed += 1
        self._not_before_ms = self._now_ms() + _AGAIN_MS
        self.fatal = next(map(KafkaException, filter(is_fatal, errors)), self.fatal)
        self._ownership.is_shared |= any(each.code() == KafkaError.UNKNOWN_MEMBER_ID for each in errors)
        self.failing_since_ms = self._now_ms() if self.failing_since_ms is None else self.failing_since_ms
        _LOG.warning("consumer.commit-failed", extra={"error": ", ".join(dict.fromkeys(map(str, errors)))})


_MAX_LOGGED: Final = 100
_COMPARE_TIMEOUT_S: Final = 0.5
_OTHER_TOPICS: Final = (
    "in a rolling deployment this is normal, and nothing is lost; if it lasts, subscribe to the same topics in each "
    "member (docs: Rolling deployments)"
)


class StartOffsets:
    """Start offsets of one consumer.

    Source: `RebalancePushImpl#computePullFromWhereWithException` of RocketMQ.
    """

    def __init__(
        self,
        rules: StartRules,
        *,
        client: Callable[[], ConsumerClient],
        lookups: LookupClient,
        ownership: Ownership,
        care: CarefulStart | None = None,
        store: LocalOffsetStore | None = None,
    ) -> None:
        self._rules = rules
        self._care = care or CarefulStart()
        self._client = client
        self._lookups = lookups
        self._ownership = ownership
        self.store = store  # None: offsets are stored in Kafka
        self._counts: dict[str, int] = {}
        self._logged: dict[TopicPartitionKey, Handling] = {}
        self._born: dict[TopicPartitionKey, int] = {}
        # the token in the commit of a partition when its start was last looked up; None: it carries none; without an
        # entry there was no commit
        self.found_tokens: dict[TopicPartitionKey, int | None] = {}
        self._outdated: set[TopicPartitionKey] = set()
        self._others: set[str] = set()  # digests of subscriptions whose topics are known to differ
        self._led: dict[str, str] = {}  # topic to the subscription as its commits carry it
        # topic to the subscription, as text, of a member that committed there and may have another filter of the topic:
        # two filters in one group lose messages, since each member skips what the other wants
        self.conflicts: dict[str, str] = {}
        self._compared = Interval(rules.compare_every_ms)

    def subscribe(self, digest: str, subscription: str) -> None:
        """Set a changed subscription; commits carry it from now on."""
        self._rules = replace(self._rules, digest=digest, subscription=subscription)
        self._others, self._led = set(), {}

    def as_offsets(self, positions: Mapping[TopicPartitionKey, int]) -> list[TopicPartition]:
        """Return positions in the form in which they are committed: with metadata."""
        rules = self._rules

        def metadata(key: TopicPartitionKey) -> str:
            token, handling = self._ownership.token(key), self._care.handling(key)
            if handling is not None:
                handling = handling.since(positions[key])
            # the number of partitions that the topic had when its start was found: one that is added later is read from
            # its start (test_partitions_that_came_later_are_read_from_their_start)
            if (subscription := self._led.get(key.topic)) is None:
                subscription = self._led[key.topic] = led_by(key.topic, rules.subscription)
            return encode_metadata(CommitMetadata(rules.digest, self._born.get(key, 0), subscription, token, handling))

        return [TopicPartition(*key, offset, metadata=metadata(key)) for key, offset in positions.items()]

    def resolve(self, keys: Collection[TopicPartitionKey], timeout_s: float) -> dict[TopicPartitionKey, int]:
        """Return the start offsets of partitions, and commit those that are not committed yet; under leases, all.

        Kafka refuses that while its group protocol has members in the group, which would handle the same messages.
        Partitions that we no longer own are skipped; the new owner may already have committed further. Errors as in
        `find`; after an error of `find` nothing was committed, and after one of Kafka some may be.
        """
        starts, ownership = self.find(keys, timeout_s), self._ownership
        kept = self.found_tokens.keys() - self._outdated
        new = {key: at for key, at in starts.items() if ownership.needs_lease or key not in kept}
        self.commit({key: at for key, at in new.items() if ownership.owns(key)})
        return starts

    def commit(self, starts: Mapping[TopicPartitionKey, int]) -> None:
        """Commit where partitions start. Raises KafkaException: refused, or not answered."""
        handlings = {key: self._care.handling(key) for key in starts}
        commit_now(self.store or self._client(), self.as_offsets(starts))
        for key, handling in handlings.items():
            self._care.stored(key, handling)

    def find(self, keys: Collection[TopicPartitionKey], timeout_s: float) -> dict[TopicPartitionKey, int]:
        """Return the start offsets of partitions. Each request has `timeout_s` seconds; no answer: KafkaException."""
        rules = self._rules
        resolved: dict[TopicPartitionKey, Start] = {}
        handlings: dict[TopicPartitionKey, Handling] = {}
        mine = {topic: [key.partition for key in some] for topic, some in groupby(sorted(keys), attrgetter("topic"))}
        for topic, found in self._found(mine, timeout_s).items():
            starts, born = resolve_starts(
                mine[topic],
                found,
                where=rules.where,
                is_retry_topic=topic == rules.retry_topic,
                partition_count=self._counts[topic],
            )
            for number, start in starts.items():
                key = TopicPartitionKey(topic, number)
                resolved[key], self._born[key] = start, born
                self.found_tokens.pop(key, None)
                self._outdated.discard(key)
                if number in found:
                    commit = found[number][1]
                    self.found_tokens[key] = None if commit is None else commit.token
                    # else a quiet retry topic shows the filter of a member that is gone, forever: see
                    # test_a_differing_subscription_is_reported_until_the_commits_agree
                    if topic == rules.retry_topic and commit is not None and commit.digest != rules.digest:
                        self._outdated.add(key)
                    if commit is not None and commit.handling is not None:
                        handlings[key] = commit.handling
        offsets = self._offsets(resolved, timeout_s)
        self._begin(offsets, handlings, timeout_s)
        chosen = [f"{key}/{at}" for key, at in offsets.items() if key not in self.found_tokens]
        if chosen:
            extra = {"where": rules.where.name, "starts": chosen[:_MAX_LOGGED], "count": len(chosen)}
            _LOG.info("consumer.start-chosen", extra=extra)
        return offsets

    def _begin(
        self,
        starts: Mapping[TopicPartitionKey, int],
        handlings: Mapping[TopicPartitionKey, Handling],
        timeout_s: float,
    ) -> None:
        """Begin partitions with or without care, and log how their last owners ended, if that was not in good order."""
        left_open, ends = [key for key, each in handlings.items() if each.is_open], {}
        with suppress(KafkaException):  # then the care lasts longer
            ends = offsets_at(self._lookups, left_open, OFFSET_END, timeout_s) if left_open else {}
        new = {key for key, each in handlings.items() if self._logged.get(key) != each}  # not at each attempt to start
        self._logged.update(handlings)
        unclean = [str(key) for key in starts if key in new and handlings[key].is_open]
        suspects: list[str] = []
        for key, start in starts.items():
            found = self._care.begin(key, start, handlings.get(key), ends.get(key))
            for offset, times in found.items() if key in new else ():
                suspects.append(f"{key}/{offset}")
                if times > 1:  # it was alone when the last process died
                    _LOG.error("consumer.message-unfinished", extra={"record": suspects[-1], "times": times})
        if unclean or suspects:
            extra = {"partitions": unclean[:_MAX_LOGGED], "suspects": suspects[:_MAX_LOGGED]}
            _LOG.warning("consumer.begun-carefully", extra=extra)

    def _found(self, assigned: Mapping[str, list[int]], timeout_s: float) -> dict[str, dict[int, Commit]]:
        listed = partitions_of(self._lookups, assigned, timeout_s)
        # the assigned ones, too: the broker's metadata may be outdated
        numbers = {topic: sorted({*mine, *listed[topic]}) for topic, mine in assigned.items()}
        self._counts.update({topic: len(each) for topic, each in numbers.items()})
        found: dict[str, dict[int, Commit]] = {topic: {} for topic in numbers}
        for item in check_answers(self._committed(numbers, timeout_s)):
            if item.offset >= 0:
                found[item.topic][item.partition] = item.offset, decode_metadata(item.metadata)
        for topic, commits in found.items():
            self._compare(topic, [metadata for _, metadata in commits.values()])
        return found

    def _committed(self, numbers: Mapping[str, Iterable[int]], timeout_s: float) -> list[TopicPartition]:
        asked = [TopicPartition(topic, number) for topic, each in numbers.items() for number in each]
        return in_parts(lambda part: (self.store or self._client()).committed(part, timeout=timeout_s), asked)

    def compare_soon(self) -> None:
        """Compare the subscriptions at the next opportunity: partitions were assigned, whose commits may differ."""
        self._compared.next_ms = 0

    def compare(self, topics: Iterable[str], now_ms: int) -> None:
        """Check, if it is time, whether a member of the group subscribes differently: that loses messages.

        What any member has committed of these topics, or of the retry topic, tells: a member without a queue of a topic
        would find out only when it gets one.
        """
        if self._compared.is_due(now_ms):
            try:
                self.look(topics)
            except KafkaException as error:
                _LOG.debug("consumer.subscriptions-unknown", extra={"error": str(error)})

    def look(self, topics: Iterable[str], timeout_s: float = _COMPARE_TIMEOUT_S) -> None:
        """Compare the subscriptions now. Raises KafkaException: no answer."""
        read = list(topics)
        compared = list(filter(self._is_compared, read))
        self.conflicts = {topic: self.conflicts[topic] for topic in compared if topic in self.conflicts}
        read = read if compared else []
        unknown = [topic for topic in read if topic not in self._counts]
        listed = partitions_of(self._lookups, unknown, timeout_s)
        self._counts.update({topic: len(numbers) for topic, numbers in listed.items()})
        commits: dict[str, list[CommitMetadata]] = {topic: [] for topic in read}
        for item in self._committed({topic: range(self._counts[topic]) for topic in read}, timeout_s):
            if item.error is None and item.offset >= 0 and (commit := decode_metadata(item.metadata)) is not None:
                commits[item.topic].append(commit)
        mine, retries = self._rules.subscription, commits.get(self._rules.retry_topic or "", [])
        for topic in compared:  # a member may have queues of the retry topic, and none of this one
            witnesses = [each for each in retries if is_other_filter(topic, mine, each.subscription)]
            self._compare(topic, commits[topic] + witnesses)

    def _is_compared(self, topic: str) -> bool:
        return topic != self._rules.retry_topic and self.store is None  # only this member writes into a local store

    def _compare(self, topic: str, commits: Iterable[CommitMetadata | None]) -> None:
        rules = self._rules
        others = [each for each in commits if each is not None and digest_conflict(rules.digest, each) is not None]
        if not self._is_compared(topic):
            others = []
        if not rules.allocates:  # else a member that lacks a topic has queues of it, and nobody reads them
            self._log_other_topics(others)
            others = [each for each in others if not has_same_filter(topic, rules.subscription, each.subscription)]
        if not others:
            self.conflicts.pop(topic, None)
            return
        theirs = others[0].subscription or others[0].digest
        if self.conflicts.get(topic) != theirs:
            self.conflicts[topic] = theirs
            extra = {"topic": topic, "mine": rules.subscription, "theirs": theirs}
            _LOG.error("consumer.subscriptions-differ", extra=extra)

    def _log_other_topics(self, others: Iterable[CommitMetadata]) -> None:
        """Log, once for each subscription, that a member subscribes to other topics, which loses nothing."""
        mine = topics_of(self._rules.subscription)
        for each in others:
            theirs = topics_of(each.subscription)
            if mine is None or theirs is None or mine == theirs or each.digest in self._others:
                continue
            self._others.add(each.digest)
            facts = {"only_mine": sorted(mine - theirs), "only_theirs": sorted(theirs - mine), "hint": _OTHER_TOPICS}
            _LOG.warning("consumer.topics-differ", extra=facts)

    def _offsets(self, starts: Mapping[TopicPartitionKey, Start], timeout_s: float) -> dict[TopicPartitionKey, int]:
        def asked(where: Collection[ConsumeFromWhere], when_ms: int) -> dict[TopicPartitionKey, int]:
            return offsets_at(
                self._lookups, [key for key, start in starts.items() if start in where], when_ms, timeout_s
            )

        first, last = ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET
        firsts, young = asked({first, last}, OFFSET_BEGINNING), self._rules.young_queue_max_messages
        return {
            **firsts,
            **{key: latest_offset(firsts[key], end, young) for key, end in asked({last}, OFFSET_END).items()},
            **asked({ConsumeFromWhere.TIMESTAMP}, self._rules.timestamp_ms),
            **{key: start for key, start in starts.items() if isinstance(start, int)},
        }
