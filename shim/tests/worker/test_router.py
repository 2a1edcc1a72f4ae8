"""The router makes every record's next hop as `rocketshim_topics.hops` does, header for header."""

from typing import Any, NamedTuple

from confluent_kafka import murmur2
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rocketshim.core.level_queue import Due, LevelQueue
from rocketshim.core.offset_tracker import Run
from rocketshim.core.worker_notes import NOT_ALLOWED
from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.header_shapes import HeaderShapes
from rocketshim.worker.hop_writer import Action, HopGroup
from rocketshim.worker.refusals import Refusals
from rocketshim.worker.router import Router, queue_append_ms
from rocketshim.worker.targets import TargetHealth, TargetTable
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import OutgoingRecord, delivered, due_ms, fire, hopped, is_probe, parked, retried_target
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import HEADER_ORDER, Envelope, decode

NAMES = TopicNames("")
LEVELS = DelayLevels.parse("1s 2s")
ALLOWED = AllowList(NAMES, ("orders", "audit"))
CLOCK_MS = 1_700_000_010_000
APPEND_MS = 1_700_000_000_000
MAX_DELAY_MS = 40 * 86_400_000
TRIES = 3
NEVER_NS = 1 << 62

Headers = list[tuple[str, bytes | None]]


class Record:
    def __init__(self, headers: Headers, key: bytes | None, append_ms: int, partition: int, offset: int) -> None:
        self._headers = headers
        self._key = key
        self._append_ms = append_ms
        self._partition = partition
        self._offset = offset

    def topic(self) -> str:
        return NAMES.schedule

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return b"v" if self._key != b"tombstone" else None

    def headers(self) -> Any:
        return self._headers or None

    def timestamp(self) -> tuple[int, int]:
        return 2, self._append_ms


class Expected(NamedTuple):
    """What the router has to decide about one record."""

    action: Action
    topic: str = ""
    partition: int = -1
    headers: Headers | None = None
    reason: str = ""
    due_ms: int = 0
    one_per_batch: bool = False
    timestamp_ms: int = 0


# --- the rules, once more and slowly ---------------------------------------------------------------------------------


