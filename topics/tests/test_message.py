"""A bad message fails where it is made; a view believes a record no more than it should."""

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim_topics import (
    MalformedRecordError,
    Message,
    MessageError,
    MessageTooLargeError,
    MessageView,
    Origin,
    ReservedHeaderError,
)
from rocketshim_topics.message import first_views
from rocketshim_topics.wire import HEADER_ORDER

Foreign = Callable[..., Any]


def test_message_is_kept_as_given() -> None:
    message = Message("orders", b"x", key="o-7", tag="created", keys=["a", "b"], properties={"p": "é", "q": None})
    assert (message.topic, message.body, message.key, message.key_bytes) == ("orders", b"x", "o-7", b"o-7")
    assert message.keys == ("a", "b")
    assert message.headers == (("p", "é".encode()), ("q", None))
    assert message.delay_ms is None
    assert message.deliver_at_ms is None


def test_properties_as_pairs_keep_order_and_repeats() -> None:
    message = Message("orders", None, properties=[("b", b"\xff"), ("a", "1"), ("b", ""), ("b", None)])
    assert message.headers == (("b", b"\xff"), ("a", b"1"), ("b", b""), ("b", None))


@pytest.mark.parametrize("body", [None, b"", b"\x00"])
def test_none_and_empty_are_bodies(body: bytes | None) -> None:
    assert Message("orders", body).body == body


@pytest.mark.parametrize("body", ["text", bytearray(b"x"), memoryview(b"x"), 1, {}])
def test_body_is_bytes_or_none(body: Any) -> None:
    with pytest.raises(MessageError, match="body is of type"):
        Message("orders", body)


@pytest.mark.parametrize("topic", ["", "a b", ".", "x" * 250, "%RETRY%", "%DLQ%a\n", None, b"orders", "%OTHER%x"])
def test_topic_is_a_logical_name(topic: Any) -> None:
    with pytest.raises(MessageError):
        Message(topic, b"")


def test_nobody_sends_to_the_schedule_topic() -> None:
    with pytest.raises(MessageError, match="delay"):
        Message("SCHEDULE_TOPIC_XXXX", b"")


def test_retry_and_dead_letter_topics_are_topics() -> None:
    assert Message("%RETRY%g", b"").topic == "%RETRY%g"
    assert Message("%DLQ%g", b"").topic == "%DLQ%g"


@pytest.mark.parametrize(
    "delays",
    [{"delay": "1s", "delay_level": 3}, {"delay": 0, "deliver_at": 5}, {"delay_level": 0, "deliver_at": 1}],
)
def test_message_has_at_most_one_delay(delays: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match=r"delay.* and d.* are given"):
        Message("orders", b"", **delays)


@pytest.mark.parametrize("delay", ["-1s", "1x", -1, True, float("nan"), None.__class__])
def test_bad_delay_is_a_message_error(delay: Any) -> None:
    with pytest.raises(MessageError, match="delay"):
        Message("orders", b"", delay=delay)


def test_delays_are_settled_in_milliseconds() -> None:
    assert Message("orders", b"", delay="30m").delay_ms == 1_800_000
    assert Message("orders", b"", delay=1.5).delay_ms == 1_500
    assert Message("orders", b"", delay=timedelta(days=40)).delay_ms == 3_456_000_000
    assert Message("orders", b"", deliver_at=123).deliver_at_ms == 123


@pytest.mark.parametrize(
    ("moment", "epoch_ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1_767_225_600_001),
        (datetime(2026, 1, 1, 8, tzinfo=timezone(timedelta(hours=8))), 1_767_225_600_000),
    ],
)
def test_deliver_at_as_datetime_is_rounded_up(moment: datetime, epoch_ms: int) -> None:
    assert Message("orders", b"", deliver_at=moment).deliver_at_ms == epoch_ms


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), -1, 1.5, True, "now", 2**63])  # noqa: DTZ001  # the bad case
def test_bad_deliver_at_is_refused(moment: Any) -> None:
    with pytest.raises(MessageError, match="deliver_at"):
        Message("orders", b"", deliver_at=moment)


