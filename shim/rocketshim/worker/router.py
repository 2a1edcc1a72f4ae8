"""Decides where each due record goes now. Produces nothing. The only place with these rules.

`Router.route` asks the following questions in this order; the order is part of the guarantee.

1. A probe of the leader's clock is skipped.
2. A record that was marked for parking (`Refusals`) is parked, without its body if that is too large.
3. A record that breaks the wire format is parked with its reason.
4. A record with a forbidden target is parked, before its due time is computed (no worker will ever deliver it).
5. A record that is due later than the longest allowed delay from now is parked.
6. If the target is only not on this worker's allow-list, the record is re-appended for a worker that may deliver it,
   and finally parked.
7. A record that is not due yet hops to another queue. From the first hop on it carries `DELIVER_AT_MS`.
8. A due record with a name goes to the timer log, which decides whether it is delivered (`worker.timer_router`). If
   there is no such log, it is re-appended, and finally parked.
9. A due record is delivered, if its target takes records as they come. If the target is unknown, or may have got the
   wanted partition meanwhile, the record waits (`NOT_YET`). If the target does not exist, as while it is deleted and
   created again, or is avoided, the record is re-appended (`TARGET_TRIES`), and parked after the configured number of
   tries.

"Due" refers to the lower bound of the leader's clock. If that clock has stepped back, a record's append time may be
ahead of it. Such a record leaves its queue one queue delay after it was first seen, and then counts as appended when it
was first seen.

The result are groups of records with the same hop to the same partition, each in order: groups produced one after the
other make larger batches on the wire. The router always chooses the partition (by key as the Java client does, in turn
without a key), so that the reports of one partition arrive in the order of its records. A delivery calls `route` again
for records whose hop was refused; what was learnt meanwhile (`refusals`) changes the result.

No record makes this module raise, not even one that another program wrote.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import murmur2

from rocketshim.core.level_queue import Due
from rocketshim.core.worker_notes import NOT_ALLOWED
from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.header_shapes import HeaderShape, HeaderShapes
from rocketshim.worker.hop_writer import Action, HopGroup, HopRecord
from rocketshim.worker.refusals import Refusals
from rocketshim.worker.targets import TargetHealth
from rocketshim_topics import wire
from rocketshim_topics.coordinates import RecordCoordinates
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import OutgoingRecord, bare_parked, due_at_ms, fire, is_probe, parked
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import RETRY_PREFIX, TopicNames, group_of
from rocketshim_topics.wire import REAL_TOPIC, Header, coordinates, decode, headers_shown, read_headers

__all__ = ["TOO_LATE", "Router", "queue_append_ms"]

TOO_LATE: Final = "due-too-late"
"""Why a record is parked: its time is further away than `max_delay_ms`."""

_LOOK_AGAIN_NS: Final = 1_000_000_000
_RE_APPEND_MS: Final = (1_000, 5_000, 5_000, 10_000, 10_000, 30_000, 60_000)  # a record waits as long as its queue
_OFFER_MS: Final = (1_000, 512, 10_000, 512, 60_000)
_SAME_LANE: Final = 2  # tries before it
_MOST_ROUTES: Final = 10_000
_LONGEST_NAME: Final = 300  # bytes of a logical name; a longer value cannot be a name and is not remembered
_OFFSET, _KEY, _VALUE = methodcaller("offset"), methodcaller("key"), methodcaller("value")


class _Route:
    """The constant part of routing for one value of `REAL_TOPIC` and `CONSUMER_GROUP`."""

    __slots__ = ("is_retry", "name", "refusal", "target", "topic")

    def __init__(self, name: str, refusal: str | None, topic: str) -> None:
        self.name = name
        self.refusal = refusal  # None: records may go there
        self.topic = topic  # `""`: they never may
        self.is_retry = name.startswith(RETRY_PREFIX)
        self.target: TargetHealth | None = None


def queue_append_ms(append_ms: int, queue_delay_ms: int, clock_ms: int, seen_ns: int, now_ns: int) -> int:
    """Return when a record counts as appended: its timestamp, or when it was first seen if the clock stepped back."""
    if append_ms + queue_delay_ms <= clock_ms:
        return append_ms
    return min(append_ms, clock_ms - (now_ns - seen_ns) // 1_000_000)


@dataclass(slots=True)
class _DueRecord:
    """A due record for which the rules ask more than its route and its due time."""

    index: int
    record: Any
    route: _Route
    shape: HeaderShape
    headers: list[Header]
    hop_id: bytes
    append_ms: int
    due_ms: int
    is_named: bool = False  # it waits under a name: it is not delivered, but fires

    @property
    def tries(self) -> int:
        """How often it was re-appended before."""
        return int(self.headers[self.shape.target_tries][1] or 0) if self.shape.target_tries >= 0 else 0

    @property
    def qid(self) -> int:
        """The partition that it names, -1: none."""
        return int(self.headers[self.shape.real_qid][1] or 0) if self.shape.real_qid >= 0 else -1

    def delivery(self) -> HopRecord:
        """Return the record for its target."""
        choose = self.shape.to_retry if self.route.is_retry else self.shape.to_topic
        return self._hop(choose(self.shape.candidates(self.headers, self.hop_id, self.append_ms)))

    def re_append(self) -> HopRecord:
        """Return the record that waits because its target did not accept it; `TARGET_TRIES` is one higher."""
        candidates = self.shape.candidates(self.headers, self.hop_id, self.append_ms, self.due_ms, self.tries + 1)
        return self._hop(self.shape.to_queue_again(candidates))

    def timestamps(self, target: TargetHealth, clock_ms: int, now_ns: int) -> dict[int, int]:
        """Return the timestamp that the sender gave, by the record's index; nothing if it does not count.

        Decides: Which timestamp does a delivered record have, if its sender gave one? That one, but not in a retry
            topic, whose retention would count from it, and not where the target has refused one that is as far from
            the brokers' clock (`worker.targets.TargetHealth.takes_timestamp`): there that of `worker.hop_writer`.
        """
        if self.shape.timestamp < 0 or self.route.is_retry:
            return {}
        given_ms = int(self.headers[self.shape.timestamp][1] or 0)
        return {self.index: given_ms} if given_ms and target.takes_timestamp(given_ms - clock_ms, now_ns) else {}

    def _hop(self, headers: tuple[Header, ...]) -> HopRecord:
        return self.index, self.record.value(), self.record.key(), list(headers), self.due_ms


class Router:
    """Decides where records go, by the rules at the top of this file."""

    def __init__(
        self,
        names: TopicNames,
        levels: DelayLevels,
        policy: AllowList,
        refusals: Refusals,
        *,
        target_tries: int,
        max_delay_ms: int,
    ) -> None:
        self._names = names
        self._levels = levels
        self._policy = policy
        self.refusals = refusals
        self.targets = refusals.targets
        self._target_tries = target_tries
        self._max_delay_ms = max_delay_ms
        self._shapes = HeaderShapes(names)
        self._routes: dict[tuple[bytes | None, bytes | None], _Route] = {}
        self._queues = TargetHealth(names.schedule)  # stands for the other queues when records are grouped

    def expect(self, run: Sequence[Any], now_ns: int) -> None:
        """Look up the targets of fetched records long before they are due."""
        last: bytes | None = None
        for record in run:
            for name, value in headers_shown(record):
                if name == REAL_TOPIC:
                    if value and value != last:
                        last = value
                        group = group_of(value.decode("utf-8", "surrogateescape"))
                        self._open_target(self._route_to(value, None if group is None else _bytes(group)), now_ns)
                    break

    def route(  # noqa: C901, PLR0912, PLR0915 - one pass over a run, in which every call costs speed
        self,
        due: Due[Any],
        assigned: AssignedPartition,
        now_ns: int,
        indexes: Sequence[int] | None = None,
        *,
        re_append_reason: str = "",
    ) -> list[HopGroup]:
        """Return where the records of a run go now, by the rules at the top of this file.

        `indexes` are those of the records to route, ascending; None: all. `re_append_reason` is why their targets do
        not accept them; `""`: their targets are tried.

        Decides: Is a due record delivered, hopped, re-appended, parked (malformed, forbidden …) or skipped, or does it
            wait for a look-up? By the rules at the top of this file, in their order.
        """
        indexes = range(len(due.records)) if indexes is None else indexes
        records = due.records if len(indexes) == len(due.records) else [due.records[index] for index in indexes]
        shapes, clock_ms, number, prefix = self._shapes, due.clock_ms(now_ns), assigned.number, assigned.hop_prefix
        shapes.forget_numbers()
        of_plain, numbers, marked = shapes.of_plain, shapes.numbers, self.refusals.reasons
        queue_delay_ms, known_delay_ms = assigned.queue.delay_ms, self._levels.queue_delay_ms(number) or 0
        groups: list[HopGroup] = []
        begun: dict[tuple[TargetHealth, int], Callable[[HopRecord], None]] = {}
        timestamps: dict[int, int] = {}
        route: _Route | None = None
        target: TargetHealth | None = None
        last: tuple[bytes | None, bytes | None] = (None, None)
        columns = zip(indexes, records, map(_OFFSET, records), map(_KEY, records), map(_VALUE, records), strict=True)
        for index, record, offset, key, value in columns:
            if marked and (reason := marked.get(RecordCoordinates(*assigned.key, offset))):
                groups.append(self._park(index, record, reason))
                continue
            try:
                headers = read_headers(record) or []
                shape = of_plain(headers)
                if shape is None:
                    shape, headers = shapes.make_plain(headers)
            except MalformedRecordError as error:
                groups.append(self._park(index, record, error.reason))
                continue
            real = headers[shape.real_topic][1] if shape.real_topic >= 0 else None
            group = headers[shape.group][1] if shape.group >= 0 else None
            if route is None or real != last[0] or group != last[1]:
                last = real, group
                route = self._route_to(real, group)
                target = None if re_append_reason else self._open_target(route, now_ns)
            if not route.topic:
                groups.append(self._park(index, record, route.refusal or ""))
                continue
            append_ms = due.appends_ms[index]
            since_ms = append_ms
            if append_ms + known_delay_ms > clock_ms:
                since_ms = queue_append_ms(append_ms, known_delay_ms, clock_ms, due.seen_ns[index], now_ns)
            due_ms = due_at_ms(
                numbers[headers[shape.deliver_at_ms][1]] if shape.deliver_at_ms >= 0 else None,
                numbers[headers[shape.delay_ms][1]] if shape.delay_ms >= 0 else None,
                since_ms,
                queue_delay_ms,
            )
            hop_id = b"%b%d" % (prefix, offset)
            qid = int(headers[shape.real_qid][1] or 0) if shape.real_qid >= 0 else -1
            if due_ms <= clock_ms and target is not None and qid < (target.partitions or 0) and shape.is_plain:  # often
                chosen = (shape.to_retry if route.is_retry else shape.to_topic)(
                    shape.candidates(headers, hop_id, append_ms)
                )
                action, to = Action.DELIVER, target
                if shape.timestamp >= 0:
                    each = _DueRecord(index, record, route, shape, headers, hop_id, append_ms, due_ms)
                    timestamps |= each.timestamps(target, clock_ms, now_ns)
                count = target.partitions or 1
                partition = qid if qid >= 0 else target.turn % count if key is None else murmur2(key, count)
            elif due_ms > clock_ms and due_ms - clock_ms <= self._max_delay_ms and route.refusal is None:
                chosen = shape.to_queue(shape.candidates(headers, hop_id, append_ms, due_ms))
                action, to = Action.REQUEUE, self._queues
                partition = self._levels.queue_for(due_ms - clock_ms, number // self._levels.STRIDE)
            else:
                each = _DueRecord(index, record, route, shape, headers, hop_id, append_ms, due_ms, shape.timer >= 0)
                groups.append(self._route_closely(each, clock_ms, now_ns, re_append_reason))
                route = None  # this may have changed the state of the target
                continue
            add = begun.get((to, partition))
            if add is None:
                started = HopGroup(
                    action, to.topic, partition, target=None if action is Action.REQUEUE else to, timestamps=timestamps
                )
                groups.append(started)
                add = begun[to, partition] = started.records.append
            add((index, value, key, list(chosen), due_ms))
        for each_target in {each_target for each_target, _ in begun}:
            each_target.turn += 1
        return groups

    def _route_closely(self, each: _DueRecord, clock_ms: int, now_ns: int, re_append_reason: str) -> HopGroup:
        """Return where a record goes that may not take the usual ways.

        Decides: What if the target of a record does not exist? The record is re-appended, as for a target that refuses,
            and parked after the last try (unknown-topic). That a topic does not exist is looked up again after a second
            (`worker.targets.TargetTable`). A record without a target is parked before (missing-header:REAL_TOPIC).
        """
        route = each.route
        if each.due_ms - clock_ms > self._max_delay_ms and not each.shape.recurs:
            return self._park(each.index, each.record, TOO_LATE)
        if each.due_ms > clock_ms and (each.is_named or each.shape.recurs):
            return self._wait_on(each, clock_ms)
        if each.is_named:
            return self._fire(each, now_ns)
        if route.refusal is not None:
            return self._offer(each, now_ns)
        target = self.targets.target(route.topic, now_ns)
        if re_append_reason:
            return self._re_append(each, re_append_reason)
        if now_ns < target.ready_ns:
            return self._not_yet(each, target)
        if target.partitions == 0:
            return self._re_append(each, f"unknown-topic:{route.name}", parked_as="")
        if not target.may_try(now_ns):
            return self._re_append(each, target.avoid_reason)
        if each.shape.was_parked:
            each.due_ms = clock_ms  # it waited for a person, which is no lateness of the worker
        return self._deliver(each, target, clock_ms, now_ns)

    def deliver_now(
        self, index: int, record: Any, *, occurrence: str, late_ms: int, clock_ms: int, now_ns: int,
        re_append_reason: str,
    ) -> HopGroup:  # fmt: skip
        """Return where the message of a timer goes that has fired; it has been due for a while, and has no name now.

        With an occurrence of a message that recurs, it has an id of its own, and was born now.
        """
        shape, headers = self._shapes.make_plain(_of_occurrence(read_headers(record) or [], occurrence, clock_ms))
        route = self._route_to(headers[shape.real_topic][1], None)
        self._open_target(route, now_ns)
        hop_id, append_ms = coordinates(record).encode(), record.timestamp()[1]
        each = _DueRecord(index, record, route, shape, headers, hop_id, append_ms, clock_ms - late_ms)
        group = self._route_closely(each, clock_ms, now_ns, re_append_reason)
        if group.action is Action.DELIVER and group.target is not None:
            group.target.turn += 1
        return group

    def _wait_on(self, each: _DueRecord, clock_ms: int) -> HopGroup:
        """Return the hop of a message that recurs rarely, as once a year, or that only another worker may deliver."""
        headers = each.shape.to_queue(each.shape.candidates(each.headers, each.hop_id, each.append_ms, each.due_ms))
        partition = self._levels.queue_for(each.due_ms - clock_ms, each.record.partition() // self._levels.STRIDE)
        first = (each.index, each.record.value(), each.record.key(), list(headers), each.due_ms)
        return HopGroup(Action.REQUEUE, self._names.schedule, partition, first=first)

    def _fire(self, each: _DueRecord, now_ns: int) -> HopGroup:
        """Return the FIRE of a due record with a name: the log decides whether it is delivered."""
        log = self.targets.target(self._names.timers, now_ns)
        if now_ns < log.ready_ns:
            return self._not_yet(each, log)
        if log.partitions == 0:
            return self._re_append(each, f"unknown-topic:{self._names.timers}", parked_as="")
        try:
            out = fire(each.record, decode(each.headers, trusted=True), self._names)
        except MalformedRecordError as error:
            return self._park(each.index, each.record, error.reason)
        first = (each.index, out.value, out.key, out.headers, each.due_ms)
        return HopGroup(Action.REQUEUE, out.topic, out.partition or 0, first=first)

    def _deliver(self, each: _DueRecord, target: TargetHealth, clock_ms: int, now_ns: int) -> HopGroup:
        qid, key, count = each.qid, each.record.key(), target.partitions
        if count is None:
            partition = -1
        elif 0 <= qid < count:
            partition = qid
        elif qid >= 0 and now_ns >= target.answered_ns + _LOOK_AGAIN_NS:
            self.targets.look_again(target.topic)  # it may have more partitions now
            return self._not_yet(each, target)
        else:
            partition = target.turn % count if key is None else murmur2(key, count)
        one_per_batch = now_ns < target.careful_until_ns
        return HopGroup(
            Action.DELIVER, target.topic, partition, target=target, one_per_batch=one_per_batch, first=each.delivery(),
            timestamps=each.timestamps(target, clock_ms, now_ns),
        )  # fmt: skip

    def _not_yet(self, each: _DueRecord, target: TargetHealth) -> HopGroup:
        return HopGroup(Action.NOT_YET, target=target, first=each.delivery())

    def _re_append(self, each: _DueRecord, reason: str, *, parked_as: str = "target-refused:") -> HopGroup:
        """Put a record that its target does not accept back into a queue: of 1 s, then of longer ones, 1 min at most.

        The wait counts from the append of the new record. The due time itself does not change. After the last try the
        record is parked, with `parked_as` before the reason.
        """
        if each.tries >= self._target_tries:
            return self._park(each.index, each.record, f"{parked_as}{reason}")
        wait_ms = _RE_APPEND_MS[min(each.tries, len(_RE_APPEND_MS) - 1)]
        partition = self._levels.queue_for(wait_ms, each.record.partition() // self._levels.STRIDE)
        return HopGroup(Action.RE_APPEND, self._names.schedule, partition, reason=reason, first=each.re_append())

    def _offer(self, each: _DueRecord, now_ns: int) -> HopGroup:
        """Re-append a record that this worker may not deliver for another worker, whose allow-list may have the target.

        The waits grow (1 s, 10 s, 1 min). Between two of them the record goes to a fine queue, whose partition is far
        from those of the levels. It goes to another lane, because a worker owns neighbouring partitions; of two lanes
        it visits the fine queues of both. The due time itself does not change.

        Decides: What becomes of a record that this worker may not deliver, but another one may? It is offered to others
            for a minute and a half, then parked.
        """
        if each.tries >= self._target_tries:
            return self._park(each.index, each.record, NOT_ALLOWED)
        lanes = (self.targets.target(self._names.schedule, now_ns).partitions or 0) // self._levels.STRIDE
        lane = (each.record.partition() // self._levels.STRIDE + 1 + (each.tries == _SAME_LANE)) % max(1, lanes)
        partition = self._levels.queue_for(_OFFER_MS[min(each.tries, len(_OFFER_MS) - 1)], lane)
        return HopGroup(Action.RE_APPEND, self._names.schedule, partition, reason=NOT_ALLOWED, first=each.re_append())

    def _park(self, index: int, record: Any, reason: str, *, marked: Any = None) -> HopGroup:
        """Return the parked record with this reason; skip a probe. `marked` has the marks; None: the record itself."""
        if is_probe(record):
            return HopGroup(Action.SKIP, first=(index, None, None, [], 0))
        out: OutgoingRecord = parked(record, self._names, reason)
        if self.refusals.is_without_body(record if marked is None else marked):
            out = bare_parked(out)
        return HopGroup(Action.PARK, out.topic, reason=reason, first=(index, out.value, out.key, out.headers, 0))

    def _route_to(self, real_topic: bytes | None, group: bytes | None) -> _Route:
        """Return the route of records with these values of `REAL_TOPIC` and `CONSUMER_GROUP`; None: no such header."""
        route = self._routes.get((real_topic, group))
        if route is None:
            name, topic = _text(real_topic), ""
            refusal: str | None = "missing-header:REAL_TOPIC"
            if name:
                refusal = self._policy.refusal(name, None if group is None else _text(group))
                topic = self._names.physical(name) if refusal in {None, NOT_ALLOWED} else ""
            route = _Route(name, refusal, topic)
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            if len(real_topic or b"") + len(group or b"") <= 2 * _LONGEST_NAME:
                self._routes[real_topic, group] = route
        return route

    def _open_target(self, route: _Route, now_ns: int) -> TargetHealth | None:
        """Return the target of a route if it takes records as they come, else None; look it up if that is due."""
        if route.refusal is not None:
            return None
        target = route.target
        if target is None or now_ns >= target.ask_ns:
            target = route.target = self.targets.target(route.topic, now_ns)
        return target if target.is_open(now_ns) else None


def _of_occurrence(headers: list[Header], occurrence: str, born_ms: int) -> list[Header]:
    """Return the headers with the id of an occurrence; `""`: of a message that does not recur, as they are."""
    if not occurrence:
        return headers
    own = {wire.UNIQ_KEY: b".%b" % occurrence.encode()}
    kept = [(name, (value or b"") + own[name] if name in own else value) for name, value in headers]
    return [(name, b"%d" % born_ms if name == wire.BORN_TIMESTAMP else value) for name, value in kept]


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