def expected(  # noqa: C901, PLR0912 - all rules, in their order
    record: Any, mark: str | None, targets: dict[str, TargetHealth]
) -> Expected:
    if is_probe(record):
        return Expected(Action.SKIP)
    if mark is not None:
        return park(record, mark)
    try:
        envelope = decode(record.headers(), trusted=True)
    except MalformedRecordError as error:
        return park(record, error.reason)
    if not envelope.real_topic:
        return park(record, "missing-header:REAL_TOPIC")
    refusal = ALLOWED.refusal(envelope.real_topic, envelope.consumer_group)
    if refusal not in {None, NOT_ALLOWED}:
        return park(record, refusal or "")
    queue_ms = LEVELS.queue_delay_ms(record.partition())
    append_ms = queue_append_ms(record.timestamp()[1], queue_ms or 0, CLOCK_MS, 0, 0)
    at_ms = due_ms(envelope, append_ms, LEVELS.UNKNOWN_LEVEL_MS if queue_ms is None else queue_ms)
    recurs = envelope.timer_repeat is not None
    if at_ms - CLOCK_MS > MAX_DELAY_MS and not recurs:
        return park(record, "due-too-late")
    tries = envelope.target_tries or 0
    if refusal == NOT_ALLOWED and not recurs and envelope.timer is None:
        return offer(record, envelope, at_ms)
    if at_ms > CLOCK_MS:
        queue = LEVELS.queue_for(at_ms - CLOCK_MS, 0)
        return made(Action.REQUEUE, hopped(record, envelope, NAMES, deliver_at_ms=at_ms, partition=queue), "", at_ms)
    log = targets[NAMES.timers]
    if envelope.timer is not None and log.partitions != 0:
        if log.ready_ns > 0:
            return Expected(Action.NOT_YET)
        if envelope.timer_set_at is None:
            return park(record, "missing-header:TIMER_SET_AT")
        return made(Action.REQUEUE, fire(record, envelope, NAMES), "", at_ms)
    if envelope.timer is None and refusal == NOT_ALLOWED:
        return offer(record, envelope, at_ms)
    out = delivered(record, envelope, NAMES)
    target = targets[out.topic] if envelope.timer is None else log
    if target.ready_ns > 0:
        return Expected(Action.NOT_YET)
    if target.partitions == 0 or target.failures:
        missing = envelope.real_topic if envelope.timer is None else NAMES.timers
        reason = "test" if target.partitions else f"unknown-topic:{missing}"
        if tries >= TRIES:
            return park(record, f"target-refused:{reason}" if target.partitions else reason)
        queue = LEVELS.queue_for((1_000, 5_000, 5_000)[tries], 0)
        return made(Action.RE_APPEND, retried_target(record, envelope, NAMES, partition=queue, due_ms=at_ms), reason)
    count = target.partitions or 1
    if out.partition is not None and out.partition >= count and target.answered_ns < 0:
        target.ready_ns = NEVER_NS  # it is looked up again
        return Expected(Action.NOT_YET)
    by_key = 0 if out.key is None else murmur2(out.key, count)
    out.partition = out.partition if out.partition is not None and out.partition < count else by_key
    given_ms = 0 if envelope.real_topic.startswith("%RETRY%") else envelope.target_timestamp_ms or 0
    is_careful = target.careful_until_ns > 0
    late_from_ms = at_ms if envelope.park_from is None else CLOCK_MS  # it was parked, and is sent again
    return made(Action.DELIVER, out, "", late_from_ms)._replace(one_per_batch=is_careful, timestamp_ms=given_ms)


def offer(record: Any, envelope: Envelope, at_ms: int) -> Expected:
    tries = envelope.target_tries or 0
    if tries >= TRIES:
        return park(record, NOT_ALLOWED)
    queue = LEVELS.queue_for((1_000, 512, 10_000)[tries], 0)
    return made(Action.RE_APPEND, retried_target(record, envelope, NAMES, partition=queue, due_ms=at_ms), NOT_ALLOWED)


def park(record: Any, reason: str) -> Expected:
    return made(Action.PARK, parked(record, NAMES, reason), reason)


def made(action: Action, out: OutgoingRecord, reason: str, at_ms: int = 0) -> Expected:
    return Expected(action, out.topic, -1 if out.partition is None else out.partition, out.headers, reason, at_ms)