@pytest.mark.parametrize("seconds", [1_000_000_000, 1_795_335_000, 99_999_999_999])
def test_a_time_in_seconds_is_refused_and_not_delivered_at_once(seconds: int) -> None:
    with pytest.raises(MessageError, match=f"deliver_at is {seconds}, a time in seconds: .* {seconds}000"):
        Message("orders", b"", deliver_at=seconds)
    assert Message("orders", b"", deliver_at=datetime.fromtimestamp(seconds / 1_000, UTC)).deliver_at_ms == seconds


@pytest.mark.parametrize("level", [True, 1.0, "3", 2**31])
def test_delay_level_is_a_whole_number(level: Any) -> None:
    with pytest.raises(MessageError, match="delay_level"):
        Message("orders", b"", delay_level=level)


@pytest.mark.parametrize("level", [-1, 0, 1, 18, 1_000_000])
def test_any_delay_level_may_be_asked_for(level: int) -> None:
    assert Message("orders", b"", delay_level=level).delay_level == level


@pytest.mark.parametrize("name", HEADER_ORDER)
def test_reserved_property_name_is_refused(name: str) -> None:
    with pytest.raises(ReservedHeaderError, match=name):
        Message("orders", b"", properties={name: "1"})


@pytest.mark.parametrize(
    "name", ["", "a\x00b", "REAL_TOPIC\x00x", "a\n", "\x7f", "\x85", "\ud800", "x" * 129, "é" * 65, 1]
)
def test_property_name_that_no_header_may_have_is_refused(name: Any) -> None:
    with pytest.raises(ReservedHeaderError):
        Message("orders", b"", properties=[(name, "1")])


@pytest.mark.parametrize("value", [1, 1.5, "\ud800", ["a"], True])
def test_property_value_is_text_bytes_or_none(value: Any) -> None:
    with pytest.raises(MessageError, match="property p"):
        Message("orders", b"", properties={"p": value})


@pytest.mark.parametrize("properties", ["abc", b"abc", 1, [("a",)], ["ab"], [("a", "b", "c")], {("a", "b")}])
def test_properties_are_a_mapping_or_pairs(properties: Any) -> None:
    with pytest.raises(MessageError):
        Message("orders", b"", properties=properties)


def test_number_and_size_of_properties_have_limits() -> None:
    Message("orders", b"", properties=[("a", "")] * 64)
    with pytest.raises(MessageError, match="65 properties"):
        Message("orders", b"", properties=[("a", "")] * 65)
    Message("orders", b"", properties={"a": "x" * 16_383})
    with pytest.raises(MessageTooLargeError, match="16385 bytes"):
        Message("orders", b"", properties={"a": "x" * 16_384})
    with pytest.raises(MessageTooLargeError):
        Message("orders", b"", keys=["x" * 16_000], tag="y" * 500)


@pytest.mark.parametrize("tag", ["*", "a || b", "a||", "||", " a", "a ", " ", " * "])
def test_a_tag_that_no_subscription_can_select_is_refused(tag: str) -> None:
    with pytest.raises(MessageError, match="no subscription can select") as refused:
        Message("orders", b"", tag=tag)
    assert repr(tag) in str(refused.value)
    assert "Choose another tag" in str(refused.value)


@pytest.mark.parametrize("tag", ["a|b", "|", "a b", "**", "a*", "\N{NO-BREAK SPACE}"])
def test_a_tag_that_a_subscription_can_select_is_taken(tag: str) -> None:
    assert Message("orders", b"", tag=tag).tag == tag


@pytest.mark.parametrize("tag", ["", "a\n", "\x00", "\ud800", b"a", 1])
def test_bad_tag_is_refused(tag: Any) -> None:
    with pytest.raises(MessageError, match="tag"):
        Message("orders", b"", tag=tag)


@pytest.mark.parametrize("keys", [["a b"], [""], ["a\n"], [1], b"a", 5, [None]])
def test_bad_keys_are_refused(keys: Any) -> None:
    with pytest.raises(MessageError, match="key"):
        Message("orders", b"", keys=keys)


