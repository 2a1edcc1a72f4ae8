"""Decides where each due record goes now, from the planner's decision and the state of its target. Produces nothing.

`route` returns a `Placement`: topic, partition, headers, and the kind of hop. A delivery calls it again for a record
whose hop was refused. Facts learnt meanwhile change the result:

* If the target is unknown, or may have got the wanted partition meanwhile, the record waits (`NOT_YET`).
* If the target is not on the allow-list, the record is re-appended for a worker that may deliver it, and finally
  parked.
* If the target does not exist, the record is parked. If the target is avoided, the record is re-appended
  (`TARGET_TRIES`), and parked after the configured number of tries.
* If the record itself was refused (`mark_for_parking`), it is parked, without its body if it is too large for the
  parking topic.

So both deliveries treat failures alike: they report the failure to the router, and route the record again.

The router always chooses the partition (by key as the Java client does, in turn without a key), so that the reports of
one partition arrive in the order of its records.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from confluent_kafka import KafkaError, murmur2

from rocketshim.core.level_queue import Due
from rocketshim.kafka.reports import is_unconfirmed
from rocketshim.worker.allow_list import NOT_ALLOWED, AllowList
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.fast_path import FastPath
from rocketshim.worker.planner import Deliver, DeliveryPlanner, NextQueue, NotAllowed, Park, Skip
from rocketshim.worker.target_health import TargetHealth, TargetTable
from rocketshim.worker.topic_lookup import NO_TARGET
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import OutgoingRecord, bare_parked
from rocketshim_topics.kafka_codes import TOO_LARGE
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import REAL_TOPIC, Header, headers_shown, read_headers

__all__ = ["Kind", "Placement", "PlainGroup", "Router", "Verdict"]

_REFUSED_RECORD: Final = TOO_LARGE | frozenset(
    {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError._INVALID_ARG,  # noqa: SLF001 - librdkafka's local errors have no public spelling
    }
)
"""Errors of one record for which the broker refuses the record's whole batch."""
_NO_CAUSE: Final = frozenset(
    {
        KafkaError._PURGE_QUEUE,  # noqa: SLF001
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
        KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001
    }
)
"""Errors caused neither by the record nor by the target: produce the record again."""
_PRODUCER_LACKS: Final = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001
"""Errors caused by a producer's metadata, which may be older than the router's."""
_LOOK_AGAIN_NS: Final = 1_000_000_000
_MOST_ROUTES: Final = 10_000
_LONGEST_NAME: Final = 300  # bytes of a logical name; a longer value cannot be a name and is not remembered


class Kind(Enum):
    """The kind of a placement."""

    DELIVER = "deliver"
    HOP = "hop"
    RE_APPEND = "re-append"
    PARK = "park"
    SKIP = "skip"
    NOT_YET = "not-yet"


class Verdict(Enum):
    """What to do with a record whose hop was not stored."""

    ROUTE_AGAIN = "route-again"
    WAIT = "wait"


class Placement:
    """Where one record goes.

    Attributes:
        kind: the kind of hop.
        topic: physical name; `""` for a skip and for a record that has to wait.
        partition: -1: any.
        headers: the headers to write.
        value: the record's value, without a body that was too large to be parked; None is a tombstone.
        due_ms: when the record was due, epoch ms; 0 if it is not a delivery.
        reason: why it is parked or re-appended.
        target: the target of a delivery, or the target for whose `ready_ns` the record waits.
        one_per_batch: whether the record must be a separate batch.
    """

    __slots__ = ("due_ms", "headers", "key", "kind", "one_per_batch", "partition", "reason", "target", "topic", "value")

    def __init__(
        self,
        kind: Kind,
        out: OutgoingRecord | None,
        *,
        partition: int = -1,
        due_ms: int = 0,
        reason: str = "",
        target: TargetHealth | None = None,
        one_per_batch: bool = False,
    ) -> None:
        self.kind = kind
        self.topic = "" if out is None else out.topic
        self.headers: list[Header] = [] if out is None else out.headers
        self.key = None if out is None else out.key
        self.value = None if out is None else out.value
        self.partition = partition
        self.due_ms = due_ms
        self.reason = reason
        self.target = target
        self.one_per_batch = one_per_batch


class _Route:
    """The constant part of routing for one value of `REAL_TOPIC`: it is allowed, and leads to this topic."""

    __slots__ = ("group", "target", "topic")

    def __init__(self, topic: str, group: bytes | None) -> None:
        self.topic = topic
        self.group = group
        self.target: TargetHealth | None = None