# --- records ---------------------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(0, 20_000).map(lambda number: b"%d" % number),
    st.sampled_from(
        [
            b"0", b"007", b"", b"-1", b"+1", b"1 ", b"1_0", "١٢".encode(), b"2147483647", b"2147483648", b"1e3",
            b"9223372036854775807", b"9223372036854775808", b"1" * 20, b"1700000020000", b"1800000000000",
        ]
    ),
    st.none(),
)  # fmt: skip
topics = st.sampled_from([b"orders", b"audit", b"payments", b"__x", b"%RETRY%g", b"%DLQ%g", b"rmq.parked", b"\xff"])
texts = st.one_of(topics, st.sampled_from([b"g", b"", b"1", b"a/0/1", b"topic/0/1"]), st.binary(max_size=8), st.none())
NUMBERS = {
    "SHIM", "REAL_QID", "DELAY", "DELAY_MS", "DELIVER_AT_MS", "BORN_TIMESTAMP", "RECONSUME_TIMES", "FAIL_AT_MS",
    "MAX_RECONSUME_TIMES", "TARGET_TRIES", "REPLAY_COUNT", "TARGET_TIMESTAMP_MS",
    "TIMER_SET_AT", "TIMER_AT_MOST_MS", "TIMER_SINCE_MS",
}  # fmt: skip
FAILURE = {
    "CONSUMER_GROUP": b"g", "RECONSUME_TIMES": b"3", "RETRY_TOPIC": b"t", "ORIGIN_MESSAGE_ID": b"o", "FAIL_CLASS": b"E",
    "FAIL_TEXT": b"text", "FAIL_AT_MS": b"1700000000001",
}  # fmt: skip
SOMETIMES = {
    "TAGS": b"a", "KEYS": b"k", "HOP_ID": b"s/0/1", "MAX_RECONSUME_TIMES": b"5", "REAL_QID": b"1", "TARGET_TRIES": b"1",
    "SHIM": b"1", "UNIQ_KEY": b"id", "BORN_TIMESTAMP": b"1700000000000", "REPLAY_ID": b"r", "REPLAY_COUNT": b"1",
    "TARGET_TIMESTAMP_MS": b"1600000000000", "TIMER": b"o-7", "TIMER_SET_AT": b"70", "TIMER_DO": b"SET",
    "TIMER_REPEAT": b"15m",
}  # fmt: skip
DUES: list[dict[str, bytes]] = [
    {}, {"DELAY": b"1", "DELAY_MS": b"1000"}, {"DELAY_MS": b"900000"}, {"DELIVER_AT_MS": b"1700000005000"},
    {"DELIVER_AT_MS": b"1700000020000"}, {"DELIVER_AT_MS": b"0"},
]  # fmt: skip


@st.composite
def usual(draw: st.DrawFn) -> Headers:
    """Return headers as a sender writes them, in any order, sometimes with one or two defects."""
    present = {"REAL_TOPIC": draw(st.sampled_from([b"orders", b"orders", b"audit", b"payments"]))}
    if draw(st.booleans()):
        present |= {"REAL_TOPIC": b"%RETRY%g", **FAILURE}
    present |= draw(st.sampled_from(DUES))
    present |= {name: SOMETIMES[name] for name in draw(st.sets(st.sampled_from(sorted(SOMETIMES))))}
    headers: Headers = [(name, present[name]) for name in HEADER_ORDER if name in present]
    user = st.tuples(st.sampled_from(["a", "b", "USER.TAGS", "ü", "\u200b"]), st.binary(max_size=4) | st.none())
    headers += draw(st.lists(user, max_size=4))
    if draw(st.booleans()):
        headers = draw(st.permutations(headers))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        if not headers:
            break
        at = draw(st.integers(0, len(headers) - 1))
        name = headers[at][0]
        match draw(st.integers(0, 3)):
            case 0:
                headers[at] = (name, draw(numbers if name in NUMBERS else texts))
            case 1:
                del headers[at]
            case 2:
                headers.insert(draw(st.integers(0, len(headers))), headers[at])
            case _:
                headers.append((draw(st.sampled_from([*HEADER_ORDER, "x\ny", "x"])), draw(numbers | texts)))
    return headers


anything = st.lists(st.tuples(st.sampled_from([*HEADER_ORDER, "u", ""]), numbers | texts), max_size=12)
of_a_run = st.tuples(
    st.one_of(usual(), usual(), anything),
    st.sampled_from([None, b"k", b"", b"tombstone"]),
    st.sampled_from([APPEND_MS, APPEND_MS, APPEND_MS + 1, CLOCK_MS, CLOCK_MS + 5_000]),
    st.sampled_from([None, None, None, None, "no-append-time"]),
)
TARGETS = ("orders", "audit", "rmq.retry.g", "rmq.timers")
STATES = ["open", "unknown", "missing", "avoided", "careful", "asked-again"]


def target(topic: str, state: str) -> TargetHealth:
    made = TargetHealth(topic)
    made.partitions = 0 if state == "missing" else 3
    made.ready_ns = NEVER_NS if state == "unknown" else 0
    made.ask_ns = NEVER_NS
    made.answered_ns = 0 if state == "asked-again" else -NEVER_NS
    made.careful_until_ns = NEVER_NS if state == "careful" else 0
    if state == "avoided":
        made.failures, made.avoid_until_ns, made.avoid_reason = 1, NEVER_NS, "test"
    return made