def test_one_text_of_keys_is_split_at_spaces() -> None:
    assert Message("orders", b"", keys="a  b").keys == ("a", "b")


@pytest.mark.parametrize("key", [1, "\ud800", ["a"]])
def test_bad_key_is_refused(key: Any) -> None:
    with pytest.raises(MessageError, match="key is"):
        Message("orders", b"", key=key)


@pytest.mark.parametrize("limit", [-1, True, 1.0, 2**31])
def test_bad_limit_is_refused(limit: Any) -> None:
    with pytest.raises(MessageError, match="max_reconsume_times"):
        Message("orders", b"", max_reconsume_times=limit)


def test_message_cannot_be_changed_past_its_checks() -> None:
    message = Message("orders", b"")
    with pytest.raises(AttributeError):
        message.topic = "a b"  # type: ignore[misc]


@given(
    st.from_regex(r"\A[a-zA-Z0-9._-]{1,249}\Z").filter(lambda topic: topic not in {".", ".."}),
    *[st.integers(0, 2**63 - 1)] * 2,
)
def test_origin_text_is_read_back(topic: str, partition: int, offset: int) -> None:
    origin = Origin(topic, partition % 2**31, offset)
    assert Origin.parse(str(origin)) == origin


@pytest.mark.parametrize("text", ["", "a/1", "a/1/2/3", "a/-1/2", "a/1/x", "a b/1/2", "/1/2", "a/1/2\n", "a/٣/2"])
def test_bad_origin_is_malformed(text: str) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        Origin.parse(text)
    assert caught.value.reason == "bad-origin"


SOURCE_HEADERS = [
    ("UNIQ_KEY", b"u-1"),
    ("TAGS", b"created"),
    ("KEYS", b"a b"),
    ("BORN_TIMESTAMP", b"5"),
    ("MAX_RECONSUME_TIMES", b"3"),
    ("RECONSUME_TIMES", b"9"),
    ("RETRY_TOPIC", b"forged"),
    ("ORIGIN_MESSAGE_ID", b"forged/0/0"),
    ("DELAY", b"4"),
    ("p", b"1"),
    ("p", b"2"),
    ("n", None),
    ("bytes", b"\xff"),
]


def test_view_of_a_source_record_believes_the_five_only(foreign: Foreign) -> None:
    view = MessageView(foreign(SOURCE_HEADERS), trusted=False)
    assert (view.topic, view.body, view.key, view.tag, view.keys) == ("orders", b"v", b"k", "created", ("a", "b"))
    assert (view.msg_id, view.offset_msg_id, view.queue_id, view.queue_offset) == ("u-1", "orders/2/7", 2, 7)
    assert (view.born_timestamp_ms, view.store_timestamp_ms) == (5, 1_700_000_000_000)
    assert (view.reconsume_times, view.max_reconsume_times, view.delay_level) == (0, 3, 0)
    assert view.origin == Origin("orders", 2, 7)
    assert view.headers == (
        ("RECONSUME_TIMES", b"9"),
        ("RETRY_TOPIC", b"forged"),
        ("ORIGIN_MESSAGE_ID", b"forged/0/0"),
        ("DELAY", b"4"),
        ("p", b"1"),
        ("p", b"2"),
        ("n", None),
        ("bytes", b"\xff"),
    )
    assert dict(view.properties) == {
        "RECONSUME_TIMES": "9",
        "RETRY_TOPIC": "forged",
        "ORIGIN_MESSAGE_ID": "forged/0/0",
        "DELAY": "4",
        "p": "2",
        "bytes": "\udcff",
    }


def test_view_of_a_retried_record_shows_where_it_came_from(foreign: Foreign) -> None:
    headers = [
        ("UNIQ_KEY", b"u-1"),
        ("RETRY_TOPIC", b"orders"),
        ("ORIGIN_MESSAGE_ID", b"orders/4/19"),
        ("RECONSUME_TIMES", b"2"),
        ("FAIL_CLASS", b"ValueError"),
        ("USER.DELAY", b"4"),
        ("p", b"1"),
    ]
    view = MessageView(foreign(headers, topic="rmq.retry.g", partition=0, offset=3), trusted=True)
    assert (view.topic, view.origin, view.reconsume_times) == ("orders", Origin("orders", 4, 19), 2)
    assert (view.offset_msg_id, view.queue_id, view.queue_offset) == ("rmq.retry.g/0/3", 0, 3)
    assert dict(view.properties) == {"DELAY": "4", "p": "1"}


