"""The fast path returns the planner's result, or None."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.fast_path import FastPath
from rocketshim.worker.planner import Deliver, DeliveryPlanner
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import HEADER_ORDER

NAMES = TopicNames("")
LEVELS = DelayLevels.parse("1s 2s")
CLOCK_MS = 1_700_000_010_000
APPEND_MS = 1_700_000_000_000
PLANNER = DeliveryPlanner(NAMES, LEVELS, AllowList(NAMES, ("*",)))

Headers = list[tuple[str, bytes | None]]


class Record:
    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def topic(self) -> str:
        return NAMES.schedule

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return b"v"

    def headers(self) -> Any:
        return self._headers or None

    def timestamp(self) -> tuple[int, int]:
        return 2, APPEND_MS


numbers = st.one_of(
    st.integers(0, 20_000).map(lambda number: b"%d" % number),
    st.sampled_from(
        [
            b"0",
            b"007",
            b"",
            b"-1",
            b"+1",
            b"1 ",
            b"1_0",
            "١٢".encode(),
            b"2147483647",
            b"2147483648",
            b"1e3",
            b"9223372036854775807",
            b"9223372036854775808",
            b"1" * 20,
        ]
    ),
    st.none(),
)
texts = st.one_of(
    st.sampled_from([b"orders", b"%RETRY%g", b"g", b"", b"1", b"\xff", b"a/0/1", b"topic/0/1"]), st.binary(), st.none()
)
NUMBERS = {"SHIM", "DELAY", "DELAY_MS", "DELIVER_AT_MS", "BORN_TIMESTAMP", "RECONSUME_TIMES", "FAIL_AT_MS"}


@st.composite
def usual(draw: st.DrawFn) -> Headers:
    """Return headers as this library writes them, sometimes with one defect."""
    present = {"SHIM": b"1", "UNIQ_KEY": b"id", "BORN_TIMESTAMP": b"1700000000000"}
    if draw(st.booleans()):
        present["REAL_TOPIC"] = b"orders"
    else:
        present |= {"REAL_TOPIC": b"%RETRY%g", "CONSUMER_GROUP": b"g", "RECONSUME_TIMES": b"3", "RETRY_TOPIC": b"t"}
    present |= draw(st.sampled_from([{"DELAY": b"1", "DELAY_MS": b"1000"}, {"DELIVER_AT_MS": b"1700000005000"}]))
    for name, value in (("TAGS", b"a"), ("KEYS", b"k"), ("HOP_ID", b"s/0/1"), ("MAX_RECONSUME_TIMES", b"5")):
        if draw(st.booleans()):
            present[name] = value
    headers: Headers = [(name, present[name]) for name in HEADER_ORDER if name in present]
    headers += draw(st.lists(st.tuples(st.sampled_from(["a", "b", "USER.TAGS", "ü"]), st.binary() | st.none())))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(headers) - 1))
        name = headers[at][0]
        match draw(st.integers(0, 4)):
            case 0:
                headers[at] = (name, draw(numbers if name in NUMBERS else texts))
            case 1:
                del headers[at]
            case 2:
                headers.insert(draw(st.integers(0, len(headers))), headers[at])
            case 3:
                headers.append((draw(st.sampled_from([*HEADER_ORDER, "x\ny", "x"])), draw(numbers | texts)))
            case _:
                headers.reverse()
        if not headers:
            break
    return headers


QUICK = FastPath()


@settings(max_examples=1_500, deadline=None)
@given(st.one_of(usual(), st.lists(st.tuples(st.sampled_from([*HEADER_ORDER, "u"]), numbers | texts), max_size=12)))
@example(
    [("REAL_TOPIC", b"orders"), ("DELAY_MS", b"1"), ("UNIQ_KEY", b"u"), ("BORN_TIMESTAMP", b"1"), ("HOP_ID", None)]
)
def test_the_fast_path_returns_the_planners_result_or_none(headers: Headers) -> None:
    record = Record(headers)
    hop_id = f"{NAMES.schedule}/0/7".encode()
    found = QUICK.cut(record.headers(), APPEND_MS, CLOCK_MS, hop_id)
    if found is None:
        return
    real_topic, consumer_group, delivered, due_ms = found
    topic = real_topic.decode("utf-8", "surrogateescape")
    group = None if consumer_group is None else consumer_group.decode("utf-8", "surrogateescape")
    if AllowList(NAMES, ("*",)).refusal(topic, group) is not None:
        return  # the router checks this before it uses the result
    step = PLANNER.plan(record, clock_ms=CLOCK_MS, seen_ns=0, now_ns=0)
    assert isinstance(step, Deliver)
    assert step.due_ms == due_ms
    assert step.out.headers == delivered
    assert step.out.topic == NAMES.physical(topic)
    assert step.out.partition is None


def test_records_of_this_library_take_the_fast_path() -> None:
    level = [
        ("SHIM", b"1"), ("REAL_TOPIC", b"orders"), ("DELAY", b"1"), ("DELAY_MS", b"1000"), ("UNIQ_KEY", b"u"),
        ("TAGS", b"t"), ("BORN_TIMESTAMP", b"1700000000000"), ("a", b"1"), ("b", None),
    ]  # fmt: skip
    found = QUICK.cut(level, APPEND_MS, CLOCK_MS, b"s/0/7")
    assert found is not None
    assert found[2] == [*level[4:7], ("HOP_ID", b"s/0/7"), *level[7:]]
    assert QUICK.cut(level, CLOCK_MS - 999, CLOCK_MS, b"s/0/7") is None


def test_the_memory_of_the_fast_path_is_bounded() -> None:
    quick = FastPath()
    for number in range(10_000):
        headers = [("REAL_TOPIC", b"o"), ("DELAY_MS", b"%d" % number), ("UNIQ_KEY", b"u"), (f"u{number}", b"")]
        quick.cut(headers, 0, CLOCK_MS, b"")
        quick.cut(
            [("REAL_TOPIC", b"o"), ("DELAY_MS", b"%d" % number), ("UNIQ_KEY", b"u"), ("BORN_TIMESTAMP", b"1")],
            0,
            0,
            b"",
        )
    assert len(quick._layouts) <= 512
    assert len(quick._longs) <= 4_096


def test_header_names_that_are_too_long_or_too_many_are_not_remembered() -> None:
    quick = FastPath()
    plain: Headers = [("REAL_TOPIC", b"o"), ("DELAY_MS", b"1"), ("UNIQ_KEY", b"u"), ("BORN_TIMESTAMP", b"1")]
    assert quick.cut([*plain, ("x" * 100_000, b"")], 0, CLOCK_MS, b"") is None
    assert quick.cut([*plain, *[("x", b"")] * 1_000], 0, CLOCK_MS, b"") is None
    assert not quick._layouts