ROUTER_SHAPES = HeaderShapes(NAMES)  # kept, as a worker keeps it


def route(
    run: list[tuple[Headers, bytes | None, int, str | None]], partition: int, states: dict[str, str]
) -> tuple[list[HopGroup], list[Expected], list[Record]]:
    records = [Record(each[0], each[1], each[2], partition, 7 + at) for at, each in enumerate(run)]
    targets = TargetTable(lambda *_, **__: None)
    refusals = Refusals(targets, print)
    for record, each in zip(records, run, strict=True):
        if each[3] is not None:
            refusals.park(record, each[3])
    targets._targets = {topic: target(topic, state) for topic, state in states.items()}
    known = {topic: target(topic, state) for topic, state in states.items()}
    wanted = [expected(record, each[3], known) for record, each in zip(records, run, strict=True)]
    router = Router(NAMES, LEVELS, ALLOWED, refusals, target_tries=TRIES, max_delay_ms=MAX_DELAY_MS)
    router._shapes = ROUTER_SHAPES
    queue_ms = LEVELS.queue_delay_ms(partition)
    queue: LevelQueue[Any] = LevelQueue(LEVELS.UNKNOWN_LEVEL_MS if queue_ms is None else queue_ms)
    assigned = AssignedPartition(NAMES.schedule, partition, queue, -1)
    appends_ms = [record.timestamp()[1] for record in records]
    offsets = range(7, 7 + len(records))
    taken = Run(None, records, offsets, offsets.start, offsets.stop)
    due: Due[Any] = Due(records, appends_ms, [0] * len(records), taken, CLOCK_MS * 1_000_000)
    return router.route(due, assigned, 0), wanted, records


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(of_a_run, min_size=1, max_size=6),
    st.sampled_from([0, 1, 10, 26, 31]),
    st.fixed_dictionaries({topic: st.sampled_from(STATES) for topic in TARGETS}),
)
@example(
    [
        ([("REAL_TOPIC", b"orders"), ("DELAY_MS", b"1"), ("UNIQ_KEY", b"u"), ("HOP_ID", None)], None, APPEND_MS, None),
        ([("CLOCK", b"1")], None, APPEND_MS, "no-append-time"),
    ],
    0,
    dict.fromkeys(TARGETS, "open"),
)
def test_every_record_takes_the_hop_that_the_rules_and_the_real_hops_say(
    run: list[tuple[Headers, bytes | None, int, str | None]], partition: int, states: dict[str, str]
) -> None:
    groups, wanted, records = route(run, partition, states)
    routed: dict[int, Expected] = {}
    for group in groups:
        for index, value, key, headers, at_ms in group.records:
            assert index not in routed
            is_written = group.action not in {Action.SKIP, Action.NOT_YET}
            if is_written:
                assert (value, key) == (records[index].value(), records[index].key())
            due_at_ms = at_ms if group.action in {Action.DELIVER, Action.REQUEUE} else 0
            found = Expected(
                group.action, group.topic, group.partition, headers, group.reason, due_at_ms, group.one_per_batch,
                group.timestamps.get(index, 0) if group.action is Action.DELIVER else 0,
            )  # fmt: skip
            routed[index] = found if is_written else Expected(group.action)
        assert [hop[0] for hop in group.records] == sorted(hop[0] for hop in group.records)
    assert [routed[index] for index in range(len(run))] == wanted


