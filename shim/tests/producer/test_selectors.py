"""Queue selectors give the same results as RocketMQ's selectors and Java's hashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim import Message, MessageQueue
from rocketshim.errors import MessageError
from rocketshim.producer.selectors import SelectMessageQueueByHash, SelectMessageQueueByRandom, java_hash

QUEUES = [MessageQueue("orders", queue_id=number) for number in range(4)]
MESSAGE = Message("orders", b"x")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
        ("\N{GRINNING FACE}", 1772899),
        (7, 7),
        (-7, -7),
        (2**31, -(2**31)),
        (2**32, 1),
        (-(2**63), -(2**31)),
    ],
)
def test_java_hash_equals_the_hash_code_of_java(value: str | int, expected: int) -> None:
    assert java_hash(value) == expected


@pytest.mark.parametrize("value", [None, 1.5, True, 2**63, b"a"])
def test_an_argument_without_a_java_hash_is_rejected(value: object) -> None:
    with pytest.raises(MessageError, match=r"give a string or an integer|at most 64 bits"):
        java_hash(value)  # type: ignore[arg-type]


def test_the_absolute_value_of_a_negative_hash_is_used_as_in_rocketmq() -> None:
    assert SelectMessageQueueByHash().select(QUEUES, MESSAGE, -7).queue_id == 3
    assert SelectMessageQueueByHash().select(QUEUES, MESSAGE, "polygenelubricants").queue_id == 0


@given(st.text())
def test_equal_arguments_select_the_same_queue(arg: str) -> None:
    selector = SelectMessageQueueByHash()
    assert selector.select(QUEUES, MESSAGE, arg) == selector.select(list(QUEUES), Message("orders", b"y"), arg)


def test_the_random_selector_reaches_every_queue() -> None:
    selector = SelectMessageQueueByRandom()
    assert {selector.select(QUEUES, MESSAGE, None).queue_id for _ in range(400)} == {0, 1, 2, 3}