def test_view_of_a_waiting_record_shows_its_level(foreign: Foreign) -> None:
    assert MessageView(foreign([("DELAY", b"4")], topic="SCHEDULE_TOPIC_XXXX"), trusted=True).delay_level == 4


@pytest.mark.parametrize("trusted", [True, False])
def test_view_of_a_bare_record(foreign: Foreign, trusted: bool) -> None:
    view = MessageView(foreign(key=None, value=None), trusted=trusted)
    assert (view.body, view.key, view.tag, view.keys) == (None, None, None, ())
    assert view.msg_id == view.offset_msg_id == "orders/2/7"
    assert view.origin == Origin("orders", 2, 7)
    assert view.born_timestamp_ms == view.store_timestamp_ms == 1_700_000_000_000
    assert (view.topic, view.reconsume_times, view.headers, dict(view.properties)) == ("orders", 0, (), {})


def test_view_of_an_empty_value_is_not_none(foreign: Foreign) -> None:
    assert MessageView(foreign(value=b"", key=b""), trusted=False).body == b""
    assert MessageView(foreign(value=b"", key=b""), trusted=False).key == b""


def test_view_is_read_only(foreign: Foreign) -> None:
    view = MessageView(foreign([("p", b"1")]), trusted=False)
    for name in ("body", "topic", "properties", "reconsume_times", "anything"):
        with pytest.raises(AttributeError):
            setattr(view, name, 1)
    with pytest.raises(TypeError):
        view.properties["p"] = "2"  # type: ignore[index]


def test_view_of_a_malformed_trusted_record_says_so_when_it_is_read(foreign: Foreign) -> None:
    record = foreign([("RECONSUME_TIMES", b"x")])
    view = MessageView(record, trusted=True)
    with pytest.raises(MalformedRecordError):
        _ = view.reconsume_times
    assert MessageView(record, trusted=False).reconsume_times == 0


def test_view_never_shows_a_body_in_its_repr(foreign: Foreign) -> None:
    assert repr(MessageView(foreign(value=b"secret"), trusted=False)) == "<MessageView orders/2/7>"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda view: pickle.loads(pickle.dumps(view))])  # noqa: S301
def test_a_view_can_be_copied_and_passed_to_another_process(foreign: Foreign, copied: Callable[[Any], Any]) -> None:
    record = foreign([("UNIQ_KEY", b"u-1"), ("RECONSUME_TIMES", b"2"), ("p", b"1")])
    for view, times in (*((each, 0) for each in first_views([record])), (MessageView(record, trusted=True), 2)):
        view._value = {"id": 7}
        for _ in range(2):  # the second time after its properties were read
            view = copied(view)  # noqa: PLW2901
            assert (view.topic, view.body, view.queue_offset, view.msg_id) == ("orders", b"v", 7, "u-1")
            assert (view.reconsume_times, view.properties["p"], view.value) == (times, "1", {"id": 7})


def test_making_a_view_reads_nothing() -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    MessageView(Untouchable(), trusted=False)


def test_of_a_message_whose_headers_nobody_can_read_the_rest_can_be_read(
    foreign: Foreign, unreadable: Callable[[Any], Any]
) -> None:
    record = unreadable(foreign(value=b"body"))
    for view in (MessageView(record, trusted=False), *first_views([record])):
        for _ in range(2):
            for name in ("tag", "msg_id", "properties", "headers"):
                with pytest.raises(MalformedRecordError, match="not UTF-8") as caught:
                    getattr(view, name)
                assert caught.value.reason == "bad-header-key"
        assert (view.body, view.queue_offset, view.reconsume_times) == (b"body", foreign().offset(), 0)