def test_records_with_the_same_hop_form_one_group() -> None:
    headers: Headers = [("REAL_TOPIC", b"orders"), ("UNIQ_KEY", b"u")]
    later: Headers = [("REAL_TOPIC", b"orders"), ("DELIVER_AT_MS", b"1700000020000"), ("UNIQ_KEY", b"u")]
    one: tuple[Headers, bytes | None, int, str | None] = (headers, b"k", APPEND_MS, None)
    run = [one, (later, b"k", APPEND_MS, None)] * 3
    groups, _, _ = route(run, 0, {"orders": "open", "rmq.timers": "open"})
    assert [(group.action, [hop[0] for hop in group.records]) for group in groups] == [
        (Action.DELIVER, [0, 2, 4]),
        (Action.REQUEUE, [1, 3, 5]),
    ]


def test_records_with_and_without_a_timestamp_of_their_senders_stay_in_order() -> None:
    plain: Headers = [("REAL_TOPIC", b"orders"), ("UNIQ_KEY", b"u")]
    stamped: Headers = [*plain, ("TARGET_TIMESTAMP_MS", b"1600000000000")]
    run: list[tuple[Headers, bytes | None, int, str | None]] = [
        (headers, b"k", APPEND_MS, None) for headers in (plain, stamped, plain, stamped)
    ]
    (group,), _, _ = route(run, 0, {"orders": "open", "rmq.timers": "open"})
    assert [hop[0] for hop in group.records] == [0, 1, 2, 3]
    assert group.timestamps == {1: 1_600_000_000_000, 3: 1_600_000_000_000}


def test_a_target_that_refused_a_timestamp_gets_none_that_is_as_far_for_an_hour() -> None:
    orders, hour_ns = target("orders", "open"), 3_600_000_000_000
    assert all(orders.takes_timestamp(ahead_ms, 0) for ahead_ms in (-(1 << 62), 0, 1 << 62))
    assert orders.timestamp_refused(7_200_000, 0)
    assert not orders.timestamp_refused(-86_400_000, 5)
    limits = (-86_400_000, -86_399_999, 0, 7_139_999, 7_140_000, 7_200_000)
    assert [orders.takes_timestamp(ahead_ms, 9) for ahead_ms in limits] == [False, True, True, True, False, False]
    assert orders.takes_timestamp(7_200_000, hour_ns)
    assert orders.timestamp_refused(7_200_000, hour_ns)
    assert orders.takes_timestamp(-86_400_000, hour_ns)


def test_the_memory_of_shapes_and_numbers_is_bounded() -> None:
    shapes = HeaderShapes(NAMES)
    for number in range(10_000):
        shapes.forget_numbers()
        shapes.of_plain([("REAL_TOPIC", b"o"), ("DELAY_MS", b"%d" % number), ("UNIQ_KEY", b"u"), (f"u{number}", b"")])
    assert len(shapes._by_names) <= 512
    assert len(shapes._by_form) == 1, "the names of the user's headers make no shape"
    assert len(shapes.numbers) <= 4_097


def test_header_names_that_are_too_long_or_too_many_are_not_remembered() -> None:
    shapes = HeaderShapes(NAMES)
    plain: Headers = [("REAL_TOPIC", b"o"), ("DELAY_MS", b"1"), ("UNIQ_KEY", b"u"), ("BORN_TIMESTAMP", b"1")]
    for headers in ([*plain, ("x" * 100_000, b"")], [*plain, *[("x", b"")] * 1_000]):
        assert shapes.of_plain(headers) is None
        shape, same = shapes.make_plain(headers)
        assert shape.count == len(headers)
        assert same == headers
    assert not shapes._by_names


class _CountedName(str):
    """A header name that counts how often it is compared with another one."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        _CountedName.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_the_cost_of_a_record_grows_in_proportion_to_its_headers() -> None:
    headers: Headers = [("REAL_TOPIC", b"o"), ("UNIQ_KEY", b"u"), *[(_CountedName(f"x{at}"), b"") for at in range(500)]]
    HeaderShapes(NAMES).make_plain(headers)
    assert _CountedName.compared <= 20 * len(headers)