class PlainGroup:
    """Plain due records of a run for one partition of a target.

    Attributes:
        records: for each record its index in the run, its value, key and headers, and when it was due, epoch ms.
    """

    __slots__ = ("partition", "records", "target")

    def __init__(self, target: TargetHealth, partition: int) -> None:
        self.target = target
        self.partition = partition
        self.records: list[tuple[int, bytes | None, bytes | None, list[Header], int]] = []


_SKIP: Final = Placement(Kind.SKIP, None)


class Router:
    """Decides where records go, by the planner's rules and the state of the targets.

    Args:
        names: topic names of the namespace.
        levels: the worker's level table.
        policy: the allow-list.
        targets: state of the targets.
        target_tries: how often a record is re-appended before it is parked.
        max_delay_ms: longest delay from now.
        alarm: called with an event and its facts.

    Attributes:
        targets: state of the targets.

    Thread-safety: none; the worker's thread.
    """

    def __init__(
        self,
        names: TopicNames,
        levels: DelayLevels,
        policy: AllowList,
        targets: TargetTable,
        *,
        target_tries: int,
        max_delay_ms: int,
        alarm: Callable[..., None],
    ) -> None:
        self.targets = targets
        self._names = names
        self._levels = levels
        self._policy = policy
        self._planner = DeliveryPlanner(names, levels, policy, max_delay_ms)
        self._target_tries = target_tries
        self._alarm = alarm
        self._cut = FastPath().cut
        self._routes: dict[bytes, _Route | None] = {}
        self._park_reasons: dict[tuple[int, int], str] = {}
        self._without_body: set[tuple[int, int]] = set()

    # --- the fast path -----------------------------------------------------------------------------------------------

    def _fast_target(self, real_topic: bytes, group: bytes | None, now_ns: int) -> TargetHealth | None:
        """Return the target of records of the fast path; None: `route` decides where they go.

        The result is valid until a record has taken the slow path.

        Args:
            real_topic: value of `REAL_TOPIC`.
            group: value of `CONSUMER_GROUP`; None: the record has no such header.
            now_ns: monotonic now.
        """
        route = self._known_route(real_topic)
        if route is None or (route.group is not None and route.group != group):
            return None
        target = route.target
        if target is None or now_ns >= target.ask_ns:
            target = route.target = self.targets.target(route.topic, now_ns)
        if not target.partitions or now_ns < target.ready_ns or target.failures or now_ns < target.careful_until_ns:
            return None
        return target

    def expect(self, run: list[Any], now_ns: int) -> None:
        """Look up the targets of fetched records long before they are due."""
        last: bytes | None = None
        for record in run:
            for name, value in headers_shown(record):
                if name == REAL_TOPIC:
                    if value is not last and value:
                        last = value
                        route = self._known_route(value)
                        if route is not None and (route.target is None or now_ns >= route.target.ask_ns):
                            route.target = self.targets.target(route.topic, now_ns)
                    break

    def _known_route(self, real_topic: bytes) -> _Route | None:
        if real_topic in self._routes:
            return self._routes[real_topic]
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        route = None
        try:
            name = real_topic.decode()
        except UnicodeDecodeError:
            name = ""
        group = name.removeprefix("%RETRY%") if name.startswith("%RETRY%") else None
        if name and self._policy.refusal(name, group) is None:
            route = _Route(self._names.physical(name), None if group is None else group.encode())
        if len(real_topic) <= _LONGEST_NAME:
            self._routes[real_topic] = route
        return route

    def plain_ones(  # noqa: C901 - one pass over a run, in which every call costs speed
        self, due: Due[Any], start: int, assigned: AssignedPartition, now_ns: int
    ) -> tuple[list[PlainGroup], int]:
        """Return the plain due records from an index on, up to the first record that must take the slow path.

        Returns:
            The records, grouped by target partition, each group in order: groups produced one after the other make
            larger batches on the wire. And the index of the record that takes the slow path, or the length of the run.
        """
        clock_ms = due.clock_ms
        latest_append_ms = clock_ms - assigned.queue.delay_ms
        prefix, cut, number, marked = assigned.hop_prefix, self._cut, assigned.number, self._park_reasons
        groups: list[PlainGroup] = []
        targets: list[TargetHealth] = []
        last_topic: bytes | None = None
        last_group: bytes | None = None
        target: TargetHealth | None = None
        count = 0
        index, end = start, len(due.records)
        while index < end:
            append_ms = due.appends_ms[index]
            if append_ms > latest_append_ms:
                break
            record = due.records[index]
            if marked and (number, record.offset()) in marked:
                break
            try:
                found = cut(read_headers(record), append_ms, clock_ms, b"%b%d" % (prefix, record.offset()))
            except MalformedRecordError:
                break
            if found is None:
                break
            real_topic, group, headers, due_ms = found
            if real_topic is not last_topic or group != last_group:
                target = self._fast_target(real_topic, group, now_ns)
                last_topic, last_group, count = real_topic, group, (target and target.partitions) or 0
            if target is None:
                break
            key = record.key()
            partition = target.turn % count if key is None else murmur2(key, count)
            add = target.begun.get(partition)
            if add is None:
                if not target.begun:
                    targets.append(target)
                begun = PlainGroup(target, partition)
                groups.append(begun)
                add = target.begun[partition] = begun.records.append
            add((index, record.value(), key, headers, due_ms))
            index += 1
        for each in targets:
            each.turn += 1
            each.begun.clear()
        return groups, index

    # --- the slow path, which defines correctness --------------------------------------------------------------------

    def route_due(self, due: Due[Any], at: int, now_ns: int) -> Placement:
        """Call `route` for the record at index `at` of a run."""
        return self.route(due.records[at], clock_ms=due.clock_ms, seen_ns=due.seen_ns[at], now_ns=now_ns)

    def route(self, record: Any, *, clock_ms: int, seen_ns: int, now_ns: int) -> Placement:
        """Return where a record goes now.

        Args:
            record: as fetched.
            clock_ms: lower bound of the leader's clock, epoch ms.
            seen_ns: monotonic instant at which the record was first seen.
            now_ns: monotonic now.
        """
        step = self._planner.plan(record, clock_ms=clock_ms, seen_ns=seen_ns, now_ns=now_ns)
        park_reason = self._park_reasons.get((record.partition(), record.offset())) if self._park_reasons else None
        match step:
            case Skip():
                return _SKIP
            case Park(_, reason):
                return self._park(record, park_reason or reason)
            case NextQueue(out):
                if park_reason is not None:
                    return self._park(record, park_reason)
                return Placement(Kind.HOP, out, partition=-1 if out.partition is None else out.partition)
            case Deliver():
                if park_reason is not None:
                    return self._park(record, park_reason)
                return self._deliver(record, step, now_ns)
            case NotAllowed():
                if park_reason is not None:
                    return self._park(record, park_reason)
                return self._offer(record, step, now_ns)

    def _offer(self, record: Any, step: NotAllowed, now_ns: int) -> Placement:
        """Re-append a record for another worker, whose allow-list may contain the target."""
        if (step.envelope.target_tries or 0) >= self._target_tries:
            return self._park(record, NOT_ALLOWED)
        lanes = (self.targets.target(self._names.schedule, now_ns).partitions or 0) // self._levels.STRIDE
        out = self._planner.offer(record, step.envelope, step.due_ms, max(1, lanes)).out
        partition = -1 if out.partition is None else out.partition
        return Placement(Kind.RE_APPEND, out, partition=partition, reason=NOT_ALLOWED)

    def _deliver(self, record: Any, deliver: Deliver, now_ns: int) -> Placement:
        out = deliver.out
        target = self.targets.target(out.topic, now_ns)
        if now_ns < target.ready_ns:
            return Placement(Kind.NOT_YET, None, target=target)
        if target.partitions == 0:
            return self._park(record, f"unknown-topic:{deliver.envelope.real_topic}")
        if target.is_avoided(now_ns):
            return self._re_append(record, deliver, target.avoid_reason)
        if target.partitions is None:
            partition = -1
        elif out.partition is not None and out.partition < target.partitions:
            partition = out.partition
        elif out.partition is not None and now_ns >= target.answered_ns + _LOOK_AGAIN_NS:
            self.targets.look_again(out.topic)  # it may have more partitions now
            return Placement(Kind.NOT_YET, None, target=target)
        elif out.key is None:
            partition = target.turn % target.partitions
        else:
            partition = murmur2(out.key, target.partitions)
        return Placement(
            Kind.DELIVER,
            out,
            partition=partition,
            due_ms=deliver.due_ms,
            target=target,
            one_per_batch=now_ns < target.careful_until_ns,
        )

    def _re_append(self, record: Any, deliver: Deliver, reason: str) -> Placement:
        if (deliver.envelope.target_tries or 0) >= self._target_tries:
            return self._park(record, f"target-refused:{reason}")
        out = self._planner.re_append(record, deliver.envelope, deliver.due_ms).out
        return Placement(Kind.RE_APPEND, out, partition=-1 if out.partition is None else out.partition, reason=reason)

    def re_append(self, record: Any, *, clock_ms: int, seen_ns: int, now_ns: int, reason: str) -> Placement:
        """Return where a record goes after its target has not answered."""
        step = self._planner.plan(record, clock_ms=clock_ms, seen_ns=seen_ns, now_ns=now_ns)
        if isinstance(step, Deliver):
            return self._re_append(record, step, reason)
        return self.route(record, clock_ms=clock_ms, seen_ns=seen_ns, now_ns=now_ns)

    def _park(self, record: Any, reason: str) -> Placement:
        out = self._planner.park(record, reason).out
        position = (record.partition(), record.offset())
        if position in self._without_body:
            out = bare_parked(out)
        return Placement(Kind.PARK, out, reason=reason)

    # --- failures ----------------------------------------------------------------------------------------------------

    def refused(self, record: Any, kind: Kind, topic: str, error: KafkaError, now_ns: int, *, alone: bool) -> Verdict:
        """Note that a hop of a record was not stored, and return what to do with the record.

        Args:
            record: as fetched.
            kind: the kind of the hop.
            topic: the topic to which it was produced.
            error: why it was not stored.
            now_ns: monotonic now.
            alone: whether the record was a separate batch, so that the error is about this record.
        """
        code = error.code()
        position = (record.partition(), record.offset())
        if is_unconfirmed(error):
            return Verdict.WAIT
        if code in _NO_CAUSE:
            return Verdict.ROUTE_AGAIN
        if kind is not Kind.DELIVER:
            return self._own_hop_refused(position, kind, code, error)
        target = self.targets.target(topic, now_ns)
        if code in _PRODUCER_LACKS and self.targets.producer_lacks(target, now_ns):
            return Verdict.ROUTE_AGAIN
        if code in NO_TARGET:
            self.targets.look_again(topic)
            # the next lookup decides; if the topic exists, the broker that refused may not know it for a moment
            target.failed(now_ns, error.name())
            return Verdict.ROUTE_AGAIN
        if code in _REFUSED_RECORD:
            if not alone:
                if target.be_careful(now_ns):
                    self._alarm("worker.target-careful", topic=topic, error=error.name())
            else:
                self._park_reasons[position] = f"target-refused:{error.name()}"
            return Verdict.ROUTE_AGAIN
        self.target_failed(target, now_ns, error.name())
        return Verdict.ROUTE_AGAIN

    def batch_refused(self, topic: str, error: KafkaError, now_ns: int) -> bool:
        """Note that an unknown record of a batch was not stored; return True if that record must be found."""
        code = error.code()
        if code in _NO_CAUSE or is_unconfirmed(error):
            return False
        target = self.targets.target(topic, now_ns)
        if code in _PRODUCER_LACKS and self.targets.producer_lacks(target, now_ns):
            return False
        if code in NO_TARGET:
            self.targets.look_again(topic)
        if code in _REFUSED_RECORD:
            if target.be_careful(now_ns):
                self._alarm("worker.target-careful", topic=topic, error=error.name())
            return True
        self.target_failed(target, now_ns, error.name())
        return False

    def _own_hop_refused(self, position: tuple[int, int], kind: Kind, code: int, error: KafkaError) -> Verdict:
        if code not in _REFUSED_RECORD:
            return Verdict.WAIT
        if kind is not Kind.PARK:
            self._park_reasons[position] = f"hop-refused:{error.name()}"
            return Verdict.ROUTE_AGAIN
        if position not in self._without_body:
            self._without_body.add(position)
            self._alarm("worker.parked-without-body", partition=position[0], offset=position[1])
            return Verdict.ROUTE_AGAIN
        return Verdict.WAIT

    def target_failed(self, target: TargetHealth, now_ns: int, reason: str) -> None:
        """Note that a target has refused or has not answered, for a reason that is not specific to one record."""
        if target.failed(now_ns, reason):
            self._alarm("worker.target-avoided", topic=target.topic, error=reason)

    def mark_for_parking(self, record: Any, reason: str) -> None:
        """Mark a record for parking with this reason; the other checks no longer matter."""
        self._park_reasons[record.partition(), record.offset()] = reason

    def forget(self, number: int) -> None:
        """Forget the marks of a partition's records: it was revoked, or its log started again."""
        for position in [position for position in self._park_reasons if position[0] == number]:
            del self._park_reasons[position]
        self._without_body -= {position for position in self._without_body if position[0] == number}

    def settled(self, record: Any) -> None:
        """Forget the marks of a record whose hop is stored."""
        if self._park_reasons or self._without_body:
            position = (record.partition(), record.offset())
            self._park_reasons.pop(position, None)
            self._without_body.discard(position)

    @property
    def has_marks(self) -> bool:
        """Whether any record is marked, so that `settled` has work to do."""
        return bool(self._park_reasons or self._without_body)
